"""Steering from commands: a run that was asked before is read from its files, without torch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lensaudit.ask.again import Asked, once
from lensaudit.errors import WorkError
from lensaudit.progress import Notice, Tell
from lensaudit.results.kinds.directions import DirectionsRecord
from lensaudit.results.reading import json_object, read_as
from lensaudit.results.run import RunResult
from lensaudit.steer.settings import AskSettings, DirectionSettings, EvalSettings, LayerSettings
from lensaudit.steer.trait import audit_folder, files_of, folder_of, load_trait

Results = tuple[dict[str, Any], Path]
"""What a run wrote, and its file."""


def steered(settings: AskSettings, *, notice: Notice, progress: Tell) -> Results:
    """As `steer.evaluate.Steering.run`, over coefficients or over layers."""
    folder = folder_of(settings, load_trait(settings.trait))
    file, manifest = files_of(settings)

    def made(tell: Notice, opened: Callable[[], None]) -> Results:
        from lensaudit.steer.evaluate import Steering  # seconds to import

        job = Steering.of(settings, tell)
        opened()
        return job.run(progress)

    beside = []
    if isinstance(settings, EvalSettings):
        beside = [settings.vector.with_suffix(".json")]
    elif isinstance(settings, LayerSettings) and settings.vectors is None:
        beside = [folder / "vectors"]
    return once(
        Asked(settings=settings, anchors=(), beside=beside),
        [folder],
        lambda _: (json_object(folder / file), folder / file),
        made,
        notice=notice,
        manifest=manifest,
    )


def directed(settings: DirectionSettings, *, notice: Notice, progress: Tell) -> RunResult:
    """As `steer.audit.run`, opened and done."""
    folder = audit_folder(settings)

    def made(tell: Notice, opened: Callable[[], None]) -> RunResult:
        from lensaudit.steer.audit import open_audit, run  # seconds to import

        audit = open_audit(settings, tell)
        opened()
        return run(audit, progress, tell)

    def read(_: Sequence[Path]) -> RunResult:
        return RunResult(settings.name, folder, read_as(DirectionsRecord, folder / "summary.json"))

    return once(Asked(settings=settings), [folder], read, made, notice=notice)


def check_scored(record: DirectionsRecord) -> None:
    """Fail where no experiment could be scored; the files say why.

    Raises:
        WorkError: with the reasons.
    """
    reasons = {one.unscored for one in record.experiments.values()}
    if all(reasons):
        said = "; ".join(sorted(filter(None, reasons)))
        raise WorkError(f"{record.source}: nothing could be scored ({said})")
