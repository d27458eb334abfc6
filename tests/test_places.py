"""Every public function takes a file or folder as text and as a `Path`, and finds the same."""

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import lensaudit as la
from lensaudit.doors import frames, plot
from lensaudit.models.registry import load_registry, resolve

PUBLIC = {name: getattr(la, name) for name in la.__all__ if callable(getattr(la, name))}
PUBLIC |= {f"frames.{name}": getattr(frames, name) for name in ("summaries", "examples", "layers")}
PUBLIC |= {"frames.metrics": frames.metrics}
PUBLIC |= {f"plot.{name}": getattr(plot, name) for name in ("layer_profile", "heatmap", "depth")}
FEW = {"limit": 1, "layers": "9", "align": "none"}


def kinds(hint) -> set:
    """Every type in an annotation: `tuple[str | Path, ...]` holds both."""
    inner = [kind for one in get_args(hint) if not isinstance(one, str) for kind in kinds(one)]
    return {hint, *inner} if isinstance(hint, type) else set(inner)


def place_parameters(function) -> dict[str, set]:
    """The parameters that take a `Path`, with all types they take."""
    found = {
        one.name: kinds(one.annotation) for one in inspect.signature(function).parameters.values()
    }
    record = vars(function).get("settings")
    if record is not None:
        hints = get_type_hints(record)
        found |= {one.name: kinds(hints[one.name]) for one in fields(record)}
    return {name: types for name, types in found.items() if Path in types}


TAKING = {name: found for name, one in PUBLIC.items() if (found := place_parameters(one))}


@pytest.mark.parametrize("name", TAKING)
def test_what_takes_a_path_takes_text(name):
    assert [one for one, types in TAKING[name].items() if str not in types] == []


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with rows, a registry, a cache and results."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("places")
        patch.chdir(folder)
        rows = [vars(one) for one in la.forget_set("demo")[:2]]
        (folder / "rows.json").write_text(json.dumps(rows))
        (folder / "models.json").write_text("{}")
        (folder / "lensaudit.toml").write_text('full = "demo/full"\n')
        npo = resolve("demo/npo", load_registry()).local
        (folder / "npo").symlink_to(npo)
        made = la.patch("demo/npo", folder / "out", activations=folder / "a", **FEW)
        assert made.folder.exists()
        yield folder


def patched(kind, place):
    """A run in which every place is of one kind."""
    found = la.patch(
        kind(place / "npo"),
        kind(place / f"patch-{kind.__name__}"),
        full=kind(resolve("demo/full", load_registry()).local),
        retain=kind(resolve("demo/retain", load_registry()).local),
        data=kind(place / "rows.json"),
        registry=kind(place / "models.json"),
        activations=kind(place / "a"),
        **FEW,
    )
    return found.uds, found.source


def opened(kind, place):
    with la.open_activations("demo/npo", root=kind(place / "a"), data="demo") as one:
        folder = one.folder
    with la.open_activations(kind(folder)) as one:
        return one.folder == folder, folder.name


CALLS = {
    "load_model": lambda kind, place: (
        la.load_model(kind(place / "npo"), registry=kind(place / "models.json")).cfg.n_layers
    ),
    "open_activations": opened,
    "patch": patched,
    "write_report": lambda kind, place: la.write_report(
        [kind(place / "out")], kind(place / f"{kind.__name__}.html")
    ),
    "verdicts": lambda kind, place: la.verdicts([kind(place / "out")]).document(),
    "read_project": lambda kind, place: la.read_project(kind(place / "lensaudit.toml")),
}
"""A function of every kind of door; their neighbours read places as these do."""


@pytest.mark.parametrize("name", CALLS)
def test_text_and_path_find_the_same(place, name):
    assert CALLS[name](str, place) == CALLS[name](Path, place)
