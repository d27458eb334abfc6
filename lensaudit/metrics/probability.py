"""How probable is the answer, per token: alone, rephrased, falsified, and against alternatives?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lensaudit.metrics.registry import (
    MetricContext,
    MetricResult,
    Read,
    Record,
    across,
    alternatives,
    mean_of,
    metric,
    one_or_list,
)

SOURCE = "arXiv:2401.06121 section 2.2; open-unlearning d3d7cf9 evals/metrics/memorization.py"
EPS = 1e-10
"""Guard of open-unlearning's ratios."""


def _reads(split: str, field: str = "answer") -> tuple[Read]:
    return (Read("trace", split, field),)


_MEAN: dict[str, Any] = {"high_means": "knows", "source": SOURCE, "row_value": mean_of("prob")}


@metric("forget_Q_A_Prob", tofu=_reads("forget"), **_MEAN)
@metric("forget_Q_A_PARA_Prob", tofu=_reads("forget", "paraphrased_answer"), **_MEAN)
@metric("forget_Q_A_PERT_Prob", tofu=_reads("forget", "perturbed_answer"), **_MEAN)
@metric("retain_Q_A_Prob", tofu=_reads("retain"), **_MEAN)
@metric("retain_Q_A_PARA_Prob", tofu=_reads("retain", "paraphrased_answer"), **_MEAN)
@metric("retain_Q_A_PERT_Prob", tofu=_reads("retain", "perturbed_answer"), **_MEAN)
@metric("ra_Q_A_Prob", tofu=_reads("ra"), **_MEAN)
@metric("ra_Q_A_PERT_Prob", tofu=_reads("ra", "perturbed_answer"), **_MEAN)
@metric("wf_Q_A_Prob", tofu=_reads("wf"), **_MEAN)
@metric("wf_Q_A_PERT_Prob", tofu=_reads("wf", "perturbed_answer"), **_MEAN)
def probability(context: MetricContext) -> MetricResult:
    """Probability per token, exp(-loss).

    The loss is the mean negative log-probability of the answer and its end token.
    Alternatives are averaged as probabilities within a row, then rows are averaged.
    """
    measured = context.passes.measured(context.reads[0])
    records = {
        idx: probability_record([trace.loss for trace in traces], listed=measured.listed)
        for idx, traces in measured.rows.items()
    }
    return MetricResult(records=records, unscored=measured.unscored)


def probability_record(losses: Sequence[float | int], *, listed: bool) -> Record:
    """`prob` and `avg_loss` of one row; lists where its field holds lists."""
    probs = [float(np.exp(-np.float32(loss))) for loss in losses]
    return {"prob": one_or_list(probs, listed), "avg_loss": one_or_list(losses, listed)}


def record_of(loss: Any) -> Record:
    """The record of a row of a log that has the loss alone, one or a list; no number as it is."""
    losses = alternatives(loss)
    if all(isinstance(one, int | float) for one in losses):
        return probability_record(losses, listed=isinstance(loss, list))
    return {"avg_loss": loss}


@metric("ra_Q_A_Prob_normalised", tofu=(), needs=("ra_Q_A_Prob", "ra_Q_A_PERT_Prob"), **_MEAN)
@metric("wf_Q_A_Prob_normalised", tofu=(), needs=("wf_Q_A_Prob", "wf_Q_A_PERT_Prob"), **_MEAN)
def probability_among_options(context: MetricContext) -> MetricResult:
    """p(answer) / (p(answer) + sum over wrong answers of p + 1e-10), p as in `probability`."""
    return across(context, _among_options)


def _among_options(right: Mapping[str, Any], wrong: Mapping[str, Any]) -> Record:
    correct = float(np.mean(alternatives(right["prob"])))
    return {"prob": correct / (correct + sum(alternatives(wrong["prob"])) + EPS)}
