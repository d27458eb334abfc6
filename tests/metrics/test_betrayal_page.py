"""docs/evidence/betrayal.md: its tables follow from the rows beside it."""

import csv

import pytest
from support.pages import ROOT, page

PAGE = page("evidence/betrayal")


@pytest.fixture(scope="module")
def betrayal():
    from experiments.metrics import betrayal as module

    return module


@pytest.fixture(scope="module")
def lines(betrayal):
    return [one for one in betrayal.tables(ROOT / "benchmarks" / "betrayal") if one]


@pytest.fixture(scope="module")
def of_the_gym():
    from experiments.metrics.betrayal_gym import table

    return [one for one in table(ROOT / "benchmarks" / "betrayal") if one.startswith("|")]


def test_the_tables_follow_from_the_rows(lines, of_the_gym):
    told = PAGE.splitlines()
    tables = [one for one in lines if one.startswith("|")]
    seeds = 2 * 2 + 4 * 4 + 7 + 11
    assert len(tables) == 5 * 2 + 2 * 9 + 2 * 7 + 6 + seeds
    assert [one for one in tables if one not in told] == []
    shown = [one for one in told if one.startswith("|")]
    assert len(shown) == len(tables) + 6 + len(of_the_gym)  # and the table of what it says


def test_the_tables_of_the_gym_follow_from_its_rows(of_the_gym):
    assert len(of_the_gym) == 2 * 2 + 58 + 5
    assert [one for one in of_the_gym if one not in PAGE.splitlines()] == []


def test_what_the_page_counts_in_the_gym_is_there():
    """Counted from the rows alone: no code of the experiment."""
    rows = list(csv.DictReader((ROOT / "benchmarks" / "betrayal" / "gym.csv").open()))

    def counted(*names):
        own = [one for one in rows if one["mechanism"].startswith(names)]
        small = [one for one in own if float(one["p_less"]) <= 0.05]
        return len(own), sum(float(one["area_less"]) < 0.5 for one in small), len(small)

    assert counted("rerouted_middle") == (5, 2, 2)
    assert counted("rerouted", "absent_rerouted") == (9 + 5 + 5, 9 + 5 + 2, 9 + 5 + 2)
    assert counted("gates") == (60, 0, 50)
    assert counted("guard") == (5, 0, 5)
    assert counted("permuted", "split_layers", "late", "mimic", "few") == (70, 0, 0)
    assert counted("absent_wrong", "exchanged") == (10, 0, 10)
    nothing = ("absent_further", "absent_nf4", "absent_noise", "absent_permuted", "absent_turned")
    plain = sum(one["mechanism"] == "absent" and float(one["p_less"]) > 0.05 for one in rows)
    assert counted(*nothing) == (30, 0, 0)
    assert plain == 5
    absent = [one for one in rows if one["truth"] == "absent"]
    assert sum(float(one["p"]) <= 0.05 for one in absent) == 29
    assert "29 of 70 absent models" in PAGE


def test_every_model_was_made(lines):
    assert [one for one in lines if one.startswith("Not made: ")] == []


def test_what_the_page_says_of_other_seeds_follows_from_the_rows(betrayal):
    """By areas and p alone."""
    rows = betrayal.kept(ROOT / "benchmarks" / "betrayal" / "rows.csv")

    def p_and_side(model, attack):
        one = betrayal.by_attack(rows, model, attack)
        return one["p"] <= 0.05, one["area"] > 0.5

    for seed in (1, 2, 3):
        for method in ("npo", "graddiff"):
            assert p_and_side(f"demo-{seed}/{method}", "retain") == (True, False)
        assert p_and_side(f"demo-{seed}/idknll", "retain") == (True, True)
        assert not p_and_side(f"demo-{seed}/simnpo", "retain")[0]
    assert sum(p_and_side(f"demo-{seed}/simnpo", "loss")[0] for seed in (1, 2, 3)) == 2
    real = [f"smollm2-1/{one}" for one in betrayal.SEEDS["smollm2-1/"]]
    shouts = (True, False)
    told = [p_and_side(one, "retain") for one in real if not one.endswith("/retain")]
    assert shouts not in [*told, *(p_and_side(one, "loss") for one in real)]
    seen = ("full", "idknll", "simnpo", "npo_sam")
    assert all(p_and_side(f"smollm2-1/{one}", "retain") == (True, True) for one in seen)


def test_rank_correlations_are_those_of_the_page(lines):
    ranks = [one.rpartition(": ")[2] for one in lines if one.startswith("Rank correlation")]
    assert ranks == ["0.71.", "0.71."]
    assert "0.71, with or without retain's loss" in PAGE


def test_what_is_missing_is_no_row(betrayal, tmp_path):
    rows = ROOT / "benchmarks" / "betrayal" / "rows.csv"
    heading, *texts = rows.read_text().splitlines()
    some = [one for one in texts if one.split(",")[0] in ("full", "retain", "npo")]
    (tmp_path / "rows.csv").write_text("\n".join([heading, *some]) + "\n")
    (tmp_path / "depth.csv").write_text("model,uds,low,high\nnpo,0.5,0.4,0.6\n")
    told = list(betrayal.tables(tmp_path))
    assert "Not made: graddiff." in told
    shown = [one.split(" | ")[0] for one in told if one.startswith("| ")]
    assert shown.count("| npo") == 3  # and in the table of the seeds
    assert not {"| graddiff", "| never"} & set(shown)


def test_without_the_rows_of_retain_nothing_is_less_its_loss(betrayal, tmp_path):
    heading, *texts = (ROOT / "benchmarks" / "betrayal" / "rows.csv").read_text().splitlines()
    some = [one for one in texts if one.split(",")[0] in ("idknll", "demo-1/npo", "smollm2/full")]
    (tmp_path / "rows.csv").write_text("\n".join([heading, *some]) + "\n")
    told = list(betrayal.tables(tmp_path))
    deep, attacks, seed = (one.split(" | ") for one in told if one.startswith("| idknll"))
    assert (deep[-2:], attacks[-2:], seed[-3:]) == (["–", "– |"], ["–", "– |"], ["–"] * 2 + ["– |"])
    rows = betrayal.kept(tmp_path / "rows.csv")
    assert betrayal.by_attack(rows, "demo-1/npo", "retain") is None
    assert betrayal.by_attack(rows, "demo-1/npo", "loss") is not None
