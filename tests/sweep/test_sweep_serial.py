"""A sweep of the embedded family, one unit after another, to its table."""

import json
import re
import shutil

import pytest
from support.agreement import agreed
from support.sweep_helpers import METRICS, command, rows_of, values_of
from support.tolerance import NATS

from lensaudit.meta.reading import read_values
from lensaudit.sweep.attempts import finished
from lensaudit.sweep.plan import read_plan
from lensaudit.verdict.decide import WORDS


def result(root, name):
    sweep = read_plan(root)
    unit = next(unit for unit in sweep.units if unit.label == name)
    return finished(sweep, unit)


def test_a_unit_holds_what_the_commands_give(swept, tmp_path):
    retain_log = swept / "units" / result(swept, "demo/retain")["unit"] / "eval"
    few = f"--limit 2 --align none --activations {tmp_path / 'own'}"
    metrics = " ".join(f"--metric {name}" for name in METRICS.split(","))
    given = f"--model demo/npo --retain demo/retain --retain-log {retain_log} {metrics} {few}"
    command(f"eval {given} --out {tmp_path / 'eval'}")
    alone = json.loads((tmp_path / "eval" / "TOFU_SUMMARY.json").read_text())
    assert values_of(swept, "demo/npo") == pytest.approx(alone, abs=1e-5)
    command(f"patch --source demo/npo {few} --out {tmp_path / 'patch'}")
    folder = swept / "units" / result(swept, "demo/npo")["unit"] / "patch"
    for name in ("results.jsonl", "summary.json"):
        ours, theirs = ((one / name).read_text() for one in (folder, tmp_path / "patch"))
        assert numbers(ours) == pytest.approx(numbers(theirs), abs=1e-5)


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def test_calibration_reads_0_and_1(swept):
    assert values_of(swept, "demo/full")["uds"] == pytest.approx(0, abs=NATS)
    assert values_of(swept, "demo/retain")["uds"] == 1
    assert values_of(swept, "demo/retain")["privleak"] == 0


def test_page_terminal_and_gate_agree_and_count_no_rounded_retain_model(swept, tmp_path):
    (tmp_path / "sweep").mkdir()
    shutil.copytree(swept / "units", tmp_path / "sweep" / "units")
    shutil.copy(swept / "plan.json", tmp_path / "sweep")
    assert command("sweep", "collect", tmp_path / "sweep") == 0
    results = tmp_path / "sweep" / "results"
    words = agreed(tmp_path, results)
    assert words.keys() == {"demo/npo · base", "demo/npo · nf4"}
    # the collection, and what is exported of it, have the same codes
    told = json.loads((results / "verdicts.json").read_text())
    codes = {f"demo/npo · {one['variant']}": one["code"] for one in told}
    assert {label: WORDS[code][0] for label, code in codes.items()} == words
    assert command("export", results, "--to", "eee", "--out", tmp_path / "eee") == 0
    files = [path.read_text() for path in (tmp_path / "eee").rglob("*.json")]
    exported = [code for text in files for code in re.findall(r'"verdict": "(\w+)"', text)]
    assert sorted(set(exported)) == sorted(set(codes.values()))
    assert len(files) == len(codes)


def test_running_again_does_nothing(swept, capsys):
    before = sorted((swept / "attempts").rglob("*"))
    sizes = [path.stat().st_size for path in before]
    assert command("sweep", "run", swept) == 0
    assert "begins" not in capsys.readouterr().err
    assert [path.stat().st_size for path in before] == sizes


def test_only_results_are_left_of_finished_units(swept):
    assert list((swept / "work").iterdir()) == []
    kept = swept.rglob("*.safetensors")
    assert [path for path in kept if path.parent != swept / "activations" / "maps"] == []
    for unit in (swept / "units").iterdir():
        assert sorted(path.name for path in unit.iterdir()) == ["eval", "patch", "result.json"]
        assert not (unit / "eval" / "passes").exists()


@pytest.fixture(scope="module")
def collected(swept):
    """Where the table and the folders of the sweep are."""
    assert command("sweep", "collect", swept) == 0
    return swept / "results"


def test_the_parquet_table_is_the_same(collected):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = json.loads((collected / "table.json").read_text())
    frame = pandas.read_parquet(collected / "table.parquet")
    assert frame["value"].tolist() == [row["value"] for row in table]
    assert frame["metric"].tolist() == [row["metric"] for row in table]


def test_meta_and_report_read_the_collected_folder(swept, collected, tmp_path, capsys):
    values = read_values([collected / "base"])
    assert set(values.rows) == {"demo/retain", "demo/full", "demo/npo"}
    wanted = values_of(swept, "demo/npo")["uds"]
    assert values.rows["demo/npo"]["uds"] == wanted
    page = tmp_path / "page.html"
    for folder in (collected / "base", collected):
        assert command("report", folder, "-o", page) == 0
        assert "demo/npo" in page.read_text()
    assert "unfinished" not in capsys.readouterr().err


def test_a_changed_result_is_not_collected(swept, tmp_path, capsys):
    root = tmp_path / "copy"
    shutil.copytree(swept, root)
    log = root / "units" / result(root, "demo/npo")["unit"] / "eval" / "TOFU_SUMMARY.json"
    log.write_text(log.read_text().replace("0.", "1.", 1))
    assert command("sweep", "collect", root) == 4
    assert "TOFU_SUMMARY.json: was changed after the run wrote it" in capsys.readouterr().err
    assert command("sweep", "retry", root, "demo/npo", "--redo") == 0
    assert result(root, "demo/npo") is None
    assert result(root, "demo/retain") is not None


def test_results_of_another_plan_are_named_and_left_alone(swept, tmp_path, capsys):
    root = tmp_path / "copy"
    shutil.copytree(swept, root)
    (root / "units" / ("0" * 32)).mkdir()
    assert command("sweep", "collect", root) == 0
    assert "1 results of another plan are not collected" in capsys.readouterr().err
    command("sweep", "gc", root)
    assert (root / "units" / ("0" * 32)).exists()
    command("sweep", "gc", root, "--others")
    assert not (root / "units" / ("0" * 32)).exists()


def test_the_log_says_who_did_a_unit(swept):
    sweep = read_plan(swept)
    start, end = rows_of(sweep, sweep.units[0])
    assert (start["event"], end["event"], end["outcome"]) == ("start", "end", "done")
    assert end["peak_bytes"] > 1 << 20
    assert end["seconds"] > 0


def test_an_attacked_anchor_is_measured_against_the_unattacked_one(swept):
    base, after = result(swept, "demo/retain"), result(swept, "demo/retain (nf4)")
    assert values_of(swept, "demo/retain")["uds"] == 1
    assert 0.5 < values_of(swept, "demo/retain (nf4)")["uds"] < 1
    folder = swept / "units" / after["unit"]
    manifest = json.loads((folder / "eval" / "manifest.json").read_text())
    assert manifest["inputs"]["model"] == {"name": "demo/retain", "weights": after["weights"]}
    assert manifest["inputs"]["patched_retain"]["weights"] == base["weights"]
