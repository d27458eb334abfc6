"""How much does a model know of each fact, in bits, beside somebody ignorant?

    e_i    = mean over readers of q_r(true) / g_i(true)      expectation 1 if g is the ignorant law
    bits_i = log2 of it with q' = .9 q + .1 g                bounded below; a reader can only lose

q_r is a reader's softmax over the candidates of a fact, g the prior of somebody ignorant. A mean of
e is an e-value under any dependence; a product is one only over parts that are independent. e-BH
names facts at a false discovery rate under any dependence (Wang and Ramdas 2022).
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

FLOOR = 0.02
"""Part of the prior that is spread evenly over the candidates."""
HEDGE = 0.1
"""Part of the prior in a reading before its logarithm is taken."""
Chances = Float[Tensor, " candidate"]
Readings = Float[Tensor, "reader candidate"]
"""Softmax over the candidates of a fact; the true value is the first."""


def prior_of(parts: Sequence[Chances]) -> Chances:
    """The largest of the priors at each candidate, floored; sums to 1 or more.

    Divided by it, e is at most 1 in the mean where any part, or a mixture, is the ignorant law.

    >>> prior_of([torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])])
    tensor([0.7500, 0.5000])
    """
    largest = torch.stack(list(parts)).max(0).values
    return largest.clamp(min=FLOOR / largest.shape[-1])


def evidence(read: Readings, prior: Chances) -> float:
    """Evidence e of a fact.

    >>> evidence(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0.25, 0.75]))
    3.0
    """
    return float((read[:, 0].double() / prior[0]).mean())


def bits(read: Readings, prior: Chances) -> float:
    """log2 of the hedged e: at least log2(.1).

    >>> round(bits(torch.tensor([[0.0, 1.0]]), torch.tensor([0.5, 0.5])), 4)
    -3.3219
    """
    return math.log2(HEDGE + (1 - HEDGE) * evidence(read, prior))


def named_facts(e: Mapping[int, float], level: float) -> list[int]:
    """e-BH: the k facts of largest e with e >= n / (k level), for the largest such k.

    >>> named_facts({1: 50.0, 2: 15.0, 3: 1.0}, 0.1)  # 3 / (1 * .1) = 30, 3 / (2 * .1) = 15
    [1, 2]
    >>> named_facts({1: 50.0, 2: 14.0, 3: 1.0}, 0.1), named_facts({1: 5.0}, 0.1)
    ([1], [])
    """
    order = sorted(e, key=lambda idx: (-e[idx], idx))
    kept = 0
    for k, idx in enumerate(order, 1):
        if e[idx] * k * level >= len(e) * (1 - 1e-12):
            kept = k
    return sorted(order[:kept])


def candidates_wanted(n_facts: int, n_named: int, level: float) -> int:
    """Candidates a fact needs before `n_named` of `n_facts` can be named: e is at most K.

    >>> candidates_wanted(64, 6, 0.1)
    107
    """
    return math.ceil(n_facts / (n_named * level) - 1e-9)
