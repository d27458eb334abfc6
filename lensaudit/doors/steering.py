"""Steering from commands: a run that was asked before is read from its files, without torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.ask.again import Asked, once
from lensaudit.errors import WorkError
from lensaudit.judge.endpoint import address_of
from lensaudit.kinds.directions import DirectionsRecord
from lensaudit.kinds.steering import (
    CROSSED,
    STEERED,
    SWEPT,
    CoefficientSweep,
    LayerSweep,
    TraitMatrix,
)
from lensaudit.progress import Notice, Tell
from lensaudit.results.locate import Found
from lensaudit.results.manifest import signed_object
from lensaudit.results.reading import SUMMARY, json_object, part, read_as
from lensaudit.results.run import RunResult
from lensaudit.steer.settings import (
    AskSettings,
    CrossSettings,
    DirectionSettings,
    EvalSettings,
    ExtractSettings,
    LayerSettings,
    TraitSettings,
)
from lensaudit.steer.trait import (
    EXTRACTED,
    VECTORS,
    audit_folder,
    contrast_trait,
    crossed_folder,
    files_of,
    folder_of,
    found_in,
    load_trait,
    traits_of,
)

Results = tuple[CoefficientSweep | LayerSweep, Path]
"""What a run wrote, and its file."""


@dataclass(frozen=True)
class Extracted:
    """Directions that were estimated."""

    folder: Path
    documents: Sequence[dict[str, Any]]
    """Where each comes from, how long it is, and what it tells apart."""
    massive: Sequence[str]
    """Those that are made of a few dimensions, by name."""


def _asked(settings: TraitSettings, beside: Sequence[Path] = ()) -> Asked:
    """What a run is asked, and the judge's address: without a choice the environment's."""
    by = address_of(settings.base_url)
    return Asked(settings=settings, anchors=(), beside=beside, by=by)


def extracted(settings: ExtractSettings, *, notice: Notice, progress: Tell) -> Extracted:
    """Open and do `steer.extract.run`."""
    folder = folder_of(settings, contrast_trait(settings))

    def made(tell: Notice, opened: Callable[[], None]) -> Extracted:
        from lensaudit.steer.extract import open_extraction, run  # seconds to import

        job = open_extraction(settings, tell)
        opened()
        run(job, progress)
        return read([folder])

    def read(_: Sequence[Path]) -> Extracted:
        said, place = part(json_object(folder / EXTRACTED), "inputs"), folder / VECTORS
        documents = [signed_object(place / f"{name}.json") for name in said["vectors"]]
        return Extracted(place, documents, said["massive"])

    return once(_asked(settings), [folder], read, made, notice=notice, manifest=EXTRACTED)


def steered(settings: AskSettings, *, notice: Notice, progress: Tell) -> Results:
    """Open and do `steer.evaluate.Steering.run`, over coefficients or over layers."""
    folder = folder_of(settings, load_trait(settings.trait))
    file, manifest = files_of(settings)

    def made(tell: Notice, opened: Callable[[], None]) -> Results:
        from lensaudit.steer.evaluate import Steering  # seconds to import

        job = Steering.of(settings, tell)
        opened()
        return job.run(progress)

    beside = []
    if isinstance(settings, EvalSettings):
        beside = [settings.vector.with_suffix(".json")]
    elif isinstance(settings, LayerSettings) and settings.vectors is None:
        beside = [folder / VECTORS]
    return once(
        _asked(settings, beside),
        [folder],
        lambda _: (Found("steering", folder / file).record, folder / file),
        made,
        notice=notice,
        manifest=manifest,
    )


def crossed(settings: CrossSettings, *, notice: Notice, progress: Tell) -> tuple[TraitMatrix, Path]:
    """Open and do `steer.crossing.Crossing.run`."""
    folder = crossed_folder(settings)

    def made(tell: Notice, opened: Callable[[], None]) -> tuple[TraitMatrix, Path]:
        from lensaudit.steer.crossing import open_crossing  # seconds to import

        job = open_crossing(settings, tell)
        opened()
        return job.run(progress)

    names = traits_of(settings)
    found = [found_in(settings, load_trait(one)) for one in names]
    own = [path for path in map(Path, names) if path.is_file()]
    beside = [one / name for one in found for name in (VECTORS, STEERED, SWEPT)]
    return once(
        _asked(settings, [*own, *beside]),
        [folder],
        lambda _: (Found("traits", folder / CROSSED).record, folder / CROSSED),
        made,
        notice=notice,
    )


def directed(settings: DirectionSettings, *, notice: Notice, progress: Tell) -> RunResult:
    """Open and do `steer.audit.run`."""
    folder = audit_folder(settings)

    def made(tell: Notice, opened: Callable[[], None]) -> RunResult:
        from lensaudit.steer.audit import open_audit, run  # seconds to import

        audit = open_audit(settings, tell)
        opened()
        return run(audit, progress, tell)

    file = folder / SUMMARY
    return once(
        Asked(settings=settings),
        [folder],
        lambda _: RunResult(settings.name, folder, read_as(DirectionsRecord, file)),
        made,
        notice=notice,
    )


def check_scored(record: DirectionsRecord) -> None:
    """Fail where no experiment could be scored; the files say why.

    Raises:
        WorkError: with the reasons.
    """
    reasons = {one.unscored for one in record.experiments.values()}
    if all(reasons):
        said = "; ".join(sorted(filter(None, reasons)))
        raise WorkError(f"{record.source}: nothing could be scored ({said})")
