"""Attacks from Python and from commands; one that was asked before is read from its files."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lensaudit.ask.again import ANCHORS, Asked, once, once_of_one
from lensaudit.ask.door import door, places_for
from lensaudit.attacks.result import (
    SAMPLE,
    WORST,
    EffortResult,
    WorstResult,
    effort_folders,
    scored_in,
    study_folder,
)
from lensaudit.attacks.rtt.log import FILE, read_log
from lensaudit.attacks.rtt.summary import Summarized, summarize
from lensaudit.attacks.settings import (
    EffortSettings,
    RelearnSettings,
    RoundSettings,
    SampleSettings,
    StudySettings,
    WorstSettings,
)
from lensaudit.kinds.effort import EffortRecord
from lensaudit.kinds.relearn import AUDIT, RelearnRecord, ScoreChange
from lensaudit.kinds.sample import SampleRecord
from lensaudit.kinds.worst import WorstRecord
from lensaudit.plugins import entries, load_entries, run_files
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.manifest import MANIFEST, using
from lensaudit.results.reading import SUMMARY, json_object, part, read_as
from lensaudit.results.run import RunResult
from lensaudit.results.run_folder import taken_as_it_is
from lensaudit.training.record import STATE_FOLDER
from lensaudit.training.settings import UnlearnSettings

notice = logging.getLogger(__name__).warning
"""Remarks on a result; without a handler Python prints them on stderr."""


def attacked(
    source: str,
    settings: WorstSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> WorstResult:
    """Run `attacks.worst.worst_into`, or read a finished run."""

    def made(tell: Notice, opened: Callable[[], None]) -> WorstResult:
        from lensaudit.attacks.worst import worst_into

        return worst_into(source, settings, folder, notice=tell, progress=progress, opened=opened)

    with entered(settings):
        return once_of_one(
            WORST, source, settings, folder, (WorstResult, WorstRecord), made, notice
        )


@contextmanager
def entered(settings: WorstSettings) -> Iterator[None]:
    """Attacks from outside that are named, while they are asked for; keys hold their code.

    Raises:
        InputError: a file or an entry cannot be run, or brings no attack that is named.
    """
    if not (settings.own or entries("attacks", settings.attack)):
        yield
        return
    from lensaudit.attacks.elicit import ATTACKS  # seconds to import

    run_files(settings.own, ATTACKS, settings.attack, "--attack")
    load_entries("attacks", [name for name in settings.attack if name not in ATTACKS])
    named = {name: ATTACKS[name].code for name in settings.attack if name in ATTACKS}
    with using({name: code for name, code in named.items() if code}):
        yield


def sampled(
    source: str,
    settings: SampleSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> RunResult:
    """Run `attacks.sampling.sample_into`, or read a finished run."""

    def made(tell: Notice, opened: Callable[[], None]) -> RunResult:
        from lensaudit.attacks.sampling import sample_into  # seconds to import

        return sample_into(source, settings, folder, notice=tell, progress=progress, opened=opened)

    return once_of_one(SAMPLE, source, settings, folder, (RunResult, SampleRecord), made, notice)


def brought_back(
    sources: Sequence[str],
    settings: EffortSettings,
    out: Path | None = None,
    *,
    many: bool = False,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> list[EffortResult]:
    """Open and do `attacks.effort.runs.run`.

    Args:
        sources: models under attack.
        settings: how.
        out: folder of the results.
        many: without a number of processes take as many as fit.
        notice: told remarks.
        progress: told what is done.
    """
    names = tuple(dict.fromkeys(sources))
    folders = effort_folders(names, out) if names else {}

    def made(tell: Notice, opened: Callable[[], None]) -> list[EffortResult]:
        from lensaudit.attacks.effort import job, runs  # seconds to import

        ready = runs.prepare(names, settings, out, tell)
        opened()
        fitting = job.fitting_workers(ready.anchors[0], ready.device) if many else 1
        return runs.run(ready, workers=settings.workers or fitting, progress=progress)

    return once(
        Asked(settings=settings, names=names),
        [*folders.values()],
        lambda _: [
            EffortResult(name, one, read_as(EffortRecord, one / SUMMARY))
            for name, one in folders.items()
        ],
        made,
        notice=notice,
    )


def studied(
    settings: StudySettings, *, notice: Notice = unheard, progress: Tell = unheard
) -> Summarized:
    """Open and do `attacks.rtt.execution.run_studies`."""
    folder = study_folder(settings.out)

    def read(_: Sequence[Path]) -> Summarized:
        log = read_log(folder / FILE)
        ids = part(json_object(folder / MANIFEST), "inputs")["studies"]
        found = summarize(log, selection=settings.selection, rule=settings.rule)
        own = tuple(one for one in found if one.study.study_id in ids)
        jobs = {place.job_id for one in own for place in one.study.places}
        return Summarized(own, folder, 0, len(jobs))

    def made(tell: Notice, opened: Callable[[], None]) -> Summarized:
        from lensaudit.attacks.rtt.execution import prepare, run_studies

        studies, log = prepare(settings, tell)
        opened()
        return run_studies(settings, studies, log, progress)

    return once(
        Asked(settings=settings, anchors=ANCHORS[: 1 if settings.no_control else 2]),
        [folder],
        read,
        made,
        notice=notice,
        says=False,
        whole=lambda found: found.failure is None,
    )


@dataclass(frozen=True)
class Trained:
    """A checkpoint that was made of another."""

    out: Path
    new: bool
    """It was not there before."""
    what: str = ""
    """How it was made, in words, where it is new."""

    def there(self) -> str:
        """Message that the model was in the folder before."""
        return taken_as_it_is(self.out, "model")


def relearned(
    settings: RelearnSettings, *, notice: Notice = unheard, progress: Tell = unheard
) -> Trained:
    """Do the job of `attacks.relearn.prepare` in its folder."""

    def job() -> Any:
        from lensaudit.attacks.relearn import prepare  # seconds to import

        return prepare(settings, settings.model)

    assert settings.out is not None
    words = "{0.start.spec.name} relearned, {0.recipe.n_steps} steps"
    return _trained(settings, settings.out, job, words, notice, progress)


def unlearned(
    settings: UnlearnSettings, *, notice: Notice = unheard, progress: Tell = unheard
) -> Trained:
    """Do the job of `training.job.prepare` in its folder."""

    def job() -> Any:
        from lensaudit.training.job import prepare  # seconds to import

        return prepare(settings)

    words = "{0.method.name} from {0.start.spec.name}, {0.recipe.n_steps} steps"
    return _trained(settings, settings.out, job, words, notice, progress)


def quantized(settings: RoundSettings, *, notice: Notice = unheard) -> Trained:
    """Do the job of `attacks.rounding.prepare` in its folder."""

    def job() -> Any:
        from lensaudit.attacks.rounding import prepare  # seconds to import

        return prepare(settings)

    words = "{0.method} of {0.start.spec.name}"
    return _trained(settings, settings.out, job, words, notice, unheard)


def _trained(
    settings: Any,
    out: Path,
    job: Callable[[], Any],
    words: str,
    notice: Notice,
    progress: Tell,
) -> Trained:
    """What a job makes, or made before; a folder with a state of the training is gone on with.

    `words` says how, with the fields of the job in it.
    """

    def made(_: Notice, opened: Callable[[], None]) -> Trained:
        asked = job()
        opened()
        new = asked.make(out, partial(_told, progress), force=settings.force, tell=notice)
        return Trained(out, new, words.format(asked))

    places = [] if (out / STATE_FOLDER).exists() else [out]
    return once(
        Asked(settings=settings, anchors=()),
        places,
        lambda _: Trained(out, new=False),
        made,
        notice=notice,
        says=False,
    )


def _told(progress: Tell, at: Any) -> None:
    progress(Progress("step", at.step, at.n_steps))


def relearned_and_scored(
    settings: RelearnSettings, *, notice: Notice = unheard, progress: Tell = unheard
) -> tuple[tuple[ScoreChange, ...], Path]:
    """Do `attacks.relearn.open_audit`: the scores before and after, and their folder."""
    kept = [settings.out] if settings.out else []

    def made(tell: Notice, opened: Callable[[], None]) -> tuple[tuple[ScoreChange, ...], Path]:
        from lensaudit.attacks.relearn import open_audit  # seconds to import

        ready = open_audit(settings, notice=tell, progress=progress)
        opened()
        return ready.found(), ready.run.path

    return once(
        Asked(settings=settings),
        [scored_in(settings.model, settings.out), *kept],
        lambda places: (tuple(read_as(RelearnRecord, places[0] / AUDIT).shifts), places[0]),
        made,
        notice=notice,
        named=settings.out is not None,
        written=lambda found: [found[1], *kept],
        says=False,
    )


def method_of(out: Path) -> str:
    """The unlearning method of a finished folder."""
    return str(part(json_object(out / MANIFEST), "inputs")["method"])


@door(WorstSettings)
def worst(
    source: tuple[str, ...], settings: WorstSettings, out: Path | None, progress: Tell
) -> Sequence[WorstResult]:
    """Find the facts that any of a list of attacks brings out, beside models that never knew.

    As `lensaudit worst`: `out` is experiments/out/worst-<source>, of several models it holds a
    folder for each; anchors and forget set are those of the model's family where none is named.

    >>> found = la.worst("demo/npo", retain=["demo/retain", "demo/never"])  # doctest: +SKIP
    >>> found.headline, found.excess, found.named  # doctest: +SKIP
    """
    return [
        attacked(one, settings, place, notice=notice, progress=progress)
        for one, place in places_for(source, out).items()
    ]


@door(EffortSettings)
def effort(
    source: tuple[str, ...], settings: EffortSettings, out: Path | None, progress: Tell
) -> Sequence[EffortResult]:
    """Retrain models on rows that do not tell the facts, and read the facts by step.

    As `lensaudit effort`: `out` is experiments/out/<source>-effort. `workers=2` starts processes,
    and needs a script whose own work stands under `if __name__ == "__main__"`.

    >>> la.effort("demo/npo", out="E").arms["T"]["e50"]  # doctest: +SKIP
    4
    """
    return brought_back(source, settings, out, notice=notice, progress=progress)
