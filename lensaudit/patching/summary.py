"""What patching finds of each source, whatever the score: summary and rows, as files hold them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lensaudit.data.facts import spans_of
from lensaudit.data.neutral import Neutral
from lensaudit.patching.collateral import Anchored, collateral_of, kept_beside
from lensaudit.patching.controls import controls_of, examined, planned_controls, unexamined
from lensaudit.patching.exact_match import em_plan_of, em_result, run_em
from lensaudit.patching.outcome import Summarised, beside, layer_cells, summary_of
from lensaudit.patching.scoring import compute, outcomes_of, plan_of, score_lens, scored
from lensaudit.patching.session import Session
from lensaudit.patching.sources import NO_OTHER, others_of
from lensaudit.progress import Plan
from lensaudit.results.patch_runs import Examined
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.verdict.attacks import SCALE

NOT_PATCHED = "--score lens: streams are read out, not patched in; --score uds decides"
NOT_A_DEPTH = "--score em: answers are compared, not the drop in nats; --score uds decides"


def planned(session: Session) -> Plan:
    """What `summaries` would compute, with what is there already left out.

    Raises:
        InputError: a file or a model that is named for what stands beside the score does not do.
    """
    settings, layers = session.settings, session.settings.at_layers
    kept_beside(session)
    if settings.score == "em":
        return em_plan_of(session)
    if settings.score == "lens":
        return plan_of(session)
    if not settings.without_retain:
        return plan_of(session, planned_controls(session, controls_of(session)))
    others = others_of(session.full, session.encoded, session.examples)
    scores = session.scores(others.key)
    n_more = sum(len(layers if settings.fresh else scores.missing(e, layers)) for e in others.rows)
    told = f"anchor: {COUNTERFACTUAL}, full's own stream of another question"
    return plan_of(session, told, n_more)


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
        more = {"spans": spans_of(session.examples)} | unexamined(NOT_A_DEPTH).document()
        made = [em_result(name, one, session, matches) for name, one in session.sources.items()]
        return [replace(one, summary={**one.summary, **more}) for one in made]
    return _depths(session, neutral, kept)


def _depths(
    session: Session, neutral: Neutral | None, kept: Sequence[Anchored]
) -> list[Summarised]:
    spans, found = spans_of(session.examples), dict[str, Examined]()
    outcomes, calibration = scored(session)
    if session.settings.score == "lens":
        parts = {one.source: unexamined(NOT_PATCHED).document() for one in outcomes}
    else:
        found = {} if neutral is None else examined(session, outcomes, neutral)
        parts = collateral_of(session, kept, outcomes)
    read = {one.source: one for one in score_lens(session)[0]} if session.settings.lens else {}
    results = []
    for outcome in outcomes:
        name = outcome.source
        summary, rows = summary_of(outcome, calibration), outcome.rows()
        if name in read:
            summary, rows = beside(outcome, read[name], calibration)
        summary |= {"spans": spans, **parts[name]}
        if name in found:
            summary, rows = summary | found[name].document(), found[name].beside(rows)
        results.append(Summarised(summary, rows, layer_cells(outcome), outcome))
    return results


def _beside_others(session: Session) -> list[Summarised]:
    """Of a run without a retain model: a scale on which only low numbers mean something.

    S1 is `full`'s own stream of another row.
    """
    compute(session)
    rows, layers = session.encoded, session.settings.at_layers
    others = others_of(session.full, rows, session.examples)
    only = {others.key: others.given.keys()}
    own = session.streams(session.full, rows)
    session.fill(rows, {others.key: others.of(own)}, layers, only=only)
    reading = session.under()
    alone = {e.idx: NO_OTHER for e in rows if e.idx not in others.given}
    reading.encoded, reading.unscored = others.rows, {**session.unscored, **alone}
    s1 = session.read(others.key, others.rows, layers)
    outcomes, anchors = outcomes_of(reading, s1, COUNTERFACTUAL)
    calibration = {"full": anchors["full"], COUNTERFACTUAL: anchors["retain"]}
    own, full = (
        {name: float(session.answers(one, rows)[1].double().mean()) for name, one in models.items()}
        for models in (session.sources, {"full": session.full})
    )
    results = []
    for one in outcomes:
        summary: dict[str, Any] = {"kind": COUNTERFACTUAL, "anchor": COUNTERFACTUAL}
        summary |= summary_of(one, calibration)
        summary |= {"spans": spans_of(session.examples), "scale": SCALE}
        summary["outputs"] = {"source": own[one.source], **full, "n": len(rows)}
        results.append(Summarised(summary, one.rows(), layer_cells(one), one))
    return results
