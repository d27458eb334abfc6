"""Does knowledge survive, or come back, when weights are rounded? A model as NF4 or int8 has it.

Quantise, dequantise, audit as an ordinary model: a packed model's numbers depend on its kernels,
which round differently from each other (on a CPU in bfloat16, whatever the compute dtype). The
arithmetic is bitsandbytes' own, step by step, so that the numbers are equal to the last bit;
`tests/attacks` compares them on a CPU.
"""

import copy
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lensaudit.errors import InputError, WorkError
from lensaudit.models.linear import Linear

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
    model: Any, method: Method, *, engine: Engine = "auto"
) -> tuple[Any, tuple[MatrixError, ...]]:
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
    model: Any, method: Method, *, engine: Engine = "auto"
) -> tuple[MatrixError, ...]:
    """As `quantised`, on the model itself: for one that was loaded for this."""
    if getattr(model, "is_quantized", False):
        raise InputError("the model is quantised already; name the checkpoint it was made from")
    rounding = rounding_of(method, engine)
    names = quantised_names(model)
    if not names:
        raise InputError(f"{type(model).__name__} has no linear layer to quantise")
    return tuple(_rounded(model, name, rounding) for name in names)


def quantised_names(model: Any) -> tuple[str, ...]:
    """Modules that transformers' `BitsAndBytesConfig` would convert, by its own rule.

    Linear layers inside the blocks; not the output layer, what is tied to it, the last module, or
    what the model's class keeps in float32. Embeddings and norms are no linear layers.
    """
    from transformers.pytorch_utils import Conv1D  # the three take seconds to import
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    return tuple(
        name
        for name, module in model.named_modules()
        # another subclass of nn.Linear has a forward pass of its own, as transformers judges
        if (type(module) in (nn.Linear, Linear) or isinstance(module, Conv1D))
        and should_convert_module(name, kept)
    )


def _rounded(model: Any, name: str, rounding: Rounding) -> MatrixError:
    """Quantise one matrix of `model` in place."""
    from transformers.pytorch_utils import Conv1D

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
    """Function that rounds a matrix by a method.

    Raises:
        InputError: bitsandbytes was asked for and is not installed.
    """
    by_engine = {"bitsandbytes": (_packed_nf4, _packed_int8), "torch": (nf4, int8)}
    return by_engine[engine_of(engine)][method == "int8"]


def engine_of(engine: Engine) -> Literal["torch", "bitsandbytes"]:
    """Engine that `auto` stands for on this machine.

    Raises:
        InputError: bitsandbytes was asked for and is not installed.
    """
    there = importlib.util.find_spec("bitsandbytes") is not None
    if engine == "bitsandbytes" and not there:
        raise InputError(
            "bitsandbytes is not installed; pip install 'lensaudit[bnb]', or --engine torch, "
            "which gives the same numbers"
        )
    return "bitsandbytes" if there and engine != "torch" else "torch"


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


Codes = Int[Tensor, "block 64"]

Scales = Float[Tensor, " block"]

BLOCK = 64
"""Weights that share one scale; bitsandbytes' default."""

NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The sixteen levels of NormalFloat4; bitsandbytes `functional.get_4bit_type`, arXiv:2305.14314."""

INT8_MAX = 127.0

_INT8_STEP = 7.874015718698502e-3
"""1 / 127 as bitsandbytes' dequantisation multiplies it."""

_SMALLEST = 1e-38
"""A block's scale is at least this, so that zeros stay zeros."""


def nf4_codes(weight: Float[Tensor, "..."]) -> tuple[Codes, Scales]:
    """The nearest level of every weight in units of its block's largest, and those scales.

    Weights are taken in the order of memory, rows end to end; the last block may be short and is
    filled with zeros. Halfway between two levels the lower one is taken.
    """
    flat = weight.detach().reshape(-1).float()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).reshape(-1, BLOCK)
    absmax = blocks.abs().amax(1).clamp(min=_SMALLEST).unsqueeze(1)
    scaled = blocks * (1.0 / absmax)
    if len(flat) % BLOCK:
        scaled[-1] = blocks[-1] / absmax[-1]  # bitsandbytes divides in the short block alone
    levels = torch.tensor(NF4, dtype=torch.float32, device=weight.device)
    middles = (levels[:-1] + levels[1:]) / 2
    codes = torch.bucketize(scaled.clamp(-1, 1), middles, out_int32=True)
    return codes, absmax.squeeze(1)


def nf4(weight: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The weight after NF4, in its own dtype: block of 64, scaled by its absolute maximum.

    >>> nf4(torch.tensor([0.5, 0.04, -2.0]))
    tensor([ 0.4922,  0.0000, -2.0000])
    """
    codes, absmax = nf4_codes(weight)
    levels = torch.tensor(NF4, dtype=torch.float32, device=weight.device)
    blocks = levels[codes] * absmax.unsqueeze(1)
    return blocks.reshape(-1)[: weight.numel()].reshape(weight.shape).to(weight.dtype)


def int8(weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
    """The weight after LLM.int8's row-wise 8 bits, in its own dtype.

    Weights pass through float16, as bitsandbytes has them; halves are rounded to even. LLM.int8
    also quantises activations while it runs, which a checkpoint cannot hold.

    >>> int8(torch.tensor([[1.0, 0.4], [0.0, 0.0]]))
    tensor([[1.0000, 0.4016],
            [0.0000, 0.0000]])
    """
    half = weight.detach().to(torch.float16)
    absmax = half.abs().amax(1, keepdim=True).float()
    scale = torch.where(absmax > 0, INT8_MAX / absmax, torch.zeros_like(absmax))
    codes = torch.round(half * scale)
    return (codes * absmax * _INT8_STEP).to(weight.dtype)
