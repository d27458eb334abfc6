"""Linear layers by oneDNN: the sums of `torch.nn.functional.linear`, where that is faster."""

import copy
import runpy

import pytest
import torch
from torch import nn

from lensaudit.models import linear as module
from lensaudit.models.linear import Linear, linear, with_fast_layers

WIDE = (512, 64, 128)


def draw(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(m)
    return torch.randn(2, m // 2, k), torch.randn(n, k), torch.randn(n)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the inputs that oneDNN gets."""
    seen: list[tuple[int, ...]] = []
    plain = module._ONEDNN
    if plain is None:
        pytest.skip("this build of PyTorch has no oneDNN")

    def noted(inner, *rest):
        seen.append(tuple(inner.shape))
        return plain(inner, *rest)

    monkeypatch.setattr(module, "_ONEDNN", noted)
    return seen


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_a_large_product_is_oneDNNs_and_as_exact_as_PyTorchs_own(calls, biased, turned):
    inner, weight, bias = draw(*WIDE)
    if turned:  # a slice of a joint projection of Conv1D is a view like this one
        weight = weight.T.contiguous().T
    found = linear(inner, weight, bias if biased else None)
    exact = nn.functional.linear(inner.double(), weight.double(), bias.double() if biased else None)
    assert calls == [(2, 256, 64)]
    assert found.shape == exact.shape
    assert found.dtype is torch.float32
    assert float((found - exact).abs().max()) < 1e-6 * float(exact.abs().max())


def test_a_small_product_stays_with_the_kernel_whose_calls_cost_less(calls):
    inner, weight, bias = draw(8, 64, 128)
    assert torch.equal(linear(inner, weight, bias), nn.functional.linear(inner, weight, bias))
    assert calls == []


@pytest.mark.parametrize("of", ["inner", "weight"])
def test_what_needs_gradients_has_them(calls, of):
    inner, weight, bias = draw(*WIDE)
    asked = {"inner": inner, "weight": weight}[of].requires_grad_()
    linear(inner, weight, bias).square().sum().backward()
    assert calls == []
    assert asked.grad is not None
    assert float(asked.grad.abs().sum()) > 0
    with torch.no_grad():
        linear(inner, weight, bias)
    assert len(calls) == 1


def test_other_precisions_are_PyTorchs_own(calls, monkeypatch):
    monkeypatch.setattr(module, "LOOPED", {torch.float16})
    inner, weight, bias = (one.bfloat16() for one in draw(*WIDE))
    assert torch.equal(linear(inner, weight, bias), nn.functional.linear(inner, weight, bias))
    inner, weight, bias = draw(*WIDE)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(inner, weight, bias).dtype is torch.bfloat16
    assert calls == []


@pytest.mark.parametrize("at_once", [2**20, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_a_loop_is_summed_in_float32_and_rounded_once(monkeypatch, dtype, at_once):
    monkeypatch.setattr(module, "LOOPED", {dtype})
    monkeypatch.setattr(module, "_MOST_WIDENED", at_once)
    inner, weight, bias = (one.to(dtype) for one in draw(*WIDE))
    found = linear(inner, weight, bias)
    exact = nn.functional.linear(inner.double(), weight.double(), bias.double())
    assert found.dtype is dtype
    # half a unit in the last bit, and what float32 sums are off by
    half = torch.finfo(dtype).eps / 2
    assert bool(((found - exact).abs() <= half * exact.abs() + 1e-5).all())
    own = nn.functional.linear(inner, weight, bias)
    assert float((found - own).abs().max()) <= 2 * half * float(own.abs().max())
    linear(inner, weight.requires_grad_(), bias).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("fp16", "bf16", "looped"),
    [
        (True, True, set()),
        (False, True, {torch.float16}),
        (True, False, {torch.bfloat16}),
        (False, False, {torch.float16, torch.bfloat16}),
    ],
)
def test_a_type_is_a_loop_where_the_processor_has_no_instructions_for_it(
    monkeypatch, fp16, bf16, looped
):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: fp16)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: bf16)
    assert runpy.run_path(str(module.__file__))["LOOPED"] == looped


@pytest.mark.parametrize("n_rows", [2, 4])
def test_a_few_rows_are_left_to_the_loop(monkeypatch, n_rows):
    widened = []
    monkeypatch.setattr(module, "LOOPED", {torch.float16})
    monkeypatch.setattr(module, "_ONEDNN", lambda *args: widened.append(1) or args[0])
    monkeypatch.setattr(module, "_FEWEST", 1)
    inner, weight, _ = (one.half() for one in draw(n_rows, 64, 64))
    linear(inner, weight, None)
    assert bool(widened) == (n_rows >= 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_is_summed_in_float32_where_it_would_be_a_loop(monkeypatch, dtype):
    monkeypatch.setattr(module, "LOOPED", {dtype})
    torch.manual_seed(0)
    one, other = torch.randn(2, 3, 8, 512).to(dtype), torch.randn(2, 3, 512, 8).to(dtype)
    with module.Widened():
        found = torch.matmul(one, other)
        assert torch.matmul(one.double(), other.double()).dtype is torch.float64
        assert torch.matmul(input=one, other=other).dtype is dtype  # as somebody's hook may call it
    exact = torch.matmul(one.double(), other.double())
    assert found.dtype is dtype
    half = torch.finfo(dtype).eps / 2
    assert bool(((found - exact).abs() <= half * exact.abs() + 1e-4).all())


def test_a_model_gets_them_and_keeps_its_weights(calls):
    class Odd(nn.Linear):
        """A forward pass of its own."""

    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), Odd(128, 64), nn.Linear(64, 64))
    model[3].weight = model[3].weight  # tied weights stay one tensor
    inner, _, _ = draw(2048, 64, 64)
    weights, names = [id(one) for one in model.parameters()], [*model.state_dict()]
    with torch.no_grad():
        before = model(inner)
        after = with_fast_layers(model)(inner)
    assert [type(one) for one in model] == [Linear, nn.GELU, Odd, Linear]
    assert [id(one) for one in model.parameters()] == weights
    assert [*model.state_dict()] == names
    assert len(calls) == 2
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_a_copy_computes_with_its_own_weights():
    model = with_fast_layers(nn.Sequential(nn.Linear(64, 128)))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
        twin[0].bias.zero_()
        inner = torch.randn(256, 64)
        assert float(twin(inner).abs().max()) == 0 < float(model(inner).abs().max())
