"""Scores of a run: what is not kept yet is patched; then outcomes and their record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from rich.filesize import decimal as size
from torch import Tensor

from lensaudit.activations.spec import Fingerprint
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.large.placement import planned_text
from lensaudit.models.sizes import BYTES, sizes_on_disk
from lensaudit.patching.budget import Room
from lensaudit.patching.options import Engine
from lensaudit.patching.outcome import Outcome, calibration_of, outcome_of
from lensaudit.patching.preflight import agrees_with_oracle, planned_engine
from lensaudit.patching.score_cache import ByToken, example_hash
from lensaudit.patching.session import Session
from lensaudit.patching.sources import SourceStreams
from lensaudit.patching.stages import Runner, baselines, complete
from lensaudit.progress import Plan, unheard
from lensaudit.results.records import Manifest, computed_by, manifest
from lensaudit.settings import COUNTERFACTUAL, NO_RETAIN_MODEL

Scored = tuple[list[Outcome], dict[str, float | None]]
"""One outcome per source, and the scores of the two anchors."""


@dataclass(frozen=True)
class Deltas:
    """S1 and S2 of the scored examples, nats per token; columns are the layers asked for."""

    baseline: Float[Tensor, " batch"]
    s1: Float[Tensor, "batch layer"]
    s2: Mapping[str, Float[Tensor, "batch layer"]]
    """By source name; NaN at layers that were not computed, all of a stream that does not fit."""
    self_patch: Float[Tensor, "batch layer"]
    """`full` patched with itself: 0 where everything is right."""
    engine: Engine
    """What computed them: the one asked for, or the oracle where the sweep may not be used."""
    computed_by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Source name -> versions -> how many of its scores, S1 and S2, they computed."""
    by_token: Mapping[str, Sequence[ByToken]] = field(default_factory=dict)
    """Source name -> what was read of it by example, layer and token, where streams were read."""


def score_all(session: Session) -> Scored:
    """The score of every source, and of the two anchors: patched in, or read by the lens."""
    with session:
        return scored(session, run(session))


def score_lens(session: Session) -> Scored:
    """Logit Lens depth of every source, and of the two anchors."""
    return score_all(as_lens(session))


def scored(session: Session, found: Deltas) -> Scored:
    """The outcomes of a run, and the scores of the two anchors."""
    settings = session.settings
    calibration = calibration_of(
        session.encoded, settings, found.baseline, found.s1, found.self_patch
    )
    outcomes = [
        replace(
            outcome_of(
                *(name, session.encoded, session.unscored, settings),
                *(found.baseline, found.s1, found.s2[name]),
                misfit=session.misfit(source),
            ),
            computed_by=found.computed_by.get(name, {}),
            by_token=found.by_token.get(name, ()),
        )
        for name, source in session.sources.items()
    ]
    for line in dict.fromkeys(map(_other_versions, found.computed_by.values())):
        if line:
            session.notice(line)
    return outcomes, calibration


def _other_versions(found: Mapping[str, int]) -> str:
    """A line where scores were found that other versions computed than those that run."""
    other = {by: n for by, n in found.items() if by != computed_by()}
    if not other:
        return ""
    listed = "; ".join(f"{n} by {by}" for by, n in other.items())
    return (
        f"{sum(other.values())} of {sum(found.values())} scores were computed earlier under other "
        f"versions ({listed}; here {computed_by()}); --fresh computes them anew"
    )


def run(session: Session) -> Deltas:
    """Compute what is not kept of the session's rows yet, and read the rest.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    reads = session.settings.score == "lens"
    if not reads:
        session.use(planned_engine(session.full.architecture, session.settings, session.notice))
    if session.incomplete():
        _compute(session)
    return _read(session) if reads else _patched(session)


def _patched(session: Session) -> Deltas:
    settings, encoded = session.settings, session.encoded
    s1 = session.read(session.retain.weights, encoded, settings.at_layers)

    def s2(source: Checkpoint) -> Float[Tensor, "batch layer"]:
        if session.misfit(source) is not None:
            return torch.full_like(s1, torch.nan)
        found = session.read(source.weights, encoded, settings.at_layers)
        # rows that another run left in the cache are not part of this one
        return found if settings.profile == "full" else found.where(s1 > settings.tau, torch.nan)

    return Deltas(
        baseline=baselines(session.scores(session.retain.weights), encoded),
        s1=s1,
        s2={name: s2(checkpoint) for name, checkpoint in session.sources.items()},
        self_patch=s2(session.full),
        engine=settings.engine,
        computed_by={name: _computed_by(session, one) for name, one in session.sources.items()},
    )


def _read(session: Session) -> Deltas:
    """Logit Lens deltas of retain and of every source, nats per token."""
    encoded, layers = session.encoded, session.settings.at_layers
    # read: baseline minus k; so the baseline falls out of every difference
    below = {w: session.read(w, encoded, layers) for w in session.patched_in()}
    own = below[session.full.weights]

    def by_token(source: str) -> list[ByToken]:
        entries = (session.scores(source).known[example_hash(e)] for e in encoded)
        return [[entry.by_token[layer] for layer in layers] for entry in entries]

    return Deltas(
        baseline=baselines(session.scores(session.full.weights), encoded),
        s1=below[session.retain.weights] - own,
        s2={name: below[source.weights] - own for name, source in session.sources.items()},
        self_patch=own - own,
        engine="lens",
        by_token={name: by_token(source.weights) for name, source in session.sources.items()},
    )


def _computed_by(session: Session, source: Checkpoint) -> dict[str, int]:
    found: Counter[str] = Counter()
    read = [session.retain.weights]
    if session.misfit(source) is None:
        read.append(source.weights)
    for one in read:
        found.update(session.scores(one).computed_by(session.encoded, session.settings.at_layers))
    return dict(sorted(found.items()))


def _compute(session: Session) -> None:
    """Fill the score caches; those of the oracle, if the sweep turns out not to be usable."""
    full, settings = session.full, session.settings
    if settings.score != "lens":
        _check_room(session)
    streams = _cached(session, {})
    runner = session.runner(session.encoded)
    streams[full.weights] = own = session.source(full)
    checked = agrees_with_oracle(runner, session.encoded, own, session.notice)
    if settings.score != "lens" and checked.engine != settings.engine:
        session.use(checked.engine)
        _check_room(session)
        streams = _cached(session, streams)
    if settings.part == "resid":
        _fill(session, checked, streams)
        return
    patched_in = session.patched_in()
    for weights in session.incomplete():  # one at a time: what is not cached runs beside `full`
        _fill(session, checked, {weights: session.source(patched_in[weights])})


def _check_room(session: Session) -> None:
    sizes, settings = sizes_on_disk(session.full, session.settings.dtype), session.settings
    room = Room(sizes, settings, settings.engine == "sweep")
    room.check(session.encoded, n_sources=len(session.incomplete()))


def _cached(session: Session, known: Mapping[str, SourceStreams]) -> dict[str, SourceStreams]:
    """Caches of the sources that still have rows to score, but `full`'s own; none of components."""
    patched_in = session.patched_in()
    lacking = session.incomplete() if session.settings.part == "resid" else ()
    more = [one for one in lacking if one != session.full.weights and one not in known]
    return {**known, **{one: session.streams(patched_in[one], session.encoded) for one in more}}


def _fill(session: Session, runner: Runner, streams: Mapping[str, SourceStreams]) -> None:
    """S1 first where S2 is wanted at KE layers only; else everything in one sweep."""
    s1 = {session.retain.weights}
    parts = {"reading" if session.settings.score == "lens" else "patching": streams.keys()}
    if session.settings.profile != "full":
        parts = {"patching S1": streams.keys() & s1, "patching S2": streams.keys() - s1}
    for what, names in parts.items():
        chosen = {name: one for name, one in streams.items() if name in names}
        if chosen:
            caches = {name: session.scores(name) for name in chosen}
            complete(
                *(runner, session.encoded, chosen, caches, session.wanted()),
                what=what,
                progress=session.tick,
            )


def manifest_of(
    session: Session,
    sources: Mapping[str, Checkpoint],
    started: float,
    *,
    command: str = "patch",
    scores_by: Mapping[str, int] | None = None,
) -> Manifest:
    """How a result was made: settings, names and content of the models and rows, versions.

    Args:
        session: that gave it.
        sources: by the names under which they stand in it.
        started: of the clock, when the run began.
        command: that made it.
        scores_by: versions and how many of the scores they computed.
    """
    inputs: dict[str, Any] = {
        role: {
            "name": checkpoint.spec.name,
            "repo": checkpoint.spec.repo,
            "revision": checkpoint.spec.revision,
            "weights": checkpoint.weights,
            "tokenizer": checkpoint.tokenizer,
        }
        for role, checkpoint in {"full": session.full, "retain": session.retain, **sources}.items()
    }
    options = session.settings.document()
    if session.settings.without_retain:
        inputs["retain"] = dict.fromkeys(inputs["retain"]) | {"name": NO_RETAIN_MODEL}
        options["anchor"] = COUNTERFACTUAL
    n = len(session.encoded) + len(session.unscored)
    inputs["examples"] = {"n": n, "hash": session.examples_hash}
    if scores_by:
        inputs["scores_computed_by"] = dict(scores_by)
    device = session.settings.device
    return manifest(command, options=options, inputs=inputs, device=device, started=started)


def as_lens(session: Session) -> Session:
    """The session with the settings that the lens has.

    Raises:
        InputError: one was asked for that it has not.
    """
    for name, only in {"component": "resid", "scope": "span", "last_layer": "resid_post"}.items():
        if (asked := getattr(session.settings, name)) != only:
            option = name.replace("_", "-")
            raise InputError(
                f"--{option} {asked}: the lens reads the residual stream at the span and patches "
                f"nothing; leave --{option} at {only}, or use --score uds"
            )
    return session.under(score="lens", profile="full")


PREFLIGHT_PASSES = 8
"""Forward passes of `full` in `patching.preflight`: four on the longest example, four in which
sweep and oracle are compared."""


def plan_of(session: Session, controls: str = "", n_more: int = 0) -> Plan:
    """Count what is missing.

    Args:
        session: that is open.
        controls: what stands beside the score; how much of it is wanted follows from the score.
        n_more: rows that are scored beside the sources'.
    """
    rows, settings = _n_missing(session), session.settings
    n_forward = n_bytes = n_caches = 0
    for weights, checkpoint in session.patched_in().items():
        # the sweep reads the clean run of `full` whatever is patched into it
        used = any(rows.values()) if weights == session.full.weights else rows[weights]
        positions = settings.positions_needed(of_full=weights == session.full.weights)
        if not used or positions is None or session.there(checkpoint, positions) is not None:
            continue
        n_forward += len(session.encoded)
        n_caches += 1
        n_bytes += cache_bytes(session.encoded, session.fingerprint(checkpoint, positions))
    n_rows, n_lost = sum(rows.values()), len(session.unscored)
    models = [("full", session.full), ("retain", session.retain)]
    models += [("source", source) for source in session.sources.values()]
    lost = f" ({n_lost} unscored: lost in tokenisation)" if n_lost else ""
    lines = [
        f"models: {', '.join(f'{role} {one.spec.name}' for role, one in models)}",
        f"examples: {len(session.encoded) + n_lost}{lost}; layers: {len(settings.at_layers)}",
        f"to cache: {n_forward} forward passes of one example, {size(n_bytes)} on disk",
        f"to score: {n_rows + n_more} patched rows (example x source x layer)",
        _placement(session, n_rows, n_forward, n_caches),
        controls,
    ]
    return Plan(tuple(filter(None, lines)), n_forward, n_rows + n_more, n_bytes)


def _placement(session: Session, n_rows: int, n_forward: int, n_caches: int) -> str:
    """Of each model alike: they are of one shape. Controls are not counted."""
    if not n_rows and not n_forward:
        return ""
    settings, full, encoded = session.settings, session.full, session.encoded
    room = Room(sizes_on_disk(full, settings.dtype), settings, settings.computed_with == "sweep")
    n_sources, n_layers = len(session.patched_in()), len(settings.at_layers)
    n_batches = len(room.batches(encoded, lambda e: n_sources * n_layers, n_sources=n_sources))
    each = 1 if room.sweeps else 1 + n_sources * n_layers
    n_passes = n_caches + (PREFLIGHT_PASSES + n_batches * each if n_rows else 0)
    return planned_text(
        full,
        dtype=settings.dtype,
        device=settings.device,
        spread=settings.memory_bytes if settings.spread else None,
        n_passes=n_passes,
    )


def _n_missing(session: Session) -> dict[str, int]:
    """By source. Rows at KE layers only are known once S1 is; until then all layers are counted."""
    engine = planned_engine(session.full.architecture, session.settings, unheard)
    # a fresh cache would be emptied
    kept = replace(session, settings=replace(session.settings, fresh=False, engine=engine))
    wanted, rows = kept.wanted(), {}
    for weights in session.patched_in():
        lists = (wanted(e, weights) for e in session.encoded)
        if not session.settings.fresh:
            scores = kept.scores(weights)
            lists = (scores.missing(e, wanted(e, weights)) for e in session.encoded)
        rows[weights] = sum(map(len, lists))
    return rows


def cache_bytes(encoded: Sequence[Encoded], fingerprint: Fingerprint) -> int:
    """Bytes of activations a cache holds: one row per layer and, of the stream, the final norm's.

    A row is one token of one example.
    """
    everywhere = fingerprint.positions == "all"
    n_rows = sum(len(e.token_ids if everywhere else e.read_positions) for e in encoded)
    n_normed, width = fingerprint.norm_shape(n_rows)
    return (n_rows * fingerprint.layers + n_normed) * width * BYTES[fingerprint.dtype]
