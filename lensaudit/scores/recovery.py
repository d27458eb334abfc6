"""How much of what `full` holds does an attack bring back, beside models that never knew?

    recovery = (M - R) / (F - R)

with M, R and F what is read of the audited model, of models that never knew and of `full`, each
after the same attack: 0 where the attack brings back no more than it teaches a model that never
knew, 1 where it brings back all that `full` holds.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import Values, clustered_ratio

AnyRead = TypeVar("AnyRead")
Other = TypeVar("Other")


@dataclass(frozen=True)
class Arms(Generic[AnyRead]):
    """The models that an attack is run on alike, or what is read of each."""

    source: AnyRead
    """The audited model."""
    full: AnyRead
    """The positive control: it knows."""
    never: tuple[AnyRead, ...]
    """The control arm: models that never knew."""

    def each(self, read: Callable[[AnyRead], Other]) -> "Arms[Other]":
        """What `read` makes of every arm."""
        return Arms(read(self.source), read(self.full), tuple(map(read, self.never)))


def recovery(
    source: Values,
    full: Values,
    never: Values,
    groups: Sequence[Hashable],
    *,
    level: float = 0.95,
    unit: str = "author",
) -> Estimate:
    """(M - R) / (F - R) of means over rows, with its interval (Fieller) by groups.

    Args:
        source: of the audited model, by row.
        full: of `full`.
        never: of models that never knew, their mean where there are several.
        groups: author of each row.
        level: of the interval.
        unit: what a group is called where there is no interval.

    >>> recovery([1, 0], [1, 1], [0, 0], ["a", "b"]).value
    0.5
    """
    known, ceiling, floor = (np.asarray(one, dtype=float) for one in (source, full, never))
    return clustered_ratio(known - floor, ceiling - floor, groups, level=level, unit=unit)
