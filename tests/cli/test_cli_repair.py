"""The command that `activations repair` prints fills the cache: it is run as it is printed."""

import json
import re
import shlex
import shutil

import pytest
import torch

from lensaudit.activations.fill import provenance_of
from lensaudit.activations.opening import open_activations
from lensaudit.cli.main import run
from lensaudit.models.registry import EMBEDDED, lasting_name, load_registry, resolve

ANCHORS = "--full demo/full --retain demo/retain"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a registry and an annotated file; commands run there, then elsewhere."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    shutil.copy(EMBEDDED / "data/forget.json", here / "own.json")
    (here / "names.json").write_text(json.dumps({"mine": {"path": str(EMBEDDED / "npo")}}))
    monkeypatch.chdir(here)
    return here, elsewhere


def streams(cache):
    """What a cache holds, by example."""
    with open_activations(cache) as opened:
        return [one.resid.clone() for one in opened.examples()]


def own_caches(root):
    """Of the forget set; what the controls read is made again by the same run."""
    return [one for one in sorted(root.glob("*--*")) if "-neutral--" not in one.name]


@pytest.mark.parametrize(
    ("command", "n_caches"),
    [
        ("cache --model demo/npo --limit 2", 1),
        ("cache --model mine --registry names.json --data own.json --positions all --limit 3", 1),
        (f"patch --source mine {ANCHORS} --registry names.json --data own.json --limit 2", 3),
    ],
)
def test_the_printed_command_fills_the_cache(place, monkeypatch, capsys, command, n_caches):
    here, elsewhere = place
    run(shlex.split(command))  # 1 where nothing can be scored: caches are there all the same
    root = here / "activations"
    caches = own_caches(root)
    assert len(caches) == n_caches
    before = {cache: streams(cache) for cache in caches}
    for cache in caches:
        (cache / "shard-000000.h5").unlink()
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    assert run(["activations", "repair", "--activations", str(root)]) == 0
    printed = re.findall(r"run `lensaudit (.*)` to fill it", capsys.readouterr().out)
    assert len(printed) == n_caches
    for one in printed:
        assert run(shlex.split(one)) == 0
    assert own_caches(root) == caches, "another cache was made instead"
    assert run(["activations", "verify", "--activations", str(root)]) == 0
    for cache, kept in before.items():
        assert all(map(torch.equal, streams(cache), kept))


def test_a_name_lasts_without_its_registry(tmp_path):
    names = tmp_path / "names.json"
    entries = {
        "mine": {"path": str(EMBEDDED / "npo")},
        "hub": {"repo": "me/mine", "revision": "v1"},
    }
    names.write_text(json.dumps(entries))
    registry = load_registry(names)
    assert lasting_name(resolve("demo/npo", registry)) == "demo/npo"
    assert lasting_name(resolve("mine", registry)) == str(EMBEDDED / "npo")
    assert lasting_name(resolve("hub", registry)) == "me/mine@v1"
    made = provenance_of(resolve("mine", registry), "demo", limit=3)
    assert (made["data"], made["limit"]) == ("demo", 3)
