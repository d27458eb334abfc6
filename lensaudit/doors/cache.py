"""Caches of activations from Python: what was made, and where it is."""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from lensaudit.activations.inventory import describe
from lensaudit.activations.naming import cache_folders
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.spec import SEAL, SPEC
from lensaudit.ask.again import Asked
from lensaudit.ask.door import door
from lensaudit.auditing.calls import answered, told
from lensaudit.doors.settings import CacheSettings
from lensaudit.errors import InputError, LensAuditError
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.manifest import Manifest
from lensaudit.results.question import Question
from lensaudit.results.reading import json_object, part
from lensaudit.results.run import RunResult
from lensaudit.settings import Kept, plain

notice = logging.getLogger(__name__).warning
"""Remarks on a result; without a handler Python prints them on stderr."""

ASKED = "asked.json"
"""In the cache of the first part: what `lensaudit cache` was asked, and what it said."""


class CacheResult(RunResult):
    """The complete caches of one model; or, under `parts`, that of one part of its layers."""

    @property
    def key(self) -> str:
        """Hash of all that decides the numbers of the first part."""
        return self.summary["key"]

    @property
    def n_bytes(self) -> int:
        """Size of all parts, bytes."""
        return self.summary["bytes"]

    @property
    def n(self) -> int:
        """Examples."""
        return self.summary["n"]

    @property
    def parts(self) -> "Mapping[Kept, CacheResult]":
        """Caches by part (`resid`, `attn` …), of the parts that were asked for."""
        found = self.summary.get("parts", {"resid": self.summary})
        own = {name: self.summary[name] for name in ("n", "unscored")}
        return {
            part: CacheResult(self.source, Path(one["folder"]), own | one)
            for part, one in found.items()
        }


@door(CacheSettings)
def cache(
    source: tuple[str, ...], settings: CacheSettings, out: Path | None, progress: Tell
) -> Sequence[CacheResult]:
    """Keep the residual streams of models, or components of their layers, found again by content.

    As `lensaudit cache`; `out`, where it is named, is the folder of caches: `activations`.

    >>> la.cache("demo/npo").folder  # doctest: +SKIP
    PosixPath('activations/demo-npo--3f2a…')
    >>> la.cache("demo/npo", component=["attn", "heads"]).parts["heads"].key  # doctest: +SKIP
    '90ab…'
    """
    settings = settings if out is None else replace(settings, activations=out)
    return [cached(one, settings, notice=notice, progress=progress) for one in source]


def cached(
    model: str, settings: CacheSettings, *, notice: Notice = unheard, progress: Tell = unheard
) -> CacheResult:
    """Run `doors.cache_fill.cache_into`, or read complete caches that were asked for alike."""

    def found(question: Question) -> CacheResult | None:
        for folder in cache_folders(Path(settings.activations)):
            if question.is_of(folder / ASKED):
                return told(question, [folder / ASKED], partial(_read, model, folder), notice)
        return None

    def made(question: Question) -> tuple[CacheResult, list[Path]]:
        from lensaudit.doors.cache_fill import cache_into  # seconds to import

        made = cache_into(
            model, settings, notice=question.tell, progress=progress, opened=question.opened
        )
        said = {"model": model, "summary": dict(made.summary)}
        with suppress(LensAuditError):  # of a store that may only be read the next run asks again
            Manifest("cache", plain(settings), said).write(made.folder, [SPEC, SEAL], ASKED)
        return made, [made.folder / ASKED]

    return answered(Asked(settings=settings, names=(model,), anchors=()).key, found, made, notice)


def _read(model: str, folder: Path) -> CacheResult:
    """Remarks on the caches from when they were made.

    Raises:
        InputError: one of them is not complete any more, or not where it was.
    """
    made = CacheResult(model, folder, part(json_object(folder / ASKED), "inputs", "summary"))
    for one in made.parts.values():
        check_trusted(one.folder)
        if describe(one.folder).state != "complete" or one.folder.parent != folder.parent:
            raise InputError(f"{one.folder}: is not complete")
        with suppress(OSError):  # when it was last used, for `gc`
            os.utime(one.folder / SEAL)
    return made
