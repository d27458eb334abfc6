"""Removal of caches: out of sight in one step, then file by file, and only files of ours.

Each file that goes is named as caches name theirs. A folder with anything else in it stays whole.
"""

import re
import secrets
from pathlib import Path

from lensaudit.activations.presence import LOCKS, MARK, users
from lensaudit.activations.spec import SPEC, read_spec
from lensaudit.files import files_below, os_errors, remove_files
from lensaudit.partials import is_partial, process_name
from lensaudit.turns import in_turn

QUARANTINE = "quarantine"
"""Where `repair` moves damaged files."""
STAGED = re.compile(r"\.(?:deleting|import)-([0-9a-f]{8}-\d+)-[0-9a-f]{8}")
"""A folder on its way out or in, with the process that moves it."""
OWN_FILES = {
    QUARANTINE: re.compile(r"(?:spec\.json|SEAL\.json|shard-\d{6}\.h5)\.\d{8}T\d{6}Z-[0-9a-f]{4}"),
    LOCKS: re.compile(rf"{MARK.pattern}|.*\.lock"),
    "": re.compile(
        r"spec\.json|SEAL\.json|imported\.json|asked\.json|shard-\d{6}\.h5|unfinished-blocks\.(?:bin|json)"
    ),
}
"""Folder in a cache -> names of its files."""


def staging_name(kind: str) -> str:
    """A hidden folder name that tells whose it is: `.deleting-…` or `.import-…`."""
    return f".{kind}-{process_name()}-{secrets.token_hex(4)}"


def remove(folder: Path) -> bool:
    """Delete a cache: first out of sight in one step, then file by file; False if it is in use.

    Gone already is fine: another process may be faster.

    Raises:
        InputError: names what it holds that is not ours; it stays where it is.
    """
    gone = folder.with_name(staging_name("deleting"))
    with in_turn(folder.parent), os_errors(folder):
        if not folder.exists():
            return True
        if users(folder):
            return False
        cache_files(folder)
        folder.rename(gone)
        if users(gone):  # opened since we looked, on a disk where nobody waits for its turn
            gone.rename(folder)
            return False
    # the spec last: it says whose the rest is
    remove_files(gone, sorted(cache_files(gone), key=lambda path: path == gone / SPEC))
    return True


def cache_files(folder: Path) -> list[Path]:
    """The files of a cache with a spec of ours, or of a killed start, import or deletion of one.

    Raises:
        LensAuditError: the spec is damaged or foreign, or something else lies there: it is named.
    """
    if (folder / SPEC).exists():
        read_spec(folder / SPEC)
    inner = [folder, *folder.glob("*--*")] if STAGED.fullmatch(folder.name) else [folder]

    def ours(path: Path) -> bool:
        kind = "" if path.parent in inner else path.parent.name
        of = path.parent if kind == "" else path.parent.parent
        names = OWN_FILES.get(kind) if of in inner else None
        return names is not None and bool(names.fullmatch(path.name) or is_partial(path))

    return files_below(folder, ours)
