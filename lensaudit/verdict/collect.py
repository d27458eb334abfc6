"""From folders to verdicts: join the results of each model, and judge it.

Models are told apart by weights. A model may have been patched on several sets of rows: each is
judged with all that is known beside it of these rows, and the worst word counts. Nothing that is
named beside a model changes what is said of it. What a model keeps beside what `full` has is told
with it: model utility, else its answers to kept rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.groups import grouped
from lensaudit.results.integrity import check_result, check_whole
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.kinds.patch import PatchRun, PatchSummary, rows_hash
from lensaudit.results.locate import Found, LeftOut, locate
from lensaudit.results.manifest import mark_of, model_in
from lensaudit.results.planned import missing_in
from lensaudit.results.reading import part, place_in
from lensaudit.results.roles import ModelRole, attacked_ends_in, clash, ends_in, roles_in
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.settings import COUNTERFACTUAL, Place, path_of
from lensaudit.text import digest
from lensaudit.verdict.beside import asked_beside, said_in, speaking
from lensaudit.verdict.decide import Code, Evidence, Verdict, Word
from lensaudit.verdict.depth import of_patch
from lensaudit.verdict.rows import Facts, facts_in, facts_of_run, shared
from lensaudit.verdict.views import (
    GROUPS,
    Calibration,
    View,
    hundredths,
    read_calibration,
    strongest,
)

WANTED = (
    "wanted what lensaudit patch, audit, eval, worst, sample, rtt, relearn, effort or steer wrote"
)


KEPT: Mapping[str, str] = {
    "retain_Q_A_Prob": "Prob on kept rows",
    "retain_Q_A_ROUGE": "ROUGE on kept rows",
}
"""Metrics of rows to keep, which need nothing but question and answer."""
NAMED: Mapping[str, str] = {"model_utility": "model utility", **KEPT}


@dataclass(frozen=True)
class Keeps:
    """A metric of a model and of its `full`, on the same rows."""

    metric: str
    own: float
    full: float
    number: Estimate = UNMEASURED
    """`own` with its interval and its rows."""

    @property
    def share(self) -> float:
        """What is left of what `full` has."""
        return self.own / self.full

    @property
    def told(self) -> str:
        """The metric in words.

        >>> Keeps("retain_Q_A_Prob", 0.97, 0.98).told
        ".97 of full's .98 (Prob on kept rows)"
        """
        return f"{hundredths(self.own)} of full's {hundredths(self.full)} ({NAMED[self.metric]})"


def kept(own: Mapping[str, float | None], full: Mapping[str, float | None]) -> tuple[Keeps, ...]:
    """Model utility where both have it; else what both have of kept rows.

    >>> [one.metric for one in kept({"model_utility": None, "retain_Q_A_Prob": 0.9},
    ...     {"model_utility": 0.6, "retain_Q_A_Prob": 0.95})]
    ['retain_Q_A_Prob']
    """
    both = [
        Keeps(name, mine, whole)
        for name in NAMED
        if (mine := own.get(name)) is not None and (whole := full.get(name))
    ]
    return tuple(both[:1] if both and both[0].metric not in KEPT else both)


def kept_of_runs(
    own: Sequence[EvaluationResult], full: Sequence[EvaluationResult]
) -> tuple[Keeps, ...]:
    """The same of evaluations: of pairs that asked for the same rows, the one with least left.

    That is the least share of any metric: one of another pair hides none that is worse.
    """
    rows = "retain", "ra", "wf"
    found = (
        tuple(replace(at, number=one.entries[at.metric]) for at in kept(one.summary, two.summary))
        for one, two in product(own, full)
        if one.asked(*rows) == two.asked(*rows)
    )
    return min(
        filter(None, found), key=lambda one: sorted(keeps.share for keeps in one), default=()
    )


def keeps_document(found: Iterable[Keeps]) -> dict[str, dict[str, float]]:
    """Metric -> what a model has of it, and what `full` has, as plain JSON."""
    return {one.metric: {"value": one.own, "full": one.full} for one in found}


@dataclass(frozen=True)
class Beside:
    """What a result other than a run of `patch` says, and of which facts."""

    views: Sequence[View]
    facts: Facts

    def heard(self, asked: Facts) -> Iterator[View]:
        """Its views, with the vote that they have where these facts are judged."""
        yield from map(shared(self.facts, asked).heard, self.views)


@dataclass
class Model:
    """All results of one set of weights, and their verdict."""

    source: str
    """What all results here call it: see `names_of`."""
    weights: str
    nulls: Calibration
    runs: list[PatchRun] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)
    evals: list[EvaluationResult] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    keeps: tuple[Keeps, ...] = ()
    """What it keeps beside its `full`; none where one of them was not evaluated on the rows."""

    @cached_property
    def judged(self) -> list[Evidence]:
        """All results by set of rows, with what attacks say; the worst set first."""
        # a component's depth decides nothing beside the stream's
        patched = [run for run in self.runs if (run.score, run.component) == ("uds", "resid")] or [
            run for run in self.runs if run.score == "uds"
        ]
        known = set(map(_rows, patched))
        alone = [run for run in self.runs if run.score == "lens" and _rows(run) not in known]
        judged = [self._of_rows(run) for run in (*patched, *alone)]
        if not judged:
            asked = [one.facts for one in self.beside if one.facts] or [{}]
            found = (self._merged((), facts) for facts in asked)
            judged = {repr(views): Evidence(self.source, views) for views in found}.values()
        return sorted(judged, key=lambda one: one.rank)

    def _of_rows(self, run: PatchRun) -> Evidence:
        """What the run says, what runs of the Logit Lens on its rows add, and other results."""
        views, stream = of_patch(run, run.rows, self.nulls)
        own = {view.name for view in views} - {"lens"}
        lenses = (one for one in self.runs if one.score == "lens" and _rows(one) == _rows(run))
        read = [
            view
            for one in lenses
            for view in of_patch(one, one.rows, self.nulls)[0]
            if view.name not in own
        ]
        found = self._merged([*views, *read], facts_of_run(run))
        return Evidence(self.source, found, stream, run)

    def _merged(self, own: Iterable[View], asked: Facts) -> list[View]:
        """Of every name the strongest view; one of other rows only where there is none of these."""
        every = [*own, *(view for one in self.beside for view in one.heard(asked))]
        by_name = grouped((view.name, view) for view in every)
        return [strongest(views) for views in by_name.values()]

    @property
    def others(self) -> Iterator[tuple[PatchRun, str, Evidence]]:
        """Runs whose word does not count, and how each differs from the one whose does."""
        patched = [(one.run, one) for one in self.judged if one.run is not None]
        for run, one in patched[1:]:
            first, told = patched[0][0], list[str]()
            if _rows(run) != _rows(first):
                told.append("on other rows")
            if _dtype(run) != _dtype(first):
                told.append(f"in {_dtype(run)}")
            yield run, ", ".join(told) or "in another run", one

    @property
    def run(self) -> PatchRun | None:
        """Run whose word counts; None: it was not patched."""
        return self.judged[0].run

    @property
    def code(self) -> Code:
        """Code of the verdict on the set of rows that is worst."""
        return self.verdict.code

    @property
    def verdict(self) -> Verdict:
        """Verdict on the set of rows that is worst."""
        return self.judged[0].verdict

    @property
    def word(self) -> Word:
        """The verdict's word."""
        return self.judged[0].word

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
        """Chance that some group finds a model that never knew as clearly."""
        known = [
            one.chance * one.n_results
            for one in self.views
            if one.control is None and one.chance is not None
        ]
        return min(1.0, len(GROUPS) * min(known, default=1.0))

    @property
    def measured(self) -> bool:
        """Was it patched, or did anything else give a number?"""
        return self.code != "unscored" or bool(self.runs)

    def document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "source": self.source,
            "weights": self.weights,
            "verdict": asdict(self.verdict),
            "views": {view.name: view.document() for view in self.views},
            **({"keeps": keeps_document(self.keeps)} if self.keeps else {}),
            "other_rows": [
                {"folder": str(run.folder), "verdict": asdict(one.verdict), "apart": apart}
                for run, apart, one in self.others
            ],
        }


Called = Mapping[str, tuple[str, Path]]
"""Weights -> name of a model, and the folder of the result that calls it so."""


def names_of(told: Iterable[tuple[Any, str, Path]]) -> Called:
    """The one name of each model: where it was patched, else evaluated, else of any result.

    Where these differ the first name of the alphabet, then its first folder, whatever was read
    first.

    Args:
        told: record, weights of its model and folder of each result, as `spoken` gives them.
    """
    every = grouped(
        (weights, (not isinstance(said, PatchSummary), not evaluated, said.source, folder))
        for said, weights, folder in told
        for evaluated in [isinstance(said, EvaluationResult)]
    )
    return {weights: min(found)[2:] for weights, found in every.items()}


def spoken(one: Found) -> Iterator[tuple[Any, str, Path]]:
    """The records of a result that are of a model each, its weights, and the folder."""
    # a table of another tool has no intervals
    if one.kind in ("patch", *speaking()) and one.path.suffix != ".csv":
        for said in one.record if isinstance(one.record, list) else [one.record]:
            weights = getattr(said, "weights", "") or weights_in(one.manifest or {}, said.source)
            yield said, weights, one.path.parent


class Verdicts:
    """Verdicts of every model of some folders: results joined by weights as they come."""

    def __init__(self, nulls: Calibration) -> None:
        self.nulls = nulls
        self.left_out: list[LeftOut] = []
        """What was named or met and has no view."""
        self.found: dict[Path, Found] = {}
        """Results by their files, each once."""
        self._ends: dict[str, ModelRole] = {}
        """Weights of a model that a result here holds others to -> its role."""
        self._named_ends: dict[str, ModelRole] = {}
        """The same by name."""
        self._attacked: set[str] = set()
        """Weights that a sweep made of such a model, and that have its name."""
        self._models: dict[str, Model] = {}
        self._told: list[tuple[Any, str, Path]] = []

    def take(self, one: Found, run: PatchRun | None = None) -> int:
        """Read a result; of how many models it speaks.

        `run`: of a run of `patch`, read already.
        """
        made, told = one.manifest or {}, list[tuple[Any, str, Path]]()
        told += [(run, run.weights, run.folder)] if run else spoken(one)
        self.found[one.path.resolve()] = one
        self._told += told
        ends, views_of = ends_in(made), speaking().get(one.kind)
        self._ends |= {end.weights: end.role for end in ends}
        self._named_ends |= {end.name: end.role for end in ends}
        self._attacked |= {*attacked_ends_in(made)}
        # exact match has no view
        viewed = told and (views_of or told[0][0].score != "em")
        if not viewed or self._clashes(one.path.parent, made):
            return 0
        for said, weights, folder in told:
            known = self._models.setdefault(weights, Model(said.source, weights, self.nulls))
            known.folders.append(folder)
            known.runs += [said] if one.kind == "patch" else []
            known.evals += [said] if one.kind == "eval" else []
            if views_of:
                facts = facts_in(made, one.record, one.path)
                known.beside.append(Beside(views_of(said, self.nulls), facts))
        return len(told)

    @property
    def called(self) -> Called:
        """What each model is called by all that was taken."""
        return names_of(self._told)

    def end(self, weights: str, name: str) -> ModelRole | None:
        """Role of the model as an end of a scale; None: it is audited.

        Two models may have one name: it counts alone where a sweep attacked an end, and where no
        result says the weights, for which the name stands then.
        """
        by_name = weights == name or weights in self._attacked
        return self._ends.get(weights) or (self._named_ends.get(name) if by_name else None)

    def _clashes(self, folder: Path, manifest: Mapping[str, Any]) -> bool:
        """Is the model of a result its own control, as an end of a scale is? It is left out."""
        told = clash(roles_in(manifest))
        self.left_out += [LeftOut(str(folder), told)] if told else []
        return told is not None

    @property
    def key(self) -> str:
        """Hash of all results that were read, wherever they lie."""
        return digest(
            sorted(
                part(one.manifest).get("check") or mark_of(one.path)["blake2b"]
                for one in self.found.values()
            )
        )

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """The audited models, once all is taken: those that no result holds others to."""
        called = self.called
        for at, one in self._models.items():
            one.source = called[at][0]
            fulls = {run.models["full"].weights for run in one.runs} & self._models.keys()
            evals = [run for full in fulls for run in self._models[str(full)].evals]
            one.keeps = kept_of_runs(one.evals, evals)
            one.beside += self._asked(one, evals)
        return tuple(one for at, one in self._models.items() if not self.end(at, one.source))

    def _asked(self, model: Model, full: Sequence[EvaluationResult]) -> Iterator[Beside]:
        """What it answers beside its anchors, of evaluations that asked for the same rows alike."""
        never = {run.models["retain"].weights for run in model.runs} & self._models.keys()
        arm = [run for one in never for run in self._models[str(one)].evals]
        for run in model.evals:
            tops, arms = (
                [one for one in runs if said_in(one) and one.asked("forget") == run.asked("forget")]
                for runs in (full, arm)
            )
            for top, retain in product(tops or [None], arms):
                if view := asked_beside(run, top, retain):
                    yield Beside([view], facts_in(run.manifest or {}, None, run.path))

    @property
    def held_to(self) -> list[LeftOut]:
        """Models that were patched, and are no audited ones: which end of a scale each is."""
        return [
            LeftOut(str(one.runs[0].folder), f"{name} is {end} of a result here, not audited")
            for at, (name, _) in self.called.items()
            if (one := self._models.get(at)) and one.runs and (end := self.end(at, name))
        ]

    @cached_property
    def q(self) -> Mapping[str, float]:
        """Weights -> false discovery rate at which the model is among those found.

        Over all models here (Benjamini and Hochberg 1995). It changes no code.
        """
        if not self.models:
            return {}
        from scipy.stats import false_discovery_control  # half a second to import

        rates = false_discovery_control([one.chance for one in self.models])
        return {one.weights: float(q) for one, q in zip(self.models, rates, strict=True)}

    def document(self) -> list[dict[str, Any]]:
        """The verdicts as JSON: an entry per model, with its `q` where there are several."""
        several = len(self.models) > 1
        return [
            one.document() | ({"q": self.q[one.weights]} if several else {}) for one in self.models
        ]

    def of(
        self, folder: Path, weights: str | None = None
    ) -> tuple[Model, Evidence] | tuple[None, None]:
        """The model of a run of `patch`, and what is known of it on the run's rows.

        Args:
            folder: of the run.
            weights: of a run that no verdict is made of: all that is known of its model is found.
        """
        known = self._by_run
        return known.get(folder.resolve()) or known.get(weights or "") or (None, None)

    @cached_property
    def _by_run(self) -> Mapping[Path | str, tuple[Model, Evidence]]:
        """Weights, or folder of a result -> its model; of a run what is known on its own rows."""
        alone: dict[Path | str, tuple[Model, Evidence]] = {
            at: (model, model.judged[0])
            for model in reversed(self.models)
            for at in (model.weights, *map(Path.resolve, model.folders))
        }
        every = [(model, one, one.run) for model in self.models for one in model.judged]
        return alone | {
            run.folder.resolve(): (model, one) for model, one, run in reversed(every) if run
        }


def verdicts(places: Place | Sequence[Place], calibration: Place | None = None) -> Verdicts:
    """The verdict of every model in some folders, or in one, to any depth.

    Raises:
        InputError: a place that yields no view, or a file that is damaged or edited.
    """
    judged = Verdicts(read_calibration(path_of(calibration)))
    for place in [
        Path(place_in("verdicts", one))
        for one in (
            places if isinstance(places, Iterable) and not isinstance(places, str) else [places]
        )
    ]:
        found, missed = locate([place])
        new = [one for one in found if one.path.resolve() not in judged.found]
        for one in new:
            # a log in open-unlearning's layout may be of another tool: it decides nothing
            (check_result if one.kind == "eval" else check_whole)(one.path)
        if not sum([judged.take(one) for one in new]) and len(new) == len(found):
            missed = [*judged.left_out, *missed]
            why = f" ({missed[0].reason})" if missed else ""
            raise InputError(
                f"{place}: holds no result that a verdict can be made from{why}; {WANTED}"
            )
        judged.left_out += [
            *missed,
            *(
                LeftOut(str(file), f"{unit} has no result: {why}", unfinished=True)
                for file, unit, why in missing_in([place])
            ),
        ]
    judged.left_out += judged.held_to
    return judged


def judge_run(
    summary: PatchSummary, rows: Sequence[Mapping[str, Any]], calibration: Calibration
) -> Verdict:
    """The verdict of one run of `patch` alone."""
    return Evidence(summary.source, *of_patch(summary, rows, calibration)).verdict


def judge_alone(summary: PatchSummary, calibration: Calibration) -> Verdict:
    """The verdict of one run of `patch` without a retain model."""
    return Evidence(summary.source, speaking()[COUNTERFACTUAL](summary, calibration)).verdict


def weights_in(manifest: Mapping[str, Any], source: str) -> str:
    """Content hash of the model that an attack is about; its name where the manifest has none."""
    known = [model_in(manifest, role).weights for role in ("source", "unlearned")]
    known.append(part(manifest, "inputs", "models").get(source))
    return str(next(filter(None, known), source))


def _rows(run: PatchRun) -> str:
    """What tells one set of rows from another."""
    return str(rows_hash(run.manifest))


def _dtype(run: PatchRun) -> str:
    """Type of the numbers that a run was patched in."""
    return str(part(run.manifest, "options").get("dtype"))
