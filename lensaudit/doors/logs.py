"""A log of an evaluation, ours or open-unlearning's, aggregated again without a model."""

from collections.abc import Mapping
from pathlib import Path

from lensaudit.auditing.evaluate import COMMAND
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import InputError
from lensaudit.evaluation.log import completed, read_log, recomputed, write_log
from lensaudit.evaluation.suite import check_beside, model_in_log, rows_in
from lensaudit.files import make_folder
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.owner import check_free


def aggregate_log(
    log: Path, settings: EvaluateSettings, folder: Path | None = None
) -> EvaluationResult:
    """Recompute the aggregates of a log without a model; written only into a named folder.

    Raises:
        InputError: not a log, or one without rows; the folder holds the log or another result;
            the retain log does not belong to it.
    """
    if folder is not None:
        check_free(folder, COMMAND)
    read = read_log(log)
    if folder is not None and folder.resolve() == read.folder.resolve():
        raise InputError(f"{folder}: holds the log itself, which may say more; name another --out")
    if folder is not None and (folder / MANIFEST).exists():
        raise InputError(f"{folder}: holds the result of another run; name another --out")
    entries = recomputed(
        read,
        retain=_retain_beside(read, settings),
        retain_value=settings.ref_value,
        names=settings.metrics,
    )
    if not entries:
        raise InputError(f"{log}: holds no rows of a metric that is known here")
    if folder:
        log = write_log(make_folder(folder), read.suite, entries)
    return EvaluationResult(str(log), log, read.suite, entries)


def _retain_beside(
    model: EvaluationResult, settings: EvaluateSettings
) -> Mapping[str, MetricResult]:
    """The metrics of the retain log that was named, held to the model's; empty without one.

    Raises:
        InputError: it is none, or belongs to another run; names the first difference.
    """
    if not settings.retain_log:
        return {}
    retain = read_log(Path(settings.retain_log))
    rows = {place: (model.path, found) for place, found in rows_in(model).items()}
    own = model_in_log("source", model)
    check_beside(retain, model.suite, own, model.conditions, rows)
    return completed(retain)
