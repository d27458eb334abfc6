"""Selection: pure arithmetic on who answered what rightly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.attacks.rtt.fork import read_csvs
from lensaudit.attacks.rtt.log import HeldSplit, Point
from lensaudit.attacks.rtt.marks import GridCell
from lensaudit.attacks.rtt.selection import halves, select
from lensaudit.attacks.settings import SummarySettings
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_csv
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


UNLEARNED = {
    "model_path": "models/gd/lr4e-7",
    "dataset": "YEARS",
    "unlearn_type": "GD",
    "forget_accs": {
        "data/years/split_0.jsonl": {0: 0.9, 5: 0.2},
        "data/years/split_1.jsonl": {0: 0.9, 5: 0.4},
        "data/years/split_2.jsonl": {0: 0.9, 5: 0.9},
    },
    "val_files": [f"years/split_{n}" for n in range(3)],
}
"""A row of the fork's `unlearning/*.csv`: every split, after every epoch."""


def retrained(split, lr, curve, condition="unlearn+rtt", start="models/gd/lr4e-7"):
    return {
        "forget_accs_local": curve,
        "rtt_eval_split_id": split,
        "rtt_train_split_ids": [one for one in range(3) if one != split],
        "rtt_condition": condition,
        "rtt_start_model_path": start,
        "dataset": "YEARS",
        "loss_type": "QUESTION_LETTER_ANSWER",
        "lr": lr,
        "epochs": 2,
        "rtt_signature": "3f2a",
    }


B = (
    retrained(0, 1e-7, {0: 0.7, 1: 0.4, 2: 0.5}),
    retrained(0, 2e-7, {0: 0.7, 1: 0.6, 2: 0.4}),
    retrained(1, 1e-7, {0: 0.7, 1: 0.1, 2: 0.7}),
    retrained(1, 2e-7, {0: 0.7, 1: 0.35, 2: 0.3}),
)
C = tuple(
    retrained(n, lr, {1: 0.8, 2: 0.9}, "baseline+rtt", "models/base")
    for n in (0, 1)
    for lr in (1e-7, 2e-7)
)


def in_files(folder, *, unlearned=(UNLEARNED,), runs=(*B, *C)):
    """One file a row, as the fork's jobs write them."""
    for inside, rows in (("unlearning", unlearned), ("ft", runs)):
        for n, row in enumerate(rows):
            write_csv(
                make_folder(folder / inside) / f"2025--num{n}.csv", list(row), [list(row.values())]
            )
    return folder


def read(folder, **how):
    return read_csvs(SummarySettings(from_csv=folder, **how))


def test_the_forks_files_are_selected_per_v_and_globally_on_the_same_splits(tmp_path):
    (study,) = read(in_files(tmp_path / "evals" / "pipeline").parent.parent)
    ways = {(one.selection, one.acc_selection_rule): one for one in (study.main, *study.others)}
    found = {way: one.accuracies["B"].value for way, one in ways.items()}
    # best epoch: split 0 .5 and .6, split 1 .7 and .35; last epoch: .5 and .4, .7 and .3
    assert found["per_v", "max_epoch"] == pytest.approx((0.6 + 0.7) / 2)
    assert found["global", "max_epoch"] == pytest.approx((0.5 + 0.7) / 2)
    assert found["fork", "max_epoch"] == pytest.approx((0.5 + 0.7) / 2)
    assert found["per_v", "final_epoch"] == found["global", "final_epoch"] == pytest.approx(0.6)
    # split 2 was never held out
    assert study.as_they_are["A"].value == pytest.approx((0.2 + 0.4) / 2)
    assert study.all_splits["A"].value == pytest.approx((0.2 + 0.4 + 0.9) / 3)
    assert study.main.recovery_rate.value == pytest.approx(0.65 / 0.9)
    assert study.main.gap_closed.value == pytest.approx((0.65 - 0.3) / (0.9 - 0.3))
    assert study.main.recovery_adjusted.why == "condition N is missing"
    assert (
        "B: 0.650 by the best cell of each V, 0.600 by one cell for all V: 0.050 apart; 0.600 by "
        "the fork's code: one run for all V, the best epoch of each"
    ) in study.notes


def test_global_is_one_epoch_for_all_and_the_forks_own_best_has_another_name(tmp_path):
    curves = {0: {1: 0.75, 2: 0.6875}, 1: {1: 0.5625, 2: 0.8125}}
    runs = [retrained(n, 1e-3, curve) for n, curve in curves.items()]
    (study,) = read(in_files(tmp_path, runs=(*runs, *C)))
    ways = {(one.selection, one.acc_selection_rule): one for one in (study.main, *study.others)}
    found = {way: one.accuracies["B"].value for way, one in ways.items()}
    # each epoch's mean: (.75 + .5625) / 2 = .65625 and (.6875 + .8125) / 2 = .75
    assert found["global", "max_epoch"] == found["global", "final_epoch"] == 0.75
    assert [cell["epoch"] for cell in ways["global", "max_epoch"].chosen["B"]] == [2, 2]
    # each V at its best epoch, (.75 + .8125) / 2: of one learning rate the fork and `per_v` agree
    assert found["fork", "max_epoch"] == found["per_v", "max_epoch"] == 0.78125
    assert [cell["epoch"] for cell in ways["per_v", "max_epoch"].chosen["B"]] == [1, 2]
    assert len(ways) == 5
    (study,) = read(tmp_path, rule="final")
    assert "B: 0.750 by the best cell of each V, 0.750 by one cell for all V: 0.000 apart" in (
        study.notes
    )


def test_the_forks_conditions_are_compared_with_the_control_on_one_grid(tmp_path):
    sweep = {"baseline+rtt": 0.9, "control+rtt": 0.2}
    others = [
        retrained(n, lr, {0: 0.2, 1: 0.2, 2: value}, *(condition, condition))
        for condition, value in sweep.items()
        for n, lr in ((0, 1e-7), (0, 2e-7), (1, 1e-7), (1, 2e-7))
    ]
    (study,) = read(in_files(tmp_path / "all", runs=(*B, *others)))
    assert study.main.recovery_adjusted.value == pytest.approx((0.65 - 0.2) / (0.9 - 0.2))
    (study,) = read(in_files(tmp_path / "some", runs=(*B, *others[:-1])))
    assert study.main.recovery_adjusted.why == (
        "N lacks epochs at lr 2e-07 that others have: the best of each do not compare"
    )
    assert study.main.recovery_rate.value == pytest.approx(0.65 / 0.9)
    (study,) = read(in_files(tmp_path / "fewer", runs=(*B, *C[:-1])))
    why = "C lacks epochs at lr 2e-07 that others have: the best of each do not compare"
    assert (study.main.recovery_rate.why, study.main.gap_closed.why) == (why, why)


def test_a_study_holds_out_the_splits_of_its_own_runs(tmp_path):
    """One model, unlearned once, whose splits 0 and 1, then 1 and 2, were held out."""
    first, second = (0, 1), (1, 2)
    later = [{**row, "rtt_eval_split_id": row["rtt_eval_split_id"] + 1} for row in B]
    runs = [{**row, "eval_split_ids": [*first], "rtt_signature": "a"} for row in B]
    runs += [{**row, "eval_split_ids": [*second], "rtt_signature": "b"} for row in later]
    unlearned = [{**UNLEARNED, "eval_split_ids": [*held]} for held in (first, second)]
    # the fork's own runs do not say it: their splits tell whose row is whose
    for name, some in (("ours", runs), ("fork", [without(row, "eval_split_ids") for row in runs])):
        studies = read(in_files(tmp_path / name, unlearned=unlearned, runs=some))
        assert [one.held_out for one in studies] == [["split_0", "split_1"], ["split_1", "split_2"]]
        a = [one.as_they_are["A"].value for one in studies]
        assert a == pytest.approx([(0.2 + 0.4) / 2, (0.4 + 0.9) / 2])
        assert all(one.main.accuracies["B"].value == pytest.approx(0.65) for one in studies)


def test_an_accuracy_that_is_none_is_left_out_and_told(tmp_path):
    broken = retrained(1, 3e-7, {1: float("nan"), 2: 4.75})
    (study,) = read(in_files(tmp_path, runs=(*B, *C, broken)))
    assert study.main.accuracies["B"].value == pytest.approx(0.65)
    told = [note.partition("line 2: ")[2] for note in study.notes if "left out" in note]
    assert told == [
        "epoch 1 has the accuracy NaN: left out",
        "epoch 2 has the accuracy 4.75: left out",
    ]
    (study,) = read(in_files(tmp_path / "lost", runs=(*B[:2], *C), unlearned=()))
    assert study.held_out == ["split_0"]
    one_split = {**UNLEARNED, "eval_split_ids": [0, 1]}
    (study,) = read(in_files(tmp_path / "half", runs=(*B[:2], *C), unlearned=(one_split,)))
    assert "B" not in study.main.accuracies
    assert "B: no run of split 1 with an accuracy" in study.notes


def test_a_run_in_two_files_counts_once_and_two_that_differ_are_refused(tmp_path):
    (study,) = read(in_files(tmp_path / "same", runs=(*B, *C, B[0])))
    assert study.main.accuracies["B"].value == pytest.approx(0.65)
    assert any("counted once" in note for note in study.notes)
    other = {**B[0], "forget_accs_local": {2: 1.0}}
    with pytest.raises(InputError, match=r"num0.csv and .*num8.csv hold different runs of sig"):
        read(in_files(tmp_path / "other", runs=(*B, *C, other)))


def without(row, name):
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (without(B[0], "rtt_eval_split_id"), "no column rtt_eval_split_id; wanted"),
        ({**B[0], "forget_accs_local": "{1: "}, "forget_accs_local is '{1: ', wanted a dict"),
        ({**B[0], "rtt_condition": "x"}, "rtt_condition is 'x', wanted unlearn"),
        ({**B[0], "lr": "fast"}, "lr is 'fast', wanted a number"),
        ({**B[0], "rtt_eval_split_id": -1}, "rtt_eval_split_id is .*-1', wanted a whole number"),
        (C[0], "no row has rtt_condition unlearn"),
    ],
    ids=lambda one: one[:12] if isinstance(one, str) else "",
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, row, said):
    with pytest.raises(InputError, match=said):
        read(in_files(tmp_path, runs=(row,)))


def test_a_folder_without_the_forks_files_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no folder ft in it"):
        read(tmp_path)
    with pytest.raises(InputError, match="halves the items"):
        read(in_files(tmp_path), selection="nested")
