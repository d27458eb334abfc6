"""The application from Python: one typed call does what a command does.

    result = la.audit("demo/npo", out="npo", limit=8)
    first, second = la.patch(["demo/npo", "demo/idknll"], out="both", tau=0.1)

Keywords are the fields of a settings record. A file or folder is text or a `Path`. Several models
give a list, in their order; one that is named twice stands in it twice and is computed once.
"""

import difflib
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import (
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_type_hints,
    overload,
    runtime_checkable,
)

from lensaudit.association.result import KnowResult
from lensaudit.association.settings import KnowSettings
from lensaudit.auditing.result import AuditResult, CacheResult, EvaluationResult, PatchResult
from lensaudit.auditing.reuse import audited, evaluated, known, patched
from lensaudit.auditing.settings import (
    AuditSettings,
    CacheSettings,
    EvaluateSettings,
)
from lensaudit.errors import InputError
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Tell, unheard
from lensaudit.results.reading import checked_as
from lensaudit.results.records import folders_for
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
            names = tuple(map(named, [source] if one else source))
            if not names:
                raise InputError(f"{work.__name__}([]): no model; name one, or several in a list")
            asked = tuple(dict.fromkeys(names))
            results = work(asked, make(**given), path_of(out), progress)
            found = dict(zip(asked, results, strict=True))
            return found[names[0]] if one else [found[name] for name in names]

        vars(called)["__signature__"] = inspect.Signature([*_FIRST, *keywords.values()])
        vars(called)["settings"] = record
        return cast(Door[P, R], called)

    return decorate


def _fit(value: Any, keyword: inspect.Parameter) -> Any:
    """A value as its field holds it: of a field for several, one is a tuple of one."""
    if not isinstance(keyword.default, tuple) or value is None:
        return _plain(value)
    several = isinstance(value, Iterable) and not isinstance(value, str | Path)
    return _plain(list(cast(Iterable[Any], value)) if several else [value])


def _plain(value: Any) -> Any:
    """A place as text, which says a name or a file wherever either is wanted."""
    if isinstance(value, list | tuple):
        several = cast(Sequence[Any], value)
        return tuple(map(_plain, several))
    return named(value) if isinstance(value, Path) else value


def given_to(
    call: str, record: Any, given: Mapping[str, Any], known: Collection[str] = ()
) -> dict[str, Any]:
    """Keywords as the fields of a record hold them.

    Args:
        call: whose keywords they are.
        record: the settings.
        given: the keywords.
        known: those of the fields that the call knows; none: all.

    Raises:
        TypeError: the call knows no such keyword.
        InputError: one is of another kind: `layers=9`, `dtype="fp16"`.
    """
    keywords = inspect.signature(record).parameters
    check_keywords(call, known or keywords, given)
    kinds = get_type_hints(record, include_extras=True)
    fitting = {name: _fit(value, keywords[name]) for name, value in given.items()}
    return {
        name: checked_as(kinds[name], value, f"{call}({name}={value!r:.40})")
        for name, value in fitting.items()
    }


def check_keywords(name: str, known: Collection[str], given: Mapping[str, Any]) -> None:
    """Refuse a keyword that a call does not know.

    Raises:
        TypeError: names the fields that are spelled alike.
    """
    for keyword in given:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known)
            hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known)}"
            raise TypeError(f"{name}() has no keyword {keyword!r}; {hint}")


@door(AuditSettings)
def audit(
    source: tuple[str, ...], settings: AuditSettings, out: Path | None, progress: Tell
) -> Sequence[AuditResult]:
    """Everything about some models: how deep the knowledge is erased, and what they still say.

    As `lensaudit audit` without its page: `out` is experiments/out/audit-<source>, and anchors and
    data are those of the models' family where none is named. A step that fails is among the
    `failures` of a result; the rest is there. Called again it goes on where it was.

    >>> result = la.audit("demo/npo", out="npo", limit=8)  # doctest: +SKIP
    >>> result.uds, result.ci95, result.metrics["forget_Q_A_Prob"]  # doctest: +SKIP
    (0.09, (0.01, 0.17), 0.04)
    """
    return audited(source, settings, out, notice=notice, progress=progress).results


@door(PatchSettings)
def patch(
    source: tuple[str, ...], settings: PatchSettings, out: Path | None, progress: Tell
) -> Sequence[PatchResult]:
    """Patch models into `full`, layer by layer, and score how deep the knowledge is erased.

    As `lensaudit patch`: `out` is experiments/out/<source>, and anchors and forget set are those of
    the models' family where none is named.

    >>> la.patch("demo/npo", out="npo", limit=8, layers="8-15").uds  # doctest: +SKIP
    0.09
    """
    return patched(source, settings, out, notice=notice, progress=progress)


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
    folders = folders_for(source, out) if out is not None else {}
    return [
        evaluated(one, settings, folders.get(one), notice=notice, progress=progress)
        for one in source
    ]


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
    from lensaudit.auditing.cache import cache_into  # seconds to import; answers are read without

    settings = settings if out is None else replace(settings, activations=out)
    return [cache_into(one, settings, notice=notice, progress=progress) for one in source]


@door(KnowSettings)
def know(
    source: tuple[str, ...], settings: KnowSettings, out: Path | None, progress: Tell
) -> Sequence[KnowResult]:
    """Which values does a model bind to which subjects? Without a model that never knew.

    As `lensaudit know`: `out` is experiments/out/know-<source>, and base and forget set are those
    of the model's family where none is named.

    >>> found = la.know("demo/graddiff")  # doctest: +SKIP
    >>> found.headline, found.p, found.summary["bits"]  # doctest: +SKIP
    """
    if out is not None and len(source) > 1:
        raise InputError("la.know: several models and one folder; call it once for each")
    return [known(one, settings, out, notice=notice, progress=progress) for one in source]
