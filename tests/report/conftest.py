"""Pages in a real browser, where this machine has one."""

import chromium
import firefox as gecko
import pytest
from report_cases import ERRORS, sweep

from lensaudit.report.render import write_report


def started(make, program: str | None, profile, package: str):
    """A browser; where this machine has none that starts, the test is skipped."""
    if program is None:
        pytest.skip(f"not on this machine: apt-get install {package}")
    try:
        return make(program, profile)
    except (AssertionError, OSError) as error:
        pytest.skip(f"{program} does not start: {error}")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium, shared by all tests of this folder."""
    profile = tmp_path_factory.mktemp("chromium")
    found = started(chromium.Chromium, chromium.find(), profile, "chromium")
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
def firefox(tmp_path_factory):
    """A headless Firefox, shared by all tests of this folder."""
    profile = tmp_path_factory.mktemp("firefox")
    found = started(gecko.Firefox, gecko.find(), profile, "firefox-esr")
    yield found
    found.close()


@pytest.fixture(scope="session")
def big_page(tmp_path_factory):
    """The page of 150 models, 367 examples, 16 layers; generated numbers."""
    root = tmp_path_factory.mktemp("big")
    sweep(root / "out")
    write_report([root / "out"], root / "audit.html")
    return root / "audit.html"
