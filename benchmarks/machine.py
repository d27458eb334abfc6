"""The machine a table was measured on, its matrix-multiply peak, and what a run needs of memory."""

import ctypes
import gc
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from lensaudit.models.linear import linear

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile")
STATUS = Path("/proc/self/status")


def describe(device: str = "cpu") -> str:
    """Processor, cores, vector flags, memory, card, versions; nothing that names the machine."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", cpuinfo)
    flags = [flag for flag in FLAGS if re.search(rf"\b{flag}\b", cpuinfo)]
    kib = int(re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())[1])
    return (
        f"{name[1].strip() if name else platform.machine()}, {os.cpu_count()} cores "
        f"({', '.join(flags)}), {kib / 2**20:.0f} GB; {_card(device)}"
        f"{torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, Python {platform.python_version()}; "
        f"load before the run {os.getloadavg()[0]:.1f}"
    )


def _card(device: str) -> str:
    if device == "cpu":
        return ""
    about = torch.cuda.get_device_properties(device)
    return f"{about.name}, {about.total_memory / 2**30:.0f} GB; "


def help_ratio(*, n_runs: int = 7) -> str:
    """How long `lensaudit --help` takes, in starts of an interpreter that imports click."""
    commands = {"help": ["-m", "lensaudit.cli.main", "--help"], "click": ["-c", "import click"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(n_runs):
        for name, arguments in commands.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - started)
    shown, bare = median(seconds["help"]), median(seconds["click"])
    return (
        f"`lensaudit --help` {shown:.2f} s, `python -c 'import click'` {bare:.2f} s: "
        f"{shown / bare:.1f}x"
    )


def matmul_peak(
    *, n_tries: int = 5, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> float:
    """FLOP/s of the best of some large matrix products, by every kernel the engine may use."""
    best = 0.0
    shapes = [(2048, 2048, 8192), (2048, 8192, 2048), (512, 2048, 16384)]
    # a card is not filled by what fills a processor
    shapes += [(8192, 8192, 8192), (16384, 2048, 8192)] if device != "cpu" else []
    for rows, inner, columns in shapes:
        left = torch.randn(rows, inner, device=device, dtype=dtype)
        right = torch.randn(columns, inner, device=device, dtype=dtype)
        kernels = (torch.nn.functional.linear, lambda x, weight: linear(x, weight, None))
        for product in kernels * n_tries:
            _wait(device)
            started = time.perf_counter()
            product(left, right)
            _wait(device)
            elapsed = time.perf_counter() - started
            best = max(best, 2 * rows * inner * columns / elapsed)
    return best


@dataclass(frozen=True)
class Timed:
    """Wall-clock seconds of some runs, and the most memory one of them took."""

    seconds: tuple[float, ...]
    peak_bytes: int
    """Above what the process held before: weights and libraries are not counted."""

    @property
    def median(self) -> float:
        """Median seconds."""
        return median(self.seconds)


def timed(run: Callable[[], object], *, n_runs: int, what: str = "", device: str = "cpu") -> Timed:
    """Run a few times, and keep the time of each; progress is told on stderr."""
    seconds, peak = [], 0
    for _ in range(n_runs):
        before = _settle(device)
        started = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - started)
        peak = max(peak, _most(device) - before)
        print(f"{what}: {seconds[-1]:.2f} s, peak {peak >> 20} MB", file=sys.stderr, flush=True)
    return Timed(tuple(seconds), peak)


def _wait(device: str) -> None:
    """A CUDA device works on after a call has returned."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def _most(device: str) -> int:
    return _status("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated(device)


def _settle(device: str) -> int:
    """Give freed memory back, start the high-water mark anew; bytes held now."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str) -> int:
    return 1024 * int(re.search(rf"{field}:\s*(\d+) kB", STATUS.read_text())[1])
