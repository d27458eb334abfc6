"""Pictures and tables for a paper, from what lies on disk."""

import json
import re
import shutil

import pytest
from support.report_cases import (
    attacked,
    change,
    em_run,
    eval_run,
    manifest,
    patch_run,
    seal,
    write,
)

from lensaudit.cli.main import run
from lensaudit.doors import figures, frames
from lensaudit.doors.figures import depth_table, latex, metrics_table, write_figures
from lensaudit.doors.gate import Policy, gate
from lensaudit.doors.gate_formats import as_text
from lensaudit.errors import InputError
from lensaudit.report.assemble import assemble
from lensaudit.report.evidence import missing_of
from lensaudit.report.shelf import told_names
from lensaudit.results.kinds.eval import read_eval
from lensaudit.results.kinds.patch import read_patch
from lensaudit.screen.depth import sentences
from lensaudit.verdict.collect import verdicts


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    place = tmp_path_factory.mktemp("figures")
    for name in ("npo", "idknll"):
        patch_run(place / f"demo-{name}", f"demo/{name}", n=6, n_layers=2)
    return place


def test_every_run_is_drawn_twice_and_all_together_once(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    page, folder = tmp_path / "a.html", tmp_path / "figures"
    assert run(["report", str(results), "-o", str(page), "--figures", str(folder)]) == 0
    names = {"depth", "demo-npo-layers", "demo-npo-examples"}
    names |= {"demo-idknll-layers", "demo-idknll-examples"}
    wanted = {f"{name}.{form}" for name in names for form in ("pdf", "png")} | {"depth.tex"}
    assert {one.name for one in folder.iterdir()} == wanted
    assert page.exists()
    first = {one.name: one.read_bytes() for one in folder.glob("*.pdf")}
    assert all(content.startswith(b"%PDF") for content in first.values())
    write_figures([results], tmp_path / "again")
    assert {one.name: one.read_bytes() for one in (tmp_path / "again").glob("*.pdf")} == first


def test_a_file_of_somebody_else_is_not_written_over(results, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    (tmp_path / "depth.pdf").write_bytes(b"%PDF of a colleague")
    one_run = [results / "demo-npo"]
    with pytest.raises(InputError, match=r"depth\.pdf: exists, and this command did not write it"):
        write_figures(one_run, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["depth.pdf"]
    written = write_figures(one_run, tmp_path, force=True)
    assert {one.suffix for one in written} == {".pdf", ".png", ".tex"}


def test_the_table_holds_the_scores_and_nothing_latex_would_read(results):
    runs = [read_patch(path, {}) for path in sorted(results.glob("*/summary.json"))]
    text = depth_table(runs)
    for one in runs:
        assert f"{one.estimate.value:.3f}" in text
    assert latex(["A"], [["50% of a_b & c\\d"]], "l").splitlines()[5] == (
        r"50\% of a\_b \& c\textbackslash{}d \\"
    )
    # after the end of a row a bracket would be its height, and a star forbid a page break
    row, star = latex(["A", "B"], [["[a]", "[0, 1]"], ["*<b>|", ""]], "ll").splitlines()[5:7]
    assert row.startswith("{[}a] & [0, 1] ")
    assert star.startswith(r"{*}\textless{}b\textgreater{}\textbar{} ")


def test_runs_in_one_another_are_drawn_each_by_itself_and_called_by_their_folders(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(figures, "DPI", 20)
    for folder, held in (("out", 0.2), ("out/again", 0.8)):
        patch_run(tmp_path / folder, "demo/npo", n=6, n_layers=2, held=held)
    written = write_figures([tmp_path / "out"], tmp_path / "figures")
    pictures = [one for one in written if one.name.endswith("-layers.png")]
    assert len({one.read_bytes() for one in pictures}) == 2
    table = (tmp_path / "figures" / "depth.tex").read_text()
    for name in ("out", "again"):
        assert table.count(rf"demo/npo \textperiodcentered{{}} {name} &") == 1
    for name in ("a", "b"):
        eval_run(tmp_path / name, "demo/npo", forget_Q_A_Prob=0.5)
    evals = [read_eval(tmp_path / name / "TOFU_EVAL.json") for name in ("a", "b")]
    head = r"Metric & demo/npo \textperiodcentered{} a & demo/npo \textperiodcentered{} b"
    text = metrics_table(evals)
    assert head in text
    assert "0.500 [0.400, 0.600] & 0.500 [0.400, 0.600]" in text


def test_a_table_says_why_a_number_has_no_interval(tmp_path):
    patch_run(tmp_path / "a", "npo", n=6, n_layers=2)
    change(tmp_path / "a", ci95=None, ci95_why="2 authors: no interval")
    assert "2 authors: no interval & 5/6" in depth_table([read_patch(tmp_path / "a/summary.json")])
    eval_run(tmp_path / "b", "x\nnpo", mia_loss=None, forget_Q_A_Prob=0.5)
    table = metrics_table([read_eval(tmp_path / "b" / "TOFU_EVAL.json")])
    assert table.splitlines()[-1] == "% mia_loss of x npo: no retain reference"


def test_two_checkpoints_of_one_name_are_told_apart_whichever_measured_what(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(figures, "DPI", 20)
    patch_run(tmp_path / "results" / "new", "models/work", n=6, n_layers=2)
    eval_run(tmp_path / "results" / "old", "models/work", weights="sha256:old", forget_Q_A_Prob=0.5)
    write_figures([tmp_path / "results"], tmp_path / "figures")
    named = {one.label for one in assemble([tmp_path / "results"]).models.values()}
    assert named == {"models/work · new", "models/work · old"}  # as the page calls them
    for table, part in (("depth", "new"), ("metrics", "old")):
        text = (tmp_path / "figures" / f"{table}.tex").read_text()
        assert rf"models/work \textperiodcentered{{}} {part} " in text


def test_a_run_without_a_retain_model_is_drawn_too(results, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(figures, "DPI", 20)
    folder = tmp_path / "alone"
    shutil.copytree(results / "demo-npo", folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"score": "counterfactual", "counterfactual": summary.pop("uds")}
    write(folder / "summary.json", summary | {"kind": "counterfactual", "scale": {}})
    rows = (folder / "results.jsonl").read_text().replace('"uds"', '"counterfactual"')
    (folder / "results.jsonl").write_text(rows)
    seal(folder, kind="counterfactual", inputs=manifest("demo/npo")["inputs"])
    names = {one.name for one in write_figures([folder], tmp_path / "figures")}
    assert {"depth-counterfactual.png", "demo-npo-layers.png", "depth.tex"} <= names
    (row,) = [one for one in assemble([folder]).rows if not one.is_anchor]
    assert row.unread == "no model that never saw the facts was beside it (--retain)"
    told = {column.id: column.command for column, _ in missing_of(assemble([folder]).rows)}
    assert told["aligned"] == told["weakest"] == "patch --retain MODEL"


def test_a_model_has_one_name_on_the_page_in_the_verdict_and_in_tables(
    tmp_path, monkeypatch, capsys
):
    """Two of one name, evaluated in other folders than patched; and one of two names."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(figures, "DPI", 20)
    place, small = tmp_path / "results", {"n": 6, "n_layers": 2}
    for weights in ("old", "new"):
        patch_run(place / f"patch-{weights}", "./npo", **small)
        eval_run(place / f"eval-{weights}", "./npo", weights=f"sha256:{weights}", es=0.5)
    for name in ("beta", "alpha"):
        patch_run(place / f"{weights}-{name}", name, n_layers=2, n=6 + len(name))
        eval_run(place / f"a-{name}", name, weights="sha256:two", es=0.5)
    for folder in place.glob("*-*"):
        kind, name = folder.name.split("-")
        if kind in ("patch", "new"):
            inputs = json.loads((folder / "manifest.json").read_text())["inputs"]
            inputs["source"]["weights"] = f"sha256:{'two' if kind == 'new' else name}"
            seal(folder, inputs=inputs)
    names = {"npo · patch-old", "npo · patch-new", "alpha"}
    document = assemble([place])
    assert set(document.words()) == names
    found = verdicts([place])
    assert set(told_names(found.called).values()) == names
    assert {one["weights"] for one in found.document()} == {
        f"sha256:{w}" for w in ("old", "new", "two")
    }
    write_figures([place], tmp_path / "figures")
    for table in ("depth", "metrics"):
        text = (tmp_path / "figures" / f"{table}.tex").read_text()
        assert text.count(r"npo \textperiodcentered{} patch-old") == 1
        assert not re.search("^beta|& beta", text, re.M)
    (tmp_path / "gate.toml").write_text("")
    gate = ["verdict", str(place), "--gate", str(tmp_path / "gate.toml"), "--format"]
    capsys.readouterr()
    for form in ("junit", "github"):
        run([*gate, form])
        said = capsys.readouterr().out
        assert all(name in said for name in names)
    run([*gate, "json"])
    models = json.loads(capsys.readouterr().out)["models"]
    assert len({one["weights"] for one in models}) == 3


def know_run(folder, source, weights):
    """Who has what of one model, alone."""
    attacked(folder.parent / "made", source, {})
    shutil.move(folder.parent / "made" / "know", folder)
    shutil.rmtree(folder.parent / "made")
    inputs = manifest(source)["inputs"] | {"source": {"name": source, "weights": weights}}
    write(folder / "manifest.json", manifest(source) | {"command": "know", "inputs": inputs})
    seal(folder)


@pytest.mark.parametrize("first", ["em", "know"])
def test_a_name_hangs_on_no_order_of_folders_and_is_the_same_wherever_it_stands(tmp_path, first):
    """A folder by exact match, which no verdict is made of; and the same weights by their name."""
    name, folders = "runs/aaa", {"em": tmp_path / "b-em", "know": tmp_path / "b-know"}
    folders[first] = tmp_path / f"a-{first}"
    em_run(folders["em"], f"./{name}")
    know_run(folders["know"], "demo/npo", f"sha256:./{name}")
    found = verdicts([tmp_path])
    (model,) = found.models
    assert (model.source, model.verdict.sentence.startswith(f"./{name}: ")) == (f"./{name}", True)
    (shown,) = assemble([tmp_path]).models.values()
    assert (shown.name, shown.label) == (f"./{name}", "aaa")
    assert as_text(gate(found, Policy())).splitlines()[0].split()[1] == "aaa:"
    assert next(sentences(found)).startswith("aaa: ")
    assert set(frames.summaries(tmp_path)["source"]) == {f"./{name}"}
    write_figures([tmp_path], tmp_path / "figures")
    assert "\naaa & EM" in (tmp_path / "figures" / "depth.tex").read_text()


def test_a_model_of_the_same_name_that_was_only_attacked_has_its_own_row(tmp_path):
    patch_run(tmp_path / "patched", "npo", n=6, n_layers=2)
    know_run(tmp_path / "asked", "npo", "sha256:other")
    labels = {"npo · patched", "npo · asked"}
    assert {one.label for one in assemble([tmp_path]).models.values()} == labels
    assert set(told_names(verdicts([tmp_path]).called).values()) == labels
