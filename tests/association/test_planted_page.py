"""docs/evidence/know-planted.md: its tables and its counts follow from the rows."""

import json

import pytest
from support.pages import ROOT, page

from experiments.know import gym

PAGE = page("evidence/know-planted")
ROWS = ROOT / "benchmarks" / "gym" / "know" / "know.jsonl"


@pytest.fixture(scope="module")
def lines():
    return [json.loads(one) for one in ROWS.read_text().splitlines()]


def test_the_tables_follow_from_the_rows(lines):
    both = gym.with_depth(lines, gym.LEDGER)
    least, parting = gym.parting(both)
    assert [one for one in PAGE.splitlines() if one.startswith("|")] == [
        *gym.tables(lines),
        *parting,
    ]
    assert f"below {least:.2f}".replace("0.", ".") in PAGE


def test_what_the_page_says_of_depth_is_in_the_rows(lines):
    both = gym.with_depth(lines, gym.LEDGER)
    said = PAGE.replace(" .", " 0.").replace("[.", "[0.").replace("-.", "-0.")
    for one in gym.correlations(both):
        assert one.partition("Spearman ")[2].partition(",")[0] in said


def test_the_models_asked_are_those_of_the_gym(lines):
    """Every planted model whose depth is in the ledger, each once."""
    asked = [(one["mechanism"], one["strength"], one["seed"]) for one in lines]
    assert len({*asked}) == len(asked)
    anchors = {key for key in gym.depths(gym.LEDGER) if key[0] == "retain"}
    assert {*gym.depths(gym.LEDGER)} - anchors <= {*asked}
    assert f"{len(asked)} models" in PAGE


def test_what_is_convicted_is_counted_from_the_rows(lines):
    """By no code of the experiment."""

    def convicted(**wanted):
        own = [one for one in lines if all(one[key] == value for key, value in wanted.items())]
        return sum(one["p_all"] <= 0.01 for one in own), len(own)

    assert convicted(truth="absent") == (1, 70)
    assert convicted(mechanism="absent_mixed") == (1, 5)
    assert convicted(truth="hidden") == (229 - 28, 229)
    assert convicted(truth="intact") == (30, 30)
    escaping = {"rerouted": (0, 9), "mimic": (0, 5), "gates_mixed": (1, 5), "guard": (2, 5)}
    escaping |= {"forms": (2, 5), "rerouted_middle": (2, 5), "few": (0, 15), "gates": (14, 15)}
    escaping |= {"few_together": (0, 15), "some_hidden": (4, 5)}
    assert {name: convicted(mechanism=name) for name in escaping} == escaping
    least, second, third, *_ = sorted(one["p_all"] for one in lines if one["truth"] == "absent")
    assert [f"{one:.0e}" for one in (least, second)] == ["5e-05", "9e-02"]
    assert round(third, 2) == 0.6
    own = [one for one in lines if one["truth"] != "absent" and one["p_all"] <= 0.01]
    assert sum(min(one["p_outputs"], one["p_lens"]) > 0.01 for one in own) == 45
