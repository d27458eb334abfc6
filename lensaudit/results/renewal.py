"""A manifest that answers for more than when it was written."""

from collections.abc import Iterable
from pathlib import Path

from lensaudit.files import write_json
from lensaudit.results.manifest import MANIFEST, marks, signed
from lensaudit.results.reading import json_object, part


def renew(folder: Path, files: Iterable[str], name: str = MANIFEST, **inputs: str) -> None:
    """Let the manifest of `folder` answer for files that were written since, from more `inputs`."""
    path = folder / name
    if path.exists():
        content = json_object(path)
        known = {**part(content, "files"), **marks(folder, files)}
        now = {**content, "files": known, "inputs": {**part(content, "inputs"), **inputs}}
        if now != content:
            write_json(path, signed(now))
