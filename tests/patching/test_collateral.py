"""What was lost of facts to keep: rows, strata, anchors, and the numbers by hand."""

import json
import math

import pytest
import torch
from support import EMBEDDED
from support.tolerance import NATS

import lensaudit as la
from lensaudit.data.facts import load_facts
from lensaudit.data.neutral import kept_facts, other_answers, strata_of
from lensaudit.data.spans import Encoded
from lensaudit.patching import sources as module
from lensaudit.patching.prepare import prepare
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.sources import places
from lensaudit.patching.summary import patched as patched_beside
from lensaudit.results.roles import ends_as_sources
from lensaudit.scores.depth import over_erasure
from lensaudit.scores.intervals import clustered_mean, difference_of

LIMIT = 16


def fact(idx, question, entity, group):
    return la.Fact(idx, question, f"It is {entity}.", "It is", entity, group)


def test_the_interval_of_a_difference_joins_both_score_intervals():
    first, second = [1.0, 0.9, 0.8, 1.0, 0.7, 0.9], [0.1, 0.0, 0.3, 0.2, 0.1, 0.05]
    groups = list(range(6))
    a, b = clustered_mean(first, groups), clustered_mean(second, groups)
    mean_a, mean_b = sum(first) / 6, sum(second) / 6
    found = difference_of(first, groups, second, groups)
    assert found.value == pytest.approx(mean_a - mean_b)
    low = found.value - math.sqrt((mean_a - a.low) ** 2 + (b.high - mean_b) ** 2)
    high = found.value + math.sqrt((a.high - mean_a) ** 2 + (mean_b - b.low) ** 2)
    assert found.ends == pytest.approx((low, min(1.0, high)))


def test_too_few_authors_give_a_difference_without_an_interval():
    found = difference_of([1.0, 0.9], [0, 1], [0.1] * 6, list(range(6)))
    assert found.value == pytest.approx(0.85)
    assert (found.ends, found.why) == (None, "2 authors: no interval")


def test_over_erasure_counts_ke_layers_of_rows_that_have_any():
    s1 = torch.tensor([[1.0, 2.0, 0.01], [0.01, 0.0, 0.02], [0.5, 0.01, 0.01]])
    s2 = torch.tensor([[1.5, 1.0, 9.0], [9.0, 9.0, 9.0], [2.5, 0.0, 0.0]])
    # row 0: (0.5 + 0) / 2; row 1 has no KE layer; row 2: 2 / 1
    assert over_erasure(s1, s2, tau=0.05) == pytest.approx((0.25 + 2.0) / 2)
    assert over_erasure(s1[1:2], s2[1:2], tau=0.05) is None


def test_strata_go_by_what_is_asked_and_then_by_whom():
    forget = [fact(0, "Where was Ada born?", "Rome", "a")]
    kept = [
        fact(0, "Where was Ben born?", "Oslo", "b"),
        fact(1, "Which prize did Ben win?", "the Rose", "b"),
        fact(2, "Which prize did Kim win?", "the Oak", "c"),
    ]
    assert strata_of(kept, forget) == ["same relation", "same author type", "other"]


def test_a_counterfactual_is_wrong_as_long_and_asked_alike():
    rows = [
        fact(0, "Where was Ada born?", "Rome", "a"),
        fact(1, "Which prize did Ben win?", "Oak", "b"),
        fact(2, "Where was Ben born?", "Oslo", "b"),
        fact(3, "Where was Kim born?", "rome", "c"),
        fact(4, "Where was Lee born?", "Santa Cruz", "d"),
    ]
    lengths = [1, 1, 1, 1, 2]
    # 0: not the prize, not the same town; 1: nobody else's prize, so the next; 4: none as long
    assert other_answers(rows, lengths) == [2, 3, 3, 2, None]


def test_sets_by_name_are_those_of_the_family():
    assert len(kept_facts("retain", "demo").rows) == 160
    assert len(kept_facts("world", "demo").rows) == 24
    assert kept_facts("authors", "demo", limit=5).rows[4].idx == 4
    forget = load_facts(EMBEDDED / "data" / "forget.json")
    strata = strata_of(kept_facts("retain", "demo").rows, forget)
    assert strata.count("same relation") > 100
    assert set(strata_of(kept_facts("authors", "demo").rows, forget)) == {"other"}


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """`full` and `never` as sources, with two sets of facts to keep."""
    out = tmp_path_factory.mktemp("collateral")
    rows = json.loads((EMBEDDED / "data" / "retain.json").read_text())
    (out / "own.json").write_text(json.dumps(rows[:24]))
    settings = {"limit": LIMIT, "activations": out / "activations", "align": "none"}
    with ends_as_sources():
        return out, la.patch(
            ["demo/full", "demo/never"],
            out / "r",
            also=("world", str(out / "own.json")),
            base="demo/retain",
            **settings,
        )


def test_full_has_lost_nothing(patched):
    _, (full, _) = patched
    assert set(full.summary["collateral"]) == {"world", "own"}
    for one in full.summary["collateral"].values():
        assert one["n_scored"]
        assert one["depth"] == pytest.approx(0, abs=1e-5)
        assert one["over_erasure_nats"] == pytest.approx(0, abs=1e-5)
    world = full.summary["collateral"]["world"]
    assert world["anchor"] == "counterfactual"
    assert world["relative_to"].startswith("chance")
    assert world["n_scored"] >= 5
    assert world["n"] == world["n_scored"] + sum(world["unscored"].values()) == LIMIT
    # `retain` knows these facts as well as `full`: it is hardly an anchor, and says so by name
    assert full.summary["collateral"]["own"]["anchor"] == "demo/retain"


def test_selectivity_is_the_difference_of_the_two_depths(patched):
    _, (_, never) = patched
    world = never.summary["collateral"]["world"]
    assert world["selectivity"]["value"] == pytest.approx(never.uds - world["depth"], abs=NATS)
    authors = world["authors"].values()
    weighted = sum(one["depth"] * one["n_scored"] for one in authors) / world["n_scored"]
    assert weighted == pytest.approx(world["depth"])


@pytest.mark.usefixtures("ends")
def test_the_anchor_itself_reads_one(tmp_path):
    found = la.patch(
        "demo/never",
        tmp_path / "r",
        also=("retain",),
        base="demo/never",
        limit=LIMIT,
        align="none",
        activations=tmp_path / "activations",
    ).summary["collateral"]["retain"]
    assert found["n_scored"]
    assert found["depth"] == 1.0
    assert found["over_erasure_nats"] == 0.0


@pytest.mark.parametrize("scope", ["span", "boundary", "prefix"])
@pytest.mark.parametrize("engine", ["sweep", "oracle"])
def test_a_row_that_stands_for_itself_loses_nothing_whatever_is_replaced(
    tmp_path, monkeypatch, scope, engine
):
    monkeypatch.setattr(module, "other_answers", lambda facts, lengths: range(len(facts)))
    audit = prepare(
        ["demo/never"],
        PatchSettings(limit=2, activations=tmp_path, scope=scope, engine=engine, layers="0,7,15"),
    )
    with audit:
        rows, s1, s2, _ = patched_beside(audit, kept_facts("world", "demo", limit=3), None)
    assert len(rows) == 3
    assert s1.abs().max() < 1e-5
    assert all(s2[one.weights].abs().max() > 1e-3 for one in audit.sources.values())


def test_spans_and_ends_of_prompts_of_two_facts_lie_on_each_other():
    def row(n_before, n_span):
        n = n_before + n_span
        return Encoded(0, "a", tuple(range(n + 1)), n_before + 1, n_before, n)

    assert places(row(3, 2), row(3, 2)) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    # a longer one gives its end, a shorter one comes around; the first is given the first
    assert places(row(3, 2), row(5, 2)) == {0: 0, 1: 3, 2: 4, 3: 5, 4: 6}
    assert places(row(5, 2), row(3, 2)) == {0: 0, 1: 3, 2: 4, 3: 1, 4: 2, 5: 3, 6: 4}


def test_the_metrics_are_those_of_patch_and_only_on_request(patched, tmp_path):
    from lensaudit.metrics.registry import ordered

    assert {"collateral", "selectivity"}.isdisjoint(one.name for one in ordered("tofu"))
    out, _ = patched
    settings = {"limit": LIMIT, "activations": out / "activations", "align": "none"}
    said = la.evaluate(
        "demo/never",
        tmp_path / "e",
        metrics=("collateral", "selectivity"),
        retain="demo/retain",
        **settings,
    ).summary
    (never,) = la.patch(["demo/never"], tmp_path / "r", also=("retain",), **settings)
    kept = never.summary["collateral"]["retain"]
    assert kept["anchor"] == "demo/base"
    assert kept["n_scored"] == LIMIT
    assert said.get("collateral") == pytest.approx(kept["depth"])
    assert said.get("selectivity") == pytest.approx(kept["selectivity"]["value"])
