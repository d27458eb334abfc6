"""Experiments and benchmarks are on the code of today: each can at least be imported."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for pattern in ("experiments/*/*.py", "benchmarks/*.py")
    for path in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_imported(name):
    assert import_module(name).__doc__


def test_every_experiment_stands_in_the_list_and_nothing_else():
    listed = re.findall(
        r"`python -m (experiments[\w.]+)", (ROOT / "experiments/README.md").read_text()
    )
    scripts = [
        name
        for name in SCRIPTS
        if name.startswith("experiments.") and hasattr(import_module(name), "main")
    ]
    assert sorted(set(listed)) == sorted(scripts)
