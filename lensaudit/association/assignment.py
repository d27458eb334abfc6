"""Does a model bind values to subjects? An exact test without a model that never knew.

A relation is a set of facts asked in one way about n subjects. S[i, j] is the log-softmax over j of
the summed log-prob of subject j's value after subject i's prompt, D is S double-centred, and

    T_pi = sum over relations of sum_i D[i, pi(i)]        one permutation of the subjects in all

Where whole subjects are exchangeable the true assignment is as likely as any other to a model that
is ignorant, whatever the model, its tokenizer and the difficulty of the values: the share of
permutations with T_pi >= T is an exact p. Of several readings r the largest standardised T counts,
the same maximum in every permutation, so that one p needs no correction.

That values are exchangeable given the names is an assumption. `gamma_of` says how far it may fail
(Rosenbaum 2002): subjects are paired, and cues may make the true one of a pair's two assignments
Gamma^2 times as likely as the other.

How much a model knows of each fact is told in bits, beside somebody ignorant:

    e_i    = mean over readers of q_r(true) / g_i(true)      expectation 1 if g is the ignorant law
    bits_i = log2 of it with q' = .9 q + .1 g                bounded below; a reader can only lose

q_r is a reader's softmax over the candidates of a fact, g the prior of somebody ignorant. A mean of
e is an e-value under any dependence; a product is one only over parts that are independent. e-BH
names facts at a false discovery rate under any dependence (Wang and Ramdas 2022).

Conditional randomisation: Candes et al. 2018; exchangeability of what was trained on: Oren et al.
2023 (arXiv:2310.17623).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

N_DRAWS = 20_000
"""Permutations that are drawn where there are too many to list."""
LISTED = math.factorial(7)
"""Permutations up to which all are listed: those of seven subjects."""
N_PAIRINGS = 101
"""Random pairings of subjects, of whose p the median is taken."""
LARGEST_GAMMA = 64.0
_CHUNK = 1000
Traces = Float[Tensor, "reading _ _"]
"""D of the subjects of one stratum, summed over their relations, nats; the true values lie on the
diagonal."""


@dataclass(frozen=True)
class Assignment:
    """How likely the true assignment is among all."""

    p: float
    z: float
    """The largest standardised trace: mean 0 and standard deviation 1 over permutations where
    there is one reading."""
    reading: int
    """Which one it is of."""
    n_permutations: int
    """That were compared; all there are, or those drawn."""
    exact: bool
    """All were listed."""
    gamma: float = 0.0
    """Largest tilt by cues that p survives, see `gamma_of`; 0: none, or it was not asked."""


def double_centred(table: Float[Tensor, "*reading subject value"]) -> Float[Tensor, "..."]:
    """Rows and columns with mean 0: how easy a value is, and how sure a prompt, cancel.

    >>> double_centred(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[0., 0.],
            [0., 0.]])
    """
    rows = table - table.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def assignment_test(
    strata: Sequence[Traces], *, generator: np.random.Generator, n_draws: int = N_DRAWS
) -> Assignment:
    """The exact p of the true assignment; values are exchanged within a stratum only.

    Two subjects whose values are exchanged: of two permutations one is at least as large.

    >>> found = assignment_test([torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])],
    ...                         generator=np.random.default_rng(0))
    >>> found.p, found.z, found.exact
    (0.5, 1.0, True)
    """
    tables = [one.double().numpy() for one in strata if one.shape[-1] > 1]
    if not tables:  # nothing can be exchanged: the true assignment is the only one
        return Assignment(1.0, 0.0, 0, 1, exact=True)
    # standard deviation of the trace over permutations, by reading
    spread = np.sqrt(sum((one**2).sum((1, 2)) / (one.shape[-1] - 1) for one in tables))
    true = sum(np.trace(one, axis1=1, axis2=2) for one in tables)
    statistic, reading = _largest(np.atleast_2d(true), spread)
    exact = math.prod(math.factorial(one.shape[-1]) for one in tables) <= LISTED
    drawn = _listed(tables) if exact else _drawn(tables, generator, n_draws)
    n_permutations, as_large = 0, 0
    # sums of the same numbers in another order differ in their last digits
    least = statistic[0] - 1e-9 * max(1.0, abs(statistic[0]))
    for traces in drawn:
        n_permutations += len(traces)
        as_large += int((_largest(traces, spread)[0] >= least).sum())
    p = as_large / n_permutations if exact else (1 + as_large) / (1 + n_permutations)
    return Assignment(p, float(statistic[0]), int(reading[0]), n_permutations, exact)


def _largest(
    traces: NDArray[np.float64], spread: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The largest standardised trace of every permutation, and of which reading it is."""
    scaled = np.divide(traces, spread, out=np.zeros_like(traces), where=spread > 0)
    return scaled.max(1), scaled.argmax(1)


def _permuted(table: NDArray[np.float64], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    """Trace of each permutation by reading."""
    return table[:, np.arange(table.shape[-1]), drawn].sum(-1).T


def _listed(tables: Sequence[NDArray[np.float64]]) -> Iterator[NDArray[np.float64]]:
    parts = [_permuted(one, np.array(list(permutations(range(one.shape[-1]))))) for one in tables]
    yield np.array([sum(rows) for rows in product(*parts)])


def _drawn(
    tables: Sequence[NDArray[np.float64]], generator: np.random.Generator, n_draws: int
) -> Iterator[NDArray[np.float64]]:
    for low in range(0, n_draws, _CHUNK):
        n = min(_CHUNK, n_draws - low)
        yield sum(
            _permuted(one, generator.permuted(np.tile(np.arange(one.shape[-1]), (n, 1)), axis=1))
            for one in tables
        )  # pyright: ignore[reportReturnType]


def tilted_p(
    strata: Sequence[Float[Tensor, "_ _"]],
    gamma: float,
    *,
    generator: np.random.Generator,
    n_pairings: int = N_PAIRINGS,
) -> float:
    """Largest p where cues favour the true one of two assignments gamma^2 times; the median.

        d_k = D[i,i] + D[j,j] - D[i,j] - D[j,i],    P(sum |d_k| B_k >= sum d_k)
        B_k = 1 with chance gamma^2 / (1 + gamma^2), else -1

    |d_k|: a cue may as well favour the assignment that is not the true one, and the largest p of
    all tilts up to gamma is wanted (Rosenbaum 2002, section 4.3).
    """
    tables = [one.double().numpy() for one in strata]
    return float(np.median([_pairing_p(tables, gamma, generator) for _ in range(n_pairings)]))


def _pairing_p(
    tables: Sequence[NDArray[np.float64]], gamma: float, generator: np.random.Generator
) -> float:
    parts = []
    for table in tables:  # what the true assignment of each pair has over the exchanged one, nats
        i, j = generator.permutation(len(table))[: len(table) // 2 * 2].reshape(2, -1)
        parts.append(table[i, i] + table[j, j] - table[i, j] - table[j, i])
    gains = np.concatenate(parts)
    if not len(gains):
        return 1.0
    share = gamma**2 / (1 + gamma**2)
    if len(gains) <= 12:
        signs = 1.0 - 2 * (np.arange(2 ** len(gains))[:, None] >> np.arange(len(gains)) & 1)
        weights = np.where(signs > 0, share, 1 - share).prod(1)
    else:
        signs = np.where(generator.random((N_DRAWS // 10, len(gains))) < share, 1.0, -1.0)
        signs = np.concatenate((np.sign(gains)[None], signs))
        weights = np.full(len(signs), 1 / len(signs))
    sums = signs @ abs(gains)
    return min(1.0, float(weights[sums >= gains.sum() - 1e-9 * abs(gains).sum()].sum()))


def gamma_of(
    strata: Sequence[Float[Tensor, "subject value"]],
    level: float,
    *,
    generator: np.random.Generator,
) -> float:
    """The largest tilt under which p is at most `level`, to 2 %; 0 where it never is.

    1 says that no tilt is borne: with few pairs p cannot be small. At most `LARGEST_GAMMA`.
    """
    seed = int(generator.integers(2**63))

    def holds(gamma: float) -> bool:
        # the same pairings and draws for every gamma: p grows with it
        return tilted_p(strata, gamma, generator=np.random.default_rng(seed)) <= level

    if not holds(1.0):
        return 0.0
    low, high = 1.0, LARGEST_GAMMA
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


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
    least = len(e) * (1 - 1e-12) / level
    kept = max((k for k, idx in enumerate(order, 1) if e[idx] * k >= least), default=0)
    return sorted(order[:kept])


def candidates_wanted(n_facts: int, n_named: int, level: float) -> int:
    """Candidates a fact needs before `n_named` of `n_facts` can be named: e is at most K.

    >>> candidates_wanted(64, 6, 0.1)
    107
    """
    return math.ceil(n_facts / (n_named * level) - 1e-9)
