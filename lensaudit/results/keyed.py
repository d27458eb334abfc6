"""Files that are found again by their key, a hash of everything that determines what they hold."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import write_bytes, write_json
from lensaudit.results.manifest import mark_of, signed, signed_object


def write_keyed(path: Path, document: Mapping[str, Any]) -> Path:
    """Write a JSON object that holds its `key`, with a checksum."""
    return write_json(path, signed(document))


def write_marked(path: Path, content: bytes, key: str) -> None:
    """Write a file, and last of all a JSON beside it that says of which key and content it is."""
    write_bytes(path, content)
    write_keyed(path.with_suffix(".json"), {"key": key, **mark_of(path)})


def read_marked(path: Path, key: str) -> bytes | None:
    """The content of a file, if it was made under `key` and not changed; else None."""
    said = keyed_document(path.with_suffix(".json"), key)
    whole = said is not None and path.is_file() and said == {"key": key, **mark_of(path)}
    return path.read_bytes() if whole else None


def keyed_document(path: Path, key: str) -> dict[str, Any] | None:
    """The JSON object in a file, if it was made under `key` and not changed; else None."""
    with suppress(InputError):
        found = signed_object(path)
        return found if found.get("key") == key else None
    return None
