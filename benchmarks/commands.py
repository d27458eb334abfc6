"""A command in a process of its own: how long it took, of the clock and of processors."""

import os
import resource
import subprocess
import time
from dataclasses import dataclass

from benchmarks.work import NotMeasured


@dataclass(frozen=True)
class Ran:
    """A command in a process of its own, with all that it began."""

    wall_s: float
    processor_s: float
    said: str


def ran(command: list[str], folder: str, **environment: str) -> Ran:
    """Run a command in a folder.

    Raises:
        NotMeasured: it failed.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    how = {"cwd": folder, "env": os.environ | environment}
    done = subprocess.run(command, **how, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasured(f"{' '.join(command)}: {done.stderr[-300:]}")
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(wall, used, done.stdout)
