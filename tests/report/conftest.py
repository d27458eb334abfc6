"""Pages in a real browser, where this machine has one."""

import pytest
from support import chromium
from support.report_cases import ERRORS, sweep

from lensaudit.report.render import write_report


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium, shared by all tests of this folder; skipped where there is none."""
    if (program := chromium.find()) is None:
        pytest.skip("not on this machine: apt-get install chromium")
    try:
        found = chromium.Chromium(program, tmp_path_factory.mktemp("chromium"))
    except (AssertionError, OSError) as error:
        pytest.skip(f"{program} does not start: {error}")
    yield found
    found.close()


@pytest.fixture
def shown(browser, tmp_path):
    """Writes the page of some results and opens it; no page may raise an error."""

    def show(*places, address: str = "", **how) -> str:
        write_report(places, tmp_path / "audit.html", **how)
        browser.open((tmp_path / "audit.html").as_uri() + address)
        return (tmp_path / "audit.html").as_uri()

    yield show
    assert browser.heard(*ERRORS) == []


@pytest.fixture(scope="session")
def big_page(tmp_path_factory):
    """The page of 150 models, 367 examples, 16 layers; generated numbers."""
    root = tmp_path_factory.mktemp("big")
    sweep(root / "out")
    write_report([root / "out"], root / "audit.html")
    return root / "audit.html"
