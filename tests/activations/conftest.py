import pytest
from support.store_cases import fill


@pytest.fixture(scope="session")
def full(tmp_path_factory):
    """A complete cache, only read."""
    return fill(tmp_path_factory.mktemp("store"))


@pytest.fixture
def folder(tmp_path):
    """A complete cache of a test's own."""
    return fill(tmp_path / "store")
