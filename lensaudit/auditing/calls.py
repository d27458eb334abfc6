"""The application from Python: one typed call does what a command does; what is answered is read.

    result = la.audit("demo/npo", out="npo", limit=8)
    first, second = la.patch(["demo/npo", "demo/idknll"], out="both", tau=0.1)

Keywords are the fields of a settings record. A file or folder is text or a `Path`. Several models
give a list, in their order; one that is named twice stands in it twice and is computed once.

A finished run says in its manifests what it was asked, as a hash (`question`). Whoever asks the
same again is given what the files say, and no model library is imported for it; in any doubt the
run is made again.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import (
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
    runtime_checkable,
)

from lensaudit.auditing.acting import acting
from lensaudit.auditing.question import (
    audit_folder,
    audit_key,
    check_rows,
    evaluation_folder,
    evaluation_key,
    patch_key,
)
from lensaudit.auditing.result import (
    AUDIT_MANIFEST,
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
from lensaudit.results.keyed import Key, Question
from lensaudit.results.reading import given_to, place_in
from lensaudit.results.records import COMPARISON_MANIFEST, MANIFEST, folders_for
from lensaudit.settings import Place, named, path_of

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

notice = logging.getLogger("lensaudit").warning
"""Remarks on a result; without a handler Python prints them on stderr."""


@runtime_checkable
class Door(Protocol[P, R]):
    """A call whose keywords are the fields of a settings record, which it holds as `settings`."""

    @overload
    def __call__(
        self,
        source: Place,
        out: Place | None = None,
        progress: Tell = unheard,
        *args: P.args,
        **settings: P.kwargs,
    ) -> R: ...
    @overload
    def __call__(
        self,
        source: Sequence[Place],
        out: Place | None = None,
        progress: Tell = unheard,
        *args: P.args,
        **settings: P.kwargs,
    ) -> list[R]: ...


Work = Callable[[tuple[str, ...], S, Path | None, Tell], Sequence[R]]
"""Names of models, settings, folder of results, who is told -> a result for each model."""


_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD
_FIRST = (
    inspect.Parameter("source", _PLAIN, annotation=Place | Sequence[Place]),
    inspect.Parameter("out", _PLAIN, annotation=Place | None, default=None),
    inspect.Parameter("progress", _PLAIN, annotation=Tell, default=unheard),
)


def door(record: Callable[P, S]) -> Callable[[Work[S, R]], Door[P, R]]:
    """Give a function the fields of `record` as keywords, and one model or several."""

    def decorate(work: Work[S, R]) -> Door[P, R]:
        make = cast(Callable[..., S], record)
        keywords = inspect.signature(record).parameters

        @functools.wraps(work, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        def called(
            source: Place | Sequence[Place],
            out: Place | None = None,
            progress: Tell = unheard,
            **settings: Any,
        ) -> R | list[R]:
            given = given_to(work.__name__, record, settings)
            one = isinstance(source, str | Path)
            listed = source if isinstance(source, Iterable) and not one else [source]
            names = tuple(named(place_in(work.__name__, each)) for each in listed)
            if not names:
                raise InputError(f"{work.__name__}([]): no model; name one, or several in a list")
            asked = tuple(dict.fromkeys(names))
            chosen = acting(make(**given), {"source": names})
            results = work(asked, chosen, path_of(out), progress)
            found = dict(zip(asked, results, strict=True))
            return found[names[0]] if one else [found[name] for name in names]

        vars(called)["__signature__"] = inspect.Signature([*_FIRST, *keywords.values()])
        vars(called)["settings"] = record
        return cast(Door[P, R], called)

    return decorate


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
    usual = folders_for(names, folder)

    def manifests(folders: Sequence[Path]) -> list[Path]:
        beside = len(folders) > 1 and settings.score != "em"
        compared = [folders[0].parent / COMPARISON_MANIFEST] if beside else []
        return [*(one / MANIFEST for one in folders), *compared]

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
            placed=notice,  # what was there before says nothing of the run
        )
        return found, manifests([one.folder for one in found])

    def found(question: Question) -> list[PatchResult] | None:
        named = folder is not None
        there = {name: question.where(one, named=named) for name, one in usual.items()}
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
    """As `auditing.evaluate.evaluate_into`; one that is finished is read from its files."""
    usual = evaluation_folder(model, settings, folder)

    def made(question: Question) -> tuple[EvaluationResult, list[Path]]:
        from lensaudit.auditing.evaluate import evaluate_into  # seconds to import

        found = evaluate_into(
            model,
            settings,
            folder,
            notice=question.tell,
            progress=progress,
            opened=question.opened,
            placed=notice,  # what was there before says nothing of the run
        )
        return found, [] if found.failures else [found.folder / MANIFEST]

    def found(question: Question) -> EvaluationResult | None:
        place = question.where(usual, named=folder is not None)
        read = functools.partial(read_evaluation, model, place)
        return told(question, [place / MANIFEST], read, notice)

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
    """As `auditing.audit.audit_into`; one that is finished in all its steps is read.

    Args:
        sources: names, Hub ids or folders; the same one twice counts once.
        settings: what, and how.
        folder: of all results; None: experiments/out/audit-<source>.
        notice: told remarks.
        progress: told what is done.
        planned: told the plan of what is made, before any work.
        who: asks who has what.
    """
    who = wanted(who, settings)
    names = tuple(dict.fromkeys(sources))
    usual = audit_folder(names, folder)

    def made(question: Question) -> tuple[Audited, list[Path]]:
        check_rows(names, settings)
        from lensaudit.auditing.audit import audit_into  # seconds to import

        def opened(plan: Any) -> None:
            planned(plan)
            for line in plan.remarks:
                question.tell(line)
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
        place = question.where(usual, AUDIT_MANIFEST, named=folder is not None)
        read = functools.partial(read_audit, names, settings, place)
        return told(question, [place / AUDIT_MANIFEST], read, notice)

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
    """What a run wrote, where its manifests say that this was asked; else what it finds now.

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
    """What a finished run wrote that asked the same, if there is one."""
    lines = question.answered(manifests)
    if lines is not None:
        with suppress(InputError):
            found = read()
            for line in lines:
                notice(line)
            return found
    return None


def places_for(names: tuple[str, ...], out: Path | None) -> dict[str, Path | None]:
    """Folder of each model: `out` of the only one, one in it for several; None: the usual one."""
    return {**folders_for(names, out)} if out is not None else dict.fromkeys(names)


@door(EvaluateSettings)
def evaluate(
    source: tuple[str, ...], settings: EvaluateSettings, out: Path | None, progress: Tell
) -> Sequence[EvaluationResult]:
    """Compute the metrics of a suite: what models still say, and what their outputs betray.

    As `lensaudit eval`: `out` is experiments/out/<source>-<suite>. UDS is among the metrics where
    `retain` is named.

    >>> la.evaluate("demo/npo", out="said", limit=8).summary["forget_Q_A_Prob"]  # doctest: +SKIP
    0.04
    """
    return [
        evaluated(one, settings, place, notice=notice, progress=progress)
        for one, place in places_for(source, out).items()
    ]
