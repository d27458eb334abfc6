"""Aggregates worked by hand, and every part that can be missing."""

import pytest

from lensaudit.meta import aggregate
from lensaudit.meta.aggregate import EPS, aggregated, ranking
from lensaudit.meta.reading import Values, values_of

FORGET = {"es": 0.2, "em": 0.5, "paraprob": 0.2, "truth_ratio": 0.5}
ATTACKS = dict.fromkeys(("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"), 0.5)
PARTS = {
    f"{split}_{part}": 0.6
    for split in ("retain", "ra", "wf")
    for part in ("q_prob", "q_rouge", "truth_ratio")
}
WHOLE = FORGET | ATTACKS | PARTS | {"uds": 1.0, "fluency": 0.9}


def row_of(changes=None, *, full=True, **options):
    """The aggregates of `npo_a`, whose values are WHOLE with changes."""
    rows = {"npo_a": WHOLE | (changes or {})}
    if full:
        rows["full"] = WHOLE | {"fluency": 1.0}
    return {row.model: row for row in aggregated(values_of(rows), **options)}["npo_a"]


def test_by_hand():
    row = row_of()
    assert row.mem == pytest.approx(4 / (1 / 0.8 + 1 / 0.5 + 1 / 0.8 + 1 / 0.5))
    assert row.privacy_mia == pytest.approx(0.5)
    assert row.privacy == pytest.approx(2 / (1 / 0.5 + 1 / 1.0))
    assert row.model_utility == pytest.approx(0.6)
    assert row.utility == pytest.approx(2 / (1 / 0.6 + 1 / 0.9))
    assert row.utility_rel == pytest.approx(row.utility / (2 / (1 / 0.6 + 1 / 1.0)))
    assert row.overall == pytest.approx(3 / (1 / row.mem + 1 / row.privacy + 1 / row.utility_rel))
    assert row.overall_without_uds < row.overall
    assert row.reasons == {}
    assert (row.method, row.epoch) == ("npo", None)


def test_a_zero_attack_score_gives_almost_nothing_but_not_zero():
    row = row_of({"s_mia_loss": 0.0})
    assert row.privacy_mia == pytest.approx(4 * EPS)
    assert row.overall == pytest.approx(3 * (row.privacy + EPS), rel=1e-3)


@pytest.mark.parametrize(("value", "shown"), [(1.0, "1 - em is 0"), (1.25, "1 - em is -0.25")])
def test_memorisation_of_everything_has_no_mean(value, shown):
    row = row_of({"em": value})
    assert row.mem is None
    assert row.reasons["mem"] == f"{shown}: no harmonic mean"
    assert row.reasons["overall"] == f"mem: {shown}: no harmonic mean"
    assert row.privacy is not None
    assert row_of({"fluency": -0.1}).reasons["utility"] == "fluency is -0.1: no harmonic mean"


READ = (*aggregate.MEMORIZATION, *aggregate.ATTACKS, "uds", *aggregate.UTILITY_PARTS, "fluency")


def test_every_part_that_is_missing_is_named():
    for key in READ:
        row = row_of({key: None})
        assert row.overall is None
        assert f"{key}: null in the results" in row.reasons["overall"]


def test_without_fluency_utility_is_the_model_utility_of_both():
    row = row_of({"fluency": None}, fluency=False)
    assert row.utility == row.model_utility
    assert row.utility_rel == pytest.approx(1)


def test_without_fluency_the_utility_that_results_name_is_not_divided_by():
    """It is a mean with fluency."""
    named = {None: 0.7, "ep5": 0.8}
    rows = values_of({"full": WHOLE, "npo_a_ep5": WHOLE}).rows
    row = aggregated(Values(rows, full_utility=named), fluency=False)[-1]
    assert row.utility_rel == pytest.approx(1)
    [row] = aggregated(Values({"npo_a_ep5": rows["full"]}, full_utility=named), fluency=False)
    assert row.reasons["utility_rel"] == "no utility of the full model of ep5 to divide by"


def test_utility_is_relative_to_full_and_at_most_its():
    assert row_of({"fluency": 1.0, "retain_q_prob": 0.9}).utility_rel == 1.0
    row = row_of(full=False)
    assert row.utility is not None
    assert row.reasons["utility_rel"] == "no utility of the full model to divide by"
    values = values_of({"npo_a": WHOLE, "demo/full": WHOLE})
    rows = {row.model: row for row in aggregated(values, full="demo/full")}
    assert rows["npo_a"].utility_rel == pytest.approx(1)


def test_a_model_that_is_to_do_says_so():
    values = Values(values_of({"full": WHOLE}).rows, to_do={"npo_b": "not found"})
    row = {one.model: one for one in aggregated(values)}["npo_b"]
    assert row.reasons["mem"] == "es: to do: not found"


def test_methods_are_ranked_by_their_best_without_uds_and_gaps_come_last():
    better, worse = WHOLE | {"es": 0.1}, WHOLE | {"es": 0.3, "uds": 0.2}
    rows = {"npo_a": WHOLE, "npo_b": better, "rmu_a": worse, "idk_a": FORGET}
    values = values_of(rows | {"full": WHOLE, "retain": WHOLE})
    ranked = ranking(aggregated(values))
    assert [one.method for one in ranked] == ["npo", "rmu", "idk"]
    npo, rmu, idk = ranked
    assert npo.best_without_uds.model == "npo_b"
    assert (npo.n_models, npo.uds_mean) == (2, 1.0)
    assert (rmu.uds_low, rmu.uds_high) == (0.2, 0.2)
    assert (idk.best_without_uds, idk.uds_mean) == (None, None)


def test_an_anchor_of_any_name_is_no_method():
    names = ("out/never", "never_ep5", "base_ep10", "base_of_all", "npo_a")
    rows = aggregated(values_of(dict.fromkeys(names, WHOLE) | {"full": WHOLE}))
    ranked = ranking(rows, ["base", "out/never"])
    assert {one.method: one.n_models for one in ranked} == {"never": 1, "base": 1, "npo": 1}
