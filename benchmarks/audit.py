"""Which part of an audit of one more model takes how long?

    OMP_NUM_THREADS=1 python -m benchmarks.audit

The family's anchors are there when an audit of one more of its models is asked for: their caches,
scores, maps, and what they say. An audit of another model makes them first, where the folder lacks
them; then the one in question is run in a process of its own. Processor seconds: other work on the
machine does not count. A part's own time: a model that is loaded to be cached counts as loaded.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

PARTS = (
    ("lensaudit.association.run", "load", "models loaded"),
    ("lensaudit.patching.session", "load", "models loaded"),
    (
        "lensaudit.association.run",
        "ask",
        "who has what: prompts and values read, by outputs and lens",
    ),
    ("lensaudit.patching.session", "fill", "caches: forget rows, kept rows, neutral rows"),
    ("lensaudit.patching.controls", "fit_alignment", "maps fitted"),
    (
        "lensaudit.patching.wavefront.Sweep",
        "run",
        "sweeps: S2, aligned, shuffled, shared, validity",
    ),
    ("lensaudit.patching.scoring.Lens", "score", "lens of every layer"),
    ("lensaudit.patching.session.Session", "answers", "what it says after the prefix"),
)
"""Where a function is called from, its name there, and the part that it is."""


class Clock:
    """Processor seconds of parts, each without the parts inside it."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self.inside: list[float] = [0.0]

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Count a function's time from now on."""
        plain: Callable[..., Any] = getattr(owner, name)

        @wraps(plain)
        def counted(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            self.inside.append(0.0)
            try:
                return plain(*args, **options)
            finally:
                took = time.process_time() - began
                self.parts[part] += took - self.inside.pop()
                self.inside[-1] += took

        setattr(owner, name, counted)


def found(path: str) -> Any:
    """A module, or a class in one."""
    module, _, last = path.rpartition(".")
    return getattr(import_module(module), last) if last[0].isupper() else import_module(path)


def measured(source: str, options: list[str]) -> dict[str, float]:
    """Seconds of each part of an audit in this process; its import is what it began with."""
    clock = Clock()
    for place, name, part in PARTS:
        clock.wrap(found(place), name, part)
    clock.parts["libraries imported"] = began = time.process_time()
    from lensaudit.cli.main import main as run

    wall = time.monotonic()
    try:
        run(["audit", "--source", source, "--suite", "none", "-q", *options])
    except SystemExit as left:
        if left.code:
            raise
    clock.parts["all else"] = time.process_time() - began - clock.inside[0]
    return {**clock.parts, "wall": time.monotonic() - wall}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--source", default="smollm2/npo")
    parser.add_argument("--before", default="smollm2/absent", help="audited first")
    parser.add_argument("--folder", type=Path, default=Path("build/audit-bench"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    options = ["--activations", str(asked.folder / "activations"), "--dtype", asked.dtype]
    if asked.inside:
        print(json.dumps(measured(asked.source, [*options, "-o", str(asked.folder / "one")])))
        return
    first = [
        sys.executable,
        "-m",
        "lensaudit",
        "audit",
        "--source",
        asked.before,
        "--suite",
        "none",
    ]
    before = [*first, "-q", *options, "-o", str(asked.folder / "before")]
    subprocess.run(before, check=True, capture_output=True)
    again = [sys.executable, "-m", "benchmarks.audit", *sys.argv[1:], "--inside"]
    told = subprocess.run(again, check=True, capture_output=True, text=True, env=os.environ)
    parts = json.loads(told.stdout.splitlines()[-1])
    wall = parts.pop("wall")
    print(f"{describe()}\n\n| part of `audit --source {asked.source}` | processor s |\n|---|---|")
    for part, seconds in sorted(parts.items(), key=lambda one: -one[1]):
        print(f"| {part} | {seconds:.1f} |")
    print(f"| all | {sum(parts.values()):.1f} ({wall:.0f} s passed) |")


if __name__ == "__main__":
    main()
