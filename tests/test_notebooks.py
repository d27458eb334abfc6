"""The notebooks run offline, as scripts, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_notebook_runs_and_leaves_what_it_says(name, tmp_path):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    out = tmp_path / "experiments" / "out" / "notebooks" / name
    assert any(out.iterdir())
    for picture in re.findall(r"savefig\(OUT / \"(\S+?)\"\)", (FOLDER / f"{name}.py").read_text()):
        assert (out / picture).stat().st_size > 5000


def test_every_notebook_is_cells_of_text_and_code():
    assert len(NAMES) >= 3
    for name in NAMES:
        text = (FOLDER / f"{name}.py").read_text()
        assert text.startswith("# %% [markdown]\n# # ")
        assert text.count("# %%\n") >= 3
