"""Selection: pure arithmetic on who answered what rightly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.attacks.rtt.log import HeldSplit, Point
from lensaudit.attacks.rtt.marks import GridCell
from lensaudit.attacks.rtt.selection import halves, select
from lensaudit.results.reading import checked

N_EPOCHS = 3
quick = settings(deadline=None, derandomize=True, max_examples=60)


def run(split, table, groups=None):
    """A held-out split, and its models from (lr, epoch) -> marks."""
    cells = {GridCell(*key): np.array(marks, dtype=bool) for key, marks in table.items()}
    n = len(next(iter(cells.values())))
    return HeldSplit(split, tuple(range(n)), tuple(groups or range(n))), cells


def chosen(runs, selection="per_v", rule="max"):
    return select(dict(runs), selection=selection, rule=rule, n_epochs=N_EPOCHS)


V0 = run("v0", {(0.1, 1): [1, 0, 0, 0], (0.1, 3): [1, 1, 0, 0], (0.2, 3): [0, 0, 0, 1]})
V1 = run("v1", {(0.1, 1): [1, 0, 0, 0], (0.1, 3): [0, 0, 0, 0], (0.2, 3): [1, 1, 1, 0]})


def test_per_v_takes_the_best_of_each_split():
    found = chosen([V0, V1])
    assert found.accuracy == (2 / 4 + 3 / 4) / 2
    assert list(found.choices) == [("v0", GridCell(0.1, 3)), ("v1", GridCell(0.2, 3))]


def test_global_takes_the_best_mean_of_cells_that_every_split_has():
    # lr 0.1: (1 + 1) / 8 and (2 + 0) / 8; lr 0.2: (1 + 3) / 8
    found = chosen([V0, V1], "global")
    assert found.accuracy == 0.5
    assert {cell for _, cell in found.choices} == {GridCell(0.2, 3)}
    other = run("v1", {(0.1, 1): [1, 1, 1, 1]})
    found = chosen([V0, other], "global")
    assert {cell for _, cell in found.choices} == {GridCell(0.1, 1)}
    lone = run("v1", {(0.9, 2): [1, 1, 1, 1]})
    assert chosen([V0, lone], "global") is None
    assert chosen([V0, (HeldSplit("v1", (0, 1), (0, 1)), {})]) is None
    assert chosen([]) is None


def test_epoch_0_takes_no_part_and_ties_go_to_the_gentlest():
    early = run("v0", {(0.1, 1): [1, 1, 1, 1], (0.1, 3): [1, 0, 0, 0]})
    assert chosen([early]).accuracy == 1.0
    assert chosen([early], rule="final").accuracy == 0.25
    before = run("v0", {(0.1, 0): [1, 1, 1, 1], (0.1, 1): [1, 0, 0, 0]})
    assert chosen([before]).accuracy == 0.25
    tie = run("v0", {(0.2, 1): [1, 0], (0.1, 3): [0, 1], (0.1, 2): [1, 0]})
    assert chosen([tie]).choices[0][1] == GridCell(0.1, 2)


def test_nested_scores_each_half_with_the_choice_of_the_other():
    first = halves((0, 1, 2, 3), "v0")
    # cell 0.1 is right on the first half only, cell 0.2 on the second only
    table = {(0.1, 1): first, (0.2, 1): ~first}
    assert chosen([run("v0", table)]).accuracy == 0.5
    found = chosen([run("v0", table)], "nested")
    assert found.accuracy == 0.0
    assert [cell.lr for _, cell in found.choices] == [0.1, 0.2]


def test_halves_keep_a_group_together():
    groups = ("a", "a", "a", "b", "b", "c", "d")
    first = halves(groups, "v0")
    assert len({mark for mark, group in zip(first, groups, strict=True) if group == "a"}) == 1
    assert len({group for mark, group in zip(first, groups, strict=True) if mark}) == 2
    assert halves(("a", "a"), "v").sum() == 1
    with pytest.raises(ValueError, match="two items or more"):
        halves(("a",), "v")


tables = st.lists(
    st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=6, max_size=6),
    min_size=1,
    max_size=3,
)


@quick
@given(tables)
def test_per_v_is_never_below_global_and_neither_leaves_the_unit_interval(splits):
    runs = [
        run(f"v{n}", {(0.1 * (m // 3 + 1), m % 3 + 1): marks for m, marks in enumerate(table)})
        for n, table in enumerate(splits)
    ]
    for rule in ("max", "final"):
        found = {one: chosen(runs, one, rule).accuracy for one in ("per_v", "global", "nested")}
        assert found["per_v"] >= found["global"]
        assert all(0 <= value <= 1 for value in found.values())


def test_selection_on_noise_gains_what_order_statistics_say_and_nested_gains_nothing():
    # the mean maximum of 36 normal draws is 2.12 deviations; one V of 157 items at 25 % deviates
    # by sqrt(0.25 * 0.75 / 157) = 0.0346, the mean of two by 0.0244
    rng = np.random.default_rng(0)
    gained = {"per_v": [], "global": [], "nested": []}
    cells = [(0.1 * n, epoch) for n in range(6) for epoch in range(1, 7)]
    for _ in range(60):
        runs = [run(f"v{v}", {cell: rng.random(157) < 0.25 for cell in cells}) for v in range(2)]
        for selection, values in gained.items():
            found = select(dict(runs), selection=selection, rule="max", n_epochs=6)
            values.append(found.accuracy - 0.25)
    assert np.mean(gained["per_v"]) == pytest.approx(2.12 * 0.0346, abs=0.008)
    assert np.mean(gained["global"]) == pytest.approx(2.12 * 0.0244, abs=0.008)
    assert abs(np.mean(gained["nested"])) < 0.01


def test_a_log_of_before_is_read_on():
    assert checked(Point, {"epoch": 3, "readings": []}, "log") == Point(3, ())
