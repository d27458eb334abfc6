import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.settings import PatchSettings
from lensaudit.settings import named

FEW = {"limit": 5, "layers": "14,15", "align": "none"}
"""One question of each of five authors: the fewest that have an interval."""


@pytest.fixture(scope="module")
def activations(tmp_path_factory):
    """One folder of caches and books for all calls."""
    return tmp_path_factory.mktemp("activations")


def test_one_call_patches_as_the_command_does(tmp_path, activations):
    result = la.patch("demo/npo", out=str(tmp_path / "py"), activations=str(activations), **FEW)
    options = [word for name, value in FEW.items() for word in (f"--{name}", str(value))]
    options += ["--activations", str(activations)]
    assert run(["patch", "--source", "demo/npo", "--out", str(tmp_path / "cli"), *options]) == 0
    written = json.loads((tmp_path / "cli" / "summary.json").read_text())
    assert result.summary == written
    assert (result.uds, list(result.ci95)) == (written["uds"], written["ci95"])
    assert (result.source, result.folder) == ("demo/npo", tmp_path / "py")
    for name in ("summary.json", "results.jsonl", "layers.csv"):
        assert (tmp_path / "py" / name).read_bytes() == (tmp_path / "cli" / name).read_bytes()


def test_a_model_named_twice_stands_twice_in_the_list(tmp_path, activations):
    names = ["demo/npo", "demo/idknll", "demo/npo"]
    first, other, second = found = la.patch(names, out=tmp_path, activations=activations, **FEW)
    assert first == second
    assert [one.source for one in found] == names
    assert other.folder == tmp_path / "demo-idknll"
    assert (tmp_path / "comparison.csv").exists()


def test_no_model_is_refused_by_every_call(tmp_path):
    for call in (la.patch, la.audit, la.evaluate, la.cache, la.worst, la.effort):
        with pytest.raises(InputError, match=r"\(\[\]\): no model; name one, or several in a list"):
            call([], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_value_of_a_keyword_for_several_is_not_walked_by_letter(tmp_path, activations):
    given = {"activations": activations, **FEW}
    found = la.patch("demo/npo", out=tmp_path / "patch", also="retain", **given)
    assert set(found.summary["collateral"]) == {"retain"}
    said = la.evaluate("demo/npo", tmp_path / "e", metrics="exact_memorization", limit=2)
    assert set(said.summary) == {"exact_memorization"}
    # what can be walked once is walked once
    again = la.evaluate("demo/npo", tmp_path / "e", metrics=iter(["exact_memorization"]), limit=2)
    assert again.summary == said.summary


def test_a_path_is_a_folder(tmp_path, activations):
    folder = resolve("demo/npo", load_registry()).local
    found = la.patch(
        folder,
        out=tmp_path,
        activations=activations,
        full="demo/full",
        retain="demo/retain",
        data="demo",
        **FEW,
    )
    assert found.source == str(folder)
    assert found.uds is not None
    assert named(Path("full")) == "./full"


def test_without_a_score_there_is_a_reason(tmp_path, activations):
    none = la.patch("demo/npo", out=tmp_path, activations=activations, tau=1e3, **FEW)
    assert (none.uds, none.ci95) == (None, None)
    assert "never exceeds tau = 1000" in none.reason
    assert len(none.unscored) == 5
    lens = la.patch("demo/npo", out=tmp_path / "lens", activations=activations, score="lens", **FEW)
    assert (lens.uds, lens.reason) == (None, "the score is lens; UDS was not asked for")
    assert lens.value is not None


def test_an_unknown_keyword_names_those_spelled_alike(tmp_path):
    with pytest.raises(TypeError, match=r"patch\(\) has no keyword 'tua'; did you mean tau\?"):
        la.patch("demo/npo", out=tmp_path / "out", tua=0.1)
    with pytest.raises(TypeError, match="it has registry, full, retain"):
        la.patch("demo/npo", out=tmp_path / "out", xyzzy=1)
    assert not (tmp_path / "out").exists()


def test_keywords_are_the_fields_of_the_settings():
    keywords = list(inspect.signature(la.patch).parameters)
    assert keywords == ["source", "out", "progress", *(one.name for one in fields(PatchSettings))]


def test_wrong_input_is_found_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="needs --score em"):
        la.patch("demo/npo", out=tmp_path / "out", em_form="teacher")
    with pytest.raises(InputError, match="unknown model"):
        la.patch("nonsense", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_where_another_rows_stream_is_the_rows_own_nobody_can_say_whether_it_is_read(
    tmp_path, activations
):
    rows = tmp_path / "ordinary.txt"
    rows.write_text("The river ran high that spring, and the mill stood idle for a month.\n" * 40)
    asked = {**FEW, "layers": "8,15", "align": "auto", "align_data": rows}
    found = la.patch("demo/npo", out=tmp_path / "out", activations=activations, **asked)
    validity = found.summary["validity"]
    # the drop of another row's stream is the unit, and it is nothing here
    assert validity["n"] >= 20
    assert validity["d_share"] is None
