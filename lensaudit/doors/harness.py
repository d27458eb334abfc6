"""lm-evaluation-harness from commands: what was run the same way is read from its files."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from lensaudit.ask.again import Asked, once
from lensaudit.doors.task_files import files_of
from lensaudit.evaluation.settings import HarnessSettings
from lensaudit.progress import Notice
from lensaudit.results.owner import check_free
from lensaudit.results.reading import json_object
from lensaudit.results.run import RunResult
from lensaudit.settings import results_folder
from lensaudit.text import slug

COMMAND = "lm-eval"
SUMMARY = "LMEval_SUMMARY.json"


def harness_folder(settings: HarnessSettings) -> Path:
    """Result folder of `lm-eval`.

    Raises:
        InputError: the folder is another command's.
    """
    folder = settings.out or results_folder() / f"{slug(settings.model)}-lm-eval"
    check_free(folder, COMMAND, [SUMMARY])
    return folder


def harnessed(settings: HarnessSettings, *, notice: Notice) -> RunResult:
    """The results of `doors.lmeval.open_harness`; the harness is installed."""
    folder = harness_folder(settings)

    def made(_: Notice, opened: Callable[[], None]) -> RunResult:
        from lensaudit.doors.lmeval import open_harness  # seconds to import

        found = open_harness(settings, notice=notice)
        opened()
        return found.run(notice)

    vector = [] if settings.steer is None else [settings.steer.with_suffix(".json")]
    beside = [*vector, *files_of(settings.tasks, settings.include)]
    version = metadata.version("lm_eval")
    asked = Asked(settings=settings, anchors=(), beside=beside, by=version)
    return once(
        asked,
        [folder],
        lambda _: RunResult(settings.model, folder, json_object(folder / SUMMARY)),
        made,
        notice=notice,
    )
