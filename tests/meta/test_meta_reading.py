"""Results on disk become values, whoever wrote them; nothing is dropped without a word."""

import json
from pathlib import Path

import pytest

from lensaudit.errors import InputError
from lensaudit.meta.aggregate import aggregated
from lensaudit.meta.reading import (
    RowsAsked,
    Values,
    check_alike,
    merged,
    read_values,
    values_of,
    with_s_mia,
)


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


PRIVACY = {
    "attacks": {
        name: {"auc": auc, "retain_auc": 0.4, "full_auc": 0.99, "s_mia": s}
        for name, auc, s in (
            *(("loss", 0.5, 0.75), ("zlib", 0.6, 0.5)),
            *(("min_k", 0.44, 0.9), ("min_k++", 0.4, 1.0)),
        )
    },
    "privacy_score": 0.7,
}
UTILITY = {
    "metrics": {
        f"{split}_{part}": value
        for split in ("retain", "ra", "wf")
        for part, value in (("Q_A_Prob", 0.5), ("Q_A_ROUGE", 0.6), ("Truth_Ratio", 0.4))
    },
    **{"model_utility": 0.49, "fluency": 0.9, "utility": 0.6},
}
ROUGE = {"rouge": 0.35}
MEMORY = {f"avg_{name}": value for name, value in (("em", 0.6), ("es", 0.1), ("prob", 0.3))}
MEMORY |= {"avg_paraprob": 0.2, "avg_truth_ratio": 0.5, "avg_mem": 0.6, "num_examples": 400}


@pytest.fixture
def runs(tmp_path):
    """The run folder of the UDS repository: two epochs, three models, one folder per category."""
    for epoch, fluency in (("ep5", 0.9), ("ep10", 0.8)):
        for model in ("full", "retain", f"npo_lr1e5_b01_a1_{epoch}"):
            said = {"memorization": MEMORY, "privacy": PRIVACY}
            said |= {"utility": UTILITY | {"fluency": fluency}, "gen_rouge": {"metrics": ROUGE}}
            for category, content in (said | {"uds": {"avg_uds": 0.7, "avg_udr": 0.7}}).items():
                put(tmp_path / "runs" / epoch / category / model / "summary.json", content)
    return tmp_path / "runs"


def test_the_run_folder_of_the_reference_is_read_category_by_category(runs):
    values = read_values([runs])
    names = ("full", "retain", "npo_lr1e5_b01_a1")
    assert set(values.models) == {f"{name}_{epoch}" for name in names for epoch in ("ep5", "ep10")}
    row = values.rows["npo_lr1e5_b01_a1_ep5"]
    assert (row["es"], row["mia_min_kpp"], row["s_mia_zlib"]) == (0.1, 0.4, 0.5)
    assert (row["uds"], row["rouge"], row["fluency"], row["ra_q_prob"]) == (0.7, 0.35, 0.9, 0.5)
    assert "mem" not in row


def test_each_epoch_is_divided_by_its_own_full_model(runs):
    rows = {row.model: row for row in aggregated(read_values([runs]))}
    assert rows["npo_lr1e5_b01_a1_ep10"].utility_rel == pytest.approx(1)
    assert rows["npo_lr1e5_b01_a1_ep10"].utility < rows["npo_lr1e5_b01_a1_ep5"].utility
    # 1 - es, 1 - em, 1 - paraprob, 1 - truth ratio
    expected = 4 / (1 / 0.9 + 1 / 0.4 + 1 / 0.8 + 1 / 0.5)
    assert rows["npo_lr1e5_b01_a1_ep5"].mem == pytest.approx(expected)


def test_an_evaluation_is_read_under_the_names_of_the_catalogue(tmp_path):
    log = {
        "extraction_strength": {"agg_value": 0.2},
        "forget_truth_ratio_prob_mean": {"agg_value": 0.5},
        "ra_Q_A_Prob": {"agg_value": 0.1},
        "ra_Q_A_Prob_normalised": {"agg_value": 0.6},
        "uds": {"agg_value": None, "reason": "no retain model"},
    }
    put(tmp_path / "npo-tofu" / "TOFU_EVAL.json", log)
    values = read_values([tmp_path])
    assert values.rows == {
        "npo-tofu": {
            **{"es": 0.2, "truth_ratio": 0.5, "ra_Q_A_Prob": 0.1, "ra_q_prob": 0.6},
            "uds": "no retain model",
        }
    }
    manifest = {"inputs": {"model": {"name": "demo/npo", "weights": "abc"}}}
    put(tmp_path / "npo-tofu" / "manifest.json", manifest)
    named = read_values([tmp_path])
    assert list(named.rows) == ["demo/npo"]
    assert named.weights == {"demo/npo": "abc"}


def test_an_evaluation_and_a_patch_run_of_one_model_join_and_may_not_disagree(tmp_path):
    put(tmp_path / "a" / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": 0.2}})
    put(tmp_path / "a" / "manifest.json", {"inputs": {"model": {"name": "demo/npo"}}})
    put(tmp_path / "b" / "summary.json", {"source": "demo/npo", "uds": 0.4, "lens": None})
    put(tmp_path / "judge" / "summary.json", {"n_scored": 3})  # of another command
    values = read_values([tmp_path])
    assert values.rows == {"demo/npo": {"es": 0.2, "uds": 0.4, "logit_lens": "null in the results"}}
    put(tmp_path / "c" / "summary.json", {"source": "demo/npo", "uds": 0.5})
    said = r"demo/npo: uds is 0\.4 in one result and 0\.5 in another"
    with pytest.raises(InputError, match=said):
        read_values([tmp_path])
    with pytest.raises(InputError, match="holds no results; wanted TOFU_EVAL"):
        read_values([tmp_path / "judge"])
    with pytest.raises(InputError, match="no such file or folder"):
        read_values([tmp_path / "nowhere"])


def test_what_a_result_is_made_of_is_no_result_of_a_model(tmp_path):
    def log(place, name, value):
        put(tmp_path / place / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": value}})
        put(tmp_path / place / "manifest.json", {"inputs": {"model": {"name": name}}})

    log("npo", "demo/npo", 0.2)
    log("npo/retain", "demo/retain", 0.1)  # that it was compared with
    put(tmp_path / "relearned" / "audit.json", {})
    log("relearned/before/demo-npo", "demo/npo", 0.3)  # of other rows
    log("relearned/after/demo-npo", "relearned/attacked/npo", 0.9)
    log(".trash/demo-npo", "demo/npo", 0.4)
    assert read_values([tmp_path]).rows == {"demo/npo": {"es": 0.2}}
    with pytest.raises(InputError, match="holds no results"):
        read_values([tmp_path / "relearned"])
    parts = read_values([tmp_path / "relearned" / "before", tmp_path / "npo" / "retain"])
    assert parts.rows == {"demo/npo": {"es": 0.3}, "demo/retain": {"es": 0.1}}  # named by a person


def test_a_sweep_has_the_units_of_the_side_that_is_asked(tmp_path):
    for unit, variant, value in (("a", "base", 0.2), ("b", "nf4", 0.3)):
        place = tmp_path / "out" / "sweep" / "units" / unit
        put(place / "result.json", {"target": "demo/npo", "variant": variant})
        put(place / "eval" / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": value}})
        put(place / "eval" / "manifest.json", {"inputs": {"model": {"name": "demo/npo"}}})
    put(tmp_path / "out" / "sweep" / "plan.json", {})
    for attack, value in ((None, 0.2), ("quantize", 0.3)):
        for place in (tmp_path, tmp_path / "out" / "sweep"):
            assert read_values([place], attack=attack).rows == {"demo/npo": {"es": value}}


@pytest.mark.parametrize("other", ["v", "w", None])
def test_two_models_of_one_name_are_never_one_row(tmp_path, other):
    for folder, metric, weights in (("a", "uds", "w"), ("b", "extraction_strength", other)):
        put(tmp_path / folder / "TOFU_EVAL.json", {metric: {"agg_value": 0.2}})
        model = {"name": "./ckpt"} | ({"weights": weights} if weights else {})
        put(tmp_path / folder / "manifest.json", {"inputs": {"model": model}})
    if other != "v":
        assert read_values([tmp_path]).rows == {"./ckpt": {"uds": 0.2, "es": 0.2}}
        return
    said = r"\./ckpt: results of two different weights; name only one of them"
    for several in ([tmp_path], [tmp_path / "a", tmp_path / "b"]):
        with pytest.raises(InputError, match=said):
            read_values(several)
    # a depth is of the model that was patched
    put(tmp_path / "c" / "summary.json", {"source": "./ckpt", "lens": 0.4})
    put(tmp_path / "c" / "manifest.json", {"inputs": {"source": {"weights": "v"}}})
    assert read_values([tmp_path / "b", tmp_path / "c"]).rows["./ckpt"]["logit_lens"] == 0.4
    with pytest.raises(InputError, match=said):
        read_values([tmp_path / "a", tmp_path / "c"])


def rows_of(folder, value, name="m", **content):
    row = {"uds": value}
    asked = {name: {"uds": RowsAsked(Path(folder), content)}}
    return Values({name: row}, asked=asked)


@pytest.mark.parametrize("turned", [False, True])
def test_a_value_has_the_rows_of_its_own_file_in_any_order(turned):
    def joined(*tables):
        return merged(reversed(tables) if turned else tables)

    one, gap = rows_of("a", 0.5, annotated="x"), rows_of("b", "no retain model", annotated="y")
    assert joined(one, gap).asked["m"]["uds"] == RowsAsked(Path("a"), {"annotated": "x"})
    # a file that says less takes nothing away
    silent = rows_of("c", 0.5)
    assert joined(one, silent).asked["m"]["uds"].content == {"annotated": "x"}
    with pytest.raises(
        InputError, match=r"m: uds in . was asked of other annotated rows than in .; name"
    ):
        joined(one, rows_of("d", 0.5, annotated="z"))


METRICS = {
    "extraction_strength": "memorization",
    "retain_Q_A_Prob": "probability",
    "mia_loss": "membership",
    "uds": "depth",
}


def measured(folder, metric="extraction_strength", name="m", template="t", how=None, **rows):
    """Values of a log that says what was asked; `annotated` are the patched facts."""
    place = {"annotated": rows.pop("annotated")} if "annotated" in rows else {}
    how = {
        "data": rows,
        "conditions": {"template": template} | (how or {}),
        "model": {"name": name},
    }
    told = {one: {"family": family} for one, family in METRICS.items()}
    put(folder / "manifest.json", {"inputs": {**how, **place, "metrics": told}})
    return read_values([put(folder / "TOFU_EVAL.json", {metric: {"agg_value": 0.5}})])


def depth_of(folder, annotated):
    put(folder / "manifest.json", {"inputs": {"examples": {"hash": annotated}}})
    return read_values([put(folder / "summary.json", {"source": "m", "uds": 0.5})])


def test_values_of_other_rows_or_of_another_template_are_refused(tmp_path):
    one = measured(tmp_path / "one", forget="f2", retain="r")
    other = measured(tmp_path / "other", forget="f40", retain="r")
    said = (
        f"es of m in {tmp_path}/other/TOFU_EVAL.json was asked of other forget rows than es of m "
        f"in {tmp_path}/one/TOFU_EVAL.json; wanted the same rows, asked in the same way: "
        "measure one again with the other's data, --limit, template and options"
    )
    with pytest.raises(InputError) as found:
        check_alike(["m"], ["es"], one, other)
    assert str(found.value) == said
    again = measured(tmp_path / "again", forget="f2", retain="another")
    check_alike(["m"], ["es"], one, again)
    chat = measured(tmp_path / "chat", forget="f2", template="chat")
    with pytest.raises(InputError, match="was asked with another template than"):
        check_alike(["m"], ["es"], one, chat)


@pytest.mark.parametrize(
    ("metric", "key", "other", "said"),
    [
        ("forget_Q_A_ROUGE", "rouge", {"n_new": {"forget": 3}}, "with another --max-new-tokens"),
        ("forget_Q_A_ROUGE", "rouge", {"cleanup": "kept"}, "with another --cleanup"),
        ("forget_Q_A_ROUGE", "rouge", {"mask": "upstream"}, None),
        ("extraction_strength", "es", {"mask": "upstream"}, "with another --mask"),
        ("extraction_strength", "es", {"n_new": {"forget": 3}}, None),
        # utility is made of both
        (
            "model_utility",
            "model_utility",
            {"n_new": {"retain": 3}},
            "with another --max-new-tokens",
        ),
        ("model_utility", "model_utility", {"mask": "upstream"}, "with another --mask"),
        ("uds", "uds", {"mask": "upstream", "n_new": {"forget": 3}}, None),
    ],
)
def test_values_are_compared_that_were_asked_alike_as_far_as_it_moves_them(
    metric, key, other, said, tmp_path
):
    how = {"mask": "true", "cleanup": "upstream", "n_new": {"forget": 200, "retain": 200}}
    rows = {"forget": "f", "retain": "r", "ra": "a", "wf": "w", "annotated": "x"}
    one, two = (
        measured(tmp_path / name, metric, name, how=asked, **rows)
        for name, asked in {"m": how, "n": how | other}.items()
    )
    if said is None:
        check_alike(["m", "n"], [key], one, two)
        return
    with pytest.raises(InputError, match=f"was asked {said} than {key} of m"):
        check_alike(["m", "n"], [key], one, two)


def test_metrics_of_other_splits_need_not_be_asked_alike(tmp_path):
    n_new = {"forget": 200, "retain": 50, "ra": 50, "wf": 50}
    rows = {"forget": "f", "retain": "r", "ra": "a", "wf": "w"}
    how = {"mask": "true", "n_new": n_new}
    said = measured(tmp_path / "a", "forget_Q_A_ROUGE", how=how, **rows)
    kept = measured(tmp_path / "b", "retain_Q_A_ROUGE", how=how, **rows)
    check_alike(["m"], ["rouge", "retain_q_rouge"], said, kept)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"scope": "span"}, {"scope": "boundary"}, "with another --scope"),
        ({"tau": 0.05}, {"tau": 0.5}, "with another --tau"),
        ({"layers": [0, 1]}, {"layers": [0]}, "with another --layers"),
        ({"last_layer": "resid_post"}, {"last_layer": "reference"}, "with another --last-layer"),
        ({"component": "resid"}, {"component": "mlp"}, "with another --component"),
        ({"scope": "span"}, {}, None),  # an earlier version did not say
    ],
)
def test_depths_are_compared_that_were_measured_alike(tmp_path, one, other, said):
    tables = []
    for name, how in (("m", one), ("n", other)):
        folder = tmp_path / name
        put(folder / "manifest.json", {"inputs": {"examples": {"hash": "x"}}})
        summary = {"source": name, "uds": 0.5, **how}
        tables.append(read_values([put(folder / "summary.json", summary)]))
    if said is None:
        check_alike(["m", "n"], ["uds"], *tables)
        return
    with pytest.raises(InputError, match=f"uds of n in .* was asked {said} than uds of m"):
        check_alike(["m", "n"], ["uds"], *tables)


def test_only_what_is_compared_must_be_of_the_same_rows(tmp_path):
    few = measured(tmp_path / "a", forget="f2", retain="r")
    many = measured(tmp_path / "b", "retain_Q_A_Prob", "n", forget="f40", retain="r")
    area = measured(tmp_path / "c", "mia_loss", "n", forget="f2", holdout="h")
    table = merged([few, many, area])
    check_alike(["m", "n"], ["es", "retain_q_prob", "mia_loss"], table)
    # another holdout is another attack
    other = measured(tmp_path / "d", "mia_loss", forget="f2", holdout="h40")
    with pytest.raises(InputError, match="of other holdout rows"):
        check_alike(["m", "n"], ["es", "mia_loss"], merged([table, other]))
    check_alike(["n"], ["mia_loss"], merged([table, other]))


def test_a_depth_is_of_its_annotated_rows_whoever_wrote_it(tmp_path):
    evaluated = measured(tmp_path / "a", "uds", forget="f40", annotated="x")
    check_alike(["m"], ["uds"], evaluated, depth_of(tmp_path / "b", "x"))
    with pytest.raises(InputError, match="of other annotated rows"):
        check_alike(["m"], ["uds"], evaluated, depth_of(tmp_path / "c", "y"))


def test_results_that_do_not_say_what_was_asked_stay_possible(tmp_path):
    ours = measured(tmp_path / "ours", forget="f2")
    log = put(tmp_path / "theirs" / "TOFU_EVAL.json", {"extraction_strength": {"agg_value": 0.4}})
    theirs = read_values([log])
    check_alike(["m", "theirs"], ["es"], ours, theirs, values_of({"m": {"es": 0.1}}))


POOL = {
    "open-unlearning/pos_tofu_Llama-3.2-1B-Instruct_full_lr1e-05_wd0.01_epoch5": {
        "metrics": {"uds": 0.6, "es": None},
        "pool": "P",
    },
    "open-unlearning/neg_tofu_Llama-3.2-1B-Instruct_retain90_lr1e-05_wd0.01_epoch5": {
        "error": "CUDA out of memory",
        "pool": "N",
    },
}


def test_the_authors_pool_file_is_read_and_a_failed_model_stays_to_do(tmp_path):
    values = read_values([put(tmp_path / "results.json", POOL)])
    row = {"uds": 0.6, "es": "null in the results"}
    assert values.rows == {"pos_full_lr1e5_wd001_ep5": row}
    assert values.to_do == {"neg_retain90_lr1e5_wd001_ep5": "CUDA out of memory"}
    assert values.is_to_do("neg_retain90_lr1e5_wd001_ep5")


def test_both_sides_of_the_authors_robustness_file(tmp_path):
    path = put(
        tmp_path / "results.json",
        {
            "retain": {"metrics_before": {"uds": 1.0}, "metrics_after_quant": {"uds": 0.9}},
            "npo": {"metrics_before": {"uds": 0.8}},
        },
    )
    assert read_values([path], attack="before").value("npo", "uds") == 0.8
    after = read_values([path], attack="quantize")
    assert after.value("retain", "uds") == 0.9
    assert after.to_do == {"npo": "no metrics_after_quant in results.json"}
    with pytest.raises(InputError, match="no model has metrics_after_relearn"):
        read_values([path], attack="relearn")


def test_what_failed_is_named_until_it_is_measured(tmp_path):
    put(tmp_path / "to_do.json", {"demo/npo": "no such folder", "demo/gone": "not found"})
    put(tmp_path / "npo" / "TOFU_EVAL.json", {"uds": {"agg_value": 0.4}})
    put(tmp_path / "npo" / "manifest.json", {"inputs": {"model": {"name": "demo/npo"}}})
    values = read_values([tmp_path])
    assert values.value("demo/npo", "uds") == 0.4
    assert values.to_do == {"demo/gone": "not found"}


def test_s_mia_follows_from_the_attack_and_retains_own():
    values = values_of({"npo": {"mia_loss": 0.3, "mia_zlib": 0.2, "mia_min_k": 0.1}, "other": {}})
    found = with_s_mia(values, {"mia_loss": 0.4, "mia_zlib": 0.0})
    assert found.value("npo", "s_mia_loss") == pytest.approx(0.75)
    # a retain reference with AUC 0 divides nothing; a missing one compares with nothing
    assert found.why_not("npo", "s_mia_zlib") == "the retain model's mia_zlib is 0, no denominator"
    assert "no mia_min_k to compare with" in found.why_not("npo", "s_mia_min_k")
    assert found.why_not("other", "s_mia_loss") == "its results lack this metric"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "holds no results"),
        ({"models": []}, "its list of models is empty"),
        ({"models": [{"uds": 1}]}, "model 1: has no name"),
        ({"models": [{"model": "a"}, {"model": "a"}]}, "a is there twice"),
        ({"uds": {"agg_value": True}}, "uds: agg_value: found True, wanted a number"),
    ],
)
def test_what_is_no_result_is_refused_by_name(tmp_path, content, said):
    with pytest.raises(InputError, match=said):
        read_values([put(tmp_path / "TOFU_EVAL.json", content)])


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("ep5/privacy/npo_ep5/summary.json", {"attacks": {"lira": {"auc": 0.5}}}, "loss, zlib"),
        ("ep5/uds/npo_ep5/summary.json", [0.5], "an object"),
        ("to_do.json", ["demo/npo"], "an object"),
        ("method_results.json", {"models": [], "full_utility": 0.7}, "an object"),
    ],
)
def test_a_file_of_another_shape_is_an_error_that_names_it(tmp_path, name, content, wanted):
    put(tmp_path / "npo" / "TOFU_EVAL.json", {"uds": {"agg_value": 0.4}})
    put(tmp_path / name, content)
    read = tmp_path / name if name.startswith("method") else tmp_path
    with pytest.raises(InputError, match=rf"{name.rpartition('/')[2]}.*wanted {wanted}"):
        read_values([read])


def test_a_value_beats_a_reason_and_a_result_beats_to_do():
    tables = (
        Values({"a": {"uds": "old"}}, to_do={"a": "x", "b": "y"}),
        values_of({"a": {"uds": 0.5}}),
    )
    found = merged(tables)
    assert found.rows == {"a": {"uds": 0.5}}
    assert found.to_do == {"b": "y"}
