"""How far may a number move from one processor to the next? The one answer of all tests.

Kernels of another processor add in another order, and each sum of float32 is rounded. Whole
numbers, words and ranks stay; what is computed moves:

- A logit of the models here stays below 32, where neighbours of float32 lie 2**-19 = 1.9e-6 apart.
  A log-probability is a logit less a sum of all, and the pass before it adds some hundred times
  whatever the streams' size is: its last bit or two are the kernel's own. The largest difference
  that `python -m benchmarks.kernels` finds in one is two such steps. NATS allows five.
- S1, S2 and a delta are differences of two, a loss and a score are means of such: they stay within
  the same. A mean moves no more than what it is made of, an interval no more than its means.
- A ratio S2 / S1 of two that moved by NATS moves by `ratio(S1)`: at tau = 0.05 forty times as far.
- A p of drawn permutations counts those whose statistic reaches the true one: of 20,000 a few lie
  within what both move by, most in the middle (`drawn`). A trace is a sum of several (`WITHIN`).
- Of what is printed with few digits the last moves by one where the number lay beside the boundary:
  of numbers printed to a unit u, a share of NATS / u. `ALLOWANCE` times as many may move in a text.

Below 1, NATS is absolute; above, relative: a perplexity, exp of a loss, moves by its own size.
"""

from collections.abc import Callable, Mapping

STEP = 2.0**-19
"""From one float32 to the next, of numbers between 16 and 32."""
NATS = 5 * STEP
"""Log-probabilities, differences and means of them, in nats per token; 9.5e-6."""
ALLOWANCE = 3
"""So many times the expected number of printed numbers may be rounded the other way."""


def close(one: float, other: float, within: float = NATS) -> bool:
    """Whether two kernels may have given these for the same number.

    >>> close(0.32914334, 0.32914317), close(0.3291, 0.3292), close(1234.5, 1234.51)
    (True, False, True)
    """
    return one == other or abs(one - other) <= within * max(1.0, abs(one), abs(other))


def ratio(denominator: float) -> float:
    """How far S2 / S1, clipped to 0 and 1, may move.

    >>> round(ratio(0.05) / NATS), round(ratio(2.0) / NATS)
    (40, 1)
    """
    return max(NATS, min(1.0, 2 * NATS / max(denominator, NATS)))


def drawn(p: float) -> float:
    """How far a share of drawn permutations may move: three of 20,000, in the tails none.

    >>> round(drawn(0.5) * 20_000), drawn(5e-5) < 1 / 20_000
    (3, True)
    """
    return 3 / 20_000 * min(1.0, 4 * p, 4 * (1 - p)) + NATS


STANDARDISED = 1e-4
"""Min-k++ divides by the root of a variance that is the difference of two roundings, 2**-23 apart:
where a model is sure of a token, and the variance 1e-3, that is off by 1e-4 of itself, or more."""
SUMMED = 8
"""Most subjects of a relation in the goldens."""
KEPT = 1e-4
"""`worst` keeps exposures to this unit and subtracts two: D."""
WITHIN: Mapping[str, Callable[[float], float]] = {
    "p": drawn,
    "trace": lambda value: SUMMED * NATS,
    "mia_min_k_plus_plus": lambda value: STANDARDISED,
    "statistic": lambda value: 2 * (KEPT + NATS),
}
"""Numbers that are neither a log-probability nor a mean, by the name they have in results."""
