import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import checkpoint_of, refusal

from lensaudit.errors import InputError
from lensaudit.models.causal import load_causal
from lensaudit.models.large import placement
from lensaudit.models.large.placement import Packed, all_on, weights_of
from lensaudit.models.large.streaming import streamed

TOKENS = torch.tensor([[5, 6, 7, 8]])
PACKED = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def opened(folder):
    return checkpoint_of(folder, allow_packed=True)


def pack(folder, plain, *, kind, nested, dtype):
    """A checkpoint as bitsandbytes saves it; in `plain` what it makes of that."""
    functional = pytest.importorskip("bitsandbytes").functional
    tensors, stands_for = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        weight = weight.to(dtype)
        tensors[name] = stands_for[name] = weight
        if "_proj" in name:
            row = weight.reshape(1, -1)
            how = {"blocksize": 64, "quant_type": kind, "compress_statistics": nested}
            codes, state = functional.quantize_4bit(row, **how)
            stands_for[name] = functional.dequantize_4bit(codes, state).reshape(weight.shape)
            state.shape = weight.shape
            tensors[name] = codes
            beside = state.as_dict(packed=True)
            tensors |= {f"{name}.{key}": one for key, one in beside.items()}
    save_file(stands_for, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": PACKED}))


@pytest.fixture
def folders(tiny_checkpoint, tmp_path):
    return [shutil.copytree(tiny_checkpoint, tmp_path / name) for name in ("packed", "plain")]


@pytest.mark.parametrize(
    ("kind", "nested", "dtype"),
    [
        ("nf4", False, torch.float32),
        ("nf4", True, torch.bfloat16),
        ("fp4", True, torch.float32),
    ],
)
def test_packed_weights_are_what_bitsandbytes_makes_of_them(
    folders, kind, nested, dtype, monkeypatch
):
    packed, plain = folders
    pack(packed, plain, kind=kind, nested=nested, dtype=dtype)
    wanted = load_file(plain / "model.safetensors")
    found = weights_of(packed)
    assert found.keys() == wanted.keys()
    assert sum(isinstance(one, Packed) for one in found.values()) == 3 * 7
    for name, one in found.items():
        torch.testing.assert_close(one.read(), wanted[name], rtol=1e-6, atol=1e-7)
    logits = load_causal(opened(plain))(TOKENS).logits
    whole = load_causal(opened(packed))
    assert streamed(whole) is None
    torch.testing.assert_close(whole(TOKENS).logits, logits, rtol=0, atol=1e-5)
    least = all_on("cpu", found, torch.float32).least
    monkeypatch.setattr(placement, "free_bytes", lambda device: least)
    part = load_causal(opened(packed), spread=0)
    assert streamed(part) is not None
    assert torch.equal(part(TOKENS).logits, whole(TOKENS).logits)
    with pytest.raises(InputError, match="run it block by block, with --device auto"):
        load_causal(opened(packed))


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32])
def test_codes_stored_as_another_type_are_the_same_to_the_bit(folders, storage):
    packed, plain = folders
    pack(packed, plain, kind="nf4", nested=True, dtype=torch.bfloat16)
    file = packed / "model.safetensors"
    tensors, before = load_file(file), {k: one.read() for k, one in weights_of(packed).items()}
    codes = {
        k: tensors[k].flatten().view(storage)[:, None]
        for k, one in weights_of(packed).items()
        if isinstance(one, Packed)
    }
    assert len(codes) == 3 * 7
    save_file(tensors | codes, file, metadata={"format": "pt"})
    after = {k: one.read() for k, one in weights_of(packed).items()}
    assert after.keys() == before.keys()
    assert all(torch.equal(after[k], before[k]) for k in before)


def test_packed_weights_that_are_not_whole_are_refused_in_one_line(folders):
    packed, plain = folders
    pack(packed, plain, kind="nf4", nested=True, dtype=torch.float32)
    file, name = packed / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(file)
    for gone in ("absmax", "nested_quant_map"):
        save_file({k: v for k, v in tensors.items() if k != f"{name}.{gone}"}, file)
        said = refusal(load_causal, opened(packed))
        assert f"{name} is packed, and not as bitsandbytes" in said
    with pytest.raises(InputError, match="its weights are packed"):
        checkpoint_of(packed)
