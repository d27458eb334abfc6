"""What does an engine of `lensaudit sweep` cost before and between units?

Command: python -m benchmarks.engines [--engine pool] [--checkpoints 16]

Units of this benchmark do nothing but publish a result, so that what is measured is the engine:
seconds until the first unit begins, seconds per further unit, and memory of the processes it starts
(proportional set size, sampled; pages shared by processes count once). `real` units import what
measuring imports, and stand for a worker's memory.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lensaudit.sweep.attempts import publish
from lensaudit.sweep.plan import Target, UnitConditions, make_plan, read_plan, write_plan
from lensaudit.sweep.run import run_sweep
from lensaudit.sweep.settings import RunSettings

ENGINES = {
    "serial": RunSettings(),
    "pool": RunSettings(engine="pool", workers=2),
    "ray": RunSettings(engine="ray", workers=2),
    "submitit": RunSettings(engine="slurm", cluster="local", workers=2),
}
PACKAGES = {"ray": "ray", "submitit": "submitit"}


def idle(sweep, unit, obtain, halvings, report):
    """A unit that only publishes."""
    work = sweep.work(unit.id)
    (work / "eval").mkdir(parents=True, exist_ok=True)
    publish(sweep, unit, {"values": {}, "seconds": 0.0, "halvings": 0})


def real(sweep, unit, obtain, halvings, report):
    """A unit that imports what measuring imports, and stays for a moment."""
    import lensaudit.sweep.unit  # noqa: F401

    time.sleep(1.0)
    idle(sweep, unit, obtain, halvings, report)


def toy_plan(root: Path, n: int) -> None:
    targets = [Target(f"m{i}", f"org/m{i}", "main", "unlearned", None, True) for i in range(n)]
    anchors = {
        role: Target(role, f"org/{role}", "main", role, None, True) for role in ("retain", "full")
    }
    plan = make_plan(
        root,
        targets,
        anchors=anchors,
        variants=("base",),
        conditions=UnitConditions(),
        data="",
        attacks={},
    )
    write_plan(plan)


def drive(root: str, runner: str, engine: str) -> None:
    """In a process of its own: the run itself, with the clock of its beginning on disk."""
    from lensaudit.sweep.engines import engine_of

    settings, folder = ENGINES[engine], Path(root)
    made = engine_of(settings, read_plan(folder), report=print)
    run_sweep(folder, made, settings, print, runner=runner)


def measured(engine: str, runner: str, n: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        toy_plan(root, n)
        code = (
            "import sys; from benchmarks.engines import drive;"
            f"drive({str(root)!r}, {'benchmarks.engines:' + runner!r}, *sys.argv[1:])"
        )
        begun = time.time()
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        process = subprocess.Popen(
            [sys.executable, "-c", code, engine],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        peak = [0, 0]
        sampler = threading.Thread(target=_sample, args=(process, peak), daemon=True)
        sampler.start()
        _, errors = process.communicate()
        if process.returncode:
            sys.exit(f"{engine}: {errors.decode()[-500:]}")
        ended = time.time()
        starts = sorted(_starts(root))
        assert len(list((root / "units").iterdir())) == n + 2
        return {
            "first unit after, s": starts[0] - begun,
            # the anchors are two runs of their own
            "per further unit, s": (starts[-1] - starts[2]) / max(1, len(starts) - 3),
            "whole run, s": ended - begun,
            "processes": peak[0],
            "memory, MB": peak[1] / 1e6,
        }


def _starts(root: Path) -> list[float]:
    lines = [line for log in (root / "attempts").iterdir() for line in log.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return [row["time"] for row in rows if row["event"] == "start"]


def _sample(process: subprocess.Popen, peak: list[int]) -> None:
    while process.poll() is None:
        tree = _family(process.pid)
        total = sum(_pss(pid) for pid in tree)
        peak[0], peak[1] = max(peak[0], len(tree)), max(peak[1], total)
        time.sleep(0.2)


def _family(root: int) -> set[int]:
    """A process and all that come from it; engines' servers keep its session or its parent."""
    parents, found = {}, {root}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(x.split()[1]) * 1024 for x in text.splitlines() if x.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--checkpoints", type=int, default=16)
    options = parser.parse_args()
    print(f"{platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    columns: list[str] = []
    for engine in options.engine or ENGINES:
        package = PACKAGES.get(engine)
        if package and importlib.util.find_spec(package) is None:
            print(f"{engine}: {package} is not installed")
            continue
        row = measured(engine, "idle", options.checkpoints)
        row["memory with imports, MB"] = measured(engine, "real", 4)["memory, MB"]
        if not columns:
            columns = list(row)
            print(f"| engine | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
        print(f"| {engine} | {' | '.join(f'{row[name]:.2f}' for name in columns)} |", flush=True)


if __name__ == "__main__":
    main()
