"""Who has what, as a whole audit, a unit of a sweep and the gym ask it."""

import json
import shutil

import pytest
from support import EMBEDDED

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.verdict.collect import verdicts

LIMIT = 8
"""One relation of the embedded set: where eight authors were born."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("association")
    more = {"suite": "none", "limit": LIMIT, "align": "none"}
    found = la.audit("demo/npo", folder / "out", activations=folder / "kept", **more)
    return found, folder


def test_an_audit_asks_what_know_asks(audited, tmp_path):
    found, folder = audited
    by_itself = la.know(
        "demo/npo",
        tmp_path / "know",
        retain=("demo/retain",),
        readers=("outputs", "lens"),
        placebos=0,
        limit=LIMIT,
        activations=tmp_path / "kept",
    )
    assert found.association.n == LIMIT
    assert found.association == by_itself.record
    (model,) = verdicts([folder / "out"]).models
    assert any("assignment test" in line for line in model.verdict.because)


def test_several_models_are_asked_each_into_a_folder_of_its_own(audited, tmp_path):
    _, folder = audited
    asks = {"readers": ("outputs",), "placebos": 0, "limit": LIMIT, "activations": folder / "kept"}
    names = ["demo/npo", "demo/never"]
    found = la.know(names, tmp_path / "both", **asks)
    assert [one.folder for one in found] == [
        tmp_path / "both" / one.replace("/", "-") for one in names
    ]
    alone = la.know(names[1], tmp_path / "alone", **asks)
    assert alone.folder == tmp_path / "alone"
    assert alone.summary == found[1].summary != found[0].summary


def test_a_finished_audit_is_read_with_it_and_its_page_shows_it(audited, capsys):
    found, folder = audited
    asked = ["--source", "demo/npo", "--suite", "none", "--limit", str(LIMIT), "--align", "none"]
    place = ["-o", str(folder / "out"), "--activations", str(folder / "kept")]
    assert run(["audit", *asked, *place]) == 0
    assert found.association.headline in capsys.readouterr().out.replace("\n", " ")
    assert run(["audit", *asked, *place, "--json"]) == 0  # of the files alone
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["association"]["p"] == found.association.p
    page = folder / "out" / "audit.html"
    assert "who has what" in page.read_text().lower()
    page.unlink()
    assert run(["audit", *asked, *place]) == 0  # a page that is gone is written again
    assert page.exists()


def test_where_nobody_can_be_asked_the_reason_is_told(tmp_path, capsys):
    asked = ["audit", "--source", "demo/npo", "--suite", "none", "--limit", "3", "--dry-run"]
    assert run([*asked, "-o", str(tmp_path / "out")]) == 0
    assert "who has what is not asked" in capsys.readouterr().out
    assert run([*asked, "--association", "none", "-o", str(tmp_path / "out")]) == 0
    assert "know" not in capsys.readouterr().out


@pytest.fixture
def own(tmp_path):
    """Two folders and rows of somebody who has no model that never saw the facts."""
    for name in ("full", "masked_readout", "never"):
        shutil.copytree(EMBEDDED / name, tmp_path / name)
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    (tmp_path / "rows.json").write_text(json.dumps([row for row in rows if row["idx"] % 8 < 1]))
    return tmp_path


def test_own_folders_need_no_retain_model_and_never_open_the_hubs(own, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("opened"))
    place = {"activations": own / "kept", "out": own / "out", "data": own / "rows.json"}
    found = la.audit(own / "masked_readout", full=own / "full", suite="none", **place)
    assert (found.uds, found.patch.score, found.association.n) == (None, "counterfactual", LIMIT)
    assert found.verdict.code == "undecided"
    # of eight people no tilt by names is borne, and nobody is there who was taught the same rows
    told = next(line for line in found.verdict.because if "assignment test" in line)
    assert "no tilt by names is borne, and no never-trained model" in told
    assert found.association.finds is False
    clean = la.audit(own / "never", full=own / "full", suite="none", **place | {"out": own / "o"})
    assert clean.verdict.code == "undecided"
    assert "a high number means nothing on this scale" in clean.verdict.sentence
    assert found.association.p < 0.01 < 0.5 < clean.association.p
    assert la.audit(own / "masked_readout", full=own / "full", suite="none", **place).verdict == (
        found.verdict
    )  # of its files


@pytest.mark.parametrize("command", ["audit", "patch"])
def test_own_folders_have_no_model_before_unlearning_unless_one_is_named(own, capsys, command):
    asked = [command, "--source", str(own / "never"), "--data", str(own / "rows.json")]
    assert run([*asked, "-o", str(own / "x")]) == 2
    said = capsys.readouterr().err
    assert "name the model before unlearning with --full, or as `full` in lensaudit.toml" in said
    assert len(said.splitlines()) == 1


def test_where_a_retain_model_is_needed_own_folders_must_name_one(own, capsys):
    asked = ["sweep", "plan", str(own / "masked_readout"), "--full", str(own / "full")]
    assert run([*asked, "--data", str(own), "-o", str(own / "sweep")]) == 2
    said = capsys.readouterr().err
    assert "--retain: a sweep compares every model with one that never saw the facts" in said
