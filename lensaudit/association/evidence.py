"""From what readers say of every value to a p, bits of each fact, and what may be said.

Two questions, two numbers: is a value bound to its subject (association, the assignment test and
bits beside invented subjects called alike), and is it likelier than other values at all
(familiarity, bits beside a uniform guess). Neither says that a model is ignorant.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.association.reading import OUTPUTS
from lensaudit.data.relations import Relation
from lensaudit.groups import Group, grouped, unit_of
from lensaudit.results.attacks import KnowPower
from lensaudit.scores.assignment import (
    HEDGE,
    Assignment,
    Traces,
    assignment_test,
    bits,
    candidates_wanted,
    double_centred,
    evidence,
    gamma_of,
    named_facts,
    prior_of,
)
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean

LEVEL = 0.01
"""Chance of convicting an ignorant model by the assignment test."""
FDR = 0.1
"""Of the facts that are named."""
FEWEST_INVENTED = 16
"""Invented subjects a prior is made of."""
POWER = 0.8
Readings = Mapping[str, Float[Tensor, "subject value"]]
"""By reader what is said of a relation's values."""


@dataclass(frozen=True)
class RelationReading:
    """A relation and what every reader of one model says of it."""

    asked: Relation
    by_reader: Readings

    @property
    def table(self) -> Float[Tensor, "reading subject subject"]:
        """S of the real subjects: column j is the value of subject j."""
        n = len(self.asked.subjects)
        return torch.stack([one[:n] for one in self.by_reader.values()])[..., list(self.asked.true)]


Strata = Mapping[tuple[int, ...], tuple[Group, ...]]
"""Numbers of relations -> subjects that are asked all of them: their values may be exchanged."""


@dataclass(frozen=True)
class FactEvidence:
    """What a model holds of one fact."""

    idx: int
    group: Group
    relation: str
    familiar: float
    """Bits beside a uniform guess among the values."""
    associated: float | None
    """Bits beside the prior of somebody ignorant; None where no prior was asked."""
    e: float | None
    """Evidence value of the association."""
    named: bool = False


def strata_of(relations: Sequence[Sequence[Group]]) -> Strata:
    """Blocks of subjects and relations, so that all subjects of a block stand in all of them.

    One permutation serves all relations only where the permuted subjects are asked the same.
    Subjects begin apart by what they are asked; two blocks are joined, on the relations that both
    have, where (subjects - 1) times relations grows.

    >>> strata_of([["a", "b", "c"], ["a", "b"]])
    {(0, 1): ('a', 'b')}
    """
    asked = grouped((one, at) for at, groups in enumerate(relations) for one in groups)
    blocks = grouped((frozenset(pattern), one) for one, pattern in asked.items())

    def gain(pair: tuple[frozenset[int], frozenset[int]]) -> int:
        """What two blocks are worth as one beyond what they are worth apart."""
        a, b = pair
        n_a, n_b = len(blocks[a]), len(blocks[b])
        return (n_a + n_b - 1) * len(a & b) - (n_a - 1) * len(a) - (n_b - 1) * len(b)

    while len(blocks) > 1 and gain(best := max(combinations(blocks, 2), key=gain)) > 0:
        a, b = best
        joined = blocks.pop(a) + blocks.pop(b)
        blocks[a & b] = blocks.get(a & b, []) + joined
    return {
        tuple(sorted(pattern)): tuple(groups)
        for pattern, groups in blocks.items()
        if len(groups) > 1 and pattern
    }


def traces_of(read: Sequence[RelationReading]) -> tuple[list[Traces], Strata]:
    """D of every stratum, summed over its relations."""
    groups = [[fact.group for fact in one.asked.facts] for one in read]
    traces, strata = [], strata_of(groups)
    for relations, subjects in strata.items():
        parts = []
        for at in relations:
            places = [groups[at].index(one) for one in subjects]
            parts.append(double_centred(read[at].table[:, places][..., places].double()))
        traces.append(torch.stack(parts).sum(0))
    return traces, strata


def binding_of(read: Sequence[RelationReading], *, seed: int) -> Assignment:
    """The assignment test over all relations and readers, with the tilt that p at `LEVEL` bears."""
    traces, _ = traces_of(read)
    generator = np.random.default_rng(seed)
    test = assignment_test(traces, generator=generator)
    alone = [one[test.reading] for one in traces]
    return replace(test, gamma=gamma_of(alone, LEVEL, generator=generator))


def by_relation(read: Sequence[RelationReading], *, seed: int) -> list[Assignment]:
    """The same test of every relation by itself."""
    return [
        assignment_test([double_centred(one.table)], generator=np.random.default_rng(seed))
        for one in read
    ]


def priors_of(
    own: RelationReading, others: Sequence[RelationReading], never: Sequence[RelationReading]
) -> Float[Tensor, "subject value"] | None:
    """What somebody ignorant says of every subject's values: the largest of all that is known.

    Uniform; a base model; the source about invented subjects, by the reader that says most; the
    tempered mean of two and more never-trained models.

    Args:
        own: of the source.
        others: of models that are ignorant each by itself, as a base.
        never: of never-trained models, noisy guessers each.
    """
    n, n_values = len(own.asked.subjects), len(own.asked.values)
    parts = [torch.full((n, n_values), 1 / n_values, dtype=torch.float64)]
    parts += [one.by_reader[OUTPUTS][:n].exp() for one in others]
    if len(own.asked.invented) >= FEWEST_INVENTED and OUTPUTS in own.by_reader:
        parts.append(_alike(own.by_reader[OUTPUTS][n:].exp(), n))
    if len(never) > 1:
        logs = torch.stack([one.by_reader[OUTPUTS][:n] for one in never])
        parts.append(logs.mean(0).softmax(-1))
    if len(parts) == 1:
        return None
    return torch.stack([prior_of([part[at] for part in parts]) for at in range(n)])


def _alike(rows: Float[Tensor, "invented value"], n: int) -> Float[Tensor, "subject value"]:
    """The mean over a subject's own invented namesakes: they stand subject after subject."""
    if len(rows) % n == 0 and len(rows) // n >= FEWEST_INVENTED:
        return rows.unflatten(0, (n, -1)).mean(1)
    return rows.mean(0).expand(n, -1)


def facts_of_read(
    own: RelationReading, prior: Float[Tensor, "subject value"] | None
) -> Iterator[FactEvidence]:
    """Bits of every fact of a relation."""
    relation, n_values = own.asked, len(own.asked.values)
    uniform = torch.full((n_values,), 1 / n_values, dtype=torch.float64)
    for at, (fact, true) in enumerate(zip(relation.facts, relation.true, strict=True)):
        order = [true, *(one for one in range(n_values) if one != true)]
        said = torch.stack([rows[at].exp() for rows in own.by_reader.values()])[:, order]
        given = None if prior is None else prior[at][order]
        yield FactEvidence(
            fact.idx,
            fact.group,
            relation.name,
            bits(said, uniform),
            None if given is None else bits(said, given),
            None if given is None else evidence(said, given),
        )


def mean_of(values: Sequence[float], groups: Sequence[Group], top: float) -> Estimate:
    """Mean with its interval by authors; `top` is the most that a value can be."""
    bounds = (math.log2(HEDGE), max(top, *values))
    return clustered_mean(values, groups, bounds=bounds, unit=unit_of(groups))


def naming_of(facts: Sequence[FactEvidence], n_candidates: int) -> tuple[list[int], dict[str, Any]]:
    """e-BH over all facts: idx of those that are named, and how, or why none can be.

    `fewest` facts must be known before any can be named: e is at most the candidates. Refused
    where e cannot reach it, with the candidates that would do.
    """
    e, how = {one.idx: one.e for one in facts if one.e is not None}, {"fdr": FDR, "fewest": None}
    if not e:
        return [], {**how, "why": "no prior of somebody ignorant was asked: name --base"}
    fewest = math.ceil(len(e) / (n_candidates * FDR) - 1e-9)
    if fewest > len(e):
        some = max(1, len(e) // 10)
        wanted = candidates_wanted(len(e), some, FDR)
        why = f"{n_candidates} candidates a fact; {some} facts can be named from {wanted} on"
        return [], {**how, "why": f"{why} (--placebos)"}
    return named_facts(e, FDR), {**how, "fewest": fewest, "why": None}


def power_of(read: Sequence[RelationReading], *, seed: int, n_worlds: int = 40) -> KnowPower:
    """The knowledge that would have been found, planted into what the model says of others.

    The values are given out anew, so that nothing is bound, and each true one is made likelier by
    the same factor, in every reader. The least factor whose p is at `LEVEL` in four of five draws.
    """
    generator = np.random.default_rng(seed)
    traces, _ = traces_of(read)
    worlds = [
        [one[..., torch.from_numpy(generator.permutation(one.shape[-1]))] for one in traces]
        for _ in range(n_worlds)
    ]
    for nats in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0):
        found = 0
        for world in worlds:
            planted = [
                double_centred(one + nats * len(read) * torch.eye(one.shape[-1])) for one in world
            ]
            test = assignment_test(planted, generator=generator, n_draws=400)
            found += test.p <= LEVEL
        if found >= POWER * n_worlds:
            return KnowPower(_bits_of(nats, read), POWER)
    return KnowPower(None, POWER)


def _bits_of(nats: float, read: Sequence[RelationReading]) -> float:
    """Mean bits that a factor of exp(nats) at the true value adds to a uniform guess."""
    sizes = [len(one.asked.values) for one in read]
    shares = [math.exp(nats) / (math.exp(nats) + k - 1) for k in sizes]
    return float(np.mean([math.log2(share * k) for share, k in zip(shares, sizes, strict=True)]))
