"""Pictures and tables for a paper, from what lies on disk."""

import pytest
from support.report_cases import patch_run

from lensaudit.cli.main import run
from lensaudit.doors.figures import depth_table, latex, write_figures
from lensaudit.errors import InputError
from lensaudit.results.kinds.patch import read_patch


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
