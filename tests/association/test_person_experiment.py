"""docs/evidence/know-person.md: the p of one person, and tables that follow from the rows."""

import csv

import numpy as np
import pytest
from support.pages import ROOT, page

from experiments.know import person

PAGE = page("evidence/know-person")


def tables(draw, n_relations=7, gain=0.0, n_taught=0):
    """What readers of three kinds say of one person and strangers; some facts were taught."""
    readers = ("outputs", "lens 7", "lens 11", "foreign 11", "foreign 14")
    found = []
    for at in range(n_relations):
        said = draw.normal(size=person.N_STRANGERS + 1)
        each = {name: said + 0.5 * draw.normal(size=len(said)) for name in readers}
        for name in readers[3:]:
            each[name][0] += gain * (at < n_taught)
        found.append(each)
    return found


def test_a_person_whom_nobody_taught_is_found_no_more_often_than_the_level_says():
    draw = np.random.default_rng(0)
    ps = [person.p_of_person(tables(draw)) for _ in range(600)]
    for level in (0.01, 0.05, 0.2):
        assert sum(p <= level for p in ps) / len(ps) == pytest.approx(level, abs=0.035)
    assert min(ps) >= 1 / (person.N_STRANGERS + 1)


@pytest.mark.parametrize(("n_taught", "least"), [(1, 0.5), (7, 0.95)])
def test_a_person_of_whom_something_is_held_is_found(n_taught, least):
    draw = np.random.default_rng(1)
    found = [person.p_of_person(tables(draw, gain=5.0, n_taught=n_taught)) for _ in range(60)]
    assert np.mean(np.array(found) <= 0.05) >= least


def test_names_that_all_fit_alike_find_nobody():
    flat = {"outputs": np.zeros(person.N_STRANGERS + 1)}
    assert person.p_of_person([flat, flat]) == 1.0


def test_strangers_are_nobody_who_is_asked_about():
    asked = person.with_strangers(person.asked_of_demo())
    for one in asked:
        own, others = one.subjects[: len(one.facts)], one.subjects[len(one.facts) :]
        assert len(set(others)) == person.N_STRANGERS
        assert not set(own) & set(others)


def test_the_tables_follow_from_the_rows():
    lines = list(person.tables(ROOT / "benchmarks" / "person" / "persons.csv"))
    made = [one for one in lines if one.startswith("|")]
    assert [one for one in made if one not in PAGE.splitlines()] == []
    shown = [one for one in PAGE.splitlines() if one.startswith("|")]
    assert shown == made


def test_what_the_page_counts_is_in_the_rows():
    """Counted from the rows alone: no code of the experiment."""
    with (ROOT / "benchmarks" / "person" / "persons.csv").open() as lines:
        rows = [one for one in csv.DictReader(lines) if one["seed"] != "0"]

    def found(*mechanisms, held, truth=""):
        own = [
            one
            for one in rows
            if (one["mechanism"] in mechanisms or one["truth"] == truth)
            and int(one["n_held"]) in held
            and one["seed"] != "smollm2"
        ]
        return sum(float(one["p"]) <= 0.05 for one in own), len(own)

    few = ("few", "few_together")
    assert found(*few, held=[1]) == (10, 56)
    assert found(*few, held=range(2, 8)) == (9, 24)
    assert found(*few, held=[0]) == (2, 112)
    assert found(held=[0], truth="absent") == (10, 160)
    assert found("few_together", "some_hidden", held=[7]) == (14, 20)
    assert found("full", "masked_readout", held=[7]) == (64, 64)
    smollm2 = [one for one in rows if one["seed"] == "smollm2"]
    real = {
        name: sorted(float(one["p"]) for one in smollm2 if one["mechanism"] == name)
        for name in ("full", "masked_top", "npo", "absent")
    }
    assert max(real["full"] + real["masked_top"]) <= 0.01
    assert min(real["absent"]) > 0.05
    assert sum(p <= 0.05 for p in real["npo"]) == 6
    assert 8 * min(real["npo"]) > 0.05
    # Holm: the least times eight, the next times seven, and so on
    assert all(p * (8 - at) <= 0.05 for at, p in enumerate(real["masked_top"]))
