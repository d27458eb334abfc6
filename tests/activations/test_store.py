"""The store gives back what was put in, exactly, and says what it does not have."""

import dataclasses
import tracemalloc

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.store_cases import BASE, fill, make_example, same, writer

from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.opening import open_activations
from lensaudit.activations.store import ExampleActivations
from lensaudit.errors import InputError, VerificationError, WorkError

DTYPES = ["float32", "bfloat16", "float16"]
WIDTH = {"float32": 32, "bfloat16": 16, "float16": 16}
EXPONENT = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}
INTEGERS = {32: torch.int32, 16: torch.int16}


@st.composite
def raw_examples(draw, dtype):
    """Any bit patterns of finite values: -0, denormals, the largest; none to four rows."""
    n_layers, d_model = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    width = WIDTH[dtype]
    special = [0, 1, 1 << (width - 1), (1 << width) - 1, 0x7F80, 0x7FC1, 0x7C00, 0x0001]
    pattern = st.one_of(st.sampled_from(special), st.integers(0, (1 << width) - 1))
    examples = []
    for idx in range(draw(st.integers(1, 5))):
        n_rows = draw(st.integers(0, 4))
        shape = (n_layers + 1, n_rows, d_model)
        size = int(np.prod(shape))
        patterns = draw(st.lists(pattern, min_size=size, max_size=size))
        unsigned = np.array(patterns, np.uint32 if width == 32 else np.uint16)
        # NaN and infinity, which are refused, become large: their lowest exponent bit goes
        infinity = EXPONENT[dtype]
        unsigned[unsigned & infinity == infinity] ^= infinity & -infinity
        signed = torch.from_numpy(unsigned.view(np.int32 if width == 32 else np.int16))
        rows = signed.view(getattr(torch, dtype)).reshape(shape)
        gaps = draw(st.lists(st.integers(1, 3), min_size=n_rows, max_size=n_rows))
        positions = torch.tensor(gaps, dtype=torch.int64).cumsum(0)
        n_tokens = int(positions[-1]) + 1 if n_rows else draw(st.integers(0, 2))
        tokens = torch.arange(n_tokens)
        examples.append(ExampleActivations(idx, tokens, positions, rows[:-1], rows[-1]))
    return examples


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, derandomize=True, max_examples=15)
@given(data=st.data())
def test_every_finite_bit_pattern_round_trips_raggedly(tmp_path_factory, dtype, data):
    examples = data.draw(raw_examples(dtype))
    n_layers, _, d_model = examples[0].resid.shape
    fingerprint = dataclasses.replace(BASE, dtype=dtype, layers=n_layers, d_model=d_model)
    root = tmp_path_factory.mktemp("any")
    with writer(root, fingerprint, len(examples)) as filling:
        filling.publish(filling.missing()[0], examples)
        filling.seal()
    with ActivationStore(root).open(fingerprint) as cache:
        for wanted in examples:
            assert same(cache.example(wanted.idx), wanted)


def test_publishing_copies_no_activations(tmp_path):
    wide = dataclasses.replace(BASE, d_model=16384)
    with writer(tmp_path, wide, 32) as filling:
        shard = filling.missing()[0]
        examples = [make_example(idx, wide) for idx in shard.idx]
        n_bytes = sum(example.resid.nbytes for example in examples)
        tracemalloc.start()
        filling.publish(shard, examples)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert n_bytes > 5_000_000
    assert peak < 0.6 * n_bytes


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["resid", "final_norm"])
def test_a_value_that_is_not_finite_is_refused_by_name(tmp_path, value, where):
    examples = [make_example(idx) for idx in range(32)]
    tensor = getattr(examples[9], where).clone()
    tensor[..., 2, 5] = value
    examples[9] = dataclasses.replace(examples[9], **{where: tensor})
    with writer(tmp_path) as filling:
        with pytest.raises(WorkError, match="example idx 9: NaN or infinity at token position 5"):
            filling.publish(filling.missing()[0], examples)
        assert len(filling.missing()) == 3


@pytest.mark.parametrize("large", [20000.0, -20000.0])
def test_large_values_are_counted(tmp_path, large):
    examples = [make_example(idx) for idx in range(32)]
    examples[4].resid[1, 2, 3] = large
    examples[4].resid[1, 2, 4] = 9984.0
    with writer(tmp_path) as filling:
        filling.publish(filling.missing()[0], examples)
        with h5py.File(filling.path(filling.spec.shards()[0]), "r") as file:
            assert file.attrs["n_large"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"idx": 5},
        {"resid": torch.zeros(3, 4, 8)},
        {"resid": torch.zeros(2, 4, 8, dtype=torch.bfloat16)},
    ],
)
def test_examples_that_do_not_fit_the_plan_are_a_callers_error(tmp_path, change):
    examples = [make_example(idx) for idx in range(32)]
    examples[4] = dataclasses.replace(examples[4], **change)
    with writer(tmp_path) as filling, pytest.raises(ValueError, match=r"wants|wanted"):
        filling.publish(filling.missing()[0], examples)


def test_a_plan_of_other_examples_is_refused(tmp_path):
    fill(tmp_path, n=40)
    with pytest.raises(InputError, match="planned for 40 examples"):
        writer(tmp_path, n=41)


@pytest.mark.parametrize("idx", [[], [1, 2, 1]])
def test_an_empty_or_doubled_plan_is_refused(tmp_path, idx):
    with pytest.raises(InputError, match=r"no examples|named twice"):
        ActivationStore(tmp_path).writer(BASE, name="full", idx=idx, provenance={})


def test_an_incomplete_cache_is_not_opened_unless_asked(tmp_path):
    with writer(tmp_path) as filling:
        shard = filling.missing()[1]
        filling.publish(shard, [make_example(idx) for idx in shard.idx])
        with pytest.raises(WorkError, match="2 of 3 shards are missing"):
            filling.seal()
    store = ActivationStore(tmp_path)
    assert store.open(BASE) is None
    with pytest.raises(InputError, match="lensaudit cache --model full --data forget10"):
        open_activations("full", root=tmp_path)
    with store.open(BASE, allow_partial=True) as cache:
        assert not cache.complete
        assert cache.idx == shard.idx
        assert same(cache.example(33), make_example(33))
        with pytest.raises(InputError, match=r"does not hold example idx 0 .*incomplete"):
            cache.example(0)


def test_absent_is_none_and_another_fingerprint_is_absent(full):
    store = ActivationStore(full.parent)
    assert store.open(dataclasses.replace(BASE, weights="d" * 32)) is None
    assert ActivationStore(full.parent / "nowhere").open(BASE) is None


def test_a_folder_whose_spec_says_another_identity_is_refused_naming_both(tmp_path):
    folder = fill(tmp_path / "a", n=1)
    other = dataclasses.replace(BASE, weights="d" * 32)
    folder.rename(folder.with_name(f"full--{other.key()}"))
    with pytest.raises(VerificationError, match="weights"):
        writer(tmp_path / "a", other, n=1)
    with pytest.raises(VerificationError) as error:
        ActivationStore(tmp_path / "a").open(other)
    assert f"weights: {'a' * 32}, {'d' * 32}" in str(error.value)
    assert "lensaudit cache" in str(error.value)


def test_a_finished_cache_is_found_under_any_name(tmp_path):
    folder = fill(tmp_path, name="full")
    with writer(tmp_path, name="another name") as filling:
        assert filling.folder == folder
        assert filling.missing() == []
