"""Recovery worked by hand, and the cases in which there is none."""

from dataclasses import replace

import pandas as pd
import pytest
from support.planted import finding

from lensaudit.scores.intervals import clustered_mean
from lensaudit.steer.audit import recovery_of, summary_of

GROUPS = ["a", "a", "b", "b"]


def plain(full, unlearned, retain=(0.0, 0.0, 0.0, 0.0)):
    roles = {"full": full, "unlearned": unlearned, "retain": retain}
    return pd.DataFrame({**roles, "group": GROUPS})


def test_recovery_is_the_share_of_the_gap_of_the_model_that_is_edited():
    known = plain([1.0, 1.0, 1.0, 0.8], [0.2, 0.2, 0.2, 0.2])
    # gains 0.4 + 0.4 + 0.6 + 0 = 1.4, gaps 0.8 + 0.8 + 0.8 + 0.6 = 3.0
    found = recovery_of([finding([0.6, 0.6, 0.8, 0.2])], known, "em")
    assert found.value == pytest.approx(1.4 / 3.0)
    assert (found.mean, found.n, found.sd) == (pytest.approx(0.55), 4, None)
    assert found.ends is None
    assert found.limits()["ci95_why"] == "2 authors: no interval"
    known = plain([1.0] * 4, [0.2] * 4)
    # 1.0 falls to 0.4: 0.6 of 0.8
    assert recovery_of([finding([0.4] * 4, role="full")], known, "em").value == pytest.approx(0.75)
    known = plain([1.0] * 4, [0.2] * 4, (0.4,) * 4)
    # 0.4 rises to 0.7: half of the way to 1.0
    assert recovery_of([finding([0.7] * 4, role="retain")], known, "em").value == pytest.approx(0.5)


def test_the_interval_of_a_recovery_is_that_of_a_paired_ratio_by_authors():
    roles = {"full": [1.0] * 12, "unlearned": [0.2, 0.0] * 6}
    known = pd.DataFrame({**roles, "group": [idx // 2 for idx in range(12)]})
    said = [0.6, 0.5, 0.4, 0.4, 0.8, 0.7, 0.3, 0.2, 0.6, 0.4, 0.5, 0.5]
    found = recovery_of([finding(said)], known, "em")
    assert found.low < found.value < found.high
    authors = [idx // 2 for idx in range(12)]
    for end in found.ends:
        # on its limit a ratio is just rejected: gains - ratio * gaps has an interval that ends at 0
        rest = [
            said[at] - known["unlearned"][at] - end * (1 - known["unlearned"][at])
            for at in range(12)
        ]
        limits = clustered_mean(rest, authors, bounds=None)
        assert min(abs(limits.low), abs(limits.high)) == pytest.approx(0, abs=1e-9)


def test_random_directions_are_averaged_and_their_spread_is_told():
    known = plain([1.0] * 4, [0.0] * 4)
    arms = [finding([0.0] * 4, arm="random", seed=1), finding([0.5] * 4, arm="random", seed=2)]
    found = recovery_of(arms, known, "em")
    # recoveries 0 and 0.5: sd = 0.25 * sqrt(2)
    assert (found.value, found.sd) == (pytest.approx(0.25), pytest.approx(0.25 * 2**0.5))


@pytest.mark.parametrize(
    ("full", "unlearned"),
    [
        ([0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]),
        # author a 0.4 ahead, author b level: mean 0.2, standard error 0.2
        ([0.9, 0.9, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]),
        # the unlearned model knows more: making it as bad as full restores nothing
        ([0.2, 0.2, 0.2, 0.2], [0.9, 0.9, 0.9, 0.9]),
    ],
)
@pytest.mark.parametrize("role", ["unlearned", "full"])
def test_without_a_gap_there_is_no_recovery(full, unlearned, role):
    found = recovery_of([finding([0.2] * 4, role=role)], plain(full, unlearned), "em")
    assert (found.value, found.ends) == (None, None)
    summary = summary_of("add", [finding([0.2] * 4)], {"em": plain(full, unlearned)}, "em")
    assert "nothing to restore" in summary.unscored
    assert summary.reading.startswith("Not scored")


def test_the_control_is_taken_off_before_anything_is_read_into_a_recovery():
    known = plain([1.0] * 4, [0.0] * 4)
    arms = [finding([1.0] * 4), finding([0.9] * 4, role="retain", arm="never_trained")]
    summary = summary_of("add", arms, {"em": known}, "em")
    assert summary.recovery == pytest.approx(1.0)
    assert summary.recovery_above_control == pytest.approx(0.1)
    assert "not shown to be more than under the same on the never-trained" in summary.reading
    alone = summary_of("add", arms[:1], {"em": known}, "em")
    assert alone.recovery_above_control is None
    assert alone.reading == (
        "A direction from other authors brings the answers back: hidden, not erased. "
        "2 authors: no interval; this describes these rows only."
    )


def test_an_ablation_above_the_cap_is_told():
    known = {"em": plain([1.0] * 4, [0.0] * 4)}
    arms = [
        finding([1.0] * 2, kind="ablate", kl_retain=0.05),
        finding([1.0] * 2, kind="ablate", kl_retain=0.3, idx=(2, 3), fold=1),
    ]
    assert summary_of("ablate", arms, known, "em", kl_cap=0.5).warnings == []
    assert summary_of("ablate", arms, known, "em", kl_cap=0.1).warnings == [
        "in 1 of 2 folds every setting changes retain answers by more than kl-cap 0.1: the one "
        "that changes them least is taken"
    ]
    # the cap is of ABLATE alone
    arms = [replace(one, kind="add") for one in arms]
    assert summary_of("add", arms, known, "em", kl_cap=0.1).warnings == []


@pytest.mark.parametrize("kind", ["add", "ablate", "clamp"])
def test_a_never_trained_model_that_is_not_behind_is_no_control_that_was_beaten(kind):
    known = {"em": plain([1.0] * 4, [0.0] * 4, (1.0, 1.0, 0.5, 1.0))}

    def arm(scores, name, role="unlearned"):
        return finding(scores, kind=kind, arm=name, role=role)

    other, full = arm([1.0] * 4, "never_trained", "retain"), arm([0.0] * 4, "sufficiency", "full")
    summary = summary_of(kind, [arm([1.0] * 4, "direction"), full, other], known, "em")
    assert (summary.recovery, summary.recovery_above_control) == (pytest.approx(1.0), None)
    assert summary.reading.startswith(
        "Undecided: the never-trained model is not behind full, so what it knows anyway cannot be "
        "told from what was hidden."
    )
    # what brings nothing back needs no control
    arms = [arm([0.1] * 4, "direction"), full, other]
    assert "Undecided" not in summary_of(kind, arms, known, "em").reading
