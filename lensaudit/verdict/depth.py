"""The views of a run of `patch`: its stream, plain and aligned, and what it says after the prefix.

They are read out of `summary.json` and the rows beside it, by the run that writes them as by
whoever reads them later: one reader, one word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lensaudit.results.patch_runs import AlignedDepth, DepthSummary, Ends, WeakLayer
from lensaudit.results.reading import brief, checked, number, part
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import chance_of_more, excess_of, share_of
from lensaudit.verdict.nulls import Calibration, Zero, zero_of
from lensaudit.verdict.thresholds import (
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
)
from lensaudit.verdict.views import View

MAP_ALONE = "a map alone carries it, which has not told holders of facts from others"
"""Why the aligned depth of another size or tokenizer decides nothing."""


@dataclass(frozen=True)
class Stream:
    """What a run of `patch` says beside its views: what they may be read for, what a mean hides."""

    n_never: int
    """Never-trained models on the scale."""
    n_facts: int
    n_authors: int
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
    weakest: str | None = "the weakest layer was not measured"
    """Why one layer may hold the facts alone; None: none does."""

    @property
    def judged(self) -> bool:
        """Is it known whether `full` can read the model at all?"""
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
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    calibration: Calibration,
    where: object = "summary.json",
) -> tuple[list[View], Stream]:
    """The views of a run, and how they may be read.

    Args:
        summary: as `summary.json` holds it, or will.
        rows: of results.jsonl.
        calibration: how never-trained models scatter.
        where: the file, for errors.

    Raises:
        InputError: a field is something else.
    """
    found = checked(DepthSummary, summary, where)
    anchors = {
        name: number(part(summary, "calibration").get(name), f"{where}: calibration.{name}")
        for name in ("full", "retain")
    }
    reader = _Run(found, rows, calibration)
    views = [*reader.said(), *reader.stream(), *reader.aligned()]
    measured = found.uds is not None or found.aligned.uds is not None
    off = calibration_problem(anchors) if measured and found.score == "uds" else None
    return views, reader.beside(off)


def kept_for_verdict(
    summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What `of_patch` reads of a run, in five digits and without a name: for a table of many."""
    kept = [one.name for one in fields(DepthSummary)] + ["calibration"]
    depths = ("idx", "uds", "uds_aligned")
    found = {name: summary[name] for name in kept if name in summary} | {"source": ""}
    return brief({**found, "rows": [{name: row.get(name) for name in depths} for row in rows]}, 5)


def _held(value: float, ci95: Ends, ci90: Ends, zero: float, n: int, why: str | None) -> Estimate:
    """A depth as the share held, 0 where never-trained models of the run lie."""
    return Estimate.within(value, ci95, ci90, n=n, why=why).on(1.0 - zero, 0.0)


def _depth(value: float, ends: Ends) -> str:
    return f"{value:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


@dataclass(frozen=True)
class _Run:
    found: DepthSummary
    rows: Sequence[Mapping[str, Any]]
    nulls: Calibration

    def said(self) -> Iterator[View]:
        """What it says once the answer is begun; counts keep exact limits below five authors."""
        one = self.found.outputs
        if one is None or one.retain is None:
            return
        own, full, retain = (
            share_of(round(share * one.n), one.n) for share in (one.source, one.full, one.retain)
        )
        shown = f"{one.source:.0%} of {one.n} facts, full {one.full:.0%}, retain {one.retain:.0%}"
        tells = one.full - one.retain
        if tells <= 0:
            yield View("said", None, shown, why="full says no more than retain", number=own)
            return
        counts = (round(one.source * one.n), one.n, round(one.retain * one.n), one.n)
        yield View(
            "said",
            excess_of(own, retain).on(0.0, full.point - retain.point),
            shown,
            chance_of_more(*counts),
            self.found.n_groups,
            control=None if tells >= TELLS else f"full says only {tells:.0%} more than retain",
            number=own,
        )

    def stream(self) -> Iterator[View]:
        """UDS, the Logit Lens and the weakest layer."""
        one = self.found
        blind = None if self.readable is not False else "full cannot read this stream"
        name = "uds_prefix" if one.scope == "prefix" else "uds"
        if one.uds is not None:
            yield self._view(name, one.uds, one.ci95, one.ci90, blind, one.ci95_why)
        elif one.score == "uds":
            yield View(name, None, why="no example could be scored")
        if one.lens is not None:
            ends = one.ci95 if one.score == "lens" else one.lens_ci95
            yield self._view("lens", one.lens, ends, None, blind, one.ci95_why)
        if one.weakest is not None:
            yield self._layer("weakest", one.weakest, blind)

    def aligned(self) -> Iterator[View]:
        """The same after a map, and without the direction that facts of other authors share."""
        one = self.found.aligned
        if one.uds is None:
            if one.why:
                yield View("uds_aligned", None, why=one.why)
            return
        control = self._map_problem()
        blind = None if self.carried else "full cannot read the aligned stream on facts it holds"
        yield self._view("uds_aligned", one.uds, one.ci95, one.ci90, blind, control=control)
        if one.weakest is not None:
            yield self._layer("uds_weakest", one.weakest, blind, control)
        shared = one.shared
        if shared is None or shared.uds is None:
            return
        yield self._view("shared", shared.uds, shared.ci95, shared.ci90, blind, control=control)
        if shared.weakest is not None:
            yield self._layer("shared_weakest", shared.weakest, blind, control)

    def _map_problem(self) -> str | None:
        one = self.found.aligned
        if one.experimental:
            return MAP_ALONE
        if one.full is not None and one.full > CALIBRATED_WITHIN:
            return f"full through its own map reads {one.full:.3f}, not 0"
        if one.shuffled is not None and one.shuffled < SHUFFLED_FROM:
            return f"a map of shuffled pairs reads {one.shuffled:.2f}: the map invents"
        return None

    def _zero(self, name: str) -> Zero:
        floor = self.found.floor
        own = {} if floor is None else {"uds": floor.uds, "uds_aligned": floor.aligned}
        return zero_of(name, [1 - depth for depth in own.get(name, ())], self.nulls)

    def _view(
        self,
        name: str,
        depth: float,
        ci95: Ends,
        ci90: Ends,
        blind: str | None,
        why: str | None = None,
        control: str | None = None,
    ) -> View:
        zero = self._zero(name)
        unknown = None if ci95 else why or "no interval"
        raw = _held(depth, ci95, ci90, 0.0, self.found.n_scored, why)
        return View(
            name,
            _held(depth, ci95, ci90, zero.at, self.found.n_scored, why),
            _depth(depth, ci95),
            None if zero.null is None else zero.null.chance(raw),
            self.found.n_groups,
            control,
            blind,
            unknown,
            Estimate.within(depth, ci95, n=self.found.n_scored, why=unknown),
        )

    def _layer(
        self, name: str, layer: WeakLayer, blind: str | None, control: str | None = None
    ) -> View:
        found = self._view(name, layer.erasure, layer.ci95, layer.ci90, blind, control=control)
        return replace(found, shown=f"{found.shown} at layer {layer.layer}")

    @property
    def readable(self) -> bool | None:
        share = self.found.validity.d_share
        return None if share is None else share < READABLE_BELOW

    @property
    def carried(self) -> bool | None:
        share = self.found.aligned.d_share
        if share is not None and share < READABLE_BELOW:
            return True
        return True if self.not_needed else None if share is None else False

    @property
    def not_needed(self) -> bool:
        return not self.found.validity.needed

    def beside(self, off: str | None) -> Stream:
        """How the views may be read."""
        one, aligned, floor = self.found, self.found.aligned, self.found.floor
        # what cannot be patched in is not read
        readable = False if one.uds is None and aligned.uds is not None else self.readable
        low, n = self._low()
        many = len(low) >= TAIL_LEAST and len(low) > TAIL_SHARE * n
        return Stream(
            n_never=1 if floor is None else floor.n_models,
            n_facts=n,
            n_authors=one.n_groups,
            off=off,
            readable=readable,
            carried=self.carried,
            not_needed=self.not_needed,
            unjudged=one.validity.why,
            other_basis=one.uds is None
            or bool(aligned.gap and (aligned.gap.low or 0.0) > OTHER_BASIS_GAP),
            read=low,
            tail=tuple(low) if many else (),
            above_floor=self._above_floor(),
            shared=_hidden_by_one(aligned),
            weakest=None if aligned.weakest else "the weakest layer was not measured",
        )

    def _above_floor(self) -> bool:
        """Plain depth surely below that of the run's own never-trained models."""
        one, floor = self.found, self.found.floor
        if floor is None or not floor.uds or one.uds is None or one.ci95 is None:
            return False
        return one.ci95[1] < sum(floor.uds) / len(floor.uds) - FLOOR_MARGIN

    def _low(self) -> tuple[dict[int, float], int]:
        """Facts whose depth is low, of how many."""
        name = "uds_aligned" if self.found.aligned.uds is not None and self.carried else "uds"
        depths = {
            row["idx"]: row[name]
            for row in self.rows
            if isinstance(row.get(name), int | float) and isinstance(row.get("idx"), int)
        }
        return {idx: depth for idx, depth in depths.items() if depth < TAIL_BELOW}, len(depths)


def _hidden_by_one(aligned: AlignedDepth) -> str | None:
    """Why one direction that facts share may be what reads as erasure."""
    shared = aligned.shared
    if shared is None or shared.uds is None:
        why = f" ({shared.why})" if shared is not None and shared.why else ""
        return f"the direction that facts share was not taken out{why}"
    drop = shared.drop.value if shared.drop is not None else None
    if drop is None:
        drop = (aligned.uds or 0.0) - shared.uds
    if drop > SHARED_DROP:
        return f"without one direction that facts share, aligned UDS is {drop:.2f} lower"
    if shared.weakest is None:
        return "the weakest layer without the shared direction was not measured"
    return None
