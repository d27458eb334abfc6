"""NF4 and int8 are bitsandbytes' own, bit for bit; checked against stored numbers and live."""

import json
from pathlib import Path

import pytest
import torch

from lensaudit.models.quantize import NF4, int8, nf4

GOLDEN = json.loads((Path(__file__).parent / "golden" / "bitsandbytes.json").read_text())
LEVELS = torch.tensor(NF4)
MIDDLES = (LEVELS[:-1] + LEVELS[1:]) / 2
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = {"float32": torch.int32, "bfloat16": torch.int16, "float16": torch.int16}


def tensor_of(bits, case):
    width, dtype = WIDTHS[case["dtype"]], getattr(torch, case["dtype"])
    return torch.tensor(bits, dtype=width).view(dtype).reshape(case["shape"])


def weights(*shape, scale=1.0, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: f"{c['name']} {c['dtype']}")
def test_the_numbers_are_those_that_bitsandbytes_gave(case):
    weight = tensor_of(case["weight"], case)
    assert torch.equal(nf4(weight), tensor_of(case["nf4"], case))
    assert torch.equal(int8(weight), tensor_of(case["int8"], case))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(64, 64), (3, 50), (5, 7), (1, 1), (200, 333), (64, 176)], ids=str
)
def test_the_installed_bitsandbytes_gives_the_same_bits(shape, dtype):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (extra bnb)")
    from lensaudit.models.quantize import rounding_of

    for scale in (1.0, 1e-3, 30.0):
        weight = weights(*shape, scale=scale).to(dtype)
        for method, own in (("nf4", nf4), ("int8", int8)):
            packed = rounding_of(method, "bitsandbytes")(weight.clone()).reshape(shape)
            assert torch.equal(own(weight), packed), method


def test_halfway_between_two_levels_the_lower_is_taken():
    row = torch.cat([MIDDLES, torch.zeros(48), torch.ones(1)])
    above = torch.cat([MIDDLES.nextafter(torch.tensor(2.0)), torch.zeros(48), torch.ones(1)])
    assert torch.equal(nf4(row)[:15], LEVELS[:-1])
    assert torch.equal(nf4(above)[:15], LEVELS[1:])


def test_blocks_run_over_the_ends_of_rows():
    weight = torch.zeros(2, 96)
    weight[0, 64:], weight[1, :32] = 1.0, 100.0
    # the second block holds the end of row 0 and the start of row 1: 1 / 100 rounds to 0
    assert not nf4(weight)[0].any()
    assert torch.equal(nf4(weight)[1], weight[1])


def test_a_matrix_of_zeros_stays_zeros():
    for method in (nf4, int8):
        assert torch.equal(method(torch.zeros(4, 64)), torch.zeros(4, 64))


def test_the_error_on_gaussian_weights_is_the_published_one():
    weight = weights(512, 512, seed=2)
    relative = {m: float((m(weight) - weight).norm() / weight.norm()) for m in (nf4, int8)}
    assert relative[nf4] == pytest.approx(0.0921, abs=1e-3)  # ecosystem notes: 0.0921
    assert relative[int8] < 0.01


def test_quantising_twice_changes_nothing_more():
    weight = weights(8, 64, seed=3)
    assert torch.equal(nf4(nf4(weight)), nf4(weight))


def test_int8_worked_by_hand():
    # absmax 2: steps of 2 / 127; 1.0 is 63.5 steps, rounded to the even 64
    row = torch.tensor([[2.0, 1.0, -2.0]])
    assert int8(row)[0, 1] == pytest.approx(64 * 2 / 127, abs=1e-7)
    assert int8(row)[0, [0, 2]].tolist() == pytest.approx([2.0, -2.0], abs=1e-6)
