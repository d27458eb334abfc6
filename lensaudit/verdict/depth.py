"""The views of a run of `patch`: its stream, plain and aligned, and what it says after the prefix.

They are read out of `summary.json` and the rows beside it, by the run that writes them as by
whoever reads them later: one reader, one word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lensaudit.groups import unit_of
from lensaudit.results.kinds.patch import Aligned, Outputs, PatchSummary, Shared, Weakest
from lensaudit.results.sentences import shown
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import (
    ALIKE,
    TINY,
    clustered_mean,
    clustered_share,
    typical_size,
)
from lensaudit.verdict.thresholds import (
    ADDED_FROM,
    CALIBRATED_WITHIN,
    FLOOR_MARGIN,
    OTHER_BASIS_GAP,
    READABLE_BELOW,
    SHARED_DROP,
    SHUFFLED_FROM,
    TAIL_BELOW,
    TAIL_LEAST,
    TAIL_SHARE,
    TELLS,
    TYPES_APART,
)
from lensaudit.verdict.views import Calibration, View, beyond, rows_each, zero_of

Rows = Sequence[Mapping[str, Any]]
"""Of results.jsonl."""
MAP_ALONE = "a map alone carries it, which has not told holders of facts from others"
"""Why the aligned depth of another size or tokenizer decides nothing."""


@dataclass(frozen=True)
class Stream:
    """What a run of `patch` says beside its views: what they may be read for, what a mean hides."""

    n_never: int
    """Never-trained models on the scale."""
    n_facts: int
    n_authors: int
    per_author: float | None = None
    """Facts of the author that a fact is of, in the mean; None: no row names an author."""
    off: str | None = None
    """What is wrong with the run's own calibration."""
    readable: bool | None = None
    """Does `full` read the stream as it is? None: not measured."""
    carried: bool | None = None
    """Does it read the aligned one?"""
    not_needed: bool = False
    """It reads so much of the facts that neither question matters."""
    unjudged: str | None = None
    """Why readability is not known."""
    other_basis: bool = False
    """Is the basis what hides: shown by the paired difference of plain and aligned depth?"""
    read: Mapping[int, float] = field(default_factory=dict)
    """Facts that are still read, and their depth."""
    tail: tuple[int, ...] = ()
    """The same, if they are more than a few."""
    above_floor: bool = False
    """Does the plain stream surely hold more than never-trained models do?"""
    shared: str | None = "the direction that facts share was not taken out"
    """Why one shared direction may be what reads as erasure; None: it was taken out."""
    many: str | None = "a direction for each author was not taken out"
    """The same of as many directions as authors."""
    types: str | None = None
    """Where it says more or less in another type of numbers."""
    dtype: str = ""
    """The type of numbers in which it was patched and asked; empty where it was not asked."""
    one_type: bool = False
    """Was it asked in this type alone?"""
    weakest: str | None = "the weakest layer was not measured"
    """Why one layer may hold the facts alone; None: none does."""
    unpatched: str | None = None
    """Layers that may hold the facts and were not asked for."""
    shift: str | None = "how far its stream lies from full's was not measured"
    """Why what was added at forget prompts may drown the facts; None: nothing was."""

    @property
    def judged(self) -> bool:
        """Whether it is known that `full` can read the model, or that it cannot."""
        return self.not_needed or self.readable is not None


def calibration_problem(calibration: Mapping[str, float | None]) -> str | None:
    """What is wrong with the anchors, or None.

    >>> calibration_problem({"full": 0.001, "retain": 1.0})
    >>> calibration_problem({"full": 0.3, "retain": 1.0})
    'full as source reads 0.300, not 0: the scale is off, and no number below can be trusted.'
    """
    for name, wanted in (("full", 0.0), ("retain", 1.0)):
        found = calibration.get(name)
        if found is None:
            return f"{name} as source has no score: the scale is not calibrated."
        if abs(found - wanted) > CALIBRATED_WITHIN:
            return (
                f"{name} as source reads {found:.3f}, not {wanted:.0f}: the scale is off, and no "
                "number below can be trusted."
            )
    return None


def of_patch(
    found: PatchSummary, rows: Rows, calibration: Calibration
) -> tuple[list[View], Stream]:
    """The views of a run, and how they may be read.

    Args:
        found: what `summary.json` says, or will.
        rows: of results.jsonl.
        calibration: how never-trained models scatter.
    """
    measured = found.uds is not None or found.aligned.uds is not None
    off = calibration_problem(found.calibration) if measured and found.score == "uds" else None
    stream = _stream_of(found, rows, off)
    says = [*_says("said", found.outputs, found, rows), *_told(found, rows)]
    plain = _plain(found, rows, stream, calibration)
    return [*says, *plain, *_mapped(found, rows, stream, calibration)], stream


def _told(found: PatchSummary, rows: Rows) -> Iterator[View]:
    """What it gives away when it is asked, in any of the ways in which it was."""
    one = found.told
    yield from _says("told", one and one.outputs, found, [row for row in rows if row.get("told")])
    if one is not None and one.outputs is None:
        yield View("told", None, why=one.why)


def per_author(rows: Rows) -> float | None:
    """Rows of the author that a row is of, in the mean; None where none names its author."""
    return typical_size([row["group"] for row in rows if "group" in row]) or None


def _says(name: str, one: Outputs | None, found: PatchSummary, rows: Rows) -> Iterator[View]:
    """Facts that it says, beside full and retain."""
    if one is None or one.retain is None:
        return
    # earlier versions count the authors of scored facts alone, and a ledger keeps no rows
    n_authors = (
        one.n_groups or len({row["group"] for row in rows if "group" in row}) or found.n_groups
    )
    each = rows_each(one.n, n_authors, one.per_author or per_author(rows))
    # of several models the share is a mean, and no whole count
    k = round(one.source * one.n)
    own = clustered_share(k, one.n, each)
    said = f"{one.source:.0%} of {one.n} facts, full {one.full:.0%}, retain {one.retain:.0%}"
    view = View(name, None, said, n_authors=n_authors, number=own)
    yield beyond(view, k, one.full, one.retain, each)


def _plain(one: PatchSummary, rows: Rows, stream: Stream, nulls: Calibration) -> Iterator[View]:
    """UDS, the Logit Lens and the weakest layer."""
    limits = (
        None if stream.readable is not False else "full cannot read this stream",
        _unheld(one)
        if one.component == "resid"
        else f"component {one.component}: it was measured of no model that never knew",
    )
    if one.score == "uds":
        name = "uds_prefix" if one.scope == "prefix" else "uds"
        if one.uds is None:
            yield View(name, None, why="no example could be scored")
        else:
            yield _view(one, nulls, name, one.estimate, *limits)
    if one.lens is not None:
        ends, n, why = one.lens_ci95, one.lens_n_scored, one.lens_ci95_why
        if one.score == "lens":
            ends, n, why = one.ci95, one.n_scored, one.ci95_why
        yield _view(one, nulls, "lens", Estimate.within(one.lens, ends, n=n, why=why), *limits)
    yield from _layer(one, nulls, "weakest", one.weakest, rows, *limits)


def _unheld(one: PatchSummary) -> str | None:
    """Why the scale of the streams has no length: `full` itself does not hold the facts.

    It does where it says `TELLS` of them more than retain, after the prefix or asked, or where it
    is by that share less surprised: of retain's nats per token, those that its stream costs `full`.
    """
    outputs = [found for found in (one.outputs, one.told and one.told.outputs) if found]
    lost = [at["s1"] for at in one.per_layer if at.get("s1") is not None]
    shares: dict[str, float] = {}
    if outputs:
        more = max(found.full - (found.retain or 0.0) for found in outputs)
        shares[f"says {more:.0%} of them that retain does not"] = more
    if lost and one.baseline is not None and one.anchor is None:
        most = max(0.0, *lost)
        less = most / max(most - one.baseline, TINY)
        shares[f"is {less:.0%} less surprised by them"] = less
    if not shares or max(shares.values()) >= TELLS:
        return None
    return f"full holds too little of these facts itself: it {' and '.join(shares)}"


def _mapped(one: PatchSummary, rows: Rows, stream: Stream, nulls: Calibration) -> Iterator[View]:
    """Views after a map, and without directions that facts share."""
    aligned = one.aligned
    if aligned.uds is None:
        if aligned.why:
            yield View("uds_aligned", None, why=aligned.why)
        return
    blind = None if stream.carried else "full cannot read the aligned stream on facts it holds"
    limits = (blind, _map_problem(aligned) or _unheld(one))
    rows = [row for row in rows if row.get("uds_aligned") is not None]
    yield _view(one, nulls, "uds_aligned", _over(aligned.uds, rows), *limits)
    yield from _layer(one, nulls, "uds_weakest", aligned.weakest, rows, *limits)
    for name, found in (("shared", aligned.shared), ("many", aligned.many)):
        if found.uds is not None:
            yield _view(one, nulls, name, _over(found.uds, rows), *limits)
            yield from _layer(one, nulls, f"{name}_weakest", found.weakest, rows, *limits)


def _over(depth: Estimate, rows: Rows) -> Estimate:
    """A depth with how many facts it is a mean over, and why it has no interval.

    The summary does not say it; nor do `rows`, these facts, where they name no author.
    """
    groups = [row["group"] for row in rows if "group" in row]
    # no interval: the authors are too few, or each has the same mean
    alike = clustered_mean([depth.point] * len(groups), groups, unit=unit_of(groups))
    why = None if depth.ends else alike.why or ALIKE.format(unit_of(groups))
    return replace(depth, n=alike.n, why=why) if groups else depth


def _view(
    one: PatchSummary,
    nulls: Calibration,
    name: str,
    depth: Estimate,
    blind: str | None,
    control: str | None = None,
) -> View:
    """A depth as the share held, beside the run's own never-trained models."""
    own = {} if one.floor is None else {"uds": one.floor.uds, "uds_aligned": one.floor.aligned}
    zero, null = zero_of(name, [1 - low for low in own.get(name, ())], nulls)
    depth = replace(depth, n=depth.n or one.n_scored)
    unknown = None if depth.ends else depth.why or "no interval"
    return View(
        name,
        depth.on(1.0 - zero, 0.0),
        shown(depth, 3),
        null and null.chance(depth.on(1.0, 0.0)),
        one.n_groups,
        control,
        blind,
        unknown,
        replace(depth, why=unknown),
    )


def _layer(
    one: PatchSummary,
    nulls: Calibration,
    name: str,
    layer: Weakest | None,
    rows: Rows,
    *limits: str | None,
) -> Iterator[View]:
    """A layer's erasure, over the rows that it encodes."""
    if layer is not None:
        depth = _over(layer.erasure, [row for row in rows if layer.layer in row.get("ke", ())])
        found = _view(one, nulls, name, depth, *limits)
        yield replace(found, shown=f"{found.shown} at layer {layer.layer}")


def _map_problem(one: Aligned) -> str | None:
    if one.experimental:
        return MAP_ALONE
    if one.full is not None and one.full > CALIBRATED_WITHIN:
        return f"full through its own map reads {one.full:.3f}, not 0"
    if one.shuffled is not None and one.shuffled < SHUFFLED_FROM:
        return f"a map of shuffled pairs reads {one.shuffled:.2f}: the map invents"
    return None


def _stream_of(one: PatchSummary, rows: Rows, off: str | None) -> Stream:
    """How the views may be read."""
    aligned, floor, not_needed = one.aligned, one.floor, not one.validity.needed
    unfit = one.uds is None and aligned.uds is not None  # what cannot be patched in is not read
    carried = True if not_needed else _is_read(aligned.d_share)
    name = "uds_aligned" if aligned.uds is not None and carried else "uds"
    low, n = _low(rows, name)
    many = len(low) >= TAIL_LEAST and len(low) > TAIL_SHARE * n
    return Stream(
        n_never=1 if floor is None else floor.n_models,
        n_facts=n,
        n_authors=one.n_groups,
        per_author=per_author([row for row in rows if row.get(name) is not None]),
        off=off,
        readable=False if unfit else _is_read(one.validity.d_share),
        carried=carried,
        not_needed=not_needed,
        unjudged=one.validity.why,
        other_basis=one.uds is None
        or bool(aligned.gap and (aligned.gap.low or 0.0) > OTHER_BASIS_GAP),
        read=low,
        tail=tuple(low) if many else (),
        above_floor=_above_floor(one),
        shared=_hidden_by_one(aligned),
        many=_hidden_by(aligned, aligned.many, "a direction for each author"),
        types=_types_apart(one),
        dtype=one.told.dtype if one.told else "",
        one_type=bool(one.told and not one.told.types),
        weakest=None if aligned.weakest else "the weakest layer was not measured",
        unpatched=f"{one.n_unpatched} layers were not patched" if one.n_unpatched else None,
        shift=_added(aligned),
    )


def _types_apart(one: PatchSummary) -> str | None:
    """Types of numbers in which the model says other facts than in the run's type."""
    if one.told is None or one.told.source is None:
        return None
    begun = None if one.outputs is None else one.outputs.source
    for dtype, found in one.told.types.items():
        for own, other, when in (
            (one.told.source, found.told, "when asked"),
            (begun, found.said, "once the answer is begun"),
        ):
            if own is not None and abs(own - other) >= TYPES_APART:
                return (
                    f"in {dtype} it says {other:.0%} of the facts {when}, in {one.told.dtype} "
                    f"{own:.0%}: what was audited is not what is run"
                )
    return None


def _is_read(d_share: float | None) -> bool | None:
    return None if d_share is None else d_share < READABLE_BELOW


def _above_floor(one: PatchSummary) -> bool:
    """Plain depth surely below that of the run's own never-trained models."""
    never = one.floor.uds if one.floor and one.uds is not None and one.ci95 else ()
    return bool(never and one.ci95 and one.ci95[1] < sum(never) / len(never) - FLOOR_MARGIN)


def _low(rows: Rows, name: str) -> tuple[dict[int, float], int]:
    """Facts whose depth is low, of how many."""
    depths = {
        row["idx"]: row[name]
        for row in rows
        if isinstance(row.get(name), int | float) and isinstance(row.get("idx"), int)
    }
    return {idx: depth for idx, depth in depths.items() if depth < TAIL_BELOW}, len(depths)


def _added(aligned: Aligned) -> str | None:
    """Whether so much was added at forget prompts that no facts could be read beside it."""
    shift = aligned.shift
    if shift is None:
        return "how far its stream lies from full's was not measured"
    if shift.times < ADDED_FROM:
        return None
    return (
        f"something was added at forget prompts: at layer {shift.layer} its stream lies "
        f"{shift.times:.1f} times as far from full's as retain's does"
    )


def _hidden_by_one(aligned: Aligned) -> str | None:
    """Why one direction that facts share may be what reads as erasure."""
    unknown = "the weakest layer without the shared direction was not measured"
    hidden = _hidden_by(aligned, aligned.shared, "the direction that facts share")
    return hidden or (unknown if aligned.shared.weakest is None else None)


def _hidden_by(aligned: Aligned, found: Shared, told: str) -> str | None:
    """Why these directions may be what reads as erasure; None: they are not."""
    if found.uds is None:
        why = f" ({found.why})" if found.why else ""
        return f"{told} was not taken out{why}"
    drop = found.drop and found.drop.value
    if drop is None:
        drop = (aligned.uds.point if aligned.uds else 0.0) - found.uds.point
    if drop > SHARED_DROP:
        which = "one direction" if found.n == 1 else f"{found.n} directions"
        return f"without {which} that facts share, aligned UDS is {drop:.2f} lower"
    return None
