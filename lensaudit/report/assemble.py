"""Results of many kinds become one document: models joined by weights, runs by conditions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lensaudit
from lensaudit.data.candidates import mentions
from lensaudit.data.facts import Fact
from lensaudit.errors import InputError
from lensaudit.report.document import Condition, Document, Pair, token_tables
from lensaudit.report.evidence import table_of
from lensaudit.report.shelf import Shelf, condition_of, depth_of, kinds_of, paired
from lensaudit.results.attacks import (
    read_counterfactual,
    read_curve,
    read_effort,
    read_know,
    read_relearn,
    read_rtt,
    read_sample,
    read_worst,
)
from lensaudit.results.eval_runs import (
    EvalRun,
    answers_in,
    read_aggregates,
    read_directions,
    read_eval,
    read_meta,
    read_steering,
)
from lensaudit.results.locate import WANTED, Found, Kind, LeftOut, locate
from lensaudit.results.patch_runs import PatchRun, Texts, read_patch
from lensaudit.results.reading import json_object
from lensaudit.results.records import check_result
from lensaudit.verdict.collect import Gathered
from lensaudit.verdict.decide import Code
from lensaudit.verdict.views import read_calibration

_MOST_TEXTS = 12
"""EM runs, evaluations and attacks whose generated texts are kept: the page stays under 5 MB."""


_READERS: Mapping[Kind, tuple[str, Callable[[Path], Any]]] = {
    "eval": ("evals", read_eval),
    "steering": ("steering", read_steering),
    "directions": ("steering", read_directions),
    "rtt": ("attacks", read_rtt),
    "relearn": ("attacks", read_relearn),
    "effort": ("attacks", read_effort),
    "curve": ("curves", read_curve),
    "worst": ("attacks", read_worst),
    "sample": ("attacks", read_sample),
    "know": ("attacks", read_know),
    "counterfactual": ("attacks", read_counterfactual),
    "meta": ("meta", read_meta),
    "aggregate": ("aggregates", read_aggregates),
}
"""Kind -> the list of `_Read` it goes into, and what reads it."""


@dataclass
class _Read:
    """What was found, by kind."""

    patches: list[PatchRun] = field(default_factory=list)
    evals: list[EvalRun] = field(default_factory=list)
    meta: list[Mapping[str, Any]] = field(default_factory=list)
    steering: list[Mapping[str, Any]] = field(default_factory=list)
    attacks: list[dict[str, Any]] = field(default_factory=list)
    aggregates: list[Mapping[str, Any]] = field(default_factory=list)
    curves: list[Mapping[str, Any]] = field(default_factory=list)
    manifests: list[Mapping[str, Any]] = field(default_factory=list)
    """Of results that are neither patch runs nor evaluations."""
    verdicts: Gathered = field(default_factory=lambda: Gathered(read_calibration()))

    def take(self, one: Found, texts: Mapping[int, Texts]) -> None:
        """Read one result into its list."""
        if one.kind == "patch":
            run = read_patch(one.path, texts)
            self.verdicts.take_run(run)
            self.patches.append(run)
            return
        name, reader = _READERS[one.kind]
        check_result(one.path)
        found = reader(one.path)
        beside = one.path.parent / "manifest.json"
        if one.kind != "eval" and beside.exists():
            self.manifests.append({"folder": str(one.path.parent), "content": json_object(beside)})
        self.verdicts.take(one)
        getattr(self, name).extend(found if isinstance(found, list) else [found])

    @property
    def empty(self) -> bool:
        """Whether nothing found is worth a page."""
        parts = (self.patches, self.evals, self.meta, self.steering, self.attacks, self.aggregates)
        return not any((*parts, self.curves))


def assemble(
    paths: Sequence[Path], *, title: str | None = None, examples: Iterable[Fact] = ()
) -> Document:
    """Everything found under `paths`.

    `examples` fill in questions and entities that older results do not hold.

    Raises:
        InputError: a path does not exist, or nothing under any of them is a finished result.
    """
    found, left = locate(paths)
    given = {e.idx: Texts(**{**e.asked, "group": str(e.group)}) for e in examples}
    read = _Read()
    for one in found:
        try:
            read.take(one, given)
        except InputError as error:
            left.append(LeftOut(str(one.path.parent), str(error)))
    if read.empty:
        first = f": {left[0].path}: {left[0].reason}" if left else ""
        raise InputError(f"nothing to report{first or '; ' + WANTED}")
    return _document(read, left, title)


def _document(read: _Read, left: Sequence[LeftOut], title: str | None) -> Document:
    runs, repeated = latest(read.patches)
    judged = read.verdicts.verdicts()
    shelf = Shelf.of(runs, read.evals, read.aggregates, judged.models)
    conditions = _conditions(runs)
    place = {hash_: at for at, hash_ in enumerate(conditions)}
    codes: dict[str, Code] = {one.weights: one.code for one in judged.models if one.measured}
    n_em = sum(run.score == "em" for run in runs)
    for one in [one for one in read.attacks if one.get("said")][_MOST_TEXTS:]:
        one["said"] = {}
    depths = [
        depth_of(
            run,
            model=shelf.place(run.weights),
            condition=place[run.condition],
            manifest=shelf.manifest(run.folder, run.manifest),
            verdict=judged.of_run(run.folder),
            with_texts=n_em <= _MOST_TEXTS,
            tokens=tokens,
        )
        for run, tokens in zip(runs, token_tables(runs), strict=True)
    ]
    known = {shelf.place(one.weights): one for one in judged.models if one.weights in shelf.names}
    models = shelf.models(codes)
    document = Document(
        title=title or "",
        version=lensaudit.__version__,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        conditions=list(conditions.values()),
        depths=depths,
        models=models,
        metric_kinds=kinds_of(read.evals, read.aggregates),
        pairs=_pairs(runs),
        meta=read.meta,
        steering=read.steering,
        attacks=read.attacks,
        curves=read.curves,
        said=_said(shelf, next(iter(conditions.values()), None)),
        too_few={models[at].label: one.too_few for at, one in known.items() if one.too_few},
        manifests=[*shelf.manifests, *read.manifests],
        left_out=[asdict(one) for one in (*left, *repeated)],
    )
    folders = {run.folder for run in runs}
    sets = {
        at: [one for one in model.judged if one.run is None or one.run.folder in folders]
        for at, model in known.items()
    }
    keeps = {at: model.keeps for at, model in known.items()}
    table = table_of(document, sets, keeps, place)
    return replace(document, table=table, title=title or _title(document, read))


def _said(shelf: Shelf, condition: Condition | None) -> list[Mapping[str, Any]]:
    """What evaluated models answer to the patched questions; of both anchors and a few others."""
    if condition is None:
        return []
    found = []
    for weights in sorted(shelf.evals, key=lambda one: one not in shelf.anchors)[:_MOST_TEXTS]:
        answers = answers_in(shelf.evals[weights])
        texts = [
            said if one.question and one.question in asked else None
            for one in condition.examples
            for asked, said in (answers.get(one.idx, ("", "")),)
        ]
        if any(text is not None for text in texts):
            says = [
                bool(text and any(map(str.isalnum, one.entity)) and mentions(text, one.entity))
                for one, text in zip(condition.examples, texts, strict=True)
            ]
            found.append({"model": shelf.place(weights), "texts": texts, "says": says})
    return found


def _pairs(runs: Sequence[PatchRun]) -> list[Pair]:
    """Of the runs of each condition."""
    found = []
    for condition in dict.fromkeys(run.condition for run in runs):
        places = [at for at, run in enumerate(runs) if run.condition == condition]
        found += paired([runs[at] for at in places], places)
    return found


def latest(runs: Sequence[PatchRun]) -> tuple[list[PatchRun], list[LeftOut]]:
    """Of several runs of one model under one condition the one that finished last."""
    kept: dict[tuple[str, str], PatchRun] = {}
    left = []
    for run in sorted(runs, key=lambda one: str(one.manifest.get("finished", ""))):
        earlier = kept.pop((run.weights, run.condition), None)
        if earlier is not None:
            left.append(LeftOut(str(earlier.folder), f"the same as {run.folder}, run earlier"))
        kept[run.weights, run.condition] = run
    # in the order they were found: what finished within one second would swap places
    place = {id(run): at for at, run in enumerate(runs)}
    return sorted(kept.values(), key=lambda run: place[id(run)]), left


def _title(document: Document, read: _Read) -> str:
    """Of the models that the headline counts."""
    names = list(document.judged()) or list(
        dict.fromkeys([run.source for run in read.patches] or [run.model for run in read.evals])
    )
    if not names:
        return "Results of lensaudit"
    return f"Audit of {names[0]}" if len(names) == 1 else f"Audit of {len(names)} models"


def _conditions(runs: Sequence[PatchRun]) -> dict[str, Condition]:
    """By hash; UDS first, then those with the most runs."""
    by_hash: dict[str, list[PatchRun]] = {}
    for run in runs:
        by_hash.setdefault(run.condition, []).append(run)
    order = ("uds", "lens", "em")
    ranked = sorted(by_hash.values(), key=lambda runs: (order.index(runs[0].score), -len(runs)))
    return {runs[0].condition: condition_of(runs[0]) for runs in ranked}
