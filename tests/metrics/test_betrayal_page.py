"""docs/evidence/betrayal.md: its tables follow from the rows beside it."""

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


def test_the_tables_follow_from_the_rows(lines):
    told = PAGE.splitlines()
    tables = [one for one in lines if one.startswith("|")]
    assert len(tables) == 3 * 2 + 9 + 9 + 6
    assert [one for one in tables if one not in told] == []
    shown = [one for one in told if one.startswith("|")]
    assert len(shown) == len(tables) + 6  # and the table of what it says


def test_what_was_not_made_is_said(betrayal, lines):
    missing = [one for one in lines if one.startswith("Not made: ")]
    assert len(missing) == len(betrayal.NOT_MADE) > 0
    assert all(one in PAGE for one in missing)


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
    assert shown.count("| npo") == 2
    assert not {"| graddiff", "| never"} & set(shown)
