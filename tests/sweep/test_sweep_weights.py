"""Checkpoints are fetched within a quota, checked, and removed; the user's cache is not touched."""

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from support.sweep_helpers import targets, toy_run_unit, toy_sweep
from support.toy_hub import ToyHub

from lensaudit.errors import InputError, TryAgainError
from lensaudit.partials import process_name
from lensaudit.sweep import weights
from lensaudit.sweep.attempts import failure_of
from lensaudit.sweep.weights import Weights, bytes_to_fetch, fetch_ahead, folder_name

NAMES = ("retain", "full", "m0", "m1", "m2")


@pytest.fixture
def hub(tmp_path, tiny_checkpoint, monkeypatch):
    """Five repositories of one small model, and an empty cache of the user."""
    folders = {}
    for name in NAMES:
        folder = shutil.copytree(tiny_checkpoint, tmp_path / "hub" / name)
        (folder / "pytorch_model.bin").write_bytes(b"pickles are not fetched")
        folders[f"org/{name}"] = folder
    hub = ToyHub(folders)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(cache))
    yield hub
    hub.close()


@pytest.fixture
def sweep(tmp_path):
    return toy_sweep(tmp_path / "sweep")


def weights_of(sweep, n_checkpoints=None, one=None, **more):
    quota = None if n_checkpoints is None else int(n_checkpoints * one)
    return Weights(sweep, quota, pause=lambda s: None, **more)


@pytest.fixture
def size(hub, sweep):
    """Bytes of one checkpoint, as the Hub says."""
    return weights.bytes_of(weights.listing(sweep.targets[0]))


def bytes_on_disk(sweep):
    total = 0
    for folder, _, names in os.walk(sweep.weights):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                if ".cache" not in folder and not name.endswith((".lock", "journal.json")):
                    total += os.stat(os.path.join(folder, name)).st_size
    return total


def test_a_hub_that_does_not_answer_is_a_passing_failure(monkeypatch):
    (target,) = targets("m")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="no network") as caught:
        weights.listing(target)
    assert failure_of(caught.value).kind == "transient"


def test_a_checkpoint_arrives_whole_and_without_pickles(hub, sweep):
    folder = weights_of(sweep).obtain(sweep.by_name["m0"])
    source = hub.repositories["org/m0"]
    fetched = {path.name for path in folder.iterdir() if path.is_file()}
    assert fetched == {path.name for path in source.iterdir()} - {"pytorch_model.bin"}
    assert all((folder / name).read_bytes() == (source / name).read_bytes() for name in fetched)
    n_requests = len(hub.requests)
    assert weights_of(sweep).obtain(sweep.by_name["m0"]) == folder
    assert len(hub.requests) == n_requests


def test_a_file_that_is_not_what_the_hub_names_is_refused_and_fetched_again(hub, sweep):
    hub.spoiled.add("model.safetensors")
    with pytest.raises(TryAgainError, match=r"model\.safetensors is not the file the Hub names"):
        weights_of(sweep).obtain(sweep.by_name["m0"])
    hub.spoiled.clear()
    folder = weights_of(sweep).obtain(sweep.by_name["m0"])
    source = hub.repositories["org/m0"] / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == source.read_bytes()


def test_a_missing_repository_is_permanent_and_too_many_requests_are_not(hub, sweep):
    (missing,) = targets("gone")
    with pytest.raises(InputError, match="no such repository") as caught:
        weights.listing(missing)
    assert failure_of(caught.value).kind == "permanent"
    hub.refusals = [(429, {"Retry-After": "0"})] * 50
    with pytest.raises(InputError, match="HTTP 429") as caught:
        weights.listing(sweep.targets[0])
    assert failure_of(caught.value).kind == "transient"


def test_the_quota_is_never_exceeded_and_everything_is_served(hub, sweep, size):
    weights = weights_of(sweep, 3.5, size)
    most, stop = [0], threading.Event()

    def look():
        while not stop.is_set():
            # nothing is removed or reserved while the journal is held: the sum is of one moment
            with weights._journal():
                most[0] = max(most[0], bytes_on_disk(sweep))
            time.sleep(0.005)

    watcher = threading.Thread(target=look)
    watcher.start()
    ahead = threading.Thread(
        target=fetch_ahead, args=(weights, sweep.targets[2:], stop.is_set), daemon=True
    )
    for unit in sweep.anchor_units():
        for anchor in sweep.anchors.values():
            weights.obtain(sweep.by_name[anchor])
        toy_run_unit(sweep, unit)
    ahead.start()
    seen_ahead = time.monotonic() + 60  # the anchors and one read ahead; units start only then
    while most[0] <= 2 * size and time.monotonic() < seen_ahead:
        time.sleep(0.005)
    for unit in sweep.units[2:]:
        target = sweep.by_name[unit.target]
        assert (weights.obtain(target) / "model.safetensors").is_file()
        toy_run_unit(sweep, unit)
        weights.release(target)
    stop.set()
    watcher.join()
    ahead.join()
    assert 2 * size < most[0] <= 3.5 * size
    for anchor in sweep.anchors.values():
        weights.release(sweep.by_name[anchor])
    assert weights.used_bytes() == 0
    assert bytes_on_disk(sweep) == 0


def test_a_checkpoint_stays_while_a_variant_needs_it(hub, sweep):
    weights = weights_of(sweep)
    folder = weights.obtain(sweep.by_name["m0"])
    weights.release(sweep.by_name["m0"])  # its unit is not done: it failed and will be tried again
    assert folder.is_dir()


def test_what_was_fetched_too_early_makes_room(hub, sweep, size):
    weights = weights_of(sweep, 3.5, size)
    for name in ("retain", "full"):
        weights.obtain(sweep.by_name[name])
    weights.obtain(sweep.by_name["m2"], ahead=True)
    assert (weights.obtain(sweep.by_name["m0"]) / "config.json").is_file()
    assert not weights.is_here(sweep.by_name["m2"])


def test_a_quota_that_is_too_small_is_named(hub, sweep, size):
    with pytest.raises(InputError, match=r"the quota of [0-9.]+ kB has no room"):
        weights_of(sweep, 0.5, size).obtain(sweep.by_name["m0"])
    weights = weights_of(sweep, 2.5, size)
    for name in ("retain", "full"):
        weights.obtain(sweep.by_name[name])
    with pytest.raises(InputError, match=r"has no room for .* beside the anchors'"):
        weights.obtain(sweep.by_name["m0"])


def test_a_full_disk_is_told_before_the_download(hub, sweep, monkeypatch):
    full = shutil._ntuple_diskusage(100, 99, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(TryAgainError, match="free some and run again"):
        weights_of(sweep).obtain(sweep.by_name["m0"])


def test_a_fetch_whose_process_died_is_taken_over(hub, sweep):
    weights = weights_of(sweep)
    name = folder_name(sweep.by_name["m0"])
    sweep.weights.mkdir(parents=True)
    row = {"state": "fetching", "bytes": 9, "users": [process_name(2**22 + 1)]}
    (sweep.weights / "journal.json").write_text(json.dumps({name: row}))
    assert (weights.obtain(sweep.by_name["m0"]) / "config.json").is_file()


def test_the_users_cache_is_read_in_place_and_stays_as_it_is(hub, sweep, tmp_path):
    from huggingface_hub import snapshot_download

    cache = tmp_path / "cache"
    snapshot_download("org/m0", cache_dir=cache, endpoint=hub.url, ignore_patterns=["*.bin"])
    before = tree_hash(cache)
    weights = weights_of(sweep, offline=True)
    folder = weights.obtain(sweep.by_name["m0"])
    assert folder.is_relative_to(cache)
    weights.release(sweep.by_name["m0"])
    assert tree_hash(cache) == before
    assert bytes_on_disk(sweep) == 0


def tree_hash(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        state.update(f"{path} {os.lstat(path).st_mtime_ns}".encode())
        state.update(path.read_bytes() if path.is_file() else b"")
    return state.hexdigest()


def test_offline_uses_what_was_fetched_and_says_what_is_missing(hub, sweep):
    weights_of(sweep).obtain(sweep.by_name["m0"])
    hub.close()
    assert weights_of(sweep, offline=True).obtain(sweep.by_name["m0"]).is_dir()
    with pytest.raises(InputError, match="run `lensaudit sweep fetch` where there is a network"):
        weights_of(sweep, offline=True).obtain(sweep.by_name["m1"])


def test_the_forecast_asks_the_hub_for_sizes(hub, sweep, size):
    weights_of(sweep).obtain(sweep.by_name["m0"])
    assert bytes_to_fetch(sweep, ["m0", "m1"]) == {"m1": size}


def test_a_whole_sweep_fetches_runs_and_leaves_no_weights(hub, sweep, size, monkeypatch):
    from support import sweep_helpers

    def fetching_unit(sweep, unit, obtain, halvings, report):
        names = {unit.target, *sweep.anchors.values()}
        folders = [obtain(sweep.by_name[name]) for name in sorted(names)]
        assert all((folder / "model.safetensors").is_file() for folder in folders)
        toy_run_unit(sweep, unit)

    monkeypatch.setattr(sweep_helpers, "fetching_unit", fetching_unit, raising=False)
    hub.refusals = [(503, {})]
    states = sweep_helpers.swept(
        sweep.root, runner="support.sweep_helpers:fetching_unit", quota=int(3.2 * size)
    )
    assert {state.name for state in states} == {"done"}
    assert bytes_on_disk(sweep) == 0
    # each checkpoint once: no second download for the anchors that every unit reads
    files = [one for one in hub.requests if one.startswith("GET") and one.endswith(".safetensors")]
    assert len(files) == len(NAMES)
