"""Matrix products on a processor, by the fastest of PyTorch's kernels for them.

PyTorch multiplies float32 matrices by MKL, which serves processors other than Intel's with an older
kernel; oneDNN, which comes with PyTorch too, does the same sums in about half the time there
(`python -m benchmarks.linear`). A product's size decides, so a run's numbers stay those of the run.
For float16 and bfloat16, where the processor has no instructions for them, PyTorch has loops alone,
which take up to nine times as long (the same benchmark): there the product is made in float32, as
those loops sum, and rounded once.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FEWEST = 2**20
"""Multiplications of a product from which oneDNN, whose calls cost more, is the faster."""
_FEWEST_ROWS = 4
"""Rows from which a loop is slower than weights that are widened anew for each product."""
_MOST_WIDENED = 2**20
"""Weights that are float32 at once: 4 MB, which a cache of the processor holds."""
_ONEDNN: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
if not torch.backends.mkldnn.is_available():
    _ONEDNN = None
LOOPED = frozenset(
    dtype
    for dtype, said in ((torch.float16, "fp16"), (torch.bfloat16, "bf16"))
    if not getattr(torch.ops.mkldnn, f"_is_mkldnn_{said}_supported", bool)()
)
"""Types of numbers whose products are loops on this processor."""


def linear(
    inner: Float[Tensor, "*at d_in"], weight: Float[Tensor, "d_out d_in"], bias: Tensor | None
) -> Float[Tensor, "*at d_out"]:
    """`torch.nn.functional.linear`; with gradients, autocast or another device, that itself."""
    if _is_looped(inner, weight):
        wide = inner.float()
        parts = [
            linear(wide, rows.float(), None)
            for rows in weight.split(max(1, _MOST_WIDENED // weight.shape[1]))
        ]
        product = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return (product if bias is None else product + bias.float()).to(inner.dtype)
    if (
        _ONEDNN is None
        or inner.numel() * len(weight) < _FEWEST
        or inner.dtype is not torch.float32
        or weight.dtype is not torch.float32
        or not inner.is_cpu
        or not weight.is_cpu
        or torch.is_autocast_enabled("cpu")
        or (torch.is_grad_enabled() and (inner.requires_grad or weight.requires_grad))
    ):
        return nn.functional.linear(inner, weight, bias)
    return _ONEDNN(inner, weight, bias, "none", [], "")


def _is_looped(inner: Tensor, weight: Tensor) -> bool:
    return (
        inner.dtype is weight.dtype
        and inner.dtype in LOOPED
        and inner.is_cpu
        and inner.numel() >= _FEWEST_ROWS * inner.shape[-1]
        and not (torch.is_grad_enabled() and (inner.requires_grad or weight.requires_grad))
    )


class Widened(TorchFunctionMode):
    """While it lasts, `torch.matmul` of looped types, as in attention, is a float32 product."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called in place of every function of PyTorch."""
        if func is torch.matmul and not kwargs and args[0].dtype in LOOPED:
            return func(*(one.float() for one in args)).to(args[0].dtype)
        return func(*args, **(kwargs or {}))


class Linear(nn.Linear):
    """A linear layer of a loaded model; its weights are those of the one it was."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Linear`'s."""
        return linear(input, self.weight, self.bias)


def with_fast_layers(model: Any) -> Any:
    """`model`, whose plain linear layers are `Linear` from now on."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
    return model
