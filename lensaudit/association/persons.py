"""Of whom does a model hold something? A p for each person alone, however few facts there are.

To a model that never saw a person, the person's name is one of many that nobody has. The share of
these names, the own one among them, to which it gives the person's values at least as readily is an
exact p, whatever measures how readily (a conformal p; Vovk, Gammerman and Shafer 2005), as far as
the names of nobody are drawn as the person's was. Holm's correction serves all people together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.association.opening import names_wanted
from lensaudit.association.reading import RelationReading
from lensaudit.groups import Group, grouped
from lensaudit.verdict.thresholds import ALPHA

COLUMNS = ("author", "name", "n", "p", "p_holm", "p_never", "found", "facts", "why")
Fit = NDArray[np.float64]
"""How readily a name is given a value, or all of a person's; the last axis: the own name first."""


@dataclass(frozen=True)
class Person:
    """What one model holds of one person, beside names that nobody has."""

    group: Group
    name: str
    p: float
    facts: Mapping[int, float]
    """Idx -> p of this fact alone, not corrected."""
    holm: float = 1.0
    """P after Holm's correction over all people of the run."""
    never: float | None = None
    """Least p of the same person in models that never knew; None where none was asked."""

    @property
    def found(self) -> bool:
        """Something is held of this person, and names do not give it away."""
        return not self.why

    @property
    def why(self) -> str:
        """Why a person is not found; never that nothing is held."""
        if self.holm > ALPHA:
            return f"p {self.holm:.2g} after correction"
        if self.never is None:
            return "no model that never knew was asked (--base, --retain)"
        if self.never <= ALPHA:
            return f"names may tell: p {self.never:.2g} in a model that never knew"
        return ""

    @property
    def row(self) -> list[Any]:
        """Its line of `persons.csv`."""
        numbers = [self.p, self.holm, "" if self.never is None else self.never]
        facts = facts_text(self.facts)
        return [
            *(self.group, self.name, len(self.facts), *numbers, int(self.found), facts, self.why)
        ]


def facts_text(facts: Mapping[int, float]) -> str:
    """Facts with the p of each alone, as one cell of `persons.csv`.

    >>> facts_text({3: 0.01, 12: 0.5})
    '3:0.01 12:0.5'
    """
    return " ".join(f"{idx}:{p:.3g}" for idx, p in facts.items())


def standard(values: Fit) -> Fit:
    """In units of their own spread, along the last axis; all alike are 0."""
    spread = values.std(-1, keepdims=True)
    return (values - values.mean(-1, keepdims=True)) / np.where(spread > 0, spread, 1.0)


def beyond(values: Fit) -> Fit:
    """What fits better than the mean does, squared: in a sum the facts count that are held."""
    return np.maximum(values, 0) ** 2


def by_kind(fits: Mapping[str, Fit]) -> dict[str, Fit]:
    """By kind of reader, the layer that fits best, for every name alike; by its own spread."""
    kinds = grouped((reader.split()[0], fit) for reader, fit in fits.items())
    return {kind: standard(np.max(one, 0)) for kind, one in kinds.items()}


def p_of(fits: Mapping[str, Fit]) -> float:
    """The share of names, the own one among them, that fit as well; of each the best kind counts.

    >>> p_of({"outputs": np.array([3.0, 1.0, 2.0, 0.0])})
    0.25
    """
    best = np.max([*by_kind(fits).values()], 0)
    return float((best >= best[0] - 1e-12).mean())


def p_of_person(tables: Sequence[Mapping[str, Fit]]) -> float:
    """P of all facts of one person: the sum of squares of what fits better than the mean does.

    Args:
        tables: by relation, reader -> log-probability of the person's value, nats, by name.
    """
    own = {reader: standard(np.array([table[reader] for table in tables])) for reader in tables[0]}
    return p_of({kind: beyond(one).sum(0) for kind, one in by_kind(own).items()})


def persons_in(read: Sequence[RelationReading]) -> Iterator[Person]:
    """Each person of these relations, whose further subjects are names of nobody."""
    places = grouped(
        (fact.group, (one, at, fact.idx)) for one in read for at, fact in enumerate(one.asked.facts)
    )
    for group, own in places.items():
        tables = dict[int, dict[str, Fit]]()
        for one, at, idx in own:
            n, value = len(one.asked.facts), one.asked.true[at]
            names = [at, *range(n, len(one.asked.subjects))]
            tables[idx] = {key: rows[names, value].numpy() for key, rows in one.by_reader.items()}
        alone = {
            idx: p_of({key: standard(fit) for key, fit in one.items()})
            for idx, one in tables.items()
        }
        first, at, _ = own[0]
        yield Person(group, first.asked.subjects[at], p_of_person([*tables.values()]), alone)


def people_of(
    own: Sequence[RelationReading], never: Sequence[Sequence[RelationReading]]
) -> list[Person]:
    """The people of a run, each corrected for all, beside the same in models that never knew."""
    found = list(persons_in(own))
    others = [{one.group: one.p for one in persons_in(read)} for read in never]
    holm = holm_of([one.p for one in found])
    return [
        replace(one, holm=p, never=min((other[one.group] for other in others), default=None))
        for one, p in zip(found, holm, strict=True)
    ]


def holm_of(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p: the least times their number, the next times one less, never falling.

    >>> [round(one, 3) for one in holm_of([0.02, 0.005, 0.9])]
    [0.04, 0.015, 0.9]
    """
    order = np.argsort(ps, kind="stable")
    raised = np.maximum.accumulate(np.array(ps)[order] * np.arange(len(ps), 0, -1)).clip(max=1.0)
    return raised[np.argsort(order)].tolist()


def said_of(people: Sequence[Person], n_names: int) -> str:
    """Who is found, in words; never that nothing is held of anybody."""
    n = len(people)
    if n_names < (wanted := names_wanted(n)):
        return f"{n_names} names can find nobody among {n} people; {wanted} wanted (--strangers)"
    found = [f"{one.name} (p {one.p:.2g})" for one in people if one.found]
    barred = next((one.why for one in people if one.holm <= ALPHA and not one.found), "")
    parts = (
        f"{len(found)} of {n} people found at {ALPHA:g} over all, if the names of nobody were "
        f"drawn as theirs{': ' if found else ''}{', '.join(found)}",
        barred and f"not counted: {barred}",
        "of who is not found something may be held",
    )
    return "; ".join(filter(None, parts))
