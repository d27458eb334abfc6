"""A cache that blocks fill one by one goes on where it was interrupted, to the last bit."""

import multiprocessing
import os
import shutil
import signal

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from support import checkpoint_of

from lensaudit.activations import fill
from lensaudit.activations.opening import open_activations
from lensaudit.activations.scratch import DONE, NUMBERS, forget_blocks
from lensaudit.activations.store import CacheWriter
from lensaudit.activations.upkeep import collect
from lensaudit.doors.cache_fill import cache_into
from lensaudit.doors.settings import CacheSettings
from lensaudit.models.large import placement
from lensaudit.models.large.placement import all_on, stored_tensors

FORK = multiprocessing.get_context("fork")
N_LAYERS = 16
STOP = 5
"""The block in which a run is interrupted: five are done."""
PLAIN = fill.residuals_by_block


def watched(ran, stop=None, at=None):
    """Each block that ran, by layer and call; `stop` is called in block `at`."""

    hooks = []

    def running(model, *args, **options):
        while hooks:
            hooks.pop().remove()
        for layer, block in enumerate(model.blocks):

            def noted(*_, layer=layer):
                ran.append(layer)
                if layer == at and ran.count(layer) == 2:
                    stop()

            hooks.append(block.original_component.register_forward_hook(noted))
        return PLAIN(model, *args, **options)

    return running


def interrupt():
    raise KeyboardInterrupt


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def cached(root, monkeypatch, *, model="demo/npo", said=None, stop=None, at=None, **asked):
    """The bytes of every number of a cache, and the layers of the blocks that ran for it."""
    ran, said = [], [] if said is None else said
    monkeypatch.setattr(fill, "residuals_by_block", watched(ran, stop, at))
    settings = CacheSettings(**{"limit": 40, "activations": root, "batch_size": 8, **asked})
    try:
        folder = cache_into(model, settings, notice=said.append).folder
    except KeyboardInterrupt:
        return {}, ran
    assert {one.name for one in folder.iterdir() if one.is_file()} == {
        *("spec.json", "SEAL.json", "shard-000000.h5"),
        *(["shard-000001.h5"] if settings.limit > 32 else []),
    }
    with open_activations(folder) as cache:
        numbers = {
            (one.idx, name): value.numpy().tobytes()
            for one in cache.examples()
            for name, value in vars(one).items()
            if name != "idx"
        }
    return numbers, ran


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """Weights take all memory but what one block needs, and what is left to activations."""
    least = all_on("cpu", stored_tensors(checkpoint_of("demo/npo").folder), torch.float32).least
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(placement, "free_bytes", lambda device: least + (2 << 30))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, little_memory):
    """A cache that was not interrupted, and its blocks."""
    with pytest.MonkeyPatch.context() as changed:
        return cached(tmp_path_factory.mktemp("whole"), changed)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory, little_memory):
    """The store of a cache of which five of sixteen blocks are done."""
    root = tmp_path_factory.mktemp("stopped") / "part"
    with pytest.MonkeyPatch.context() as changed:
        numbers, ran = cached(root, changed, stop=interrupt, at=STOP)
    assert not numbers
    assert set(ran) == set(range(STOP + 1))
    return root


@pytest.fixture
def interrupted(stopped_once, tmp_path):
    """The cache's folder in a copy of that store."""
    (folder,) = shutil.copytree(stopped_once, tmp_path / "part").glob("demo-npo--*")
    assert {one.name for one in folder.iterdir() if one.is_file()} == {"spec.json", NUMBERS, DONE}
    return folder


def test_an_interrupted_cache_computes_the_other_blocks_to_the_last_bit(
    interrupted, whole, monkeypatch
):
    wanted, all_of_them = whole
    assert len(wanted) == 4 * 40
    per_block = all_of_them.count(0)
    assert [all_of_them.count(layer) for layer in range(N_LAYERS)] == [per_block] * N_LAYERS
    found, ran = cached(interrupted.parent, monkeypatch, said=(said := []))
    assert ran == [layer for layer in range(STOP, N_LAYERS) for _ in range(per_block)]
    assert said == [f"{interrupted}: this run goes on after block 5 of 16"]
    assert found == wanted


def test_a_killed_cache_goes_on_too(whole, tmp_path, monkeypatch):
    at = {"stop": kill, "at": STOP}
    killed = FORK.Process(target=cached, args=(tmp_path, monkeypatch), kwargs=at)
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    found, ran = cached(tmp_path, monkeypatch)
    assert set(ran) == set(range(STOP, N_LAYERS))
    assert found == whole[0]


def test_a_cache_interrupted_while_it_is_published_computes_no_block_again(
    whole, tmp_path, monkeypatch
):
    plain = CacheWriter.publish

    def full(self, shard, examples):
        if shard.number == 1:
            raise KeyboardInterrupt
        plain(self, shard, examples)

    with monkeypatch.context() as broken:
        broken.setattr(CacheWriter, "publish", full)
        assert not cached(tmp_path, monkeypatch)[0]
    found, ran = cached(tmp_path, monkeypatch)
    assert ran == []
    assert found == whole[0]


def test_what_another_process_works_on_is_not_waited_for(whole, interrupted, monkeypatch):
    forget_blocks(interrupted)
    theirs = FileLock(interrupted / ".locks" / "shard-000001.h5.lock")
    theirs.acquire()
    # it leaves its shard when the other one is all but done, and that is claimed then
    stop = {"stop": theirs.release, "at": N_LAYERS - 1}
    found, ran = cached(interrupted.parent, monkeypatch, **stop)
    assert found == whole[0]
    assert [ran.count(layer) for layer in range(N_LAYERS)] == [whole[1].count(0)] * N_LAYERS
    # two passes: one a shard
    assert [at for at, layer in enumerate(ran) if layer < ran[at - 1]] == [0, ran.index(15) + 4]


def test_other_rows_weights_batches_and_code_begin_anew(interrupted, tmp_path, monkeypatch):
    root, before = interrupted.parent, (interrupted / DONE).read_bytes()
    stopped = {"stop": interrupt, "at": 0}
    _, ran = cached(root, monkeypatch, limit=39, **stopped)
    assert ran[0] == 0
    folder = shutil.copytree(checkpoint_of("demo/npo").folder, tmp_path / "npo")
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _, ran = cached(root, monkeypatch, model=str(folder), data="demo", **stopped)
    assert ran[0] == 0
    # they are other caches: what is left of this one stays
    assert (interrupted / DONE).read_bytes() == before
    for _ in range(2):
        _, ran = cached(root, monkeypatch, said=(said := []), batch_size=4, stop=interrupt, at=2)
    assert min(ran) == 2
    assert "this run goes on after block 2 of" in said[0]
    monkeypatch.setattr(fill, "code_digest", lambda: "another")
    _, ran = cached(root, monkeypatch, said=(said := []), batch_size=4, **stopped)
    assert ran[0] == 0
    assert "belongs to another run" in said[0]


def test_unfinished_blocks_are_ours_to_collect(interrupted):
    found = collect(interrupted.parent, max_bytes=0)
    assert [one.folder for one in found.removed] == [str(interrupted)]
    assert not interrupted.exists()
