"""lensaudit as an evaluator of an open-unlearning checkout: written, and taken away again.

A checkout gets a file, a configuration and one line (`src/evals/__init__.py` of
github.com/locuslab/open-unlearning, commit d3d7cf9: evaluators are classes that are registered by
name; Hydra's `handler` names one). Its pins exclude ours, so the evaluator imports nothing of this
package; it calls another interpreter.
"""

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import read_bytes, read_text, write_bytes
from lensaudit.sweep.removal import check_below, remove_below
from lensaudit.text import digest

REGISTRY = "src/evals/__init__.py"
EVALUATOR = "src/evals/lensaudit.py"
CONFIG = "configs/eval/lensaudit.yaml"
LINE = b"from .lensaudit import LensAuditEvaluator; _register_evaluator(LensAuditEvaluator)"
_MARK = "# lensaudit connect: "
"""Begins the last line of a file of ours; the content hash of what stands above follows."""


@dataclass(frozen=True)
class Edit:
    """A file of the checkout, before and after."""

    path: Path
    before: bytes
    """Nothing: it is not there."""
    after: bytes
    """Nothing: it will not be there."""

    @property
    def diff(self) -> str:
        """The edit as `diff -u` shows it."""
        old, new = (
            one.decode(errors="replace").splitlines(True) for one in (self.before, self.after)
        )
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path))
        return "".join(one if one.endswith("\n") else f"{one}\n" for one in lines)


def connection(checkout: Path) -> list[Edit]:
    """What connects a checkout; the registration is the last.

    Raises:
        InputError: no checkout of open-unlearning, or it is connected already.
    """
    registry, content = _checked(checkout)
    there = [name for name in (EVALUATOR, CONFIG) if (checkout / name).exists()]
    if there or LINE in content:
        raise InputError(
            f"{checkout / (there or [REGISTRY])[0]}: is there already; --remove takes the "
            "connection away"
        )
    end = b"\r\n" if b"\r\n" in content else b"\n"
    # undone exactly: a last line without an end keeps having none
    joined = content + LINE + end if content.endswith(end) else content + end + LINE
    return [
        Edit(
            checkout / EVALUATOR,
            b"",
            _signed(read_text(Path(__file__).with_name("evaluator.py.txt"))),
        ),
        Edit(checkout / CONFIG, b"", _signed(_config())),
        Edit(registry, content, joined),
    ]


def removal(checkout: Path) -> list[Edit]:
    """What takes the connection away; the registration is the first.

    Raises:
        InputError: no checkout, not connected, or a file was edited since; names it.
    """
    registry, content = _checked(checkout)
    end = b"\r\n" if b"\r\n" in content else b"\n"
    last = content.removesuffix(end + LINE)
    left = last if last != content else content.replace(LINE + end, b"", 1)
    files = [(checkout / name, read_bytes(checkout / name)) for name in (EVALUATOR, CONFIG)]
    if left == content and not any(found for _, found in files):
        raise InputError(f"{checkout}: is not connected; nothing to remove")
    edited = [path for path, found in files if not _is_ours(found)]
    edited += [registry] if left == content or b"LensAuditEvaluator" in left else []
    if edited:
        raise InputError(
            f"{', '.join(map(str, edited))}: edited or deleted since; nothing was changed: put "
            "back what was written, or take away file, configuration and line yourself"
        )
    return [Edit(registry, content, left), *(Edit(path, found, b"") for path, found in files)]


def carry_out(checkout: Path, edits: Sequence[Edit]) -> None:
    """Make the edits, all or none.

    Raises:
        InputError | TryAgainError | WorkError: by cause; the checkout is as it was.
    """
    done: list[Edit] = []
    try:
        for one in edits:
            _put(checkout, one.path, one.after)
            done.append(one)
    except LensAuditError:
        for one in reversed(done):
            _put(checkout, one.path, one.before)
        raise


def _put(checkout: Path, path: Path, content: bytes) -> None:
    if content:
        write_bytes(path, content)
    else:
        remove_below(checkout, path)


def _checked(checkout: Path) -> tuple[Path, bytes]:
    """The registry of a checkout, and what it holds."""
    registry = checkout / REGISTRY
    wanted = "wanted a checkout of open-unlearning"
    if not checkout.is_dir():
        raise InputError(f"{checkout}: no such folder; {wanted}")
    for path in (checkout / name for name in (REGISTRY, EVALUATOR, CONFIG)):
        check_below(checkout, path)
        if path.is_symlink():
            raise InputError(f"{path}: is a link; it stays as it is: name a checkout of its own")
    if not (checkout / CONFIG).parent.is_dir():
        raise InputError(f"{(checkout / CONFIG).parent}: no such folder; {wanted}")
    if "_register_evaluator(" not in read_text(registry):
        raise InputError(f"{registry}: holds no _register_evaluator(; {wanted}")
    return registry, read_bytes(registry)


def _signed(text: str) -> bytes:
    return f"{text}{_MARK}{digest(text)}\n".encode()


def _is_ours(content: bytes) -> bool:
    """Whether a file is as some version of this package wrote it."""
    text, mark, told = content.decode(errors="replace").rpartition(_MARK)
    return bool(mark) and told.strip() == digest(text)


def _config() -> str:
    return f"""# @package eval.lensaudit
# lensaudit in an environment of its own; paths are as seen from where training runs
handler: LensAuditEvaluator
output_dir: ${{paths.output_dir}}
overwrite: false
python: {json.dumps(sys.executable)}
full: null  # model before unlearning: folder, Hub id
retain: null  # model that never saw the forget set; null: there is none
data: forget10  # or a JSON/JSONL file of annotated rows
limit: null  # at most so many rows
gate: null  # policy.toml: what must hold for a model to pass
"""
