"""`forget_quality` of the document: `ks_test` on a metric computed before and a reference log."""

from scipy.stats import ks_2samp

from lensaudit.metrics.registry import metric

SOURCE = "evaluation.md"
NEEDS = ("forget_truth_ratio", "retain:forget_truth_ratio")


@metric("example_forget_quality", high_means="forgot", source=SOURCE, tofu=(), needs=NEEDS)
def ks_test(context):
    """p-value of a two-sample KS test between the model's and the retain model's truth ratios."""
    both = [logs.get("forget_truth_ratio") for logs in (context.done, context.retain)]
    if None in both:
        return {"agg_value": None, "reason": "no retain log with forget_truth_ratio"}
    forget, retain = ([row["score"] for row in one.records.values()] for one in both)
    return {"agg_value": ks_2samp(forget, retain).pvalue}
