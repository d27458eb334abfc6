"""The parts of a model that a caller asked to have cached."""

from collections.abc import Sequence
from typing import get_args

from lensaudit.activations.spec import Kept
from lensaudit.errors import InputError
from lensaudit.text import printable


def parts_of(chosen: str | Sequence[str]) -> tuple[Kept, ...]:
    """What a caller asked to have cached, each once.

    >>> parts_of("attn"), parts_of(["resid", "heads", "resid"]), parts_of([])
    (('attn',), ('resid', 'heads'), ('resid',))

    Raises:
        InputError: no such part.
    """
    names = (chosen,) if isinstance(chosen, str) else tuple(chosen) or ("resid",)
    for name in names:
        check_part(name)
    return tuple(part for part in get_args(Kept) if part in names)


def check_part(name: str | None) -> None:
    """Refuse what is no part; None is one not named.

    Raises:
        InputError: says which there are.
    """
    if name is not None and name not in get_args(Kept):
        hint = "; one cache holds all heads: heads" if name.startswith("head") else ""
        raise InputError(
            f"--component {printable(name)[:40]}: wanted {', '.join(get_args(Kept))}{hint}"
        )
