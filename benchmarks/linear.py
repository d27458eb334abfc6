"""Which of PyTorch's two kernels multiplies float32 matrices faster on this processor?

    OMP_NUM_THREADS=1 python -m benchmarks.linear

MKL is what `torch.nn.functional.linear` uses; oneDNN is what `lensaudit.models.linear` uses of a
product large enough. Shapes of the embedded family, SmolLM2-135M and Llama-3.2-1B. The two take
turns; the fastest of each shape's runs, and the ratio of the two. Also how far both are from
float64, over the largest value.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear as plain

from benchmarks.machine import describe
from lensaudit.models.linear import linear

N_RUNS = 30
SHAPES = (
    *((8, 64, 128), (64, 64, 128), (512, 64, 256), (512, 64, 2000)),
    *((1, 576, 1536), (32, 576, 1536), (512, 576, 1536), (256, 576, 49152)),
    *((32, 2048, 8192), (512, 2048, 8192)),
)
"""Rows, columns in and out."""


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


if __name__ == "__main__":
    main()
