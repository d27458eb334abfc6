"""What patching finds of each source, whatever the score, and what unlearning broke beside it.

Summary and rows, as files hold them. Of facts that should be kept the same patching gives UDS on
other rows: 0 where the model still holds a fact as `full` does, 1 where it holds no more of it than
the anchor. The anchor of S1 must not know the fact: the base model before fine-tuning, or, for what
a base model knows too and where there is none, a counterfactual: `full`'s own stream on another
fact that asks the most alike question and has as many tokens. Relative to a counterfactual 1 means:
no better than a wrong answer.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from lensaudit.data.facts import examples_hash, spans_of
from lensaudit.data.neutral import Kept, Neutral, kept_facts, strata_of
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.groups import grouped, unit_of
from lensaudit.models.checkpoint import Checkpoint, in_role, open_checkpoint
from lensaudit.models.likeness import check_same_shape
from lensaudit.models.registry import base_spec, load_registry
from lensaudit.patching.asking import questions_of
from lensaudit.patching.controls import Drops, controls_of, examined, outputs_of, unexamined
from lensaudit.patching.exact_match import em_result, run_em
from lensaudit.patching.outcome import (
    BY_TOKEN,
    NO_KE,
    Outcome,
    Summarised,
    beside,
    layer_cells,
    summary_of,
)
from lensaudit.patching.scoring import compute, outcomes_of, score_lens, scored
from lensaudit.patching.session import Session
from lensaudit.patching.sources import NO_OTHER, CachedSource, others_of
from lensaudit.results.kinds.patch import Examined, KeptDepth
from lensaudit.results.roles import check_roles
from lensaudit.scores.depth import depth_score, over_erasure
from lensaudit.scores.intervals import clustered_mean, difference_of
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.verdict.beside import SCALE

FEWEST_ROWS = 10
"""Scored rows below which a stratum has no number."""
RELATIVE: Mapping[Literal["base", "counterfactual"], str] = {
    "base": "a model that never saw them",
    "counterfactual": "chance: another fact's answer",
}
NO_TOKENS = "no token of it can be scored, or it is longer than the context"


Anchored = tuple[Kept, Checkpoint | None]
"""Facts to keep, with the model that never saw them; None: the counterfactual."""


def kept_beside(session: Session) -> list[Anchored]:
    """The sets that `--also` names, each with the anchor it is measured against; none is loaded.

    Raises:
        InputError: a set, a file or the base is wrong, or named twice.
    """
    settings = session.settings
    if not settings.also:
        return []
    kept = [kept_facts(one, str(settings.data), limit=settings.limit) for one in settings.also]
    if twice := [name for name, n in Counter(one.name for one in kept).items() if n > 1]:
        raise InputError(f"--also {twice[0]}: named twice")
    spec = base_spec(
        (one.spec for one in session.sources.values()),
        settings.base,
        load_registry(settings.registry),
    )
    base = None if spec is None else open_checkpoint(spec)
    if base is not None:
        check_same_shape(session.full, base)
        named = in_role("base", *([base] if settings.base else []))
        check_roles([*in_role("source", *session.sources.values()), *named])
    return [(one, None if one.pretrained else base) for one in kept]


def collateral_of(
    session: Session, sets: Sequence[Anchored], outcomes: Sequence[Outcome]
) -> dict[str, dict[str, KeptDepth]]:
    """Source -> set -> what was lost of it.

    All sources are patched in one sweep over the rows of a set, on top of the books of earlier
    runs.

    Raises:
        VerificationError | WorkError: as of any patched score.
    """
    found: dict[str, dict[str, KeptDepth]] = {one.source: {} for one in outcomes}
    for kept, base in sets:
        rows, s1, s2, unscored = patched(session, kept, base)
        for one in outcomes:
            own = rows, s1, s2[session.sources[one.source].weights], unscored
            found[one.source][kept.name] = _kept_depth(session, kept, base, one, *own)
    return found


Rows = tuple[Encoded, ...]


def patched(
    session: Session, kept: Kept, base: Checkpoint | None
) -> tuple[Rows, Drops, Mapping[str, Drops], dict[int, str]]:
    """The rows that have an anchor, S1, S2 by weights, and why the others are not scored."""
    rows, layers = session.encode(kept.rows), session.settings.at_layers
    known = {e.idx for e in rows}
    unscored = {row.idx: NO_TOKENS for row in kept.rows if row.idx not in known}
    wanted, sources = rows, dict[str, CachedSource]()
    if base is None:
        others = others_of(session.full, rows, kept.rows)
        unscored |= {e.idx: NO_OTHER for e in rows if e.idx not in others.given}
        wanted, anchor = others.rows, others.key
        if wanted:
            sources[anchor] = others.of(session.streams(session.full, rows))
    else:
        anchor = base.weights
        sources[anchor] = session.streams(base, rows)
    names = [one.weights for one in session.sources.values()]
    if wanted:
        sources |= {one.weights: session.streams(one, rows) for one in session.sources.values()}
        session.fill(wanted, sources, layers)
    deltas = {name: session.read(name, wanted, layers) for name in (anchor, *names)}
    return wanted, deltas[anchor], deltas, unscored


def _kept_depth(
    session: Session,
    kept: Kept,
    base: Checkpoint | None,
    outcome: Outcome,
    rows: Rows,
    s1: Drops,
    s2: Drops,
    unscored: dict[int, str],
) -> KeptDepth:
    """The numbers of one set and one source."""
    tau, unscored = session.settings.tau, dict(unscored)
    scored = list[tuple[Encoded, float]]()
    for e, value in zip(rows, depth_score(s1, s2, tau=tau).uds.tolist(), strict=True):
        if math.isnan(value):
            unscored[e.idx] = NO_KE.format(tau=tau)
        else:
            scored.append((e, value))
    idx = [row.idx for row in kept.rows]
    stratum_of = dict(zip(idx, strata_of(kept.rows, session.examples), strict=True))
    strata = grouped((stratum_of[e.idx], (e, value)) for e, value in scored)
    authors = grouped((str(e.group), value) for e, value in scored)
    depth = _mean(scored)
    ends = depth.pop("ci95")
    return KeptDepth(
        anchor=base.spec.name if base else COUNTERFACTUAL,
        relative_to=RELATIVE["base" if base else "counterfactual"],
        ci95=ends and (ends[0], ends[1]),
        **depth,
        n=len(kept.rows),
        rows_hash=examples_hash(kept.rows),
        unscored=dict(Counter(unscored.values())),
        over_erasure_nats=over_erasure(s1, s2, tau=tau),
        strata={name: _of_stratum(own) for name, own in strata.items()},
        selectivity=_selectivity(outcome, scored),
        authors={
            name: {"depth": sum(values) / len(values), "n_scored": len(values)}
            for name, values in authors.items()
        },
    )


Depths = Sequence[tuple[Encoded, float]]


def _mean(scored: Depths) -> dict[str, Any]:
    """Mean depth with its interval; None without rows."""
    if not scored:
        return {"depth": None, "ci95": None, "n_scored": 0}
    values, groups = [value for _, value in scored], [e.group for e, _ in scored]
    found = clustered_mean(values, groups, unit=unit_of(groups))
    return {"depth": sum(values) / len(values), **found.limits(), "n_scored": len(values)}


def _of_stratum(scored: Depths) -> dict[str, Any]:
    """Mean depth of a stratum; None where it has too few rows for a number."""
    n = len(scored)
    if n >= FEWEST_ROWS:
        return _mean(scored)
    return _mean([]) | {"n_scored": n, "why": f"{n} scored rows, wanted {FEWEST_ROWS}"}


def _selectivity(outcome: Outcome, scored: Depths) -> dict[str, Any]:
    """UDS of the forgotten facts minus the depth of those to keep, with its interval."""
    values, groups = [value for _, value in scored], [e.group for e, _ in scored]
    if not values or not outcome.groups:
        return {"value": None, "ci95": None, "why": "one side has no scored row"}
    gap = difference_of(outcome.scored.tolist(), outcome.groups, values, groups)
    return {"value": gap.value, "ci95": gap.limits()["ci95"], "why": gap.why}


NOT_PATCHED = "--score lens: streams are read out, not patched in; --score uds decides"
NOT_A_DEPTH = "--score em: answers are compared, not the drop in nats; --score uds decides"


def beside_score(session: Session) -> tuple[Neutral | None, list[Anchored]]:
    """What stands beside the score: rows of controls, none without a retain model; kept facts.

    Raises:
        InputError: a file or a model that is named for it does not do.
    """
    return None if session.settings.without_retain else controls_of(session), kept_beside(session)


def summaries(
    session: Session, neutral: Neutral | None = None, kept: Sequence[Anchored] = ()
) -> list[Summarised]:
    """The score that the session's settings ask for, of every source.

    Args:
        session: of the run; it stays open.
        neutral: rows that controls are measured on beside UDS; None: there are no controls.
        kept: facts to keep, to see what was lost of them.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    if session.settings.without_retain:
        return _beside_others(session)
    if session.settings.score == "em":
        matches = run_em(session)
        more = {"spans": spans_of(session.examples), **vars(unexamined(NOT_A_DEPTH))}
        made = [em_result(name, one, session, matches) for name, one in session.sources.items()]
        return [replace(one, summary=replace(one.summary, **more)) for one in made]
    return _depths(session, neutral, kept)


def _depths(
    session: Session, neutral: Neutral | None, kept: Sequence[Anchored]
) -> list[Summarised]:
    spans, found = spans_of(session.examples), dict[str, Examined]()
    outcomes, calibration = scored(session)
    lost: Mapping[str, Mapping[str, KeptDepth]] = {}
    if session.settings.score == "lens":
        found = {one.source: unexamined(NOT_PATCHED) for one in outcomes}
    else:
        found = {} if neutral is None else examined(session, outcomes, neutral)
        lost = collateral_of(session, kept, outcomes)
    read = {one.source: one for one in score_lens(session)[0]} if session.settings.lens else {}
    results = []
    for outcome in outcomes:
        name = outcome.source
        controls, rows = found.get(name, Examined()), outcome.rows()
        summary = replace(
            summary_of(outcome, calibration),
            n_unpatched=session.full.n_layers - len(session.settings.at_layers) or None,
            spans=spans,
            collateral=lost.get(name, {}),
            **vars(controls),
        )
        if name in read:
            summary = beside(summary, read[name])
            rows = [
                row | {key: one[key] for key in ("lens", BY_TOKEN) if key in one}
                for row, one in zip(rows, read[name].rows(), strict=True)
            ]
        if name in found and session.settings.score != "lens":
            rows = controls.beside(rows)
        results.append(Summarised(summary, rows, layer_cells(outcome), outcome))
    return results


def _beside_others(session: Session) -> list[Summarised]:
    """Summary of a run without a retain model: on its scale only low numbers mean something.

    S1 is `full`'s own stream of another row.
    """
    compute(session)
    rows, layers = session.encoded, session.settings.at_layers
    others = others_of(session.full, rows, session.examples)
    streams = {others.key: others.of(session.streams(session.full, rows))}
    session.fill(rows, streams, layers, only={others.key: others.given.keys()})
    reading = session.under()
    alone = {e.idx: NO_OTHER for e in rows if e.idx not in others.given}
    reading.encoded, reading.unscored = others.rows, {**session.unscored, **alone}
    s1 = session.read(others.key, others.rows, layers)
    outcomes, anchors = outcomes_of(reading, s1, others.key, COUNTERFACTUAL)
    calibration = {"full": anchors["full"], COUNTERFACTUAL: anchors["retain"]}
    questions, results = questions_of(session), []
    for one in outcomes:
        told = questions and questions.told(session.sources[one.source])
        summary = replace(
            summary_of(one, calibration),
            kind=COUNTERFACTUAL,
            anchor=COUNTERFACTUAL,
            spans=spans_of(session.examples),
            scale=SCALE,
            outputs=outputs_of(session, session.sources[one.source]),
            told=told,
        )
        found = one.rows() if told is None else told.beside(one.rows())
        results.append(Summarised(summary, found, layer_cells(one), one))
    return results
