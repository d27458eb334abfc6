"""How far is a membership attack's success from what it has on a model that never knew?"""

import math
from dataclasses import replace
from typing import Any

from lensaudit.metrics.registry import (
    RETAIN,
    MetricContext,
    MetricResult,
    metric,
    no_retain,
    unscored,
)

EPS = 1e-10
"""Guard of open-unlearning."""
ATTACKS = {
    "s_mia_loss": "mia_loss",
    "s_mia_zlib": "mia_zlib",
    "s_mia_min_k": "mia_min_k",
    "s_mia_min_k_plus_plus": "mia_min_k_plus_plus",
}
LEAST_AUC = 1e-12
"""Below it s_MIA has no denominator; of gnueaj/unlearning-depth-score @ fc31639."""

_MIN_K: dict[str, Any] = {
    "source": "open-unlearning d3d7cf9 evals/metrics/privacy.py",
    "tofu": (),
    "muse": (),
    "needs": ("mia_min_k", f"{RETAIN}mia_min_k"),
}


@metric("privleak", high_means="forgot", **_MIN_K)
def privleak(context: MetricContext) -> MetricResult:
    """((1 - a) - (1 - r)) / (1 - r) x 100 for the min-k AUC a and the retain model's r.

    Below 0 the model still leaks, above 0 it is over-unlearned, 0 is best. Unbounded above, and
    it explodes as r nears 1; `s_mia_min_k` is the bounded, two-sided form.
    """
    entry = _compared(context, lambda a, r: ((1 - a) - (1 - r)) / ((1 - r) + EPS) * 100)
    if entry.value is None:
        return entry
    reading = "over-unlearned" if entry.value > 0 else "under-unlearned"
    return replace(entry, details={**entry.details, "reading": reading if entry.value else "even"})


@metric("rel_diff", high_means="knows", **_MIN_K)
def rel_diff(context: MetricContext) -> MetricResult:
    """(a - r) / r x 100."""
    return _compared(context, lambda a, r: (a - r) / (r + EPS) * 100)


def _s_mia(attack: str) -> dict[str, Any]:
    return {
        "high_means": "forgot",
        "source": "arXiv:2506.12618; gnueaj/unlearning-depth-score fc31639 (formula)",
        "tofu": (),
        "muse": (),
        "needs": (attack, f"{RETAIN}{attack}"),
    }


@metric("s_mia_loss", **_s_mia("mia_loss"))
@metric("s_mia_zlib", **_s_mia("mia_zlib"))
@metric("s_mia_min_k", **_s_mia("mia_min_k"))
@metric("s_mia_min_k_plus_plus", **_s_mia("mia_min_k_plus_plus"))
def s_mia(context: MetricContext) -> MetricResult:
    """1 - |a - r| / r, at least 0: 1 where the attack fares as on the retain model."""
    return _compared(context, similarity)


def similarity(found: float, retain: float) -> float:
    """1 - |a - r| / r, cut to [0, 1]; NaN where r is 0.

    >>> similarity(0.25, 0.5), similarity(0.75, 0.25)
    (0.5, 0.0)
    """
    if retain <= LEAST_AUC:
        return math.nan
    return min(1.0, max(0.0, 1 - abs(found - retain) / retain))


def _compared(context: MetricContext, formula: Any) -> MetricResult:
    """The formula on the model's AUC and the retain model's, or on the stand-in that was named."""
    ((attack, model),) = context.done.items()
    if model.value is None:
        return unscored(f"needs {attack}, which has no value: {model.reason}")
    found = context.retain.get(attack, MetricResult()).value
    reference = context.retain_value if found is None else found
    if reference is None:
        return unscored(no_retain(context, attack))
    value = formula(model.value, reference)
    if not math.isfinite(value):
        return unscored(f"the retain model's {attack} is {reference}, which cannot be divided by")
    details: dict[str, Any] = {"retain_auc": reference, "auc": model.value}
    if found is None:
        details["retain_auc_is"] = "the value given with --ref-value"
    return MetricResult(value, details=details)
