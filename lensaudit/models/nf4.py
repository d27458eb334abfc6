"""What is left of a weight matrix after four or eight bits? Quantise, dequantise, in plain torch.

The arithmetic is bitsandbytes' own, step by step, so that the numbers are equal to the last bit;
`tests/attacks` compares them on a CPU. The first forward pass of a bitsandbytes model on a CPU may
repack its weights, after which its own `dequantize` is wrong; nothing here is ever run packed.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
_AT_ONCE = 1 << 14
"""Blocks that are unpacked together: whole numbers of 8 bytes are made of their codes."""
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
    levels = torch.tensor(NF4, device=weight.device)
    middles = (levels[:-1] + levels[1:]) / 2
    codes = torch.bucketize(scaled.clamp(-1, 1), middles, out_int32=True)
    return codes, absmax.squeeze(1)


def nf4(weight: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The weight after NF4, in its own dtype: block of 64, scaled by its absolute maximum.

    >>> nf4(torch.tensor([0.5, 0.04, -2.0]))
    tensor([ 0.4922,  0.0000, -2.0000])
    """
    codes, absmax = nf4_codes(weight)
    levels = torch.tensor(NF4, device=weight.device)
    blocks = levels[codes] * absmax.unsqueeze(1)
    return blocks.reshape(-1)[: weight.numel()].reshape(weight.shape).to(weight.dtype)


def from_codes(
    codes: Int[Tensor, " weight"],
    levels: Float[Tensor, " level"],
    absmax: Float[Tensor, " block"],
    block: int,
) -> Float[Tensor, " weight"]:
    """What codes stand for: their level times the scale of their block.

    >>> from_codes(torch.tensor([0, 1, 1]), torch.tensor([-1.0, 0.5]), torch.tensor([2.0, 4.0]), 2)
    tensor([-2.,  1.,  2.])
    """
    found = torch.empty(len(codes))
    for start in range(0, len(codes), _AT_ONCE * block):
        some = slice(start, start + _AT_ONCE * block)
        scales = absmax[start // block : start // block + _AT_ONCE].repeat_interleave(block)
        values = levels[codes[some].long()]
        found[some] = values * scales[: len(values)]
    return found


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
