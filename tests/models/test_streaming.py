import shutil

import pytest
import torch

from lensaudit.errors import InputError
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.large import placement
from lensaudit.models.large.placement import DISK, Needs, Placement, needs_of, placed, where_spread
from lensaudit.models.large.stored import stored_tensors
from lensaudit.models.large.streaming import streamed
from lensaudit.models.registry import Registry, resolve


def opened(folder):
    return open_checkpoint(resolve(str(folder), Registry({})))


def needs(folder):
    return needs_of(stored_tensors(folder), torch.float32)


@pytest.fixture
def with_free(monkeypatch):
    """So many bytes are free on the CPU."""

    def set_free(n_bytes):
        monkeypatch.setattr(placement, "free_bytes", lambda device: n_bytes)

    return set_free


def test_weights_that_are_not_there_are_nan(tiny_checkpoint, with_free):
    with_free(needs(tiny_checkpoint).least)
    model = load_causal(opened(tiny_checkpoint), spread=0)
    brings = streamed(model)
    brings.bring(1)
    assert not model(torch.tensor([[5, 6]])).logits.requires_grad
    brings.bring(1)
    layers = model.model.layers
    there = [bool(layer.mlp.up_proj.weight.isfinite().all()) for layer in layers]
    assert there == [False, True, False]
    assert layers[0].mlp.up_proj.weight.untyped_storage().nbytes() == 4


def test_what_is_stored_is_cast(tiny_checkpoint, tmp_path, with_free):
    model = load_causal(opened(tiny_checkpoint)).to(torch.bfloat16)
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "half")
    model.save_pretrained(folder)
    tokens = torch.tensor([[5, 6, 7, 8]])
    wanted = load_causal(opened(folder))(tokens).logits
    with_free(needs(folder).least)
    part = load_causal(opened(folder), spread=0)
    assert part(tokens).logits.dtype == torch.float32
    assert torch.equal(part(tokens).logits, wanted)


def test_broken_checkpoints_are_refused_in_the_same_words(tiny_checkpoint, tmp_path, with_free):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_checkpoint, tmp_path / "broken")
    file = folder / "model.safetensors"
    tensors, name = load_file(file), "model.layers.1.mlp.up_proj.weight"
    broken = {
        "weights lack": {key: one for key, one in tensors.items() if key != name},
        "has no place": tensors | {"model.layers.1.mlp.extra.weight": torch.ones(2)},
        "is stored as": tensors | {name: torch.ones(3, 5)},
    }
    for said, changed in broken.items():
        save_file(changed, file, metadata={"format": "pt"})
        refusals = []
        for spread in (None, 0):
            with_free(1 << 30 if spread is None else needs(folder).least)
            with pytest.raises(InputError, match=said) as caught:
                load_causal(opened(folder), spread=spread)
            refusals.append(str(caught.value))
        assert refusals[0] == refusals[1]


def test_explicit_devices_and_what_fits_nowhere_are_refused(tiny_checkpoint, with_free):
    least = needs(tiny_checkpoint).least
    with_free(least)
    with pytest.raises(InputError, match="--device auto would do for cache, patch"):
        load_causal(opened(tiny_checkpoint))
    with_free(least - 1)
    with pytest.raises(InputError, match=r"would do$"):
        load_causal(opened(tiny_checkpoint), spread=0)


def test_a_smaller_budget_is_named_where_it_would_do(tiny_checkpoint, with_free, monkeypatch):
    large = Needs(10 << 30, (1 << 30,) * 4)
    monkeypatch.setattr(placement, "needs_of", lambda tensors, dtype: large)
    with_free(large.least + (255 << 20))
    asked = {"dtype": torch.float32, "device": "cpu"}
    assert where_spread(opened(tiny_checkpoint), **asked, spread=300 << 20).blocks == ((DISK,) * 4)
    with pytest.raises(InputError, match="; --memory 256M would do"):
        where_spread(opened(tiny_checkpoint), **asked, spread=400 << 20)
    with_free(large.least)
    with pytest.raises(InputError, match="; --dtype bfloat16 --memory 256M would do"):
        where_spread(opened(tiny_checkpoint), **asked, spread=400 << 20)


NEEDS = Needs(rest=100, blocks=(10, 10, 10, 10))


def places(free, leave=0, needs=NEEDS):
    return placed(needs, free, leave=leave, device=next(iter(free)))


def test_blocks_go_where_there_is_room():
    assert places({"cpu": 140}).way == "whole"
    assert places({"cpu": None}).way == "whole"
    assert places({"cpu": 139}).blocks == (DISK,) * 4
    big = Needs(100, (10,) * 30)
    spread = places({"cuda": 250, "cuda:1": 120, "cpu": 1000}, leave=0, needs=big)
    assert spread.blocks == ("cuda",) * 3 + ("cuda:1",) * 12 + ("cpu",) * 15
    assert spread.way == "spread"
    assert spread.n_bytes == {"cuda": 130, "cuda:1": 120, "cpu": 150}
    assert spread.brought_bytes == 270
    some = places({"cuda": 250, "cuda:1": 120, "cpu": 55}, leave=10, needs=big)
    assert some.blocks == ("cuda",) * 2 + ("cuda:1",) * 11 + ("cpu",) * 4 + (DISK,) * 13
    assert some.way == "streamed"


def test_a_model_is_brought_block_by_block_only_if_that_is_needed_and_can_be():
    assert places({"cpu": 150}, leave=10).way == "whole"
    assert places({"cpu": 149}, leave=10).way == "streamed"
    # nothing is left for activations either way: whole, as before
    large = 1 << 30
    assert places({"cpu": 140}, leave=large).way == "whole"
    assert places({"cpu": 139}, leave=large) is None


def test_a_placement_says_where_the_bytes_lie():
    one = Placement("cuda", Needs(10**9, (5 * 10**8,) * 3), ("cuda", "cpu", DISK))
    assert one.text() == ("streamed (1.5 GB on cuda, 500.0 MB in memory of cpu, 500.0 MB on disk)")
