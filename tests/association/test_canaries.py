"""Canaries: p is uniform where nothing was taught, and small where the taught score higher."""

import json

import numpy as np
import pytest
from scipy.stats import kstest

import lensaudit as la
from lensaudit.association.canaries import _p, draw_canaries, open_canaries, seal_of
from lensaudit.cli.main import run
from lensaudit.data.facts import load_facts
from lensaudit.errors import InputError


@pytest.fixture
def drawn(tmp_path):
    return tmp_path / "c", draw_canaries(tmp_path / "c", people=12, seed=7)


def scores(folder, place, gain=0.0, seed=0):
    """A table of scores by idx: noise, and a gain for people who were taught."""
    coins = json.loads((folder / "key.json").read_text())["coins"]
    noise = np.random.default_rng(seed)
    rows = [
        f"{row.idx},{noise.normal() + gain * coins[int(row.group)]}"
        for row in load_facts(folder / "people.json")
    ]
    place.write_text("idx,bits\n" + "\n".join(rows) + "\n")
    return place


def test_half_of_the_people_are_taught_and_the_seal_is_the_coins(drawn):
    folder, seal = drawn
    key = json.loads((folder / "key.json").read_text())
    taught = json.loads((folder / "taught.json").read_text())
    assert sum(key["coins"]) == 6
    assert {row["group"] for row in taught} == {n for n, one in enumerate(key["coins"]) if one}
    assert seal_of(key) == seal
    other = [not key["coins"][0], *key["coins"][1:]]
    assert seal_of(key | {"coins": other}) != seal


def test_both_sides_are_forget_rows_and_holdout_of_an_evaluation(tmp_path):
    draw_canaries(tmp_path / "canaries", people=8, seed=2)
    sides = [load_facts(tmp_path / "canaries" / name) for name in ("taught.json", "others.json")]
    everybody = load_facts(tmp_path / "canaries" / "people.json")
    assert sorted(row.idx for side in sides for row in side) == [row.idx for row in everybody]
    coins = json.loads((tmp_path / "canaries" / "key.json").read_text())["coins"]
    assert [{coins[int(row.group)] for row in side} for side in sides] == [{True}, {False}]
    found = la.evaluate(
        "demo/never",
        tmp_path / "eval",
        metrics=("mia_loss",),
        data=tmp_path / "canaries" / "taught.json",
        holdout=tmp_path / "canaries" / "others.json",
    )
    told = found.entries["mia_loss"].betrayal
    assert (told["n_forgotten"], told["n_never_seen"], told["n_splits"]) == (4, 4, 70)
    assert told["p"] > 0.05


def test_taught_people_are_found_on_their_side_alone(drawn, tmp_path):
    folder, seal = drawn
    place = scores(folder, tmp_path / "s.csv", gain=5.0)
    found = open_canaries(folder, place, seal=seal, score="bits")
    # 1 of C(12, 6) = 924 coin vectors, as drawn
    assert found.p < 0.005
    assert (found.n_taught, found.n_people) == (6, 12)
    assert found.taught > found.others + 4
    assert open_canaries(folder, place, seal=seal, score="bits", side="lower").p > 0.99


def test_p_is_uniform_where_nothing_was_kept(drawn, tmp_path):
    folder, seal = drawn
    found = [
        open_canaries(folder, scores(folder, tmp_path / "s.csv", seed=n), seal=seal, score="bits").p
        for n in range(60)
    ]
    assert kstest(found, "uniform").pvalue > 0.01


@pytest.mark.parametrize("unit", [1e-300, 1e-12, 1e-9, 1e9, 1e300])
def test_p_does_not_depend_on_the_unit_or_the_zero_of_the_score(unit):
    heads = np.arange(40) % 2 == 0
    values = np.random.default_rng(3).normal(size=40) + 0.7 * heads
    wanted = _p(values, heads)
    assert 0.001 < wanted < 0.2
    assert _p(unit * values, heads) == _p(min(unit, 1e9) + values, heads) == wanted


@pytest.mark.parametrize("score", [0.0, 0.1, 1e7 / 3, 1e12 / 7, 1e-10 / 3])
def test_equal_scores_find_nothing(score):
    noise = np.random.default_rng(3)
    heads = np.arange(40) % 2 == 0
    assert _p(np.full(40, score), heads) == 1.0
    # means of the same rows in another order differ in their last digits
    rows = [score, score / 7, -score / 3, score / 11]
    assert _p(np.array([np.mean(noise.permutation(rows)) for _ in heads]), heads) == 1.0


def test_changed_coins_another_set_and_a_missing_column_are_refused(drawn, tmp_path):
    folder, seal = drawn
    place = scores(folder, tmp_path / "s.csv")
    with pytest.raises(InputError, match="its seal is"):
        open_canaries(folder, place, seal="0" * 64, score="bits")
    with pytest.raises(InputError, match="has no column uds"):
        open_canaries(folder, place, seal=seal, score="uds")
    place.write_text("idx,bits\n9999,1\n")
    with pytest.raises(InputError, match="idx 9999 is no row"):
        open_canaries(folder, place, seal=seal, score="bits")
    place.write_text("idx,bits\n0,1\n")
    with pytest.raises(InputError, match="wanted 4 a side"):
        open_canaries(folder, place, seal=seal, score="bits")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("idx,bits\n0,nan\n", "row 1: bits: found 'nan', wanted a finite number"),
        ("idx,bits\n0,1\n1,inf\n", "row 2: bits: found 'inf', wanted a finite number"),
        ("idx,bits\n0,high\n", "row 1: bits: found 'high', wanted a number"),
        ("idx,bits\nx,1\n", "row 1: idx: found 'x', wanted a whole number"),
        ("idx,bits\n0,1\n0,2\n", "row 2: duplicate idx 0"),
        ("name,bits\n0,1\n", "row 1: idx: found None, wanted a whole number"),
        ("idx,bits\n0,\n", "0 people scored; wanted 4 a side"),
    ],
)
def test_a_table_that_is_none_is_one_line_and_never_a_p(drawn, tmp_path, table, said):
    (tmp_path / "s.csv").write_text(table)
    with pytest.raises(InputError, match=said):
        open_canaries(drawn[0], tmp_path / "s.csv", seal=drawn[1], score="bits")


def test_edited_people_or_coins_are_refused(drawn, tmp_path):
    folder, seal = drawn
    place = scores(folder, tmp_path / "s.csv")
    people = json.loads((folder / "people.json").read_text())
    for group, said in ((99, "99 has no coin"), ("Ada", "'Ada' has no coin")):
        (folder / "people.json").write_text(json.dumps([one | {"group": group} for one in people]))
        with pytest.raises(InputError, match=said):
            open_canaries(folder, place, seal=seal, score="bits")
    for key, said in (({"salt": "x"}, "has no 'coins'"), ({"salt": "x", "coins": "ab"}, "a list")):
        (folder / "key.json").write_text(json.dumps(key))
        sealed = seal_of(key) if "coins" in key else seal
        with pytest.raises(InputError, match=said):
            open_canaries(folder, place, seal=sealed, score="bits")


def test_the_commands_draw_and_test(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["canaries", "draw", "-o", "c", "--people", "10"]) == 0
    seal = capsys.readouterr().out.split()[1]
    place = scores(tmp_path / "c", tmp_path / "s.csv", gain=9.0)
    given = ["canaries", "test", str(place), "--canaries", "c", "--seal", seal, "--score", "bits"]
    assert run([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["p"] < 0.01
    assert run(["canaries", "draw", "-o", "c"]) == 2
    assert "is not empty" in capsys.readouterr().err
    for people in ("7", "1933"):  # there are 1932 names
        assert run(["canaries", "draw", "-o", "d", "--people", people]) == 2
        assert f"--people {people}: wanted 8 to 1932" in capsys.readouterr().err
