"""Forgotten people against people who were never seen: the p, whom it counts, what it says."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, permutation_test

from lensaudit.metrics.betrayal import LISTED, N_DRAWS, SEEN, SHOUTS, betrayal, exchange_p
from lensaudit.scores.areas import clustered_auc_limits
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.separation import auc

NO_LIMITS = Estimate(0.5)


def people(n_each, seed=0, shift=0.0, spread=1.0):
    """Rows of one side, a list a person, each person with a level of their own."""
    draw = np.random.default_rng(seed)
    return [list(shift + spread * draw.normal() + draw.normal(size=n)) for n in n_each]


def flat(side, first):
    """Rows, and whose each is."""
    return (
        [value for rows in side for value in rows],
        [first + at for at, rows in enumerate(side) for _ in rows],
    )


def p_of(strange, forgotten):
    (higher, strangers), (lower, members) = flat(strange, 100), flat(forgotten, 0)
    return exchange_p(higher, lower, strangers, members)


def said(strange, forgotten):
    (higher, strangers), (lower, members) = flat(strange, 100), flat(forgotten, 0)
    limits = clustered_auc_limits(higher, lower, strangers, members)
    return betrayal(higher, lower, strangers, members, limits)


def errors_off(higher, lower):
    """Standard errors of an area from 1/2, people counting as Obuchowski (1997) writes it."""

    def won(rows, others):
        return sum((a > b) + 0.5 * (a == b) for a in rows for b in others)

    highest, lowest = ([row for one in side for row in one] for side in (higher, lower))
    area = won(highest, lowest) / len(highest) / len(lowest)
    parts = (
        [(won(one, lowest) / len(lowest), len(one)) for one in higher],
        [(won(highest, one) / len(highest), len(one)) for one in lower],
    )
    variance = sum(
        len(side) / (len(side) - 1) * sum((own - n * area) ** 2 for own, n in side) / rows**2
        for side, rows in zip(parts, (len(highest), len(lowest)), strict=True)
    )
    return abs(area - 0.5) / variance**0.5 if variance > 1e-18 else np.inf * (area != 0.5)


@pytest.mark.parametrize(
    ("strange", "forgotten"),
    [
        (people([3] * 5, 1), people([3] * 5, 2, shift=1.5)),
        # people of unlike numbers of rows, and sides of unlike numbers of people
        (people([1, 4, 2, 7, 3, 3], 3), people([5, 2, 1, 6], 4, shift=-1.0)),
        # ties, within people and between them
        ([[1, 1], [2, 1], [3, 3], [2, 2]], [[1, 2], [3, 1], [1, 1], [2, 3]]),
    ],
)
def test_p_is_that_of_scipy_where_people_are_permuted(strange, forgotten):
    every = [*forgotten, *strange]

    def off(lower, higher):
        sides = [[every[int(at)] for at in side] for side in (higher, lower)]
        if len({*map(len, every)}) > 1:
            return errors_off(*sides) * (1 + 1e-12)
        return abs(auc(*([row for one in side for row in one] for side in sides)) - 0.5) + 1e-12

    places = np.arange(len(every))
    wanted = permutation_test(
        (places[: len(forgotten)], places[len(forgotten) :]),
        off,
        alternative="greater",
        n_resamples=np.inf,
    )
    p, n_splits = p_of(strange, forgotten)
    assert p == pytest.approx(wanted.pvalue, abs=1e-12)
    assert n_splits == len(wanted.null_distribution)


def test_of_people_with_one_row_each_p_is_that_of_mann_and_whitney():
    draw = np.random.default_rng(5)
    for n_lower, n_higher in ((8, 8), (3, 9), (10, 10)):
        lower, higher = draw.normal(size=n_lower), draw.normal(size=n_higher) + 0.7
        wanted = mannwhitneyu(lower, higher, method="exact").pvalue
        p, _ = exchange_p(higher, lower, range(50, 50 + n_higher), range(n_lower))
        assert p == pytest.approx(wanted)


def test_what_is_drawn_is_near_what_would_be_listed_and_the_true_split_counts():
    draw = np.random.default_rng(6)
    lower, higher = draw.normal(size=12), draw.normal(size=12) + 0.8
    p, n_splits = exchange_p(higher, lower, range(50, 62), range(12))
    assert n_splits == N_DRAWS < LISTED
    exact = mannwhitneyu(lower, higher, method="exact").pvalue
    assert abs(p - exact) < 4 * (exact / N_DRAWS) ** 0.5
    # nothing that is drawn lies as far as full separation of forty people
    p, _ = exchange_p(range(20, 40), range(20), range(120, 140), range(20))
    assert p == 1 / (1 + N_DRAWS)


def test_no_level_is_passed_more_often_than_it_says():
    every = people([1, 2, 3, 1, 4, 2, 2, 3], 7)
    splits = list(combinations(range(8), 4))
    found = [
        p_of([every[at] for at in range(8) if at not in lower], [every[at] for at in lower])[0]
        for lower in splits
    ]
    for level in (0.03, 0.05, 0.2, 0.5):
        assert np.mean(np.array(found) <= level + 1e-12) <= level


@pytest.mark.parametrize(("n_rows", "others"), [(12, 1), (1, 12)])
def test_people_of_many_rows_beside_people_of_one_are_not_told_apart_by_that(n_rows, others):
    draw = np.random.default_rng(8)
    found = [
        p_of(*(draw.normal(size=(7, n)).tolist() for n in (n_rows, others))) for _ in range(60)
    ]
    assert np.mean([p <= 0.05 for p, _ in found]) <= 0.1  # in the area itself about a quarter
    told = said(draw.normal(size=(5, others)).tolist(), draw.normal(size=(3, n_rows)).tolist())
    assert told["p"] is None
    assert told["says"].startswith("not tested: 3 authors on a side, with 1 to 12 rows each")


def test_a_person_who_has_most_rows_of_a_side_is_not_taken_for_all_of_it():
    # of 600 draws in which nothing is, 8 people of 8 beside seven of 1 and one of 50 had p <= .05
    # in 12.7 %
    told = said(people([8] * 8, 1), people([1] * 7 + [50], 2))
    assert told["p"] is None
    assert told["says"] == (
        "not tested: author 7 has 50 of 57 rows of a side, as if of 1.3 equal authors; wanted 3"
    )
    assert said(people([1] * 7 + [50], 1), people([8] * 8, 2))["p"] is None
    assert said(people([8] * 8, 1), people([2] * 6 + [14], 2))["p"] is not None  # worth 3.1
    assert said(people([1] * 4, 1), people([9] * 4, 2))["p"] is not None


@pytest.mark.parametrize("n", [5, 12])
@settings(deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_names_and_order_of_people_and_rows_change_nothing(n, seed):
    strange, forgotten = people([2, 1] * n, seed)[:n], people([3, 1] * n, seed + 1, shift=0.5)[:n]
    (higher, strangers), (lower, members) = flat(strange, 100), flat(forgotten, 0)
    first = exchange_p(higher, lower, strangers, members)
    draw = np.random.default_rng(seed)
    names = draw.permutation(1000)
    for_lower, for_higher = draw.permutation(len(lower)), draw.permutation(len(higher))
    again = exchange_p(
        np.array(higher)[for_higher],
        np.array(lower)[for_lower],
        [f"person {names[strangers[at]]}" for at in for_higher],
        [f"person {names[members[at]]}" for at in for_lower],
    )
    assert again == first


def test_many_rows_of_a_person_are_one_person():
    forgotten, strange = [[1.0], [2.0], [3.0], [4.0]], [[5.0], [6.0], [7.0], [8.0]]
    assert p_of(strange, forgotten) == (2 / 70, 70)
    assert p_of([50 * one for one in strange], [50 * one for one in forgotten]) == (2 / 70, 70)
    # as independent rows they would leave no doubt
    rows = [value for one in forgotten for value in 50 * one]
    others = [value for one in strange for value in 50 * one]
    assert exchange_p(others, rows, range(200, 400), range(200))[0] == 1 / (1 + N_DRAWS)


def test_the_direction_is_said_in_words():
    forgotten, strange = people([4] * 6, 1), people([4] * 6, 2, shift=6.0)
    likely, unlikely = said(strange, forgotten), said(forgotten, strange)
    assert likely["says"] == f"{SEEN} (p 0.0022)"  # 2 of 924
    assert unlikely["says"] == f"{SHOUTS} (p 0.0022)"
    assert likely["p"] == unlikely["p"] == 2 / 924
    assert likely["n_splits"] == 924
    assert likely["drawn"] is False
    assert likely["unit"] == "author"


def test_where_nothing_is_shown_it_says_what_would_fit():
    found = said(people([4] * 6, 1), people([4] * 6, 2))
    assert found["p"] > 0.05
    assert found["says"].startswith("nothing is shown (p 0.")
    (higher, strangers), (lower, members) = (
        flat(people([4] * 6, one), at) for one, at in ((1, 100), (2, 0))
    )
    ends = clustered_auc_limits(higher, lower, strangers, members)
    assert found["says"].endswith(f"an area of {ends.low:.2f} to {ends.high:.2f} fits")
    few = said(people([4] * 4, 1), people([4] * 4, 2))
    assert few["says"].endswith(": 4 authors: no interval")


@pytest.mark.parametrize(
    ("n_strangers", "n_members", "tested"),
    [(3, 3, False), (4, 3, False), (5, 3, True), (4, 4, True), (38, 1, False), (39, 1, True)],
)
def test_too_few_people_have_no_p(n_strangers, n_members, tested):
    # a side's splits must allow a p of .05: two of 40 ways
    found = said(people([2] * n_strangers, 1), people([2] * n_members, 2))
    assert (found["p"] is not None) == tested
    assert found["says"].startswith("not tested: ") != tested
    assert (found["n_forgotten"], found["n_never_seen"]) == (n_members, n_strangers)
    if (n_strangers, n_members) == (3, 3):
        assert "3 forgotten and 3 never-seen authors allow no p below 0.1" in found["says"]


@pytest.mark.parametrize("name", ["Ada", "@ada", "ADA "])
def test_nobody_is_on_both_sides(name):
    found = betrayal(
        [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [*"efg", name], [*"abc", "Ada"], NO_LIMITS
    )
    assert found["p"] is None
    assert found["says"] == "not tested: author 'ada' is on both sides, forgotten and never seen"


def test_rows_of_two_files_that_name_nobody_are_different_people():
    rows = [f"idx {at}" for at in range(5)]
    found = betrayal([6.0, 7, 8, 9, 10], [1.0, 2, 3, 4, 5], rows, rows, NO_LIMITS)
    assert found["p"] == 2 / 252
    assert found["unit"] == "row"
