"""Does a high score say that the facts are gone, or that `full` cannot read this model?

Three controls stand beside UDS: validity, the drop on facts that the source still holds; the
aligned depth, after a linear map fitted on neutral text; the floor, the depth of other models that
never saw the facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.neutral import FEWEST_VALIDITY_ROWS, Neutral, neutral_beside
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.models.checkpoint import Checkpoint, check_same_shape, open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.alignment import (
    ALIGN_TOKENS_PER_DIM,
    Alignment,
    Directions,
    Given,
    MappedSource,
    OtherRowSource,
    WithoutShared,
    alignment_key,
    fit_alignment,
    known_alignment,
    next_rows,
    rows_to_fit,
    shared_key,
    too_few_groups,
)
from lensaudit.patching.outcome import NO_KE
from lensaudit.patching.score_cache import example_hash
from lensaudit.patching.scoring import Deltas, Scored, run, scored
from lensaudit.patching.session import Session
from lensaudit.patching.sources import SourceStreams
from lensaudit.results.patch_runs import (
    NOT_NEEDED,
    Aligned,
    Floor,
    Outputs,
    Shared,
    Validity,
    Weakest,
)
from lensaudit.scores.alignment import MapClass
from lensaudit.scores.depth import DepthScore, depth_score
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean, clustered_ratio
from lensaudit.settings import AlignName, several
from lensaudit.verdict.thresholds import (
    ALIGN_FROM,
    STRONG_LAYER,
    VALIDITY_NEEDED_FROM,
)


@dataclass(frozen=True)
class Controls:
    """How the controls are measured, and on what."""

    neutral: Neutral | None
    """None: no rows are known, and `why` says so."""
    why: str = ""
    align: AlignName = "auto"
    align_tokens: int | None = None
    """Neutral tokens for a map; None: `ALIGN_TOKENS_PER_DIM` per dimension."""
    retains: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Further models that never saw the facts."""

    def planned(self, d_model: int) -> str:
        """What would be measured, in a line of a plan."""
        if self.neutral is None:
            return f"controls: none ({self.why})"
        validity = f"controls: validity on up to {len(self.neutral.validity)} rows"
        if self.align == "none":
            return f"{validity}; no maps"
        auto = f"maps where UDS is {ALIGN_FROM:g} or more"
        maps = auto if self.align == "auto" else f"{self.align} maps"
        n_tokens = self.align_tokens or ALIGN_TOKENS_PER_DIM * d_model
        fitted = f"fitted on up to {n_tokens} of {len(self.neutral.fit)} rows' tokens"
        return f"{validity}; {maps}, {fitted}"


@dataclass(frozen=True)
class Examined:
    """The controls of one source."""

    validity: Validity
    aligned: Aligned
    outputs: Outputs | None
    floor: Floor | None
    ci90: tuple[float, float] | None = None
    """One-sided 95 % limits of UDS."""
    weakest: Weakest | None = None
    """Of the stream as it is."""

    def document(self) -> dict[str, Any]:
        """The part of summary.json."""
        return {
            "ci90": None if self.ci90 is None else list(self.ci90),
            "weakest": None if self.weakest is None else self.weakest.document(),
            "validity": asdict(self.validity),
            "aligned": self.aligned.document(),
            "floor": None if self.floor is None else asdict(self.floor),
            "outputs": None if self.outputs is None else asdict(self.outputs),
        }

    def beside(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of results.jsonl with each example's aligned score; None where it has none."""
        return [{**row, "uds_aligned": self.aligned.per_example.get(row["idx"])} for row in rows]


def controls_of(session: Session) -> Controls:
    """What stands beside UDS: neutral rows, the class of maps, and further retain models.

    Raises:
        InputError: a file or a model that was named does not do.
    """
    settings = session.settings
    _, *more = several(settings.retain) or ("",)
    registry = load_registry(settings.registry)
    retains = {name: open_checkpoint(resolve(name, registry)) for name in more}
    check_same_shape(session.full, *retains.values(), notice=session.notice)
    anchors = [(one.spec.name, one) for one in (session.full, session.retain)]
    _check_distinct([*anchors, *retains.items()])
    neutral, why = neutral_beside(settings, str(settings.data), session.examples)
    for name, one in session.sources.items():
        if neutral is None and (misfit := session.misfit(one)) is not None:
            raise InputError(f"{name}: {misfit}, and there is nothing to fit a map on: {why}")
    return Controls(
        neutral,
        why,
        align=settings.align,
        align_tokens=settings.align_tokens,
        retains=retains,
    )


def _check_distinct(models: Sequence[tuple[str, Checkpoint]]) -> None:
    """A second copy of a never-trained model would make a floor without width."""
    known: dict[str, str] = {}
    for name, one in models:
        if one.weights in known:
            raise InputError(
                f"--retain {name}: has the same weights as {known[one.weights]}; a floor needs "
                "models that were made independently"
            )
        known[one.weights] = name


def unexamined(why: str) -> Examined:
    """A source whose score is not of a kind that these controls are about."""
    return Examined(Validity(why=why), Aligned(why=why), None, None)


_OF_A_SOURCE = ("map", "shuffled", "shared")
"""Books of the forget rows that a source has for each fit."""
SAYS_WITHIN_NATS = 0.5
"""A row counts for validity where the source's span log-prob is this near to `full`'s."""


def score_examined(session: Session, controls: Controls) -> tuple[Scored, dict[str, Examined]]:
    """UDS of every source with the controls that say what it means, by source."""
    found = run(session)
    return scored(session, found), examined(session, found, controls)


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
    controlled = _Controlled(session, found, controls)
    if controlled.unfit is None:
        controlled.compute()
    return {name: controlled.of(name, source) for name, source in session.sources.items()}


@dataclass(frozen=True)
class _Held:
    """The rows on which one source is read."""

    cached: tuple[Encoded, ...]
    """Whole sets, so that one cache of `full` serves every source."""
    readable: tuple[Encoded, ...]
    """Those that `full` and the source both still say."""

    @property
    def enough(self) -> bool:
        """Are they as many as a drop is measured on?"""
        return len(self.readable) >= FEWEST_VALIDITY_ROWS


@dataclass(frozen=True)
class _Fit:
    """How the maps of a source are fitted; those of the anchors, on whose scale it is, alike."""

    kind: MapClass
    n_tokens: int


@dataclass
class _Controlled:
    """What the sources of a session share: rows, scales, the anchors' own numbers.

    All that runs is run first: each model once, then all sources in one sweep for each set of
    rows. What follows reads scores that are kept.
    """

    session: Session
    found: Deltas
    controls: Controls
    held: dict[str, _Held] = field(default_factory=dict)
    """By weights."""
    fits: dict[str, _Fit | str] = field(default_factory=dict)
    """By source; or why none is wanted."""
    maps: dict[tuple[str, _Fit], Alignment] = field(default_factory=dict)
    """By weights."""

    def __post_init__(self) -> None:
        neutral, encode = self.controls.neutral, self.session.encode
        self.rows = encode(neutral.validity if neutral else ())
        self.ordinary = encode(neutral.ordinary if neutral else ())
        self.to_fit = encode(neutral.fit if neutral else ())
        self.groups = [e.group for e in self.session.encoded]
        self.retains = {self.session.retain.weights: self.session.retain}
        self.retains |= {one.weights: one for one in self.controls.retains.values()}
        s1, layers, tau = self.found.s1, self.session.options.layers, self.session.options.tau
        counted = s1.where(s1 > tau, 0.0).double()
        weights = counted.mean(0) * (s1.double().mean(0) > tau)
        self.columns = weights.nonzero().flatten().tolist()
        self.layers = [layers[at] for at in self.columns]
        self.weights = weights[self.columns]
        self.unfit = self._unfit()

    def depth(
        self, s2: Float[Tensor, "batch layer"], s1: Float[Tensor, "batch layer"] | None = None
    ) -> DepthScore:
        """On a scale; None: that of the streams as they are."""
        return depth_score(self.found.s1 if s1 is None else s1, s2, tau=self.session.options.tau)

    def of(self, name: str, source: Checkpoint) -> Examined:
        """Every control of one source."""
        depth = self.depth(self.found.s2[name])
        uds, outputs = measured(depth.uds, self.groups), self._outputs(source)
        ci90 = None if uds is None else uds.one_sided
        if self.unfit is not None or (uds is None and self.session.misfit(source) is None):
            why = self.unfit or "no example could be scored"
            return Examined(Validity(why=why), Aligned(why=why), outputs, None, ci90)
        return Examined(
            self._validity(source, self.found.s2[name]),
            self._aligned(source, self.fits[name], depth.uds),
            outputs,
            self._floor(self.fits[name]),
            ci90,
            self._weakest(self.found.s1, depth),
        )

    def _weakest(self, s1: Float[Tensor, "batch layer"], depth: DepthScore) -> Weakest | None:
        return weakest_of(s1, depth, self.groups, self.session.options.layers)

    def compute(self) -> None:
        """Every forward pass and every sweep that the numbers need."""
        for rows in (self.rows, self.ordinary):
            self._alike(self.session.full, rows)
        for name, source in self.session.sources.items():
            self._outputs(source)
            self.held[source.weights] = held = self._rows_of(source)
            if held.enough:
                self.session.streams(source, held.cached)
            self.fits[name] = self._fitted(source, self._fit(name, source))
        self._fill_validity()
        fits = dict.fromkeys(one for one in self.fits.values() if isinstance(one, _Fit))
        if fits:  # the further never-trained models as they are
            rows = self.session.encoded
            further = {w: self.session.streams(one, rows) for w, one in self._further().items()}
            self.session.fill(rows, further, self.session.options.layers)
        for fit in fits:
            self._fill_scale(fit)
            self._fill_aligned(fit)

    def _fitted(self, source: Checkpoint, fit: _Fit | str) -> _Fit | str:
        """With the maps of a source and of the anchors, as soon as they are wanted."""
        if isinstance(fit, str):
            return fit
        try:
            for one in (source, self.session.full, *self.retains.values()):
                if (one.weights, fit) not in self.maps:
                    self.maps[one.weights, fit] = self._alignment(one, fit)
        except InputError as error:
            # of a source that does not fit there would be nothing at all
            if self.controls.align != "auto" or self.session.misfit(source) is not None:
                raise
            return str(error)
        return fit

    def _fill_validity(self) -> None:
        """Every source, and `full` with another row's stream, on the rows they are read on."""
        for cached, sources in self._by_rows().items():
            streams: dict[str, SourceStreams] = {
                one.weights: self.session.streams(one, cached)
                for one in sources
                if self.session.misfit(one) is None
            }
            only = {one.weights: _idx(self.held[one.weights].readable) for one in sources}
            key, rows = self._other_row(cached)
            base = self.session.streams(self.session.full, cached)
            streams[key] = OtherRowSource(base.activations, base.last_layer, rows=rows)
            only[key] = set().union(*only.values())
            self.session.fill(cached, streams, self.layers, only=only)

    def _fill_scale(self, fit: _Fit) -> None:
        """The models that never saw the facts, through their maps."""
        streams: dict[str, SourceStreams] = {}
        for one in self.retains.values():
            streams |= self._mapped(one, fit, "map", self.session.encoded)
        self.session.fill(self.session.encoded, streams, self.session.options.layers)

    def _fill_aligned(self, fit: _Fit) -> None:
        """Sources and `full` itself through their maps, shuffled ones beside them.

        Only the cells that the anchors' scale counts are patched.
        """
        session, rows = self.session, self.session.encoded
        named = {name for name, found in self.fits.items() if found == fit}
        sources = {one.weights: one for n, one in session.sources.items() if n in named}
        streams: dict[str, SourceStreams] = {}
        for one in ({session.full.weights: session.full} | sources).values():
            streams |= self._mapped(one, fit, "map", rows)
        for one in sources.values():
            streams |= self._mapped(one, fit, "shuffled", rows)
            streams |= self._without_shared(one, fit)
        only = {key: _idx(rows) for key in streams}
        for one in sources.values():
            keys = {self._key(one, fit, name) for name in _OF_A_SOURCE}
            only |= dict.fromkeys(keys & streams.keys(), _idx(self._carried(one)))
        session.fill(rows, streams, self._counted(fit), only=only)
        for cached, readers in self._by_rows().items():
            streams, only = {}, {}
            for one in readers:
                if one.weights in sources:
                    moved = self._mapped(one, fit, "map", cached)
                    streams |= moved
                    only |= dict.fromkeys(moved, _idx(self.held[one.weights].readable))
            if streams:
                session.fill(cached, streams, self.layers, only=only)

    def _scale(self, fit: _Fit) -> Float[Tensor, "batch layer"]:
        """S1 of the aligned depth: the mean over models that never saw the facts."""
        return torch.stack([self._deltas(one, fit) for one in self.retains.values()]).mean(0)

    def _counted(self, fit: _Fit) -> dict[int, list[int]]:
        """Idx -> the layers that encode the fact on the aligned scale."""
        layers, ke = self.session.options.layers, self._scale(fit) > self.session.options.tau
        rows = zip(self.session.encoded, ke.tolist(), strict=True)
        return {e.idx: [at for at, yes in zip(layers, row, strict=True) if yes] for e, row in rows}

    def _by_rows(self) -> dict[tuple[Encoded, ...], list[Checkpoint]]:
        """Sources with enough rows to be read on, each once, by the set that is cached."""
        found: dict[tuple[Encoded, ...], list[Checkpoint]] = {}
        for weights, one in {one.weights: one for one in self.session.sources.values()}.items():
            if self.held[weights].enough:
                found.setdefault(self.held[weights].cached, []).append(one)
        return found

    def _unfit(self) -> str | None:
        """Why nothing of this is measured."""
        options = self.session.options
        if options.component != "resid":
            return f"component {options.component_name}: streams are compared for resid only"
        if options.last_layer != "resid_post":
            return "--last-layer reference: the last stream is not a residual stream"
        if not self.layers:
            return "no layer encodes the forget set"
        return None if self.controls.neutral is not None else self.controls.why

    def _outputs(self, source: Checkpoint) -> Outputs:
        """From the models' own logits on the forget set."""
        session, rows = self.session, self.session.encoded
        own = session.token_match(source, rows).rows

        def exact(checkpoint: Checkpoint, rows: Sequence[Encoded]) -> float:
            return float(session.answers(checkpoint, rows).exact.double().mean())

        full, retain = exact(session.full, rows), exact(session.retain, rows)
        return Outputs(source=exact(source, own), full=full, retain=retain, n=len(own))

    def _rows_of(self, source: Checkpoint) -> _Held:
        """Rows that `full` and the source both say; with ordinary ones where facts do not do."""
        held = _Held(self.rows, self._alike(source, self.rows))
        more = () if held.enough else self._alike(source, self.ordinary)
        return _Held((*self.rows, *self.ordinary), (*held.readable, *more)) if more else held

    def _alike(self, source: Checkpoint, rows: Sequence[Encoded]) -> tuple[Encoded, ...]:
        session = self.session
        match = session.token_match(source, rows)
        pairs = match.scored(rows)
        if not pairs:
            return ()
        if match.places is None and rows == self.rows and len(rows) >= FEWEST_VALIDITY_ROWS:
            session.streams(source, rows)  # wanted anyhow: what it says is read out of it
        theirs = session.answers(session.full, [e for e, _ in pairs]).logprob
        own = session.answers(source, [e for _, e in pairs]).logprob
        # the same words in other tokens: nats per token of full
        own = own * torch.tensor([one.n_span / e.n_span for e, one in pairs])
        near = (own - theirs).abs() <= SAYS_WITHIN_NATS
        return tuple(e for (e, _), yes in zip(pairs, near.tolist(), strict=True) if yes)

    def _validity(self, source: Checkpoint, s2: Float[Tensor, "batch layer"]) -> Validity:
        held = self.held[source.weights]
        n = len(held.readable)
        few = (
            f"{n} rows that full and the source both say, wanted {FEWEST_VALIDITY_ROWS}; "
            "give more with --validity-data"
        )
        if (misfit := self.session.misfit(source)) is not None:
            return Validity(n=n, why=misfit if held.enough else few)
        f, strength = self._on_forget(s2), self._on_forget(self.found.s1)
        needed = f >= VALIDITY_NEEDED_FROM * strength
        if not held.enough:
            return Validity(f=f, n=n, needed=needed, why=few)
        d, share, limits = self._drop(source.weights, held)
        return Validity(d / f if needed else None, d, f, share, n, limits.ends, needed, limits.why)

    def _drop(self, name: str, held: _Held) -> tuple[float, float, Estimate]:
        """Mean over rows and KE layers, and in units of the drop of another row's stream."""

        def drops(source: str) -> Float[Tensor, " batch"]:
            read = self.session.read(source, held.readable, self.layers).double()
            return (read * self.weights).sum(1) / self.weights.sum()

        own, worst = drops(name), drops(self._other_row(held.cached)[0])
        groups = [e.group for e in held.readable]
        limits = clustered_ratio(own.numpy(), worst.numpy(), groups)
        return float(own.mean()), float(own.mean() / worst.mean()), limits

    def _other_row(self, cached: Sequence[Encoded]) -> tuple[str, Given]:
        """What patching does when nothing fits: its key, and the row that each is given."""
        given = next_rows(cached, whole=self.session.options.scope == "prefix")
        return f"other-row-{digest([given, [example_hash(e) for e in cached]])}", given

    def _on_forget(self, values: Float[Tensor, "batch layer"]) -> float:
        """Mean over the KE cells of the forget set, weighted by the layers' mean S1."""
        ke = (self.found.s1 > self.session.options.tau)[:, self.columns]
        cells = self.weights.expand_as(ke).where(ke, 0.0)
        kept = values[:, self.columns].double().where(ke, 0.0)
        return float((cells * kept).sum() / cells.sum())

    def _aligned(
        self, source: Checkpoint, fit: _Fit | str, plain: Float[Tensor, " batch"]
    ) -> Aligned:
        if isinstance(fit, str):
            return Aligned(why=fit)
        held = self.held[source.weights]
        s1 = self._scale(fit)
        depth = self.depth(self._deltas(source, fit), s1)
        scores = depth.uds
        weights = s1.clamp(min=0).mean(0)
        r2 = torch.tensor(self.maps[source.weights, fit].r2)[list(self.session.options.layers)]
        known = zip(self.session.encoded, scores.tolist(), strict=True)
        return Aligned(
            kind=fit.kind,
            uds=measured(scores, self.groups),
            per_example={e.idx: value for e, value in known if value == value},
            gap=measured(plain - scores, self.groups, bounds=(-1.0, 1.0)),
            r2=_mean((r2 * weights).sum() / weights.sum()),
            shuffled=_mean(self.depth(self._deltas(source, fit, "shuffled"), s1).uds),
            d_share=self._drop(self._key(source, fit), held)[1] if held.enough else None,
            full=_mean(self.depth(self._deltas(self.session.full, fit), s1).uds),
            weakest=self._weakest(s1, depth),
            shared=self._shared(source, fit, s1, scores),
            unscored=self._unscored(source, scores),
            experimental=self.session.misfit(source) is not None,
        )

    def _shared(
        self,
        source: Checkpoint,
        fit: _Fit,
        s1: Float[Tensor, "batch layer"],
        scores: Float[Tensor, " batch"],
    ) -> Shared:
        """The depth without each layer's shared direction, on the scale of the aligned one."""
        if (why := too_few_groups(self._carried(source))) is not None:
            return Shared(why=why)
        depth = self.depth(self._deltas(source, fit, "shared"), s1)
        return Shared(
            uds=measured(depth.uds, self.groups),
            drop=measured(scores - depth.uds, self.groups, bounds=(-1.0, 1.0)),
            weakest=self._weakest(s1, depth),
        )

    def _carried(self, source: Checkpoint) -> tuple[Encoded, ...]:
        """The facts at whose tokens the source can be read at all."""
        rows = self.session.encoded
        return tuple(e for e, _ in self.session.token_match(source, rows).scored(rows))

    def _unscored(self, source: Checkpoint, scores: Float[Tensor, " batch"]) -> dict[int, str]:
        """Of a source of which only the aligned depth is known: why an example has none."""
        rows = self.session.encoded
        if self.session.misfit(source) is None:
            return {}
        apart = self.session.token_match(source, rows).unscored
        no_ke = NO_KE.format(tau=self.session.options.tau)
        lost = zip(rows, scores.isnan().tolist(), strict=True)
        return {e.idx: apart.get(e.idx, no_ke) for e, yes in lost if yes}

    def _fit(self, name: str, source: Checkpoint) -> _Fit | str:
        """How its maps are fitted, or why there are none."""
        asked, full = self.controls.align, self.session.full
        if asked == "none":
            return "not asked for (--align none)"
        uds = _mean(self.depth(self.found.s2[name]).uds)
        fits = self.session.misfit(source) is None
        if asked == "auto" and fits and (uds is None or uds < ALIGN_FROM):
            return f"{NOT_NEEDED}: UDS is below {ALIGN_FROM:g}"
        same = "procrustes" if source.d_model == full.d_model else "affine"
        n_tokens = ALIGN_TOKENS_PER_DIM * max(source.d_model, full.d_model)
        return _Fit(same if asked == "auto" else asked, self.controls.align_tokens or n_tokens)

    def _alignment(self, source: Checkpoint, fit: _Fit) -> Alignment:
        session, full = self.session, self.session.full
        places = session.token_match(source, self.to_fit).places
        rows = rows_to_fit(self.to_fit, fit.n_tokens, places)
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
        key = alignment_key(*prints, kind=fit.kind, n_tokens=fit.n_tokens)
        known = known_alignment(session.root, fit.kind, key)
        if known is not None:
            return known
        with session.passing(source, match.rows) as streams:
            return fit_alignment(
                streams,
                session.cache(full, rows, "all"),
                rows,
                fit.kind,
                n_tokens=fit.n_tokens,
                memory_bytes=session.options.memory_bytes,
                root=session.root,
                places=match.places,
            )

    def _key(self, source: Checkpoint, fit: _Fit, name: str = "map") -> str:
        key = self.maps[source.weights, fit].key
        if name == "shared":
            key = shared_key(key, self._carried(source))
        return f"{source.weights}+{name}-{key}"

    def _mapped(
        self, source: Checkpoint, fit: _Fit, name: str, cached: Sequence[Encoded]
    ) -> dict[str, MappedSource]:
        """The source with its stream carried by its map, or by the shuffled one."""
        alignment = self.maps[source.weights, fit]
        base = self.session.streams(source, cached)
        moved = MappedSource(
            base.activations,
            base.last_layer,
            maps=alignment.maps if name == "map" else alignment.shuffled,
            layer_of=alignment.layer_of,
            places=self.session.token_match(source, cached).places,
        )
        return {self._key(source, fit, name): moved}

    def _without_shared(self, source: Checkpoint, fit: _Fit) -> dict[str, SourceStreams]:
        """The carried source without its shared directions, if there are other authors."""
        session, rows, options = self.session, self._carried(source), self.session.options
        if too_few_groups(rows) is not None:
            return {}
        (moved,) = self._mapped(source, fit, "map", session.encoded).values()
        full = session.streams(session.full, session.encoded)
        directions = Directions(moved, full, rows, tuple(options.layers), options.memory_bytes)
        without = WithoutShared(**vars(moved), directions=directions)
        return {self._key(source, fit, "shared"): without}

    def _deltas(
        self, source: Checkpoint, fit: _Fit, name: str = "map"
    ) -> Float[Tensor, "batch layer"]:
        rows, layers = self.session.encoded, self.session.options.layers
        return self.session.read(self._key(source, fit, name), rows, layers)

    def _floor(self, fit: _Fit | str) -> Floor | None:
        """Depth of each retain model on the others' scale; plain of those beside the anchor."""
        if len(self.retains) < 2 or isinstance(fit, str):
            return None
        rows, layers = self.session.encoded, self.session.options.layers
        s1 = {weights: self._deltas(one, fit) for weights, one in self.retains.items()}
        known = []
        for weights, own in s1.items():
            others = torch.stack([other for w, other in s1.items() if w != weights]).mean(0)
            mean = self.depth(own, others).uds.nanmean()
            if not bool(mean.isfinite()):
                return None
            known.append(float(mean))
        found = (_mean(self.depth(self.session.read(w, rows, layers)).uds) for w in self._further())
        plain = tuple(one for one in found if one is not None)
        return Floor(min(known), max(known), len(known), plain, tuple(known[1:]))

    def _further(self) -> dict[str, Checkpoint]:
        """Never-trained models beside the anchor, by weights."""
        return {w: one for w, one in self.retains.items() if w != self.session.retain.weights}


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
