"""Was this very question of `patch`, `eval`, `know` or `audit` answered? Then its files answer.

A finished run says in its manifests what it was asked, as a hash (`question`). Whoever asks the
same again is given what the files say, and no model library is imported for it; in any doubt the
run is made again.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.association.result import KnowResult, know_folder
from lensaudit.association.settings import KnowSettings
from lensaudit.auditing.question import (
    audit_folder,
    audit_key,
    check_rows,
    evaluation_folder,
    evaluation_key,
    know_key,
    patch_key,
)
from lensaudit.auditing.result import (
    AUDIT_MANIFEST,
    SUMMARY,
    Audited,
    EvaluationResult,
    PatchResult,
    read_audit,
    read_evaluation,
    read_patched,
)
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.errors import InputError
from lensaudit.models.hashing import looking
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.keyed import Key, Question
from lensaudit.results.reading import json_object
from lensaudit.results.records import COMPARISON_MANIFEST, MANIFEST, folders_for

R = TypeVar("R")


def patched(
    sources: Sequence[str],
    settings: PatchSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> list[PatchResult]:
    """As `auditing.patch.patch_into`; a run that is finished is read from its files."""
    names = tuple(dict.fromkeys(sources))

    def manifests(folders: Sequence[Path]) -> list[Path]:
        beside = len(folders) > 1 and settings.score != "em"
        compared = [folders[0].parent / COMPARISON_MANIFEST] if beside else []
        return [*(one / MANIFEST for one in folders), *compared]

    def made(question: Question) -> list[PatchResult]:
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
        question.settle(manifests([one.folder for one in found]))
        return found

    folders = folders_for(names, folder)
    return _answered(
        lambda: patch_key(names, settings),
        () if settings.fresh else manifests([*folders.values()]),
        lambda: read_patched(folders),
        made,
        notice,
    )


def evaluated(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> EvaluationResult:
    """As `auditing.evaluate.evaluate_into`; one that is finished is read from its files."""

    def made(question: Question) -> EvaluationResult:
        from lensaudit.auditing.evaluate import evaluate_into  # seconds to import

        found = evaluate_into(
            model,
            settings,
            folder,
            notice=question.tell,
            progress=progress,
            opened=question.opened,
        )
        if not found.failures:
            question.settle([found.folder / MANIFEST])
        return found

    place = evaluation_folder(model, settings, folder)
    return _answered(
        lambda: evaluation_key(model, settings),
        () if settings.fresh else [place / MANIFEST],
        lambda: read_evaluation(model, place),
        made,
        notice,
    )


def audited(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    planned: Callable[[Any], None] = unheard,
) -> Audited:
    """As `auditing.audit.audit_into`; one that is finished in all its steps is read.

    Args:
        sources: names, Hub ids or folders; the same one twice counts once.
        settings: what, and how.
        folder: of all results; None: experiments/out/audit-<source>.
        notice: told remarks.
        progress: told what is done.
        planned: told the plan of what is made, before any work.
    """
    names = tuple(dict.fromkeys(sources))

    def made(question: Question) -> Audited:
        check_rows(names, settings)
        from lensaudit.auditing.audit import audit_into  # seconds to import

        def opened(plan: Any) -> None:
            planned(plan)
            for line in plan.remarks:
                question.tell(line)
            question.opened()

        found = audit_into(names, settings, folder, notice=notice, progress=progress, opened=opened)
        sealed = found.folder / AUDIT_MANIFEST
        question.settle([sealed] if sealed.exists() else ())
        return found

    place = audit_folder(names, folder)
    return _answered(
        lambda: audit_key(names, settings),
        () if settings.fresh else [place / AUDIT_MANIFEST],
        lambda: read_audit(names, settings, place),
        made,
        notice,
    )


def known(
    source: str,
    settings: KnowSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> KnowResult:
    """As `association.run.know_into`; one that is finished is read from its files."""
    place = know_folder(source, folder)

    def made(question: Question) -> KnowResult:
        from lensaudit.association.run import know_into  # seconds to import

        found = know_into(source, settings, folder, notice=question.tell, progress=progress)
        question.opened()
        question.settle([found.folder / MANIFEST])
        return found

    return _answered(
        lambda: know_key(source, settings),
        [place / MANIFEST],
        lambda: KnowResult(source, place, json_object(place / SUMMARY)),
        made,
        notice,
    )


def _answered(
    key: Key,
    manifests: Iterable[Path],
    read: Callable[[], R],
    made: Callable[[Question], R],
    notice: Notice,
) -> R:
    """What a run wrote, where its manifests say that this was asked; else what it finds now."""
    with looking():
        question = Question(key, notice)
        told = question.answered(manifests)
    if told is None:
        return made(question)
    try:
        found = read()
    except InputError:
        return made(question)
    for line in told:
        notice(line)
    return found
