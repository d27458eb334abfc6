"""A suite: which metrics, on which data, and what is reported of them."""

from lensaudit.doors.suites import suite
from lensaudit.scores.means import harmonic_mean

METRICS = ("forget_Q_A_Prob", "example_rouge:rouge_type=fmeasure", "mia_min_k:k=0.2")


@suite("example_suite", metrics=METRICS, high_means="forgot", source="this file", data="demo")
def report(context):
    """Harmonic mean of what was forgotten; the parts stand beside it."""
    parts = {name: 1 - one.value for name, one in context.done.items()}
    return {"agg_value": harmonic_mean(list(parts.values())), "parts": parts}
