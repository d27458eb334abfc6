"""Faithfulness against scikit-learn; Q, R, filters, the common set by hand; what has no number."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from lensaudit.errors import InputError
from lensaudit.meta.judging import (
    check_pools,
    combined,
    faithfulness,
    left,
    on_common,
    quantization,
    relearning,
    stability,
    usable,
)
from lensaudit.meta.pools import pool_limits
from lensaudit.meta.reading import (
    CATALOGUE,
    UTILITY_PARTS,
    Values,
    judged,
    read_log,
    values_of,
)
from lensaudit.metrics.registry import all_metrics
from lensaudit.scores.pools import auc_limits


def pools(key, knows, forgot):
    """Values of one metric on two pools."""
    return values_of(
        {f"p{i}": {key: v} for i, v in enumerate(knows)}
        | {f"n{i}": {key: v} for i, v in enumerate(forgot)}
    )


def judge(key, knows, forgot):
    names = [
        [f"{side}{i}" for i in range(len(pool))]
        for side, pool in zip("pn", (knows, forgot), strict=True)
    ]
    return faithfulness(CATALOGUE[key], *names, pools(key, knows, forgot))


@pytest.mark.parametrize("key", CATALOGUE)
def test_the_auc_is_that_of_scikit_learn_on_more_knowledge(key):
    rng = random.Random(len(key))
    knows, forgot = [rng.random() for _ in range(6)], [rng.random() for _ in range(5)]
    found = judge(key, knows, forgot)
    sign = 1 if CATALOGUE[key].high_means == "knows" else -1
    scores = [sign * value for value in (*knows, *forgot)]
    assert found.auc == pytest.approx(roc_auc_score([1] * 6 + [0] * 5, scores))
    assert found.knows_mean == pytest.approx(sum(knows) / 6)
    assert found.forgot_mean == pytest.approx(sum(forgot) / 5)
    assert (found.n_knows, found.n_forgot) == (6, 5)
    told_apart = found.interval.low > 0.5
    assert (found.reason is None) == told_apart


def test_a_metric_whose_interval_holds_a_coin_is_said_to_tell_nothing_apart():
    # 3 of 9 pairs the right way round
    found = judge("es", [0.1, 0.5, 0.9], [0.2, 0.6, 0.95])
    assert found.interval.low < 0.5 < found.interval.high
    assert "not shown to tell the pools apart" in found.reason
    apart = judge("es", [0.91, 0.92, 0.93, 0.94], [0.1, 0.2, 0.3, 0.4])
    assert (apart.reason, apart.interval.high) == (None, 1.0)
    assert 0.5 < apart.interval.low < 0.8
    constant = judge("es", [0.5] * 3, [0.5] * 3)
    assert (constant.auc, constant.threshold) == (0.5, None)
    assert "one value on every model" in constant.reason


@pytest.mark.parametrize(("n_forgot", "scatter"), [(8, 0.25), (10, 0.2), (5, 0.5)])
def test_a_smaller_pool_that_scatters_more_is_told_apart_by_chance_alone(n_forgot, scatter):
    """Two hundred metrics that tell nothing apart; as if both scattered alike .11 to .15."""
    rng = np.random.default_rng(14)
    pairs = [(scatter * rng.normal(size=30), rng.normal(size=n_forgot)) for _ in range(200)]
    ends = [pool_limits(*one).ends for one in pairs]
    assert sum(not low <= 0.5 <= high for low, high in ends) <= 0.05 * 200
    alike = [auc_limits(*one).ends for one in pairs]
    assert sum(not low <= 0.5 <= high for low, high in alike) >= 0.1 * 200


def test_pools_that_scatter_alike_or_are_separated_keep_newcombes_limits():
    rng = np.random.default_rng(3)
    pools = rng.normal(1, size=300), rng.normal(size=300)
    assert pool_limits(*pools).ends == pytest.approx(auc_limits(*pools).ends, abs=5e-3)
    apart = range(10, 22), range(8)
    assert pool_limits(*apart) == auc_limits(*apart)
    constant = [0.5] * 6, [0.5] * 6
    assert pool_limits(*constant) == auc_limits(*constant)


def test_limits_of_four_models_are_said_to_assume_that_pools_scatter_alike():
    four = judge("es", [*map(float, range(7, 20)), 1.5], [1.0, 2.0, 3.0, 4.0])
    assert four.reason == "told apart if both pools scatter alike: 5 models each would show it"
    assert judge("es", [*range(7, 20), 1.5], [1, 2, 3, 4, 5]).reason is None


@pytest.mark.parametrize("ways", [1, -1])
def test_three_models_a_pool_tell_nothing_apart_and_four_do(ways):
    # complete separation has a chance of 2 / comb(6, 3) = .1, and of 2 / comb(8, 4) = .029
    three = judge("es", *([0.7, 0.8, 0.9], [0.1, 0.2, 0.3])[::ways])
    assert three.interval.low > 0.5 or three.interval.high < 0.5
    assert three.reason == (
        "not shown to tell the pools apart: 3 and 3 models allow no p below 0.1"
    )
    four = judge("es", *([0.6, 0.7, 0.8, 0.9], [0.1, 0.2, 0.3, 0.4])[::ways])
    assert four.reason == (
        None if ways == 1 else "points the wrong way: the pool that forgot scores higher"
    )


def test_uds_is_low_where_knowledge_is_and_its_threshold_is_on_its_own_values():
    found = judge("uds", [0.1, 0.2, 0.8], [0.7, 0.9, 1.0])
    assert found.auc == pytest.approx(8 / 9)
    # 1 - uds: knows .9 .8 .2, forgot .3 .1 0; the first t with five right of six is .15
    assert found.threshold == pytest.approx(0.85)
    assert found.threshold_accuracy == pytest.approx(5 / 6)
    assert found.interval.low < found.auc <= found.interval.high


def test_the_histogram_counts_every_model_once():
    found = judge("es", [0.5, 0.9, 1.0], [0.0, 0.1]).histogram
    assert (sum(found["knows"]), sum(found["forgot"]), found["knows"][-1]) == (3, 2, 2)
    assert (found["edges"][0], found["edges"][-1]) == (0.0, 1.0)
    for apart in (1e-16, 1e-15, 1e-10):  # rounding
        found = judge("es", [1.0, 1.0], [1.0 - apart] * 2).histogram
        assert (max(found["knows"]), max(found["forgot"])) == (2, 2)
        assert found["edges"][0] < 1.0 < found["edges"][-1]


def test_a_model_without_the_metric_is_named_and_not_counted():
    found = judge("es", [0.5, 0.9, math.nan], [0.1, None, 0.2])
    assert (found.auc, found.n_knows, found.n_forgot) == (1.0, 2, 2)
    assert found.excluded == {"p2": "nan in the results", "n1": "null in the results"}
    assert found.to_do == {}


def test_a_model_that_failed_to_load_leaves_no_auc_but_a_preliminary_one():
    found = judge("es", [0.5, 0.9], [0.1, 0.2])
    values = pools("es", [0.5, 0.9], [0.1, 0.2])
    waiting = Values(values.rows, to_do={"n2": "no such folder"})
    later = faithfulness(CATALOGUE["es"], ["p0", "p1"], ["n0", "n1", "n2", "n3"], waiting)
    assert (found.auc, later.auc, later.preliminary_auc) == (1.0, None, 1.0)
    # nor a threshold that models would be filtered by
    assert (found.threshold, later.threshold) == (pytest.approx(0.35), None)
    unknown = "to do: no result of this model was found"
    assert later.to_do == {"n2": "to do: no such folder", "n3": unknown}
    assert later.reason == "2 to do: n2, n3"


def test_pools_with_fewer_than_two_values_have_no_auc():
    found = judge("es", [0.5, 0.9], [0.1, None])
    assert found.auc is None
    assert found.interval.ends is None
    assert found.reason == "2 that know and 1 that forgot have a value, wanted at least 2 each"


@pytest.mark.parametrize(
    ("knows", "forgot", "said"),
    [
        ([], ["a"], "--pool-knows: an empty pool"),
        (["a"], [], "--pool-forgot: an empty pool"),
        (["a", "b", "a"], ["c"], "a is named twice"),
        (["a", "b"], ["b", "c"], "the pools overlap: b is in both"),
        (["a"], ["c"], "the pools overlap: a and c have the same weights"),
        (["a", "c"], ["b"], "counted twice: a and c have the same weights"),
    ],
)
def test_pools_that_say_nothing_are_refused(knows, forgot, said):
    values = Values(weights={"a": "w", "b": "v", "c": "w"})
    with pytest.raises(InputError, match=said):
        check_pools(knows, forgot, values)


def test_directions_are_those_of_the_suite():
    metrics = all_metrics()
    for one in CATALOGUE.values():
        assert metrics[one.suite].high_means == one.high_means, one.key
    assert set(UTILITY_PARTS.values()) <= set(metrics)


def test_metrics_are_found_by_either_name_and_strangers_are_refused():
    assert [one.key for one in judged(["extraction_strength", "uds"])] == ["es", "uds"]
    assert judged([]) == list(CATALOGUE.values())
    other = judged(["forget_quality"])[0]
    assert (other.key, other.high_means) == ("forget_quality", "forgot")
    with pytest.raises(InputError, match="no metric 'nonsense' to judge"):
        judged(["nonsense"])


def test_every_metric_of_the_suite_is_judged_on_the_value_that_a_log_has_of_it(tmp_path):
    suite = [name for name, one in all_metrics().items() if "tofu" in one.reads]
    log = {name: {"agg_value": at / 100} for at, name in enumerate(suite)}
    values = read_log(log, tmp_path / "TOFU_EVAL.json", name="npo")
    for at, name in enumerate(suite):
        (own,) = judged([name])
        assert values.value("npo", own.key) == at / 100
        assert judged([own.key]) == [own]
    assert [one.key for one in judged(["ra_Truth_Ratio", "fluency"])] == [
        "ra_truth_ratio",
        "fluency",
    ]


FORMS = ("symmetric", "recovery", "as_written")
ANY = st.floats(-2, 2)


def test_the_forms_by_hand():
    assert quantization(0.4, 0.6) == pytest.approx(1 - 0.2 / 1.000001)
    assert quantization(0.6, 0.4) == quantization(0.4, 0.6)
    assert relearning(0.3, 0.1) == pytest.approx(1 - 0.2 / 0.400001)
    # nothing moved: 0 / eps
    assert (quantization(0.0, 0.0), relearning(0.0, 0.0)) == (1.0, 1.0)
    # the one-sided forms are each other's mirror
    assert quantization(0.4, 0.5, "recovery") == pytest.approx(0.8)
    assert quantization(0.5, 0.4, "recovery") == 1.0
    assert quantization(0.5, 0.4, "as_written") == pytest.approx(0.8)
    assert quantization(0.4, 0.5, "as_written") == 1.0
    assert quantization(0.4, 0.0, "recovery") == quantization(0.0, 0.4, "as_written") == 1.0
    assert relearning(0.4, 0.1, "recovery") == pytest.approx(0.25)
    assert relearning(0.1, 0.4, "recovery") == 1.0
    # the sign of both deltas cancels; opposite signs give 0; no shift gives 1
    assert relearning(-0.4, -0.1, "recovery") == pytest.approx(0.25)
    assert relearning(-0.4, 0.1, "recovery") == 0.0
    assert relearning(1e-9, 0.1, "recovery") == 1.0


@given(ANY, ANY, st.sampled_from(FORMS))
@settings(deadline=None, derandomize=True)
def test_both_stay_between_0_and_1_and_unmoved_is_1(b, a, form):
    assert 0 <= quantization(b, a, form) <= 1
    assert 0 <= relearning(b, a, form) <= 1
    if b >= 1e-2:
        assert quantization(b, b, form) == pytest.approx(1)
    assert relearning(b, b, form) == pytest.approx(1, abs=1e-3)


def table(key, **rows):
    return values_of({model: {key: value} for model, value in rows.items()})


UTILITY = {"a": 0.9, "b": 0.6 / (0.75 + 1e-12), "c": 0.79, "d": 0.95}  # of b exactly .8


def chosen(key="uds", threshold=0.5, by="both", **rows):
    given = {"utility_rel": UTILITY, "threshold": threshold, "by": by}
    return usable(CATALOGUE[key], list(rows), table(key, **rows), **given)


def stable(attack, rows, key="uds", **more):
    """Stability of models by their values before and after; `retain` is no candidate."""
    before, after = (
        table(key, **{model: pair[at] for model, pair in rows.items()}) for at in (0, 1)
    )
    models = {model: pair[0] for model, pair in rows.items() if model != "retain"}
    row = chosen(key, **models)
    return stability(CATALOGUE[key], attack, list(models), row, before, after, **more)


def test_a_model_is_used_where_it_forgot_and_still_works():
    found = chosen(a=0.5, b=0.4, c=0.9, d=0.7)
    assert left("abcd", found) == ["a", "d"]
    assert (found.n_candidates, found.n_utility) == (4, 3)
    assert found.filtered_out == {
        "c": "relative utility 0.790 < 0.8",
        "b": "uds 0.4000 is on the side that knows",
    }
    assert left("abd", chosen("es", a=0.5, b=0.51, d=0.1)) == ["a", "d"]


def test_filters_can_be_taken_off_and_what_is_unknown_keeps_a_model_out():
    assert left("ac", chosen(a=0.1, c=0.9, by="utility")) == ["a"]
    assert left("ac", chosen(a=0.1, c=0.9, by="none")) == ["a", "c"]
    assert chosen(z=0.9).filtered_out == {"z": "relative utility unknown"}
    assert chosen(a=None).filtered_out == {"a": "uds: null in the results"}
    assert chosen(a=0.9, threshold=math.nan).filtered_out == {
        "a": "uds has no faithfulness threshold"
    }
    assert stable("quantize", {"a": (0.1, 0.1)}).reason == "none of 1 models passes the filter"


def test_a_membership_score_takes_the_models_of_its_attack():
    values = values_of({"a": {"s_mia_loss": 0.1, "mia_loss": 0.2}, "b": {"mia_loss": 0.9}})
    found = usable(CATALOGUE["s_mia_loss"], ["a", "b"], values, utility_rel=UTILITY, threshold=0.5)
    assert left("ab", found) == ["a"]


def test_quantisation_is_the_mean_over_usable_models_in_the_knowledge_direction():
    rows = {"a": (0.8, 0.6), "d": (0.6, 0.6)}
    found = stable("quantize", rows)
    # knowledge .2 -> .4 and .4 -> .4
    assert found.value == pytest.approx((1 - 0.2 / 0.600001 + 1) / 2)
    assert (found.per_model["d"], found.n) == (1.0, 2)
    assert stable("quantize", rows, form="recovery").value == pytest.approx((0.5 + 1) / 2)


def test_relearning_compares_with_what_retain_does():
    rows = {"a": (0.8, 0.5), "retain": (1.0, 0.8)}
    found = stable("relearn", rows, retain="retain")
    assert found.retain_shift == pytest.approx(0.2)
    assert found.value == pytest.approx(1 - 0.1 / 0.500001)
    # the model gains 0.3 where retain gains 0.2; one that gains less is as good as retain
    one_sided = stable("relearn", rows, retain="retain", form="recovery")
    assert one_sided.value == pytest.approx(0.2 / 0.3)
    # a negative shift is a shift like any other
    found = stable("relearn", {"a": (0.3, 0.2), "retain": (0.4, 0.2)}, "es", retain="retain")
    assert found.retain_shift == pytest.approx(-0.2)
    assert found.value == pytest.approx(1 - 0.1 / 0.300001, abs=1e-5)


@pytest.mark.parametrize(
    ("retain", "said"),
    [(None, "name it with --retain"), ("r", "retain model r: after: to do: no result")],
)
def test_relearning_without_retains_own_shift_has_no_number(retain, said):
    before, after = table("uds", a=0.8, r=1.0), table("uds", a=0.5)
    found = stability(
        CATALOGUE["uds"], "relearn", ["a"], chosen(a=0.8), before, after, retain=retain
    )
    assert found.value is None
    assert said in found.reason
    # a retain model that was not attacked yet is to do, not a result without numbers
    waits = {"r": "after: to do: no result of this model was found"} if retain else {}
    assert found.to_do == waits


def test_a_model_still_to_do_leaves_no_number_but_a_preliminary_one():
    before = table("uds", a=0.8, d=0.7)
    after = Values(table("uds", a=0.8).rows, to_do={"d": "out of memory"})
    found = stability(CATALOGUE["uds"], "quantize", "ad", chosen(a=0.8, d=0.7), before, after)
    assert (found.value, found.preliminary) == (None, pytest.approx(1))
    assert found.to_do == {"d": "after: to do: out of memory"}
    assert found.reason == "1 to do: d"
    # a candidate that was never measured is to do, not filtered out
    values = Values(table("uds", a=0.8).rows, to_do={"d": "no such folder"})
    picked = usable(CATALOGUE["uds"], ["a", "d"], values, utility_rel=UTILITY, threshold=0.5)
    assert (left("ad", picked), picked.filtered_out) == (["a"], {})
    found = stability(CATALOGUE["uds"], "quantize", "ad", picked, values, values)
    assert (found.value, found.to_do) == (None, {"d": "to do: no such folder"})
    # one whose pass breaks after the attack is excluded and named
    found = stable("quantize", {"a": (0.8, 0.8), "d": (0.7, math.nan)})
    assert (found.n, found.excluded) == (1, {"d": "after: nan in the results"})


def test_the_common_set_is_what_every_metric_has():
    before = values_of({m: {"uds": 0.9, "es": 0.1} for m in "abd"})
    after = values_of(
        {"a": {"uds": 0.9, "es": 0.1}, "b": {"uds": 0.8, "es": 0.2}, "d": {"uds": 0.7, "es": 0.1}}
    )
    few = usable(CATALOGUE["es"], ["a", "b"], before, utility_rel=UTILITY, threshold=0.5)
    many = usable(CATALOGUE["uds"], ["a", "b", "d"], before, utility_rel=UTILITY, threshold=0.5)
    none = usable(CATALOGUE["em"], ["a"], before, utility_rel=UTILITY, threshold=0.5)
    found = [
        stability(CATALOGUE[key], "quantize", models, row, before, after)
        for key, models, row in (("es", "ab", few), ("uds", "abd", many), ("em", "a", none))
    ]
    common, rows = on_common(found)
    assert common == ("a", "b")
    assert rows[1].common_value == pytest.approx((1 + (1 - 0.1 / 0.300001)) / 2)
    assert rows[1].common_value != pytest.approx(found[1].value)
    assert rows[2].common_value is None


def test_one_part_missing_leaves_the_whole_missing():
    assert combined(0.5, 1.0) == pytest.approx(2 / 3)
    assert combined(0.5, 0.0) == 0.0
    assert math.isnan(combined(0.5, math.nan))
