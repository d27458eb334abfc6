"""How good is every auditor, and how often is the verdict wrong, on models whose truth is known?

All numbers are made of the ledger alone. Models of one `full` are not independent: an area is the
mean over seeds of the area within a seed, its interval counts seeds, not models, and so do the
bounds of the verdict's errors. A row that holds `evidence` holds what a result folder's summary
would: the verdict reads it as it reads a folder. The nulls of the verdict are of absent models.
A picture shows where each auditor is right.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.stats import binomtest

from lensaudit.errors import InputError
from lensaudit.files import os_error, write_json
from lensaudit.gym.registry import Truth
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger
from lensaudit.results.reading import json_object, part
from lensaudit.results.records import MANIFEST, check_whole, manifest, misfits, signed
from lensaudit.results.schema import Length, Number, Text, Whole, checked_as
from lensaudit.scores.intervals import area_limits
from lensaudit.scores.stats import auc, best_threshold
from lensaudit.verdict.attacks import READERS
from lensaudit.verdict.decide import Code, Evidence, verdict_of
from lensaudit.verdict.depth import of_patch
from lensaudit.verdict.nulls import Calibration, Null
from lensaudit.verdict.words import HOLDS

APART = 1e-3
"""Least distance of `full` and `retain` in an auditor's own units for it to be a scale."""
LEDGER = "scores.jsonl"
ANCHOR = "anchor"
"""Truth of the models of the control arm, `full` and `retain`."""
GymRow = Mapping[str, Any]
_AGAIN = "run `lensaudit gym score` again"


@dataclass(frozen=True)
class ScoreRow:
    """A line of scores: what an auditor says of a model, and what is true of that."""

    auditor: Text
    version: str
    reads: str
    high_means: Literal["knows", "forgot"]
    model: Text
    mechanism: Text
    truth: Truth | Literal["anchor"]
    strength: Number
    seed: Whole
    held_out: bool
    knows: Sequence[Whole] | None
    score: Number | None
    facts: Mapping[str, Number] | None
    control: bool | None
    why: str | None
    seconds: Length
    ci95: tuple[Number, Number] | None = None
    evidence: Mapping[str, Any] | None = None
    """Kind of result -> what its summary holds for a verdict."""


def ledger_of(gym: Path, limit: int | None, *, notice: Notice | None = None) -> Ledger:
    """The scores of a gym, on so many facts."""
    name = LEDGER if limit is None else f"scores-{limit}.jsonl"
    return Ledger(gym / name, "gym scores", {"limit": limit}, notice=notice)


def seal(ledger: Ledger, started: float) -> None:
    """Say in a manifest beside a ledger how much it holds: a line that is lost is then missed."""
    path = ledger.path
    if path.exists():
        made = manifest(
            "gym score", options=dict(ledger.header.key), inputs={}, device="cpu", started=started
        )
        made.write(path.parent, (path.name,), f"{path.stem}_{MANIFEST}")


def rows_of(gym: Path, limit: int | None) -> list[GymRow]:
    """The lines of a gym's ledger; of several versions of an auditor the last.

    Lines of models that were made anew since are left out; a ledger without its models is whole.

    Raises:
        InputError: nothing was scored; a line or a manifest is not as it was written, or is gone.
    """
    ledger = ledger_of(gym, limit)
    if not ledger.rows:
        raise InputError(f"{ledger.path}: no scores; make some with `lensaudit gym score`")
    ledger.check(_AGAIN)
    check_whole(ledger.path, beside=False)
    checked_as(list[ScoreRow], ledger.rows, ledger.path, remedy=_AGAIN)
    there = {_key_of(one.parent) for one in gym.glob(f"seed-*/*/{MANIFEST}")}
    kept = [
        row for row in ledger.rows if not there or row["truth"] == ANCHOR or row["model"] in there
    ]
    return list({(row["auditor"], row["model"]): row for row in kept}.values())


def _key_of(model: Path) -> Any:
    """Of which recipe and pair a planted model is; of its files none is compared."""
    for line in misfits(model, only=""):
        raise InputError(f"{model}: {line}; `lensaudit gym make` makes it again")
    return part(json_object(model / MANIFEST), "inputs").get("key")


if TYPE_CHECKING:
    from matplotlib.figure import Figure


KNOWS, FORGOT = ("intact", "hidden"), ("absent",)
"""Truths that are told apart; partial and damaged models are shown apart."""


@dataclass(frozen=True)
class Area:
    """How well one mechanism is told from models that never saw the facts."""

    auc: float
    low: float
    high: float
    n_seeds: int
    n_models: int


@dataclass(frozen=True)
class Share:
    """So many of so many, with exact bounds (Clopper and Pearson 1934)."""

    k: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share, k of n; NaN of none."""
        return self.k / self.n if self.n else math.nan


def share(k: int, n: int) -> Share:
    """With its exact 95 % bounds; of nothing they are 0 and 1.

    >>> round(share(0, 10).high, 6) == round(1 - 0.025 ** (1 / 10), 6)
    True
    """
    if not n:
        return Share(0, 0, 0.0, 1.0)
    found = binomtest(k, n).proportion_ci(0.95, method="exact")
    return Share(k, n, float(found.low), float(found.high))


@dataclass(frozen=True)
class AuditorJudgement:
    """All that is said of one auditor."""

    auditor: str
    reads: str
    by_mechanism: Mapping[str, Area]
    worst: str | None
    """The hidden mechanism with the least area."""
    left_out: Share | None
    """Mechanisms, knowing or not, that a threshold set on all others gets wrong."""
    left_out_models: Share | None
    held_out_knows: Share | None
    """Of the held-out models that know, those that the tune half's threshold says do not."""
    held_out_forgot: Share | None
    """False positives: of the held-out models that never saw the facts, those it says know."""
    threshold: float | None
    """Set on the tune half, in units of the control arm: 0 as `full`, 1 as `retain`."""
    facts: Area | None
    """Of partial models: known facts against the others, within a model."""
    n_unscored: int
    seconds: float
    """Median a model."""


def table(rows: Sequence[GymRow]) -> list[AuditorJudgement]:
    """One judgement an auditor, the best worst mechanism first."""
    by_auditor: dict[str, list[GymRow]] = defaultdict(list)
    for row in rows:
        by_auditor[row["auditor"]].append(row)
    found = [judged(name, own) for name, own in by_auditor.items()]
    return sorted(found, key=lambda one: -one.by_mechanism[one.worst].auc if one.worst else 1.0)


def judged(name: str, rows: Sequence[GymRow]) -> AuditorJudgement:
    """What the rows of one auditor say of it."""
    scored = [row for row in rows if row["score"] is not None]
    sign = 1.0 if rows[0]["high_means"] == "knows" else -1.0
    areas = by_mechanism(scored, sign)
    hidden = {row["mechanism"] for row in scored if row["truth"] == "hidden"}
    known = {name: area.auc for name, area in areas.items() if name in hidden}
    units = in_units(scored)
    wrong = left_out(units)
    tuned = [one for one in units if not one.held_out]
    at = threshold_of(tuned)
    rest = [one for one in units if one.held_out]
    seconds = sorted(row["seconds"] for row in rows)
    return AuditorJudgement(
        name,
        rows[0]["reads"],
        areas,
        min(known, key=lambda m: known[m]) if known else None,
        _count([bad > n / 2 for bad, n in wrong.values()]),
        share(sum(bad for bad, _ in wrong.values()), sum(n for _, n in wrong.values()))
        if wrong
        else None,
        None if at is None else _count([one.value >= at for one in rest if one.knows]),
        None if at is None else _count([one.value < at for one in rest if not one.knows]),
        at,
        facts_area(scored, sign),
        len(rows) - len(scored),
        seconds[len(seconds) // 2],
    )


def _count(wrong: Sequence[bool]) -> Share | None:
    return share(sum(wrong), len(wrong)) if wrong else None


def by_mechanism(scored: Sequence[GymRow], sign: float) -> dict[str, Area]:
    """Every knowing mechanism against the absent models of the same seeds."""
    forgot = _scores(scored, lambda row: row["truth"] in FORGOT, sign)
    names = dict.fromkeys(row["mechanism"] for row in scored if row["truth"] in KNOWS)
    found = {}
    for name in names:
        knows = _scores(scored, lambda row, name=name: row["mechanism"] == name, sign)
        areas = [auc(knows[seed], forgot[seed]) for seed in knows if seed in forgot]
        if areas:
            found[name] = _area(areas, sum(len(knows[seed]) for seed in knows))
    return found


def _scores(
    rows: Sequence[GymRow], chosen: Callable[[GymRow], bool], sign: float
) -> dict[int, list[float]]:
    """Scores by seed; high knows."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row["truth"] != ANCHOR and chosen(row):
            found[row["seed"]].append(sign * row["score"])
    return found


def _area(areas: Sequence[float], n_models: int) -> Area:
    mean = sum(areas) / len(areas)
    limits = area_limits(mean, len(areas), len(areas))
    return Area(mean, limits.least, limits.most, len(areas), n_models)


@dataclass(frozen=True)
class ScaledScore:
    """A score in units of the control arm of its seed: 0 as `full`, 1 as `retain`."""

    mechanism: str
    knows: bool
    held_out: bool
    seed: int
    value: float
    model: str


def arms(scored: Sequence[GymRow]) -> dict[int, tuple[float, float]]:
    """Seed -> what the auditor says of `full` and of `retain`, where it can tell them."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for row in scored:
        if row["truth"] == ANCHOR:
            found[row["seed"]][row["mechanism"]] = row["score"]
    return {
        seed: (both["full"], both["retain"])
        for seed, both in found.items()
        if len(both) == 2 and abs(both["full"] - both["retain"]) >= APART
    }


def in_units(scored: Sequence[GymRow]) -> list[ScaledScore]:
    """The models that know or do not; none of a seed whose anchors are not told apart."""
    scale = arms(scored)
    return [
        ScaledScore(
            row["mechanism"],
            row["truth"] in KNOWS,
            row["held_out"],
            row["seed"],
            (row["score"] - scale[row["seed"]][0])
            / (scale[row["seed"]][1] - scale[row["seed"]][0]),
            row["model"],
        )
        for row in scored
        if row["truth"] in (*KNOWS, *FORGOT) and row["seed"] in scale
    ]


def threshold_of(units: Sequence[ScaledScore]) -> float | None:
    """Below it a model is said to know: where most models are on their own side."""
    knows, forgot = ([-one.value for one in units if one.knows is side] for side in (True, False))
    if not knows or not forgot:
        return None
    found = best_threshold(knows, forgot)
    return None if found is None else -found.at


def left_out(units: Sequence[ScaledScore]) -> dict[str, tuple[int, int]]:
    """Mechanism -> models of it misjudged by a threshold set on all others, and how many."""
    found = {}
    for name in dict.fromkeys(one.mechanism for one in units):
        at = threshold_of([one for one in units if one.mechanism != name])
        if at is not None:
            own = [one for one in units if one.mechanism == name]
            # knowing models lie strictly below: the threshold is a midpoint
            found[name] = sum((one.value < at) != one.knows for one in own), len(own)
    return found


def facts_area(scored: Sequence[GymRow], sign: float) -> Area | None:
    """Known facts against those never seen, within each partial model; the mean by seeds."""
    by_seed: dict[int, list[float]] = defaultdict(list)
    for row in scored:
        if row["truth"] != "partial" or not row["facts"]:
            continue
        known = set(map(str, row["knows"]))
        sides = [
            [sign * value for idx, value in row["facts"].items() if (idx in known) is side]
            for side in (True, False)
        ]
        if all(sides):
            by_seed[row["seed"]].append(auc(*sides))
    areas = [sum(values) / len(values) for values in by_seed.values()]
    return _area(areas, sum(map(len, by_seed.values()))) if areas else None


def markdown(found: Sequence[AuditorJudgement]) -> str:
    """The table of `docs/gym.md`."""
    header = (
        "auditor",
        "reads",
        "worst hidden mechanism",
        "AUC there",
        "mean AUC, hidden and intact",
        "mechanisms wrong when left out",
        "held-out missed",
        "held-out false positives",
        "facts",
        "unscored",
        "s",
    )
    lines = [header, ("---",) * len(header), *map(_line, found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(one: AuditorJudgement) -> tuple[str, ...]:
    areas = [area.auc for area in one.by_mechanism.values()]
    worst = one.by_mechanism[one.worst] if one.worst else None
    return (
        one.auditor,
        one.reads,
        one.worst or "–",
        _area_text(worst),
        f"{sum(areas) / len(areas):.2f}" if areas else "–",
        share_text(one.left_out),
        share_text(one.held_out_knows),
        share_text(one.held_out_forgot),
        _area_text(one.facts),
        str(one.n_unscored),
        f"{one.seconds:.1f}",
    )


def _area_text(one: Area | None) -> str:
    return "–" if one is None else f"{one.auc:.2f} [{one.low:.2f}, {one.high:.2f}]"


def share_text(one: Share | None) -> str:
    """As it is shown."""
    return "–" if one is None else f"{one.k}/{one.n} [{one.low:.2f}, {one.high:.2f}]"


def heat_map(found: Sequence[AuditorJudgement], path: Path) -> Path:
    """Write the area of every auditor on every mechanism; .5 is white, a coin.

    Raises:
        InputError: matplotlib is absent, or the file's ending is not one that it writes.
    """
    try:
        figure = drawn(found)
        figure.savefig(path, bbox_inches="tight", dpi=150, metadata={"Date": None})
    except ImportError as error:
        raise InputError("--picture: needs matplotlib; pip install 'lensaudit[plot]'") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; name it .svg") from error
    except OSError as error:
        raise os_error(error, path) from error
    return path


def drawn(found: Sequence[AuditorJudgement]) -> "Figure":
    """Picture of the table."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for one in found for name in one.by_mechanism))
    figure = Figure(figsize=(1.5 + 0.55 * len(found), 1.2 + 0.28 * len(names)))
    axes = figure.subplots()
    areas = [
        [one.by_mechanism[name].auc if name in one.by_mechanism else float("nan") for one in found]
        for name in names
    ]
    axes.imshow(areas, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    for row, values in enumerate(areas):
        for column, value in enumerate(values):
            dark = value < 0.2 or value > 0.8
            text = "–" if value != value else f"{value:.2f}"
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=7,
            )
    axes.set_xticks(range(len(found)), [one.auditor for one in found], rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title("AUC of telling a mechanism from models that never saw the facts", fontsize=9)
    return figure


FEWEST_NULL = 4
"""Models that never knew below which a view has no null."""
TENTH = 0.1
"""Share of the facts from which a model that holds them may not be called erased."""


@dataclass(frozen=True)
class JudgedEvidence:
    """A model whose truth is known, and what is known of it."""

    model: str
    mechanism: str
    truth: str
    held_out: bool
    seed: int
    holds: float
    """Share of the facts that it holds."""
    patch: Mapping[str, Any]
    """As `summary.json`, with `rows`."""
    attacks: Mapping[str, Any]
    """Kind of result -> the content of its summary."""

    def evidence(self, nulls: Calibration, *, patch_only: bool = False) -> Evidence:
        """What a verdict is decided from."""
        views, stream = of_patch(self.patch, self.patch["rows"], nulls, self.model)
        told = {} if patch_only else self.attacks
        more = [
            view
            for kind, content in told.items()
            for one in READERS[kind](content, self.model, nulls)  # type: ignore[index]
            for view in one.views
        ]
        return Evidence(self.model, [*views, *more], stream)


def planted(rows: Sequence[GymRow]) -> list[JudgedEvidence]:
    """The models of a ledger that were asked all that `patch` asks."""
    told: dict[str, dict[str, Any]] = defaultdict(dict)
    about: dict[str, GymRow] = {}
    for row in rows:
        if row["truth"] != ANCHOR and row.get("evidence"):
            told[row["model"]] |= row["evidence"]
            about[row["model"]] = row
    return [
        JudgedEvidence(
            model,
            row["mechanism"],
            row["truth"],
            row["held_out"],
            row["seed"],
            _held(row, len(found["patch"]["rows"])),
            found["patch"],
            {kind: content for kind, content in found.items() if kind != "patch"},
        )
        for model, found in told.items()
        if "patch" in found and (row := about[model])
    ]


def _held(row: GymRow, n: int) -> float:
    if row["truth"] in KNOWS:
        return 1.0
    return len(row["knows"] or ()) / n if row["truth"] == "partial" and n else 0.0


def nulls_of(models: Sequence[JudgedEvidence], chosen: Collection[str]) -> dict[str, Null]:
    """How every view reads models that never knew, of these mechanisms."""
    values: dict[str, list[float]] = defaultdict(list)
    for one in models:
        if one.truth in FORGOT and one.mechanism in chosen:
            for view in one.evidence({}).views:
                if view.held is not None and view.control is None:
                    values[view.name].append(view.held.point)
    return {
        name: Null(float(np.mean(own)), float(np.std(own, ddof=1)), len(own))
        for name, own in values.items()
        if len(own) >= FEWEST_NULL
    }


@dataclass(frozen=True)
class Confusion:
    """How often which word was said, of models whose truth is known."""

    knows: Mapping[str, Share]
    """Of models that hold every fact, silenced or not."""
    partial: Mapping[str, Share]
    """Of models that hold at least a tenth of them."""
    absent: Mapping[str, Share]
    """Of models that never saw them."""
    wrong: tuple[str, ...]
    """Mechanism, strength and seed of holders called erased, and of absent ones called held."""
    seeds_wrong: Share
    """Seeds with at least one such model: what bounds the error over seeds."""


SAID: Mapping[str, tuple[Code, ...]] = {
    "holds": HOLDS,
    "partly": ("partly_erased",),
    "erased": ("erased",),
    "undecided": ("undecided", "unreadable", "unscored"),
}
"""Columns of the table."""


def confusion(judged: Iterable[tuple[JudgedEvidence, Code]]) -> Confusion:
    """Counts of verdicts by truth."""
    found = list(judged)

    def side(chosen: Iterable[tuple[JudgedEvidence, Code]]) -> dict[str, Share]:
        codes = [code for _, code in chosen]
        return {
            name: share(sum(code in words for code in codes), len(codes))
            for name, words in SAID.items()
        }

    wrong = [(one, code) for one, code in found if _is_wrong(one, code)]
    seeds = {one.seed for one, _ in found}
    return Confusion(
        side((one, code) for one, code in found if one.holds == 1.0),
        side((one, code) for one, code in found if TENTH <= one.holds < 1.0),
        side((one, code) for one, code in found if one.truth in FORGOT),
        tuple(f"{one.mechanism}, seed {one.seed}: {code}" for one, code in wrong),
        share(len({one.seed for one, _ in wrong}), len(seeds)),
    )


def _is_wrong(one: JudgedEvidence, code: Code) -> bool:
    if one.holds >= TENTH:
        return code == "erased"
    return one.truth in FORGOT and code in (*HOLDS, "partly_erased")


@dataclass(frozen=True)
class VerdictErrors:
    """The verdict on halves and on mechanisms that it was not calibrated on."""

    tune: Confusion
    """Every view that was asked, on the half that thresholds were set on."""
    held_out: Confusion
    left_out: Confusion
    """Each mechanism by the nulls of all others."""
    patch_only: Confusion
    """Held-out mechanisms by a run of `patch` alone."""
    calibration: Mapping[str, Null]
    """The nulls of the tune half."""


def errors_of(rows: Sequence[GymRow]) -> VerdictErrors:
    """What the verdict says of the models of a ledger."""
    models = planted(rows)
    tune = {one.mechanism for one in models if not one.held_out}
    held_out = {one.mechanism for one in models if one.held_out}
    nulls = nulls_of(models, tune)

    def judged(chosen: Collection[str], by: Calibration, *, patch_only: bool = False) -> Any:
        return [
            (one, verdict_of(one.evidence(by, patch_only=patch_only)).code)
            for one in models
            if one.mechanism in chosen
        ]

    others = [
        pair
        for name in sorted(tune | held_out)
        for pair in judged({name}, nulls_of(models, (tune | held_out) - {name}))
    ]
    return VerdictErrors(
        confusion(judged(tune, nulls)),
        confusion(judged(held_out, nulls)),
        confusion(others),
        confusion(judged(held_out, nulls, patch_only=True)),
        nulls,
    )


VERSION = 3
"""Of the gym: raised when mechanisms, splits or scoring change."""


@dataclass(frozen=True)
class GymDocument:
    """All that is said of the auditors."""

    auditors: tuple[AuditorJudgement, ...]
    verdict: VerdictErrors
    n_seeds: int

    @property
    def content(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "version": VERSION,
            "seeds": self.n_seeds,
            "auditors": [asdict(one) for one in self.auditors],
            "verdict": asdict(self.verdict),
        }


def document(
    rows: Sequence[GymRow], *, calibration: Path | None = None, picture: Path | None = None
) -> GymDocument:
    """Judge the auditors and the verdict; write what is asked for.

    Raises:
        InputError: a file cannot be written.
    """
    seeds = {row["seed"] for row in rows}
    found = GymDocument(tuple(table(rows)), errors_of(rows), len(seeds))
    if picture is not None:
        heat_map(found.auditors, picture)
    if calibration is not None:
        views = asdict(found.verdict)["calibration"]
        content = {"version": VERSION, "seeds": sorted(seeds), "views": views}
        held_out = asdict(found.verdict.held_out)
        write_json(calibration, signed({**content, "held_out": held_out}))
    return found


def text(found: GymDocument) -> str:
    """For a terminal or a page: Markdown."""
    header = ("verdict", "truth", *SAID, "seeds with an error")
    halves = {
        "tune half": found.verdict.tune,
        "held-out half": found.verdict.held_out,
        "held-out half, patch alone": found.verdict.patch_only,
        "mechanism left out": found.verdict.left_out,
    }
    lines = [line for name, one in halves.items() for line in _lines(name, one)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in (header, ("---",) * len(header), *lines))
    wrong = [f"- {name}: {line}" for name, one in halves.items() for line in one.wrong]
    return "\n\n".join([markdown(found.auditors), rows, *(["\n".join(wrong)] if wrong else [])])


def _lines(name: str, one: Confusion) -> Iterator[tuple[str, ...]]:
    for truth, shares in (("knows", one.knows), ("partial", one.partial), ("absent", one.absent)):
        yield name, truth, *(share_text(shares[word]) for word in SAID), share_text(one.seeds_wrong)
