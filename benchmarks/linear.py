"""Which of PyTorch's two kernels multiplies float32 matrices faster on this processor?

    OMP_NUM_THREADS=1 python -m benchmarks.linear

MKL is what `torch.nn.functional.linear` uses; oneDNN is what `lensaudit.models.linear` uses of a
product large enough. Shapes of the embedded family, SmolLM2-135M and Llama-3.2-1B. The two take
turns; the fastest of each shape's runs, and the ratio of the two. Also how far both are from
float64, over the largest value. A second table has float16 and bfloat16, of layers and of attention
(`torch.matmul`): PyTorch's own product against one made in float32, whether or not this processor
has instructions for the type, and which of the two `lensaudit.models.linear` takes.
"""

import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import linear as plain

from benchmarks.machine import describe
from lensaudit.models import linear as products
from lensaudit.models.linear import Widened, linear

N_RUNS = 30
SHAPES = (
    *((8, 64, 128), (64, 64, 128), (512, 64, 256), (512, 64, 2000)),
    *((1, 576, 1536), (32, 576, 1536), (512, 576, 1536), (256, 576, 49152)),
    *((32, 2048, 8192), (512, 2048, 8192)),
)
"""Rows, columns in and out."""
HALF_SHAPES = ((2, 2048, 8192), (4, 2048, 8192), (16, 2048, 8192), (4, 576, 1536), (512, 576, 1536))
N_HALF_RUNS = 5
HALVES = (torch.float16, torch.bfloat16)


def seconds(run: Callable[[], Tensor]) -> float:
    """Of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    print(
        f"{describe()}\n\n| rows x in x out | MKL, us | chosen, us | ratio | MKL off by | chosen |"
    )
    print("|---|---|---|---|---|---|")
    torch.manual_seed(0)
    for m, k, n in SHAPES:
        inner, weight = torch.randn(m, k), torch.randn(n, k)
        both = (lambda: plain(inner, weight), lambda: linear(inner, weight, None))  # noqa: B023
        turns = [[seconds(run) for run in both] for _ in range(N_RUNS)]
        mkl, chosen = (min(one) for one in zip(*turns, strict=True))
        exact = plain(inner.double(), weight.double())
        off = [float((run() - exact).abs().max() / exact.abs().max()) for run in both]
        times = f"{mkl * 1e6:.0f} | {chosen * 1e6:.0f} | {mkl / chosen:.1f}"
        print(f"| {m} x {k} x {n} | {times} | {off[0]:.0e} | {off[1]:.0e} |")
    halves()


def halves() -> None:
    """Print the table of float16 and bfloat16."""
    print(
        "\n| product | type | PyTorch's own, us | in float32, us | ratio | taken |\n"
        "|---|---|---|---|---|---|"
    )
    looped = products.LOOPED
    with mock.patch.object(products, "LOOPED", frozenset(HALVES)):
        for dtype in HALVES:
            taken = "in float32" if dtype in looped else "PyTorch's own"
            for m, k, n in HALF_SHAPES:
                inner, weight = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
                own, wide = partial(plain, inner, weight), partial(linear, inner, weight, None)
                _compared(f"{m} x {k} x {n}", dtype, taken, own, wide)
            keys = torch.randn(64, 4, 40, 32).to(dtype)
            own = partial(torch.matmul, keys, keys.transpose(2, 3))
            _compared("64 x 4 heads, 40 x 32 x 40", dtype, taken, own, partial(_widened, own))


def _widened(product: Callable[[], Tensor]) -> Tensor:
    with Widened():
        return product()


def _compared(
    what: str,
    dtype: torch.dtype,
    taken: str,
    own: Callable[[], Tensor],
    wide: Callable[[], Tensor],
) -> None:
    turns = [(seconds(own), seconds(wide)) for _ in range(N_HALF_RUNS)]
    theirs, ours = (min(one) for one in zip(*turns, strict=True))
    name = str(dtype).removeprefix("torch.")
    times = f"{theirs * 1e6:.0f} | {ours * 1e6:.0f} | {theirs / ours:.1f}"
    print(f"| {what} | {name} | {times} | {taken} |")


if __name__ == "__main__":
    main()
