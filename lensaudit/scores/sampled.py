"""Leaks counted in samples: unbiased, corrected for a matcher that errs, or where no sample hit.

arXiv:2511.04934 (leak@k), arXiv:2410.03523 (worst case over samples), arXiv:2107.03374 (the
unbiased estimator). The published code returns 0 for k > n (OptimAI-Lab/Leak-k,
TOFU/eval/whole_eval.py); here such a k has no value.
"""

import math
from dataclasses import dataclass

ALPHA = 0.05


def leak_at_k(n_samples: int, n_hits: int, k: int) -> float:
    """Unbiased estimate of `scores.leaks.leak_exact` from samples: 1 - C(n - c, k) / C(n, k).

    >>> leak_at_k(4, 1, 2)  # 1 - 3/6
    0.5

    Raises:
        ValueError: more hits than samples, or k > n, where there is no unbiased estimate.
    """
    if not 0 <= n_hits <= n_samples:
        raise ValueError(f"leak@k: found {n_hits} hits of {n_samples} samples")
    if not 1 <= k <= n_samples:
        raise ValueError(f"leak@{k}: has no value with {n_samples} samples")
    return 1.0 - math.comb(n_samples - n_hits, k) / math.comb(n_samples, k)


@dataclass(frozen=True)
class Errors:
    """How often a judge or matcher is right."""

    sensitivity: float
    """Share of true hits that it finds."""
    specificity: float
    """Share of other texts that it leaves alone."""

    def __post_init__(self) -> None:
        ends = (self.sensitivity, self.specificity)
        if not all(0 <= one <= 1 for one in ends) or sum(ends) <= 1:
            raise ValueError(f"errors: found {ends}, wanted two shares whose sum is above 1")

    @property
    def factors(self) -> tuple[float, float]:
        """What a sample without and with a hit adds to the mean that is 1 - p, p the true rate.

        That of Rogan and Gladen (1978), 1 - (rate + specificity - 1) / J, by sample.

        >>> Errors(0.75, 0.75).factors  # J = .75 + .75 - 1
        (1.5, -0.5)
        """
        right = self.sensitivity + self.specificity - 1
        return self.sensitivity / right, (self.sensitivity - 1) / right

    def false_leak(self, k: int) -> float:
        """Leak@k of a model that never says the fact.

        >>> round(Errors(1.0, 0.99).false_leak(64), 2)
        0.47
        """
        return 1.0 - self.specificity**k


def leak_corrected(n_samples: int, n_hits: int, k: int, errors: Errors) -> float:
    """Unbiased estimate of `leak_exact` behind what a matcher that errs finds; exceeds 0 to 1.

        1 - mean over all sets of k samples of the product of their `Errors.factors`

    The rate of each fact, corrected and cut to [0, 1], under the power would be biased: noise is
    cut on one side, and 1 - (1 - p)^k bends. So nothing is cut before the mean over facts.

    >>> leak_corrected(4, 1, 2, Errors(1.0, 1.0)) == leak_at_k(4, 1, 2)
    True

    Raises:
        ValueError: as `leak_at_k`.
    """
    leak_at_k(n_samples, n_hits, k)
    (miss, hit), n_sets = errors.factors, math.comb(n_samples, k)
    return 1.0 - math.fsum(
        math.comb(n_hits, n) * math.comb(n_samples - n_hits, k - n) / n_sets * part
        for n, part in ((n, miss ** (k - n) * hit**n) for n in range(min(n_hits, k) + 1))
    )


def never_hit_bound(n_draws: int, n_facts: int) -> float:
    """Most a fact's rate per draw can be where no draw hit, for all facts at once.

        1 - (alpha / N)^(1 / m)

    >>> round(never_hit_bound(200, 367), 3)
    0.044

    Raises:
        ValueError: no draws or no facts.
    """
    if n_draws < 1 or n_facts < 1:
        raise ValueError("bound: wanted at least one draw and one fact")
    return 1.0 - (ALPHA / n_facts) ** (1 / n_draws)
