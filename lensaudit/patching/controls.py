"""Does a high score say that the facts are gone, or that `full` cannot read this model?

Three controls stand beside UDS: validity, the drop on facts that the source still holds; the
aligned depth, after a linear map fitted on neutral text; the floor, the depth of other models that
never saw the facts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.neutral import FEWEST_VALIDITY_ROWS, Neutral, neutral_beside
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint, check_same_shape, open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.alignment import (
    ALIGN_TOKENS_PER_DIM,
    Alignment,
    alignment_key,
    fit_alignment,
    known_alignment,
    mapped,
    rows_to_fit,
    shared_key,
    too_few_groups,
    without_shared,
)
from lensaudit.patching.counterfactual import Others, next_rows
from lensaudit.patching.outcome import NO_KE
from lensaudit.patching.scoring import Deltas
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource
from lensaudit.results.patch_runs import (
    NOT_NEEDED,
    Aligned,
    Examined,
    Floor,
    Outputs,
    Shared,
    Validity,
    Weakest,
)
from lensaudit.scores.depth import DepthScore, depth_score
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean, clustered_ratio
from lensaudit.settings import several
from lensaudit.verdict.thresholds import ALIGN_FROM, STRONG_LAYER, VALIDITY_NEEDED_FROM


@dataclass(frozen=True)
class Controls:
    """On what the controls are measured."""

    neutral: Neutral | None
    """None: no rows are known, and `why` says so."""
    why: str = ""
    retains: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Further models that never saw the facts."""

    def planned(self, session: Session) -> str:
        """What would be measured, in a line of a plan."""
        if self.neutral is None:
            return f"controls: none ({self.why})"
        align, tokens = session.settings.align, session.settings.align_tokens
        said = f"controls: validity on up to {len(self.neutral.validity)} rows"
        if align == "none":
            return f"{said}; no maps"
        maps = f"maps where UDS is {ALIGN_FROM:g} or more" if align == "auto" else f"{align} maps"
        n_tokens = tokens or ALIGN_TOKENS_PER_DIM * session.full.d_model
        return f"{said}; {maps}, fitted on up to {n_tokens} of {len(self.neutral.fit)} rows' tokens"


def controls_of(session: Session) -> Controls:
    """What stands beside UDS: neutral rows, and further retain models.

    Raises:
        InputError: a file or a model that was named does not do.
    """
    settings = session.settings
    _, *more = several(settings.retain) or ("",)
    registry = load_registry(settings.registry)
    retains = {name: open_checkpoint(resolve(name, registry)) for name in more}
    check_same_shape(session.full, *retains.values(), notice=session.notice)
    known: dict[str, str] = {}
    anchors = [(one.spec.name, one) for one in (session.full, session.retain)]
    for name, one in (*anchors, *retains.items()):
        if one.weights in known:  # a second copy would make a floor without width
            raise InputError(
                f"--retain {name}: has the same weights as {known[one.weights]}; a floor needs "
                "models that were made independently"
            )
        known[one.weights] = name
    neutral, why = neutral_beside(settings, str(settings.data), session.examples)
    for name, one in session.sources.items():
        if neutral is None and (misfit := session.misfit(one)) is not None:
            raise InputError(f"{name}: {misfit}, and there is nothing to fit a map on: {why}")
    return Controls(neutral, why, retains)


def unexamined(why: str) -> Examined:
    """A source whose score is not of a kind that these controls are about."""
    return Examined(validity=Validity(why=why), aligned=Aligned(why=why))


SAYS_WITHIN_NATS = 0.5
"""A row counts for validity where the source's span log-prob is this near to `full`'s."""
MapName = Literal["map", "shuffled", "shared"]
"""What carries a stream: its map, that of shuffled pairs, the map without shared directions."""


def examined(session: Session, found: Deltas, controls: Controls) -> dict[str, Examined]:
    """The controls of every source.

    Args:
        session: of the run.
        found: its deltas.
        controls: what is measured beside them.

    Raises:
        VerificationError | WorkError: as of any patched score.
        InputError: alignment was asked for by name and the rows do not suffice.
    """
    examination = _Examination(session, found, controls)
    if examination.unfit is None:
        examination.compute()
    return {name: examination.of(name, source) for name, source in session.sources.items()}


class _Examination:
    """What the sources of a session share: rows, scales, the anchors' own numbers.

    All that runs is run first: each model once, then all sources in one sweep for each set of
    rows. What follows reads scores that are kept. Maps, and the scale of an aligned depth, are by
    the width of the source: by it their class and the number of their tokens are decided.
    """

    def __init__(self, session: Session, found: Deltas, controls: Controls):
        neutral, self.session, self.found = controls.neutral, session, found
        self.settings, s1, tau = session.settings, found.s1, session.settings.tau
        parts = (neutral.validity, neutral.ordinary, neutral.fit) if neutral else ((), (), ())
        self.rows, self.ordinary, self.to_fit = map(session.encode, parts)
        self.groups = [e.group for e in session.encoded]
        self.retains = {one.weights: one for one in (session.retain, *controls.retains.values())}
        self.sources = {one.weights: one for one in session.sources.values()}
        weights = s1.where(s1 > tau, 0.0).double().mean(0) * (s1.double().mean(0) > tau)
        self.columns = weights.nonzero().flatten().tolist()
        self.layers = [self.settings.at_layers[at] for at in self.columns]
        self.weights = weights[self.columns]
        self.unfit = self._unfit() or (None if neutral else controls.why)
        # by weights: rows that are cached, whole sets, so that one cache of `full` serves every
        # source; and those of them that `full` and the source both still say
        self.cached: dict[str, tuple[Encoded, ...]] = {}
        self.readable: dict[str, tuple[Encoded, ...]] = {}
        # by source: why no map of it is wanted, or fitted; by weights and width, the maps
        self.unmapped: dict[str, str] = {}
        self.maps: dict[tuple[str, int], Alignment] = {}

    def _unfit(self) -> str | None:
        """Why nothing of this is measured of any rows."""
        if self.settings.part != "resid":
            return f"component {self.settings.component}: streams are compared for resid only"
        if self.settings.last_layer != "resid_post":
            return "--last-layer reference: the last stream is not a residual stream"
        return None if self.layers else "no layer encodes the forget set"

    def of(self, name: str, source: Checkpoint) -> Examined:
        """Every control of one source."""
        s1, s2 = self.found.s1, self.found.s2[name]
        depth = self.depth(s2, s1)
        uds, outputs = measured(depth.uds, self.groups), self._outputs(source)
        ci90 = None if uds is None else uds.one_sided
        if self.unfit is not None or (uds is None and self.session.misfit(source) is None):
            none = unexamined(self.unfit or "no example could be scored")
            return replace(none, outputs=outputs, ci90=ci90)
        why = self.unmapped.get(name)
        return Examined(
            validity=self._validity(source, s2),
            aligned=self._aligned(source, depth.uds) if why is None else Aligned(why=why),
            outputs=outputs,
            floor=self._floor(source.d_model) if why is None else None,
            ci90=ci90,
            weakest=weakest_of(s1, depth, self.groups, self.settings.at_layers),
        )

    def depth(
        self, s2: Float[Tensor, "batch layer"], s1: Float[Tensor, "batch layer"]
    ) -> DepthScore:
        """On the scale of `s1`."""
        return depth_score(s1, s2, tau=self.settings.tau)

    def compute(self) -> None:
        """Every forward pass and every sweep that the numbers need."""
        session = self.session
        for rows in (self.rows, self.ordinary):
            self._alike(session.full, rows)
        for name, source in session.sources.items():
            self._outputs(source)
            self._choose_rows(source)
            if self._enough(source):
                session.streams(source, self.cached[source.weights])
            if (why := self._unwanted(name, source) or self._fit(source)) is not None:
                self.unmapped[name] = why
        self._fill_validity()
        carried = [one for name, one in session.sources.items() if name not in self.unmapped]
        if carried:  # the further never-trained models as they are
            further = {w: session.streams(self.retains[w], session.encoded) for w in self._further}
            session.fill(session.encoded, further, self.settings.at_layers)
        for width in dict.fromkeys(one.d_model for one in carried):
            sources = {one.weights: one for one in carried if one.d_model == width}
            self._fill_aligned(width, sources)

    @property
    def _further(self) -> list[str]:
        """Weights of the never-trained models beside the anchor."""
        return [one for one in self.retains if one != self.session.retain.weights]

    def _enough(self, source: Checkpoint) -> bool:
        """Are the rows it is read on as many as a drop is measured on?"""
        return len(self.readable[source.weights]) >= FEWEST_VALIDITY_ROWS

    def _choose_rows(self, source: Checkpoint) -> None:
        """Rows that `full` and the source both say; with ordinary ones where facts do not do."""
        weights = source.weights
        self.cached[weights], self.readable[weights] = self.rows, self._alike(source, self.rows)
        if not self._enough(source) and (more := self._alike(source, self.ordinary)):
            self.cached[weights] = (*self.rows, *self.ordinary)
            self.readable[weights] += more

    def _alike(self, source: Checkpoint, rows: Sequence[Encoded]) -> tuple[Encoded, ...]:
        session, match = self.session, self.session.token_match(source, rows)
        pairs = match.scored(rows)
        if not pairs:
            return ()
        if match.places is None and rows == self.rows and len(rows) >= FEWEST_VALIDITY_ROWS:
            session.streams(source, rows)  # wanted anyhow: what it says is read out of it
        theirs, _ = session.answers(session.full, [e for e, _ in pairs])
        own, _ = session.answers(source, [e for _, e in pairs])
        # the same words in other tokens: nats per token of full
        own = own * torch.tensor([one.n_span / e.n_span for e, one in pairs])
        near = ((own - theirs).abs() <= SAYS_WITHIN_NATS).tolist()
        return tuple(e for (e, _), yes in zip(pairs, near, strict=True) if yes)

    def _unwanted(self, name: str, source: Checkpoint) -> str | None:
        """Why a source has no map; None: one is wanted."""
        if self.settings.align == "none":
            return "not asked for (--align none)"
        uds = _mean(self.depth(self.found.s2[name], self.found.s1).uds)
        auto = self.settings.align == "auto" and self.session.misfit(source) is None
        if auto and (uds is None or uds < ALIGN_FROM):
            return f"{NOT_NEEDED}: UDS is below {ALIGN_FROM:g}"
        return None

    def _fit(self, source: Checkpoint) -> str | None:
        """Fit maps of a source and, of its width, of the anchors; or why they cannot be fitted."""
        try:
            for one in (source, self.session.full, *self.retains.values()):
                if (place := (one.weights, source.d_model)) not in self.maps:
                    self.maps[place] = self._alignment(one, source.d_model)
        except InputError as error:
            # of a source that does not fit there would be nothing at all
            if self.settings.align != "auto" or self.session.misfit(source) is not None:
                raise
            return str(error)
        return None

    def _alignment(self, source: Checkpoint, width: int) -> Alignment:
        session, full, kind = self.session, self.session.full, self.settings.align
        if kind in ("auto", "none"):
            kind = "procrustes" if width == full.d_model else "affine"
        n_tokens = self.settings.align_tokens or ALIGN_TOKENS_PER_DIM * max(width, full.d_model)
        rows = rows_to_fit(self.to_fit, n_tokens, session.token_match(source, self.to_fit).places)
        if not rows:
            raise InputError(
                "alignment: no rows are left to fit a map on: those that were given are of authors "
                "of the forget set or of the facts for validity; name others with --align-data"
            )
        match = session.token_match(source, rows)
        prints = (
            session.fingerprint(source, "all", rows=match.rows),
            session.fingerprint(full, "all", rows=rows),
        )
        key = alignment_key(*prints, kind=kind, n_tokens=n_tokens)
        if (known := known_alignment(session.root, kind, key)) is not None:
            return known
        with session.passing(source, match.rows) as streams:
            return fit_alignment(
                streams,
                session.cache(full, rows, "all"),
                rows,
                kind,
                n_tokens=n_tokens,
                memory_bytes=self.settings.memory_bytes,
                root=session.root,
                places=match.places,
            )

    def _fill_validity(self) -> None:
        """Every source, and `full` with another row's stream, on the rows they are read on."""
        session = self.session
        for cached, sources in self._by_rows(self.sources).items():
            fitting = [one for one in sources if session.misfit(one) is None]
            streams = {one.weights: session.streams(one, cached) for one in fitting}
            only = {one.weights: _idx(self.readable[one.weights]) for one in sources}
            others = self._other_rows(cached)
            streams[others.key] = others.source(session, cached)
            only[others.key] = set().union(*only.values())
            session.fill(cached, streams, self.layers, only=only)

    def _by_rows(
        self, sources: Mapping[str, Checkpoint]
    ) -> dict[tuple[Encoded, ...], list[Checkpoint]]:
        """Sources with enough rows to be read on, each once, by the set that is cached."""
        found: dict[tuple[Encoded, ...], list[Checkpoint]] = {}
        for weights, one in sources.items():
            if self._enough(one):
                found.setdefault(self.cached[weights], []).append(one)
        return found

    def _fill_aligned(self, width: int, sources: Mapping[str, Checkpoint]) -> None:
        """The models that never saw the facts, then sources and `full`, through their maps.

        Sources are read through shuffled maps and without shared directions, too. Only the cells
        that the anchors' scale counts are patched.
        """
        session, rows, layers = self.session, self.session.encoded, self.settings.at_layers

        def carried(one: Checkpoint, name: MapName, cached: Sequence[Encoded] = rows) -> None:
            streams[self._key(one, width, name)] = self._carried(one, width, name, cached)

        streams: dict[str, CachedSource] = {}
        for one in self.retains.values():
            carried(one, "map")
        session.fill(rows, streams, layers)
        counts = (self._scale(width) > self.settings.tau).tolist()
        counted = {
            e.idx: [at for at, yes in zip(layers, row, strict=True) if yes]
            for e, row in zip(rows, counts, strict=True)
        }
        streams.clear()
        carried(session.full, "map")
        only = dict.fromkeys(streams, _idx(rows))
        for one in sources.values():
            names: list[MapName] = ["map", "shuffled"]
            if too_few_groups(self._matched(one)) is None:
                names.append("shared")
            for name in names:
                carried(one, name)
                only[self._key(one, width, name)] = _idx(self._matched(one))
        session.fill(rows, streams, counted, only=only)
        for cached, readers in self._by_rows(sources).items():
            streams.clear()
            for one in readers:
                carried(one, "map", cached)
                only[self._key(one, width)] = _idx(self.readable[one.weights])
            session.fill(cached, streams, self.layers, only=only)

    def _matched(self, source: Checkpoint) -> tuple[Encoded, ...]:
        """The facts at whose tokens the source can be read at all."""
        rows = self.session.encoded
        return tuple(e for e, _ in self.session.token_match(source, rows).scored(rows))

    def _key(self, source: Checkpoint, width: int, name: MapName = "map") -> str:
        key = self.maps[source.weights, width].key
        if name == "shared":
            key = shared_key(key, self._matched(source))
        return f"{source.weights}+{name}-{key}"

    def _carried(
        self, source: Checkpoint, width: int, name: MapName, cached: Sequence[Encoded]
    ) -> CachedSource:
        """The source with its stream carried by a map; without shared directions, if so named."""
        session, alignment = self.session, self.maps[source.weights, width]
        maps = alignment.shuffled if name == "shuffled" else alignment.maps
        places = session.token_match(source, cached).places
        moved = mapped(session.streams(source, cached), maps, alignment.layer_of, places)
        if name != "shared":
            return moved
        full, rows = session.streams(session.full, cached), self._matched(source)
        layers, memory = self.settings.at_layers, self.settings.memory_bytes
        return without_shared(moved, full, rows, layers, memory)

    def _deltas(
        self, source: Checkpoint, width: int, name: MapName = "map"
    ) -> Float[Tensor, "batch layer"]:
        key = self._key(source, width, name)
        return self.session.read(key, self.session.encoded, self.settings.at_layers)

    def _scale(self, width: int) -> Float[Tensor, "batch layer"]:
        """S1 of the aligned depth: the mean over models that never saw the facts."""
        return torch.stack([self._deltas(one, width) for one in self.retains.values()]).mean(0)

    def _outputs(self, source: Checkpoint) -> Outputs:
        """From the models' own logits on the forget set."""
        session, rows = self.session, self.session.encoded
        own = session.token_match(source, rows).rows

        def exact(checkpoint: Checkpoint, rows: Sequence[Encoded]) -> float:
            return float(session.answers(checkpoint, rows)[1].double().mean())

        full, retain = exact(session.full, rows), exact(session.retain, rows)
        return Outputs(source=exact(source, own), full=full, retain=retain, n=len(own))

    def _validity(self, source: Checkpoint, s2: Float[Tensor, "batch layer"]) -> Validity:
        n, enough = len(self.readable[source.weights]), self._enough(source)
        few = (
            f"{n} rows that full and the source both say, wanted {FEWEST_VALIDITY_ROWS}; "
            "give more with --validity-data"
        )
        if (misfit := self.session.misfit(source)) is not None:
            return Validity(n=n, why=misfit if enough else few)
        f = self._on_forget(s2)
        needed = f >= VALIDITY_NEEDED_FROM * self._on_forget(self.found.s1)
        if not enough:
            return Validity(f=f, n=n, needed=needed, why=few)
        d, share, limits = self._drop(source.weights, source)
        return Validity(d / f if needed else None, d, f, share, n, limits.ends, needed, limits.why)

    def _drop(self, key: str, source: Checkpoint) -> tuple[float, float, Estimate]:
        """Mean over rows and KE layers, and in units of the drop of another row's stream."""
        readable, cached = self.readable[source.weights], self.cached[source.weights]
        own, worst = (
            (self.session.read(one, readable, self.layers).double() * self.weights).sum(1)
            / self.weights.sum()
            for one in (key, self._other_rows(cached).key)
        )
        limits = clustered_ratio(own.numpy(), worst.numpy(), [e.group for e in readable])
        return float(own.mean()), float(own.mean() / worst.mean()), limits

    def _other_rows(self, cached: Sequence[Encoded]) -> Others:
        """What patching does when nothing fits."""
        return next_rows(self.session.full, cached, whole=self.settings.scope == "prefix")

    def _on_forget(self, values: Float[Tensor, "batch layer"]) -> float:
        """Mean over the KE cells of the forget set, weighted by the layers' mean S1."""
        ke = (self.found.s1 > self.settings.tau)[:, self.columns]
        cells = self.weights.expand_as(ke).where(ke, 0.0)
        kept = values[:, self.columns].double().where(ke, 0.0)
        return float((cells * kept).sum() / cells.sum())

    def _aligned(self, source: Checkpoint, plain: Float[Tensor, " batch"]) -> Aligned:
        width, session, layers = source.d_model, self.session, self.settings.at_layers
        alignment, s1 = self.maps[source.weights, width], self._scale(width)
        depth = self.depth(self._deltas(source, width), s1)
        weights, r2 = s1.clamp(min=0).mean(0), torch.tensor(alignment.r2)[list(layers)]
        known = zip(session.encoded, depth.uds.tolist(), strict=True)
        enough = self._enough(source)
        return Aligned(
            kind=alignment.kind,
            uds=measured(depth.uds, self.groups),
            per_example={e.idx: value for e, value in known if value == value},
            gap=measured(plain - depth.uds, self.groups, bounds=(-1.0, 1.0)),
            r2=_mean((r2 * weights).sum() / weights.sum()),
            shuffled=_mean(self.depth(self._deltas(source, width, "shuffled"), s1).uds),
            d_share=self._drop(self._key(source, width), source)[1] if enough else None,
            full=_mean(self.depth(self._deltas(session.full, width), s1).uds),
            weakest=weakest_of(s1, depth, self.groups, layers),
            shared=self._shared(source, s1, depth.uds),
            unscored=self._unscored(source, depth.uds),
            experimental=session.misfit(source) is not None,
        )

    def _shared(
        self,
        source: Checkpoint,
        s1: Float[Tensor, "batch layer"],
        scores: Float[Tensor, " batch"],
    ) -> Shared:
        """The depth without each layer's shared direction, on the scale of the aligned one."""
        if (why := too_few_groups(self._matched(source))) is not None:
            return Shared(why=why)
        depth = self.depth(self._deltas(source, source.d_model, "shared"), s1)
        return Shared(
            uds=measured(depth.uds, self.groups),
            drop=measured(scores - depth.uds, self.groups, bounds=(-1.0, 1.0)),
            weakest=weakest_of(s1, depth, self.groups, self.settings.at_layers),
        )

    def _unscored(self, source: Checkpoint, scores: Float[Tensor, " batch"]) -> dict[int, str]:
        """Of a source of which only the aligned depth is known: why an example has none."""
        rows, no_ke = self.session.encoded, NO_KE.format(tau=self.settings.tau)
        if self.session.misfit(source) is None:
            return {}
        apart = self.session.token_match(source, rows).unscored
        lost = zip(rows, scores.isnan().tolist(), strict=True)
        return {e.idx: apart.get(e.idx, no_ke) for e, yes in lost if yes}

    def _floor(self, width: int) -> Floor | None:
        """Depth of each retain model on the others' scale; plain of those beside the anchor."""
        if not self._further:
            return None
        rows, layers = self.session.encoded, self.settings.at_layers
        s1 = {weights: self._deltas(one, width) for weights, one in self.retains.items()}
        known = []
        for weights, own in s1.items():
            others = torch.stack([other for w, other in s1.items() if w != weights]).mean(0)
            known.append(float(self.depth(own, others).uds.nanmean()))
        if not all(map(math.isfinite, known)):
            return None
        read = (self.session.read(w, rows, layers) for w in self._further)
        plain = (_mean(self.depth(one, self.found.s1).uds) for one in read)
        uds = tuple(one for one in plain if one is not None)
        return Floor(min(known), max(known), len(known), uds, tuple(known[1:]))


def measured(
    scores: Float[Tensor, " batch"],
    groups: Sequence[int | str],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Estimate | None:
    """Mean over the scored examples with its limits by authors; None when there is none."""
    chosen = scores.isfinite().tolist()
    kept = scores[scores.isfinite()].double().tolist()
    if not kept:
        return None
    labels = [group for group, yes in zip(groups, chosen, strict=True) if yes]
    mean = sum(kept) / len(kept)
    return clustered_mean(kept, labels, bounds=bounds).around(mean)


def weakest_of(
    s1: Float[Tensor, "batch layer"],
    depth: DepthScore,
    groups: Sequence[int | str],
    layers: Sequence[int],
) -> Weakest | None:
    """Of the layers where `full` has most to lose, the one that is erased least.

    Args:
        s1: the scale, nats per token.
        depth: of the source on it.
        groups: the author of each row.
        layers: what the columns stand for.
    """
    strength = s1.double().where(depth.ke, 0.0).mean(0)
    found: list[Weakest] = []
    for at, layer in enumerate(layers):
        erasure = measured(depth.erasure[:, at], groups)
        if erasure is not None and strength[at] >= STRONG_LAYER * strength.max():
            found.append(Weakest(layer, erasure))
    return min(found, key=lambda one: one.erasure.point, default=None)


def _idx(rows: Sequence[Encoded]) -> set[int]:
    return {e.idx for e in rows}


def _mean(scores: Float[Tensor, " batch"]) -> float | None:
    known = scores[scores.isfinite()]
    return float(known.double().mean()) if len(known) else None
