"""An append-only log, read: what a kill tore is passed over."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lensaudit.files import read_bytes
from lensaudit.text import parse_json


def read_appended(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of an append-only log; lines torn by a kill are passed over.

    Raises:
        WorkError: the file exists but cannot be read.
    """
    for line in read_bytes(path).splitlines():
        with suppress(ValueError):
            if isinstance(row := parse_json(line), dict):
                yield row
