"""What patching finds of each source, whatever the score: summary and rows, as files hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lensaudit.data.facts import spans_of
from lensaudit.patching.collateral import Anchored, collateral_of
from lensaudit.patching.controls import Controls, Examined, examined, unexamined
from lensaudit.patching.counterfactual import said_of, score_beside_others
from lensaudit.patching.exact_match import EmOutcome, em_outcome_of, em_summary_of, run_em
from lensaudit.patching.outcome import Outcome, beside, summary_of
from lensaudit.patching.scoring import run, score_lens, scored
from lensaudit.patching.session import Session
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.verdict.attacks import SCALE

NOT_PATCHED = "--score lens: streams are read out, not patched in; --score uds decides"
NOT_A_DEPTH = "--score em: answers are compared, not the drop in nats; --score uds decides"


@dataclass(frozen=True)
class Summarised:
    """What is found of one source."""

    summary: Mapping[str, Any]
    """But for its verdict."""
    rows: Sequence[Mapping[str, Any]]
    outcome: Outcome | EmOutcome


def summaries(
    session: Session, controls: Controls | None = None, kept: Sequence[Anchored] = ()
) -> list[Summarised]:
    """The score that the session's settings ask for, of every source.

    Args:
        session: of the run; it stays open.
        controls: what is measured beside UDS; None: nothing.
        kept: facts to keep, to see what was lost of them.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    if session.settings.without_retain:
        return _beside_others(session)
    if session.settings.score == "em":
        return _matches(session)
    return _depths(session, controls, kept)


def _depths(
    session: Session, controls: Controls | None, kept: Sequence[Anchored]
) -> list[Summarised]:
    spans, found = spans_of(session.examples), dict[str, Examined]()
    if session.settings.score == "lens":
        outcomes, calibration = score_lens(session)
        parts = {one.source: unexamined(NOT_PATCHED).document() for one in outcomes}
    else:
        deltas = run(session)
        outcomes, calibration = scored(session, deltas)
        found = {} if controls is None else examined(session, deltas, controls)
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
        results.append(Summarised(summary, rows, outcome))
    return results


def _beside_others(session: Session) -> list[Summarised]:
    """Of a run without a retain model: a scale on which only low numbers mean something."""
    outcomes, calibration = score_beside_others(session)
    results = []
    for one in outcomes:
        summary: dict[str, Any] = {"kind": COUNTERFACTUAL, "anchor": COUNTERFACTUAL}
        summary |= summary_of(one, calibration)
        summary |= {"spans": spans_of(session.examples), "scale": SCALE}
        summary["outputs"] = said_of(session, session.sources[one.source])
        results.append(Summarised(summary, one.rows(), one))
    return results


def _matches(session: Session) -> list[Summarised]:
    found, results = run_em(session), []
    for name, checkpoint in session.sources.items():
        outcome = em_outcome_of(name, checkpoint.weights, session, found)
        summary = em_summary_of(outcome) | {"spans": spans_of(session.examples)}
        summary |= unexamined(NOT_A_DEPTH).document()
        results.append(Summarised(summary, outcome.rows(), outcome))
    return results
