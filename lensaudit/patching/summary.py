"""What patching finds of each source, whatever the score: summary and rows, as files hold them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lensaudit.data.facts import spans_of
from lensaudit.patching.collateral import Anchored, collateral_of
from lensaudit.patching.controls import Controls, examined, unexamined
from lensaudit.patching.counterfactual import said_of, score_beside_others
from lensaudit.patching.exact_match import em_result, run_em
from lensaudit.patching.outcome import Summarised, beside, layer_cells, summary_of
from lensaudit.patching.scoring import run, score_lens, scored
from lensaudit.patching.session import Session
from lensaudit.results.patch_runs import Examined
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.verdict.attacks import SCALE

NOT_PATCHED = "--score lens: streams are read out, not patched in; --score uds decides"
NOT_A_DEPTH = "--score em: answers are compared, not the drop in nats; --score uds decides"


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
    spans, found, deltas = spans_of(session.examples), dict[str, Examined](), run(session)
    outcomes, calibration = scored(session, deltas)
    if session.settings.score == "lens":
        parts = {one.source: unexamined(NOT_PATCHED).document() for one in outcomes}
    else:
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
        results.append(Summarised(summary, rows, layer_cells(outcome), outcome))
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
        results.append(Summarised(summary, one.rows(), layer_cells(one), one))
    return results


def _matches(session: Session) -> list[Summarised]:
    found, results = run_em(session), []
    more = {"spans": spans_of(session.examples)} | unexamined(NOT_A_DEPTH).document()
    for name, checkpoint in session.sources.items():
        one = em_result(name, checkpoint.weights, session, found)
        results.append(replace(one, summary={**one.summary, **more}))
    return results
