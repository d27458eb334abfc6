"""Does a high score say that the facts are gone, or that `full` cannot read this model?

Three controls stand beside UDS: validity, the drop on facts that the source still holds; the
aligned depth, after a linear map fitted on neutral text; the floor, the depth of other models that
never saw the facts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.neutral import FEWEST_VALIDITY_ROWS, Neutral, neutral_beside
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.groups import grouped
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.alignment import (
    ALIGN_TOKENS_PER_DIM,
    Alignment,
    Removal,
    alignment_key,
    at_span,
    fit_alignment,
    known_alignment,
    mapped,
    one_a_group,
    one_direction,
    rows_to_fit,
    too_few_groups,
    without_shared,
)
from lensaudit.patching.asking import questions_of
from lensaudit.patching.outcome import NO_KE, Outcome, mean_of
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource, Others, next_rows
from lensaudit.results.kinds.patch import (
    NOT_NEEDED,
    Aligned,
    Examined,
    Floor,
    Outputs,
    Shared,
    Shift,
    Validity,
    Weakest,
    bare,
)
from lensaudit.scores.alignment import relative_distance, times_apart
from lensaudit.scores.depth import DepthScore, depth_score, mean_if_any
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_ratio, typical_size
from lensaudit.verdict.thresholds import ALIGN_FROM, STRONG_LAYER, VALIDITY_NEEDED_FROM

ALIKE = 1e-4
"""Mean erasures that differ by less are alike: which is less is up to the processor's kernels."""


def uncompared(session: Session) -> str | None:
    """Why controls compare no streams: what is patched in is none; None where it is."""
    settings = session.settings
    if settings.part != "resid":
        return f"component {settings.component}: streams are compared for resid only"
    if settings.last_layer != "resid_post":
        return "--last-layer reference: the last stream is not a residual stream"
    return None


def controls_of(session: Session) -> Neutral:
    """The neutral rows that controls are measured on, where the retain models allow a floor.

    Raises:
        InputError: a file or a model that was named does not do.
    """
    neutral = neutral_beside(session.settings, str(session.settings.data), session.examples)
    for name, one in session.sources.items():
        if neutral.why and (misfit := session.misfit(one)) is not None:
            raise InputError(
                f"{name}: {misfit}, and there is nothing to fit a map on: {neutral.why}"
            )
    settings, apart = session.settings, uncompared(session)
    if session.retains and (apart or settings.score != "uds"):
        why = apart or f"--score {settings.score}: their depth is no part of it"
        session.notice(f"--retain: further models are left out ({why})")
    # a map that is asked for by name, or without which there is nothing, is refused before any work
    needed = [
        one
        for one in session.sources.values()
        if settings.align not in ("auto", "none") or session.misfit(one) is not None
    ]
    if needed and settings.score == "uds" and apart is None:
        rows = session.encode(neutral.fit)
        for one in needed:
            rows_for_map(session, rows, one, one.d_model)
    return neutral


def rows_for_map(
    session: Session, rows: Sequence[Encoded], source: Checkpoint, width: int
) -> tuple[tuple[Encoded, ...], int]:
    """Rows that a map of a source is fitted on, and how many tokens at most.

    Raises:
        InputError: they do not suffice.
    """
    d_full = session.full.d_model
    n_tokens = session.settings.align_tokens or ALIGN_TOKENS_PER_DIM * max(width, d_full)
    match = session.token_match(source, rows)
    return rows_to_fit(rows, n_tokens, max(source.d_model, d_full), match.places)[0], n_tokens


def unexamined(why: str) -> Examined:
    """A source whose score is not of a kind that these controls are about."""
    return Examined(validity=Validity(why=why), aligned=unaligned(why))


def unaligned(why: str) -> Aligned:
    """A source that no map was fitted for."""
    return Aligned(why=why, shared=Shared(why=why), many=Shared(why=why))


SAYS_WITHIN_NATS = 0.5
"""A row counts for validity where the source's span log-prob is this near to `full`'s."""
MapName = Literal["map", "shuffled", "shared", "many"]
"""What carries a stream: its map, that of shuffled pairs, the map without the direction that other
authors share, or without as many as there are authors."""
Drops = Float[Tensor, "batch layer"]


def examined(
    session: Session, outcomes: Sequence[Outcome], neutral: Neutral
) -> dict[str, Examined]:
    """The controls of every source.

    Args:
        session: of the run.
        outcomes: what it found.
        neutral: rows that they are measured on.

    Raises:
        VerificationError | WorkError: as of any patched score.
        InputError: alignment was asked for by name and the rows do not suffice.
    """
    examination = _Examination(session, outcomes[0].s1, neutral)
    if examination.further:
        examination.read_further()
    if examination.unfit is None:
        examination.compute(outcomes)
    return {one.source: examination.of(one) for one in outcomes}


def outputs_of(session: Session, source: Checkpoint) -> Outputs | None:
    """From the models' own logits on the forget set; None where the source reads none of it."""
    rows, own = session.encoded, session.token_match(source, session.encoded).rows
    if not own:
        return None
    never = {"retain": session.retain} if session.never else {}
    models = {"full": session.full, **never, "source": source}
    said = {
        role: float(session.answers(one, own if one is source else rows)[1].double().mean())
        for role, one in models.items()
    }
    groups = [e.group for e in own]
    return Outputs(**said, n=len(own), n_groups=len(set(groups)), per_author=typical_size(groups))


class _Examination:
    """What the sources of a session share: rows, scales, the anchors' own numbers.

    All that runs is run first: each model once, then all sources in one sweep for each set of
    rows. What follows reads scores that are kept. Maps, and the scale of an aligned depth, are by
    the width of the source: by it their class and the number of their tokens are decided.
    """

    def __init__(self, session: Session, s1: Drops, neutral: Neutral):
        self.session, self.s1 = session, s1
        self.questions = questions_of(session)
        self.settings, tau = session.settings, session.settings.tau
        self.rows, self.ordinary, self.to_fit = map(
            session.encode, (neutral.validity, neutral.ordinary, neutral.fit)
        )
        apart = uncompared(session)
        self.further = {} if apart else {one.weights: one for one in session.retains.values()}
        self.retains = {session.retain.weights: session.retain} | self.further
        weights = s1.where(s1 > tau, 0.0).double().mean(0) * (s1.double().mean(0) > tau)
        self.columns = weights.nonzero().flatten().tolist()
        self.layers = [self.settings.at_layers[at] for at in self.columns]
        self.weights = weights[self.columns]
        # streams are compared, of layers that encode the forget set
        encoded_nowhere = f"the mean S1 of all rows exceeds tau = {tau:g} at no layer"
        no_layer = None if self.layers else encoded_nowhere
        self.unfit = apart or no_layer or neutral.why or None
        # by weights: rows that are cached, whole sets, so that one cache of `full` serves every
        # source; and those of them that `full` and the source both still say
        self.cached: dict[str, tuple[Encoded, ...]] = {}
        self.readable: dict[str, tuple[Encoded, ...]] = {}
        # by source: why no map of it is wanted, or fitted; by weights and width, the maps
        self.unmapped: dict[str, str] = {}
        self.maps: dict[tuple[str, int], Alignment] = {}
        self.far: dict[tuple[str, int], Drops] = {}

    def of(self, one: Outcome) -> Examined:
        """Every control of one source."""
        source = self.session.sources[one.source]
        told = self.questions and self.questions.told(source)
        outputs, ci90 = outputs_of(self.session, source), one.estimate.one_sided
        if self.unfit is not None or (one.uds is None and self.session.misfit(source) is None):
            return replace(
                unexamined(self.unfit or "no example could be scored"),
                outputs=outputs,
                told=told,
                floor=self._floor(None),
                ci90=ci90,
            )
        why = self.unmapped.get(one.source)
        return Examined(
            validity=self._validity(source, one.s2),
            aligned=self._aligned(source, one.depth.uds) if why is None else unaligned(why),
            outputs=outputs,
            told=told,
            floor=self._floor(source.d_model if why is None else None),
            ci90=ci90,
            weakest=weakest_of(one.s1, one.depth, one.encoded, self.settings.at_layers),
        )

    def read_further(self) -> None:
        """The further never-trained models as they are: neither rows nor maps are needed."""
        rows = self.session.encoded
        streams = {w: self.session.streams(one, rows) for w, one in self.further.items()}
        self.session.fill(rows, streams, self.settings.at_layers)

    def compute(self, outcomes: Sequence[Outcome]) -> None:
        """Every forward pass and every sweep that the other numbers need."""
        session, carried = self.session, list[Checkpoint]()
        for rows in (self.rows, self.ordinary):
            self._alike(session.full, rows)
        for one in outcomes:
            source = session.sources[one.source]
            outputs_of(session, source)
            self._choose_rows(source)
            if self._enough(source):
                session.streams(source, self.cached[source.weights])
            if (why := self._unmapped(one, source)) is None:
                carried.append(source)
            else:
                self.unmapped[one.source] = why
        for cached, sources in self._by_rows(session.sources.values()):
            fitting = [one for one in sources if session.misfit(one) is None]
            streams = {one.weights: session.streams(one, cached) for one in fitting}
            only = {one.weights: _idx(self.readable[one.weights]) for one in sources}
            # and `full` with another row's stream
            others = self._other_rows(cached)
            streams[others.key] = others.of(session.streams(session.full, cached))
            only[others.key] = set().union(*only.values())
            session.fill(cached, streams, self.layers, only=only)
        for width in dict.fromkeys(one.d_model for one in carried):
            sources = {one.weights: one for one in carried if one.d_model == width}
            self._fill_aligned(width, list(sources.values()))

    def _enough(self, source: Checkpoint) -> bool:
        """Whether there are enough rows to measure a drop on."""
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
        own = own * torch.tensor([one.n_span / e.n_span for e, one in pairs], dtype=torch.float32)
        near = ((own - theirs).abs() <= SAYS_WITHIN_NATS).tolist()
        return tuple(e for (e, _), yes in zip(pairs, near, strict=True) if yes)

    def _unmapped(self, outcome: Outcome, source: Checkpoint) -> str | None:
        """Why no map of a source is wanted, or can be fitted; None where it is fitted now."""
        align, fits = self.settings.align, self.session.misfit(source) is None
        if align == "none":
            return "not asked for (--align none)"
        if align == "auto" and fits and (outcome.uds is None or outcome.uds < ALIGN_FROM):
            return f"{NOT_NEEDED}: UDS is below {ALIGN_FROM:g}"
        if not self._matched(source):
            reasons = self.session.token_match(source, self.session.encoded).unscored
            return next(iter(reasons.values()))
        try:
            self._fit_maps(source)
        except InputError as error:
            # of a source that does not fit there would be nothing at all
            if align != "auto" or not fits:
                raise
            return str(error)
        return None

    def _fit_maps(self, source: Checkpoint) -> None:
        """The map of a source, and those of `full` and the retain models at its width."""
        width = source.d_model
        for one in (source, self.session.full, *self.retains.values()):
            if (one.weights, width) not in self.maps:
                self.maps[one.weights, width] = self._alignment(one, width)

    def _alignment(self, source: Checkpoint, width: int) -> Alignment:
        session, full, kind = self.session, self.session.full, self.settings.align
        if kind in ("auto", "none"):
            kind = "procrustes" if width == full.d_model else "affine"
        rows, n_tokens = rows_for_map(session, self.to_fit, source, width)
        match = session.token_match(source, rows)
        key = alignment_key(
            session.fingerprint(source, match.rows, "all"),
            session.fingerprint(full, rows, "all"),
            kind,
            n_tokens,
        )
        if (known := known_alignment(session.root, kind, key)) is not None:
            return known
        with session.passing(source, match.rows) as streams:
            return fit_alignment(
                *(streams, session.cache(full, rows, "all"), rows, kind),
                n_tokens=n_tokens,
                memory_bytes=self.settings.memory_bytes,
                root=session.root,
                places=match.places,
            )

    def _by_rows(
        self, sources: Iterable[Checkpoint]
    ) -> list[tuple[tuple[Encoded, ...], list[Checkpoint]]]:
        """Sources with enough rows to be read on, each once, by the set that is cached."""
        each = {one.weights: one for one in sources if self._enough(one)}
        return [*grouped((self.cached[weights], one) for weights, one in each.items()).items()]

    def _fill_aligned(self, width: int, sources: Sequence[Checkpoint]) -> None:
        """The models that never saw the facts, then sources and `full`, through their maps.

        Sources are read through shuffled maps and without shared directions, too. Only the cells
        that the anchors' scale counts are patched.
        """
        session, rows, layers = self.session, self.session.encoded, self.settings.at_layers

        def carried(
            ones: Iterable[Checkpoint], name: MapName = "map", cached: tuple[Encoded, ...] = rows
        ) -> dict[str, CachedSource]:
            return {self._key(o, width, name): self._carried(o, width, name, cached) for o in ones}

        session.fill(rows, carried(self.retains.values()), layers)
        counted = {
            e.idx: [at for at, yes in zip(layers, row, strict=True) if yes]
            for e, row in zip(rows, (self._scale(width) > self.settings.tau).tolist(), strict=True)
        }
        streams = carried([session.full])
        only = dict.fromkeys(streams, _idx(rows))
        for one in sources:
            matched = self._matched(one)
            names: tuple[MapName, ...] = ("map", "shuffled", "shared", "many")
            for name in names if too_few_groups(matched) is None else names[:2]:
                found = carried([one], name)
                streams |= found
                only |= dict.fromkeys(found, _idx(matched))
        session.fill(rows, streams, lambda e, _: counted[e.idx], only=only)
        for cached, readers in self._by_rows(sources):
            only = {self._key(one, width): _idx(self.readable[one.weights]) for one in readers}
            session.fill(cached, carried(readers, cached=cached), self.layers, only=only)

    def _matched(self, source: Checkpoint) -> tuple[Encoded, ...]:
        """The facts at whose tokens the source can be read at all."""
        match = self.session.token_match(source, self.session.encoded)
        return tuple(e for e, _ in match.scored(self.session.encoded))

    def _key(self, source: Checkpoint, width: int, name: MapName = "map") -> str:
        key = self.maps[source.weights, width].key
        if name in ("shared", "many"):
            key = self._removal(source, name).key(key, self._matched(source))
        return f"{source.weights}+{name}-{key}"

    def _carried(
        self, source: Checkpoint, width: int, name: MapName, cached: tuple[Encoded, ...]
    ) -> CachedSource:
        """The source with its stream carried by a map; without shared directions, if so named."""
        session, alignment = self.session, self.maps[source.weights, width]
        maps = alignment.shuffled if name == "shuffled" else alignment.maps
        moved = mapped(
            session.streams(source, cached),
            maps,
            alignment.layer_of,
            session.token_match(source, cached).places,
        )
        if name in ("map", "shuffled"):
            return moved
        return without_shared(
            moved,
            session.streams(session.full, cached),
            self._matched(source),
            self.settings.at_layers,
            self.settings.memory_bytes,
            self._removal(source, name),
        )

    def _removal(self, source: Checkpoint, name: MapName) -> Removal:
        """Directions that are taken out of a source, and from which facts they are learnt."""
        rows = self._matched(source)
        if name == "shared":
            return one_direction(rows)
        return one_a_group(rows, self.session.full.d_model)

    def _deltas(self, source: Checkpoint, width: int, name: MapName = "map") -> Drops:
        return self.session.read(
            self._key(source, width, name), self.session.encoded, self.settings.at_layers
        )

    def _scale(self, width: int) -> Drops:
        """S1 of the aligned depth: the mean over models that never saw the facts."""
        return torch.stack([self._deltas(one, width) for one in self.retains.values()]).mean(0)

    def _depth(self, s1: Drops, s2: Drops) -> DepthScore:
        return depth_score(s1, s2, tau=self.settings.tau)

    def _validity(self, source: Checkpoint, s2: Drops) -> Validity:
        n, enough = len(self.readable[source.weights]), self._enough(source)
        few = (
            f"{n} rows that full and the source both say, wanted {FEWEST_VALIDITY_ROWS}; "
            "give more with --validity-data"
        )
        if (misfit := self.session.misfit(source)) is not None:
            return Validity(n=n, why=misfit if enough else few)
        # mean over the KE cells of the forget set, weighted by the layers' mean S1
        ke = (self.s1 > self.settings.tau)[:, self.columns]
        cells = self.weights.expand_as(ke).where(ke, 0.0)
        f, own = (
            float((cells * one[:, self.columns].double().where(ke, 0.0)).sum() / cells.sum())
            for one in (s2, self.s1)
        )
        needed = f >= VALIDITY_NEEDED_FROM * own
        if not enough:
            return Validity(f=f, n=n, needed=needed, why=few)
        d, share, limits = self._drop(source.weights, source)
        return Validity(d / f if needed else None, d, f, share, n, limits.ends, needed, limits.why)

    def _drop(self, key: str, source: Checkpoint) -> tuple[float, float | None, Estimate]:
        """Mean over rows and KE layers, and in units of the drop of another row's stream.

        There is no such unit where another row's stream takes nothing away, as of equal rows.
        """
        readable, cached = self.readable[source.weights], self.cached[source.weights]
        own, worst = (
            (self.session.read(one, readable, self.layers).double() * self.weights).sum(1)
            / self.weights.sum()
            for one in (key, self._other_rows(cached).key)
        )
        limits = clustered_ratio(own.numpy(), worst.numpy(), [e.group for e in readable])
        unit = float(worst.mean())
        return float(own.mean()), float(own.mean()) / unit if unit > 0 else None, limits

    def _other_rows(self, cached: Sequence[Encoded]) -> Others:
        """What patching does when nothing fits."""
        return next_rows(self.session.full, cached, whole=self.settings.scope == "prefix")

    def _aligned(self, source: Checkpoint, plain: Float[Tensor, " batch"]) -> Aligned:
        width, session, layers = source.d_model, self.session, self.settings.at_layers
        rows, alignment, s1 = session.encoded, self.maps[source.weights, width], self._scale(width)
        depth = self._depth(s1, self._deltas(source, width))
        weights, r2 = s1.clamp(min=0).mean(0), s1.new_tensor(alignment.r2)[list(layers)]
        known = list(zip(rows, depth.uds.tolist(), strict=True))
        shared, many = (
            self._without(source, width, name, s1, depth) for name in ("shared", "many")
        )
        misfit, no_ke = session.misfit(source) is not None, NO_KE.format(tau=self.settings.tau)
        apart = session.token_match(source, rows).unscored
        lost = {e.idx: apart.get(e.idx, no_ke) for e, value in known if value != value}
        return Aligned(
            kind=alignment.kind,
            uds=bare(found := measured(depth.uds, rows)),
            why=found and found.why,
            per_example={e.idx: value for e, value in known if value == value},
            gap=_paired(plain - depth.uds, rows),
            r2=_mean((r2 * weights).sum() / weights.sum()),
            shuffled=_mean(self._depth(s1, self._deltas(source, width, "shuffled")).uds),
            d_share=self._drop(self._key(source, width), source)[1]
            if self._enough(source)
            else None,
            full=_mean(self._depth(s1, self._deltas(session.full, width)).uds),
            weakest=weakest_of(s1, depth, rows, layers),
            shared=shared,
            many=many,
            shift=self._shift(source, width),
            unscored=dict(sorted(lost.items())) if misfit else {},
            experimental=misfit,
        )

    def _without(
        self, source: Checkpoint, width: int, name: MapName, s1: Drops, depth: DepthScore
    ) -> Shared:
        """The aligned depth without directions that facts share, beside that with them."""
        rows = self._matched(source)
        if (why := too_few_groups(rows)) is not None:
            return Shared(why=why)
        encoded, without = self.session.encoded, self._depth(s1, self._deltas(source, width, name))
        return Shared(
            n=self._removal(source, name).n,
            uds=bare(found := measured(without.uds, encoded)),
            why=found and found.why,
            drop=_paired(depth.uds - without.uds, encoded),
            weakest=weakest_of(s1, without, encoded, self.settings.at_layers),
        )

    def _shift(self, source: Checkpoint, width: int) -> Shift | None:
        """How far its aligned stream lies from `full`'s, as those that never knew lie."""
        times = times_apart(
            self._far(source, width),
            torch.stack([self._far(one, width) for one in self.retains.values()]).mean(0),
        )
        if not bool(times.isfinite().all()):
            return None
        at = int((times > times.max() - ALIKE).nonzero()[0])
        return Shift(self.settings.at_layers[at], float(times.max()), tuple(times.tolist()))

    def _far(self, model: Checkpoint, width: int) -> Float[Tensor, " layer"]:
        """Mean over all positions of the spans."""
        if (known := self.far.get((model.weights, width))) is not None:
            return known
        session, layers = self.session, self.settings.at_layers
        own = self._carried(model, width, "map", session.encoded)
        full = session.streams(session.full, session.encoded)
        found = [relative_distance(*at_span(own, full, e, layers)) for e in self._matched(model)]
        self.far[model.weights, width] = mean = torch.cat(found, dim=1).mean(1)
        return mean

    def _floor(self, width: int | None) -> Floor | None:
        """Plain depth of further retain models; through maps, of each on the others' scale."""
        if not self.further:
            return None
        rows, layers = self.session.encoded, self.settings.at_layers
        plain = (
            _mean(self._depth(self.s1, self.session.read(weights, rows, layers)).uds)
            for weights in self.further
        )
        uds, known = tuple(one for one in plain if one is not None), self._known(width)
        if not (uds or known):
            return None
        low, high = min(known, default=None), max(known, default=None)
        return Floor(low, high, len(self.retains), uds, tuple(known[1:]))

    def _known(self, width: int | None) -> list[float]:
        """Aligned depth of each retain model; none where no map was fitted."""
        if width is None:
            return []
        s1 = {weights: self._deltas(one, width) for weights, one in self.retains.items()}
        scales = {
            weights: torch.stack([other for w, other in s1.items() if w != weights]).mean(0)
            for weights in s1
        }
        known = [float(self._depth(scales[w], own).uds.nanmean()) for w, own in s1.items()]
        return known if all(map(math.isfinite, known)) else []


def measured(
    values: Float[Tensor, " batch"],
    rows: Sequence[Encoded],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Estimate | None:
    """Mean over the scored examples with its limits by authors; None when there is none."""
    found = mean_of(values, rows, bounds)
    return None if found.value is None else found


def weakest_of(
    s1: Drops, depth: DepthScore, rows: Sequence[Encoded], layers: Sequence[int]
) -> Weakest | None:
    """Of the layers where `full` has most to lose, the first of those that are erased least.

    Args:
        s1: the scale, nats per token.
        depth: of the source on it.
        rows: of which it is.
        layers: what the columns stand for.
    """
    strength = s1.double().where(depth.ke, 0.0).mean(0)
    erasures = (measured(one, rows) for one in depth.erasure.T)
    found = [
        Weakest(layer, replace(erasure, n=None, why=None))
        for at, (layer, erasure) in enumerate(zip(layers, erasures, strict=True))
        if erasure is not None and strength[at] >= STRONG_LAYER * strength.max()
    ]
    least = min((one.erasure.point for one in found), default=0.0)
    return next((one for one in found if one.erasure.point < least + ALIKE), None)


def _paired(gaps: Float[Tensor, " batch"], rows: Sequence[Encoded]) -> Estimate | None:
    """Mean difference of two depths, with its 95 % interval."""
    found = measured(gaps, rows, bounds=(-1.0, 1.0))
    return found and Estimate.within(found.value, found.ends)


def _idx(rows: Sequence[Encoded]) -> set[int]:
    return {e.idx for e in rows}


def _mean(scores: Float[Tensor, "*rows"]) -> float | None:
    return mean_if_any(scores[scores.isfinite()].double())
