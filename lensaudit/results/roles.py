"""Which models may have which roles; decided by weights, never by names.

A source is audited, `full` holds the facts, and `retain` models never saw them. A wrong role makes
a model pass that hides its facts: beside itself as `retain` any model reads as one that never knew.

    refused   source = full, source = retain, source = base, full = retain, and two
              sources or two retain models alike, under whatever names
    taken     base = full, base = retain: it counts once; a reference may be any model
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import combinations
from typing import Any, Literal, NamedTuple

from lensaudit.errors import InputError
from lensaudit.once import holding
from lensaudit.results.manifest import model_in
from lensaudit.results.reading import part

ModelRole = Literal["source", "full", "retain", "base", "knows", "forgot"]
"""The last two are pools of models, as `meta faithfulness` compares them."""


class InRole(NamedTuple):
    """A model in a role."""

    role: ModelRole
    name: str
    weights: str
    """Content hash; of a model that is not fetched yet, where it comes from."""


_NEVER_SAW = "wanted a model that never saw the forget set"
_APART: Mapping[frozenset[ModelRole], str] = {
    frozenset(("source", "full")): "wanted the model that unlearned as the source",
    frozenset(("source", "retain")): _NEVER_SAW,
    frozenset(("source", "base")): _NEVER_SAW,
    frozenset(("full", "retain")): _NEVER_SAW,
    frozenset(("source",)): "name each once",
    frozenset(("retain",)): "name each once",
    frozenset(("knows", "forgot")): "wanted each model in one pool",
    frozenset(("knows", "retain")): "wanted a model that knows",
    frozenset(("forgot", "full")): _NEVER_SAW,
}
"""Roles that no two models of the same weights may have -> what to do."""
_ends: ContextVar[bool] = ContextVar("ends", default=False)


@contextmanager
def ends_as_sources() -> Iterator[None]:
    """Let `full` and models that never knew be sources inside: they are the ends of a scale.

    A sweep, the gym, an attack before and after, and a training run measure them so.
    """
    with holding(_ends, True):
        yield


ENDS: tuple[ModelRole, ...] = ("full", "retain", "base")
"""Roles of models that are not audited: others are held to them."""


def ends_in(manifest: Mapping[str, Any]) -> list[InRole]:
    """The models of a manifest that others are held to; none where ends may be sources."""
    return [] if _ends.get() else [one for one in roles_in(manifest) if one.role in ENDS]


UNATTACKED = "-unattacked"
"""Ends the name of an anchor that stands beside what an attack of a sweep made of it."""


def attacked_ends_in(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Weights of the model of a manifest that a sweep made of an anchor, by an attack."""
    models, options = roles_in(manifest), part(manifest, "options")
    beside = {one.name for one in models if one.role in ENDS}
    beside |= {str(options.get(role)) for role in ENDS}  # where an evaluation names them
    for one in (*models, model_in(manifest, "model")):
        if one.weights and f"{one.name}{UNATTACKED}" in beside:
            yield one.weights


def clash(models: Iterable[InRole]) -> str | None:
    """Two models with the same weights in roles that exclude each other; None: no two.

    >>> clash([InRole("source", "a", "1"), InRole("full", "b", "1"), InRole("retain", "c", "2")])
    'source a and full b have the same weights; wanted the model that unlearned as the source'
    >>> clash([InRole("full", "a", "1"), InRole("retain", "b", "2"), InRole("base", "b", "2")])
    """
    held = (one for one in models if one.role != "source" or not _ends.get())
    for one, other in combinations(held, 2):
        wanted = _APART.get(frozenset((one.role, other.role)))
        if wanted and one.weights == other.weights:
            return (
                f"{one.role} {one.name} and {other.role} {other.name} have the same weights; "
                f"{wanted}"
            )
    return None


def check_roles(models: Iterable[InRole]) -> None:
    """Refuse models in roles that exclude each other.

    Raises:
        InputError: names the two, and what is wanted.
    """
    if (told := clash(models)) is not None:
        raise InputError(told)


_WORDS: Mapping[str, ModelRole] = {
    "source": "source",
    "unlearned": "source",
    "full": "full",
    "retain": "retain",
    "base": "base",
}
"""First word of a role in a manifest -> the role."""


def roles_in(manifest: Mapping[str, Any]) -> list[InRole]:
    """The models of a manifest by their roles: `source`, `full`, `retain`, `retain 1` …, `base`."""
    found = []
    for key in part(manifest, "inputs"):
        role = _WORDS.get(str(key).partition(" ")[0])
        model = model_in(manifest, str(key)) if role else None
        if role and model and model.weights:
            found.append(InRole(role, model.name or str(key), model.weights))
    return found
