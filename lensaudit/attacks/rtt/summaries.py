"""A log is summarised, again and again: nothing is trained, and nothing of torch is needed."""

from dataclasses import dataclass
from pathlib import Path

from lensaudit.attacks.rtt.log import Log, read_log
from lensaudit.attacks.rtt.settings import SummarySettings
from lensaudit.attacks.rtt.summary import Summary, summarize
from lensaudit.attacks.rtt.table import SUMMARIES, write_summaries
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.results.records import BEGUN, check_whole, renew


@dataclass(frozen=True)
class Summarized:
    """What a log says."""

    summaries: tuple[Summary, ...]
    folder: Path
    n_added: int = 0
    """Jobs done by this run."""
    n_known: int = 0
    """Jobs of its studies that were in the log before."""
    failure: LensAuditError | None = None
    """A gate that failed, or runs that did, of the studies together."""


def summarize_log(settings: SummarySettings) -> Summarized:
    """Read and write the summaries of a log again.

    Raises:
        InputError: there is no log, it holds no study, or it is not as it was written.
    """
    log = read_log(settings.log, must_exist=True)
    check_log(log)
    found = summarize(
        log, selection=settings.selection, rule=settings.rule, readout=settings.readout
    )
    if not found:
        raise InputError(f"{log.path}: holds no study; `lensaudit rtt run` writes them")
    assert log.path is not None
    folder = log.path.parent
    write_summaries(found, log, folder)
    renew(folder, SUMMARIES)
    failed = [one for one in found if not one.verdict.passed]
    failure = None
    if failed:
        failure = VerificationError(
            f"{failed[0].study.models['unlearned']}: {failed[0].verdict.reason}"
        )
    return Summarized(tuple(found), folder, failure=failure)


def check_log(log: Log) -> None:
    """Refuse a log whose lines are not all there, each as it was written.

    While a run is unfinished no manifest can say how many lines there are; its summary says how
    many jobs are not done.

    Raises:
        InputError: a line was edited, or one is missing; the manifest was edited or is missing.
    """
    assert log.ledger is not None
    path = log.ledger.path
    log.ledger.check("run the `lensaudit rtt run` that made it again")
    if not (path.parent / BEGUN).exists():
        check_whole(path, beside=False)
