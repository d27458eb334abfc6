"""Model utility: nine parts, and one that is broken breaks it."""

import pytest

from lensaudit.metrics.registry import MetricContext, MetricResult, all_metrics

# arXiv:2401.06121 section 2.2.1: probability, ROUGE and truth ratio of three sets; the probability
# is the plain one on retain, and the one among the options on real authors and world facts
PARTS = {
    "retain_Q_A_Prob": 0.9,
    "retain_Q_A_ROUGE": 0.8,
    "retain_Truth_Ratio": 0.5,
    "ra_Q_A_Prob_normalised": 0.4,
    "ra_Q_A_ROUGE": 0.6,
    "ra_Truth_Ratio": 0.5,
    "wf_Q_A_Prob_normalised": 0.25,
    "wf_Q_A_ROUGE": 0.75,
    "wf_Truth_Ratio": 0.5,
}
OTHERS = {"ra_Q_A_Prob": 0.01, "wf_Q_A_Prob": 0.02, "retain_Q_A_PARA_Prob": 0.03}


def utility(**changes):
    done = {name: MetricResult(value) for name, value in (PARTS | OTHERS | changes).items()}
    metric = all_metrics()["model_utility"]
    return metric.fn(MetricContext("tofu", (), None, done))


def test_it_is_the_harmonic_mean_of_the_nine_parts_of_tofu():
    wanted = 9 / sum(1 / value for value in PARTS.values())
    assert utility().value == pytest.approx(wanted)
    assert set(all_metrics()["model_utility"].needs) == set(PARTS)
    assert utility().details["parts"] == PARTS


@pytest.mark.parametrize("name", PARTS)
def test_one_part_that_is_0_makes_it_0_and_one_that_is_missing_nothing(name):
    assert utility(**{name: 0.0}).value == 0.0
    missing = utility(**{name: None})
    assert missing.value is None
    assert name in missing.reason


def test_what_is_no_part_does_not_move_it():
    assert utility(**dict.fromkeys(OTHERS, 0.99)).value == utility().value
