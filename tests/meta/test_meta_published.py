"""Every published aggregate, ranking, filter and AUC, computed again from the published values."""

import json
from collections import Counter
from pathlib import Path

import pytest
from support import GOLDEN, lay_out, of_role

from lensaudit.cli.main import run
from lensaudit.data.tofu import filters
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.meta.aggregate import SCORES, aggregated, ranking
from lensaudit.meta.check import check, expected_tables
from lensaudit.meta.documents import read_sources, read_thresholds, table_rows
from lensaudit.meta.reading import CATALOGUE, THRESHOLDS, read_values
from lensaudit.models.registry import load_registry
from lensaudit.results.renewal import renew

RECOMPUTED = SCORES[:-1]
HEADLINE = {
    "uds": (0.971, 0.932, 0.951),
    "logit_lens": (0.927, 0.879, 0.902),
    "es": (0.891, 0.859, 0.875),
    "truth_ratio": (0.947, 0.379, 0.542),
    "cka": (0.648, 0.026, 0.051),
    "para_rouge": (0.832, 0.119, 0.209),
    "fisher_masked_0.001": (0.712, 0.721, 0.716),
}
"""Faithfulness, robustness, overall as the UDS paper prints them."""
BEST = {
    "altpo": ("altpo_lr5e5_b01_a1_ep5", 0.784, 0.766, 0.816),
    "npo": ("npo_lr2e5_b01_a1_ep10", 0.752, 0.710, 0.619),
    "simnpo": ("simnpo_lr5e5_b35_a1_d1_g0125_ep10", 0.733, 0.722, 0.739),
    "idkdpo": ("idkdpo_lr5e5_b01_a1_ep10", 0.720, 0.709, 0.686),
    "graddiff": ("graddiff_lr2e5_a5_ep5", 0.686, 0.637, 0.515),
    "rmu": ("rmu_lr2e5_l5_s10_ep10", 0.631, 0.625, 0.667),
    "undial": ("undial_lr3e4_b10_a5_ep5", 0.088, 0.103, 0.871),
}
"""Model, Overall without UDS, with it, UDS; section 7."""


@pytest.fixture(scope="module")
def published():
    return GOLDEN / "published"


@pytest.fixture(scope="module")
def pools(published):
    """Side -> metric -> values of its thirty models, in the order of the registry."""
    return json.loads((published / "pools.json").read_text())


@pytest.fixture(scope="module")
def values(published):
    return read_values([published / "method_results.json"])


@pytest.fixture(scope="module")
def rows(values):
    return {row.model: row for row in aggregated(values)}


def test_every_aggregate_of_all_152_rows_comes_out(published, rows):
    content = json.loads((published / "method_results.json").read_text())["models"]
    assert len(content) == len(rows) == 152
    worst = {
        name: max(abs(getattr(rows[raw["model"]], name) - raw[name]) for raw in content)
        for name in RECOMPUTED
    }
    assert max(worst.values()) < 1e-12, worst
    assert [raw["method"] for raw in content] == [rows[raw["model"]].method for raw in content]
    # the cap of utility_rel bites, and a zero component is no zero mean
    assert sum(row.utility_rel == 1 for row in rows.values()) == 14
    assert 0 < rows["altpo_lr2e5_b01_a1_ep5"].privacy < 1e-11


def test_the_ranking_table_comes_out(rows):
    ranked = {one.method: one for one in ranking(list(rows.values()))}
    assert list(ranked)[:7] == list(BEST)
    assert {m: one.n_models for m, one in ranked.items()} == dict.fromkeys(ranked, 18) | {
        "simnpo": 24
    }
    for method, (model, without, overall, uds) in BEST.items():
        best = ranked[method].best_without_uds
        assert best.model == model
        found = (best.overall_without_uds, best.overall, best.uds)
        assert found == pytest.approx((without, overall, uds), abs=5e-4)
    assert ranked["altpo"].best_with_uds.model == "altpo_lr5e5_b01_a2_ep10"
    assert ranked["npo"].best_with_uds.model == "npo_lr5e5_b01_a5_ep10"
    npo = ranked["npo"]
    assert (npo.uds_mean, npo.uds_low, npo.uds_high) == pytest.approx(
        (0.643, 0.432, 0.818), abs=5e-4
    )


def test_every_published_robustness_and_overall_comes_out(published):
    content = json.loads((published / "meta_eval.json").read_text())["robustness"]
    found = {row.metric: row for row in table_rows(read_sources([published / "meta_eval.json"]))}
    assert found.keys() == content.keys() == CATALOGUE.keys()
    worst = max(abs(found[key].robustness - content[key]["agg"]) for key in content)
    assert 0 < worst < 1.5e-4
    for key, wanted in HEADLINE.items():
        row = found[key]
        numbers = [row.faithfulness, row.robustness, row.overall]
        assert numbers == pytest.approx(list(wanted), abs=1e-3), key


def test_the_table_has_the_best_overall_first_and_the_published_numbers_of_models(
    published, tmp_path
):
    path, other = published / "meta_eval.json", tmp_path / "meta_eval.json"
    rows = table_rows(read_sources([path]))
    assert [row.metric for row in rows[:3]] == ["uds", "logit_lens", "es"]
    overall = [row.overall for row in rows]
    assert overall == sorted(overall, reverse=True)
    assert rows[0].n_quantization == 12
    # another file of that layout does not say how many
    content = json.loads(path.read_text())
    content["robustness"]["uds"]["quantization"] = 0.5
    other.write_text(json.dumps(content))
    assert {row.n_quantization for row in table_rows(read_sources([other]))} == {None}


def test_labels_and_directions_are_the_published_ones(published):
    content = json.loads((published / "meta_eval.json").read_text())
    for raw in content["metrics"]:
        one = CATALOGUE[raw["key"]]
        assert one.category == raw["category"]
        assert one.label == raw["label"].removesuffix(" (Ours)")
        means = content["faithfulness"][raw["key"]]
        rises = means["p_mean"] > means["n_mean"]
        assert rises == (one.high_means == "knows"), raw["key"]


@pytest.mark.parametrize("kind", ["faithfulness", "robustness"])
def test_a_metric_outside_the_catalogue_means_what_its_judgement_says(tmp_path, kind):
    told = {"metric": "forget_quality", "label": "quality", "category": "other"}
    rows = [told | {"high_means": "forgot"}, {"metric": "uds", "high_means": "knows"}]
    content = {"kind": kind, "metrics": rows} | ({"attack": "relearn"} if kind[0] == "r" else {})
    (tmp_path / "it.json").write_text(json.dumps(content))
    found = {row.metric: row for row in table_rows(read_sources([tmp_path / "it.json"]))}
    quality, uds = found["forget_quality"], found["uds"]
    assert (quality.label, quality.category, quality.high_means) == ("quality", "other", "forgot")
    assert (uds.label, uds.high_means) == ("UDS", "forgot")  # the catalogue's own


FAITH = {"metric": "uds", "auc": 0.9, "interval_95": [0.8, 1.0], "threshold": 0.5}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "faithfulness"}, "f.json: has no 'metrics'"),
        ({"kind": "faithfulness", "metrics": [{}]}, "f.json: metrics.0: has no 'metric'"),
        (
            {"kind": "faithfulness", "metrics": [FAITH | {"auc": 1.5}]},
            "f.json: metrics.0.auc: found 1.5, wanted at most 1",
        ),
        (
            {"kind": "faithfulness", "metrics": [FAITH | {"interval_95": [0.1]}]},
            r"f.json: metrics.0.interval_95.1: found \[0.1\], wanted another number of values",
        ),
        ({"kind": "robustness", "attack": "prune"}, "attack: found 'prune', wanted 'quantize' or"),
        ({"faithfulness": {"uds": {"auc_roc": 2}}, "robustness": {}}, "f.json: .*at most 1"),
        ([1], "f.json: wanted faithfulness.json"),
    ],
)
def test_a_document_that_meta_did_not_write_is_one_line(tmp_path, document, said):
    path = tmp_path / "f.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=said):
        read_sources([path])


def test_rows_of_two_formulas_or_filters_are_no_table(tmp_path):
    def wrote(name, metrics, form, by):
        rows = [{"metric": one, "value": 0.5} for one in metrics]
        content = {"attack": "relearn", "form": form, "filter": by, "metrics": rows}
        return write_json(tmp_path / f"{name}.json", content | {"kind": "robustness"})

    both, whole = ("em", "uds"), ("symmetric", "both")
    first, same = wrote("one", both, *whole), wrote("two", ["em"], *whole)
    for how in (("recovery", "both"), ("symmetric", "none")):
        other = wrote("other", ["em"], *how)
        said = f"other.json: relearn is {how[0]}, filter {how[1]}; .*two.json is symmetric, filter "
        with pytest.raises(InputError, match=said + "both, and has uds alone"):
            read_sources([first, same, other])
        # nothing stays of the earlier file
        assert read_sources([other, first]).forms == {"relearn": "symmetric"}
        assert read_sources([other, same, first]).filters == {"relearn": "both"}


def test_null_is_no_number_and_no_interval(tmp_path):
    rows = [FAITH, {"metric": "em", "auc": None, "interval_95": [0.1, 0.2]}, {"metric": "es"}]
    path = tmp_path / "faithfulness.json"
    path.write_text(json.dumps({"kind": "faithfulness", "metrics": rows}))
    found = read_sources([path]).faithfulness
    assert (found["uds"].auc, found["uds"].interval.ends) == (0.9, (0.8, 1.0))
    assert found["em"].auc is None
    assert found["es"].interval.ends is None
    assert read_thresholds(path) == {"uds": 0.5}


PRINTED = {"uds": (0.971, 0.486, 0.852, 0.9167), "em": (0.817, 0.742, 0.620, 0.8)}
"""AUC, mean of the pool that knows, of the one that forgot, accuracy at the threshold."""


def test_the_authors_file_of_the_pools_is_judged_by_name(pools, tmp_path, capsys):
    registry = load_registry()
    content = {}
    for name, role in (("knows", "pool_knows"), ("forgot", "pool_forgot")):
        side = pools[name]
        for spec, uds, em in zip(of_role(registry, role), side["uds"], side["em"], strict=True):
            content[spec.repo] = {"metrics": {"uds": uds, "em": em}, "pool": role}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content))
    given = "meta faithfulness --pool-knows published --pool-forgot published --metric uds"
    arguments = [*f"{given} --metric em --results {path} --out {tmp_path / 'o'}".split()]
    assert run(arguments) == 0
    found = json.loads((tmp_path / "o" / "faithfulness.json").read_text())["metrics"]
    for one, (key, (*printed, accuracy)) in zip(found, PRINTED.items(), strict=True):
        means = [one["auc"], one["knows_mean"], one["forgot_mean"]]
        assert means == pytest.approx(printed, abs=5e-4)
        assert one["threshold"] == pytest.approx(THRESHOLDS[key], abs=6e-5)
        assert one["threshold_accuracy"] == pytest.approx(accuracy, abs=5e-5)
        assert (one["n_knows"], one["n_forgot"]) == (30, 30)
        assert one["interval_95"][0] < one["auc"] < one["interval_95"][1]
    assert found[0]["auc"] == pytest.approx(0.9711, abs=5e-5)
    assert found[0]["interval_95"][0] == pytest.approx(0.8798, abs=1e-4)
    capsys.readouterr()
    # one model gone: no AUC without it
    del content[of_role(registry, "pool_knows")[3].repo]
    path.write_text(json.dumps(content))
    assert run(arguments) == 3
    uds, _ = json.loads((tmp_path / "o" / "faithfulness.json").read_text())["metrics"]
    assert uds["auc"] is None
    assert uds["n_knows"] == 29
    assert uds["reason"] == "1 to do: pos_full_lr2e5_wd001_ep10"


def test_the_authors_files_agree_with_every_published_number(published):
    found = check([published / "method_results.json", published / "meta_eval.json"])
    counts = Counter((one.table, one.found) for one in found)
    # 152 models, 20 metrics; 22 metrics a judgement; those files have no UDR and no model utility
    assert counts == {
        ("uds_models", "equal"): 152 * 20,
        ("uds_faithfulness", "equal"): 22,
        ("uds_quantization", "equal"): 22,
        ("uds_relearning", "equal"): 22,
        ("method_table", "not measured"): 12,
        ("open_unlearning", "not measured"): 4,
        ("uds_scale", "not measured"): 10,
    }


def test_every_published_number_has_a_source_a_known_name_and_a_tolerance_with_a_reason():
    registry = load_registry()
    for table in expected_tables():
        assert table.source
        assert set(table.tolerance) == set(table.metrics)
        assert all(one.within > 0 and one.why for one in table.tolerance.values())
        assert all(len(row) == len(table.metrics) for row in table.rows.values())
        known = registry if table.kind == "values" else CATALOGUE
        assert set(table.rows) <= set(known)


def test_the_scale_check_orders_models_by_what_they_were_taught_and_the_page_asks_for_all():
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text().split()
    (table,) = [one for one in expected_tables() if one.name == "uds_scale"]
    uds = {name: row[0] for name, row in table.rows.items()}
    asked = {page[n + 1] for n, word in enumerate(page) if word == "--source"}
    assert set(uds) <= asked
    for size in ("_3b", "_8b"):
        rising = [uds[f"{one}{size}"] for one in ("full", "retain99", "retain95", "retain90")]
        assert rising == sorted(rising)
        assert rising[-1] == 1
    assert {one.name for one in of_role(load_registry(), "scale")} <= set(uds)


def test_the_page_asks_for_the_rows_and_the_last_layer_of_the_published_method_table():
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    (asked,) = [line.split() for line in page.splitlines() if "--score em --" in line]
    (table,) = [one for one in expected_tables() if one.name == "method_table"]
    sources = [asked[n + 1] for n, word in enumerate(asked) if word == "--source"]
    assert sources == [*table.rows]
    assert asked[asked.index("--last-layer") + 1] == "reference"
    left = 400 - len(filters()[asked[asked.index("--exclude") + 1]])
    assert f"50 rows of {left}," in table.source
    assert f"50 of the {left} rows" in page


def test_a_number_is_equal_within_its_tolerance_differs_or_is_not_measured(tmp_path, capsys):
    rows = {
        "npo_lr2e5_b01_a1_ep10": {"uds": 0.619 + 0.019},
        "rmu_lr2e5_l5_s10_ep10": {"uds": 0.667 + 0.03},
        # an alias is the checkpoint that it stands for
        "graddiff": {"em_erasure": 0.23},
        "full_ep5": {"uds": 0.0},
    }
    (tmp_path / "results.json").write_text(json.dumps(rows))
    found = {(one.row, one.metric): one for one in check([tmp_path / "results.json"])}
    assert found["npo_lr2e5_b01_a1_ep10", "uds"].found == "equal"
    assert found["rmu_lr2e5_l5_s10_ep10", "uds"].found == "differs"
    assert found["graddiff_lr1e5_a5_ep10", "em_erasure"].found == "equal"
    assert found["full", "uds"].found == "equal"
    assert found["full", "es"].why == "its results lack this metric"
    assert found["es", "quantize"].why == "no quantize result"
    assert run(["meta", "check", str(tmp_path / "results.json")]) == 4
    assert "1 of 4 numbers differ from the published tables" in capsys.readouterr().err


def test_results_of_no_published_row_are_one_line(tmp_path, capsys):
    (tmp_path / "results.json").write_text(json.dumps({"mine": {"uds": 0.5}}))
    assert run(["meta", "check", str(tmp_path / "results.json")]) == 2
    said = capsys.readouterr().err
    assert "no model and no metric of the published tables" in said
    assert len(said.splitlines()) == 1


def _erased(place: Path, name: str, **counts: int) -> None:
    """A result of `patch --score em` as its golden tells it, with other counts, sealed anew."""
    lay_out("patch_em:out", place / name)
    path = place / name / "summary.json"
    said = json.loads(path.read_text())
    base = sum(counts[one] for one in ("over", "exact", "under"))
    said |= {
        "source": name,
        "udr": 0.25,
        "retention": 0.7,
        "n_scored": sum(counts.values()),
        "categories": counts,
        "category_percent": {one: 100 * counts[one] / base for one in ("over", "exact", "under")},
    }
    write_json(path, said)
    renew(place / name, ["summary.json"])


def test_the_method_table_leaves_general_knowledge_out_and_is_compared(tmp_path, capsys):
    """Of 50 rows 12 are general knowledge: the published shares are of the other 38."""
    _erased(tmp_path, "idknll_lr1e5_a1_ep5", over=8, exact=4, under=26, general_knowledge=12)
    _erased(tmp_path, "mine", over=1, exact=0, under=0, general_knowledge=0)
    assert run(["meta", "methods", str(tmp_path), "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    first = rows["idknll_lr1e5_a1_ep5"]
    shares = [first[name] for name in ("over", "exact", "under")]
    assert shares == pytest.approx([8 / 38, 4 / 38, 26 / 38])
    assert (first["n"], first["n_general_knowledge"]) == (50, 12)
    assert rows["mine"]["over"] == 1.0

    assert run(["meta", "methods", str(tmp_path)]) == 0
    assert "idknll_lr1e5_a1_ep5" in capsys.readouterr().out

    found = {one.metric: one for one in check([tmp_path]) if one.value is not None}
    assert found["em_over"].value == pytest.approx(8 / 38)
    assert {name: one.found for name, one in found.items()} == dict.fromkeys(found, "equal")
    assert found.keys() == {"em_erasure", "em_retention", "em_over", "em_under"}
    assert found["em_over"].published == pytest.approx(8 / 38, abs=5e-4)


def test_no_method_table_is_made_of_edited_or_missing_results(tmp_path, capsys):
    assert run(["meta", "methods", str(tmp_path)]) == 2
    assert "no result of `lensaudit patch --score em`" in capsys.readouterr().err
    _erased(tmp_path, "mine", over=1, exact=0, under=0, general_knowledge=0)
    path = tmp_path / "mine" / "summary.json"
    path.write_text(path.read_text().replace("0.7", "0.8"))
    assert run(["meta", "methods", str(tmp_path)]) == 2
    assert "summary.json" in capsys.readouterr().err
