"""Every public function takes a file or folder as text and as a `Path`, and finds the same."""

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import lensaudit as la
from lensaudit.models.registry import load_registry, resolve
from lensaudit.results import frames, plot

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
        said = la.evaluate("demo/npo", folder / "said", metrics=("forget_Q_A_Prob",), limit=1)
        assert made.folder.exists()
        assert said.folder is not None
        yield folder


def policy(place):
    path = place / "policy.toml"
    path.write_text("")
    return path


def rows_of(frame) -> list:
    return json.loads(frame.to_json(orient="records"))


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


def prepared(kind, place):
    found = la.prepare(
        [kind(place / "npo")],
        la.PatchSettings(
            full="demo/full",
            retain="demo/retain",
            data=kind(place / "rows.json"),
            activations=kind(place / "a"),
        ),
    )
    return found.root, list(found.sources), found.settings.data


def evaluated(kind, place):
    own = {"forget": kind(place / "rows.json"), "activations": kind(place / "a")}
    out = kind(place / f"eval-{kind.__name__}")
    asked = {"metrics": ("forget_Q_A_Prob",), "data": "demo"}
    return la.evaluate(kind(place / "npo"), out, **asked, **own).summary


def audited(kind, place):
    own = {"data": kind(place / "rows.json"), "activations": kind(place / "a")}
    anchors = {"full": "demo/full", "retain": "demo/retain"}
    out = kind(place / f"audit-{kind.__name__}")
    return la.audit(kind(place / "npo"), out, suite="none", limit=1, **anchors, **own).uds


def cached(kind, place):
    found = la.cache(
        kind(place / "npo"), kind(place / "a"), data=kind(place / "rows.json"), limit=1
    )
    return found.key


def lensed(kind, place):
    own = {"data": kind(place / "rows.json"), "activations": kind(place / "a")}
    full = kind(resolve("demo/full", load_registry()).local)
    return rows_of(la.lens(kind(place / "npo"), full=full, limit=1, **own).frame)


def last_prompted(kind, place):
    own = {"data": kind(place / "rows.json"), "activations": kind(place / "a")}
    found = la.last_prompt(kind(place / "npo"), limit=1, **own)
    return found.idx, found.resid.tolist()


def opened(kind, place):
    with la.open_activations("demo/npo", root=kind(place / "a"), data="demo") as one:
        folder = one.folder
    with la.open_activations(kind(folder)) as one:
        return one.folder == folder, folder.name


def checked(kind, place):
    own = {"data": kind(place / "rows.json"), "activations": kind(place / "a")}
    return la.preflight(kind(place / "npo"), **own).checks


def kept(kind, place):
    with la.cache_prompts(
        la.load_model("demo/npo"), ["The river ends"], name="mine", root=kind(place / "own")
    ) as cache:
        return cache.folder.name


def exported(kind, place):
    with la.open_activations("demo/npo", root=place / "a", data="demo") as cache:
        return [one.name for one in la.export_safetensors(cache, kind(place / "st"))]


CALLS = {
    "load_model": lambda kind, place: (
        la.load_model(kind(place / "npo"), registry=kind(place / "models.json")).cfg.n_layers
    ),
    "load_facts": lambda kind, place: la.load_facts(kind(place / "rows.json")),
    "forget_set": lambda kind, place: la.forget_set(kind(place / "rows.json")),
    "ActivationStore": lambda kind, place: la.ActivationStore(kind(place / "a")).folders(),
    "open_activations": opened,
    "audit": audited,
    "patch": patched,
    "evaluate": evaluated,
    "cache": cached,
    "lens": lensed,
    "last_prompt": last_prompted,
    "preflight": checked,
    "cache_prompts": kept,
    "export_safetensors": exported,
    "write_report": lambda kind, place: la.write_report(
        [kind(place / "out")], kind(place / f"{kind.__name__}.html")
    ),
    "verdicts": lambda kind, place: la.verdicts([kind(place / "out")]).document(),
    "read_policy": lambda kind, place: la.read_policy(kind(policy(place))),
    "verify": lambda kind, place: [one.problems for one in la.verify(kind(place / "out"))],
    "prepare": prepared,
    "read_project": lambda kind, place: la.read_project(kind(place / "lensaudit.toml")),
    "load_registry": lambda kind, place: la.load_registry(kind(place / "models.json")),
    "frames.summaries": lambda kind, place: rows_of(frames.summaries(kind(place / "out"))),
    "frames.examples": lambda kind, place: rows_of(frames.examples(kind(place / "out"))),
    "frames.layers": lambda kind, place: rows_of(frames.layers(kind(place / "out"))),
    "frames.metrics": lambda kind, place: rows_of(frames.metrics(kind(place / "said"))),
    "plot.layer_profile": lambda kind, place: plot.layer_profile(kind(place / "out")).get_title(),
    "plot.heatmap": lambda kind, place: plot.heatmap(kind(place / "out")).get_title(),
    "plot.depth": lambda kind, place: plot.depth(kind(place / "out")).get_title(),
}


def test_the_table_has_every_public_function_that_takes_a_place():
    # these take minutes; their places go through the same door as those of `patch`
    slow = {"effort", "worst", "know"}
    # a record of settings opens nothing: whoever is given it does
    assert set(CALLS) == set(TAKING) - slow - {"PatchSettings"}


@pytest.mark.parametrize("name", CALLS)
def test_text_and_path_find_the_same(place, name):
    assert CALLS[name](str, place) == CALLS[name](Path, place)
