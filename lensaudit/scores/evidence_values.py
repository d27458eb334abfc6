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

from lensaudit.scores.estimate import Estimate

FLOOR = 0.02
"""Part of the prior that is spread evenly over the candidates."""
HEDGE = 0.1
"""Part of the prior in a reading before its logarithm is taken."""
SEQUENCE_FROM = 20
"""Authors from which a confidence sequence is made."""
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


def bits_sequence(
    means: Sequence[float], *, low: float, high: float, level: float = 0.05
) -> Estimate:
    """Confidence sequence of the mean bits by author, in the order given, which must be random.

    Hedged capital (Waudby-Smith and Ramdas 2023, section 4): two betting martingales against each
    candidate mean, the bets predictable plug-ins; the interval holds the means that are not bet
    down to `level`, at every time.
    """
    if len(means) < SEQUENCE_FROM:
        value = sum(means) / len(means) if means else math.nan
        why = f"{len(means)} authors; a confidence sequence needs {SEQUENCE_FROM}"
        return Estimate(value, n=len(means), why=why)
    x = (torch.tensor(means, dtype=torch.float64).clamp(low, high) - low) / (high - low)
    grid = torch.linspace(0, 1, 2003, dtype=torch.float64)[1:-1]
    up, down = torch.zeros_like(grid), torch.zeros_like(grid)
    kept = torch.ones_like(grid, dtype=torch.bool)
    total, square = 0.5, 0.25
    for t, one in enumerate(x.tolist(), 1):
        # square / t is the variance of what was seen before
        bet = math.sqrt(2 * math.log(2 / level) / (square * math.log(1 + t)))
        up += torch.log1p((0.5 / grid).clamp(max=bet) * (one - grid))
        down += torch.log1p(-(0.5 / (1 - grid)).clamp(max=bet) * (one - grid))
        capital = torch.maximum(up, down) + math.log(0.5)
        kept &= capital < math.log(1 / level)
        total += one
        square += (one - total / (t + 1)) ** 2
    inside = grid[kept] * (high - low) + low
    return Estimate(sum(means) / len(means), float(inside[0]), float(inside[-1]), len(means))
