"""A small cache whose numbers follow from the example's idx, and ways to damage it."""

import dataclasses
import shutil

import h5py
import torch
import xxhash

from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.shard import HEADER_BYTES, header
from lensaudit.activations.spec import Fingerprint
from lensaudit.activations.store import ExampleActivations

BASE = Fingerprint(
    weights="a" * 32,
    tokenizer="b" * 32,
    examples="c" * 32,
    template="qa",
    hook="resid_post",
    layers=3,
    d_model=8,
    positions="span",
    dtype="bfloat16",
    attention="eager",
    device_class="cpu",
    batch_policy="right-padded-16",
)


def make_example(idx, fingerprint=BASE):
    """`idx % 5` rows, so some examples have none; eighths, which every dtype holds exactly."""
    n_rows = idx % 5
    shape = (fingerprint.layers + 1, n_rows, fingerprint.d_model)
    numbers = torch.arange(shape[0] * n_rows * shape[2]).reshape(shape).remainder(97)
    rows = ((numbers - 48 + idx % 7) / 8).to(getattr(torch, fingerprint.dtype))
    return ExampleActivations(
        idx=idx,
        token_ids=torch.arange(n_rows + 4) + 1000 * idx,
        positions=torch.arange(n_rows) + 3,
        resid=rows[:-1],
        final_norm=rows[-1][: fingerprint.norm_shape(n_rows)[0]],
    )


def writer(root, fingerprint=BASE, n=70, name="full", provenance=None, **options):
    store = ActivationStore(root, reserve_bytes=0)
    provenance = provenance or {"model": name, "data": "forget10", "limit": n}
    return store.writer(fingerprint, name=name, idx=range(n), provenance=provenance, **options)


def fill(root, fingerprint=BASE, n=70, name="full", **options):
    """A sealed cache; its folder."""
    with writer(root, fingerprint, n, name, **options) as filling:
        for shard in filling.missing():
            filling.publish(shard, [make_example(idx, fingerprint) for idx in shard.idx])
        filling.seal()
        return filling.folder


def same(found, wanted):
    """Equal to the last bit, NaN included."""
    return all(
        torch.equal(bits(a), bits(b)) and a.dtype == b.dtype
        for a, b in ((getattr(found, name), getattr(wanted, name)) for name in TENSORS)
    )


TENSORS = [field.name for field in dataclasses.fields(ExampleActivations) if field.name != "idx"]


def bits(tensor):
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(kind)


def flip(path, at, bit=0):
    """Flip one bit of a file in place."""
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1 << bit]))


def forge(path, edit):
    """Change a shard by `edit(h5py.File)` and give it a header that agrees: a forger's work."""
    inner = path.with_suffix(".inner")
    inner.write_bytes(path.read_bytes()[HEADER_BYTES:])
    with h5py.File(inner, "r+") as file:
        edit(file)
    content = inner.read_bytes()
    inner.unlink()
    head = header(HEADER_BYTES + len(content), xxhash.xxh3_128_hexdigest(content))
    path.write_bytes(head + content)


def copy(folder, root):
    """A copy of a cache in another store."""
    root.mkdir(exist_ok=True)
    return shutil.copytree(folder, root / folder.name)
