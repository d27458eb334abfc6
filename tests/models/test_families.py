"""Whose `full`, `retain` and rows go with a model: one rule, of where it lies."""

import pytest
from support import EMBEDDED

from lensaudit.auditing.question import annotated_set, check_asked, splits_of
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.tofu import DEMO
from lensaudit.errors import InputError
from lensaudit.models.registry import (
    anchors_of,
    base_spec,
    data_of,
    default_data,
    load_registry,
    resolve,
    shipped,
    specs_of,
    usual_anchor,
)
from lensaudit.patching.settings import PatchSettings
from lensaudit.sweep.plan import UnitConditions
from lensaudit.sweep.planning import patched_data, with_data

EMBEDDED_ROWS = [name for name in shipped() if name.startswith(("demo/", "smollm2/"))]


@pytest.fixture
def loaded(monkeypatch):
    """What data a suite was loaded with, each time."""
    found = []

    def load(suite, data, **_):
        found.append(data)
        return {}

    monkeypatch.setattr("lensaudit.auditing.question.load_suite", load)
    return found


@pytest.mark.parametrize("name", [*EMBEDDED_ROWS, "npo", "full", "idknll"])
def test_every_part_asks_a_model_about_the_same_rows(name, loaded):
    data, asked = data_of([name], load_registry()), EvaluateSettings(metrics=("uds",))
    unit = with_data(UnitConditions(metrics=("uds",)), data)
    assert data == default_data(name) == annotated_set(name, asked) == patched_data(unit)
    # a suite's own is unnamed
    assert (splits_of(name, asked), loaded) == ({}, [unit.data])
    assert unit.data == (data if data == DEMO else None)


def test_rows_that_were_named_are_asked_whatever_the_model(loaded):
    asked = EvaluateSettings(data="forget10")
    assert (splits_of("demo/npo", asked), loaded) == ({}, [None])
    assert annotated_set("demo/npo", asked) == "forget10"


@pytest.fixture
def registry(tmp_path):
    """One's own folder under three names, of which one is the embedded family's."""
    (tmp_path / "own").symlink_to(EMBEDDED / "npo")
    (tmp_path / "names.toml").write_text('mine = "own"\n"demo/mine" = "own"\n"demo/npo" = "own"\n')
    return tmp_path / "names.toml"


def own_or_demo(name, registry):
    known = load_registry(registry)
    base = base_spec([resolve(name, known)], None, known)
    return usual_anchor("full", [name], known), data_of([name], known), base and base.name


@pytest.mark.parametrize("name", ["own", "mine", "demo/mine"])
def test_a_folder_is_ones_own_under_any_name(name, registry, monkeypatch):
    monkeypatch.chdir(registry.parent)
    assert own_or_demo(name, registry) == (None, None, None)
    with pytest.raises(InputError, match="a folder of your own; name the rows"):
        check_asked(name, EvaluateSettings(), registry)


@pytest.mark.parametrize("name", ["demo/npo", str(EMBEDDED / "npo")])
def test_a_shipped_name_says_whose_a_model_is_and_so_does_its_folder(name, registry):
    assert own_or_demo(name, registry) == ("demo/full", "demo", "demo/base")


def test_a_registry_may_say_what_full_is(tmp_path, registry):
    registry.write_text(registry.read_text() + f'full = "{EMBEDDED / "full"}"\n')
    with pytest.raises(InputError, match=r"^mine: is a folder .* that never saw .* --retain"):
        anchors_of(["mine"], None, None, load_registry(registry))
    assert anchors_of(["mine"], None, None, load_registry(registry), without=True) == (
        "full",
        ("none",),
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"retain": "demo/retain"}, "the model before unlearning with --full"),
        ({"full": "demo/full"}, "a model that never saw the facts with --retain"),
    ],
)
def test_a_session_of_own_folders_has_named_ends(named, said, registry):
    """Of `eval` beside it, as of all that opens models by their roles."""
    with pytest.raises(InputError, match=f"is a folder of your own; name {said}"):
        specs_of([str(registry.parent / "own")], PatchSettings(**named))


@pytest.mark.parametrize(
    ("sources", "retain", "expected"),
    [
        (["demo/npo"], None, ("demo/retain",)),
        (["full"], (), ("retain",)),
        (["demo/npo"], "demo/never", ("demo/never",)),
        ([str(EMBEDDED / "npo")], None, ("demo/retain",)),
        (["./own"], None, ("none",)),
        (["./own"], ["demo/retain"], ("demo/retain",)),
        (["demo/npo", "./own"], None, ("none",)),
    ],
)
def test_the_retain_model_of_a_run(sources, retain, expected, registry, monkeypatch):
    monkeypatch.chdir(registry.parent)
    _, found = anchors_of(sources, "demo/full", retain, load_registry(), without=True)
    assert found == expected
