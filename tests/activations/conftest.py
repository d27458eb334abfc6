"""The fault drills of the benchmarks, for short runs here."""

import importlib.util
import sys
from pathlib import Path

import pytest

DRILLS = Path(__file__).parents[2] / "benchmarks" / "store_faults.py"


@pytest.fixture(scope="session")
def drills():
    """The module `benchmarks/store_faults.py`, on a cache of 5 shards."""
    spec = importlib.util.spec_from_file_location("store_faults", DRILLS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["store_faults"] = module
    spec.loader.exec_module(module)
    module.N_EXAMPLES = 160
    return module
