import re
from importlib import metadata

import pytest
from support import checkpoint_of

from lensaudit import checkup
from lensaudit.cli.main import run


@pytest.fixture
def healthy(tmp_path):
    return ["doctor", "--activations", str(tmp_path / "activations")]


def test_the_bridge_is_compared_with_hugging_face_and_a_gap_fails(healthy, capsys, monkeypatch):
    assert run(healthy) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if "bridge on" in one)
    gaps = [
        float(gap)
        for gap in re.findall(r"by ([0-9.e+-]+) of|residuals by ([0-9.e+-]+)", line)
        for gap in gap
        if gap
    ]
    assert len(gaps) == 2
    assert max(gaps) < 1e-5
    for gaps in ([0.5, 0.0], [0.0, 0.5], [float("nan"), 0.0]):
        monkeypatch.setattr(checkup, "parity", lambda *a, gaps=gaps, **k: gaps)
        assert run(healthy) == 4
        said = capsys.readouterr()
        logits = f"logits differ from Hugging Face's by {gaps[0]:.1e}"
        assert f"FAIL  bridge on demo/full: {logits}" in said.out
        assert "1 of" in said.err


def test_parity_sees_a_model_that_differs(monkeypatch):
    checkpoint = checkpoint_of("demo/full")
    honest = checkup.logits_of
    monkeypatch.setattr(checkup, "logits_of", lambda *a: honest(*a) * 1.01)
    logits, resid = checkup.parity(checkpoint)
    assert logits == pytest.approx(0.01, rel=1e-3)
    assert resid < 1e-5


def test_an_old_and_an_absent_package_fail_with_what_to_install(monkeypatch):
    texts = ["numpy>=99", "no-such-package>=1", "scipy>=1", "unwanted; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda name: texts)
    found = {check.name: check for check in checkup.versions()}
    assert list(found) == ["numpy", "no-such-package", "scipy"]
    assert "wanted >=99; pip install 'numpy>=99'" in found["numpy"].found
    assert [check.state for check in found.values()] == ["fail", "fail", "ok"]


def test_little_disk_is_a_note_and_a_refused_folder_a_failure(tmp_path, monkeypatch):
    assert checkup.disk("x", tmp_path / "a" / "b").state in ("ok", "note")
    monkeypatch.setattr(checkup, "LOW_DISK_BYTES", 1 << 62)
    assert checkup.disk("x", tmp_path).state == "note"
    monkeypatch.setattr(checkup.os, "access", lambda *a: False)
    assert checkup.disk("x", tmp_path).state == "fail"


def test_a_damaged_cache_fails_and_an_unfinished_one_is_noted(tmp_path):
    from lensaudit.activations.naming import cache_folders

    assert (
        run(["cache", "--model", "demo/npo", "--limit", "2", "--activations", str(tmp_path)]) == 0
    )
    assert checkup.caches(tmp_path).state == "ok"
    (folder,) = cache_folders(tmp_path)
    (folder / "spec.json").write_text("{")
    found = checkup.caches(tmp_path)
    assert found.state == "fail"
    assert "lensaudit activations repair" in found.found


def test_an_absent_device_fails_and_nothing_is_loaded(healthy, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert run([*healthy, "--device", "cuda:7"]) == 4
    said = capsys.readouterr().out
    assert "FAIL  device: --device cuda:7: wanted auto" in said
    assert "bridge on" not in said
