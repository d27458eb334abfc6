"""What a run of `patch` is read for."""

from bisect import bisect_left
from functools import reduce

import numpy as np
import pytest
from scipy.stats import betabinom
from support import verdict_support as made

from lensaudit.errors import InputError
from lensaudit.gym.auditors import kept_for_verdict
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.reading import checked
from lensaudit.scores.intervals import END_CORRELATION, exact_excess
from lensaudit.verdict.depth import calibration_problem
from lensaudit.verdict.views import LEVEL, Null, read_calibration, zero_of


@pytest.mark.parametrize(
    ("full", "retain", "sound"),
    [
        # the published code is off by 0.002
        (0.002, 1.0, True),
        (0.019, 0.981, True),
        (0.021, 1.0, False),
        (-0.021, 1.0, False),
        (0.0, 0.979, False),
        (None, 1.0, False),
    ],
)
def test_anchors_may_be_off_by_two_hundredths(full, retain, sound):
    assert (calibration_problem({"full": full, "retain": retain}) is None) == sound


def views(content, low=()):
    found, stream = made.parts(content, made.rows_of(content, low))
    return {view.name: view for view in found}, stream


def test_every_depth_is_a_share_held_on_one_scale():
    found, _ = views(made.summary(0.25, half=0.05, lens=0.4, lens_ci95=[0.3, 0.5]))
    assert found["uds"].held.value == 0.75
    assert found["uds"].held.ends == pytest.approx((0.7, 0.8))
    assert found["uds"].held.one_sided == pytest.approx((0.71, 0.79))
    assert found["lens"].held.ends == pytest.approx((0.5, 0.7))
    assert found["uds_weakest"].held.value == pytest.approx(0.1)
    assert found["uds_weakest"].shown.endswith("at layer 3")
    assert set(found) == {
        *("said", "told", "uds", "lens", "weakest"),
        *("uds_aligned", "uds_weakest", "shared", "shared_weakest", "many", "many_weakest"),
    }


UNHELD = "full holds too little of these facts itself: it "


def test_a_scale_between_two_models_that_do_not_know_finds_nothing():
    """Facts that no model was taught: UDS .03 would read as hidden."""
    nobody = {"outputs": made.said(0.0, 0.0, 0.0), "told": made.told(full=0.1, retain=0.0)}
    levels = {"baseline": -8.7, "per_layer": [{"layer": 0, "s1": -0.2}, {"layer": 1, "s1": 0.65}]}
    found, _ = views(made.summary(0.03, lens=0.1, lens_ci95=[0.0, 0.2], **nobody, **levels))
    streams = [one for one in found.values() if one.name not in ("said", "told")]
    assert len(streams) == 9
    assert not any(one.finds or one.rules_out for one in streams)
    why = "says 10% of them that retain does not and is 7% less surprised by them"
    assert {one.control for one in streams} == {UNHELD + why}
    decided = made.verdict(made.summary(0.03, aligned=made.aligned(0.03), **nobody, **levels))
    assert decided.code == "undecided"


@pytest.mark.parametrize(
    "held",
    [
        {"outputs": made.said(0.0, 0.3, 0.0)},
        {"told": made.told(full=0.3, retain=0.04)},
        {"baseline": -0.9},  # whole answers, which no model says word for word
    ],
)
def test_one_way_in_which_full_holds_the_facts_is_enough(held):
    nobody = {"outputs": made.said(0.0, 0.0, 0.0), "told": made.told(full=0.0), "baseline": -9.0}
    levels = {"per_layer": [{"layer": 0, "s1": None}, {"layer": 1, "s1": 0.65}]}
    found, _ = views(made.summary(0.03, **nobody | held, **levels))
    assert found["uds"].finds


def test_another_rows_stream_is_no_measure_of_what_full_holds():
    """It costs nats whether the facts are known or not."""
    nobody = {"outputs": {**made.said(0.0, 0.0), "retain": None}, "told": None, "anchor": "rows"}
    levels = {"baseline": -0.9, "per_layer": [{"layer": 0, "s1": 3.0}]}
    found, _ = views(made.summary(0.03, **nobody, **levels))
    assert found["uds"].control == f"{UNHELD}says 0% of them that retain does not"


@pytest.mark.parametrize("erasure", [0.0, 0.5, 1.0])
def test_a_layer_that_every_author_reads_alike_says_why_it_has_no_interval(erasure):
    """On an end of the scale, too, where a share of as many rows would have one."""
    content = made.summary(n=6, weakest={"layer": 3, "erasure": erasure})
    rows = [{"idx": at, "group": at, "ke": [3], "uds": 0.9, "uds_aligned": 0.9} for at in range(6)]
    found = {one.name: one for one in made.parts(content, rows)[0]}
    assert found["weakest"].number.ends is None
    assert found["weakest"].number.why == "every author has the same mean: no interval"


def test_each_depth_counts_its_own_facts_and_has_its_own_reason():
    lens = {"lens": 0.4, "lens_n_scored": 7, "lens_ci95_why": "2 authors: no interval"}
    bare = {"layer": 3, "erasure": 0.5}
    content = made.summary(n=6, weakest=bare, aligned=made.aligned(weakest=0.5), **lens)
    content["aligned"]["weakest"] = content["aligned"]["shared"]["weakest"] = bare
    # five facts of four authors at layer 3; the last is not aligned
    rows = [
        {"idx": at, "group": at % 4, "ke": [2, 3] if at else [2], "uds": 0.9}
        | {"uds_aligned": 0.9 if at < 5 else None}
        for at in range(6)
    ]
    found = {one.name: one for one in made.parts(content, rows)[0]}
    counted = {name: one.number.n for name, one in found.items() if one.group != "answers"}
    at_layer = {"weakest": 5, "uds_weakest": 4, "shared_weakest": 4, "many_weakest": 4}
    assert counted == {"uds": 6, "lens": 7, "uds_aligned": 5, "shared": 5, "many": 5} | at_layer
    assert found["lens"].why == "2 authors: no interval"
    assert found["weakest"].why == found["shared_weakest"].why == "4 authors: no interval"
    spread = [row | {"group": row["idx"]} for row in rows]
    again = {one.name: one for one in made.parts(content, spread)[0]}
    assert again["weakest"].why == "every author has the same mean: no interval"
    assert again["uds_weakest"].why == "4 authors: no interval"
    # a ledger keeps no author
    kept = {one.name: one for one in made.parts(content, made.rows_of(content))[0]}
    assert (kept["weakest"].number.n, kept["weakest"].why) == (6, "no interval")


def test_what_it_says_is_counted_against_retain_and_full():
    found, _ = views(made.summary(outputs=made.said(0.5, 0.9, 0.1, n=80)))
    one = found["said"]
    assert one.held.value == pytest.approx((0.5 - 0.1) / (0.9 - 0.1))
    assert one.held.low < 0.5 < one.held.high
    assert one.finds
    # 4 of 64 against 3 of 64: nobody knows
    close, _ = views(made.summary(outputs=made.said(4 / 64, 1.0, 3 / 64)))
    assert not close["said"].finds
    alike, _ = views(made.summary(outputs=made.said(0.5, 0.4, 0.4)))
    assert alike["said"].why == "full says no more than retain"
    near, _ = views(made.summary(outputs=made.said(0.3, 0.4, 0.3)))
    assert "only 10% more than retain" in near["said"].control


EVEN, UNEVEN = [8] * 8, [40, *[4] * 7]
"""Facts of each author."""


def counts_of(sizes, share):
    """Chance of each count, of authors alike by `END_CORRELATION`: beta-binomial ones."""
    more = 1 / END_CORRELATION - 1
    each = [betabinom(n, share * more, (1 - share) * more).pmf(range(n + 1)) for n in sizes]
    return reduce(np.convolve, each)


def asked_of(sizes, k, own=0):
    """View `told` of k facts, `own` of which come out of retain too; authors as the rows say."""
    groups = [at for at, n in enumerate(sizes) for _ in range(n)]
    rows = [{"idx": 0, "group": at, "told": {"chat": {}}} for at in groups]
    told = made.told(k / len(rows), 1.0, own / len(rows), len(rows), len(sizes))
    return next(one for one in made.parts(made.summary(told=told), rows)[0] if one.name == "told")


@pytest.mark.parametrize("sizes", [EVEN, [20] * 10, UNEVEN])
def test_a_fifth_that_is_held_is_ruled_out_as_seldom_as_the_limit_says(sizes):
    """Facts counted one by one it was .15 to .24 of the time."""
    more = bisect_left(range(sum(sizes)), True, key=lambda k: not asked_of(sizes, k).rules_out)
    assert counts_of(sizes, 0.2)[:more].sum() < 0.05
    assert (more > 0) is (sizes != UNEVEN)


def test_who_never_knew_is_seldom_found_whatever_authors_have_the_facts():
    """With as many facts of each as there are in the mean it was .036 of the time."""
    each = sum(n * n for n in UNEVEN) / 68
    assert asked_of(UNEVEN, 50, 8).chance == exact_excess(50, 8, 68, each)[1] > LEVEL
    chances, wrong = counts_of(UNEVEN, 0.5), 0.0
    for own, how_often in enumerate(chances):
        found = [exact_excess(k, own, 68, each)[1] <= LEVEL for k in range(69)]
        wrong += how_often * chances[found].sum()
    assert wrong < LEVEL


def test_a_direction_that_takes_a_quarter_away_is_told():
    _, stream = views(made.summary())
    assert stream.shared is None
    drop = made.aligned(0.95, shared=0.69)
    _, stream = views(made.summary(aligned=drop))
    assert "aligned UDS is 0.26 lower" in stream.shared
    _, stream = views(made.summary(aligned=made.aligned(0.95, many=0.69)))
    assert stream.shared is None
    assert stream.many == "without 8 directions that facts share, aligned UDS is 0.26 lower"


def test_without_a_limit_on_each_side_readability_is_not_known():
    _, stream = views(made.summary(validity={"d_share": None, "why": "7 rows"}))
    assert (stream.judged, stream.unjudged) == (False, "7 rows")
    _, stream = views(made.summary(validity={"d_share": None, "needed": False}))
    assert stream.judged
    # what only a map carries is not read as it is
    _, stream = views({**made.summary(), "uds": None, "ci95": None, "ci90": None})
    assert stream.readable is False


def test_four_own_models_have_a_spread_of_their_own():
    shipped = {"uds": Null(0.1, 0.03, 30)}
    zero, few = zero_of("uds", (0.2, 0.3, 0.1), shipped)
    assert (zero, few.mean) == pytest.approx((0.2, 0.2))
    assert (few.spread, few.n) == (0.03, 30)
    _, many = zero_of("uds", (0.2, 0.3, 0.1, 0.2), shipped)
    assert many.n == 4
    assert many.spread == pytest.approx((0.02 / 3) ** 0.5)
    assert zero_of("bits", (0.2,), shipped)[1] is None


def test_what_is_kept_of_a_run_says_the_same():
    content = made.summary(0.61234567, aligned=made.aligned(0.6))
    kept = kept_for_verdict(
        checked(PatchSummary, content | {"source": "secret"}, "x"),
        made.rows_of(content, low=(1, 2, 5, 7)),
    )
    assert kept["source"] == ""
    again, stream = made.parts(kept, kept["rows"])
    assert {view.name: view.says for view in again} == {
        name: view.says for name, view in views(content)[0].items()
    }
    assert stream.tail == (1, 2, 5, 7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"uds": "low"}, "uds"),
        ({"aligned": {"uds": 0.5, "weakest": 3}}, "weakest"),
        ({"outputs": {"source": 1.0}}, "outputs"),
        ({"ci95": [0.1]}, "ci95"),
    ],
)
def test_a_field_of_another_kind_is_one_line(changes, said):
    with pytest.raises(InputError, match=said):
        views(made.summary() | changes)


def test_the_shipped_calibration_is_sealed_and_has_what_patch_measures():
    shipped = read_calibration()
    assert {"uds", "weakest", "uds_aligned", "uds_weakest", "shared", "rtt"} <= set(shipped)
    assert all(one.n >= 4 and -0.2 < one.mean < 0.4 for one in shipped.values())


def test_a_calibration_that_is_none_is_refused(tmp_path):
    import json

    from lensaudit.results.manifest import signed

    path = tmp_path / "nulls.json"
    for content in ([], {"views": {"uds": {"mean": 1}}}, {"views": {"uds": 3}}, {}):
        path.write_text(json.dumps(signed(content) if isinstance(content, dict) else content))
        with pytest.raises(InputError, match=r"nulls\.json"):
            read_calibration(path)
    path.write_text(json.dumps(signed({"views": {"uds": {"mean": 1.0, "spread": 0.1, "n": 1}}})))
    with pytest.raises(InputError, match="at least 2"):
        read_calibration(path)
    good = signed({"views": {"uds": {"mean": 0.1, "spread": 0.1, "n": 9}}})
    path.write_text(json.dumps(good | {"views": {"uds": {"mean": 0.2, "spread": 0.1, "n": 9}}}))
    with pytest.raises(InputError, match="was changed"):
        read_calibration(path)
