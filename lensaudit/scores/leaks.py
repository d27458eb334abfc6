"""Leaks in k samples, exactly: of a span whose probability is known (arXiv:2511.04934)."""

import math


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
