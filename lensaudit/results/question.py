"""What a run asks, as one key.

It is a hash of every option, of models and rows by content, of the code and the libraries, made
before models are opened, and stands in the manifest as `asked`: whoever asks the same again is
given what the files say, and no model library is imported for it.
"""

import glob
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lensaudit.errors import LensAuditError
from lensaudit.files import write_json
from lensaudit.once import read_once
from lensaudit.progress import FolderRemark, Notice, unheard
from lensaudit.results.integrity import misfits
from lensaudit.results.manifest import (
    BEGUN,
    MANIFEST,
    signed,
)
from lensaudit.results.reading import json_object, part
from lensaudit.turns import in_turn

LOOKED_AT_BYTES = 64 << 20
"""Larger files are weights: their hash is taken when they are opened, and not once more here."""


Key = Callable[[], str]
"""The key of a question, by what its models and files hold now."""


class Question:
    """What a run asks: its key, before the first file is read and again when all is written."""

    def __init__(self, key: Key, notice: Notice = unheard):
        self._key = key
        self._asked = _known(key)
        self._notice = notice
        self._told: list[str] = []
        self._opened: int | None = None

    def tell(self, line: str) -> None:
        """Pass a remark on; what lay in a folder before says nothing of the run."""
        if not isinstance(line, FolderRemark):
            self._told.append(line)
        self._notice(line)

    def opened(self, _: object = None) -> None:
        """Mark the end of opening: remarks up to here are repeated when the run is reused."""
        self._opened = len(self._told)

    def where(self, usual: Path, name: str = MANIFEST, *, named: bool = False) -> Path:
        """The folder whose manifest says that this was asked: the usual one, or one beside it.

        Args:
            usual: where results go, unless another run's are there.
            name: of the manifest.
            named: the user chose the folder: it is not exchanged.
        """
        own = f"{glob.escape(usual.name)}-{'[0-9a-f]' * 8}"
        beside = () if named else sorted(usual.parent.glob(own))
        return next((one for one in (usual, *beside) if self.is_of(one / name)), usual)

    def is_of(self, manifest: Path) -> bool:
        """Whether a manifest says that this was asked."""
        with suppress(LensAuditError):
            return part(json_object(manifest), "asked").get("hash") == self._asked
        return False

    def answered(self, manifests: Iterable[Path]) -> list[str] | None:
        """What a finished run told that asked the same; None where there is none, or any doubt.

        Args:
            manifests: every one that the run wrote.
        """
        said: dict[str, Any] = {}
        with suppress(LensAuditError, OSError):
            for path in manifests:
                said = part(json_object(path), "asked")
                begun = (path.parent / BEGUN).exists()
                other = self._asked is None or said.get("hash") != self._asked
                if other or begun or misfits(path.parent, name=path.name, largest=LOOKED_AT_BYTES):
                    return None
            return said.get("told")
        return None

    def settle(self, manifests: Iterable[Path]) -> None:
        """Say in the manifests of the finished run what it was asked, that it may answer again.

        Nothing is said where another run may find something else: a file changed meanwhile, or the
        run itself had something to remark, as scores of other versions, another engine than the
        one asked for, a damaged cache; nor where another process has begun the run again.
        """
        settled = self._asked is not None and self._opened == len(self._told)
        if settled and _known(self._key) == self._asked:
            asked = {"hash": self._asked, "told": self._told}
            for path in manifests:
                # where nobody may write the answer is there, and is only not found as fast
                with suppress(LensAuditError), in_turn(path.parent):
                    made = json_object(path) if path.exists() else {"asked": asked}
                    if made.get("asked") != asked:
                        write_json(path, signed({**made, "asked": asked}))


def _known(key: Key) -> str | None:
    """The key; None if a name or file is wrong (the run will raise it)."""
    with suppress(LensAuditError), read_once():
        return key()
    return None
