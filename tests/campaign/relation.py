"""What a relation is: a claim about commands, asked in many cases."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from campaign.bench import Bench

Check = Callable[[Bench], None]
"""Raises Breach where the relation does not hold, Skipped where it cannot be asked."""


@dataclass(frozen=True)
class Case:
    """A relation asked of one thing."""

    relation: str
    of: str
    """What it is asked of; with the relation the name of the case."""
    check: Check
    slice: bool = False
    """Whether it is quick, and stands for its relation in the default test run."""
    weight: float = 1.0
    """About how long it takes, in calls that compute."""

    @property
    def name(self) -> str:
        """For the log and the list of known failures."""
        return f"{self.relation}: {self.of}"


@dataclass(frozen=True)
class Relation:
    """A claim, and the cases in which it is asked."""

    name: str
    claim: str
    cases: Callable[[int], Iterator[tuple]]
    """Seed -> cases: what it is asked of, how, and whether it stands in the slice."""

    def asked(self, seed: int) -> Iterator[Case]:
        """The cases of a seed."""
        for of, check, *more in self.cases(seed):
            yield Case(self.name, of, check, *more)


RELATIONS: dict[str, Relation] = {}


def relation(name: str, claim: str) -> Callable:
    """Register a function from a seed to cases."""

    def register(cases: Callable[[int], Iterator[tuple]]) -> Callable:
        RELATIONS[name] = Relation(name, claim, cases)
        return cases

    return register
