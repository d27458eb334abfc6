"""Which part of an audit of one more model takes how long?

    OMP_NUM_THREADS=1 python -m benchmarks.audit

The family's anchors are there when an audit of one more of its models is asked for: their caches,
scores, maps, and what they say. An audit of another model makes them first, in an empty folder;
then the one in question is run in a process of its own. Processor seconds: other work on the
machine does not count. A part's own time: a model that is loaded to be cached counts as loaded. A
part that never ran is an error: something had it already.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.work import NotMeasured
from lensaudit.settings import Dtype
from lensaudit.text import slug

ANSWERS = "what it answers when asked"
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
    ("lensaudit.patching.stages", "sweep", "sweeps: S2, aligned, shuffled, shared, validity"),
    ("lensaudit.patching.session.Session", "answers", "what it says after the prefix"),
    ("lensaudit.patching.asking", "generate", ANSWERS),
)
"""Where a function is called from, its name there, and the part that it is."""


class Clock:
    """Processor seconds of parts, each without the parts inside it."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self.inside: list[float] = [0.0]
        self.calls: Counter[str] = Counter()

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Count a function's time from now on."""
        plain: Callable[..., Any] = getattr(owner, name)

        @wraps(plain)
        def counted(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            self.inside.append(0.0)
            self.calls[part] += 1
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


def measured(
    source: str, folder: Path, dtype: Dtype, *, one_type: bool, unasked: bool
) -> dict[str, float]:
    """Seconds of each part of an audit in this process, with what it imports.

    Args:
        source: that is audited.
        folder: of all results and caches.
        dtype: type of the numbers.
        one_type: it is asked in no other type of numbers.
        unasked: it is not asked at all.

    Raises:
        NotMeasured: a part was not run.
    """
    clock = Clock()
    for place, name, part in PARTS:
        clock.wrap(found(place), name, part)
    from lensaudit.association.calls import WHO_HAS_WHAT
    from lensaudit.auditing.audit import audit_into
    from lensaudit.auditing.settings import AuditSettings
    from lensaudit.patching.asking import DirectQuestions

    if one_type:
        setattr(DirectQuestions, "types", lambda self, source: [])  # noqa: B010
    clock.parts["libraries imported"] = began = time.process_time()
    asked = AuditSettings(suite="none", activations=folder / "activations", dtype=dtype)
    asked = replace(asked, ask="none") if unasked else asked
    audit_into([source], asked, folder / slug(source), who=WHO_HAS_WHAT)
    left_out = {ANSWERS} if unasked else set()
    if missing := {part for *_, part in PARTS} - left_out - set(clock.calls):
        raise NotMeasured(f"parts that never ran: {', '.join(sorted(missing))}")
    clock.parts["all else"] = time.process_time() - began - clock.inside[0]
    return clock.parts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", default="smollm2/npo")
    parser.add_argument("--before", default="smollm2/absent", help="audited first")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--one-type", action="store_true", help="asked in --dtype alone")
    parser.add_argument("--unasked", action="store_true", help="not asked at all")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        how = {"one_type": asked.one_type, "unasked": asked.unasked}
        found = measured(asked.source, asked.folder, asked.dtype, **how)
        print(json.dumps(found))
        return
    machine = describe()
    with tempfile.TemporaryDirectory() as folder:
        again = [sys.executable, "-m", "benchmarks.audit", *sys.argv[1:], "--inside"]
        again += ["--folder", folder]
        subprocess.run([*again, "--source", asked.before], check=True, stdout=subprocess.PIPE)
        wall = time.monotonic()
        told = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True)
        wall = time.monotonic() - wall
    parts = json.loads(told.stdout.splitlines()[-1])
    print(f"{machine}\n\n| part of an audit of {asked.source} | processor s |\n|---|---|")
    for part, seconds in sorted(parts.items(), key=lambda one: -one[1]):
        print(f"| {part} | {seconds:.1f} |")
    print(f"| all | {sum(parts.values()):.1f} |\n\n{wall:.0f} s passed.")


if __name__ == "__main__":
    main()
