"""From folders to verdicts: which results are of one model, and what is said of each.

Models are told apart by weights. A model may have been patched on several sets of rows: each is
judged with all that is known beside it, and the worst code counts. Nothing that is named beside a
model changes what is said of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy.stats import false_discovery_control

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.eval_runs import EvalRun, read_eval
from lensaudit.results.locate import Found, Kind, LeftOut, locate
from lensaudit.results.patch_runs import PatchRun, PatchSummary, read_patch
from lensaudit.results.reading import checked, json_object, part
from lensaudit.results.records import MANIFEST, check_result, check_whole, model_in
from lensaudit.settings import Place, path_of
from lensaudit.verdict.attacks import READERS
from lensaudit.verdict.decide import BADNESS, Code, Evidence, Verdict
from lensaudit.verdict.depth import Stream, of_patch
from lensaudit.verdict.keeps import Keeps, keeps_document, kept_of_runs
from lensaudit.verdict.views import GROUPS, Calibration, View, read_calibration

WANTED = (
    "wanted what lensaudit patch, audit, eval, worst, sample, rtt, relearn, effort or steer wrote"
)


@dataclass(frozen=True)
class Model:
    """All that was found of one set of weights, and what is said of it."""

    source: str
    weights: str
    judged: tuple[Evidence, ...]
    """Of each set of rows, the worst first."""
    folders: tuple[Path, ...]
    keeps: tuple[Keeps, ...] = ()
    """What it keeps beside its `full`; none where one of them was not evaluated on the rows."""
    is_anchor: bool = False
    """`full` or `retain` of a run here: what others are held to."""

    @property
    def code(self) -> Code:
        """Of the set of rows that is worst."""
        return self.verdict.code

    @property
    def verdict(self) -> Verdict:
        """Of the set of rows that is worst."""
        return self.judged[0].verdict

    @property
    def too_few(self) -> int | None:
        """Facts that were scored, where their number is why nothing is decided."""
        return self.judged[0].too_few if self.code == "undecided" else None

    @property
    def views(self) -> Sequence[View]:
        """Views that the verdict was decided from."""
        return self.judged[0].chain

    @property
    def chance(self) -> float:
        """That a model that never knew is found as clearly, by any group."""
        known = [one.chance for one in self.views if one.control is None and one.chance is not None]
        return min(1.0, len(GROUPS) * min(known, default=1.0))

    @property
    def measured(self) -> bool:
        """Was it patched, or did anything else give a number?"""
        return self.code != "unscored" or any(one.run is not None for one in self.judged)

    def document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "source": self.source,
            "verdict": self.verdict.document(),
            "views": {view.name: _document(view) for view in self.views},
            **({"keeps": keeps_document(self.keeps)} if self.keeps else {}),
            "other_rows": [
                {"folder": str(one.run.folder), "verdict": one.verdict.document()}
                for one in self.judged[1:]
                if one.run is not None
            ],
        }


def _document(view: View) -> dict[str, Any]:
    """The value is the share held: 0 as a model that never knew, 1 as `full`."""
    held = view.held
    return {
        "value": None if held is None else held.value,
        "ci95": None if held is None or held.ends is None else list(held.ends),
        "n": None if held is None else held.n,
        "shown": view.shown,
        "group": view.group,
        "vote": view.says,
        "chance": view.chance,
        "control": view.control,
        "why": view.reason or None,
    }


@dataclass(frozen=True)
class Verdicts:
    """What may be said of every model of some folders."""

    models: tuple[Model, ...]
    left_out: tuple[LeftOut, ...]
    """What was named or met and has no view."""

    @property
    def q(self) -> Mapping[str, float]:
        """Weights -> false discovery rate at which the model is among those found.

        Over all models here (Benjamini and Hochberg 1995). It changes no code.
        """
        if not self.models:
            return {}
        rates = false_discovery_control([one.chance for one in self.models])
        return {one.weights: float(q) for one, q in zip(self.models, rates, strict=True)}

    def document(self) -> list[dict[str, Any]]:
        """For JSON: a model each, with its `q` where there are several."""
        if len(self.models) < 2:
            return [one.document() for one in self.models]
        q = self.q
        return [one.document() | {"q": q[one.weights]} for one in self.models]

    def of_model(self, folder: Path, source: str) -> Verdict | None:
        """What is said after a run of `patch`; without a retain model, of the model so called."""
        named = (model.verdict for model in self.models if model.source == source)
        return self.of_run(folder) or next(named, None)

    def of_run(self, folder: Path) -> Verdict | None:
        """What is said of the model of a patching run, on its rows."""
        return next((one.verdict for _, one in self._of(folder)), None)

    def keeps(self, folder: Path) -> tuple[Keeps, ...]:
        """What the model of a patching run keeps beside its `full`."""
        return next((model.keeps for model, _ in self._of(folder)), ())

    def _of(self, folder: Path) -> Iterator[tuple[Model, Evidence]]:
        place = folder.resolve()
        for model in self.models:
            for one in model.judged:
                if one.run is not None and one.run.folder.resolve() == place:
                    yield model, one


@dataclass
class _Known:
    """What was found of one model."""

    source: str
    runs: list[PatchRun] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)
    evals: list[EvalRun] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def verdicts(places: Sequence[Place], calibration: Place | None = None) -> Verdicts:
    """The verdict of every model in some folders, to any depth.

    Raises:
        InputError: a place that yields no view, or a file that is damaged, edited, or contradicts
            the one beside it.
    """
    gathered = Gathered(read_calibration(path_of(calibration)))
    for place in map(Path, places):
        found, missed = locate([place])
        for one in found:
            # a log in open-unlearning's layout may be of another tool: it decides nothing
            (check_result if one.kind == "eval" else check_whole)(one.path)
        if not sum([gathered.take(one) for one in found]):
            why = f" ({missed[0].reason})" if missed else ""
            raise InputError(f"{place}: holds nothing that a verdict is made of{why}; {WANTED}")
        gathered.left_out += missed
    return gathered.verdicts()


class Gathered:
    """Results by model, as they are read."""

    def __init__(self, nulls: Calibration) -> None:
        self.nulls = nulls
        self.left_out: list[LeftOut] = []
        self._models: dict[str, _Known] = {}
        self._anchors: set[str] = set()

    def take(self, one: Found) -> int:
        """Read a result; of how many models it speaks."""
        if one.kind == "patch":
            return self.take_run(read_patch(one.path, {}))
        # a table of another tool has no intervals
        if one.kind not in READERS or one.path.suffix == ".csv":
            return 0
        run = read_eval(one.path) if one.kind == "eval" else None
        manifest = one.path.parent / MANIFEST
        made = json_object(manifest) if manifest.exists() else {}
        told = READERS[one.kind](read_json(one.path), one.path, self.nulls)
        for named, views in told:
            source = run.model if run else named
            known = self._known(run.weights if run else _weights(made, source), source)
            known.folders.append(one.path.parent)
            known.evals += [run] if run else []
            for view in views:
                known.views[view.name] = _stronger(known.views.get(view.name), view)
        return len(told)

    def take_run(self, run: PatchRun) -> int:
        """Take a run of `patch`; exact match has no view."""
        if run.score not in ("uds", "lens"):
            return 0
        self._anchors |= {one.weights for one in run.models.values() if one.weights}
        known = self._known(run.weights, run.source)
        known.runs.append(run)
        known.folders.append(run.folder)
        return 1

    def _keeps(self, known: _Known) -> tuple[Keeps, ...]:
        full = known.runs[0].models["full"].weights if known.runs else None
        other = self._models.get(full) if full else None
        return kept_of_runs(known.evals, other.evals if other else [])

    def _known(self, weights: str, source: str) -> _Known:
        return self._models.setdefault(weights, _Known(source))

    def verdicts(self) -> Verdicts:
        """What may be said of every model; anchors that were only evaluated are none."""
        judged = [
            replace(
                _judge(known, weights, self.nulls),
                keeps=self._keeps(known),
                is_anchor=weights in self._anchors,
            )
            for weights, known in self._models.items()
            if known.runs or weights not in self._anchors
        ]
        return Verdicts(tuple(judged), tuple(self.left_out))


def judge_run(
    summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], calibration: Calibration
) -> Verdict:
    """The verdict of one run of `patch` alone, by the documents that it writes."""
    found = checked(PatchSummary, summary, "summary.json")
    return Evidence(found.source, *of_patch(found, rows, calibration)).verdict


def judge_beside(kind: Kind, summary: Mapping[str, Any], calibration: Calibration) -> Verdict:
    """The verdict of another result alone, by the document that it writes."""
    ((source, views),) = READERS[kind](summary, "summary.json", calibration)
    return Evidence(source, views).verdict


def _weights(manifest: Mapping[str, Any], source: str) -> str:
    """Content hash of the model that an attack is about; its name where the manifest has none."""
    known = (model_in(manifest, role).weights for role in ("source", "unlearned"))
    said = next(filter(None, known), None) or part(manifest, "inputs", "models").get(source)
    return str(said or source)


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


def _judge(known: _Known, weights: str, nulls: Calibration) -> Model:
    """Every set of rows with what attacks say of the model."""

    def read(run: PatchRun) -> tuple[list[View], Stream]:
        return of_patch(run.said, run.rows, nulls, run.folder / "summary.json")

    lenses = {_rows(run): run for run in known.runs if run.score == "lens"}
    patched = [run for run in known.runs if run.score == "uds"]
    alone = [run for rows, run in lenses.items() if rows not in set(map(_rows, patched))]
    judged = []
    for run in (*patched, *alone):
        (views, stream), lens = read(run), lenses.get(_rows(run))
        if lens is not None and not any(view.name == "lens" for view in views):
            views += read(lens)[0]
        own = {view.name for view in views}
        more = [view for name, view in known.views.items() if name not in own]
        judged.append(Evidence(known.source, [*views, *more], stream, run))
    judged = judged or [Evidence(known.source, list(known.views.values()))]
    worst = sorted(judged, key=lambda one: BADNESS.index(one.verdict.code))
    folders = tuple(dict.fromkeys(known.folders))
    return Model(known.source, weights, tuple(worst), folders)


def _rows(run: PatchRun) -> str:
    """What tells one set of rows from another."""
    return str(part(run.manifest, "inputs", "examples").get("hash"))
