"""What `know` found of one model, as its folder holds it; no model library is imported."""

from pathlib import Path

from lensaudit.files import slug
from lensaudit.results.records import RunResult, check_free
from lensaudit.settings import results_folder

COMMAND = "know"


class KnowResult(RunResult):
    """Which values one model binds to which subjects, and where it is written."""

    @property
    def headline(self) -> str:
        """The finding, in words."""
        return self.record.headline

    @property
    def p(self) -> float:
        """Of the assignment test."""
        return self.record.p

    @property
    def named(self) -> tuple[int, ...]:
        """Idx of the facts that are named."""
        return tuple(self.record.named)


def know_folder(source: str, folder: Path | None) -> Path:
    """Where the results of `know` go, unless others' are there.

    Raises:
        InputError: the folder was named, and is another command's.
    """
    if folder is not None:
        check_free(folder, COMMAND)
    return folder or results_folder() / f"know-{slug(source)}"
