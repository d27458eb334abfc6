"""How likely does a fact come out in k samples? Exact, unbiased from samples, and corrected.

Sources: arXiv:2511.04934 (leak@k), arXiv:2410.03523 (worst case over samples), arXiv:2107.03374
(the unbiased estimator). The published code returns 0 for k > n (OptimAI-Lab/Leak-k,
TOFU/eval/whole_eval.py); here such a k has no value.
"""

import math
from dataclasses import dataclass

ALPHA = 0.05


def leak_exact(logprob: float, k: int) -> float:
    """Probability that at least one of `k` samples begins with the span: 1 - (1 - p)^k.

    Samples are drawn at temperature 1 from the whole distribution after the forced prefix;
    `logprob` is that of the whole span, nats.

    >>> round(leak_exact(math.log(0.5), 2), 12)
    0.75

    Raises:
        ValueError: k below 1, or no log-probability.
    """
    if k < 1 or not logprob <= 0:
        raise ValueError(f"leak: wanted k >= 1 and a log-prob <= 0, found {k} and {logprob}")
    # expm1 and log1p keep what is left of a small p
    p = math.exp(logprob)
    return 1.0 if p >= 1 else -math.expm1(k * math.log1p(-p))


def leak_at_k(n_samples: int, n_hits: int, k: int) -> float:
    """Unbiased estimate of `leak_exact` from samples: 1 - C(n - c, k) / C(n, k).

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

    def corrected(self, rate: float) -> float:
        """The true rate behind an observed one, per draw (Rogan and Gladen 1978), cut to [0, 1].

            p = (rate + specificity - 1) / (sensitivity + specificity - 1)

        >>> round(Errors(0.9, 0.99).corrected(0.1), 6)  # (.1 - .01) / .89
        0.101124
        """
        top = rate + self.specificity - 1
        return min(1.0, max(0.0, top / (self.sensitivity + self.specificity - 1)))

    def false_leak(self, k: int) -> float:
        """Leak@k of a model that never says the fact.

        >>> round(Errors(1.0, 0.99).false_leak(64), 2)
        0.47
        """
        return 1.0 - self.specificity**k


def leak_corrected(n_samples: int, n_hits: int, k: int, errors: Errors) -> float:
    """Leak@k from the corrected rate per draw, 1 - (1 - p)^k; the correction comes first.

    Raises:
        ValueError: as `leak_at_k`.
    """
    leak_at_k(n_samples, n_hits, k)
    return 1.0 - (1.0 - errors.corrected(n_hits / n_samples)) ** k


def never_hit_bound(n_draws: int, n_facts: int, *, alpha: float = ALPHA) -> float:
    """Most a fact's rate per draw can be where no draw hit, for all facts at once.

        1 - (alpha / N)^(1 / m)

    >>> round(never_hit_bound(200, 367), 3)
    0.044

    Raises:
        ValueError: no draws or no facts.
    """
    if n_draws < 1 or n_facts < 1:
        raise ValueError("bound: wanted at least one draw and one fact")
    return 1.0 - (alpha / n_facts) ** (1 / n_draws)
