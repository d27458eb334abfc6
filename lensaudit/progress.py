"""How far is it? One value after each finished piece."""

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


Tell = Callable[[Progress], None]
Notice = Callable[[str], None]
"""Told what a person should know about a result: remarks change nothing."""


class FolderRemark(str):
    """A remark on what lay in a folder before: it says nothing of the run."""


def unheard(*said: object) -> None:
    """Ignore a message; the default of `notice` and `progress`."""
