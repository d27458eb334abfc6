"""How good is every auditor, and how often is the verdict wrong, on models whose truth is known?

All numbers are made of the ledger alone. Models of one `full` are not independent: an area is the
mean over seeds of the area within a seed, its interval counts seeds, not models, and so do the
bounds of the verdict's errors. A row that holds `evidence` holds what a result folder's summary
would: the verdict reads it as it reads a folder. The nulls of the verdict are of absent models.
A picture shows where each auditor is right.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median_high
from typing import Any

import numpy as np

from lensaudit.errors import InputError, need
from lensaudit.files import os_error, write_json
from lensaudit.groups import grouped
from lensaudit.gym.registry import FORGOT, KNOWS, ScoreRow, bed_of
from lensaudit.progress import Notice, unheard
from lensaudit.results.integrity import check_whole, misfits
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.kinds.table import record_in
from lensaudit.results.ledger import Ledger, LedgerLine
from lensaudit.results.manifest import MANIFEST, manifest, signed
from lensaudit.results.reading import checked, json_object, part
from lensaudit.scores.areas import area_limits
from lensaudit.scores.intervals import share_of
from lensaudit.scores.separation import auc
from lensaudit.scores.threshold import best_threshold
from lensaudit.verdict.beside import speaking
from lensaudit.verdict.decide import HOLDS, Code, Evidence, Word
from lensaudit.verdict.depth import of_patch
from lensaudit.verdict.views import Calibration, Null, View

VERSION = 3
"""Of the gym: raised when mechanisms, splits or scoring change."""
APART = 1e-3
"""Least distance of `full` and `retain` in an auditor's own units for it to be a scale."""
ANCHOR = "anchor"
"""Truth of the models of the control arm, `full` and `retain`."""
FEWEST_NULL = 4
"""Models that never knew below which a view has no null."""
TENTH = 0.1
"""Share of the facts from which a model that holds them may not be called erased."""
SAID: Mapping[str, tuple[Word, ...]] = {
    "holds": HOLDS,
    "partly": ("partly_erased",),
    "erased": ("erased",),
    "undecided": ("undecided", "unreadable", "unscored"),
}
"""Columns of the table of verdicts."""
_AGAIN = "run `lensaudit gym score` again"


def ledger_of(gym: Path, limit: int | None, *, notice: Notice | None = None) -> Ledger:
    """The scores of a gym, on so many facts."""
    name = "scores.jsonl" if limit is None else f"scores-{limit}.jsonl"
    return Ledger(gym / name, "gym scores", {"limit": limit}, notice=notice)


def seal(ledger: Ledger, started: float) -> None:
    """Say in a manifest beside a ledger how much it holds: a line that is lost is then missed."""
    path = ledger.path
    if path.exists():
        made = manifest(
            "gym score",
            kind="scores",
            options=dict(ledger.key),
            inputs={},
            device="cpu",
            started=started,
        )
        made.write(path.parent, (path.name,), f"{path.stem}_{MANIFEST}")


def last_lines(lines: Sequence[LedgerLine]) -> dict[tuple[str, str], LedgerLine]:
    """Auditor and model -> its last line, of the version of the auditor that scored last."""
    last = {line["auditor"]: line["version"] for line in lines}
    return {
        (line["auditor"], line["model"]): line
        for line in lines
        if line["version"] == last[line["auditor"]]
    }


def rows_of(
    gym: Path, limit: int | None, *, bed: str | None = None, notice: Notice = unheard
) -> list[ScoreRow]:
    """The last lines of a gym's ledger; those of earlier versions of an auditor are counted.

    Lines of models that were made anew since are left out; a ledger without its models is whole.

    Args:
        gym: folder of the models and the ledger.
        limit: facts that were asked.
        bed: only models of this pair and its rows.
        notice: told what is left out.

    Raises:
        InputError: nothing was scored; models of one seed are of two pairs; a line or a manifest is
            not as it was written, or is gone.
    """
    ledger = ledger_of(gym, limit)
    if not ledger.rows:
        raise InputError(f"{ledger.path}: no scores; make some with `lensaudit gym score`")
    ledger.check(_AGAIN)
    check_whole(ledger.path, beside=False)
    made = [_key_and_bed(one.parent) for one in gym.glob(f"seed-*/*/{MANIFEST}")]
    beds = {key: own for key, own in made if bed in (None, own)}
    there = [line for line in ledger.rows if not beds or _is_of(line, beds)]
    last = [line for line in last_lines(ledger.rows).values() if not beds or _is_of(line, beds)]
    if not last:
        raise InputError(f"{ledger.path}: no scores of the models that are there; {_AGAIN}")
    if n_earlier := len({(one["auditor"], one["model"]) for one in there}) - len(last):
        notice(f"{ledger.path}: {n_earlier} scores of earlier auditors are left out; {_AGAIN}")
    pairs = {(line["seed"], beds[line["model"]]) for line in last if line["model"] in beds}
    if len(pairs) > len(dict(pairs)):
        raise InputError(
            f"{gym}: scores of one seed are of two pairs or of other rows; make all models of a "
            "gym alike with `lensaudit gym make`"
        )
    return [
        checked(ScoreRow, line, f"{ledger.path}: {line['auditor']}", remedy=_AGAIN) for line in last
    ]


def _key_and_bed(model: Path) -> tuple[Any, str]:
    """Hash of what a planted model is made of, and of its pair and rows; no file is compared."""
    for line in misfits(model, only=""):
        raise InputError(f"{model}: {line}; `lensaudit gym make` makes it again")
    inputs = part(json_object(model / MANIFEST), "inputs")
    return inputs.get("key"), bed_of(inputs)


def _is_of(line: LedgerLine, beds: Mapping[Any, str]) -> bool:
    """Whether a line is of a model that is there, or of an anchor of one."""
    if line["truth"] != ANCHOR:
        return line["model"] in beds
    own = line["model"].split(" ")[2:]  # earlier anchors were named by weights and seed alone
    return not own or own[0] in beds.values()


@dataclass(frozen=True)
class SeedArea:
    """AUC of telling models that know, a mean over seeds."""

    auc: float
    low: float
    high: float
    """By the number of seeds."""
    n_seeds: int
    n_models: int


@dataclass(frozen=True)
class Counted:
    """So many of so many, with exact bounds of the share."""

    k: int = 0
    n: int = 0
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class AuditorJudgement:
    """Areas, shares and threshold of one auditor."""

    auditor: str
    reads: str
    by_mechanism: Mapping[str, SeedArea]
    """Of telling it from models that never saw the facts."""
    worst: str | None
    """The hidden mechanism with the least area."""
    at_worst: SeedArea | None
    """Its area; limits that hold whichever of all hidden mechanisms is the worst."""
    left_out: Counted | None
    """Mechanisms, knowing or not, that a threshold set on all others gets wrong."""
    left_out_models: Counted | None
    held_out_knows: Counted | None
    """Of the held-out models that know, those that the tune half's threshold says do not."""
    held_out_forgot: Counted | None
    """False positives: of the held-out models that never saw the facts, those it says know."""
    threshold: float | None
    """Set on the tune half, in units of the control arm: 0 as `full`, 1 as `retain`."""
    facts: SeedArea | None
    """Of known facts against the others, within a partial model."""
    n_unscored: int
    seconds: float
    """Median a model."""


def table(rows: Sequence[ScoreRow]) -> list[AuditorJudgement]:
    """One judgement an auditor, the best worst mechanism first."""
    by_auditor = grouped((row.auditor, row) for row in rows)
    found = [judged(name, own) for name, own in by_auditor.items()]
    return sorted(found, key=lambda one: -one.by_mechanism[one.worst].auc if one.worst else 1.0)


def judged(name: str, rows: Sequence[ScoreRow]) -> AuditorJudgement:
    """What the rows of one auditor say of it."""
    scored = [row for row in rows if row.score is not None]
    sign = 1.0 if rows[0].high_means == "knows" else -1.0
    areas, units = by_mechanism(scored, sign), in_units(scored)
    hidden = {
        row.mechanism: areas[row.mechanism]
        for row in scored
        if row.mechanism in areas and row.truth == "hidden"
    }
    worst = min(hidden, key=lambda name: hidden[name].auc, default=None)
    wrong = left_out(units).values()
    at = threshold_of([one for one in units if not one.held_out])
    rest = [] if at is None else [(is_misread(one, at), one) for one in units if one.held_out]
    return AuditorJudgement(
        name,
        rows[0].reads,
        areas,
        worst,
        _least_of(len(hidden), areas[worst]) if worst else None,
        share([sum(one) > len(one) / 2 for one in wrong]),
        share([bad for one in wrong for bad in one]),
        share([bad for bad, one in rest if one.truth in KNOWS]),
        share([bad for bad, one in rest if one.truth in FORGOT]),
        at,
        facts_area(scored, sign),
        len(rows) - len(scored),
        median_high(row.seconds for row in rows),
    )


def share(wrong: Collection[bool]) -> Counted | None:
    """Count of what is wrong, with the exact bounds of its share; None of nothing."""
    if not wrong:
        return None
    found = share_of(sum(wrong), len(wrong))
    return Counted(sum(wrong), len(wrong), *(found.ends or (0.0, 1.0)))


def by_mechanism(scored: Sequence[ScoreRow], sign: float) -> dict[str, SeedArea]:
    """Every knowing mechanism against the absent models of the same seeds."""

    def by_seed(rows: Iterable[ScoreRow]) -> dict[int, list[float]]:
        """Scores, turned so that a high one knows."""
        return grouped((row.seed, sign * row.point) for row in rows)

    forgot, found = by_seed(row for row in scored if row.truth in FORGOT), {}
    for name, own in grouped((row.mechanism, row) for row in scored if row.truth in KNOWS).items():
        knows = by_seed(own)
        if areas := [auc(knows[seed], forgot[seed]) for seed in knows if seed in forgot]:
            found[name] = _mean_area(areas, len(own))
    return found


def _mean_area(areas: Sequence[float], n_models: int) -> SeedArea:
    n = len(areas)
    found = area_limits(sum(areas) / n, n, n)
    return SeedArea(found.point, *(found.ends or (0.0, 1.0)), n, n_models)


def _least_of(n: int, area: SeedArea) -> SeedArea:
    """The least of n areas with limits at 1 - .05 / n (Bonferroni): it was taken for being low."""
    found = area_limits(area.auc, area.n_seeds, area.n_seeds, level=1 - 0.05 / n)
    low, high = found.ends or (0.0, 1.0)
    return replace(area, low=low, high=high)


def in_units(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Models that know or do not, scores in units of the control arm of their seed.

    0 is as `full`, 1 as `retain`. None of a seed whose anchors are not told apart.
    """
    arms = {(row.seed, row.mechanism): row.point for row in rows if row.truth == ANCHOR}
    found = []
    for row in rows:
        zero, one = (arms.get((row.seed, role), math.nan) for role in ("full", "retain"))
        if row.truth in (*KNOWS, *FORGOT) and row.score is not None and abs(zero - one) >= APART:
            found.append(replace(row, score=(row.score - zero) / (one - zero)))
    return found


def threshold_of(units: Sequence[ScoreRow]) -> float | None:
    """Below it a model is said to know: where most models are on their own side."""
    knows, forgot = (
        [-one.point for one in units if one.truth in truths] for truths in (KNOWS, FORGOT)
    )
    found = best_threshold(knows, forgot) if knows and forgot else None
    return None if found is None else -found.at


def is_misread(one: ScoreRow, at: float) -> bool:
    """Whether a model lies on the wrong side; knowing ones lie strictly below a midpoint."""
    return (one.point < at) != (one.truth in KNOWS)


def left_out(units: Sequence[ScoreRow]) -> dict[str, list[bool]]:
    """Mechanism -> which of its models a threshold set on all others misjudges."""
    found = {}
    for name, own in grouped((one.mechanism, one) for one in units).items():
        at = threshold_of([one for one in units if one.mechanism != name])
        if at is not None:
            found[name] = [is_misread(one, at) for one in own]
    return found


def facts_area(scored: Sequence[ScoreRow], sign: float) -> SeedArea | None:
    """Known facts against those never seen, within each partial model; the mean by seeds."""
    found = []
    for row in scored:
        known, facts = row.knows or (), row.facts or {}
        sides = grouped((idx in known, sign * value) for idx, value in facts.items())
        if row.truth == "partial" and len(sides) == 2:
            found.append((row.seed, auc(sides[True], sides[False])))
    areas = [sum(values) / len(values) for values in grouped(found).values()]
    return _mean_area(areas, len(found)) if found else None


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells, the header first, as a table."""
    header, *rest = lines
    shown = (header, ("---",) * len(header), *rest)
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


def auditors_table(found: Sequence[AuditorJudgement]) -> str:
    """Table of auditors in Markdown, as in `docs/evidence/gym_auditors.md`."""
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
    return markdown([header, *map(_line, found)])


def _line(one: AuditorJudgement) -> tuple[str, ...]:
    areas = [area.auc for area in one.by_mechanism.values()]
    return (
        one.auditor,
        one.reads,
        one.worst or "–",
        _area_text(one.at_worst),
        f"{sum(areas) / len(areas):.2f}" if areas else "–",
        share_text(one.left_out),
        share_text(one.held_out_knows),
        share_text(one.held_out_forgot),
        _area_text(one.facts),
        str(one.n_unscored),
        f"{one.seconds:.1f}",
    )


def _area_text(one: SeedArea | None) -> str:
    return "–" if one is None else f"{one.auc:.2f} [{one.low:.2f}, {one.high:.2f}]"


def share_text(one: Counted | None) -> str:
    """So many of so many, with bounds, for a cell."""
    return "–" if one is None else f"{one.k}/{one.n} [{one.low:.2f}, {one.high:.2f}]"


def heat_map(found: Sequence[AuditorJudgement], path: Path) -> Path:
    """Write the area of every auditor on every mechanism; .5 is white, a coin.

    Raises:
        InputError: matplotlib is absent, the file's ending is not one that it writes, or no model
            that knows was scored beside an absent one.
    """
    need("matplotlib", called="--picture: matplotlib", extra="plot")
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for one in found for name in one.by_mechanism))
    if not names:
        raise InputError(f"{path}: wanted scores of models that know and of absent ones to draw")
    figure = Figure(figsize=(1.5 + 0.55 * len(found), 1.2 + 0.28 * len(names)))
    axes = figure.subplots()
    tables = [{name: area.auc for name, area in one.by_mechanism.items()} for one in found]
    areas = [[one.get(name, math.nan) for one in tables] for name in names]
    axes.imshow(areas, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    for (row, column), value in np.ndenumerate(areas):
        axes.text(
            column,
            row,
            "–" if math.isnan(value) else f"{value:.2f}",
            ha="center",
            va="center",
            color="white" if value < 0.2 or value > 0.8 else "black",
            fontsize=7,
        )
    axes.set_xticks(range(len(found)), [one.auditor for one in found], rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title("AUC of telling a mechanism from models that never saw the facts", fontsize=9)
    try:
        figure.savefig(path, bbox_inches="tight", dpi=150, metadata={"Date": None})
    except ValueError as error:
        raise InputError(f"{path}: {error}; name it .svg") from error
    except OSError as error:
        raise os_error(error, path) from error
    return path


def evidence_of(one: ScoreRow, nulls: Calibration, *, patch_only: bool = False) -> Evidence:
    """Views and stream that a verdict on a model is decided from."""
    patch = one.evidence["patch"]
    views, stream = of_patch(checked(PatchSummary, patch, one.model), patch["rows"], nulls)
    # scored before they were measured: left out
    lacking = [name for name in ("many", "shift") if name not in patch["aligned"]]
    stream = replace(stream, **dict.fromkeys(lacking))
    more = [] if patch_only else _more_views(one, nulls)
    # lines of a gym that was scored before models were asked
    return Evidence(one.model, [*views, *more], stream, asked="told" in patch)


def _more_views(one: ScoreRow, nulls: Calibration) -> list[View]:
    return [
        view
        for kind, content in one.evidence.items()
        if kind != "patch"
        for record in [record_in(kind, content, one.model)]
        for said in (record if isinstance(record, list) else [record])
        for view in speaking()[kind](said, nulls)
    ]


def check_evidence(one: ScoreRow) -> None:
    """Read what a row holds for a verdict; what cannot be read raises, whatever it is."""
    if "patch" in one.evidence:
        evidence_of(one, {})
    else:
        _more_views(one, {})


def planted(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """The models of a ledger that were asked all that `patch` asks, each with all its evidence."""
    told = grouped((row.model, row) for row in rows if row.truth != ANCHOR and row.evidence)
    models = [
        replace(own[-1], evidence={k: what for one in own for k, what in one.evidence.items()})
        for own in told.values()
    ]
    return [one for one in models if "patch" in one.evidence]


def nulls_of(models: Sequence[ScoreRow], chosen: Collection[str]) -> dict[str, Null]:
    """How every view reads models that never knew, of these mechanisms."""
    values = grouped(
        (view.name, view.held.point)
        for one in models
        if one.truth in FORGOT and one.mechanism in chosen
        for view in evidence_of(one, {}).views
        if view.held is not None and view.control is None
    )
    return {
        name: Null(float(np.mean(own)), float(np.std(own, ddof=1)), len(own))
        for name, own in values.items()
        if len(own) >= FEWEST_NULL
    }


@dataclass(frozen=True)
class Confusion:
    """How often which word was said, of models whose truth is known."""

    knows: Mapping[str, Counted]
    """Of models that hold every fact, silenced or not."""
    partial: Mapping[str, Counted]
    """Of models that hold at least a tenth of them."""
    absent: Mapping[str, Counted]
    """Of models that never saw them."""
    wrong: tuple[str, ...]
    """Mechanism, strength and seed of holders called erased, and of absent ones called held."""
    seeds_wrong: Counted
    """Seeds with at least one such model: what bounds the error over seeds."""


def confusion(judged: Iterable[tuple[ScoreRow, Code]]) -> Confusion:
    """Counts of verdicts by truth."""
    found = list(judged)

    def side(chosen: Iterable[tuple[ScoreRow, Code]]) -> dict[str, Counted]:
        codes = [code for _, code in chosen]
        return {
            name: share([code in words for code in codes]) or Counted()
            for name, words in SAID.items()
        }

    wrong = [(one, code) for one, code in found if _is_misjudged(one, code)]
    seeds, bad = {one.seed for one, _ in found}, {row.seed for row, _ in wrong}
    return Confusion(
        side((one, code) for one, code in found if one.holds == 1.0),
        side((one, code) for one, code in found if TENTH <= one.holds < 1.0),
        side((one, code) for one, code in found if one.truth in FORGOT),
        tuple(f"{row.mechanism}, seed {row.seed}: {code}" for row, code in wrong),
        share([one in bad for one in seeds]) or Counted(),
    )


def _is_misjudged(one: ScoreRow, code: Code) -> bool:
    if one.holds >= TENTH:
        return code == "erased"
    return one.truth in FORGOT and code in (*HOLDS, "partly_erased")


@dataclass(frozen=True)
class MechanismWords:
    """Words that were said of the models of one mechanism."""

    mechanism: str
    truth: str
    held_out: bool
    words: Mapping[str, int]
    """Column of the table of verdicts -> models."""
    wrong: Counted | None
    """Holders of a tenth and more called erased, or absent models said to hold anything; None: no
    model is either."""


def by_mechanism_words(judged: Iterable[tuple[ScoreRow, Code]]) -> list[MechanismWords]:
    """Words and errors of each mechanism, with exact bounds that count models that can be wrong."""
    found = []
    every = grouped((one[0].mechanism, one) for one in judged)
    for name, own in every.items():
        first, codes = own[0][0], [code for _, code in own]
        words = {said: sum(one in of for one in codes) for said, of in SAID.items()}
        asked = [one for one in own if one[0].holds >= TENTH or one[0].truth in FORGOT]
        wrong = share([_is_misjudged(row, code) for row, code in asked])
        found.append(MechanismWords(name, first.truth, first.held_out, words, wrong))
    return found


@dataclass(frozen=True)
class VerdictErrors:
    """The verdict on halves and on mechanisms that it was not calibrated on."""

    tune: Confusion
    """Every view that was asked, on the half that thresholds were set on."""
    held_out: Confusion
    left_out: Confusion
    """Each mechanism by the nulls of all others."""
    mechanisms: Sequence[MechanismWords]
    """The same, one by one."""
    patch_only: Confusion
    """Held-out mechanisms by a run of `patch` alone."""
    calibration: Mapping[str, Null]
    """The nulls of the tune half."""


def errors_of(rows: Sequence[ScoreRow]) -> VerdictErrors:
    """What the verdict says of the models of a ledger."""
    models = planted(rows)
    held_out = {one.mechanism for one in models if one.held_out}
    tune = {one.mechanism for one in models} - held_out
    nulls = nulls_of(models, tune)

    def judged(chosen: Collection[str], by: Calibration, *, patch_only: bool = False) -> Any:
        return [
            (one, evidence_of(one, by, patch_only=patch_only).verdict.code)
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
        by_mechanism_words(others),
        confusion(judged(held_out, nulls, patch_only=True)),
        nulls,
    )


@dataclass(frozen=True)
class GymDocument:
    """Judgements of the auditors and of the verdict."""

    version: int
    seeds: int
    auditors: tuple[AuditorJudgement, ...]
    verdict: VerdictErrors


def document(
    rows: Sequence[ScoreRow], *, calibration: Path | None = None, picture: Path | None = None
) -> GymDocument:
    """Judge the auditors and the verdict; write what is asked for.

    Raises:
        InputError: a file cannot be written.
    """
    seeds = {row.seed for row in rows}
    found = GymDocument(VERSION, len(seeds), tuple(table(rows)), errors_of(rows))
    if picture is not None:
        heat_map(found.auditors, picture)
    if calibration is not None:
        told = asdict(found.verdict)
        content = {"version": VERSION, "seeds": sorted(seeds), "views": told["calibration"]}
        write_json(calibration, signed({**content, "held_out": told["held_out"]}))
    return found


def text(found: GymDocument) -> str:
    """Both tables and the errors as Markdown, for a terminal or a page."""
    header = ("verdict", "truth", *SAID, "seeds with an error")
    halves = {
        "tune half": found.verdict.tune,
        "held-out half": found.verdict.held_out,
        "held-out half, patch alone": found.verdict.patch_only,
        "mechanism left out": found.verdict.left_out,
    }
    lines = [
        (name, truth, *(share_text(one[word]) for word in SAID), share_text(half.seeds_wrong))
        for name, half in halves.items()
        for truth, one in vars(half).items()
        if truth in ("knows", "partial", "absent")
    ]
    each = [
        (
            one.mechanism,
            f"{one.truth}{', held out' if one.held_out else ''}",
            *(str(one.words[word]) for word in SAID),
            share_text(one.wrong),
        )
        for one in found.verdict.mechanisms
    ]
    wrong = [f"- {name}: {line}" for name, one in halves.items() for line in one.wrong]
    by_one = markdown([("mechanism", "truth", *SAID, "wrong word"), *each]) if each else ""
    both = markdown([header, *lines])
    parts = [auditors_table(found.auditors), both, "\n".join(wrong), by_one]
    return "\n\n".join(one for one in parts if one)
