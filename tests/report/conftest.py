"""Pages in a real browser, where this machine has one."""

import pytest
from chromium import Chromium, find
from report_cases import sweep

from lensaudit.report.render import write_report


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium, shared by all tests of this folder."""
    program = find()
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    try:
        chromium = Chromium(program, tmp_path_factory.mktemp("chromium"))
    except (AssertionError, OSError) as error:
        pytest.skip(f"{program} does not start: {error}")
    yield chromium
    chromium.close()


@pytest.fixture(scope="session")
def big_page(tmp_path_factory):
    """The page of 150 models, 367 examples, 16 layers; generated numbers."""
    root = tmp_path_factory.mktemp("big")
    sweep(root / "out")
    write_report([root / "out"], root / "audit.html")
    return root / "audit.html"
