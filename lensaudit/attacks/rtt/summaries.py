"""A log is summarised, again and again: nothing is trained, and nothing of torch is needed."""

from dataclasses import dataclass
from pathlib import Path

from lensaudit.attacks.rtt.log import read_log
from lensaudit.attacks.rtt.settings import SummarySettings
from lensaudit.attacks.rtt.summary import Summary, summarize
from lensaudit.attacks.rtt.table import SUMMARIES, write_summaries
from lensaudit.errors import InputError, LensAuditError, VerificationError
from lensaudit.progress import Notice
from lensaudit.results.records import claim, renew


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


def summarize_log(settings: SummarySettings, notice: Notice | None = None) -> Summarized:
    """Read and write the summaries of a log again; `notice` is told what of it does not count.

    Raises:
        InputError: there is no log, or it holds no study.
    """
    log = read_log(settings.log, must_exist=True, notice=notice)
    found = summarize(
        log, selection=settings.selection, rule=settings.rule, readout=settings.readout
    )
    if not found:
        raise InputError(f"{log.path}: holds no study; `lensaudit rtt run` writes them")
    assert log.path is not None
    folder = log.path.parent
    claim(folder, "rtt run", ())
    write_summaries(found, log, folder)
    renew(folder, SUMMARIES)
    failed = [one for one in found if not one.verdict.passed]
    failure = None
    if failed:
        failure = VerificationError(
            f"{failed[0].study.models['unlearned']}: {failed[0].verdict.reason}"
        )
    return Summarized(tuple(found), folder, failure=failure)
