"""Does the model prefer the truth to its falsifications? Three readings of one ratio."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lensaudit.metrics.registry import (
    MetricContext,
    MetricResult,
    Record,
    across,
    alternatives,
    mean_of,
    metric,
)

SOURCE = "arXiv:2401.06121 section 2.2; open-unlearning d3d7cf9 evals/metrics/memorization.py"
MEAN_SOURCE = "arXiv:2506.12618 (extent of knowledge); open-unlearning pull request 163"
EPS = 1e-10
"""Guard of open-unlearning: with it a model that gives the truth no probability at all reads
R = p(wrong) / 1e-10, and one that gives neither any reads R near 0."""

_FORGET = ("forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob")


def closer_to_one(record: Record) -> float:
    """min(R, 1/R): 1 where truth and falsehood are alike, as after forgetting."""
    return float(min(record["score"], 1 / (record["score"] + EPS)))


def true_better(record: Record) -> float:
    """max(0, 1 - R): above 0 where the truth is more probable."""
    return float(max(0.0, 1 - record["score"]))


_TRUE: dict[str, Any] = {"high_means": "knows", "source": SOURCE, "row_value": true_better}


@metric(
    "forget_truth_ratio",
    tofu=(),
    needs=_FORGET,
    high_means="forgot",
    source=SOURCE,
    row_value=closer_to_one,
)
@metric("forget_truth_ratio_true_better", tofu=(), needs=_FORGET, **_TRUE)
@metric(
    "retain_Truth_Ratio", tofu=(), needs=("retain_Q_A_PARA_Prob", "retain_Q_A_PERT_Prob"), **_TRUE
)
@metric("ra_Truth_Ratio", tofu=(), needs=("ra_Q_A_Prob", "ra_Q_A_PERT_Prob"), **_TRUE)
@metric("wf_Truth_Ratio", tofu=(), needs=("wf_Q_A_Prob", "wf_Q_A_PERT_Prob"), **_TRUE)
def truth_ratio(context: MetricContext) -> MetricResult:
    """R = p(wrong) / (p(right) + 1e-10), p = exp(-mean loss over alternatives).

    The record holds R itself, which may exceed 1; the value averages what the name says.
    """
    return across(
        context,
        lambda right, wrong: {"score": geometric_mean(wrong) / (geometric_mean(right) + EPS)},
    )


@metric(
    "forget_truth_ratio_prob_mean",
    tofu=(),
    needs=_FORGET,
    high_means="knows",
    source=MEAN_SOURCE,
    row_value=mean_of("score"),
)
def truth_ratio_prob_mean(context: MetricContext) -> MetricResult:
    """p(right) / (p(right) + p(wrong) + 1e-10)."""
    return across(context, _share)


def geometric_mean(record: Mapping[str, Any]) -> float:
    """exp(-mean loss): the geometric mean of the alternatives' probabilities."""
    return float(np.exp(-np.mean(alternatives(record["avg_loss"]))))


def _share(right: Mapping[str, Any], wrong: Mapping[str, Any]) -> Record:
    p_right, p_wrong = geometric_mean(right), geometric_mean(wrong)
    return {"score": p_right / (p_right + p_wrong + EPS)}
