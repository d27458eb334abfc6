"""Experiments and benchmarks are on the code of today: each can at least be imported."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [
    path for folder in ("experiments", "benchmarks") for path in (ROOT / folder).glob("*.py")
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_can_be_imported(path, monkeypatch):
    # they import each other: experiments by name, benchmarks as a package
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.syspath_prepend(str(ROOT))
    name = f"script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    assert module.__doc__
