"""A model on the Hub: results in its repository, a section for its card; and what the gate says."""

from collections.abc import Sequence
from xml.etree import ElementTree

from lensaudit.doors.export.model import Exported, Files, Measure, names_of
from lensaudit.doors.gate import Gated, Policy, gate, read_policy
from lensaudit.doors.gate_formats import as_junit, as_markdown, xml_text
from lensaudit.doors.settings import ExportSettings
from lensaudit.results.sentences import shown
from lensaudit.screen.tables import markdown_cell
from lensaudit.verdict.collect import Verdicts
from lensaudit.verdict.decide import WORDS


def hub_results(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """`.eval_results/lensaudit.yaml` of a repository on the Hub: depth, bits and views."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    revision = (settings.dataset or "").partition("@")[2]
    files = {}
    for folder, one in zip(names_of(models), models, strict=True):
        common = [f"{key}: {value}" for key, value in one.said.items() if key != "verdict_sentence"]
        entries = [
            EvalResultEntry(
                dataset_id=settings.repo,
                task_id=reading.name,
                value=reading.found.value,
                dataset_revision=revision or None,
                date=one.finished.isoformat(),
                notes="; ".join([f"lensaudit: {reading.title}", *_noted(reading), *common]),
            )
            for reading in one.scored
            if reading.unit
        ]
        text = yaml_dump(eval_result_entries_to_yaml(entries))
        files[f"{folder}.eval_results/lensaudit.yaml"] = text.encode()
    return files


def _noted(one: Measure) -> list[str]:
    """Interval and details in words."""
    ends = one.found.ends
    interval = "no interval" if ends is None else f"95 % interval {list(ends)}"
    return [interval, *(f"{key}: {value}" for key, value in one.details.items())]


def model_card(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """A section for a model card, to be pasted into its README."""
    named = zip(names_of(models), models, strict=True)
    return {f"{folder}lensaudit_card.md": f"{card(one)}\n".encode() for folder, one in named}


def card(one: Exported) -> str:
    """A section of Markdown: verdict, numbers with intervals, what has none, content hashes."""
    rows = [
        f"| {markdown_cell(r.title)} | {shown(r.found, 3)} | {r.found.n or '–'} | "
        f"{_WAYS[r.lower_is_better]} | "
        f"{markdown_cell('; '.join(f'{k}: {v}' for k, v in r.beside.items())) or '–'} |"
        for r in one.scored
    ]
    also = [f"- {markdown_cell(f'{apart}: {word}')}" for apart, word in one.others.items()]
    lacking = [f"- {name}: {markdown_cell(why)}" for name, why in one.unscored.items()]
    return "\n".join(
        [
            f"## Unlearning audit of {markdown_cell(one.model.source)}: {WORDS[one.model.word][0]}",
            "",
            markdown_cell(one.model.verdict.sentence),
            "",
            *([*also, ""] if also else []),
            "| measure | value [95 % interval] | scored | better | beside |",
            "|---|---|---|---|---|",
            *rows,
            *(["", "Not scored:", "", *lacking] if lacking else []),
            "",
            "Made by lensaudit from files with these hashes:",
            "",
            *(f"- {markdown_cell(name)}: `{value}`" for name, value in one.hashes.items()),
        ]
    )


_WAYS = {None: "–", True: "lower", False: "higher"}


def _gated(found: Verdicts, settings: ExportSettings) -> Gated:
    return gate(found, read_policy(settings.gate) if settings.gate else Policy())


def markdown(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """What the gate says, and under it a section for each model."""
    parts = [as_markdown(_gated(found, settings)), *map(card, models)]
    return {"lensaudit_gate.md": ("\n\n".join(parts) + "\n").encode()}


def junit(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """What the gate says, a test case a model, with every number as a property."""
    suite = ElementTree.fromstring(as_junit(_gated(found, settings)))
    # after the models comes what is left out
    for case, one in zip(suite[: len(models)], models, strict=True):
        said = {r.name: "; ".join([repr(r.found.value), *_noted(r)]) for r in one.scored}
        properties = ElementTree.Element("properties")
        for name, value in {**one.said, **said}.items():
            named = {"name": xml_text(name), "value": xml_text(value)}
            ElementTree.SubElement(properties, "property", named)
        case.insert(0, properties)
    text = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    return {"lensaudit_junit.xml": text.encode()}
