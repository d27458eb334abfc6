"""Exports lose nothing: values, intervals, reasons and hashes are in every format."""

import hashlib
import json
import math
import re
import shutil
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from jsonschema import Draft7Validator
from support import of_role
from support import report_cases as cases
from support import verdict_support as made

from lensaudit.cli.main import run
from lensaudit.doors.export.files import WRITERS, export
from lensaudit.doors.export.model import _of_suite
from lensaudit.doors.export.model import exported as model_of
from lensaudit.doors.settings import ExportSettings
from lensaudit.errors import InputError
from lensaudit.meta.aggregate import aggregated
from lensaudit.meta.reading import read_values
from lensaudit.metrics.registry import all_metrics, metric_of, reads_in_all
from lensaudit.models.registry import load_registry
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.locate import locate
from lensaudit.verdict.collect import verdicts

GOLDEN_FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((GOLDEN_FOLDER / "every_eval_ever.json").read_text())
NAMED = {"hub-results": {"dataset": "org/set@abc"}}
WITHOUT_PACKAGES = [name for name in WRITERS if name != "inspect"]


def fact_rows(folder, rows):
    names = list(rows[0])
    lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
    (folder / "facts.csv").write_text("\n".join(lines) + "\n")


def patched(folder, source="npo", n=24):
    """A run of patch; fact n / 2 has no score."""
    cases.patch_run(folder, source, n=n)
    given = cases.manifest(source, examples={"n": n, "hash": "e" * 32})["inputs"]
    given["source"]["repo"] = "org/npo"
    return made.seal(folder, "patch", ["summary.json", "results.jsonl"], **given)


def attacked(folder, entity):
    """A worst case that brings out fact 1, and cannot score fact 2."""
    folder.mkdir(parents=True)
    facts = [
        {"idx": idx, "group": 0, "entity": entity(idx), "attacks": "", "unscored": ""} | more
        for idx, more in ((0, {}), (1, {"attacks": "greedy"}), (2, {"unscored": "no span"}))
    ]
    content = {"kind": "worst", "source": "npo", "retain": ["retain"], "attack_list": "1"}
    content |= {"headline": "h", "n": 3, "n_scored": 2, "n_out": 1, "unscored": {"2": "no span"}}
    content |= {"expected": 0.1, "excess": 0.45, "ci95": [0.2, 0.7], "named": [], "authors": 8}
    content |= {"bound": {"draws": 1, "rate": None}, "attacks": [], "facts": facts}
    cases.write(folder / "summary.json", content)
    return made.seal(folder, "worst", ["summary.json"], source={"weights": "sha256:npo"})


def asked(folder):
    """Who has what: 1.5 bits a fact, of fact 0; fact 1 has no number."""
    folder.mkdir(parents=True)
    bits = {"value": 1.5, "low": 1.0, "high": 2.0, "n": 1, "why": None}
    content = {"kind": "know", "source": "npo", "headline": "h", "finds": True, "p": 0.001}
    content |= {"z": 4.0, "n_subjects": 8, "max_bits": 3.0, "bits": bits}
    content |= {"relations": [], "controls": []}
    cases.write(folder / "summary.json", content)
    matrix = {"relation": "r", "subjects": [], "values": [], "truth": [], "p": []}
    cases.write(folder / "matrix.json", matrix)
    rows = [{"idx": 0, "bits_associated": 1.5, "unscored": ""}]
    fact_rows(folder, [*rows, {"idx": 1, "bits_associated": "", "unscored": "no namesake"}])
    files = ["summary.json", "matrix.json", "facts.csv"]
    return made.seal(folder, "know", files, source={"weights": "sha256:npo"})


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """All of one model: a depth, a worst case, bits, and metrics, each with something unscored."""
    place = tmp_path_factory.mktemp("audited")
    patched(place / "patch")
    entities = [row["entity"] for row in rows_of(place)]
    attacked(place / "worst", entities.__getitem__)
    asked(place / "know")
    values = {"forget_Q_A_Prob": 0.4, "retain_Q_A_Prob": 0.9, "privleak": 20.0, "mia_loss": None}
    cases.eval_run(place / "eval", "npo", **values)
    return place


def rows_of(place):
    return list(map(json.loads, (place / "patch" / "results.jsonl").read_text().splitlines()))


def summary_of(place):
    return json.loads((place / "patch" / "summary.json").read_text())


def exported(place, to, out, **more):
    return export([place], ExportSettings(to=to, out=out, **NAMED.get(to, {}), **more))


def record(files):
    (one,) = [path for path in files if path.suffix == ".json"]
    return json.loads(one.read_text())


def lines_of(files):
    (one,) = [path for path in files if path.suffix == ".jsonl"]
    return list(map(json.loads, one.read_text().splitlines()))


@pytest.mark.parametrize("to", WITHOUT_PACKAGES)
def test_intervals_reasons_and_hashes_are_in_every_format(audited, tmp_path, to):
    files = exported(audited, to, tmp_path / "a")
    text = "\n".join(one.read_text() for one in files)
    text = " ".join(text.replace("\\", "").split())  # YAML breaks lines, Markdown escapes
    uds = summary_of(audited)
    low, high = uds["ci95"]
    for number in (uds["uds"], low, high):
        shown = f"{number:.3f}" if to in ("model-card", "markdown") else repr(number)
        assert shown in text
    assert "no retain reference" in text  # why mia_loss has no value
    assert "tau = 0.05" in text  # why fact 12 has none
    for known in ("sha256:npo", "sha256:full", "sha256:retain", "e" * 32):
        assert known in text
    again = exported(audited, to, tmp_path / "b")
    assert [one.read_bytes() for one in again] == [one.read_bytes() for one in files]


def test_records_hold_what_every_eval_ever_asks_for(audited, tmp_path):
    files = exported(audited, "eee", tmp_path, dataset="org/set")
    found, lines = record(files), lines_of(files)
    Draft7Validator(GOLDEN["aggregate"]).validate(found)
    for line in lines:
        Draft7Validator(GOLDEN["instance"]).validate(line)
        assert line["evaluation_id"] == found["evaluation_id"]
    told = found["detailed_evaluation_results"]
    (samples,) = [one for one in files if one.suffix == ".jsonl"]
    assert told["file_path"] == samples.relative_to(tmp_path).as_posix()
    assert told["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
    assert told["total_rows"] == len(lines)
    assert re.fullmatch(r"lensaudit/org/npo/\d+-[0-9a-f]{8}", found["evaluation_id"])


def test_a_log_of_another_tool_has_no_hash(tmp_path):
    log = {"forget_Q_A_Prob": {"agg_value": 0.4}}
    cases.write(tmp_path / "theirs" / "TOFU_EVAL.json", log)
    found = record(exported(tmp_path, "eee", tmp_path / "out"))
    assert re.fullmatch("local/theirs-[0-9a-f]{8}", found["model_info"]["id"])
    assert "weights" not in found["model_info"]["additional_details"]
    details = found["source_metadata"]["additional_details"]
    assert not [name for name in details if name.startswith("hash ")]
    assert "left out tofu.forget_Q_A_Prob" in details


def test_a_record_says_which_way_is_better_and_leaves_out_what_has_no_way(audited, tmp_path):
    found = record(exported(audited, "eee", tmp_path))
    lower = {
        one["evaluation_result_id"]: one["metric_config"]["lower_is_better"]
        for one in found["evaluation_results"]
    }
    assert lower["uds"] is False
    (uds,) = [
        one["score_details"]
        for one in found["evaluation_results"]
        if one["evaluation_result_id"] == "uds"
    ]
    summary = summary_of(audited)
    assert uds["score"] == summary["uds"]
    low, high = summary["ci95"]
    interval = {"lower": low, "upper": high, "confidence_level": 0.95}
    assert uds["uncertainty"] == {"confidence_interval": interval, "num_samples": 23}
    assert lower["bits"] is True
    assert lower["held.worst_case"] is True
    assert lower["tofu.forget_Q_A_Prob"] is True
    assert lower["tofu.retain_Q_A_Prob"] is False
    said = found["source_metadata"]["additional_details"]
    assert "tofu.privleak" not in lower
    assert said["left out tofu.privleak"] == "which way is better is not known"
    assert said["unscored tofu.mia_loss"] == "no retain reference"
    assert said["verdict"] == verdicts([audited]).models[0].code


def test_an_attack_is_best_at_chance_and_the_metric_made_of_its_areas_is_not(tmp_path):
    patched(tmp_path / "in" / "patch")
    cases.eval_run(tmp_path / "in" / "eval", "npo", mia_loss=0.5, s_mia_loss=0.9)
    (model,) = verdicts([tmp_path / "in"]).models
    found = model_of(model, locate([tmp_path / "in"])[0]).readings
    better = {one.name: one.lower_is_better for one in found}
    assert (better["tofu.mia_loss"], better["tofu.s_mia_loss"]) == (None, True)


def test_to_know_is_better_in_every_metric_that_reads_only_rows_to_keep(tmp_path):
    """Whatever its name: `collateral`, a depth of facts to keep, used to be better where high."""
    kept = {"retain", "ra", "wf", "retain_qa", "collateral"}

    def reads(name):
        of = metric_of(name)
        every = reads_in_all(of) | {*of.reads.get("muse", ())}
        return {"collateral" if one.field == "collateral" else one.of for one in every}

    every = {
        name: MetricResult(0.5, family=of.family, high_means=of.high_means)
        for name, of in all_metrics().items()
    }
    run = EvaluationResult("npo", tmp_path / "TOFU_EVAL.json", "tofu", every)
    found = {name: _of_suite(run, name, "").lower_is_better for name in every}
    of_kept = {n for n in every if reads(n) and reads(n) <= kept and found[n] is not None}
    assert {"collateral", "retain_Q_A_Prob", "wf_Truth_Ratio", "retain_knowmem_ROUGE"} <= of_kept
    for name in of_kept - {"selectivity"}:  # which reads the forget set's depth, too
        assert found[name] is (every[name].high_means == "forgot"), name
    assert found["uds"] is found["selectivity"] is False
    assert found["uds_validity"] is None  # it says whether a depth can be read


def test_a_metric_of_two_evaluations_has_two_names(audited, tmp_path):
    shutil.copytree(audited, tmp_path / "in")
    cases.eval_run(tmp_path / "in" / "again", "npo", retain_Q_A_Prob=0.7)
    named = {"tofu.retain_Q_A_Prob@eval": 0.9, "tofu.retain_Q_A_Prob@again": 0.7}
    found = record(exported(tmp_path / "in", "eee", tmp_path / "eee"))["evaluation_results"]
    values = {one["evaluation_result_id"]: one["score_details"]["score"] for one in found}
    assert named.items() <= values.items()
    assert len(found) == len(values)
    assert "tofu.forget_Q_A_Prob" in values  # which one alone holds
    (tests,) = exported(tmp_path / "in", "junit", tmp_path / "junit")
    properties = ElementTree.fromstring(tests.read_bytes()).iter("property")
    assert named.keys() <= {one.attrib["name"] for one in properties}


@pytest.mark.parametrize("to", ["eee", "junit", "model-card", "markdown", "hub-results"])
def test_every_run_of_a_model_is_said_with_its_hash(tmp_path, to):
    for at, n in (("f01", 24), ("f05", 12)):
        folder = patched(tmp_path / "in" / at / "npo" / "patch", n=n)
        given = json.loads((folder / "manifest.json").read_text())
        given["inputs"]["examples"]["hash"] = at
        cases.write(folder / "manifest.json", given)
        cases.seal(folder)
    checks = [
        json.loads((tmp_path / "in" / at / "npo/patch/manifest.json").read_text())["check"]
        for at in ("f01", "f05")
    ]
    files = exported(tmp_path / "in", to, tmp_path / "out")
    text = " ".join("\n".join(one.read_text() for one in files).split())
    assert all(check in text for check in checks)
    assert re.search(
        r"on other rows \(f0[15]/npo/patch\)\W+(value=.)?(undecided|partly|hidden)", text
    )


@pytest.mark.parametrize("sizes", [(24, 12), (12, 24)])
def test_the_hashes_beside_a_number_are_those_of_its_run(tmp_path, sizes):
    for at, n in zip(("f01", "f05"), sizes, strict=True):
        folder = patched(tmp_path / "in" / at, n=n)
        given = json.loads((folder / "manifest.json").read_text())
        given["inputs"]["examples"]["hash"] = at
        given["inputs"]["retain"]["weights"] = f"sha256:retain of {at}"
        cases.write(folder / "manifest.json", given)
        cases.seal(folder)
    (model,) = verdicts([tmp_path / "in"]).models
    found, at = model_of(model, locate([tmp_path / "in"])[0]), model.run.folder.name
    assert at == ("f01", "f05")[sizes.index(12)]  # either the first or the last folder
    assert (found.hashes["rows"], found.hashes["retain"]) == (at, f"sha256:retain of {at}")


def test_a_card_says_why_a_number_has_no_interval_and_what_an_attack_shows(tmp_path):
    cases.eval_run(tmp_path / "a", "npo", mia_loss=0.2, model_utility=0.6, forget_Q_A_Prob=0.5)
    log = tmp_path / "a" / "TOFU_EVAL.json"
    content = json.loads(log.read_text())
    content["mia_loss"] |= {"betrayal": {"says": "nothing is shown (p 0.11)"}}
    content["mia_loss"] |= {"interval_95": None, "interval_95_why": "3 authors: no interval"}
    content["model_utility"] = {"agg_value": 0.6}
    del content["forget_Q_A_Prob"]["interval_95"]
    cases.write(log, content)
    cases.seal(tmp_path / "a")
    (card,) = exported(tmp_path / "a", "model-card", tmp_path / "out")
    text = card.read_text().replace("\\", "")
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| ")]
    beside = {row[0].strip("| "): row[-1] for row in rows}
    assert "why: 3 authors: no interval" in beside["mia_loss"]
    assert "says: nothing is shown (p 0.11)" in beside["mia_loss"]
    assert "why: from other metrics: no interval" in beside["model_utility"]
    assert "why: the log gives no interval" in beside["forget_Q_A_Prob"]


def test_bits_of_another_row_with_this_number_are_not_of_this_fact(tmp_path):
    patched(tmp_path / "patch")
    asked(tmp_path / "know")
    made.seal(
        tmp_path / "know",
        "know",
        ["summary.json", "matrix.json", "facts.csv"],
        source={"weights": "sha256:npo"},
        rows={"0": "somebody else's", "1": rows_of(tmp_path)[1]["entity"]},
    )
    found = verdicts([tmp_path])
    (model,) = found.models
    facts = {one.idx: one for one in model_of(model, list(found.found.values())).facts}
    assert "bits" not in facts[0].scores
    assert facts[1].unscored["bits"] == "no namesake"


def test_a_line_is_a_fact_with_a_score_and_the_others_stand_with_their_reason(audited, tmp_path):
    files = exported(audited, "eee", tmp_path)
    uds = {row["idx"]: row["uds"] for row in rows_of(audited)}
    depths = [one for one in lines_of(files) if one["evaluation_result_id"] == "uds"]
    assert {int(one["sample_id"]): one["evaluation"]["score"] for one in depths} == {
        idx: value for idx, value in uds.items() if value is not None
    }
    assert all(one["evaluation"]["is_correct"] == (one["evaluation"]["score"] >= 0.25)
               for one in depths)  # fmt: skip
    out = {
        one["sample_id"]: one["evaluation"]
        for one in lines_of(files)
        if one["evaluation_result_id"] == "held.worst_case"
    }
    assert out == {
        "0": {"score": 0.0, "is_correct": True},
        "1": {"score": 1.0, "is_correct": False},
    }
    reasons = record(files)["detailed_evaluation_results"]["additional_details"]["unscored"]
    assert json.loads(reasons).keys() == {"1", "2", "12"}
    assert json.loads(reasons)["1"] == {"bits": "no namesake"}
    assert json.loads(reasons)["2"] == {"held.worst_case": "no span"}
    assert depths[0]["metadata"]["bits"] == "1.5"


def test_facts_of_other_rows_are_not_joined(tmp_path):
    patched(tmp_path / "patch")
    attacked(tmp_path / "worst", lambda idx: "somebody else")
    lines = lines_of(exported(tmp_path, "eee", tmp_path / "out"))
    assert {one["evaluation_result_id"] for one in lines} == {"uds"}


def test_a_worst_case_beside_bits_alone_keeps_its_facts(tmp_path):
    """Bits know an idx and no text; what the older worst case asked is not known either."""
    asked(tmp_path / "know")
    attacked(tmp_path / "worst", lambda idx: f"town {idx}")
    lines = lines_of(exported(tmp_path, "eee", tmp_path / "out"))
    assert [(one["sample_id"], one["input"], one["sample_hash"]) for one in lines] == [
        (str(idx), {"raw": "", "reference": [f"town {idx}"]}, None) for idx in (0, 1)
    ]
    assert lines[0]["metadata"]["bits"] == "1.5"


def test_the_hub_reads_its_entries_back(audited, tmp_path):
    (file,) = exported(audited, "hub-results", tmp_path)
    assert file == tmp_path / ".eval_results" / "lensaudit.yaml"
    entries = {one.task_id: one for one in parse_eval_result_entries(yaml.safe_load(file.open()))}
    assert {"uds", "bits", "held.worst_case"} <= entries.keys()
    uds = entries["uds"]
    assert (uds.dataset_id, uds.dataset_revision) == ("org/set", "abc")
    assert uds.value == summary_of(audited)["uds"]
    assert f"95 % interval {summary_of(audited)['ci95']}" in uds.notes


@pytest.mark.parametrize(
    ("to", "dataset"),
    [("hub-results", None), ("hub-results", "set"), ("hub-results", "a/b/c"), ("eee", "../x")],
)
def test_the_name_of_a_data_set_is_one_of_the_hub(audited, tmp_path, to, dataset):
    with pytest.raises(InputError, match="wanted ORG/NAME"):
        export([audited], ExportSettings(to=to, out=tmp_path / "o", dataset=dataset))
    assert not (tmp_path / "o").exists()


def test_a_test_case_holds_what_the_gate_says_and_every_number(audited, tmp_path):
    (file,) = exported(audited, "junit", tmp_path)
    suite = ElementTree.parse(file).getroot()
    (case,) = suite
    assert case.find("failure") is not None
    held = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert held["uds"].startswith(f"{summary_of(audited)['uds']!r}; 95 % interval")
    assert held["hash weights"] == "sha256:npo"


@pytest.mark.parametrize("to", WRITERS)
def test_a_name_that_cannot_be_written_does_no_harm(tmp_path, to):
    if to == "inspect":
        pytest.importorskip("inspect_ai")
    # an escape of terminals, what XML lacks, and a byte that is no UTF-8
    name = "m\x1b[31m\ufffe\udcff"
    cases.patch_run(tmp_path / name, f"./{name}", n=4)
    given = cases.manifest(f"./{name}", examples={"n": 4, "hash": "e" * 32})["inputs"]
    given["source"]["weights"] = "sha256:npo"
    made.seal(tmp_path / name, "patch", ["summary.json", "results.jsonl"], **given)
    for file in exported(tmp_path / name, to, tmp_path / "out"):
        text = file.read_text()
        assert "\x1b" not in text
        if to == "junit":
            (case,) = ElementTree.fromstring(text)
            assert case.get("name") == "m?[31m??"


def test_models_do_not_share_a_file(tmp_path):
    patched(tmp_path / "r" / "one")
    patched(tmp_path / "r" / "two", "grad")
    for to in WITHOUT_PACKAGES:
        files = exported(tmp_path / "r", to, tmp_path / to)
        assert len(files) == len(set(files))
        assert len(files) == {"eee": 4, "junit": 1, "markdown": 1}.get(to, 2)


def test_models_of_one_written_name_have_an_id_each(tmp_path):
    for name in ("mödel", "mädel"):
        cases.patch_run(tmp_path / "r" / name, f"./{name}", n=4)
        given = cases.manifest(f"./{name}", examples={"n": 4, "hash": "e" * 32})["inputs"]
        made.seal(tmp_path / "r" / name, "patch", ["summary.json", "results.jsonl"], **given)
    # two revisions of a repository have its name, and are two evaluations
    patched(tmp_path / "r" / "one")
    patched(tmp_path / "r" / "two", "grad")
    files = exported(tmp_path / "r", "eee", tmp_path / "out")
    found = [json.loads(one.read_text()) for one in files if one.suffix == ".json"]
    assert len({one["model_info"]["id"] for one in found}) == 3
    assert len({one["evaluation_id"] for one in found}) == len(found) == 4


def test_a_damaged_result_is_not_exported(tmp_path):
    place = patched(tmp_path / "patch")
    (place / "results.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"results\.jsonl"):
        exported(place, "eee", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inspect_reads_its_log_back(audited, tmp_path):
    from inspect_ai.log import read_eval_log  # takes seconds

    (file,) = exported(audited, "inspect", tmp_path, dataset="org/set")
    log = read_eval_log(str(file))
    assert (log.status, log.eval.model, log.eval.dataset.name) == ("success", "org/npo", "org/set")
    rows = {row["idx"]: row for row in rows_of(audited)}
    assert {one.id for one in log.samples} == set(rows)
    for one in log.samples:
        row = rows[one.id]
        assert (one.input, one.target, one.metadata["s1"]) == (
            *(row["question"], row["entity"]),
            row["s1"],
        )
        score = one.scores["uds"]
        if row["uds"] is None:
            assert math.isnan(score.value)
            assert score.explanation == row["unscored"]
        else:
            assert score.value == row["uds"]
    by_id = {one.id: one.scores for one in log.samples}
    assert by_id[0]["bits"].value == 1.5
    assert by_id[1]["held.worst_case"].value == 1.0
    means = {one.name: one.metrics["mean"] for one in log.results.scores}
    assert means["uds"].value == summary_of(audited)["uds"]
    assert means["uds"].metadata["ci95"] == summary_of(audited)["ci95"]
    assert log.eval.metadata["hash weights"] == "sha256:npo"
    assert log.results.metadata["tofu.mia_loss"] == "no retain reference"


def test_another_version_of_inspect_is_one_line(audited, tmp_path, monkeypatch):
    monkeypatch.setattr("lensaudit.doors.export.inspect_log.need", lambda *args, **more: None)
    monkeypatch.setattr("lensaudit.doors.export.inspect_log.metadata.version", lambda name: "9.9")
    monkeypatch.setitem(sys.modules, "inspect_ai", types.ModuleType("inspect_ai"))
    monkeypatch.setitem(sys.modules, "inspect_ai.log", types.ModuleType("inspect_ai.log"))
    with pytest.raises(InputError, match=r"inspect-ai 9.9: .*0\.3\.285 was tried"):
        exported(audited, "inspect", tmp_path)


@pytest.fixture(scope="module")
def some_published(tmp_path_factory):
    """Twelve models of the published table with both anchors, as that file has them."""
    place = tmp_path_factory.mktemp("published")
    content = json.loads((GOLDEN_FOLDER / "published" / "method_results.json").read_text())
    anchors = [row for row in content["models"] if row["model"] in ("full", "retain")]
    others = [row for row in content["models"] if row not in anchors][::13]
    cases.write(place / "method_results.json", content | {"models": [*anchors, *others]})
    return place / "method_results.json"


def test_the_run_folder_of_uds_holds_every_value_and_aggregate(some_published, tmp_path):
    before = read_values([some_published])
    export([some_published], ExportSettings(to="uds-runs", out=tmp_path))
    after = read_values([tmp_path / "runs"])
    assert set(after.models) >= {one for one in before.models if one not in ("full", "retain")}
    assert {"full_ep5", "full_ep10", "retain_ep5", "retain_ep10"} <= set(after.models)
    for model, row in before.rows.items():
        for name in [f"{model}_ep5", f"{model}_ep10"] if model in ("full", "retain") else [model]:
            # the layout has no place for the lens
            placed = {key: value for key, value in row.items() if key != "logit_lens"}
            assert {key: after.value(name, key) for key in placed} == placed
    for row in aggregated(before):
        if row.epoch:
            folder = tmp_path / "runs" / row.epoch
            of = {
                name: json.loads((folder / name / row.model / "summary.json").read_text())
                for name in ("memorization", "privacy", "utility", "uds")
            }
            assert of["memorization"]["avg_mem"] == pytest.approx(row.mem)
            assert of["privacy"]["privacy_score"] == pytest.approx(row.privacy_mia)
            assert of["uds"]["avg_uds"] == row.uds
            # what their scripts divide by lies beside it
            whole = json.loads((folder / "utility" / "full" / "summary.json").read_text())
            relative = min(1, of["utility"]["utility"] / (whole["utility"] + 1e-12))
            assert relative == pytest.approx(row.utility_rel)
            listed = json.loads((folder / "model_list.json").read_text())
            assert row.model in listed[f"{row.epoch}_models"]


def test_a_judgement_of_pools_lies_where_the_scripts_of_uds_look(tmp_path):
    pools = json.loads((GOLDEN_FOLDER / "published" / "pools.json").read_text())
    known = load_registry()
    names = {side: of_role(known, f"pool_{side}") for side in ("knows", "forgot")}
    rows = {
        model.name: {"metrics": {"uds": value}}
        for side, models in names.items()
        for model, value in zip(models, pools[side]["uds"], strict=True)
    }
    cases.write(tmp_path / "results.json", rows)
    sides = ["--pool-knows", "published", "--pool-forgot", "published", "--metric", "uds"]
    where = ["--results", str(tmp_path / "results.json"), "--out", str(tmp_path / "judged")]
    assert run(["meta", "faithfulness", *sides, *where]) == 0
    assert (
        run(["export", str(tmp_path / "judged"), "--to", "uds-runs", "-o", str(tmp_path / "out")])
        == 0
    )
    place = tmp_path / "out" / "runs" / "faithfulness"
    found = json.loads((place / "summary.json").read_text())["uds"]
    # as their file prints it
    assert found["auc_roc"] == pytest.approx(0.9711111111111111, abs=1e-6)
    assert found["raw_auc"] == pytest.approx(0.028888888888888888, abs=1e-6)
    assert (found["p_count"], found["n_count"]) == (30, 30)
    assert found["p_mean"] == pytest.approx(0.48565627518280874, abs=1e-6)
    assert found["n_mean"] == pytest.approx(0.8520439402035922, abs=1e-6)
    models = json.loads((place / "results.json").read_text())
    assert sum("/pos_" in one for one in models) == sum("/neg_" in one for one in models) == 30


def test_two_models_of_one_folder_are_refused(tmp_path):
    cases.write(tmp_path / "results.json", {"a/b": {"uds": 0.5}, "a-b": {"uds": 0.5}})
    with pytest.raises(InputError, match="another model is called a-b too"):
        export([tmp_path / "results.json"], ExportSettings(to="uds-runs", out=tmp_path / "out"))
