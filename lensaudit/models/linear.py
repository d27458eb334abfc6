"""Linear layers on a processor, by the fastest of PyTorch's kernels for it.

PyTorch multiplies float32 matrices by MKL, which serves processors other than Intel's with an older
kernel; oneDNN, which comes with PyTorch too, does the same sums in about half the time there
(`python -m benchmarks.linear`). A product's size decides, so a run's numbers stay those of the run.
For float16 it has a loop alone on most processors, up to twenty times slower: there the product is
made in float32, as that loop sums, and rounded once.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

_FEWEST = 2**20
"""Multiplications of a product from which oneDNN, whose calls cost more, is the faster."""
_MOST_WIDENED = 2**22
"""Weights that are float32 at once: 16 MB."""
_ONEDNN: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
if not torch.backends.mkldnn.is_available():
    _ONEDNN = None


def linear(
    inner: Float[Tensor, "*at d_in"], weight: Float[Tensor, "d_out d_in"], bias: Tensor | None
) -> Float[Tensor, "*at d_out"]:
    """`torch.nn.functional.linear`; with gradients, autocast or another device, that itself."""
    if _is_half_on_a_processor(inner, weight):
        parts = [
            nn.functional.linear(inner.float(), rows.float())
            for rows in weight.split(max(1, _MOST_WIDENED // weight.shape[1]))
        ]
        product = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return (product if bias is None else product + bias.float()).half()
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


def _is_half_on_a_processor(inner: Tensor, weight: Tensor) -> bool:
    return (
        inner.dtype is weight.dtype is torch.float16
        and inner.is_cpu
        and not (torch.is_grad_enabled() and (inner.requires_grad or weight.requires_grad))
    )


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
