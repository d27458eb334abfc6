"""The experiments on planted models run, and find what the documents say."""

import re

import pytest
from click.testing import CliRunner
from support.pages import page


@pytest.fixture(scope="module")
def models():
    from experiments.planted import planted_models

    return planted_models


def cells(text):
    """First cell -> other cells, of all Markdown tables."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {line[0]: line[1:] for line in lines}


def test_there_are_enough_models_of_every_truth(models):
    planted = models.planted()
    assert len({one.name for one in planted}) == len(planted) >= 10
    for truth, n in {"intact": 3, "hidden": 6, "absent": 4}.items():
        assert sum(one.truth == truth for one in planted) >= n


@pytest.mark.slow
def test_the_tables_of_the_documents_come_out(models, tmp_path, monkeypatch):
    from experiments.planted import planted_truth

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(planted_truth.main, [], catch_exceptions=False)
    found = cells(done.stdout)
    shown = cells(page("evidence/planted"))
    assert set(found) <= set(shown)
    for one in models.planted():
        # UDS and Lens; training takes other paths on other machines
        wanted = pytest.approx([float(number) for number in shown[one.name][2:4]], abs=0.1)
        assert [float(number) for number in found[one.name][2:4]] == wanted, one.name
    for score in ("UDS", "Lens", "EM", "Prob", "RTT B"):
        for wanted, number in zip(shown[score], found[score], strict=True):
            assert float(number.split()[0]) == pytest.approx(float(wanted.split()[0]), abs=0.15)


@pytest.mark.slow
def test_a_permutation_is_seen_through_and_a_guard_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from experiments.aligned import map_attacks

    done = CliRunner().invoke(map_attacks.main, ["--tiny"], catch_exceptions=False)
    lines = [one.strip("| ").split(" | ") for one in done.stdout.splitlines() if "|" in one]
    header, rows = lines[0], {line[0]: line for line in lines[2:]}
    assert set(rows) == set(map_attacks.TINY)

    def cell(name, column):
        return rows[name][header.index(column)]

    assert float(cell("permuted_signs", "UDS")) > 0.9
    assert float(cell("permuted_signs", "aligned")) < 0.2
    assert cell("permuted_signs", "verdict") == "hidden_other_basis"
    assert float(cell("permuted_signs", "moved").partition(" ")[0]) < 1e-4  # rounding alone
    assert float(cell("guard_silent", "aligned")) > 0.9
    assert cell("never", "verdict") == "erased"
    assert cell("guard_silent", "verdict") == "undecided"  # not finite in float16: not asked there
    assert cell("guard_silent", "says").endswith(", 64")
    deeper = [one for one in done.stdout.splitlines() if one.startswith("deeper_")]
    assert (
        len(deeper) == 3
    )  # an idle layer more: carried by relative depth, and never called erased
    for line in deeper:
        assert re.fullmatch(r"deeper_\d+: aligned 0\.[01]\d, .*, undecided", line), line
