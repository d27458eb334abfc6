"""Can the unlearned model's truth ratios be told from those of a model that never knew?"""

from lensaudit.metrics.registry import (
    RETAIN,
    MetricContext,
    MetricResult,
    metric,
    no_retain,
    unscored,
)
from lensaudit.scores.kolmogorov import ks_two_sample


@metric(
    "forget_quality",
    high_means="forgot",
    source="arXiv:2401.06121 section 2.2.2; open-unlearning d3d7cf9 evals/metrics/privacy.py",
    tofu=(),
    needs=("forget_truth_ratio", f"{RETAIN}forget_truth_ratio"),
)
def forget_quality(context: MetricContext) -> MetricResult:
    """p-value of a two-sample KS test between the unfolded ratios of model and retain model.

    It is no distance: with n rows each, separated samples reach 2 / C(2n, n), whatever their
    distance. The statistic, log10 p, the sample sizes and the ratio to aim at are logged with it.
    """
    model, retain = context.done["forget_truth_ratio"], context.retain.get("forget_truth_ratio")
    if retain is None:
        return unscored(no_retain(context, "forget_truth_ratio"))
    found, wanted = (
        [float(record["score"]) for record in one.records.values() if "score" in record]
        for one in (model, retain)
    )
    if not found or not wanted:
        return unscored("no forget_truth_ratio row to compare, here or in the retain log")
    test = ks_two_sample(found, wanted)
    details = {
        "ks_statistic": test.statistic,
        "log10_p": test.log10_p,
        "n": len(found),
        "n_retain": len(wanted),
        "retain_truth_ratio": retain.value,
    }
    return MetricResult(test.p_value, unscored=model.unscored, details=details)
