import shutil
import threading
from dataclasses import replace

import pytest
import support
import torch
from support import checkpoint_of
from torch.utils._python_dispatch import TorchDispatchMode

from lensaudit.errors import InputError, WorkError
from lensaudit.models.blocks import block_of
from lensaudit.models.causal import load_causal
from lensaudit.models.large import placement, streaming
from lensaudit.models.large.placement import (
    AHEAD,
    BESIDE,
    DISK,
    Placement,
    Stored,
    all_on,
    placed,
    stored_tensors,
    where_spread,
)
from lensaudit.models.large.streaming import streamed
from lensaudit.plans.weights import brought_bytes, bytes_by_place, words_of


def whole(folder):
    return all_on("cpu", stored_tensors(folder), torch.float32)


def sized(rest, n_blocks, block=10, device="cpu"):
    return Placement(device, rest, (block,) * n_blocks, (device,) * n_blocks)


@pytest.fixture
def with_free(monkeypatch):
    """So many bytes are free on the CPU."""

    def set_free(n_bytes):
        monkeypatch.setattr(placement, "free_bytes", lambda device: n_bytes)

    return set_free


def test_weights_that_are_not_there_are_nan(tiny_checkpoint, with_free):
    with_free(whole(tiny_checkpoint).least)
    model = load_causal(checkpoint_of(tiny_checkpoint), spread=0)
    brings = streamed(model)
    brings.bring(1)
    assert not model(torch.tensor([[5, 6]])).logits.requires_grad
    brings.bring(1)
    layers = model.model.layers
    there = [bool(layer.mlp.up_proj.weight.isfinite().all()) for layer in layers]
    assert there == [False, True, False]
    assert layers[0].mlp.up_proj.weight.untyped_storage().nbytes() == 4


class Reading:
    """Which thread read which block, and what happens when it does."""

    def __init__(self, monkeypatch):
        self.seen, self.fails, self.gate = [], {}, None
        plain = Stored.read_into

        def read_into(stored, flat):
            ahead = threading.current_thread() is not threading.main_thread()
            layer = block_of(stored.name)
            if (layer, ahead) not in self.seen:
                self.seen.append((layer, ahead))
            if ahead and self.gate:
                self.gate.wait(10)
            if layer in self.fails:
                raise self.fails.pop(layer)
            plain(stored, flat)

        monkeypatch.setattr(Stored, "read_into", read_into)


TOKENS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture(scope="module")
def eight(tiny_tokenizer, tmp_path_factory):
    """A checkpoint of eight layers, and what it computes."""
    folder = tmp_path_factory.mktemp("eight")
    support.tiny_model_of("Llama", num_hidden_layers=8).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder, load_causal(checkpoint_of(folder))(TOKENS).logits


@pytest.fixture
def roomy(eight, with_free):
    """A model with room for two blocks, and whether it computes what it does when it is whole."""
    folder, wanted = eight
    taken = whole(folder)

    def load(short=0):
        with_free(BESIDE * taken.least + AHEAD * max(taken.sizes) - short)
        model = load_causal(checkpoint_of(folder), spread=0)
        return model, lambda: torch.equal(model(TOKENS).logits, wanted)

    return load


def test_the_next_block_is_read_by_one_thread_while_one_computes(roomy, monkeypatch):
    reading = Reading(monkeypatch)
    model, agrees = roomy()
    found = streamed(model).placement
    assert found == replace(found, device="cpu", blocks=(DISK,) * 8, ahead=True)
    assert [agrees(), agrees()] == [True, True]
    # no block follows the last one: the first is read when it is its turn
    one_pass = [(0, False), *((layer, True) for layer in range(1, 8))]
    assert [one for one in reading.seen if one[0] is not None] == one_pass


def test_where_two_blocks_have_no_room_none_is_read_ahead(roomy, monkeypatch):
    reading = Reading(monkeypatch)
    model, agrees = roomy(short=1)
    # what is left holds one block for good
    found = streamed(model).placement
    assert found == replace(found, device="cpu", blocks=("cpu", *[DISK] * 7), ahead=False)
    assert agrees()
    assert not any(ahead for _, ahead in reading.seen)
    assert len(streamed(model)._rooms) == 1


def test_blocks_asked_for_in_any_order_are_the_right_ones(roomy):
    model, agrees = roomy()
    brings, layers = streamed(model), model.model.layers
    whole = {}
    for layer in (0, 1, 3, 2, 3, 0, 2, 2, 1, 0):
        brings.bring(layer)
        weight = layers[layer].mlp.up_proj.weight
        assert torch.equal(whole.setdefault(layer, weight.clone()), weight)
        others = [one.mlp.up_proj.weight for at, one in enumerate(layers) if at != layer]
        assert not any(one.isfinite().any() for one in others)
    assert len({float(one.sum()) for one in whole.values()}) == 4
    assert len(brings._rooms) == 2
    assert brings._rooms[0].nbytes == max(brings.placement.sizes)
    assert agrees()


def test_what_the_thread_cannot_read_is_told_where_it_is_wanted(roomy, monkeypatch):
    reading = Reading(monkeypatch)
    model, agrees = roomy()
    assert agrees()
    reading.fails[2] = WorkError("ends inside")
    streamed(model).bring(0)
    streamed(model).bring(1)
    with pytest.raises(WorkError, match="ends inside"):
        streamed(model).bring(2)
    # it was no lasting fault: it is read again
    assert agrees()
    reading.fails[2] = WorkError("ends inside")
    streamed(model).bring(1)
    streamed(model).bring(0)  # nobody wanted it
    assert agrees()


def test_an_interrupt_while_the_thread_reads_leaves_no_half_read_block(roomy, monkeypatch):
    reading = Reading(monkeypatch)
    model, agrees = roomy()
    assert agrees()
    brings, reading.gate = streamed(model), threading.Event()
    brings.bring(0)

    def interrupted(futures):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(streaming, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            brings.bring(1)
    threading.Timer(0.05, reading.gate.set).start()
    assert agrees()


def test_what_is_stored_is_cast(tiny_checkpoint, tmp_path, with_free):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "half")
    load_causal(checkpoint_of(tiny_checkpoint)).to(torch.bfloat16).save_pretrained(folder)
    wanted = load_causal(checkpoint_of(folder))(TOKENS).logits
    with_free(whole(folder).least)
    part = load_causal(checkpoint_of(folder), spread=0)
    assert part(TOKENS).logits.dtype == torch.float32
    assert torch.equal(part(TOKENS).logits, wanted)


class Made(TorchDispatchMode):
    """Bytes of the largest tensor that was made beside a room."""

    def __init__(self, room):
        super().__init__()
        self.room, self.largest = room.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        one = found.untyped_storage() if isinstance(found, torch.Tensor) else None
        if one is not None and one.data_ptr() != self.room:
            self.largest = max(self.largest, one.nbytes())
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_come_into_their_block_one_by_one(dtype, tiny_tokenizer, tmp_path, with_free):
    model = support.tiny_model_of("Mixtral", num_local_experts=8, num_hidden_layers=2)
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    wanted = load_causal(checkpoint_of(tmp_path), dtype=dtype).model.layers[1].mlp.experts
    with_free(all_on("cpu", stored_tensors(tmp_path), dtype).least)
    part = load_causal(checkpoint_of(tmp_path), dtype=dtype, spread=0)
    brings = streamed(part)
    brings.bring(0)
    with Made(brings._rooms[0]) as made:
        brings.bring(1)
    found = part.model.layers[1].mlp.experts
    assert torch.equal(found.gate_up_proj, wanted.gate_up_proj)
    assert torch.equal(found.down_proj, wanted.down_proj)
    # what is cast is read first
    matrices = [one for name, one in stored_tensors(tmp_path).items() if "layers.1." in name]
    read = 0 if dtype == torch.float32 else max(one.n_bytes for one in matrices)
    assert made.largest == max(read, dtype.itemsize)


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
            with_free(1 << 30 if spread is None else whole(folder).least)
            with pytest.raises(InputError, match=said) as caught:
                load_causal(checkpoint_of(folder), spread=spread)
            refusals.append(str(caught.value))
        assert refusals[0] == refusals[1]


def test_a_smaller_budget_is_named_where_it_would_do(tiny_checkpoint, with_free, monkeypatch):
    large = sized(10 << 30, 4, 1 << 30)
    monkeypatch.setattr(placement, "all_on", lambda device, tensors, dtype: large)
    with_free(large.least + (255 << 20))
    asked = {"dtype": torch.float32, "device": "cpu"}
    assert where_spread(checkpoint_of(tiny_checkpoint), **asked, spread=300 << 20).blocks == (
        (DISK,) * 4
    )
    with pytest.raises(
        InputError, match=r"--memory keeps 400M for activations; .*256M is the least"
    ):
        where_spread(checkpoint_of(tiny_checkpoint), **asked, spread=400 << 20)


def places(free, leave=0, n_blocks=4):
    return placed(sized(100, n_blocks, device=next(iter(free))), free, leave=leave)


def test_blocks_go_where_there_is_room():
    assert places({"cpu": 140}).way == "whole"
    assert places({"cpu": None}).way == "whole"
    assert places({"cpu": 139}).blocks == (DISK,) * 4
    spread = places({"cuda": 250, "cuda:1": 120, "cpu": 1000}, leave=0, n_blocks=30)
    assert spread.blocks == ("cuda",) * 3 + ("cuda:1",) * 12 + ("cpu",) * 15
    assert spread.way == "spread"
    assert bytes_by_place(spread) == {"cuda": 130, "cuda:1": 120, "cpu": 150}
    assert brought_bytes(spread) == 270
    some = places({"cuda": 250, "cuda:1": 120, "cpu": 55}, leave=10, n_blocks=30)
    # room for two more blocks on the first device is the next one's that is read from disk
    assert some.blocks == ("cuda:1",) * 11 + ("cpu",) * 4 + (DISK,) * 15
    assert (some.way, some.ahead) == ("streamed", True)
    less = places({"cuda": 249, "cuda:1": 120, "cpu": 55}, leave=10, n_blocks=30)
    assert less.blocks == ("cuda",) + ("cuda:1",) * 11 + ("cpu",) * 4 + (DISK,) * 14
    assert not less.ahead
    # what lies in memory is not read
    assert not places({"cuda": 250, "cpu": 1000}, n_blocks=30).ahead
    assert [places({"cpu": n}, n_blocks=20).ahead for n in (239, 240)] == [False, True]


def test_a_model_is_brought_block_by_block_only_if_that_is_needed_and_can_be():
    assert places({"cpu": 150}, leave=10).way == "whole"
    assert places({"cpu": 149}, leave=10).way == "streamed"
    # nothing is left for activations either way: whole, as before
    large = 1 << 30
    assert places({"cpu": 140}, leave=large).way == "whole"
    assert places({"cpu": 139}, leave=large) is None


def test_a_placement_says_where_the_bytes_lie():
    one = Placement("cuda", 10**9, (5 * 10**8,) * 3, ("cuda", "cpu", DISK))
    assert words_of(one) == (
        "streamed (1.5 GB on cuda, 500.0 MB in memory of cpu, 500.0 MB on disk)"
    )
