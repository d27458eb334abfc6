"""How far is the work? One value, told to one callback after each finished piece."""

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
Tick = Callable[[str, int, int], None]
"""Told the same in pieces, by what knows of one stage: what is going on, how many are done, of how
many."""
Notice = Callable[[str], None]
"""Told what a person should know about a result: remarks change nothing."""


def unheard(said: object) -> None:
    """Drop what is told: nobody listens."""
