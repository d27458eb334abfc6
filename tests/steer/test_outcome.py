"""From judged answers to the numbers of results.json."""

import pytest
import torch

from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.judge.items import JudgeVerdict
from lensaudit.steer.estimators import SteeringVector
from lensaudit.steer.evaluate import (
    JudgedAnswer,
    Level,
    check_judged,
    chosen_on_dev,
    correlation,
    grid_of,
    halves,
    key_of,
    rank_correlation,
    slope,
    summary_of,
)

QUESTIONS = [f"question {at}" for at in range(4)]
VECTOR = SteeringVector(vector=torch.ones(4), layer=2, method="probe", position="response")


def under(*answers):
    return Level("", VECTOR, 0.0, answers)


def level(*scores, coherence=90.0):
    """Two rollouts of each question in turn."""
    low, sound = JudgeVerdict(None, "low", "low_mass"), JudgeVerdict(coherence)
    verdicts = [low if score is None else JudgeVerdict(score) for score in scores]
    return under(*(JudgedAnswer(at // 2, one, sound) for at, one in enumerate(verdicts)))


def summary(levels, polarity=1):
    return summary_of(levels, QUESTIONS, polarity=polarity, seed=0)


def test_baseline_and_largest_change_worked_by_hand():
    levels = {
        0.0: level(10.0, 20.0, 30.0, 40.0, 10.0, 20.0, 30.0, 40.0),
        1.0: level(30.0, 40.0, 50.0, None, 30.0, 40.0, 50.0, 60.0),
        2.0: level(50.0, 60.0, 70.0, 80.0, 50.0, 60.0, 70.0, 80.0),
    }
    found = summary(levels)
    one = found.coefficients["1.0"]
    assert found.baseline == 25.0
    # 300 / 7; the missing one as baseline: 325 / 8
    assert one.mean == pytest.approx(300 / 7)
    assert one.mean_invalid_as_baseline == pytest.approx(325 / 8)
    assert (one.n, one.n_total, one.n_invalid) == (7, 8, 1)
    # population: mean of squares 500 minus 225
    assert found.coefficients["0.0"].std == pytest.approx((750 - 625) ** 0.5)
    assert found.max_delta == 40.0
    assert found.slope == pytest.approx(20.0)
    assert found.spearman == 1.0
    assert 0.99 < found.controllability < 1.0
    found = summary({0.0: level(0.0, 0.0), 1.0: level(30.0, 30.0)})
    assert (found.baseline, found.max_delta) == (0.0, 30.0)
    levels = {0.0: level(50.0, 50.0), 1.0: level(20.0, 20.0), 2.0: level(30.0, 30.0)}
    assert summary(levels).max_delta == 0.0
    assert summary(levels, polarity=-1).max_delta == -30.0


def test_what_falls_apart_is_flagged_and_left_out():
    levels = {
        0.0: level(10.0, 10.0),
        1.0: level(40.0, 40.0),
        2.0: level(90.0, 90.0, coherence=49.9),
    }
    found = summary(levels)
    assert found.coherence_warnings == ["2.0"]
    assert (found.max_delta, found.max_delta_coherent) == (80.0, 30.0)
    assert found.coherence["2.0"] == {"mean": pytest.approx(49.9), "n": 2}
    found = summary({0.0: level(None, None), 1.0: level(None, None)})
    assert found.baseline is found.max_delta is found.chosen is None
    assert found.coefficients["0.0"].ci95 is None
    assert found.coefficients["1.0"].n_invalid == 2


def test_the_setting_is_chosen_on_one_half_and_reported_on_the_other():
    dev, test = halves(QUESTIONS, 0)
    assert dev | test == frozenset(range(4))
    assert not dev & test
    # on dev questions 1.0 wins; on the others it does nothing
    one = [80.0 if at // 2 in dev else 10.0 for at in range(8)]
    two = [20.0 if at // 2 in dev else 90.0 for at in range(8)]
    levels = {0.0: level(*[10.0] * 8), 1.0: level(*one), 2.0: level(*two)}
    found = chosen_on_dev(levels, QUESTIONS, polarity=1, seed=0)
    assert (found.setting, found.dev_mean, found.test_delta) == (1.0, 80.0, 0.0)
    assert halves(["one"], 0) == (frozenset({0}), frozenset({0}))


@pytest.mark.parametrize("polarity", [1, -1])
def test_a_coefficient_that_changes_nothing_is_not_chosen(polarity):
    levels = {at: level(*[10.0] * 8) for at in (-2.0, 0.0, 1.0)}
    found = chosen_on_dev(levels, QUESTIONS, polarity=polarity, seed=0)
    assert (found.setting, found.test_delta) == (0.0, 0.0)
    levels[-2.0] = level(*[10.0 + polarity] * 8)
    assert chosen_on_dev(levels, QUESTIONS, polarity=polarity, seed=0).setting == -2.0


def test_correlations_need_three_points_that_differ():
    assert correlation({0.0: 1.0, 1.0: 2.0}) is None
    assert correlation({0.0: 1.0, 1.0: 1.0, 2.0: 1.0}) is None
    # a small effect is as controllable as a large one
    assert correlation({0.0: 1.0, 1.0: 1.1, 2.0: 1.2}) == pytest.approx(1.0)
    # saturation lowers Pearson's r, not Spearman's rho
    points = {0.0: 0.0, 1.0: 90.0, 2.0: 99.0, 3.0: 100.0}
    assert correlation(points) < 0.85
    assert rank_correlation(points) == pytest.approx(1.0)
    assert slope({1.0: 5.0}) is None


def test_verdicts_that_could_not_be_asked_for_are_told_also_of_coherence(tmp_path):
    down = JudgeVerdict(None, "the server is down", "api_error")
    answer = JudgedAnswer(0, JudgeVerdict(80.0), down)
    with pytest.raises(PartialError, match=r"1 verdicts .* \(api_error: the server is down\)"):
        check_judged([under(answer)], tmp_path)
    low = JudgedAnswer(0, JudgeVerdict(None, "low", "low_mass"), JudgeVerdict(80.0))
    with pytest.raises(WorkError, match="none of 1 answers has a score; low_mass: low"):
        check_judged([under(low)], tmp_path)


def test_coefficients_are_keyed_alike_and_hold_the_baseline():
    assert grid_of("1,0,-0.0,0.5", VECTOR, as_ratio=False) == (0.0, 0.5, 1.0)
    assert [key_of(one) for one in (0.0, -0.0, 2.0)] == ["0.0", "0.0", "2.0"]
    with pytest.raises(InputError, match=r"0\.5,1\.0: has no 0"):
        grid_of("0.5,1", VECTOR, as_ratio=False)
    for wrong in ("0,nan", "0,inf"):
        with pytest.raises(InputError, match="finite numbers"):
            grid_of(wrong, VECTOR, as_ratio=False)
    with pytest.raises(InputError, match="does not know the stream's length"):
        grid_of("0,1", VECTOR, as_ratio=True)
