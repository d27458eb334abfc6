"""Caches of activations from Python: what was made, and where it is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lensaudit.ask.door import door, notice
from lensaudit.auditing.settings import CacheSettings
from lensaudit.progress import Tell
from lensaudit.results.run import RunResult
from lensaudit.settings import Kept


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
        """By part: `resid`, `attn` …; those that were asked for."""
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
    from lensaudit.doors.caching import cache_into  # seconds to import; answers are read without

    settings = settings if out is None else replace(settings, activations=out)
    return [cache_into(one, settings, notice=notice, progress=progress) for one in source]
