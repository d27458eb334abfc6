"""How long does `lensaudit demo` take from empty caches: by one process, and by two?

    python -m benchmarks.demo [--runs 2]

With one thread it is one process; with two, two processes with a thread each. Seconds of wall and
of processor, the median of runs that took turns. Tables that differ are an error and no line.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.commands import Ran, ran
from benchmarks.machine import describe
from benchmarks.work import NotMeasured

THREADS = ("1", "2")


def demonstrated(threads: str) -> Ran:
    """The demo in an empty folder; it says its table.

    Raises:
        NotMeasured: it failed, or wrote no page.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lensaudit", "demo", "--out", "out", "--quiet"]
        found = ran(command, folder, OMP_NUM_THREADS=threads)
        if not (Path(folder) / "out" / "audit.html").exists():
            raise NotMeasured(f"{threads} threads: no page was written")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2, help="of each; the median counts (2)")
    n_runs = parser.parse_args().runs
    print(f"{describe()}\n\n| threads | wall, s | processor, s | this / one thread |")
    print("|---|---|---|---|")
    found: dict[str, list[Ran]] = {threads: [] for threads in THREADS}
    for _ in range(n_runs):
        for threads, runs in found.items():
            runs.append(demonstrated(threads))
    if len({one.said for runs in found.values() for one in runs}) > 1:
        raise NotMeasured("two runs ended in different tables")
    walls = {threads: median(one.wall_s for one in runs) for threads, runs in found.items()}
    for threads, runs in found.items():
        used = median(one.processor_s for one in runs)
        ratio = walls[threads] / walls["1"]
        print(f"| {threads} | {walls[threads]:.0f} | {used:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
