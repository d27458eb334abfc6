"""Does knowledge survive, or come back, when weights are rounded? A model as NF4 or int8 has it.

Quantise, dequantise, audit as an ordinary model: a packed model's numbers depend on its kernels,
which round differently from each other (on a CPU in bfloat16, whatever the compute dtype).
"""

import copy
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from lensaudit.errors import InputError, WorkError
from lensaudit.models.nf4 import BLOCK, int8, nf4

Method = Literal["nf4", "int8"]
Engine = Literal["auto", "torch", "bitsandbytes"]

Rounding = Callable[[Tensor], Tensor]
"""A weight matrix to what quantisation leaves of it, in the same dtype."""


@dataclass(frozen=True)
class MatrixError:
    """What quantisation did to one matrix."""

    name: str
    n_weights: int
    norm: float
    """Frobenius norm of the matrix."""
    error: float
    """Frobenius norm of the difference."""
    largest: float
    """Largest absolute difference of a weight."""

    @property
    def relative(self) -> float:
        """Error over norm; 0 for a matrix of zeros.

        About .09 for NF4 and .01 for int8 on Gaussian weights.
        """
        return self.error / self.norm if self.norm else 0.0


def overall(errors: Sequence[MatrixError]) -> float:
    """The relative error of all matrices as one vector."""
    norm = math.hypot(*(one.norm for one in errors))
    return math.hypot(*(one.error for one in errors)) / norm if norm else 0.0


def quantised(
    model: PreTrainedModel, method: Method, *, engine: Engine = "auto"
) -> tuple[PreTrainedModel, tuple[MatrixError, ...]]:
    """A copy of a causal model with its linear layers quantised and dequantised; the errors.

    The copy has the model's dtype and device, and is as large; `model` stays as it is. A weight is
    rounded to the model's dtype twice at most: load a bfloat16 checkpoint in bfloat16 to have what
    bitsandbytes with compute dtype bfloat16 multiplies with.

    Args:
        model: in its own precision; a model that is quantised already is refused.
        method: `nf4` (block 64, absmax, no double quantisation) or `int8` (row-wise absmax).
        engine: bitsandbytes where it is installed (`auto`), or one of the two; the numbers are
            the same.

    Raises:
        InputError: quantised already, nothing to quantise, or bitsandbytes is absent.
        WorkError: a weight is not finite.
    """
    twin = copy.deepcopy(model)
    return twin, quantise_in_place(twin, method, engine=engine)


def quantise_in_place(
    model: PreTrainedModel, method: Method, *, engine: Engine = "auto"
) -> tuple[MatrixError, ...]:
    """As `quantised`, on the model itself: for one that was loaded for this."""
    if getattr(model, "is_quantized", False):
        raise InputError("the model is quantised already; name the checkpoint it was made from")
    rounding = rounding_of(method, engine)
    names = quantised_names(model)
    if not names:
        raise InputError(f"{type(model).__name__} has no linear layer to quantise")
    return tuple(_rounded(model, name, rounding) for name in names)


def quantised_names(model: PreTrainedModel) -> tuple[str, ...]:
    """Modules that transformers' `BitsAndBytesConfig` would convert, by its own rule.

    Linear layers inside the blocks; not the output layer, what is tied to it, or the last module.
    Embeddings and norms are no linear layers.
    """
    kept = get_keys_to_not_convert(model)
    return tuple(
        name
        for name, module in model.named_modules()
        # exactly: a subclass of Linear has a forward pass of its own, as transformers judges
        if (type(module) is nn.Linear or isinstance(module, Conv1D))
        and should_convert_module(name, kept)
    )


def _rounded(model: PreTrainedModel, name: str, rounding: Rounding) -> MatrixError:
    """Quantise one matrix of `model` in place."""
    module = model.get_submodule(name)
    weight: Any = module.weight
    if not bool(weight.isfinite().all()):
        raise WorkError(f"{name}: holds weights that are not finite; check the checkpoint")
    # Conv1D keeps [in, out]; bitsandbytes quantises [out, in]
    turned = isinstance(module, Conv1D)
    before = weight.detach().T.contiguous() if turned else weight.detach()
    after = rounding(before)
    if not bool(after.isfinite().all()):
        raise WorkError(f"{name}: weights beyond the range of float16; int8 cannot hold them")
    difference = after.float() - before.float()
    error = MatrixError(
        name=name,
        n_weights=weight.numel(),
        norm=float(before.float().norm()),
        error=float(difference.norm()),
        largest=float(difference.abs().max()),
    )
    with torch.no_grad():
        weight.copy_(after.T if turned else after)
    return error


def rounding_of(method: Method, engine: Engine) -> Rounding:
    """What rounds a matrix.

    Raises:
        InputError: bitsandbytes was asked for and is not installed.
    """
    if engine_of(engine) == "bitsandbytes":
        return _packed_nf4 if method == "nf4" else _packed_int8
    return nf4 if method == "nf4" else int8


def engine_of(engine: Engine) -> Literal["torch", "bitsandbytes"]:
    """What `auto` means here.

    Raises:
        InputError: bitsandbytes was asked for and is not installed.
    """
    if engine == "torch":
        return "torch"
    if importlib.util.find_spec("bitsandbytes") is not None:
        return "bitsandbytes"
    if engine == "bitsandbytes":
        raise InputError(
            "bitsandbytes is not installed; pip install 'lensaudit[bnb]', or --engine torch, "
            "which gives the same numbers"
        )
    return "torch"


def _packed_nf4(weight: Tensor) -> Tensor:
    from bitsandbytes import functional  # pyright: ignore[reportMissingImports]

    # as one row: for rows of 32 or more that are no multiple of 64 the CPU kernel of 0.50.2 reads
    # the wrong scales (relative error .2 instead of .09)
    row = weight.reshape(1, -1)
    codes, state = functional.quantize_4bit(
        row, blocksize=BLOCK, quant_type="nf4", compress_statistics=False
    )
    return functional.dequantize_4bit(codes, state).reshape(weight.shape)


def _packed_int8(weight: Tensor) -> Tensor:
    from bitsandbytes import functional  # pyright: ignore[reportMissingImports]

    codes, scales, _ = functional.int8_vectorwise_quant(weight.to(torch.float16))
    return functional.int8_vectorwise_dequant(codes, scales).to(weight.dtype)
