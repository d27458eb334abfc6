"""What was unlearned: the ranks by hand, neutral questions, and the page by its rows."""

import copy
import csv

import numpy as np
import pandas as pd
import pytest
import torch
from support.pages import ROOT, page

PAGE = page("evidence/label-free")
RANKS = ROOT / "benchmarks" / "label_free" / "ranks.csv"


@pytest.fixture(scope="module")
def label_free():
    from experiments.planted import label_free as module

    return module


def test_candidates_are_ranked_by_their_mean_and_what_stands_out_is_robust(label_free):
    moved = np.array([1.0, 3.0, 2.0, 4.0, 9.0, 11.0, 1.0, 3.0])
    about = ["a", "a", "b", "b", "c", "c", "d", "d"]
    found = label_free.ranked(moved, about, "b")  # means 2, 3, 10, 2: median 2.5
    assert (found.rank, found.n, found.top) == (2, 4, "c")
    assert found.excess == pytest.approx((10 - 2.5) / (1.4826 * 0.5))
    assert label_free.ranked(moved, about, None).rank == 0


def test_questions_are_neutral(label_free):
    rows = label_free.rows_of_all()
    asked = label_free.questions()
    names = {name for name, *_ in asked}
    assert len(names) == 36
    assert not {text for *_, text in asked} & {row.question for row in rows}
    by_name = {}
    for row in rows:
        by_name.setdefault(label_free.name_in(row), []).append(row.span)
    told = [text for name, _, text in asked for span in by_name.get(name, ()) if span in text]
    assert told == []
    assert len(by_name) == 28


def test_only_what_is_changed_moves(label_free, monkeypatch):
    """Full against itself moves nowhere; another last layer moves what is said, no stream below."""
    questions = [one for one in label_free.questions() if one[1] == "birthplace"][:6]
    monkeypatch.setattr(label_free, "questions", lambda: questions)
    for cached in (label_free.asked, label_free.before):
        cached.cache_clear()
    full = label_free.ground().full
    nowhere = label_free.movement(full)
    assert {len(one) for one in nowhere.values()} == {6}
    assert max(abs(one).max() for one in nowhere.values()) < 1e-6
    moved = copy.deepcopy(full)
    with torch.no_grad():
        moved.model.layers[-1].mlp.down_proj.weight.mul_(0.5)
    found = label_free.movement(moved)
    assert found["said"].min() > 1e-4
    assert found["stream"].max() < 1e-6  # the last layer's output is no stream that is read
    for cached in (label_free.asked, label_free.before):
        cached.cache_clear()


def test_the_page_follows_from_the_rows(label_free):
    shown = [one for one in PAGE.splitlines() if one.startswith("|")]
    assert shown == label_free.table(pd.read_csv(RANKS)).splitlines()


def test_what_the_page_says_is_counted_from_the_rows_alone():
    rows = list(csv.DictReader(RANKS.open(encoding="utf-8")))
    said = [one for one in rows if one["score"] == "said" and one["mechanism"] != "nothing"]
    people = [int(one["rank"]) for one in said if one["candidates"] == "person"]
    relations = [int(one["rank"]) for one in said if one["candidates"] == "relation"]
    assert (len(people), sum(one == 1 for one in people), max(people)) == (100, 92, 4)
    assert sorted(people)[-8:] == [2] * 7 + [4]
    assert relations == [1] * 32
    missed = [one for one in said if int(one["rank"]) > 1]
    assert all(set(one["set"].split()) & set(one["top"].split()) for one in missed)
    quiet = {
        kind: max(
            float(one["excess"])
            for one in rows
            if (one["mechanism"], one["candidates"], one["score"]) == ("nothing", kind, "stream")
        )
        for kind in ("person", "relation")
    }
    loud = [
        float(one["excess"]) > quiet[one["candidates"]]
        for one in rows
        if one["score"] == "stream" and one["mechanism"] != "nothing"
    ]
    assert (len(loud), sum(loud)) == (132, 131)
    assert "100 of 100 models, and moved most in 92" in PAGE
