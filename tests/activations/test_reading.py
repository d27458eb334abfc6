"""A cache is found by name and read by layer, by example, and by place, lazily."""

import dataclasses
import os
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from support.store_cases import BASE, fill, make_example

from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.opening import open_activations
from lensaudit.activations.store import OPEN_SHARDS
from lensaudit.errors import InputError


def cached(root, **changes):
    """An empty place for a cache of a recipe; complete, with as many rows as its key says."""
    recipe = {"data": changes.pop("data", "demo"), "limit": changes.pop("limit", None)}
    n = recipe["limit"] or 3
    examples = str(recipe["data"])[-1] + f"{n:031x}"
    print_of = dataclasses.replace(BASE, **{"examples": examples} | changes)
    store = ActivationStore(root)
    with store.writer(print_of, name="demo/npo", idx=range(n), provenance=recipe) as writer:
        for shard in writer.claims():
            writer.publish(shard, [make_example(idx, print_of) for idx in shard.idx])
        return writer.seal()


def test_of_several_caches_that_one_is_opened_that_holds_what_is_asked(tmp_path):
    own = tmp_path / "rows.json"
    root = tmp_path / "activations"
    for one in ({}, {"limit": 2}, {"positions": "all"}, {"data": str(own), "limit": 1}):
        cached(root, **one)

    def opened(**wanted):
        with open_activations("demo/npo", root=root, **wanted) as cache:
            return len(cache.spec.idx), cache.fingerprint.positions

    assert opened(limit=2) == (2, "span")
    assert opened(positions="all") == (3, "all")
    assert opened(data="demo", limit="all", positions="span") == (3, "span")
    assert opened(data=own) == opened(data=str(own)) == (1, "span")
    with pytest.raises(InputError) as error:
        opened(data="demo", limit="all")
    said = str(error.value)
    assert "means 2 caches" in said
    assert "positions span" in said
    assert "positions all" in said
    assert "rows" not in said.partition("Python:")[2]  # they do not differ in that
    with pytest.raises(InputError, match=r"no cache of 'demo/npo' with limit=7; there are"):
        opened(limit=7)
    with pytest.raises(InputError, match=r"means 2 caches"):  # of all rows
        opened()


def test_an_unknown_name_lists_what_is_there(full):
    with pytest.raises(InputError, match="full--"):
        open_activations("retain", root=full.parent)
    with pytest.raises(InputError, match="holds none; run `lensaudit cache`"):
        open_activations("retain", root=full.parent / "nowhere")


def test_layers_are_selected_in_the_order_asked(full):
    with open_activations(full) as cache:
        for layers in ([2, 0], [1], [1, 2], [0, 2], []):
            found = cache.example(9, layers=layers)
            assert torch.equal(found.resid, make_example(9).resid[layers])
            assert torch.equal(found.final_norm, make_example(9).final_norm)


@pytest.mark.parametrize("array", [list, np.array, torch.tensor])
def test_masks_and_fractions_are_no_numbers_of_layers(full, array):
    with open_activations(full) as cache:
        assert torch.equal(
            cache.example(9, layers=array([2, 0])).resid, make_example(9).resid[[2, 0]]
        )
        for layers in ([False, True, True], [0.5], [[1]]):
            with pytest.raises(InputError, match="wanted numbers of layers"):
                cache.example(9, layers=array(layers))


def test_one_layer_over_all_examples_is_ragged(full):
    with open_activations(full) as cache:
        rows = cache.layer(1).rows()
        assert rows.resid.shape == (sum(idx % 5 for idx in range(70)), 8)
        for idx, resid in cache.layer(1):
            assert torch.equal(resid, make_example(idx).resid[1])
            assert torch.equal(rows.example(idx), resid)
        assert cache.layer(1).rows([]).resid.shape == (0, 8)


@pytest.mark.parametrize("place", [0, 2, -1, -4])
def test_the_same_place_of_every_span_lists_the_examples_without_it(full, place):
    with open_activations(full) as cache:
        found = cache.layer(2).at_span(place)
    needed = place + 1 if place >= 0 else -place
    assert found.idx == tuple(idx for idx in range(70) if idx % 5 >= needed)
    assert found.absent == tuple(idx for idx in range(70) if idx % 5 < needed)
    for idx, row in zip(found.idx, found.resid, strict=True):
        assert torch.equal(row, make_example(idx).resid[2, place])


def test_rows_are_selected_by_token_position(full):
    with open_activations(full) as cache:
        example = cache.example(4)
    assert example.positions.tolist() == [3, 4, 5, 6]
    some = example.at(torch.tensor([6, 4]))
    assert torch.equal(some.resid, example.resid[:, [3, 1]])
    with pytest.raises(ValueError, match=r"\[2, 9\] are not cached"):
        example.at(torch.tensor([2, 4, 9]))


def test_unknown_examples_and_layers_are_refused_in_words(full):
    with open_activations(full) as cache:
        with pytest.raises(InputError, match="does not hold example idx 70"):
            cache.example(70)
        with pytest.raises(InputError, match="no layer 3; it holds 0 to 2"):
            cache.layer(3)


def test_few_files_are_open_at_once(tmp_path):
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("open files are counted in /proc")
    fill(tmp_path, n=40 * 32)
    with ActivationStore(tmp_path).open(BASE) as cache:
        for _ in cache.examples():
            pass
        shards = [fd for fd in descriptors.iterdir() if _is_shard(fd)]
        assert 1 <= len(shards) <= OPEN_SHARDS < 40
    assert not [fd for fd in descriptors.iterdir() if _is_shard(fd)]


def _is_shard(descriptor):
    with suppress(OSError):
        return os.readlink(descriptor).endswith(".h5")
    return False


def test_reading_asks_for_no_lock(full):
    fcntl = pytest.importorskip("fcntl")
    with (full / "shard-000000.h5").open("rb") as stream, open_activations(full) as cache:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert cache.example(1).idx == 1


def test_reading_holds_no_more_than_what_was_asked_for(tmp_path):
    # 96 examples of up to 4 rows: 3 layers x 4 x 2048 x 2 bytes = 49 kB each, 3.1 MB in all
    wide = dataclasses.replace(BASE, d_model=2048)
    fill(tmp_path, wide, n=96)
    with ActivationStore(tmp_path).open(wide) as cache:
        tracemalloc.start()
        n_bytes = sum(example.resid.nbytes for example in cache.examples())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert n_bytes > 2_000_000
    assert (
        peak < 1_500_000
    )  # one example, the indices, and the 1 MiB block that files are hashed by
