"""Facts that are named as known at a bounded share of false ones.

The score of a fact's true entity is compared with those of placebo entities of the same kind. They
are not exchangeable even for a model that never knew: some entities are likelier than others. So
what is ranked is the difference to models that never saw the facts, in which that prior cancels:

    z_a(e) = (score_a(e) - mean) / sd           over the candidates of a fact, under attack a
    d_a(e) = z_Ma(e) - mean_j z_Rja(e)
    D(e)   = max_a (d_a(e) - mean) / sd
    p      = (1 + #{placebos c : D(c) >= D(true)}) / (1 + C)

The difference is taken attack by attack. Of two maxima (of the source's and of the control arm's
standardised scores) it would be mostly noise: attacks that read nothing have a largest score, too.
Facts are named by Benjamini and Hochberg (1995) where there are placebos enough, with the share of
unknown facts estimated from the p-values above .5 (Storey, Taylor and Siegmund 2004); else by
target-decoy competition (Elias and Gygi 2007; with the +1 of Barber and Candes 2015).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.stats import false_discovery_control
from torch import Tensor

from lensaudit.data.candidates import N_PLACEBOS

FDR = 0.1
_NULL_FROM = 0.5
"""P-values above this are those of facts that are not known."""
Exposure = Float[Tensor, "attack candidate"]
"""Scores of a fact's candidates by attack; the true entity is the first candidate. A row of NaN:
the attack does not score this fact."""


Method = Literal["benjamini-hochberg", "target-decoy", "none"]


@dataclass(frozen=True)
class Named:
    """The facts with their p, q and whether each is named, in their order."""

    statistic: tuple[float | None, ...]
    """D of the true entity; None where the fact was not scored."""
    p: tuple[float | None, ...]
    """None where it was not scored, or has no placebos enough for a p-value."""
    q: tuple[float | None, ...]
    """Smallest false discovery rate at which the fact is named."""
    method: Method
    level: float
    reason: str | None = None
    """Why no fact can be named at this level, whatever the models say; None where one can."""

    @property
    def named(self) -> tuple[bool, ...]:
        """Facts that are named."""
        return tuple(
            self.reason is None and q is not None and q <= self.level + 1e-12 for q in self.q
        )


def standardised(exposure: Exposure) -> Exposure:
    """The candidates of each attack with mean 0 and standard deviation 1; equal ones are 0."""
    rows = exposure.double()
    spread = rows.std(1, keepdim=True, correction=0)
    return ((rows - rows.mean(1, keepdim=True)) / spread.where(spread > 0, 1.0)).float()


def strongest(exposure: Exposure) -> Float[Tensor, " candidate"]:
    """The largest standardised row of each candidate over the attacks that score the fact.

    Of `gaps` this is D.

    Raises:
        ValueError: no attack scores it.
    """
    rows = exposure[exposure.isfinite().all(1)]
    if not len(rows):
        raise ValueError("naming: no attack scores this fact")
    return standardised(rows).max(0).values


def gaps(source: Exposure, retains: Sequence[Exposure]) -> Float[Tensor, "kept candidate"]:
    """D of every candidate by attack; those that score the fact in every arm."""
    both = [source, *retains]
    scored = np.logical_and.reduce([one.isfinite().all(1).numpy() for one in both])
    kept = scored.nonzero()[0].tolist()
    own, *others = (standardised(one[kept]) for one in both)
    return own - sum(others[1:], start=others[0]) / len(others)


def name_facts(found: Sequence[Float[Tensor, " _"] | None]) -> Named:
    """Name facts from D of their candidates, the true entity first; None: not scored.

    Facts may have different numbers of candidates. Those with fewer placebos than `N_PLACEBOS` are
    left out where most have enough, and all facts compete with one decoy each, the first placebo,
    where most have not: one list, one guarantee.
    """
    enough, scored = (
        {at: d for at, d in enumerate(found) if d is not None and len(d) > n}
        for n in (N_PLACEBOS, 1)
    )
    none: list[float | None] = [None] * len(found)
    if not scored:
        alone = any(d is not None for d in found)
        reason = "no fact has a placebo" if alone else "no attack that counts compares candidates"
        named = (none, none, "none", reason)
    elif 2 * len(enough) > len(scored):
        named = _by_rank(enough, none)
    else:
        named = _by_decoy(scored, none)
    p, q, method, reason = named
    statistic = tuple(None if d is None else float(d[0]) for d in found)
    return Named(statistic, tuple(p), tuple(q), method, FDR, reason)


Scored = Mapping[int, Float[Tensor, " _"]]
"""D of the candidates of facts, by their place."""
Marks = list[float | None]
Found = tuple[Marks, Marks, Method, str | None]
"""p, q, how they were found, and why no fact can be named."""


def _by_rank(facts: Scored, none: Marks) -> Found:
    given = [(1 + int((d[1:] >= d[0]).sum())) / len(d) for d in facts.values()]
    null = _share_unknown(given)
    p, q = none.copy(), none.copy()
    for at, one, adjusted in zip(facts, given, false_discovery_control(given), strict=True):
        p[at], q[at] = one, null * float(adjusted)
    smallest = 1 / max(map(len, facts.values()))
    wanted, reason = math.ceil(null * smallest * len(given) / FDR - 1e-9), None
    if wanted > len(given):
        reason = f"a p-value is at least {smallest:.3g}; {wanted} facts would be needed"
    return p, q, "benjamini-hochberg", reason


def _share_unknown(p: Sequence[float]) -> float:
    """Estimated share of unknown facts, at most 1; the +1 keeps the rate in small sets.

    >>> _share_unknown([0.01, 0.01, 0.01, 0.9])
    1.0
    >>> _share_unknown([0.01] * 9 + [0.9])
    0.4
    """
    return min(1.0, (1 + sum(one > _NULL_FROM for one in p)) / (len(p) * (1 - _NULL_FROM)))


def _by_decoy(facts: Scored, none: Marks) -> Found:
    """By decoys, with W = D(true) - D(decoy) > 0: q = min_{t <= W} (1 + #{W <= -t}) / #{W >= t}."""
    gaps = np.array([float(d[0] - d[1]) for d in facts.values()])
    q, best = none.copy(), 1.0
    for at, gap in sorted(zip(facts, gaps.tolist(), strict=True), key=lambda one: one[1]):
        if gap > 0:
            best = min(best, float((1 + (gaps <= -gap).sum()) / (gaps >= gap).sum()))
        q[at] = best
    reason = None
    if 1 / len(facts) > FDR:
        wanted = math.ceil(1 / FDR)
        reason = (
            f"{len(facts)} facts with fewer than {N_PLACEBOS} placebos; {wanted} would be needed"
        )
    return none, q, "target-decoy", reason
