"""`privleak` of the document: an attack's AUC, computed before, beside the retain model's log."""

from lensaudit.metrics.registry import metric

SOURCE = "evaluation.md"
NEEDS = ("mia_min_k", "retain:mia_min_k")


@metric("example_privleak", high_means="forgot", source=SOURCE, tofu=(), needs=NEEDS)
def privleak(context):
    """(score - ref) / (ref + 1e-10) * 100 of 1 - AUC, as MUSE counts it."""
    if "mia_min_k" not in context.retain:
        return {"agg_value": None, "reason": "no retain log with mia_min_k; name --retain"}
    score, ref = (1 - found["mia_min_k"].value for found in (context.done, context.retain))
    return {"agg_value": (score - ref) / (ref + 1e-10) * 100}
