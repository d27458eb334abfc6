"""A step of an audit that is done by a room above; the caller passes it in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from lensaudit.auditing.settings import AuditSettings
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Tell
from lensaudit.results.run import RunResult


@runtime_checkable
class Opened(Protocol):
    """A question with all that it reads opened and checked; nothing is loaded or written."""

    def plan(self) -> Sequence[str]:
        """What is left to do, in lines."""
        ...

    def run(self, folder: Path, *, progress: Tell) -> RunResult:
        """Do the step, and write its result."""
        ...


@runtime_checkable
class Step(Protocol):
    """A step that asks one source something beside its depth, on the same rows and kept rows."""

    def key(self, source: str, asked: PatchSettings, controls: Sequence[str]) -> str:
        """Content hash of everything that decides the step's result.

        Args:
            source: that is asked.
            asked: what `patch` is asked.
            controls: models that never saw the facts; the source is none.

        Raises:
            InputError: a name, a file or a setting is wrong.
        """
        ...

    def open(self, source: str, asked: PatchSettings, controls: Sequence[str]) -> Opened:
        """The step, opened; arguments and errors are those of `key`."""
        ...


def wanted(who: Step | None, settings: AuditSettings) -> Step | None:
    """The step that asks who has what; None where the settings leave it out.

    Raises:
        ValueError: they want it, and no step was handed on.
    """
    if settings.association == "none":
        return None
    if who is None:
        raise ValueError(
            f"association={settings.association!r}: the step that asks who has what was not "
            "given; call lensaudit.audit, or set association='none'"
        )
    return who
