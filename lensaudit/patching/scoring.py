"""Scores of a run: what is not kept yet is patched; then outcomes and their record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.budget import Room
from lensaudit.patching.options import Engine
from lensaudit.patching.outcome import Outcome, calibration_of, outcome_of
from lensaudit.patching.preflight import agrees_with_oracle, planned_engine
from lensaudit.patching.score_cache import ByToken
from lensaudit.patching.session import Session
from lensaudit.patching.sources import SourceStreams
from lensaudit.patching.stages import Runner, baselines, complete
from lensaudit.results.records import Manifest, computed_by, manifest

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
    """UDS of every source, and of the two anchors."""
    with session:
        return scored(session, run(session))


def scored(session: Session, found: Deltas) -> Scored:
    """The outcomes of a run, and the scores of the two anchors."""
    options = replace(session.options, engine=found.engine)
    calibration = calibration_of(
        session.encoded, options, found.baseline, found.s1, found.self_patch
    )
    outcomes = [
        replace(
            outcome_of(
                *(name, session.encoded, session.lost, options),
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
    session.use(planned_engine(session.full.architecture, session.options, session.notice))
    if session.incomplete():
        _compute(session)
    options, encoded = session.options, session.encoded
    layers = options.layers
    s1 = session.read(session.retain.weights, encoded, layers)

    def s2(source: Checkpoint) -> Float[Tensor, "batch layer"]:
        if session.misfit(source) is not None:
            return torch.full_like(s1, torch.nan)
        found = session.read(source.weights, encoded, layers)
        # rows that another run left in the cache are not part of this one
        return found if options.profile == "full" else found.where(s1 > options.tau, torch.nan)

    return Deltas(
        baseline=baselines(session.scores(session.retain.weights), encoded),
        s1=s1,
        s2={name: s2(checkpoint) for name, checkpoint in session.sources.items()},
        self_patch=s2(session.full),
        engine=options.engine,
        computed_by={name: _computed_by(session, one) for name, one in session.sources.items()},
    )


def _computed_by(session: Session, source: Checkpoint) -> dict[str, int]:
    found: Counter[str] = Counter()
    read = [session.retain.weights]
    if session.misfit(source) is None:
        read.append(source.weights)
    for one in read:
        found.update(session.scores(one).computed_by(session.encoded, session.options.layers))
    return dict(sorted(found.items()))


def _compute(session: Session) -> None:
    """Fill the score caches; those of the oracle, if the sweep turns out not to be usable."""
    full, encoded, options = session.full, session.encoded, session.options
    room = Room(sizes_on_disk(full, options.dtype), options, options.engine == "sweep")
    room.check(encoded, n_sources=len(session.incomplete()))
    whole_streams = options.component == "resid"
    streams = _cached(session, {}) if whole_streams else {}
    runner = session.runner(encoded)
    streams[full.weights] = (
        session.streams(full, encoded) if whole_streams else session.component(full)
    )
    checked = agrees_with_oracle(runner, encoded, streams[full.weights], session.notice)
    if checked.engine != options.engine:
        session.use(checked.engine)
        checked.room.check(encoded, n_sources=len(session.incomplete()))
        streams = _cached(session, streams) if whole_streams else streams
    if whole_streams:
        _fill(session, checked, streams)
        return
    patched_in = session.patched_in()
    for weights in session.incomplete():  # one at a time: what is not cached runs beside `full`
        _fill(session, checked, {weights: session.component(patched_in[weights])})


def _cached(session: Session, known: Mapping[str, SourceStreams]) -> dict[str, SourceStreams]:
    """Caches of the sources that still have rows to score, but `full`'s own."""
    patched_in, lacking = session.patched_in(), session.incomplete()
    more = [one for one in lacking if one != session.full.weights and one not in known]
    return {**known, **{one: session.streams(patched_in[one], session.encoded) for one in more}}


def _fill(session: Session, runner: Runner, streams: Mapping[str, SourceStreams]) -> None:
    """S1 first where S2 is wanted at KE layers only; else everything in one sweep."""
    s1 = {session.retain.weights}
    parts = {"patching": streams.keys()}
    if session.options.profile != "full":
        parts = {"patching S1": streams.keys() & s1, "patching S2": streams.keys() - s1}
    for what, names in parts.items():
        chosen = {name: one for name, one in streams.items() if name in names}
        if chosen:
            caches = {name: session.scores(name) for name in chosen}
            complete(
                *(runner, session.encoded, chosen, caches, session.wanted()),
                what=what,
                progress=session.progress,
            )


def manifest_of(
    session: Session,
    sources: Mapping[str, Checkpoint],
    options: Mapping[str, Any],
    started: float,
    *,
    command: str = "patch",
    scores_by: Mapping[str, int] | None = None,
) -> Manifest:
    """How a result was made: options, names and content of the models and rows, versions.

    Args:
        session: that gave it.
        sources: by the names under which they stand in it.
        options: as the manifest holds them.
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
    n = len(session.encoded) + len(session.lost)
    inputs["examples"] = {"n": n, "hash": session.examples_hash}
    if scores_by:
        inputs["scores_computed_by"] = dict(scores_by)
    device = session.options.device
    return manifest(command, options=options, inputs=inputs, device=device, started=started)
