"""Was this very question answered before, and is the answer whole? Then its files answer.

What a run asks has a key: a hash of every option, of models and rows by content, of the code and
the libraries. A run writes it into its manifest; whoever asks the same again is given what the
files say, and no model library is imported for it. In any doubt the run is made again.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import LensAuditError
from lensaudit.progress import Notice, unheard
from lensaudit.results.reading import json_object
from lensaudit.results.records import BEGUN, misfits

Key = Callable[[], str]
"""The key of a question, by what its models and files hold now."""


class Question:
    """What a run asks, from before its first file is read until its answer is written."""

    def __init__(self, key: Key, notice: Notice = unheard):
        self._key = key
        self._began = _known(key)
        self._notice = notice
        self._told: list[str] = []
        self._opened: int | None = None

    def tell(self, line: str) -> None:
        """Pass a remark on."""
        self._told.append(line)
        self._notice(line)

    def opened(self) -> None:
        """All names stand for something now: what was told so far is said of any such run."""
        self._opened = len(self._told)

    def record(self) -> dict[str, Any] | None:
        """For the manifest; None where another run may say something else.

        So it is where a file changed meanwhile, or where the run itself had something to remark:
        scores of other versions, another engine than the one asked for, a damaged cache.
        """
        if self._began is None or self._opened != len(self._told):
            return None
        return (
            {"hash": self._began, "told": self._told} if _known(self._key) == self._began else None
        )


def answered(manifests: Iterable[tuple[Path, str]], key: Key) -> list[str] | None:
    """What a finished run told that asked the same; None where there is none, or any doubt.

    Args:
        manifests: every one that the run wrote: its folder, and its name there.
        key: of the question.
    """
    said: list[Any] = []
    try:
        for folder, name in manifests:
            said.append(json_object(folder / name).get("asked"))
            if said[-1] != said[0] or (folder / BEGUN).exists() or misfits(folder, name=name):
                return None
        first = said[0] if said and isinstance(said[0], Mapping) else {}
        return list(first["told"]) if first.get("hash") == key() else None
    except (LensAuditError, OSError):
        return None


def _known(key: Key) -> str | None:
    """None where something is wrong, which the run says itself."""
    try:
        return key()
    except LensAuditError:
        return None
