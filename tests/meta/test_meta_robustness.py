"""Q, R, the filters and the common set: worked by hand, and what has no number."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.meta.judging import (
    combined,
    on_common,
    quantization,
    relearning,
    stability,
    usable,
)
from lensaudit.meta.reading import CATALOGUE, Values, values_of

FORMS = ("symmetric", "recovery", "as_written")
ANY = st.floats(-2, 2)


def test_symmetric_by_hand():
    assert quantization(0.4, 0.6) == pytest.approx(1 - 0.2 / 1.000001)
    assert quantization(0.6, 0.4) == quantization(0.4, 0.6)
    assert relearning(0.3, 0.1) == pytest.approx(1 - 0.2 / 0.400001)
    # nothing moved: 0 / eps
    assert (quantization(0.0, 0.0), relearning(0.0, 0.0)) == (1.0, 1.0)


def test_the_one_sided_forms_are_each_others_mirror():
    assert quantization(0.4, 0.5, "recovery") == pytest.approx(0.8)
    assert quantization(0.5, 0.4, "recovery") == 1.0
    assert quantization(0.5, 0.4, "as_written") == pytest.approx(0.8)
    assert quantization(0.4, 0.5, "as_written") == 1.0
    assert quantization(0.4, 0.0, "recovery") == quantization(0.0, 0.4, "as_written") == 1.0


def test_one_sided_relearning_by_hand():
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


UTILITY = {"a": 0.9, "b": 0.8, "c": 0.79, "d": 0.95}


def chosen(key="uds", threshold=0.5, by="both", utility=UTILITY, **rows):
    return usable(
        CATALOGUE[key],
        list(rows),
        table(key, **rows),
        utility_rel=utility,
        threshold=threshold,
        by=by,
    )


def test_a_model_is_used_where_it_forgot_and_still_works():
    found = chosen(a=0.5, b=0.4, c=0.9, d=0.7)
    assert found.models == ("a", "d")
    assert (found.n_candidates, found.n_utility) == (4, 3)
    assert found.out == {
        "c": "relative utility 0.790 < 0.8",
        "b": "uds 0.4000 is on the side that knows",
    }
    raw = chosen("es", a=0.5, b=0.51, d=0.1)
    assert raw.models == ("a", "d")


def test_filters_can_be_taken_off():
    assert chosen(a=0.1, c=0.9, by="utility").models == ("a",)
    assert chosen(a=0.1, c=0.9, by="none").models == ("a", "c")


def test_unknown_utility_unknown_value_and_no_threshold_keep_a_model_out():
    assert chosen(z=0.9).out == {"z": "relative utility unknown"}
    assert chosen(a=None).out == {"a": "uds: null in the results"}
    assert chosen(a=0.9, threshold=math.nan).out == {"a": "uds has no faithfulness threshold"}


def test_a_membership_score_takes_the_models_of_its_attack():
    values = values_of({"a": {"s_mia_loss": 0.1, "mia_loss": 0.2}, "b": {"mia_loss": 0.9}})
    found = usable(CATALOGUE["s_mia_loss"], ["a", "b"], values, utility_rel=UTILITY, threshold=0.5)
    assert found.models == ("a",)


def test_quantisation_is_the_mean_over_usable_models_in_the_knowledge_direction():
    before, after = table("uds", a=0.8, d=0.6), table("uds", a=0.6, d=0.6)
    found = stability(CATALOGUE["uds"], "quantize", chosen(a=0.8, d=0.6), before, after)
    # knowledge .2 -> .4 and .4 -> .4
    assert found.value == pytest.approx((1 - 0.2 / 0.600001 + 1) / 2)
    assert found.per_model["d"] == 1.0
    assert found.n == 2
    one_sided = stability(
        CATALOGUE["uds"], "quantize", chosen(a=0.8, d=0.6), before, after, form="recovery"
    )
    assert one_sided.value == pytest.approx((0.5 + 1) / 2)


def test_relearning_compares_with_what_retain_does():
    before = table("uds", a=0.8, retain=1.0)
    after = table("uds", a=0.5, retain=0.8)
    found = stability(CATALOGUE["uds"], "relearn", chosen(a=0.8), before, after, retain="retain")
    assert found.retain_shift == pytest.approx(0.2)
    assert found.value == pytest.approx(1 - 0.1 / 0.500001)
    # the model gains 0.3 where retain gains 0.2; one that gains less is as good as retain
    one_sided = stability(
        CATALOGUE["uds"], "relearn", chosen(a=0.8), before, after, retain="retain", form="recovery"
    )
    assert one_sided.value == pytest.approx(0.2 / 0.3)


@pytest.mark.parametrize(
    ("retain", "said"),
    [(None, "name it with --retain"), ("r", "retain model r: after: to do: no result")],
)
def test_relearning_without_retains_own_shift_has_no_number(retain, said):
    before, after = table("uds", a=0.8, r=1.0), table("uds", a=0.5)
    found = stability(CATALOGUE["uds"], "relearn", chosen(a=0.8), before, after, retain=retain)
    assert math.isnan(found.value)
    assert said in found.reason
    # a retain model that was not attacked yet is to do, not a result without numbers
    waits = {"r": "after: to do: no result of this model was found"} if retain else {}
    assert found.to_do == waits


def test_a_negative_shift_of_retain_is_a_shift_like_any_other():
    before, after = table("es", a=0.3, r=0.4), table("es", a=0.2, r=0.2)
    found = stability(CATALOGUE["es"], "relearn", chosen("es", a=0.3), before, after, retain="r")
    assert found.retain_shift == pytest.approx(-0.2)
    assert found.value == pytest.approx(1 - 0.1 / 0.300001, abs=1e-5)


def test_a_model_still_to_do_leaves_no_number_but_a_preliminary_one():
    before = table("uds", a=0.8, d=0.7)
    after = Values(table("uds", a=0.8).by_model, to_do={"d": "out of memory"})
    found = stability(CATALOGUE["uds"], "quantize", chosen(a=0.8, d=0.7), before, after)
    assert math.isnan(found.value)
    assert found.preliminary == pytest.approx(1)
    assert found.to_do == {"d": "after: to do: out of memory"}
    assert found.reason == "1 to do: d"


def test_a_candidate_that_was_never_measured_is_to_do_not_filtered_out():
    values = Values(table("uds", a=0.8).by_model, to_do={"d": "no such folder"})
    picked = usable(CATALOGUE["uds"], ["a", "d"], values, utility_rel=UTILITY, threshold=0.5)
    assert picked.models == ("a",)
    assert picked.out == {}
    found = stability(CATALOGUE["uds"], "quantize", picked, values, values)
    assert math.isnan(found.value)
    assert found.to_do == {"d": "to do: no such folder"}


def test_a_metric_that_breaks_after_the_attack_is_excluded_and_named():
    before, after = table("uds", a=0.8, d=0.7), table("uds", a=0.8, d=math.nan)
    found = stability(CATALOGUE["uds"], "quantize", chosen(a=0.8, d=0.7), before, after)
    assert found.n == 1
    assert found.excluded == {"d": "after: nan in the results"}


def test_no_usable_model_is_a_reason():
    found = stability(
        CATALOGUE["uds"], "quantize", chosen(a=0.1), table("uds", a=0.1), table("uds", a=0.1)
    )
    assert math.isnan(found.value)
    assert found.reason == "none of 1 models passes the filter"


def test_the_common_set_is_what_every_metric_has():
    before = values_of({m: {"uds": 0.9, "es": 0.1} for m in "abd"})
    after = values_of(
        {"a": {"uds": 0.9, "es": 0.1}, "b": {"uds": 0.8, "es": 0.2}, "d": {"uds": 0.7, "es": 0.1}}
    )
    few = usable(CATALOGUE["es"], ["a", "b"], before, utility_rel=UTILITY, threshold=0.5)
    many = usable(CATALOGUE["uds"], ["a", "b", "d"], before, utility_rel=UTILITY, threshold=0.5)
    none = usable(CATALOGUE["em"], ["a"], before, utility_rel=UTILITY, threshold=0.5)
    found = [
        stability(CATALOGUE[key], "quantize", models, before, after)
        for key, models in (("es", few), ("uds", many), ("em", none))
    ]
    common, means = on_common(found)
    assert common == ("a", "b")
    assert means[1] == pytest.approx((1 + (1 - 0.1 / 0.300001)) / 2)
    assert means[1] != pytest.approx(found[1].value)
    assert math.isnan(means[2])


def test_disjoint_sets_have_nothing_in_common():
    one = stability(
        CATALOGUE["uds"], "quantize", chosen(a=0.9), table("uds", a=0.9), table("uds", a=0.9)
    )
    other = stability(
        CATALOGUE["es"], "quantize", chosen("es", d=0.1), table("es", d=0.1), table("es", d=0.1)
    )
    common, means = on_common([one, other])
    assert common == ()
    assert all(map(math.isnan, means))


def test_one_part_missing_leaves_the_whole_missing():
    assert combined(0.5, 1.0) == pytest.approx(2 / 3)
    assert combined(0.5, 0.0) == 0.0
    assert math.isnan(combined(0.5, math.nan))
