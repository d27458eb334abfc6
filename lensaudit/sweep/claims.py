"""Who works on a unit? A guard against duplicate work, no more: results do not depend on it.

A claim is a file made with O_EXCL, touched every half minute. It is void when its process is gone,
or when it was not touched for five minutes. Ages are taken from the
file system's own clock, so that nodes whose clocks differ agree.
"""

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lensaudit.errors import LensAuditError
from lensaudit.files import make_folder, parse_json, read_bytes
from lensaudit.partials import is_running, process_name

BEAT_S = 30.0
STALE_S = 300.0


def holder(path: Path) -> str | None:
    """The process that holds a claim; None where nobody does."""
    try:
        found: Any = parse_json(read_bytes(path))
        age = _now(path.parent) - path.stat().st_mtime
        process = str(found["process"])
        running = is_running(process)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, LensAuditError):
        # being written, or torn by a full disk: old ones count as nobody's
        return "unreadable" if _age(path) < STALE_S else None
    # a process number may have been given to another process since: the heartbeat counts here too
    return process if running is not False and age < STALE_S else None


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a claim for the body; False where somebody else does."""
    nonce = secrets.token_hex(8)
    if not _take(path, nonce):
        yield False
        return
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, stop), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        stop.set()
        beat.join()
        _give_back(path, nonce)


def _take(path: Path, nonce: str) -> bool:
    make_folder(path.parent)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=10):
            if holder(path) is not None:
                return False
            path.unlink(missing_ok=True)
            with path.open("x") as stream:
                json.dump({"process": process_name(), "nonce": nonce}, stream)
    except (FileExistsError, Timeout):
        return False
    return True


def _give_back(path: Path, nonce: str) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads(path.read_bytes())["nonce"] == nonce:
            path.unlink()


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        with contextlib.suppress(OSError):
            os.utime(path)


def _age(path: Path) -> float:
    try:
        return _now(path.parent) - path.stat().st_mtime
    except OSError:
        return STALE_S


def _now(folder: Path) -> float:
    """The time by the clock that stamps files in `folder`."""
    probe = folder / f".now-{secrets.token_hex(6)}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
