"""From folders to verdicts: which results are of one model, and what is said of each.

Models are told apart by weights. A model may have been patched on several sets of rows: each is
judged with all that is known beside it, and the worst code counts. Nothing that is named beside a
model changes what is said of it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.results.eval_runs import EvalRun, read_eval
from lensaudit.results.locate import Found, LeftOut, locate
from lensaudit.results.patch_runs import PatchRun, read_patch
from lensaudit.results.reading import json_object, part
from lensaudit.results.records import MANIFEST, check_result
from lensaudit.verdict.attacks import READERS
from lensaudit.verdict.decide import BADNESS, Code, Evidence, Verdict, verdict_of
from lensaudit.verdict.depth import of_patch
from lensaudit.verdict.nulls import Calibration, read_calibration
from lensaudit.verdict.views import View

WANTED = "wanted what lensaudit patch, audit, eval, worst, sample, rtt, relearn, effort or steer wrote"


@dataclass(frozen=True)
class Judged:
    """One model on one set of rows."""

    evidence: Evidence
    verdict: Verdict
    run: PatchRun | None = None
    """None: it was not patched."""


@dataclass(frozen=True)
class Model:
    """All that was found of one set of weights, and what is said of it."""

    source: str
    weights: str
    judged: tuple[Judged, ...]
    """The worst first."""
    evals: tuple[EvalRun, ...] = ()
    folders: tuple[Path, ...] = ()

    @property
    def code(self) -> Code:
        """Of the set of rows that is worst."""
        return self.verdict.code

    @property
    def verdict(self) -> Verdict:
        """Of the set of rows that is worst."""
        return self.judged[0].verdict

    @property
    def views(self) -> Sequence[View]:
        """What it was decided from."""
        return self.judged[0].evidence.chain


@dataclass(frozen=True)
class Verdicts:
    """What may be said of every model of some folders."""

    models: tuple[Model, ...]
    left_out: tuple[LeftOut, ...]
    """What was named or met and has no view."""

    def of_run(self, folder: Path) -> Verdict | None:
        """What is said of the model of a patching run, on its rows."""
        place = folder.resolve()
        for model in self.models:
            for one in model.judged:
                if one.run is not None and one.run.folder.resolve() == place:
                    return one.verdict
        return None


@dataclass
class _Known:
    """What was found of one model."""

    source: str
    runs: list[PatchRun] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)
    evals: list[EvalRun] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def verdicts(places: Sequence[Path], calibration: Path | None = None) -> Verdicts:
    """The verdict of every model in some folders, to any depth.

    Raises:
        InputError: a place that yields no view, or a file that is damaged, edited, or contradicts
            the one beside it.
    """
    nulls = read_calibration(calibration)
    models: dict[str, _Known] = {}
    left: list[LeftOut] = []
    for place in places:
        found, missed = locate([place])
        taken = sum([_take(one, models, nulls) for one in found])
        left += missed
        if not taken:
            why = f" ({missed[0].reason})" if missed else ""
            raise InputError(f"{place}: holds nothing that a verdict is made of{why}; {WANTED}")
    judged = [_judge(known, weights, nulls) for weights, known in models.items()]
    return Verdicts(tuple(one for one in judged if one is not None), tuple(left))


def judge_run(
    summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], calibration: Calibration
) -> Verdict:
    """The verdict of one run of `patch` alone, by the documents that it writes."""
    views, stream = of_patch(summary, rows, calibration)
    return verdict_of(Evidence(summary["source"], views, stream))


def _take(one: Found, models: dict[str, _Known], nulls: Calibration) -> int:
    """Put a result to its model; how many models it speaks of."""
    if one.kind == "patch":
        run = read_patch(one.path, {})
        if run.score == "em":
            return 0
        known = models.setdefault(run.weights, _Known(run.source))
        known.runs.append(run)
        known.folders.append(run.folder)
        return 1
    if one.kind not in READERS:
        return 0
    check_result(one.path)
    told = READERS[one.kind](one.path, nulls)
    manifest = one.path.parent / MANIFEST
    made = json_object(manifest) if manifest.exists() else {}
    for part_ in told:
        run = read_eval(one.path) if one.kind == "eval" else None
        source = run.model if run else part_.source
        weights = run.weights if run else _weights(made, source)
        known = models.setdefault(weights, _Known(source))
        known.folders.append(one.path.parent)
        if run is not None:
            known.evals.append(run)
        for view in part_.views:
            known.views[view.name] = _stronger(known.views.get(view.name), view)
    return len(told)


def _weights(manifest: Mapping[str, Any], source: str) -> str:
    """Content hash of the model that an attack is about; its name where the manifest has none."""
    known = part(manifest, "inputs", "source").get("weights")
    known = known or part(manifest, "inputs", "unlearned").get("weights")
    return str(known or part(manifest, "inputs", "models").get(source) or source)


def _stronger(known: View | None, new: View) -> View:
    """Of two results of one kind the one that finds more: a second run never hides the first."""
    if known is None or known.held is None:
        return new
    if new.held is None:
        return known

    def strength(view: View) -> tuple[bool, bool, float]:
        least = view.held.least if view.held else -1.0
        return view.finds, not view.rules_out, least

    return max(known, new, key=strength)


def _judge(known: _Known, weights: str, nulls: Calibration) -> Model | None:
    """Every set of rows with what attacks say; None where there is nothing but an anchor's log."""
    judged = []
    for run in known.runs:
        views, stream = of_patch(run.summary, run.rows, nulls, run.folder / "summary.json")
        evidence = Evidence(known.source, [*views, *known.views.values()], stream)
        judged.append(Judged(evidence, verdict_of(evidence), run))
    if not known.runs:
        evidence = Evidence(known.source, list(known.views.values()))
        judged.append(Judged(evidence, verdict_of(evidence)))
    worst = sorted(judged, key=lambda one: BADNESS.index(one.verdict.code))
    folders = tuple(dict.fromkeys(known.folders))
    return Model(known.source, weights, tuple(worst), tuple(known.evals), folders)
