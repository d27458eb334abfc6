"""Exports: what was found of a model, in the files of every_eval_ever, the Hub, Inspect and CI.

Values come with their intervals, what has none with its reason, models and rows with their content
hashes. Files depend on the results alone: written twice, they are the same.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from importlib import metadata
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from lensaudit.doors.gate import Gated, Policy, gate, read_policy
from lensaudit.doors.gate_formats import as_junit, as_markdown
from lensaudit.doors.settings import ExportSettings
from lensaudit.errors import InputError, need, told_by
from lensaudit.files import check_output, digest, make_folder, slug, write_bytes
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.kinds.know import bits_beside
from lensaudit.results.kinds.patch import SCORES, PatchRun
from lensaudit.results.kinds.table import Kind
from lensaudit.results.locate import Found
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.reading import brief, json_object, part
from lensaudit.results.sentences import shown
from lensaudit.scores.estimate import Estimate
from lensaudit.screen.tables import markdown_cell
from lensaudit.settings import Place
from lensaudit.verdict.collect import Model, Verdicts, verdicts
from lensaudit.verdict.decide import WORDS
from lensaudit.verdict.thresholds import TAIL_BELOW
from lensaudit.verdict.views import View

EEE = "0.3.0"
"""Version of every_eval_ever whose schemas are written."""
INSPECT = "0.3.285"
"""Version of inspect-ai that was tried."""
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_OF_KEPT = ("retain_", "ra_", "wf_")
"""How metrics of rows to keep begin: there, and for utility, knowing is better."""
_TWO_SIDED = re.compile(r"privleak|rel_diff|.*_PERT_.*")
"""Metrics whose best value is in the middle, and those of wrong answers: no way is better."""


@dataclass(frozen=True)
class Measure:
    """One number of a model, as other people's tables ask for it."""

    name: str
    title: str
    found: Estimate
    lower_is_better: bool | None
    """None: nobody said which way is better."""
    least: float = -inf
    most: float = inf
    unit: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    """What else is known: rows without a score and why, its control, its source."""

    @property
    def details(self) -> dict[str, str]:
        """All that a value does not say, as text."""
        counted = {} if self.found.n is None else {"n_scored": str(self.found.n)}
        why = {"why": self.found.why} if self.found.why else {}
        return {**counted, **why, **self.more}


@dataclass(frozen=True)
class ScoredFact:
    """What is known of one fact, by the name of the reading that it is part of."""

    idx: int
    question: str = ""
    answer: str = ""
    entity: str = ""
    layers: Mapping[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float | None, why: str | None) -> None:
        """Add a score, or why there is none."""
        if value is None:
            self.unscored[name] = why or "no reason is known"
        else:
            self.scores[name] = value


@dataclass(frozen=True)
class Exported:
    """A model with all that is written of it."""

    model: Model
    name: str
    """As the Hub would call it: a folder is `local/` and its own name."""
    readings: Sequence[Measure]
    facts: Sequence[ScoredFact]
    hashes: Mapping[str, str]
    versions: Mapping[str, str]
    finished: datetime
    """When the latest of its results was."""

    @property
    def scored(self) -> list[Measure]:
        """Readings that have a value."""
        return [one for one in self.readings if one.found.value is not None]

    @property
    def unscored(self) -> dict[str, str]:
        """Measure without a value -> why it has none."""
        lacking = (one for one in self.readings if one.found.value is None)
        return {one.name: one.found.why or "no reason is known" for one in lacking}

    @property
    def said(self) -> dict[str, str]:
        """The verdict, content hashes and readings without a value, as text."""
        verdict = {"verdict": self.model.code, "verdict_sentence": self.model.verdict.sentence}
        lacking = {f"unscored {name}": why for name, why in self.unscored.items()}
        return {**verdict, **{f"hash {k}": v for k, v in self.hashes.items()}, **lacking}


Files = Mapping[str, bytes]
"""Path below the folder -> content."""


def export(runs: Sequence[Place], settings: ExportSettings, *, force: bool = False) -> list[Path]:
    """Write what was found of every model below `runs` in another tool's files.

    Args:
        runs: folders of results, looked into to any depth.
        settings: whose files, and where to.
        force: write over files that are not ours.

    Returns:
        The files written.

    Raises:
        InputError: nothing to export, a damaged result, a missing package or name, a file of
            somebody else.
    """
    if not _HUB_NAME.fullmatch(settings.repo) and (
        settings.to == "hub-results" or settings.dataset
    ):
        raise InputError(
            f"--dataset: found {settings.dataset!r}, wanted ORG/NAME[@REVISION] of the forget set "
            "on the Hub; hub-results files each number under it"
        )
    found = verdicts(runs)
    located = list(found.found.values())
    files = WRITERS[settings.to]([_exported(one, located) for one in found.models], found, settings)
    out = make_folder(Path(settings.out))
    for name in files:
        check_output(out / name, ours=lambda content: b"lensaudit" in content, force=force)
    for name, content in files.items():
        make_folder((out / name).parent)
        write_bytes(out / name, content)
    return [out / name for name in files]


def _exported(model: Model, located: Sequence[Found]) -> Exported:
    """All of a model, read by the readers that the page uses."""
    own = [one for one in located if one.path.parent in model.folders]
    run = model.judged[0].run
    files = {place: place / MANIFEST for place in model.folders}
    made = {place: json_object(file) for place, file in files.items() if file.exists()}
    # a log of another tool has no hash, and goes by its name
    hashes = {} if model.weights == model.source else {"weights": model.weights}
    for place, one in made.items():
        for role, given in part(one, "inputs").items():
            known = part(given)
            if known.get("weights") not in (None, model.weights):
                hashes.setdefault(role, str(known["weights"]))
            if role == "examples" and known.get("hash") is not None:
                hashes.setdefault("rows", str(known["hash"]))
        hashes[f"result {'/'.join(place.parts[-2:])}"] = str(one.get("check"))
    times = [
        datetime.fromisoformat(str(one["finished"])) for one in made.values() if "finished" in one
    ]
    repo = str(part(run.manifest if run else {}, "inputs", "source").get("repo", ""))
    readings = [_held(one) for one in model.views]
    # the assignment test has its mean beside its share
    means = [one.number for one in model.views if one.name == "bits" and one.number]
    readings += [Measure("bits", "bits a fact", one, True, unit="bits") for one in means]
    for log in (one.record for one in own if one.kind == "eval"):
        readings += [_of_suite(log, name) for name in log.entries]
    if run is not None:
        rows = {f"unscored: {why}": str(idx)[1:-1] for why, idx in run.by_reason.items()}
        title = "unlearning depth score" if run.score == "uds" else f"depth by {run.score}"
        named = (SCORES[run.score], title, run.estimate)
        readings.insert(0, Measure(*named, False, 0.0, 1.0, "proportion", rows))
    return Exported(
        model,
        repo if _HUB_NAME.fullmatch(repo) else f"local/{slug(model.source)}",
        readings,
        _facts(run, own),
        hashes,
        {key: str(value) for one in made.values() for key, value in part(one, "versions").items()},
        max(times, default=datetime.fromtimestamp(0).astimezone()),
    )


def _held(view: View) -> Measure:
    """The share of the facts that a view says is held: 0 as a model that never knew, 1 as full."""
    told = {"says": view.says, "control": view.control, "reason": view.reason}
    told["shown"] = view.shown if view.held else ""
    return Measure(
        f"held.{view.name}",
        f"share held: {view.kind.title}",
        view.held or Estimate(None, why=view.shown if view.finds else view.reason),
        True,
        unit="proportion",
        more={name: text for name, text in told.items() if text},
    )


def _of_suite(run: EvaluationResult, name: str) -> Measure:
    """A metric of `eval`; to forget is better on the forget set, to know on rows to keep."""
    entry = run.entries[name]
    kept = name.startswith(_OF_KEPT) or entry.family == "utility"
    undirected = entry.high_means is None or _TWO_SIDED.fullmatch(name)
    lower = None if undirected else (entry.high_means == "knows") != kept
    more = {"source": entry.source} if entry.source else {}
    more |= {"n_unscored": str(entry.n_unscored)} if entry.n_unscored else {}
    return Measure(f"{run.suite}.{name}", name, entry, lower, more=more)


def _facts(run: PatchRun | None, own: Sequence[Found]) -> list[ScoredFact]:
    """Facts by idx, as the page joins them: depth and layers, bits, and whether an attack hit."""
    known: dict[int, ScoredFact] = {}
    if run is not None:
        for text, row in zip(run.examples, run.rows, strict=True):
            layers = {"layers": [*run.layers], **{key: row.get(key) for key in ("s1", "s2", "ke")}}
            known[text.idx] = fact = ScoredFact(
                text.idx, text.question, text.answer, text.entity, layers
            )
            fact.add(SCORES[run.score], row.get(SCORES[run.score]), row.get("unscored"))
    for kind, told in FACTS.items():
        for one in (one for one in own if one.kind == kind):
            for new, name, value, why in told(one):
                fact = known.setdefault(new.idx, new)
                if new.entity in ("", fact.entity):  # else it is of other rows
                    fact.add(name, value, why)
    return list(known.values())


Scored = tuple[ScoredFact, str, float | None, str | None]
"""A fact, what is known of it, the number, or why there is none."""


def _attacked(found: Found) -> Iterator[Scored]:
    for row in found.record.facts:
        hit = None if row.unscored else float(bool(row.attacks))
        new = ScoredFact(row.idx, row.question, entity=row.entity)
        yield new, "held.worst_case", hit, row.unscored


def _bits(found: Found) -> Iterator[Scored]:
    for idx, (value, why) in brief(bits_beside(found.path)).items():
        yield ScoredFact(int(idx)), "bits", value, why


FACTS: Mapping[Kind, Callable[[Found], Iterator[Scored]]] = {"worst": _attacked, "know": _bits}
"""Kind -> what it knows of facts; last the one whose rows tell no text."""


def _names(models: Sequence[Exported]) -> list[str]:
    """A folder for each of several models, none for one."""
    if len(models) == 1:
        return [""]
    return [f"{slug(one.model.source)}-{digest(one.model.weights)[:8]}/" for one in models]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def eee(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """Records of every_eval_ever: an aggregate a model, and a line for each fact with a score."""
    files = {}
    for one in models:
        stamp = str(int(one.finished.timestamp()))
        named = {"schema_version": EEE, "evaluation_id": f"lensaudit/{one.name}/{stamp}"}
        rows = "".join(f"{_json({**named, **row})}\n" for row in _instances(one)).encode()
        key = sha256(_json([named, one.said]).encode() + rows).digest()[:16]
        org, _, name = one.name.partition("/")
        place = f"data/lensaudit/{org}/{name}/{UUID(bytes=key, version=4)}"
        document = {**named, **_aggregate(one, settings, stamp)}
        if rows:
            files[f"{place}_samples.jsonl"] = rows
            lacking = {str(fact.idx): fact.unscored for fact in one.facts if fact.unscored}
            document["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": f"{place}_samples.jsonl",
                "hash_algorithm": "sha256",
                "checksum": sha256(rows).hexdigest(),
                "total_rows": rows.count(b"\n"),
                "additional_details": {"unscored": _json(lacking)},
            }
        files[f"{place}.json"] = f"{json.dumps(document, indent=2, allow_nan=False)}\n".encode()
    return files


def _aggregate(one: Exported, settings: ExportSettings, stamp: str) -> dict[str, Any]:
    """The aggregate record, without its name and its samples."""
    of = {
        key: {role: v for role, v in one.hashes.items() if role == key}
        for key in ("rows", "weights")
    }
    repo, undirected = settings.repo, [r.name for r in one.scored if r.lower_is_better is None]
    at_hub = {"source_type": "hf_dataset", "hf_repo": repo} if repo else {"source_type": "other"}
    source = {"dataset_name": repo or "forget set", **at_hub, "additional_details": of["rows"]}
    left_out = {f"left out {name}": "which way is better is not known" for name in undirected}
    return {
        "evaluation_timestamp": one.finished.isoformat(),
        "retrieved_timestamp": stamp,
        "source_metadata": {
            "source_name": "lensaudit",
            "source_type": "evaluation_run",
            "source_organization_name": settings.organization,
            "evaluator_relationship": settings.relationship,
            "additional_details": {**one.said, **left_out},
        },
        "eval_library": {
            "name": "lensaudit",
            "version": one.versions.get("lensaudit", "unknown"),
            "additional_details": dict(one.versions),
        },
        "model_info": {
            "name": one.model.source,
            "id": one.name,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                **of["weights"],
            },
        },
        "evaluation_results": [_result(r, source) for r in one.scored if r.name not in undirected],
    }


def _result(one: Measure, source: Mapping[str, Any]) -> dict[str, Any]:
    """A number of the aggregate record; bounds that there are not are words."""
    ends = one.found.ends
    limits = dict(zip(("lower", "upper"), ends, strict=True)) if ends else {}
    unsure = {"confidence_interval": {**limits, "confidence_level": 0.95}} if ends else {}
    counted = {} if one.found.n is None else {"num_samples": one.found.n}
    return {
        "evaluation_result_id": one.name,
        "evaluation_name": f"lensaudit.{one.name}",
        "source_data": dict(source),
        "metric_config": {
            "evaluation_description": one.title,
            "metric_id": f"lensaudit.{one.name}",
            "metric_name": one.title,
            **({"metric_unit": one.unit} if one.unit else {}),
            "lower_is_better": one.lower_is_better,
            "score_type": "continuous",
            "min_score": "-Infinity" if one.least == -inf else one.least,
            "max_score": "Infinity" if one.most == inf else one.most,
        },
        "score_details": {
            "score": one.found.value,
            "details": one.details,
            **({"uncertainty": {**unsure, **counted}} if unsure or counted else {}),
        },
    }


_DEEP = (lambda value: value >= TAIL_BELOW, f"a depth of at least {TAIL_BELOW:g}")
_ERASED: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "uds": _DEEP,
    "lens": _DEEP,
    "held.worst_case": (lambda value: not value, "no attack brings it out"),
}
"""Name -> when a fact counts as forgotten, which `is_correct` says, and in words."""


def _instances(one: Exported) -> list[dict[str, Any]]:
    """A line for each fact and score of which it is known when it counts as forgotten."""
    valued = {r.name for r in one.scored}
    return [
        {
            "model_id": one.name,
            "evaluation_name": f"lensaudit.{name}",
            "evaluation_result_id": name,
            "sample_id": str(fact.idx),
            # an older worst case does not say what it asked
            "sample_hash": sha256((fact.question + fact.entity).encode()).hexdigest()
            if fact.question
            else None,
            "interaction_type": "single_turn",
            "input": {"raw": fact.question, "reference": [fact.entity]},
            "output": {"raw": []},
            "answer_attribution": [],
            "evaluation": {"score": fact.scores[name], "is_correct": forgot(fact.scores[name])},
            "metadata": {
                "is_correct": meant,
                **{key: str(value) for key, value in fact.scores.items() if key != name},
                **{f"unscored {key}": why for key, why in fact.unscored.items()},
            },
        }
        for fact in one.facts
        for name, (forgot, meant) in _ERASED.items()
        if name in fact.scores and name in valued
    ]


def hub_results(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """`.eval_results/lensaudit.yaml` of a repository on the Hub: depth, bits and views."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    revision = (settings.dataset or "").partition("@")[2]
    files = {}
    for folder, one in zip(_names(models), models, strict=True):
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
    named = zip(_names(models), models, strict=True)
    return {f"{folder}lensaudit_card.md": f"{card(one)}\n".encode() for folder, one in named}


def card(one: Exported) -> str:
    """A section of Markdown: verdict, numbers with intervals, what has none, content hashes."""
    rows = [
        f"| {markdown_cell(r.title)} | {shown(r.found, 3)} | {r.found.n or '–'} | "
        f"{_WAYS[r.lower_is_better]} | "
        f"{markdown_cell('; '.join(f'{k}: {v}' for k, v in r.more.items())) or '–'} |"
        for r in one.scored
    ]
    lacking = [f"- {name}: {markdown_cell(why)}" for name, why in one.unscored.items()]
    return "\n".join(
        [
            f"## Unlearning audit of {markdown_cell(one.model.source)}: {WORDS[one.model.word][0]}",
            "",
            markdown_cell(one.model.verdict.sentence),
            "",
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
    for case, one in zip(suite, models, strict=True):
        said = {r.name: "; ".join([repr(r.found.value), *_noted(r)]) for r in one.scored}
        properties = ElementTree.Element("properties")
        for name, value in {**one.said, **said}.items():
            text = "".join(c if c >= " " else "?" for c in value)
            ElementTree.SubElement(properties, "property", {"name": name, "value": text})
        case.insert(0, properties)
    text = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    return {"lensaudit_junit.xml": text.encode()}


def inspect_log(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """Logs of Inspect: samples are facts, scores are depth, bits and worst case."""
    need("inspect_ai", called="inspect-ai", extra="inspect")
    files = {}
    try:
        for folder, one in zip(_names(models), models, strict=True):
            files[f"{folder}lensaudit_inspect.json"] = _logged(one, settings)
    except (ImportError, TypeError, ValueError, AttributeError) as error:
        version = metadata.version("inspect-ai")
        said = told_by(error)
        raise InputError(
            f"inspect-ai {version}: {said}; {INSPECT} was tried: pip install inspect-ai=={INSPECT}"
        ) from error
    return files


def _logged(one: Exported, settings: ExportSettings) -> bytes:
    """The log of a model, as Inspect itself writes it."""
    from inspect_ai.log import (  # pyright: ignore[reportMissingImports]
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalSample,
        EvalScore,
        EvalSpec,
        write_eval_log,
    )
    from inspect_ai.scorer import Score  # pyright: ignore[reportMissingImports]

    key = sha256(_json(one.said).encode()).hexdigest()[:22]
    n = len(one.facts)
    scores = [
        EvalScore(
            name=r.name,
            scorer=f"lensaudit/{r.name}",
            scored_samples=r.found.n,
            metrics={
                "mean": EvalMetric(
                    name="mean", value=r.found.point, metadata={**r.found.limits(), **r.details}
                )
            },
            metadata={"title": r.title, "lower_is_better": r.lower_is_better, "unit": r.unit},
        )
        for r in one.scored
    ]
    samples = [
        EvalSample(
            id=fact.idx,
            epoch=1,
            uuid=f"{key}-{fact.idx}",
            input=fact.question,
            target=fact.entity,
            scores={
                **{name: Score(value=value) for name, value in fact.scores.items()},
                **{
                    name: Score.unscored(reason="unscored", explanation=why)
                    for name, why in fact.unscored.items()
                },
            },
            metadata={"answer": fact.answer, **fact.layers},
        )
        for fact in one.facts
    ]
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=key,
            run_id=key,
            task_id=key,
            created=one.finished.isoformat(),
            task="lensaudit",
            model=one.name,
            dataset=EvalDataset(
                name=settings.dataset, samples=n, sample_ids=[fact.idx for fact in one.facts]
            ),
            config=EvalConfig(),
            packages=dict(one.versions),
            metadata=one.said,
        ),
        results=EvalResults(
            total_samples=n, completed_samples=n, scores=scores, metadata=one.unscored
        ),
        samples=samples,
    )
    with TemporaryDirectory() as folder:
        write_eval_log(log, str(Path(folder) / "log.json"), format="json")
        return (Path(folder) / "log.json").read_bytes()


WRITERS: Mapping[str, Callable[[Sequence[Exported], Verdicts, ExportSettings], Files]] = {
    "eee": eee,
    "hub-results": hub_results,
    "model-card": model_card,
    "inspect": inspect_log,
    "junit": junit,
    "markdown": markdown,
}
