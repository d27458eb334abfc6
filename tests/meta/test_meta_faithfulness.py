"""AUC of a metric over two pools: direction, means, gaps, and what is not an answer."""

import math
import random

import pytest
from sklearn.metrics import roc_auc_score

from lensaudit.errors import InputError
from lensaudit.meta.judging import check_pools, faithfulness
from lensaudit.meta.reading import CATALOGUE, UTILITY_PARTS, Values, judged, values_of
from lensaudit.models.registry import load_registry

KNOWS = tuple(f"p{i}" for i in range(6))
FORGOT = tuple(f"n{i}" for i in range(5))


def pools(key, knows, forgot):
    """Values of one metric on two pools."""
    return values_of(
        {f"p{i}": {key: v} for i, v in enumerate(knows)}
        | {f"n{i}": {key: v} for i, v in enumerate(forgot)}
    )


def judge(key, knows, forgot, **changes):
    values = pools(key, knows, forgot)
    for name, change in changes.items():
        values = Values(**{**vars(values), name: change})
    return faithfulness(
        CATALOGUE[key],
        [f"p{i}" for i in range(len(knows))],
        [f"n{i}" for i in range(len(forgot))],
        values,
    )


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


def test_uds_is_low_where_knowledge_is_and_its_threshold_is_on_its_own_values():
    found = judge("uds", [0.1, 0.2, 0.8], [0.7, 0.9, 1.0])
    assert found.auc == pytest.approx(8 / 9)
    # 1 - uds: knows .9 .8 .2, forgot .3 .1 0; the first t with five right of six is .15
    assert found.raw_threshold == pytest.approx(0.85)
    assert found.threshold.accuracy == pytest.approx(5 / 6)
    assert found.interval.low < found.auc <= found.interval.high


def test_the_histogram_counts_every_model_once():
    found = judge("es", [0.5, 0.9, 1.0], [0.0, 0.1]).histogram
    assert (sum(found.knows), sum(found.forgot)) == (3, 2)
    assert found.edges[0] == 0.0
    assert found.edges[-1] == 1.0
    assert found.knows[-1] == 2


@pytest.mark.parametrize("apart", [1e-16, 1e-15, 1e-10])
def test_values_that_differ_by_rounding_are_drawn_in_one_bin(apart):
    found = judge("es", [1.0, 1.0], [1.0 - apart] * 2).histogram
    assert (max(found.knows), max(found.forgot)) == (2, 2)
    assert found.edges[0] < 1.0 < found.edges[-1]


def test_a_constant_metric_tells_nothing_and_says_so():
    found = judge("es", [0.5] * 3, [0.5] * 3)
    assert found.auc == 0.5
    assert found.threshold is None
    assert math.isnan(found.raw_threshold)
    assert "one value on every model" in found.reason


def test_a_model_without_the_metric_is_named_and_not_counted():
    found = judge("es", [0.5, 0.9, math.nan], [0.1, None, 0.2])
    assert found.auc == 1.0
    assert (found.n_knows, found.n_forgot) == (2, 2)
    assert found.excluded == {"p2": "nan in the results", "n1": "null in the results"}
    assert found.to_do == {}


def test_a_model_that_failed_to_load_leaves_no_auc_but_a_preliminary_one():
    found = judge("es", [0.5, 0.9], [0.1, 0.2])
    assert found.auc == 1.0
    values = pools("es", [0.5, 0.9], [0.1, 0.2])
    waiting = Values(values.by_model, values.reasons, to_do={"n2": "no such folder"})
    later = faithfulness(CATALOGUE["es"], ["p0", "p1"], ["n0", "n1", "n2", "n3"], waiting)
    assert math.isnan(later.auc)
    assert later.preliminary == 1.0
    # nor a threshold that models would be filtered by
    assert (found.raw_threshold, later.threshold) == (pytest.approx(0.35), None)
    assert later.to_do == {
        "n2": "to do: no such folder",
        "n3": "to do: no result of this model was found",
    }
    assert later.reason == "2 to do: n2, n3"


def test_pools_with_fewer_than_two_values_have_no_auc():
    found = judge("es", [0.5, 0.9], [0.1, None])
    assert math.isnan(found.auc)
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


def test_the_published_pools_have_thirty_models_each():
    registry = load_registry()
    assert len(registry.listed("pool_knows")) == len(registry.listed("pool_forgot")) == 30
    check_pools(
        [spec.name for spec in registry.listed("pool_knows")],
        [spec.name for spec in registry.listed("pool_forgot")],
        Values(),
    )


def test_directions_are_those_of_the_suite():
    from lensaudit.metrics.registry import all_metrics

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
