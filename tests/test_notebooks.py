"""The notebooks run offline, in an empty folder, and print what their pages show."""

import re
import subprocess
import sys

import pytest
from support.pages import DOCS, ROOT

from docs.make_notebooks import PAGES, cells

FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
DECIMAL = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)(?![\w.])")
"""A computed number; counts are compared as text."""


@pytest.mark.slow
def test_each_notebook_runs_and_prints_and_draws_what_its_page_shows(tmp_path):
    done = subprocess.run(
        [sys.executable, str(DOCS / "make_notebooks.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in NAMES:
        shown, found = ((at / f"{name}.md").read_text() for at in (PAGES, tmp_path))
        assert DECIMAL.sub("#", found) == DECIMAL.sub("#", shown)
        # training takes other paths on other machines
        wanted = pytest.approx([float(one) for one in DECIMAL.findall(shown)], rel=0.05, abs=0.05)
        assert [float(one) for one in DECIMAL.findall(found)] == wanted
        for picture in re.findall(r"\]\(\.\./img/(\S+?\.png)\)", shown):
            assert (tmp_path / picture).stat().st_size > 5000
            assert (DOCS / "img" / picture).stat().st_size < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_notebook_has_its_cells(name):
    shown = (PAGES / f"{name}.md").read_text()
    for is_text, content in cells(name):
        assert (content if is_text else f"```python\n{content}\n```") in shown
    assert shown.count("```text") >= 3


def test_every_notebook_is_cells_of_text_and_code():
    assert len(NAMES) >= 3
    for name in NAMES:
        text = (FOLDER / f"{name}.py").read_text()
        assert text.startswith("# %% [markdown]\n# # ")
        assert text.count("# %%\n") >= 3
