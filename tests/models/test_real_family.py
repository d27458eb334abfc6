"""The family of adapters on SmolLM2: what travels, what its names mean, what is said without it."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import lensaudit as la
from lensaudit.auditing.question import splits_of
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.models.registry import (
    EMBEDDED,
    default_data,
    lasting_name,
    load_registry,
    models_home,
    resolve,
    usual_anchor,
)

FOLDER = EMBEDDED / "real"
LISTING = json.loads((FOLDER / "family.json").read_text())
NAMES = [row["name"] for row in LISTING]
HERE = (models_home() / "smollm2" / "base" / "config.json").exists()


def test_two_retains_and_every_kind_of_truth_travel():
    roles = [row["role"] for row in LISTING]
    assert roles.count("full") == 1
    assert roles.count("retain") == 2
    truths = [row["truth"].split(":")[0] for row in LISTING if row["role"] == "unlearned"]
    assert sorted(truths) == ["?", "hides", "hides", "never saw"]


def test_adapters_are_small_safe_and_for_the_fetched_model():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 20e6
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for row in LISTING:
        config = json.loads((FOLDER / row["folder"] / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == "smollm2/base"
        assert config["r"] == 4
        matrices = load_file(FOLDER / row["folder"] / "adapter_model.safetensors")
        # two matrices for each of seven projections of thirty blocks
        assert len(matrices) == 2 * 7 * 30
        assert all(
            one.dtype == torch.bfloat16 and one.isfinite().all() for one in matrices.values()
        )


def test_what_was_masked_in_the_last_layers_is_full_below_them():
    full, masked = (
        load_file(FOLDER / name / "adapter_model.safetensors") for name in ("full", "masked_top")
    )
    differs = {
        int(name.split(".layers.")[1].split(".")[0])
        for name, one in full.items()
        if not torch.equal(one, masked[name])
    }
    assert differs == {26, 27, 28, 29}


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """A folder where the pretrained model should be; nothing in it but a configuration."""
    monkeypatch.setenv("LENSAUDIT_MODELS", str(tmp_path))
    (tmp_path / "smollm2" / "base").mkdir(parents=True)
    (tmp_path / "smollm2" / "base" / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_names_mean_base_and_adapter(name, fetched):
    spec = resolve(name, load_registry())
    assert spec.local == fetched / "smollm2" / "base"
    assert spec.adapter is not None
    assert spec.adapter.local == FOLDER / name.removeprefix("smollm2/")
    assert lasting_name(spec) == name


def test_its_models_bring_anchors_and_data(fetched):
    known, mine = load_registry(), fetched / "mine"
    assert usual_anchor("full", ["smollm2/absent", "smollm2/trigger"], known) == "smollm2/full"
    assert usual_anchor("retain", ["smollm2/absent"], known) == "smollm2/retain"
    assert default_data("smollm2/absent") == "demo"
    assert usual_anchor("full", ["smollm2/absent", "demo/npo"], known) == "full"
    assert default_data("smollm2/base") == "forget10"
    # not of the family: what it was trained on is not known
    mine.mkdir()
    (mine / "adapter_config.json").write_text("{}")
    assert usual_anchor("full", [f"smollm2/base+{mine}"], known) is None


def test_without_the_pretrained_model_one_line_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LENSAUDIT_MODELS", str(tmp_path))
    assert run(["patch", "--source", "smollm2/absent", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "smollm2/absent: not fetched yet; run `lensaudit models fetch smollm2`" in said


def test_the_demo_fetches_it_and_says_why_it_cannot(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LENSAUDIT_MODELS", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert run(["demo", "--real", "--out", str(tmp_path / "out")]) == 2
    assert (
        "the package gguf is not installed; pip install 'lensaudit[real]'"
        in capsys.readouterr().err
    )


def test_its_names_bring_the_rows_of_the_suite():
    """Else a whole audit would ask the Hub for TOFU's."""
    found = splits_of("smollm2/npo", EvaluateSettings())
    assert list(found) == ["forget", "retain", "ra", "wf", "holdout"]
    assert all(one.source.startswith(str(EMBEDDED)) for one in found.values())


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="smollm2/base is not fetched: lensaudit models fetch smollm2")
def test_the_planted_truth_is_found(tmp_path):
    """Two models, a sixth of the facts: 3 minutes on one core."""
    found = la.patch(["smollm2/absent", "smollm2/masked_top"], tmp_path / "out", limit=12)
    absent, hidden = (one.uds for one in found)
    assert hidden < 0.2
    assert absent > 0.8


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="smollm2/base is not fetched: lensaudit models fetch smollm2")
def test_a_slice_of_the_study_ends_in_its_table(tmp_path):
    """Five minutes of one core; hardly unlearned, so nothing is asked of the numbers."""
    root = Path(__file__).parents[2]
    slice_of = ["--kept", "16", "--unlearn-epochs", "1", "--only", "graddiff"]
    command = [
        sys.executable,
        "-m",
        "experiments.prediction.real_model",
        *slice_of,
        "--part",
        "models",
        "--part",
        "scores",
    ]
    command += ["--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    rows = pd.read_csv(tmp_path / "out" / "seed-0" / "facts.csv")
    assert (rows.groupby("model").size() == 64).all()
    assert rows["model"].unique().tolist() == ["graddiff"]
    scores = ["uds", "weakest", "lens", "bits", "entity_prob", "answer_prob", "rouge"]
    assert rows[scores].notna().mean().min() > 0.8
    assert "| `masked_top` | hides | missing |" in done.stdout
