import json

import pytest
from click.testing import CliRunner

from experiments import uds_by_hand
from lensaudit.cli.main import run

HIDING = {"demo/masked_readout", "demo/masked_upper"}
PARTLY = {"demo/npo", "demo/simnpo", "demo/graddiff"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's summaries, by model."""
    folder = tmp_path_factory.mktemp("demo")
    out, activations = folder / "out", folder / "activations"
    assert run(["demo", "--out", str(out), "--activations", str(activations), "--json"]) == 0
    found = {path.parent.name: path for path in out.glob("*/summary.json")}
    return {name: json.loads(path.read_text()) for name, path in found.items()}, out, activations


def test_the_planted_truth_is_found(demo):
    summaries, _, _ = demo
    uds = {name.removeprefix("demo-"): s["uds"] for name, s in summaries.items()}
    assert uds["masked_readout"] == pytest.approx(0, abs=1e-6)
    assert uds["masked_upper"] < 0.15
    assert uds["never"] > 0.85
    assert uds["idknll"] < uds["npo"] < uds["graddiff"] < uds["never"]


def test_the_calibration_rows_read_zero_and_one(demo):
    for summary in demo[0].values():
        assert summary["calibration"]["full"] == pytest.approx(0, abs=1e-6)
        assert summary["calibration"]["retain"] == 1.0


def test_a_model_changed_only_above_a_layer_has_no_delta_below_it(demo):
    _, out, _ = demo
    rows = [
        json.loads(line)
        for line in (out / "demo-masked_upper" / "results.jsonl").read_text().splitlines()
    ]
    changed = {layer for row in rows for layer, delta in enumerate(row["s2"]) if abs(delta) > 1e-4}
    assert changed
    assert min(changed) >= 12
    assert any(abs(delta) > 1e-4 for row in rows for delta in row["s1"][:8])


def test_the_demo_says_in_words_what_it_found(demo, capsys):
    _, out, activations = demo
    capsys.readouterr()
    assert run(["demo", "--out", str(out), "--activations", str(activations)]) == 0
    text = capsys.readouterr().out

    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        rows[cells[0] if cells else ""] = cells[1:]
    for word, names in (("hidden", HIDING), ("partly erased", PARTLY), ("erased", {"demo/never"})):
        assert {name for name, cells in rows.items() if cells[:1] == [word]} == names
    # trained to refuse, it answers nothing, and says 86 % of the facts once an answer has begun
    assert rows["demo/idknll"][:3] == ["answers", "0.025", "86%"]
    assert max(len(line) for line in text.splitlines() if not line.startswith("written")) <= 96
    assert "lensaudit init" in text.splitlines()[-2]
    assert len(text.splitlines()) < 30


def test_a_row_derived_by_hand_equals_the_engine(demo):
    arguments = ["--source", "demo/npo", "--activations", str(demo[2])]
    done = CliRunner().invoke(uds_by_hand.main, arguments, catch_exceptions=False)
    by_hand, engine = (float(line.split("UDS ")[1]) for line in done.stdout.splitlines()[-2:])
    assert 0 < by_hand < 1
    assert by_hand == pytest.approx(engine, abs=1e-5)


@pytest.mark.slow
def test_the_playground_answers_a_question():
    import subprocess
    import sys
    from pathlib import Path

    from lensaudit.data.tofu import forget_set

    root = Path(__file__).resolve().parents[2]
    example = forget_set("demo")[0]
    done = subprocess.run(
        [
            sys.executable,
            str(root / "experiments" / "hook_playground.py"),
            "--question",
            example.question,
            "--prefix",
            example.prefix,
            "--max-new-tokens",
            "8",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    said = next(line for line in lines if line.strip().startswith("full:"))
    assert example.entity.split()[0] in said
    assert "without the random direction" in done.stdout
    assert sum(line.strip()[:2].rstrip(":").isdigit() for line in lines) == 16
