"""Whose facts are known? A p for each person, from all facts that attacks score of them.

A model that never knew a person gives each of the person's entities no other place among its
placebos than chance does, once what models that never knew say of them is taken off (D, see
`naming.py`). So a candidate is drawn of each fact, the true entity among them: the share of
draws that stand out as far as the person's own entities do is a p (a randomisation test; Fisher
1935), if a fact's placebos are drawn as its entity was, fact by fact. A model that never knew is
asked alike, beside the others: who stands out there, too, does so without knowledge.

No p is corrected for the number of people: a model guesses facts of one person together, so that
very small p are more frequent than draws say (docs/evidence/know-person.md). What is said is how
many people would stand out by chance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from lensaudit.association.persons import Fit, beyond, facts_text, p_of, standard
from lensaudit.attacks.comparison import Findings, gaps_of
from lensaudit.attacks.naming import strongest
from lensaudit.data.facts import Fact
from lensaudit.groups import Group, grouped, is_own
from lensaudit.kinds.worst import WorstFact
from lensaudit.scores.recovery import Arms
from lensaudit.verdict.thresholds import ALPHA

PEOPLE = ("author", "asked", "out", "p", "p_never", "stands_out", "facts", "why")
N_DRAWS = 9_999
MOST_SAID = 20
"""People whom a sentence lists; the file has all."""


@dataclass(frozen=True)
class ScoredPerson:
    """How far the facts of one person stand out in one model."""

    group: Group
    p: float
    facts: Mapping[int, float]
    """Idx -> p of this fact alone."""
    never: float | None = None
    """Least p of the same person in models that never knew; None: there is but one."""

    @property
    def why(self) -> str:
        """Why a person does not stand out; never that nothing is held."""
        if self.p > ALPHA:
            return f"p {self.p:.2g}"
        if self.never is None:
            return "no second model that never knew was asked (--retain twice)"
        if self.never <= ALPHA:
            return f"no knowledge is needed: p {self.never:.2g} in a model that never knew"
        return ""

    @property
    def cells(self) -> list[Any]:
        """Its columns of `persons.csv`, from p on."""
        never = "" if self.never is None else self.never
        return [self.p, never, int(not self.why), facts_text(self.facts), self.why]


def p_drawn(fits: Sequence[Fit]) -> float:
    """P of a person: the share of draws that stand out as far, of one candidate a fact.

    Args:
        fits: of each fact, D of every candidate, the true entity first; numbers may differ.

    >>> round(p_drawn([np.array([3.0, 1.0, 2.0, 0.0])] * 2), 2)  # one of sixteen
    0.06
    """
    random, drawn, own = np.random.default_rng(0), np.zeros(N_DRAWS), 0.0
    for fit in (beyond(standard(one)) for one in fits):
        own += float(fit[0])
        drawn += fit[random.integers(len(fit), size=N_DRAWS)]
    return float((1 + (drawn >= own - 1e-12).sum()) / (1 + N_DRAWS))


def people_of(
    facts: Sequence[Fact], arms: Arms[Findings], counting: Sequence[str]
) -> list[ScoredPerson]:
    """The people whose facts are scored, beside the same in each model that never knew.

    Args:
        facts: that are asked; a row that names nobody is no person's.
        arms: what attacks found on each model.
        counting: the attacks that count.
    """
    # that a model is among those it stands beside changes D by a factor alone, which is taken out
    beside = (replace(arms, source=one) for one in arms.never if len(arms.never) > 1)
    own, *others = ([*_persons(facts, one, counting)] for one in chain((arms,), beside))
    ps = [{one.group: one.p for one in other} for other in others]
    return [replace(one, never=min((p[one.group] for p in ps), default=None)) for one in own]


def _persons(
    facts: Sequence[Fact], arms: Arms[Findings], counting: Sequence[str]
) -> Iterator[ScoredPerson]:
    by_group = grouped(
        (fact.group, (fact.idx, strongest(found).double().numpy()))
        for fact in sorted(facts, key=lambda one: one.idx)
        if not is_own(fact.group) and (found := gaps_of(arms, counting, fact)) is not None
    )
    for group, own in by_group.items():
        alone = {idx: p_of({"D": fit}) for idx, fit in own}
        yield ScoredPerson(group, p_drawn([fit for _, fit in own]), alone)


def said_of(people: Sequence[ScoredPerson]) -> str:
    """Who stands out, in words; empty where no row names anybody."""
    if not people:
        return ""
    out = [f"author {one.group} (p {one.p:.2g})" for one in people if not one.why]
    listed = [*out[:MOST_SAID], *(["…"] if len(out) > MOST_SAID else [])]
    barred = next((one.why for one in people if one.p <= ALPHA and one.why), "")
    parts = (
        f"{len(out)} of {len(people)} people stand out at {ALPHA:g} each, "
        f"{ALPHA * len(people):.2g} would by chance{': ' if out else ''}{', '.join(listed)}",
        barred and f"not counted: {barred}",
        "of the others something may be held" if len(out) < len(people) else "",
    )
    return "; ".join(filter(None, parts))


def rows_of(facts: Sequence[WorstFact], people: Sequence[ScoredPerson]) -> Iterator[list[Any]]:
    """The lines of `persons.csv`: everybody who is asked about, compared with others or not."""
    known = {one.group: one.cells for one in people}
    asked = (one for one in facts if not one.unscored and not is_own(one.group))
    for group, own in grouped((one.group, one.attacks) for one in asked).items():
        nothing = ["", "", 0, "", "no fact of theirs is compared with others"]
        yield [group, len(own), sum(map(bool, own)), *known.get(group, nothing)]
