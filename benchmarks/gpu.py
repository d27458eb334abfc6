"""Does a CUDA device give the processor's numbers, and how fast? `make gpu`: ten minutes, offline.

    python -m benchmarks.gpu

The tests marked `gpu`, then the sweep on as many rows as TOFU's forget10 has, in both dtypes.
Writes benchmarks/gpu.json and prints it as a table; without a device it says so and returns 2.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.machine import describe
from benchmarks.shapes import Shape, random_model, shape_named
from benchmarks.sweep import Asked, arithmetic, bench_of, oracle_runs, sweep_runs
from benchmarks.work import share_of_peak
from lensaudit.files import write_json

N_ROWS = 367
"""Annotated questions of TOFU forget10."""
TESTS_S = 300
"""Of the ten minutes."""
OUT = Path(__file__).parent / "gpu.json"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Speed:
    """One dtype; no weights are loaded in any of these times."""

    dtype: str
    n_rows: int
    oracle_s: float
    """One pass per layer at its best batch size."""
    sweep_s: float
    """The source model run, and the sweep."""
    cached_s: float
    """The sweep alone, everything cached."""
    ke_s: float
    """As `sweep_s`, at the layers that are mostly KE."""
    cached_ke_s: float
    """As `cached_s`, at those."""
    peak_tflops: float
    """Of large matrix products."""
    sweep_share: float
    """Of that peak, useful arithmetic only."""
    cached_share: float
    memory_bytes: int
    """Above the weights, the most of these runs."""
    budget_bytes: int
    """That it was given above the weights."""

    @property
    def models_per_hour(self) -> float:
        """Sources audited at every layer."""
        return 3600 / self.sweep_s


def tested() -> dict[str, int]:
    """How many of the tests marked `gpu` passed, failed, and broke."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "tests/patching/test_on_a_gpu.py", "-rN"],
        cwd=ROOT,
        env=os.environ | offline,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TESTS_S,
    )
    print(done.stdout, file=sys.stderr)
    return counted(done.stdout)


def counted(said: str) -> dict[str, int]:
    """From the last line of pytest.

    >>> counted("== 1 failed, 12 passed in 3.1s ==")
    {'passed': 12, 'failed': 1, 'error': 0}
    """
    last = said.strip().rpartition("\n")[2]
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    return {word: found.get(word, 0) for word in ("passed", "failed", "error")}


def measured(shape: Shape, asked: Asked, *, n_rows: int = N_ROWS) -> Speed:
    """The sweep and the slow form on random weights.

    Raises:
        NotMeasured: rows were left out, or a share of the peak is above 1.
    """
    model = random_model(shape.config, dtype=asked.dtype, device=asked.device)
    with bench_of(shape, model, n_rows, asked) as bench:
        peak = asked.peak()
        fast = sweep_runs(bench, n_runs=asked.n_runs or 1)
        slow = oracle_runs(bench, n_runs=asked.n_runs or 1, n_layers=shape.n_oracle_layers)
        peak = max(peak, asked.peak())
        return Speed(
            dtype=asked.dtype,
            n_rows=n_rows,
            oracle_s=min(one.median for one in slow.values()),
            sweep_s=fast["b"].median,
            cached_s=fast["c"].median,
            ke_s=fast["d"].median,
            cached_ke_s=fast["e"].median,
            peak_tflops=peak / 1e12,
            sweep_share=share_of_peak(arithmetic(bench, cached=False), fast["b"].median, peak),
            cached_share=share_of_peak(arithmetic(bench, cached=True), fast["c"].median, peak),
            memory_bytes=max(one.peak_bytes for one in fast.values()),
            budget_bytes=bench.settings.memory_bytes,
        )


def table(speeds: Sequence[Speed]) -> list[str]:
    """Markdown lines."""
    head = [
        "| dtype | rows | (a) one pass per layer, s | (b) sweep, s | (c) all cached, s "
        "| (d) as (b), KE layers, s | (e) as (c), KE layers, s | share of peak: (b), (c) "
        "| memory above the weights, of the budget | models per hour |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return head + [
        f"| {one.dtype} | {one.n_rows} | {one.oracle_s:.3g} | {one.sweep_s:.3g} "
        f"| {one.cached_s:.3g} | {one.ke_s:.3g} | {one.cached_ke_s:.3g} "
        f"| {one.sweep_share:.0%}, {one.cached_share:.0%} of {one.peak_tflops:.3g} TFLOP/s "
        f"| {one.memory_bytes / 2**30:.1f} of {one.budget_bytes / 2**30:.0f} GiB "
        f"| {one.models_per_hour:.0f} |"
        for one in speeds
    ]


@torch.no_grad()
def main() -> int:
    """Test, measure, write; 1 where a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--memory", default="16G", help="budget above the weights")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.gpu: this machine has no CUDA device", file=sys.stderr)
        return 2
    tests, shape, machine = tested(), shape_named("llama-1b"), describe("cuda")
    counts = ", ".join(f"{n} {what}" for what, n in tests.items())
    print("\n".join([machine, "", f"tests: {counts}", "", *table([])]), flush=True)
    speeds: list[Speed] = []
    # a card is often lent for minutes: what is measured is written before the next is begun
    for dtype in ("bfloat16", "float32"):
        speeds.append(measured(shape, Asked(chosen.memory, 1, "cuda", dtype)))
        print(*table(speeds)[-1:], flush=True)
        rows = [asdict(one) | {"models_per_hour": one.models_per_hour} for one in speeds]
        found = {"machine": machine, "shape": shape.text, "tests": tests, "speeds": rows}
        write_json(chosen.out, found)
    return int(tests["failed"] + tests["error"] > 0 or not tests["passed"])


if __name__ == "__main__":
    sys.exit(main())
