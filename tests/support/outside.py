"""Code from outside as a test has it: the example package, as pip would leave it, and own files."""

import importlib
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

from lensaudit.attacks.elicit import ATTACKS
from lensaudit.doors.suites import SUITES
from lensaudit.gym.auditors import AUDITORS
from lensaudit.metrics.registry import METRICS, all_metrics

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
PACKAGE = "lensaudit_example"


def entry_points(folder: Path, **groups: dict[str, str]) -> None:
    """A folder of the path in which a distribution says that it has these entries."""
    place = folder / f"{folder.name}-1.0.dist-info"
    place.mkdir(parents=True)
    lines = [
        f"[lensaudit.{group}]\n" + "".join(f"{name} = {one}\n" for name, one in entries.items())
        for group, entries in groups.items()
    ]
    (place / "entry_points.txt").write_text("".join(lines))
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1.0\n")


def of_the_example() -> dict[str, dict[str, str]]:
    """Its entries, as pyproject.toml has them."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    groups = project["entry-points"].items()
    return {group.removeprefix("lensaudit."): entries for group, entries in groups}


@contextmanager
def nothing_left(*packages: str):
    """What is entered in the block, and what is imported of these packages, is gone after it."""
    all_metrics()
    registers = (METRICS, SUITES, ATTACKS, AUDITORS)
    before = [dict(one) for one in registers]
    try:
        yield
    finally:
        for one, known in zip(registers, before, strict=True):
            one.clear()
            one.update(known)
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]
        importlib.invalidate_caches()
