"""What pages and the shipped calibration say of the gym follows from its one ledger."""

import pytest
from support.agreement import printed
from support.pages import ROOT, page

from lensaudit.gym.table import rows_of

LEDGER = ROOT / "benchmarks" / "gym"
SLOW = ("worst_excess", "relearn_gain", "rtt", "effort")
NEVER = 512
"""Score of `effort` where no training that was tried brings half of the facts back."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Lines of `gym table`, and the calibration that it writes."""
    place = tmp_path_factory.mktemp("gym") / "calibration.json"
    return printed("gym", "table", "--gym", LEDGER, "--calibration", place), place


@pytest.fixture(scope="module")
def scores():
    """The lines of the ledger."""
    return rows_of(LEDGER, None)


def test_the_shipped_nulls_are_made_from_the_ledger(made):
    shipped = ROOT / "lensaudit" / "verdict" / "calibration.json"
    assert made[1].read_bytes() == shipped.read_bytes()


def test_on_the_half_that_limits_were_set_on_no_word_is_wrong(made):
    tune = [one.split(" | ") for one in made[0] if one.startswith("| tune half")]
    assert [one[1] for one in tune] == ["knows", "partial", "absent"]
    knows, partial, absent = tune
    assert all(one[4].startswith("0/") for one in (knows, partial))
    assert absent[2].startswith("0/")
    assert absent[3].startswith("0/")
    assert all(one[6].startswith("0/5 ") for one in tune)


def rows(text, header):
    """Of the table below a header, and the header."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(header))
    end = next((n for n, line in enumerate(lines[start:], start) if line[:1] != "|"), len(lines))
    return lines[start:end]


@pytest.mark.parametrize(
    ("name", "header", "n"),
    [
        ("gym_auditors", "| auditor | reads | worst", 26),
        ("gym_verdict", "| verdict | truth | holds | partly |", 12),
        ("gym_verdict", "| mechanism | truth |", 58),
    ],
)
def test_a_table_of_a_page_is_what_the_command_makes(made, name, header, n):
    wanted = rows(page(f"evidence/{name}"), header)
    assert len(wanted) == n + 2
    assert rows("\n".join(made[0]), header) == wanted


def test_the_errors_of_the_page_are_those_of_the_command(made):
    said = page("evidence/gym_verdict")
    told = [line for line in said.splitlines() if "seed" in line[:50]]
    wanted = [line for line in told if line.startswith(("- held-out", "- mechanism", "- tune"))]
    assert [line for line in made[0] if line.startswith("- ")] == wanted
    assert ("There is none." in said) == (not wanted)


def test_the_counts_of_the_first_sentence_are_those_of_the_table(made):
    left_out = {
        line.split(" | ")[1]: line.split(" | ") for line in made[0] if "| mechanism left" in line
    }
    knows, absent = left_out["knows"], left_out["absent"]
    counts = {
        name: cell.split(" ")[0].split("/") for name, cell in (("e", knows[4]), ("n", knows[2]))
    }
    said = page("evidence/gym_verdict")
    assert f"Of {counts['n'][1]} models that hold every fact" in said
    assert "the verdict calls none erased" in said
    assert counts["e"][0] == "0"
    assert not any(line.startswith("- mechanism left out: ") for line in made[0])
    n_erased, n_absent = absent[4].split(" ")[0].split("/")
    assert f"Of {n_absent} models that never saw the facts it calls {n_erased} erased" in said
    assert absent[2].startswith("0/")
    assert absent[3].startswith("0/")
    short = page("gym")
    assert f"| knows all facts | {' | '.join(cell.split(' ')[0] for cell in knows[2:6])} |" in short
    assert f"| absent | {' | '.join(cell.split(' ')[0] for cell in absent[2:6])} |" in short


def test_the_slow_auditors_read_what_the_page_says(scores):
    known = {
        (one.auditor, one.mechanism, one.strength, one.truth): one.score
        for one in scores
        if one.seed == 0
    }
    table = rows(page("evidence/gym_auditors"), "| model | truth | worst_excess")[2:-1]
    assert len(table) == 10
    strength = {"an eighth of the layers": 0.125, "a quarter": 0.25, "": 1.0}
    for line in table:
        model, truth, *cells = line.strip("| ").split(" | ")
        name, _, much = model.partition(", ")
        *wanted, effort = (known[one, name, strength[much], truth] for one in SLOW)
        assert cells[:3] == [f"{one:.2f}" for one in wanted]
        assert cells[3] == ("more than 256" if effort == NEVER else f"{effort:.0f}")


def test_what_rtt_reads_of_seed_0_is_what_the_page_says(scores):
    read = {}
    for one in scores:
        if one.auditor == "rtt" and one.seed == 0 and one.truth != "anchor":
            read.setdefault(one.mechanism, []).append(round(one.score, 2))
    said = next(one for one in page("evidence/gym_auditors").splitlines() if "RTT on all" in one)
    swapped = ("permuted", "permuted_turned", "permuted_part_turned", "split_layers", "late")
    low = [
        x for name in (*swapped, "mimic", "mixed", "gates_mixed", "some_hidden") for x in read[name]
    ]
    middle = [x for name in ("forms", "rerouted", "template") for x in read[name]]
    absent = {one.mechanism for one in scores if one.truth == "absent"} - {"exchanged"}
    ignorant = [x for name in absent for x in read[name]]
    for values in (low, middle, ignorant):
        assert f"{min(values):.2f} to {max(values):.2f}".replace("0.", ".") in said
    (exchanged,) = read["exchanged"]
    assert f"{exchanged:.2f} on `exchanged`".lstrip("0") in said
    assert min(x for name in ("guard", "gates_own") for x in read[name]) > max(ignorant)


def test_the_shift_reads_what_the_page_says(scores):
    def group(one):
        name = one.mechanism
        if one.truth == "absent" and name not in ("absent_gates", "absent_rerouted"):
            return "absent, nothing added"
        return "gates, all forms" if name.startswith("gates") else f"`{name}`"

    read = {}
    for one in scores:
        aligned = (one.evidence or {}).get("patch", {}).get("aligned") or {}
        if one.auditor == "verdict" and (shift := aligned.get("shift")):
            read.setdefault((group(one), one.seed > 0), []).append(shift["times"])

    def ends(values):
        low, high = f"{min(values):.2f}", f"{max(values):.2f}"
        return low if low == high else f"{low} to {high}"

    table = rows(page("evidence/gym_verdict"), "| models | seed 0 | seeds 1 to 4 |")[2:]
    assert len(table) == 8
    for line in table:
        name, first, others = line.strip("| ").split(" | ")
        assert [first, others] == [ends(read[name, later]) for later in (False, True)]
