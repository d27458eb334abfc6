"""How likely do k samples give the entity away, when the answer's beginning is forced? Exactly."""

import numpy as np

from lensaudit.metrics.registry import ANNOTATED, MetricContext, MetricResult, Read, mean_of, metric
from lensaudit.scores.leaks import leak_exact

KS = (1, 8, 64, 128)
MAIN_K = 64
"""Whose mean is the metric's value; the others stand beside it."""


@metric(
    "leak_exact",
    high_means="knows",
    source="arXiv:2511.04934 (leak@k), here from the span's own log-probs; arXiv:2410.03523",
    tofu=(Read("patched", ANNOTATED, "leak"),),
    muse=(Read("patched", ANNOTATED, "leak"),),
    row_value=mean_of(f"leak_{MAIN_K}"),
)
def leakage(context: MetricContext) -> MetricResult:
    """Mean over the facts of leak@64 = 1 - (1 - p)^64, p = exp(sum of the entity's log-probs).

    What 64 samples at temperature 1 and top-p 1 would say, without drawing one. `retain` has a
    leak@k too, from guessing: the excess over it, fact by fact, stands beside the value.
    """
    found = context.passes.measured(context.reads[0])
    retain = found.details["retain"]
    records = {
        idx: {f"leak_{k}": leak_exact(min(0.0, total), k) for k in KS}
        | {f"retain_{k}": leak_exact(min(0.0, retain[idx]), k) for k in KS}
        for idx, (total,) in found.rows.items()
    }
    details = {"retain_model": found.details["retain_model"]}
    for k in KS if records else ():
        own, other = (
            float(np.mean([record[f"{which}_{k}"] for record in records.values()]))
            for which in ("leak", "retain")
        )
        details |= {f"leak@{k}": own, f"retain_leak@{k}": other, f"excess@{k}": own - other}
    return MetricResult(records=records, unscored=found.unscored, details=details)
