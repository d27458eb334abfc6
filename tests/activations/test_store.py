"""The store gives back what was put in, and tells when it cannot."""

import dataclasses

import numpy as np
import pytest
import torch

from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.store import ActivationStore, ExampleActivations, open_activations

BASE = Fingerprint(
    weights="w" * 32,
    tokenizer="t" * 32,
    examples="e" * 32,
    template="qa",
    hook="resid_post",
    layers=3,
    d_model=8,
    positions="span",
    dtype="bfloat16",
    attention="eager",
    device_class="cpu",
    batch_policy="pad-right-8",
)


def make_example(idx, fingerprint=BASE, n_rows=None):
    generator = torch.Generator().manual_seed(idx)
    dtype = getattr(torch, fingerprint.dtype)
    n_rows = idx % 5 if n_rows is None else n_rows
    n_tokens = n_rows + 4
    shape = (fingerprint.layers, n_rows, fingerprint.d_model)
    return ExampleActivations(
        idx=idx,
        token_ids=torch.randint(0, 1000, (n_tokens,), generator=generator),
        positions=torch.arange(3, 3 + n_rows),
        resid=torch.randn(shape, generator=generator).to(dtype),
        final_norm=torch.randn(shape[1:], generator=generator).to(dtype),
    )


def fill(root, fingerprint=BASE, n=70, name="full"):
    store = ActivationStore(root, reserve_bytes=0)
    with store.writer(fingerprint, name=name, idx=range(n), provenance={"model": name}) as writer:
        for shard in writer.missing():
            writer.publish(shard, [make_example(idx, fingerprint) for idx in shard.idx])
        writer.seal()
    return store


def assert_same(found, wanted):
    for field in dataclasses.fields(ExampleActivations):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        assert a == b if field.name == "idx" else (a.dtype == b.dtype and torch.equal(a, b))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_was_published_is_read_back_exactly(tmp_path, dtype):
    fingerprint = dataclasses.replace(BASE, dtype=dtype)
    with fill(tmp_path, fingerprint).open(fingerprint) as cache:
        assert cache.idx == tuple(range(70))
        for example in cache.examples():
            assert_same(example, make_example(example.idx, fingerprint))


def test_three_lines_open_a_cache_by_name(tmp_path):
    fill(tmp_path)
    cache = open_activations("full", root=tmp_path)
    assert cache.example(4).resid.shape == (3, 4, 8)
    assert cache.layer(1).rows().resid.shape == (sum(i % 5 for i in range(70)), 8)
    print(cache.layer(1).at_span(-1).absent, cache)
    assert np.array_equal(cache.layer(1).at_span(-1).absent, range(0, 70, 5))
