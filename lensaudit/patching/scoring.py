"""Scores of a run: what is not kept yet is patched; then outcomes and their record."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.errors import InputError
from lensaudit.models.bridge import DTYPES, opened_models
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.large.placement import placement_of
from lensaudit.patching.options import Engine
from lensaudit.patching.outcome import Outcome, calibration_of, outcome_of
from lensaudit.patching.preflight import planned_engine, sweep_gap
from lensaudit.patching.score_cache import example_hash
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource
from lensaudit.progress import unheard
from lensaudit.results.manifest import Manifest, computed_by, manifest
from lensaudit.settings import COUNTERFACTUAL, NO_RETAIN_MODEL

Scored = tuple[list[Outcome], dict[str, float | None]]
"""One outcome per source, and the scores of the two anchors."""


def score_all(session: Session) -> Scored:
    """The score of every source, and of the two anchors: patched in, or read by the lens."""
    with session:
        return scored(session)


def score_lens(session: Session) -> Scored:
    """Logit Lens depth of every source, and of the two anchors."""
    return score_all(as_lens(session))


def scored(session: Session) -> Scored:
    """Run `score_all`; the session stays open.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    compute(session)
    return outcomes_of(session, _drops(session, session.retain), session.retain.weights)


def outcomes_of(
    session: Session,
    s1: Float[Tensor, "batch layer"],
    donor: str,
    scale: Literal["", "counterfactual"] = "",
) -> Scored:
    """The outcome of every source on a scale, of what is kept; and of the anchors.

    Args:
        session: whose sources are scored.
        s1: the scale.
        donor: what decided the streams that gave it, as of `Session.scores`.
        scale: its name, where `retain` did not give it.
    """
    settings, rows = session.settings, session.encoded
    reads, layers = settings.score == "lens", settings.at_layers
    baseline = session.scores((session.full if reads else session.retain).weights).baselines(rows)
    outcomes = []
    for name, source in session.sources.items():
        misfit, versions, by_token = session.misfit(source), Counter[str](), []
        if reads:
            kept = session.scores(source.weights).known
            entries = [kept[example_hash(e)] for e in rows]
            by_token = [[entry.by_token[at] for at in layers] for entry in entries]
        else:
            versions.update(session.scores(donor).computed_by(rows, layers))
            if misfit is None:
                versions.update(session.scores(source.weights).computed_by(rows, layers))
        deltas = baseline, s1, _drops(session, source, s1)
        found = outcome_of(name, rows, session.unscored, settings, *deltas, misfit=misfit)
        outcomes.append(
            replace(
                found,
                scale=scale,
                computed_by=dict(sorted(versions.items())),
                by_token=by_token,
            )
        )
    for line in dict.fromkeys(filter(None, (_other_versions(one.computed_by) for one in outcomes))):
        session.notice(line)
    return outcomes, calibration_of(rows, settings, s1, _drops(session, session.full, s1))


def _drops(
    session: Session, source: Checkpoint, s1: Float[Tensor, "batch layer"] | None = None
) -> Float[Tensor, "batch layer"]:
    """Drop of a span's log-prob, nats per token; NaN where nothing is computed, or no KE layer."""
    settings, rows = session.settings, session.encoded
    if session.misfit(source) is not None:
        return torch.full((len(rows), len(settings.at_layers)), torch.nan, dtype=torch.float32)
    found = session.read(source.weights, rows, settings.at_layers)
    if settings.score == "lens":
        # read: baseline minus k; so the baseline falls out of the difference
        return found - session.read(session.full.weights, rows, settings.at_layers)
    if s1 is None or settings.profile == "full":
        return found
    # rows that another run left in the cache are not part of this one
    return found.where(s1 > settings.tau, torch.nan)


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


def compute(session: Session) -> None:
    """Fill the score caches; those of the oracle, if the sweep turns out not to be usable.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    full, rows = session.full, session.encoded
    _use(session, planned_engine(full, session.settings, session.notice))
    if not session.incomplete():
        return
    _streams(session)  # cached before `full` is loaded
    runner, own = session.runner(rows), session.source(full)
    check = sweep_gap(runner, rows, own)
    if check.gap is not None and not check.passes:
        session.notice(
            f"the sweep misses the definition by {check.gap:.2g} nats; one pass per layer is used "
            "instead"
        )
    if not check.passes:
        _use(session, "oracle")
    # S1 first where S2 is wanted at KE layers only; else everything in one sweep
    streams, s1 = {**_streams(session), full.weights: own}, {session.retain.weights}
    parts = {"reading" if session.settings.score == "lens" else "patching": streams.keys()}
    if session.settings.profile != "full":
        parts = {"patching S1": streams.keys() & s1, "patching S2": streams.keys() - s1}
    for what, names in parts.items():
        session.fill(
            rows,
            {name: one for name, one in streams.items() if name in names},
            session.wanted(),
            what=what,
        )


def as_run(session: Session) -> Session:
    """The session with the engine that a run would take: its scores are kept under that."""
    return session.under(engine=planned_engine(session.full, session.settings, unheard))


def check_fits(session: Session) -> None:
    """Refuse weights or an example that rows still to be scored have no room for; none is loaded.

    Exact match is refused when it loads: what it lacks are texts.

    Raises:
        InputError: says what is taken, and what there is.
    """
    settings, run = session.settings, as_run(session)
    if settings.score == "em" or not run.incomplete():
        return
    if not opened_models():  # what is held may be let go, or is what is loaded
        placement_of(
            session.full,
            dtype=DTYPES[settings.dtype],
            device=settings.device,
            spread=settings.memory_bytes if settings.spread else None,
        )
    _check_batch(run)


def _use(session: Session, engine: Engine) -> None:
    """Patch by this engine, if its largest example fits; the lens patches nothing."""
    if session.settings.score != "lens":
        session.use(engine)
        _check_batch(session)


def _check_batch(session: Session) -> None:
    settings, n_sources = session.settings, len(session.incomplete())
    if n_sources and settings.score != "lens":
        budget = session.budget(sweeps=settings.engine == "sweep")
        budget.check(session.encoded, n_sources=n_sources)


def _streams(session: Session) -> dict[str, CachedSource]:
    """Caches of the sources that still have rows to score, but `full`'s own."""
    patched_in, own = session.patched_in(), session.full.weights
    return {one: session.source(patched_in[one]) for one in session.incomplete() if one != own}


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
            **checkpoint.spec.alias,
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
    inputs["examples"] = {
        "n": len(session.encoded) + len(session.unscored),
        "hash": session.examples_hash,
    }
    if scores_by:
        inputs["scores_computed_by"] = dict(scores_by)
    return manifest(
        command,
        options=options,
        inputs=inputs,
        device=session.settings.device,
        started=started,
    )


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
