"""What pages and the shipped calibration say of the gym follows from its one ledger."""

import pytest
from support.agreement import printed
from support.pages import ROOT, page

LEDGER = ROOT / "benchmarks" / "gym"
ASKED = ROOT / "benchmarks" / "gym_audit"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Lines of `gym table`, and the calibration that it writes."""
    place = tmp_path_factory.mktemp("gym") / "calibration.json"
    return printed("gym", "table", "--gym", LEDGER, "--calibration", place), place


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
        ("evidence/gym_auditors", "| auditor | reads | worst", 23),
        ("evidence/gym_verdict", "| verdict | truth | holds | partly |", 12),
        ("evidence/gym_verdict", "| mechanism | truth |", 44),
    ],
)
def test_a_table_of_a_page_is_what_the_command_makes(made, name, header, n):
    wanted = rows(page(name), header)
    assert len(wanted) == n + 2
    assert rows("\n".join(made[0]), header) == wanted


def test_the_errors_of_the_page_are_those_of_the_command(made):
    told = [line for line in page("evidence/gym_verdict").splitlines() if "seed" in line[:50]]
    wanted = [line for line in told if line.startswith(("- held-out", "- mechanism", "- tune"))]
    assert wanted
    assert [line for line in made[0] if line.startswith("- ")] == wanted


@pytest.mark.parametrize(
    ("header", "n"), [("| verdict | truth | holds | partly |", 12), ("| mechanism | truth |", 58)]
)
def test_the_words_of_models_that_are_asked_are_those_of_their_ledger(header, n):
    """So are the errors that the page lists."""
    own, lines = page("evidence/gym_audit"), printed("gym", "table", "--gym", ASKED)
    wanted = rows(own, header)
    assert len(wanted) == n + 2
    assert rows("\n".join(lines), header) == wanted
    errors = ("- held-out", "- mechanism left", "- tune")
    told = [line for line in own.splitlines() if line.startswith(errors)]
    assert told
    assert [line for line in lines if line.startswith("- ")] == told
