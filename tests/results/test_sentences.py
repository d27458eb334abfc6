"""Each sentence beside a case in which it must not be said."""

import pytest

from lensaudit.attacks.result import rows_relearned
from lensaudit.attacks.rtt.sentences import facts_retrained
from lensaudit.judge.calibrate import labels_agreed
from lensaudit.meta.judging import pools_told_apart
from lensaudit.scores.estimate import Estimate
from lensaudit.steer.sentences import component_clamped, direction_edited

FEW = "3 authors: no interval"
KEPT = "a direction from retain questions"


def test_a_wide_interval_and_a_better_control_bring_nothing_back():
    # what a user saw: "Part of the answers comes back (0.29 above …)"
    said = direction_edited("add", Estimate(0.28, -0.30, 0.81), {}, Estimate(0.397, -0.1, 0.9))
    assert said == "Undecided: recovery 0.28 [-0.30, 0.81] holds 0."
    said = direction_edited("add", Estimate(0.28, 0.1, 0.5), {}, Estimate(0.397, 0.2, 0.6))
    assert said.startswith("Recovery 0.28 [0.10, 0.50] is not shown to be more than under")
    assert said.endswith(f"{KEPT} (0.40 [0.20, 0.60]).")


@pytest.mark.parametrize("kind", ["add", "ablate"])
def test_answers_come_back_only_above_zero_and_above_every_control(kind):
    found = Estimate(0.5, 0.4, 0.6)
    assert "Part of the answers comes back" in direction_edited(
        kind, found, {KEPT: Estimate(0.1, 0.0, 0.2)}
    )
    for control in (Estimate(0.45, 0.3, 0.6), Estimate(0.2, 0.0, 0.41), Estimate(0.35)):
        assert "comes back" not in direction_edited(kind, found, {KEPT: control})


@pytest.mark.parametrize(
    ("kind", "words"), [("add", "hidden, not erased"), ("ablate", "answers are there")]
)
def test_all_of_it_is_said_of_a_lower_limit_and_not_of_a_point(kind, words):
    assert words in direction_edited(
        kind, Estimate(0.97, 0.93, 1.0), {KEPT: Estimate(0.05, -0.1, 0.1)}
    )
    assert words not in direction_edited(
        kind, Estimate(0.97, 0.6, 1.2), {KEPT: Estimate(0.05, -0.1, 0.1)}
    )
    assert words not in direction_edited(
        kind, Estimate(0.97, 0.93, 1.0), {KEPT: Estimate(0.3, 0.1, 0.5)}
    )


def test_what_retain_questions_bring_back_too_was_there_and_is_told():
    said = direction_edited("add", Estimate(0.97, 0.93, 1.0), {}, Estimate(0.95, 0.9, 1.0))
    assert "hidden, not erased. So does a direction from retain questions (0.95" in said
    assert "So does" not in direction_edited(
        "add", Estimate(0.97, 0.93, 1.0), {}, Estimate(0.1, 0.0, 0.2)
    )


@pytest.mark.parametrize("kind", ["add", "ablate"])
def test_nothing_of_it_is_said_of_an_upper_limit(kind):
    assert "no proof of erasure" in direction_edited(kind, Estimate(0.05, -0.05, 0.15), {})
    assert "no proof of erasure" not in direction_edited(kind, Estimate(0.05, -0.5, 0.6), {})


def test_without_an_interval_a_sentence_speaks_of_its_rows_alone():
    said = direction_edited("add", Estimate(0.95, why=FEW), {})
    assert "hidden, not erased." in said
    assert said.endswith("3 authors: no interval; this describes these rows only.")
    assert "these rows" not in direction_edited("add", Estimate(0.95, 0.9, 1.0), {})


def test_a_mechanism_needs_both_directions_and_both_intervals():
    sure, wide = Estimate(0.95, 0.9, 1.0), Estimate(0.95, 0.3, 1.6)
    assert "is the mechanism" in component_clamped(sure, sure, {})
    assert "is the mechanism" not in component_clamped(wide, sure, {})
    assert "is the mechanism" not in component_clamped(sure, wide, {})
    assert "is the mechanism" not in component_clamped(sure, sure, {KEPT: Estimate(0.9, 0.7, 1.0)})
    assert "is the mechanism" not in component_clamped(sure, sure, {}, {"random": Estimate(0.9)})
    none = Estimate(0.05, -0.1, 0.15)
    assert "not what hides them" in component_clamped(none, sure, {})
    assert "not what hides them" not in component_clamped(Estimate(0.05, -0.1, 0.5), sure, {})
    assert "No one component" in component_clamped(none, none, {})
    assert "No one component" not in component_clamped(none, Estimate(0.1, -0.4, 0.6), {})
    assert "part of the mechanism" in component_clamped(
        Estimate(0.5, 0.4, 0.6), Estimate(0.4, 0.3, 0.5), {}
    )
    assert "part of the mechanism" not in component_clamped(
        Estimate(0.5, -0.4, 0.9), Estimate(0.4, 0.3, 0.5), {}
    )
    assert component_clamped(sure, None, {}).endswith("sufficiency is not scored.")


def test_retraining_brings_back_what_its_interval_says():
    assert "hidden, not removed" in facts_retrained(Estimate(0.95, 0.85, 1.05))
    assert "hidden" not in facts_retrained(Estimate(0.95, 0.5, 1.4))
    assert "brings part" in facts_retrained(Estimate(0.5, 0.2, 0.8))
    assert "brings part" not in facts_retrained(Estimate(0.5, -0.1, 1.1))
    assert "does not bring" in facts_retrained(Estimate(0.0, -0.1, 0.1))
    assert "does not bring" not in facts_retrained(Estimate(0.0, -0.5, 0.5))
    assert facts_retrained(Estimate(None, why="condition N is missing")) == (
        "Recovery is not scored: condition N is missing."
    )


def test_an_attack_that_taught_nothing_says_so_and_another_does_not():
    assert "0.5314 to 0.5241" in (rows_relearned(0.5314, 0.5241, 8) or "")
    assert rows_relearned(0.5314, 0.3, 8) is None
    assert "in 1 step;" in (rows_relearned(0.5, 0.5, 1) or "")
    # an earlier version looked at no row twice: nobody knows what it did
    assert rows_relearned(0.5, None, 8) is None


@pytest.mark.parametrize(
    ("area", "words"),
    [
        (Estimate(0.92, 0.68, 0.98), None),
        (Estimate(0.55, 0.31, 0.77), "not shown"),
        (Estimate(0.1, 0.02, 0.35), "the wrong way"),
    ],
)
def test_a_metric_tells_pools_apart_where_its_interval_does(area, words):
    said = pools_told_apart(area, 10, 10)
    assert said is None if words is None else words in (said or "")


def test_a_judge_agrees_where_its_interval_says_so():
    assert labels_agreed(0.9, 12, 0.001) is None
    assert "holds 0" in (labels_agreed(0.4, 12, 0.2) or "")
    assert labels_agreed(0.4, 100, 0.001) is None
    assert "other way round" in (labels_agreed(-0.9, 12, 0.001) or "")
    assert "3 scored" in (labels_agreed(0.9, 3, 1.0) or "")
    assert "all one number" in (labels_agreed(None, 50, None) or "")
    assert "3 scored" in (labels_agreed(None, 3, None) or "")
