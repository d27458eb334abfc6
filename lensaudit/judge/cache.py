"""Every answer that was paid for, kept at once: the reason a run can be resumed for nothing."""

import json
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, LensAuditError, TryAgainError
from lensaudit.files import canonical_json, make_folder
from lensaudit.judge.calls import Call, Reply

_BUSY_MS = 30_000
_TABLES = """
CREATE TABLE IF NOT EXISTS judgement (
  key TEXT PRIMARY KEY, created REAL NOT NULL, model TEXT NOT NULL, host TEXT NOT NULL,
  request TEXT NOT NULL, response TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS fact (
  kind TEXT NOT NULL, host TEXT NOT NULL, model TEXT NOT NULL, created REAL NOT NULL,
  content TEXT NOT NULL, PRIMARY KEY (kind, host, model)
);
"""


class AnswerCache(AbstractContextManager["AnswerCache"]):
    """Answers by the hash of their request, in one SQLite file; several processes may share it.

    Without a path they are kept in memory.

    Raises:
        InputError: the file is no such cache.
        TryAgainError: it is locked or the disk is full.
    """

    def __init__(self, path: Path | None):
        self.path = path or Path(":memory:")
        if path is not None:
            make_folder(path.parent)
        self._lock = threading.Lock()
        try:
            self._base = sqlite3.connect(
                self.path, check_same_thread=False, timeout=_BUSY_MS / 1000
            )
            # FULL: an answer that was paid for survives the machine, not only the process
            self._base.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;{_TABLES}")
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def get(self, call: Call, *, since: float = 0.0) -> Reply | None:
        """The answer to a call, unless it is older than `since` (seconds since 1970)."""
        query = "SELECT response FROM judgement WHERE key = ? AND created >= ?"
        row = self._run(query, (call.key, since))
        return Reply(json.loads(row[0])) if row else None

    def put(self, call: Call, reply: Reply) -> None:
        """Keep an answer; on return it is on the disk. The first answer to a call is replaced."""
        row = (
            call.key,
            time.time(),
            str(call.body["model"]),
            call.host,
            canonical_json(dict(call.body)),
            json.dumps(reply.raw),
        )
        self._run("INSERT OR REPLACE INTO judgement VALUES (?, ?, ?, ?, ?, ?)", row)

    def fact(self, kind: str, host: str, model: str) -> Any:
        """What was found out about a model, or None; `kind` says by what."""
        query = "SELECT content FROM fact WHERE kind = ? AND host = ? AND model = ?"
        row = self._run(query, (kind, host, model))
        return json.loads(row[0]) if row else None

    def keep_fact(self, kind: str, host: str, model: str, content: Mapping[str, Any]) -> None:
        """Keep what was found out."""
        row = (kind, host, model, time.time(), canonical_json(dict(content)))
        self._run("INSERT OR REPLACE INTO fact VALUES (?, ?, ?, ?, ?)", row)

    def __exit__(self, *error: object) -> None:
        self._base.close()

    def _run(self, query: str, values: tuple[Any, ...]) -> Any:
        """Ask or write one row, in a transaction of its own."""
        try:
            with self._lock, self._base:
                return self._base.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def _problem(self, error: sqlite3.Error) -> LensAuditError:
        if isinstance(error, sqlite3.OperationalError) and any(
            word in str(error) for word in ("locked", "full", "busy")
        ):
            return TryAgainError(f"{self.path}: {error}; run again later")
        return InputError(f"{self.path}: not usable as a cache of answers ({error})")
