"""The study on a real model, end to end on the smallest scale: another base, few rows."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import real_model

    monkeypatch.setattr(real_model, "BASE", "demo/never")
    monkeypatch.setattr(real_model, "LAST", r"layers\.15\.|model\.norm")
    yield real_model
    sys.modules.pop("real_model", None)


@pytest.mark.slow
def test_the_study_makes_audits_and_goes_on_where_it_was(study, tmp_path):
    given = ["--facts", "16", "--kept", "48", "--epochs", "20", "--lr", "2e-3", "--only", "npo"]
    given += ["--out", str(tmp_path / "study")]
    done = CliRunner().invoke(study.main, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    table = {row["model"]: row for row in json.loads((tmp_path / "study/table.json").read_text())}
    assert set(table) == {"retain_2", "npo"}
    assert {row["n"] for row in table.values()} == {16}
    assert table["npo"]["uds"] < 0.5 < table["retain_2"]["uds"]
    assert table["retain_2"]["aligned"]["class"] == "procrustes"
    made = (tmp_path / "study" / "full" / "model.safetensors").stat().st_mtime_ns
    again = CliRunner().invoke(study.main, given, catch_exceptions=False)
    assert ": made" not in again.output.replace(" made)", "")
    assert "npo (?): was there" in again.output
    assert (tmp_path / "study" / "full" / "model.safetensors").stat().st_mtime_ns == made
