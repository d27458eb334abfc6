"""A log of an evaluation, ours or open-unlearning's, aggregated again without a model."""

from pathlib import Path

from lensaudit.auditing.evaluate import COMMAND
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import InputError
from lensaudit.evaluation.log import completed, read_log, recomputed, write_log
from lensaudit.files import make_folder
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.manifest import MANIFEST, renew
from lensaudit.results.owner import check_free


def aggregate_log(
    log: Path, settings: EvaluateSettings, folder: Path | None = None
) -> EvaluationResult:
    """Recompute the aggregates of a log without a model; written only into a named folder.

    Raises:
        InputError: not a log, or one without rows; the folder holds another result.
    """
    if folder is not None:
        check_free(folder, COMMAND)
        if (folder / MANIFEST).exists() and folder.resolve() != log.resolve().parent:
            raise InputError(f"{folder}: holds the result of another run; name another --out")
    read = read_log(log)
    theirs = settings.retain_log
    retain = completed(read_log(Path(theirs))) if theirs else dict[str, MetricResult]()
    entries = recomputed(
        read, retain=retain, retain_value=settings.ref_value, names=settings.metrics
    )
    if not entries:
        raise InputError(f"{log}: holds no rows of a metric that is known here")
    if folder:
        log = write_log(make_folder(folder), read.suite, entries)
        renew(folder, [log.name, f"{read.suite.upper()}_SUMMARY.json"])
    return EvaluationResult(str(log), log, read.suite, entries)
