"""Is the rest of the model intact? And does it still write like one?"""

from lensaudit.metrics.registry import MetricContext, MetricResult, Read, mean_of, metric, unscored
from lensaudit.scores.means import harmonic_mean

PARTS = (
    "retain_Q_A_Prob",
    "retain_Q_A_ROUGE",
    "retain_Truth_Ratio",
    "ra_Q_A_Prob_normalised",
    "ra_Q_A_ROUGE",
    "ra_Truth_Ratio",
    "wf_Q_A_Prob_normalised",
    "wf_Q_A_ROUGE",
    "wf_Truth_Ratio",
)
"""Retain enters with its plain probability, the other two with the one among options."""


@metric(
    "model_utility",
    high_means="knows",
    source="arXiv:2401.06121 section 2.2.1; open-unlearning d3d7cf9 evals/metrics/utility.py",
    tofu=(),
    needs=PARTS,
)
def model_utility(context: MetricContext) -> MetricResult:
    """Harmonic mean of nine parts; one part that is 0 makes it 0, one that is missing, nothing."""
    found = {name: context.done[name].value for name in PARTS}
    parts = {name: value for name, value in found.items() if value is not None}
    missing = [name for name in PARTS if name not in parts]
    if missing:
        return unscored(f"needs {missing[0]}, which has no value")
    return MetricResult(harmonic_mean(list(parts.values())), details={"parts": parts})


@metric(
    "forget_Q_A_gibberish",
    high_means="knows",
    source="open-unlearning d3d7cf9 evals/metrics/utility.py classifier_prob",
    tofu=(Read("fluency", "forget"),),
    row_value=mean_of("score"),
)
@metric(
    "forget_gibberish",
    high_means="knows",
    source="open-unlearning d3d7cf9 evals/metrics/utility.py classifier_prob",
    muse=(Read("fluency", "verbmem", "gt"),),
    row_value=mean_of("score"),
)
def fluency(context: MetricContext) -> MetricResult:
    """Probability of a text classifier's class 0, "clean", for what the model generated.

    An empty generation has no fluency and is unscored; `empty="upstream"` rates it.
    """
    measured = context.passes.measured(context.reads[0])
    records, unscored_rows = {}, dict(measured.unscored)
    for idx, (rated,) in measured.rows.items():
        if not rated["generation"] and context.empty == "unscored":
            unscored_rows[idx] = "the generation is empty"
        else:
            records[idx] = rated
    return MetricResult(records=records, unscored=unscored_rows)
