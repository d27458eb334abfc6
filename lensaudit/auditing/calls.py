"""The application: read a finished run that asked the same, or make the run.

A finished run says in its manifests what it was asked, as a hash (`question`). Whoever asks the
same again is given what the files say, and no model library is imported for it; in any doubt the
run is made again.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.auditing.question import (
    audit_folder,
    audit_key,
    check_asked,
    check_rows,
    evaluation_folder,
    evaluation_key,
    patch_key,
)
from lensaudit.auditing.result import (
    Audited,
    EvaluationResult,
    PatchResult,
    read_audit,
    read_evaluation,
    read_patched,
)
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.auditing.step import Step, wanted
from lensaudit.errors import InputError
from lensaudit.models.hashing import looking
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.manifest import AUDIT_MANIFEST, MANIFEST
from lensaudit.results.owner import comparison_in, folders_for
from lensaudit.results.question import Key, Question

R = TypeVar("R")


def patched(
    sources: Sequence[str],
    settings: PatchSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> list[PatchResult]:
    """Run `auditing.patch.patch_into`, or read the files of a finished run."""
    names = tuple(dict.fromkeys(sources))

    def manifests(folders: Sequence[Path]) -> list[Path]:
        beside = len(folders) > 1 and settings.score != "em"
        compared = [comparison_in(folders)] if beside else []
        tables = (one.with_name(f"{one.stem}_{MANIFEST}") for one in compared)
        return [*(one / MANIFEST for one in folders), *tables]

    def made(question: Question) -> tuple[list[PatchResult], list[Path]]:
        check_rows(names, settings)
        from lensaudit.auditing.patch import patch_into  # seconds to import

        found = patch_into(
            names,
            settings,
            folder,
            notice=question.tell,
            progress=progress,
            opened=question.opened,
        )
        return found, manifests([one.folder for one in found])

    def found(question: Question) -> list[PatchResult] | None:
        there = {
            name: question.where(one, named=folder is not None)
            for name, one in folders_for(names, folder).items()
        }
        return told(question, manifests([*there.values()]), lambda: read_patched(there), notice)

    return answered(lambda: patch_key(names, settings), found, made, notice, fresh=settings.fresh)


def evaluated(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> EvaluationResult:
    """Run `auditing.evaluate.evaluate_into`, or read the files of a finished run."""

    def made(question: Question) -> tuple[EvaluationResult, list[Path]]:
        from lensaudit.auditing.evaluate import evaluate_into  # seconds to import

        found = evaluate_into(
            model,
            settings,
            folder,
            notice=question.tell,
            progress=progress,
            opened=question.opened,
        )
        return (
            read_evaluation(model, found.folder),
            [] if found.failures else [found.folder / MANIFEST],
        )

    return found_or(made, model, settings, folder, notice)


def found_or(
    made: Callable[[Question], tuple[R, Iterable[Path]]],
    model: str,
    settings: EvaluateSettings,
    folder: Path | None,
    notice: Notice = unheard,
) -> EvaluationResult | R:
    """The files of a finished evaluation that asked the same; else what `made` gives.

    Arguments are those of `evaluated` and `answered`.
    """
    check_asked(model, settings, settings.registry)

    def found(question: Question) -> EvaluationResult | R | None:
        place = question.where(evaluation_folder(model, settings, folder), named=folder is not None)
        return told(question, [place / MANIFEST], lambda: read_evaluation(model, place), notice)

    return answered(
        lambda: evaluation_key(model, settings), found, made, notice, fresh=settings.fresh
    )


def audited(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    planned: Callable[[Any], None] = unheard,
    who: Step | None = None,
) -> Audited:
    """Run `auditing.audit.audit_into`, or read it where all its steps are finished.

    Args:
        sources: names, Hub ids or folders; the same one twice counts once.
        settings: what, and how.
        folder: of all results; None: experiments/out/audit-<source>.
        notice: told remarks.
        progress: told what is done.
        planned: told what was opened, before any work.
        who: asks who has what.
    """
    who = wanted(who, settings)
    names = tuple(dict.fromkeys(sources))

    def made(question: Question) -> tuple[Audited, list[Path]]:
        check_rows(names, settings)
        from lensaudit.auditing.audit import audit_into  # seconds to import

        def opened(audit: Any) -> None:
            planned(audit)
            for name, why in audit.not_asked.items():
                question.tell(f"{name}: {why}")
            question.opened()

        found = audit_into(
            names,
            settings,
            folder,
            who=who,
            notice=notice,
            progress=progress,
            opened=opened,
            sealed=lambda made: question.settle([made]),  # while no other run works in the folder
            theirs=lambda: None if settings.fresh else there(question),
        )
        return found, []

    def there(question: Question) -> Audited | None:
        place = question.where(
            audit_folder(names, folder), AUDIT_MANIFEST, named=folder is not None
        )
        return told(
            question,
            [place / AUDIT_MANIFEST],
            lambda: read_audit(names, settings, place),
            notice,
        )

    return answered(
        lambda: audit_key(names, settings, who), there, made, notice, fresh=settings.fresh
    )


def answered(
    key: Key,
    found: Callable[[Question], R | None],
    made: Callable[[Question], tuple[R, Iterable[Path]]],
    notice: Notice,
    *,
    fresh: bool = False,
) -> R:
    """The files of a finished run that asked the same; else the result of a new run.

    Args:
        key: of the question.
        found: looks for a finished run that asked the same, see `told`.
        made: the run; its result, and the manifests that it wrote.
        notice: told remarks.
        fresh: nothing is looked for.
    """
    with looking():
        question = Question(key, notice)
        there = None if fresh else found(question)
    if there is not None:
        return there
    result, written = made(question)
    question.settle(written)
    return result


def told(
    question: Question, manifests: Iterable[Path], read: Callable[[], R], notice: Notice
) -> R | None:
    """The files of a finished run that asked the same, if there is one."""
    lines = question.answered(manifests)
    if lines is not None:
        with suppress(InputError):
            found = read()
            for line in lines:
                notice(line)
            return found
    return None
