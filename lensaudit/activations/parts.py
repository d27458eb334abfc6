"""Which part of a layer does a cache hold, and what is it called in files and at hooks?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from lensaudit.errors import InputError
from lensaudit.files import printable
from lensaudit.settings import Kept

if TYPE_CHECKING:  # a listing does without torch
    from lensaudit.activations.fingerprint import Fingerprint
    from lensaudit.models.bridge import Component

HOOKS: dict[Kept, str] = {
    "resid": "resid_post",
    "attn": "attn_out",
    "mlp": "mlp_out",
    "resid_mid": "resid_mid",
    "heads": "z",
}
"""Part -> the `hook` of its fingerprint, which is also the name of its array in a shard."""
PARTS: dict[str, Kept] = {hook: part for part, hook in HOOKS.items()}


def hooked(part: Kept) -> "Component":
    """The component that `models.bridge.residuals` reads.

    >>> hooked("attn"), hooked("heads")
    ('attn', 'head')
    """
    return "head" if part == "heads" else part


def kept_as(component: "Component") -> Kept:
    """The part whose cache serves where a component is patched in.

    >>> kept_as("mlp"), kept_as("head")
    ('mlp', 'heads')

    Raises:
        InputError: the component is never cached.
    """
    part = "heads" if component == "head" else component
    if part not in HOOKS:
        raise InputError(f"component {component}: is not cached; {', '.join(HOOKS)} are")
    return part


def check_width(fingerprint: "Fingerprint", n_shown: int) -> None:
    """Refuse a component that is not as wide as the configuration says.

    Raises:
        InputError: says how wide it is.
    """
    if n_shown != fingerprint.d_model:
        raise InputError(
            f"--component {fingerprint.part}: the bridge shows {n_shown} values per token, the "
            f"configuration says {fingerprint.d_model}; choose another --component"
        )


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
