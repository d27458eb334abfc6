"""What is there to do, and how far is it? A plan before, one value after each finished piece."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """So much of a stage is done."""

    stage: str
    """What is going on: `caching demo/npo`, `evaluating demo/npo`."""
    done: int
    of: int
    piece: str = ""
    """What was finished last, in words, where a log wants a line for it."""


@dataclass(frozen=True)
class Plan:
    """What a run would do, counted before any model is loaded."""

    lines: tuple[str, ...]
    """For people."""
    n_forward: int = 0
    """Texts still to be run through a model as it is: read, cached or continued."""
    n_rows: int = 0
    """Texts still to be scored with something patched in."""
    n_bytes: int = 0
    """Size of the caches: of `patch` those still to be written, of `cache` all."""
    n_kept: int = 0
    """Finished passes of an evaluation that its folder holds."""
    done: bool = False
    """There is this very result, finished."""
    brief: str = ""
    """All of it in a line, where it is a step of a larger run."""

    def text(self) -> str:
        """The plan, a line for each of its parts."""
        return "\n".join(self.lines)


Tell = Callable[[Progress], None]
Notice = Callable[[str], None]
"""Told what a person should know about a result: remarks change nothing."""


class FolderRemark(str):
    """A remark on what lay in a folder before: it says nothing of the run."""


def unheard(*said: object) -> None:
    """Ignore a message; the default of `notice` and `progress`."""
