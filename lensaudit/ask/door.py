"""Settings as keywords: one typed call from Python does what a command does.

    result = la.audit("demo/npo", out="npo", limit=8)
    first, second = la.patch(["demo/npo", "demo/idknll"], out="both", tau=0.1)

Keywords are the fields of a settings record. A file or folder is text or a `Path`. Several models
give a list, in their order; one that is named twice stands in it twice and is computed once.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

from lensaudit.ask.acting import acting
from lensaudit.ask.keywords import given_to
from lensaudit.errors import InputError
from lensaudit.progress import Tell, unheard
from lensaudit.results.owner import folders_for
from lensaudit.results.reading import place_in
from lensaudit.settings import Place, named, path_of

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")


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
"""Names of models, settings, folder of results, receiver of remarks -> a result for each model."""


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


def places_for(names: tuple[str, ...], out: Path | None) -> dict[str, Path | None]:
    """Folder of each model: `out` of the only one, one in it for several; None: the usual one."""
    return {**folders_for(names, out)} if out is not None else dict.fromkeys(names)
