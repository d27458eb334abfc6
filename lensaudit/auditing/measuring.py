"""Checkpoints measured: who has what, how deep the knowledge is erased, and what they say.

Whoever measures a checkpoint asks here: an audit, a unit of a sweep, the demo. So all of them give
one word for one checkpoint and the same rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lensaudit.auditing.calls import evaluated, patched
from lensaudit.auditing.result import PatchResult
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.auditing.step import Opened, Step
from lensaudit.errors import InputError, LensAuditError
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.manifest import KNOW, PATCH
from lensaudit.results.owner import folders_for
from lensaudit.results.run import RunResult

Failed = Callable[[str, str, LensAuditError], None]
"""Told the model, the step and the error of a step that failed; may raise it."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps to do on some checkpoints; a step that is left out is not measured."""

    know: Mapping[str, Opened | str] = field(default_factory=dict)
    """By model, the questions on who has what, or why none are asked."""
    patch: PatchSettings | None = None
    evaluations: Sequence[tuple[str, EvaluateSettings, Path]] = ()
    """A model, what is computed of it, and where; a later one may read the log of an earlier."""


@dataclass
class Measurements:
    """Results of some models: who has what, depth, and what they say."""

    known: dict[str, RunResult] = field(default_factory=dict)
    """By model that was asked."""
    depths: list[PatchResult] = field(default_factory=list)
    """Of each source, in their order."""
    said: dict[str, EvaluationResult] = field(default_factory=dict)
    """By model, those without any value too."""


def who_has_what(
    who: Step, source: str, asked: PatchSettings, controls: Sequence[str]
) -> Opened | str:
    """Open the step that asks who has what, or say why not. Arguments are those of `Step.open`."""
    try:
        return who.open(source, asked, controls)
    except InputError as error:
        return f"who has what is not asked: {error}"


def raised(model: str, step: str, error: LensAuditError) -> None:
    """Raise the error of the first step that failed."""
    raise error


def measure(
    names: Sequence[str],
    steps: Steps,
    folder: Path,
    *,
    depths_in: Path | None = None,
    failed: Failed = raised,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Measurements:
    """Measure some checkpoints; what costs least comes first.

    Args:
        names: of those that are patched into `full`, together.
        steps: what is asked.
        folder: of all results.
        depths_in: folder of the depths; None: `patch` in `folder`.
        failed: told the errors of `know` and `evaluate`; those of `patch` always end it.
        notice: told remarks.
        progress: told what is done.

    Raises:
        LensAuditError: a step failed.
    """
    found = Measurements()
    for name, place in folders_for(tuple(steps.know), folder / KNOW).items():
        know = steps.know[name]
        try:
            if not isinstance(know, str):
                found.known[name] = know.run(place, progress=progress)
        except LensAuditError as error:
            failed(name, "know", error)
    if steps.patch is not None:
        place = depths_in or folder / PATCH
        found.depths = patched(names, steps.patch, place, notice=notice, progress=progress)
    for model, asked, place in steps.evaluations:
        log = asked.retain_log
        if log is not None and not Path(log).exists():  # the retain model's evaluation failed
            asked = replace(asked, retain_log=None)
        try:
            found.said[model] = evaluated(
                model,
                asked,
                place,
                notice=lambda text, model=model: notice(f"{model}: {text}"),
                progress=progress,
            )
            found.said[model].checked()
        except LensAuditError as error:
            failed(model, "evaluate", error)
    return found
