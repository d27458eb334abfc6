"""The experiment on disguises runs, and a disguise is found or not as the documents say."""

from pathlib import Path

import pytest
from click.testing import CliRunner

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.slow
def test_a_permutation_is_seen_through_and_a_guard_is_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.chdir(tmp_path)
    import map_attacks

    done = CliRunner().invoke(map_attacks.main, ["--tiny"], catch_exceptions=False)
    lines = [one.strip("| ").split(" | ") for one in done.stdout.splitlines() if "|" in one]
    header, rows = lines[0], {line[0]: line for line in lines[2:]}
    assert set(rows) == set(map_attacks.TINY)

    def cell(name, column):
        return rows[name][header.index(column)]

    assert float(cell("permuted_signs", "UDS")) > 0.9
    assert float(cell("permuted_signs", "aligned")) < 0.2
    assert cell("permuted_signs", "verdict") == "hidden_other_basis"
    assert cell("permuted_signs", "moved").startswith(("0", "1e-0", "2e-0"))
    assert float(cell("guard_silent", "aligned")) > 0.95
    assert cell("guard_silent", "verdict") == cell("never", "verdict") == "erased"
    assert cell("guard_silent", "says").endswith(", 64")
    assert "layers 17, but demo/full has 16" in done.stdout
