"""Doctests of the package: what holds none is not imported to be searched for them."""

from pathlib import Path

PACKAGE = Path(__file__).parent / "lensaudit"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Half of the modules of the package, with all that they import, in each process of a run."""
    if collection_path.suffix == ".py" and collection_path.is_relative_to(PACKAGE):
        return ">>> " not in collection_path.read_text() or None
    return None
