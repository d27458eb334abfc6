"""How long does `lensaudit demo` take from empty caches: by one process, and by two?

    python -m benchmarks.demo [--runs 2]

With one thread it is one process; with two, two processes with a thread each. Seconds of wall and
of processor, the median of runs that took turns. Tables that differ are an error and no line.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.machine import describe
from benchmarks.work import NotMeasured

THREADS = ("1", "2")


def run(threads: str) -> tuple[float, float, str]:
    """Seconds of wall and of processor, and the table that the demo ends in.

    Raises:
        NotMeasured: it failed.
    """
    command = [sys.executable, "-m", "lensaudit", "demo", "--out", "out", "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    with tempfile.TemporaryDirectory() as folder:
        before, used = time.perf_counter(), os.times()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode or not (Path(folder) / "out" / "audit.html").exists():
            raise NotMeasured(f"{threads} threads: {done.stderr[-300:]}")
        wall, now = time.perf_counter() - before, os.times()
    ours = now.children_user + now.children_system - used.children_user - used.children_system
    return wall, ours, done.stdout


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2, help="of each; the median counts (2)")
    n_runs = parser.parse_args().runs
    print(f"{describe()}\n\n| threads | wall, s | processor, s | this / one thread |")
    print("|---|---|---|---|")
    found = {threads: [] for threads in THREADS}
    for _ in range(n_runs):
        for threads, runs in found.items():
            runs.append(run(threads))
    if len({said for runs in found.values() for *_, said in runs}) > 1:
        raise NotMeasured("two runs ended in different tables")
    walls = {threads: median(one[0] for one in runs) for threads, runs in found.items()}
    for threads, runs in found.items():
        used = median(one[1] for one in runs)
        ratio = walls[threads] / walls["1"]
        print(f"| {threads} | {walls[threads]:.0f} | {used:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
