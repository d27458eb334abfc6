"""docs/evidence/know-person.md: its strangers are nobody, and its tables follow from the rows."""

import csv
import itertools
from dataclasses import replace

import torch
from support.pages import ROOT, page

from experiments.know import person

PAGE = page("evidence/know-person")


def test_strangers_are_nobody_who_is_asked_about():
    asked = person.with_strangers(person.asked_of_demo())
    for one in asked:
        own, others = one.subjects[: len(one.facts)], one.subjects[len(one.facts) :]
        assert len(set(others)) == person.N_STRANGERS
        assert not set(own) & set(others)


def test_the_tables_follow_from_the_rows():
    folder = ROOT / "benchmarks" / "person"
    parts = (
        person.tables(folder / "persons.csv"),
        person.table_of_real(folder / "persons.csv"),
        person.table_of_one(folder / "alone.csv"),
        person.tables(folder / "worst.csv"),
        person.table_of_real(folder / "worst.csv"),
    )
    made = [one for one in itertools.chain.from_iterable(parts) if one.startswith("|")]
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


def test_who_is_alone_is_counted_from_the_rows():
    with (ROOT / "benchmarks" / "person" / "alone.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert {one["seed"] for one in rows} == {"1"}
    assert len(rows) == 14 * 8
    absent = [float(one["p"]) for one in rows if one["truth"] == "absent"]
    assert (sum(p <= 0.05 for p in absent), len(absent)) == (1, 40)
    held = [float(one["p"]) for one in rows if one["mechanism"] in ("full", "masked_readout")]
    assert (sum(p <= 0.05 for p in held), len(held)) == (16, 16)


def test_who_is_alone_stands_beside_the_further_values_only():
    asked = person.with_strangers(
        [replace(one, placebos=("x", "y")) for one in person.asked_of_demo()]
    )
    said = torch.randn(len(asked[0].subjects), len(asked[0].values)).double()
    read = person.alone(person.RelationReading(asked[0], {"outputs": said}), 3)
    assert [fact.group for fact in read.asked.facts] == [3]
    own = asked[0].facts[3].entity
    assert read.asked.values == (own, "x", "y")
    assert read.asked.subjects == (asked[0].subjects[3], *asked[0].subjects[8:])
    wanted = said[[3, *range(8, len(said))]][:, [asked[0].true[3], -2, -1]].softmax(-1)
    assert torch.allclose(read.by_reader["outputs"].exp(), wanted)


def test_who_stands_out_under_attacks_is_counted_from_the_rows():
    with (ROOT / "benchmarks" / "person" / "worst.csv").open() as lines:
        rows = [one for one in csv.DictReader(lines) if one["seed"] != "smollm2"]
    assert {one["seed"] for one in rows} == {"1", "2", "3", "4"}
    assert len(rows) == 4 * 14 * 8

    def out(chosen):
        return sum(float(one["p"]) <= 0.05 for one in chosen), len(chosen)

    few = [one for one in rows if one["mechanism"] in ("few", "few_together")]
    assert out([one for one in few if one["n_held"] == "1"]) == (44, 56)
    assert out([one for one in few if int(one["n_held"]) > 1]) == (24, 24)
    assert out([one for one in few if one["n_held"] == "0"]) == (2, 112)
    exchanged = [one for one in rows if one["mechanism"] == "exchanged"]
    absent = [one for one in rows if one["truth"] == "absent" and one not in exchanged]
    assert out(exchanged) == (14, 32)
    assert out(absent) == (9, 128)
    assert out([one for one in absent if one["mechanism"] != "absent_turned"]) == (6, 96)
    # Holm names somebody where the least p of eight is at most .05 / 8
    named = {
        (one["seed"], one["mechanism"], one["person"])
        for one in absent
        if 8 * float(one["p"]) <= 0.05
    }
    assert {(seed, person) for seed, _, person in named} == {("1", "5"), ("3", "5")}
    assert len({(seed, mechanism) for seed, mechanism, _ in named}) == 4
    assert "4 of the 16 models that never saw anybody would name somebody" in " ".join(PAGE.split())
