"""Which checkpoints? Names, patterns, roles and lists become specs, each once."""

import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.models.registry import ModelSpec, Registry, Role, family_of, resolve

ROLE = "role:"
"""`role:pool_knows` selects all of a role."""
_WILD = frozenset("*?[")


def select(names: Sequence[str], registry: Registry) -> list[ModelSpec]:
    """The checkpoints that names and patterns stand for, in their order, each once.

    Args:
        names: registry names, folders and Hub ids; `idknll_*_ep10` (names of the registry, or
            folders); `role:unlearned`.
        registry: the known names.

    Raises:
        InputError: a name is unknown or a pattern matches nothing.
    """
    found: dict[str, ModelSpec] = {}
    for name in names:
        for spec in _matching(name, registry):
            found.setdefault(_identity(spec), spec)
    return list(found.values())


def listed(path: Path) -> list[str]:
    """The names in a text file, one per line; `#` begins a comment.

    Raises:
        InputError: it cannot be read or holds no name.
    """
    lines = (line.partition("#")[0].strip() for line in read_text(path).splitlines())
    names = [line for line in lines if line]
    if not names:
        raise InputError(f"{path}: holds no model name; wanted one per line")
    return names


def _matching(name: str, registry: Registry) -> Iterable[ModelSpec]:
    if name.startswith(ROLE):
        return _of_role(name.removeprefix(ROLE), registry)
    if not _WILD & set(name):
        return [resolve(name, registry)]
    matches = [
        spec
        for key, spec in registry.specs.items()
        if fnmatch.fnmatchcase(key, name) and spec.alias_of is None
    ]
    folders = sorted(glob.glob(os.path.expanduser(name)))
    matches += [resolve(path, registry) for path in folders if os.path.isdir(path)]
    if not matches:
        raise InputError(
            f"pattern {name!r} matches no model; `lensaudit models` lists all names, and a "
            "pattern of folders needs folders that exist"
        )
    return matches


def _of_role(role: str, registry: Registry) -> list[ModelSpec]:
    if role not in get_args(Role):
        raise InputError(f"{ROLE}{role}: no such role; wanted one of {', '.join(get_args(Role))}")
    specs = [
        spec
        for spec in registry.listed()
        if spec.role == role and spec.alias_of is None and not family_of(spec.name)
    ]
    if not specs:
        raise InputError(f"{ROLE}{role}: no model has this role")
    return specs


def _identity(spec: ModelSpec) -> str:
    """What is the same checkpoint under two names."""
    adapter = _identity(spec.adapter) if spec.adapter else ""
    return f"{spec.local or spec.repo}@{spec.revision}+{adapter}"
