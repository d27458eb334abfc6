"""Check every line of a ledger against its checksum."""

import re
from dataclasses import dataclass
from pathlib import Path

from lensaudit.files import read_bytes
from lensaudit.results.ledger import CHECK, LEDGER, Ledger, bond, object_in
from lensaudit.text import digest

NAMED_FOR = re.compile(r".*--([0-9a-f]{32})\.jsonl")
"""A ledger file that is named for its key."""


def is_ledger(content: bytes) -> bool:
    """Does it begin with a header, as far as a glance tells?"""
    return f'"{LEDGER}"'.encode() in content.partition(b"\n")[0]


@dataclass(frozen=True)
class VerifiedLedger:
    """What checking every line of a ledger found."""

    file: str
    kind: str | None
    n_lines: int
    """That are whole."""
    problems: tuple[str, ...]


def verify_ledger(path: Path) -> VerifiedLedger:
    """Check every line of a ledger against the header that it begins with.

    Raises:
        WorkError: the file cannot be read.
    """
    row = object_in(read_bytes(path).partition(b"\n")[0])
    kind, key, named = row.get(LEDGER), row.get("key"), NAMED_FOR.fullmatch(path.name)
    if not isinstance(kind, str) or not isinstance(key, dict):
        why = "its first line is not a header; it is written again when used"
    elif row.get(CHECK) != bond(kind, key):
        why = "its header is damaged; it is written again when used"
    elif named and named[1] != digest(key):
        own = f"its header says {digest(key)[:8]}…; what it holds is computed again when used"
        why = f"is named for key {named[1][:8]}…, {own}"
    else:
        found = Ledger(path, kind, key)
        return VerifiedLedger(
            str(path), kind, len(found.rows), tuple(filter(None, (found.problem,)))
        )
    return VerifiedLedger(str(path), None, 0, (f"{path}: {why}",))
