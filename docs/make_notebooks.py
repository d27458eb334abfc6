"""Write docs/notebooks/: the notebooks with what their cells print and draw.

Command: python docs/make_notebooks.py [FOLDER] (three minutes; no network)

Each cell is run in an empty folder; what it prints, its last expression and the pictures it saved
stand below it. `tests/test_notebooks.py` runs them again and compares.
"""

import ast
import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = DOCS.parent / "notebooks"
PAGES = DOCS / "notebooks"


def cells(name: str) -> list[tuple[bool, str]]:
    """Whether a cell is text, and its content."""
    parts = re.split(r"^# %%(.*)\n", (NOTEBOOKS / f"{name}.py").read_text(), flags=re.M)[1:]
    found = zip(parts[::2], parts[1::2], strict=True)
    return [
        (True, re.sub(r"^# ?", "", text, flags=re.M).strip())
        if "markdown" in kind
        else (False, text.strip())
        for kind, text in found
    ]


def rendered(name: str, pictures: Path) -> str:
    """The page of a notebook, run in the working folder; its pictures are copied to `pictures`."""
    scope: dict[str, object] = {"__name__": "__main__"}
    parts: list[str] = []
    seen: set[Path] = set()
    for is_text, content in cells(name):
        if is_text:
            parts.append(content)
            continue
        parts.append(f"```python\n{content}\n```")
        printed, value = _run(content, scope)
        parts += [f"```text\n{printed}\n```"] if printed else []
        parts += [] if value is None else [_shown(value)]
        drawn = {*Path().rglob("*.png")} - seen
        seen |= drawn
        for path in sorted(drawn):
            shutil.copy(path, pictures / f"{name}-{path.name}")
            parts.append(f"![{path.stem}](../img/{name}-{path.name})")
    badge = f"[![view source](../img/view-source.svg)](../../notebooks/{name}.py)"
    note = f"{badge} Made of `notebooks/{name}.py` by `python docs/make_notebooks.py`."
    return "\n\n".join([parts[0], note, *parts[1:]]) + "\n"


def _run(source: str, scope: dict[str, object]) -> tuple[str, object]:
    """What a cell prints, and its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
    return printed.getvalue().strip("\n"), value


def _shown(value: Any) -> str:
    """As a notebook shows it: HTML where the value knows how, on one line, else its text."""
    if hasattr(value, "_repr_html_"):
        return re.sub(r"\s*\n\s*", "", value._repr_html_())
    return f"```text\n{value}\n```"


def main() -> None:
    """Write the pages of all notebooks; with a folder as argument, pages and pictures into it."""
    pages = Path(sys.argv[1]).resolve() if sys.argv[1:] else PAGES
    pictures = pages if sys.argv[1:] else DOCS / "img"
    os.environ |= {"MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}
    pages.mkdir(exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.py")):
        # a notebook may switch gradients off, for itself alone
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            torch.enable_grad(),
        ):
            text = rendered(path.stem, pictures)
        (pages / f"{path.stem}.md").write_text(text)
        print(f"written: {path.stem}.md", file=sys.stderr)


if __name__ == "__main__":
    main()
