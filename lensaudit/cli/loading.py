"""Which large package is being imported? Said on a terminal, where seconds pass without a word.

A line that is erased again: what a command says itself begins on an empty one.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LARGE = ("torch", "transformers", "transformer_lens", "sklearn", "scipy", "datasets", "matplotlib")
"""Packages that take a good part of a second and more."""
_ERASE = "\r\x1b[2K"


_doing: list[str] | None = None
"""What is being done, the innermost last; None: nobody is told."""


def announce(arguments: Sequence[str]) -> None:
    """From now on name large packages while they are imported.

    Not where nobody looks, and not for `-q`.
    """
    global _doing
    quiet = any(one in ("-q", "--quiet") for one in arguments)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not quiet:
        _doing = []
        sys.meta_path.insert(0, _Announcing())


@contextmanager
def during(what: str) -> Iterator[None]:
    """Say what is done before anything else can be said."""
    if _doing is None:
        yield
        return
    _doing.append(what)
    _show(what)
    try:
        yield
    finally:
        _doing.pop()
        _show(_doing[-1] if _doing else "")


def _show(what: str) -> None:
    sys.stderr.write(f"{_ERASE}{what and f'{what} …'}")
    sys.stderr.flush()


class _Announcing(MetaPathFinder):
    """Finds nothing itself; tells when what others found is run."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a large package, its loader made to tell; None for all others."""
        if fullname not in LARGE:
            return None
        others = (one for one in sys.meta_path if one is not self)
        found = (one.find_spec(fullname, path, target) for one in others)
        spec = next((one for one in found if one is not None), None)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        load = loader.exec_module

        def told(module: ModuleType) -> None:
            with during(f"loading {fullname}"):
                load(module)

        loader.exec_module = told
        return spec
