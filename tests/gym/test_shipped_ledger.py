"""What pages and the shipped calibration say of the gym follows from its one ledger."""

import pytest
from support.agreement import printed
from support.pages import ROOT, page

LEDGER = ROOT / "benchmarks" / "gym"
ASKED = ROOT / "benchmarks" / "gym_audit"
PAGES = ("gym_auditors", "gym_verdict", "gym_audit")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Lines of `gym table`, and the calibration that it writes."""
    place = tmp_path_factory.mktemp("gym") / "calibration.json"
    return printed("gym", "table", "--gym", LEDGER, "--calibration", place), place


@pytest.fixture(scope="module")
def lines_of(made):
    """Lines of `gym table`, by the page that shows them."""
    asked = printed("gym", "table", "--gym", ASKED)
    return {name: asked if name == "gym_audit" else made[0] for name in PAGES}


def test_the_shipped_nulls_are_made_from_the_ledger(made):
    shipped = ROOT / "lensaudit" / "verdict" / "calibration.json"
    assert made[1].read_bytes() == shipped.read_bytes()


def rows(text, header):
    """Of the table below a header, and the header."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(header))
    end = next((n for n, line in enumerate(lines[start:], start) if line[:1] != "|"), len(lines))
    return lines[start:end]


@pytest.mark.parametrize(
    ("name", "header", "n"),
    [
        ("gym_auditors", "| auditor | reads | worst", 23),
        ("gym_verdict", "| verdict | truth | holds | partly |", 12),
        ("gym_verdict", "| mechanism | truth |", 44),
        ("gym_audit", "| auditor | reads | worst", 23),
        ("gym_audit", "| verdict | truth | holds | partly |", 12),
        ("gym_audit", "| mechanism | truth |", 58),
    ],
)
def test_a_table_of_a_page_is_what_the_command_makes(lines_of, name, header, n):
    wanted = rows(page(f"evidence/{name}"), header)
    assert len(wanted) == n + 2
    assert rows("\n".join(lines_of[name]), header) == wanted


@pytest.mark.parametrize("name", PAGES[1:])
def test_the_errors_of_the_page_are_those_of_the_command(lines_of, name):
    told = [line for line in page(f"evidence/{name}").splitlines() if "seed" in line[:50]]
    wanted = [line for line in told if line.startswith(("- held-out", "- mechanism", "- tune"))]
    assert wanted
    assert [line for line in lines_of[name] if line.startswith("- ")] == wanted
