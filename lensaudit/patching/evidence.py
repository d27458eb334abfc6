"""Does a high score say that the facts are gone, or that `full` cannot read this model?

Three controls stand beside UDS (`aligned_depth.md`): validity, the drop on facts that the source
still holds; the aligned depth, after a linear map fitted on neutral text; the floor, the depth of
other models that never saw the facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.neutral import FEWEST_VALIDITY_ROWS, Neutral
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.aligned import (
    ALIGN_TOKENS_PER_DIM,
    Alignment,
    MappedDonor,
    OtherRowDonor,
    alignment_of,
    next_rows,
)
from lensaudit.patching.audit import Audit, Deltas
from lensaudit.patching.bench import Bench
from lensaudit.patching.donors import Donor
from lensaudit.results.verdict import (
    ALIGN_FROM,
    READABLE_BELOW,
    VALIDITY_NEEDED_FROM,
    Evidence,
    Floor,
    Measured,
    Outputs,
    Verdict,
    verdict_of,
)
from lensaudit.scores.alignment import LinearMap, MapClass
from lensaudit.scores.depth import depth_score
from lensaudit.scores.intervals import NoInterval, clustered_mean, clustered_ratio
from lensaudit.scores.stats import Interval

Align = Literal["auto", "none", "shift", "procrustes", "affine"]

SAYS_WITHIN_NATS = 0.5
"""A row counts for validity where the source's span log-prob is this near to `full`'s."""


@dataclass(frozen=True)
class Controls:
    """How the controls are measured, and on what."""

    neutral: Neutral | None
    """None: no rows are known, and `why` says so."""
    why: str = ""
    align: Align = "auto"
    align_tokens: int | None = None
    """Neutral tokens for a map; None: `ALIGN_TOKENS_PER_DIM` per dimension."""
    retains: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Further models that never saw the facts."""


@dataclass(frozen=True)
class Validity:
    """Can `full` read this model at all? Deltas in nats per token."""

    v: float | None = None
    """d / f; None where f is too small a part of S1 for a ratio."""
    d: float | None = None
    """Drop on facts that the source still says, over the forget set's KE layers."""
    f: float | None = None
    """The same on the forgotten facts."""
    d_share: float | None = None
    """d in units of the drop that `full`'s own stream of another row makes."""
    n: int = 0
    ci95: tuple[float, float] | None = None
    """Of `d_share`."""
    needed: bool = True
    """False where `full` reads the source so well that no ratio is needed."""
    why: str | None = None
    """Why it was not measured, or has no interval."""

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return {**vars(self), "ci95": None if self.ci95 is None else list(self.ci95)}


@dataclass(frozen=True)
class Aligned:
    """UDS of the aligned source, and what shows whether the map means anything."""

    kind: MapClass | None = None
    uds: Measured | None = None
    per_example: Mapping[int, float] = field(default_factory=dict)
    gap: Measured | None = None
    r2: float | None = None
    shuffled: float | None = None
    d_share: float | None = None
    full: float | None = None
    """Aligned UDS of `full` itself: 0 where the machinery is right."""
    why: str | None = None

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return {
            "class": self.kind,
            "uds": None if self.uds is None else self.uds.value,
            "ci95": limits_of(self.uds),
            "r2": self.r2,
            "shuffled": self.shuffled,
            "d_share": self.d_share,
            "full": self.full,
            "why": self.why or (self.uds.why if self.uds else None),
        }


@dataclass(frozen=True)
class Examined:
    """The controls of one source, and what may be said of it."""

    validity: Validity
    aligned: Aligned
    outputs: Outputs | None
    floor: Floor | None
    verdict: Verdict

    def document(self) -> dict[str, Any]:
        """The part of summary.json."""
        return {
            "validity": self.validity.document(),
            "aligned": self.aligned.document(),
            "floor": None if self.floor is None else dict(vars(self.floor)),
            "outputs": None if self.outputs is None else dict(vars(self.outputs)),
            "verdict": self.verdict.document(),
        }


def limits_of(found: Measured | None) -> list[float] | None:
    """`[low, high]`, or None."""
    if found is None or found.low is None or found.high is None:
        return None
    return [found.low, found.high]


def examined(audit: Audit, found: Deltas, controls: Controls) -> dict[str, Examined]:
    """The controls and the verdict of every source.

    Raises:
        VerificationError | WorkError: as of any patched score.
        InputError: alignment was asked for by name and the rows do not suffice.
    """
    with Bench(audit) as bench:
        trial = _Trial(bench, found, controls)
        return {name: trial.of(name) for name in audit.sources}


class _Trial:
    """What the sources of an audit share: rows, scales, the anchors' own numbers."""

    def __init__(self, bench: Bench, found: Deltas, controls: Controls) -> None:
        self.bench, self.audit, self.found, self.controls = bench, bench.audit, found, controls
        layers = list(self.audit.options.layers)
        ke = found.s1 > self.audit.options.tau
        counted = found.s1.where(ke, 0.0).double()
        self.weights = counted.mean(0) * (found.s1.double().mean(0) > self.audit.options.tau)
        self.layers = [
            layer for layer, w in zip(layers, self.weights.tolist(), strict=True) if w > 0
        ]
        self.weights = self.weights[self.weights > 0]
        self.columns = [layers.index(layer) for layer in self.layers]
        neutral = controls.neutral
        self.rows = bench.encoded(neutral.validity if neutral else ())
        self.ordinary = bench.encoded(neutral.ordinary if neutral else ())
        self.fit = bench.encoded(neutral.fit if neutral else ())
        self._anchors: dict[str, Any] = {}

    def of(self, name: str) -> Examined:
        """All of one source."""
        source, groups = self.audit.sources[name], [e.group for e in self.audit.encoded]
        plain = depth_score(self.found.s1, self.found.s2[name], tau=self.audit.options.tau).uds
        uds = measured(plain, groups)
        outputs = self._outputs(source)
        unfit = self._unfit()
        if unfit is not None or uds is None:
            validity, aligned = (
                Validity(why=unfit or "no example could be scored"),
                Aligned(why=unfit),
            )
            evidence = Evidence(uds, outputs=outputs, why_no_validity=validity.why)
            return Examined(validity, aligned, outputs, None, verdict_of(name, evidence))
        readable = self._readable_rows(source)
        validity = self._validity(name, source, readable)
        aligned = self._aligned(source, plain, groups, readable)
        floor, to_floor = self._floor(aligned, groups)
        evidence = Evidence(
            uds=uds,
            aligned=aligned.uds,
            gap=aligned.gap,
            to_floor=to_floor,
            floor=floor,
            outputs=outputs,
            readable=_below_gate(validity.d_share),
            readable_aligned=_below_gate(aligned.d_share),
            not_needed=not validity.needed,
            why_no_validity=validity.why,
        )
        return Examined(validity, aligned, outputs, floor, verdict_of(name, evidence))

    def _unfit(self) -> str | None:
        """Why nothing of this is measured."""
        options = self.audit.options
        if options.component != "resid":
            return f"component {options.component_name}: streams are compared for resid only"
        if options.last_layer != "resid_post":
            return "--last-layer reference: the last stream is not a residual stream"
        if not self.layers:
            return "no layer encodes the forget set"
        return None if self.controls.neutral is not None else self.controls.why

    def _outputs(self, source: Checkpoint) -> Outputs:
        """From the models' own logits on the forget set."""
        rows = self.audit.encoded
        return Outputs(
            source=self._exact(source, rows),
            full=self._exact(self.audit.full, rows),
            retain=self._exact(self.audit.retain, rows),
            n=len(rows),
        )

    def _exact(self, checkpoint: Checkpoint, rows: Sequence[Encoded]) -> float:
        key = f"exact {checkpoint.weights}"
        if key not in self._anchors:
            said = self.bench.said(checkpoint, rows)
            self._anchors[key] = float(said.exact.double().mean())
        return self._anchors[key]

    def _readable_rows(self, source: Checkpoint) -> list[Encoded]:
        """Rows that `full` and the source both still say; ordinary ones where facts do not do."""
        kept = self._alike(source, self.rows)
        if len(kept) < FEWEST_VALIDITY_ROWS:
            kept += self._alike(source, self.ordinary)
        return kept

    def _alike(self, source: Checkpoint, rows: Sequence[Encoded]) -> list[Encoded]:
        if not rows:
            return []
        key = f"said {rows[0].idx}"
        own = self.bench.said(source, rows).logprob
        if key not in self._anchors:
            self._anchors[key] = self.bench.said(self.audit.full, rows).logprob
        near = (own - self._anchors[key]).abs() <= SAYS_WITHIN_NATS
        return [e for e, yes in zip(rows, near.tolist(), strict=True) if yes]

    def _validity(self, name: str, source: Checkpoint, rows: Sequence[Encoded]) -> Validity:
        f, strength = self._on_forget(self.found.s2[name]), self._on_forget(self.found.s1)
        needed = f >= VALIDITY_NEEDED_FROM * strength
        if len(rows) < FEWEST_VALIDITY_ROWS:
            why = (
                f"{len(rows)} rows that full and the source both say, wanted "
                f"{FEWEST_VALIDITY_ROWS}; give more with --validity-data"
            )
            return Validity(f=f, n=len(rows), needed=needed, why=why)
        donor = self.bench.donor(source, self._all_rows(rows))
        drops = self._drops(rows, {source.weights: donor})[source.weights]
        share, limits, why = self._share(rows, drops)
        d = float(drops.mean())
        return Validity(
            v=d / f if needed else None,
            d=d,
            f=f,
            d_share=share,
            n=len(rows),
            ci95=limits,
            needed=needed,
            why=why,
        )

    def _all_rows(self, rows: Sequence[Encoded]) -> tuple[Encoded, ...]:
        """The set that is cached: whole, so that one cache serves every source."""
        held = {e.idx for e in self.rows}
        return self.rows if all(e.idx in held for e in rows) else (*self.rows, *self.ordinary)

    def _drops(
        self, rows: Sequence[Encoded], donors: Mapping[str, Donor]
    ) -> dict[str, Float[Tensor, " batch"]]:
        """Weighted mean over the KE layers, per row."""
        found = self.bench.deltas(rows, donors, self.layers)
        total = self.weights.sum()
        return {key: (one.double() * self.weights).sum(1) / total for key, one in found.items()}

    def _share(
        self, rows: Sequence[Encoded], drops: Float[Tensor, " batch"]
    ) -> tuple[float, tuple[float, float] | None, str | None]:
        """The drop in units of what another row's stream of `full` makes."""
        full = self.audit.full
        base = self.bench.donor(full, self._all_rows(rows))
        other = OtherRowDonor(
            base.activations, base.last_layer, other=next_rows(self._all_rows(rows))
        )
        key = f"{full.weights}+other-row"
        worst = self._drops(rows, {key: other})[key]
        groups = [e.group for e in rows]
        found = clustered_ratio(drops.numpy(), worst.numpy(), groups)
        share = float(drops.mean() / worst.mean())
        if isinstance(found, NoInterval):
            return share, None, found.why
        return share, (found.low, found.high), None

    def _on_forget(self, values: Float[Tensor, "batch layer"]) -> float:
        """Mean over the KE cells of the forget set, weighted by the layers' mean S1."""
        ke = (self.found.s1 > self.audit.options.tau)[:, self.columns]
        cells = self.weights.expand_as(ke).where(ke, 0.0)
        kept = values[:, self.columns].double().where(ke, 0.0)
        return float((cells * kept).sum() / cells.sum())

    def _aligned(
        self,
        source: Checkpoint,
        plain: Float[Tensor, " batch"],
        groups: Sequence[int | str],
        rows: Sequence[Encoded],
    ) -> Aligned:
        kind, why = self._kind(source, float(plain.nanmean()))
        if kind is None:
            return Aligned(why=why)
        try:
            alignment = self._alignment(source, kind)
            s1 = self._scale(kind)
        except InputError as error:
            if self.controls.align != "auto":
                raise
            return Aligned(why=str(error))
        s2 = self._mapped(source, alignment, alignment.maps, "map")
        mixed = self._mapped(source, alignment, alignment.shuffled, "shuffled")
        tau = self.audit.options.tau
        scores = depth_score(s1, s2, tau=tau).uds
        weights = s1.clamp(min=0).mean(0)
        r2 = torch.tensor(alignment.r2)[list(self.audit.options.layers)]
        return Aligned(
            kind=kind,
            uds=measured(scores, groups),
            per_example={
                e.idx: value
                for e, value in zip(self.audit.encoded, scores.tolist(), strict=True)
                if value == value
            },
            gap=measured(plain - scores, groups, bounds=(-1.0, 1.0)),
            r2=float((r2 * weights).sum() / weights.sum()),
            shuffled=_mean(depth_score(s1, mixed, tau=tau).uds),
            d_share=self._share_aligned(source, alignment, rows),
            full=self._full_onto_itself(kind, s1),
        )

    def _kind(self, source: Checkpoint, uds: float) -> tuple[MapClass | None, str | None]:
        asked = self.controls.align
        if asked == "none":
            return None, "not asked for (--align none)"
        if asked == "auto":
            if uds < ALIGN_FROM:
                return None, f"not needed: UDS is below {ALIGN_FROM:g}"
            same = source.d_model == self.audit.full.d_model
            return ("procrustes" if same else "affine"), None
        return asked, None

    def _alignment(self, source: Checkpoint, kind: MapClass) -> Alignment:
        n_tokens = self.controls.align_tokens or ALIGN_TOKENS_PER_DIM * self.audit.full.d_model
        return alignment_of(
            self.bench.cache(source, self.fit, "all"),
            self.bench.cache(self.audit.full, self.fit, "all"),
            self.fit,
            kind,
            n_tokens=n_tokens,
            memory_bytes=self.audit.options.memory_bytes,
            root=self.audit.root,
        )

    def _mapped(
        self,
        source: Checkpoint,
        alignment: Alignment,
        maps: tuple[LinearMap, ...],
        name: str,
        rows: Sequence[Encoded] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Float[Tensor, "batch layer"]:
        """Deltas with the source's stream carried by these maps."""
        rows = self.audit.encoded if rows is None else rows
        held = self.audit.encoded if rows is self.audit.encoded else self._all_rows(rows)
        base = self.bench.donor(source, held)
        donor = MappedDonor(
            base.activations, base.last_layer, maps=maps, layer_of=alignment.layer_of
        )
        key = f"{source.weights}+{name}-{alignment.key}"
        return self.bench.deltas(rows, {key: donor}, layers or self.audit.options.layers)[key]

    def _share_aligned(
        self, source: Checkpoint, alignment: Alignment, rows: Sequence[Encoded]
    ) -> float | None:
        if len(rows) < FEWEST_VALIDITY_ROWS:
            return None
        found = self._mapped(source, alignment, alignment.maps, "map", rows, self.layers)
        drops = (found.double() * self.weights).sum(1) / self.weights.sum()
        return self._share(rows, drops)[0]

    def _scale(self, kind: MapClass) -> Float[Tensor, "batch layer"]:
        """S1 of the aligned retain models, their mean."""
        return torch.stack([self._s1(one, kind) for one in self._retains().values()]).mean(0)

    def _retains(self) -> dict[str, Checkpoint]:
        first = {self.audit.retain.weights: self.audit.retain}
        return first | {one.weights: one for one in self.controls.retains.values()}

    def _s1(self, retain: Checkpoint, kind: MapClass) -> Float[Tensor, "batch layer"]:
        key = f"s1 {retain.weights} {kind}"
        if key not in self._anchors:
            own = self._alignment(retain, kind)
            self._anchors[key] = self._mapped(retain, own, own.maps, "map")
        return self._anchors[key]

    def _full_onto_itself(self, kind: MapClass, s1: Float[Tensor, "batch layer"]) -> float | None:
        key = f"full {kind}"
        if key not in self._anchors:
            own = self._alignment(self.audit.full, kind)
            s2 = self._mapped(self.audit.full, own, own.maps, "map")
            self._anchors[key] = _mean(depth_score(s1, s2, tau=self.audit.options.tau).uds)
        return self._anchors[key]

    def _floor(
        self, aligned: Aligned, groups: Sequence[int | str]
    ) -> tuple[Floor | None, Measured | None]:
        """Depth of each retain model on the others' scale; the source minus their mean, by row."""
        retains = list(self._retains().values())
        if len(retains) < 2 or aligned.kind is None:
            return None, None
        tau, kind = self.audit.options.tau, aligned.kind
        rows = []
        for one in retains:
            others = [self._s1(r, kind) for r in retains if r.weights != one.weights]
            scale = torch.stack(others).mean(0)
            rows.append(depth_score(scale, self._s1(one, kind), tau=tau).uds)
        scores = torch.stack(rows)
        means = scores.nanmean(1)
        own = torch.tensor([aligned.per_example.get(e.idx, torch.nan) for e in self.audit.encoded])
        floor = Floor(float(means.min()), float(means.max()), len(retains))
        return floor, measured(own - scores.nanmean(0), groups, bounds=(-1.0, 1.0))


def measured(
    scores: Float[Tensor, " batch"],
    groups: Sequence[int | str],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Measured | None:
    """Mean over the scored examples with its limits by authors; None when there is none."""
    chosen = scores.isfinite().tolist()
    kept = scores[scores.isfinite()].double().tolist()
    if not kept:
        return None
    labels = [group for group, yes in zip(groups, chosen, strict=True) if yes]
    mean = sum(kept) / len(kept)
    both = clustered_mean(kept, labels, bounds=bounds)
    one_sided = clustered_mean(kept, labels, bounds=bounds, level=0.9)
    if isinstance(both, Interval) and isinstance(one_sided, Interval):
        return Measured(mean, both.low, both.high, one_sided.low)
    return Measured(mean, why=both.why if isinstance(both, NoInterval) else None)


def _below_gate(share: float | None) -> bool | None:
    return None if share is None else share < READABLE_BELOW


def _mean(scores: Float[Tensor, " batch"]) -> float | None:
    known = scores[scores.isfinite()]
    return float(known.double().mean()) if len(known) else None
