"""Choices of commands that stand on the core: how they are read, and those that no audit has.

Like `settings` this module imports nothing that takes time.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from lensaudit.settings import Caches, Names, Option, Precision, Section


def option_in(hint: Any) -> Option | None:
    """The option that a field's type declares; the outermost declaration wins, for aliases."""
    words: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    return next((word for word in reversed(words) if isinstance(word, Option)), None)


def in_commas(text: str) -> tuple[str, ...]:
    """The names of a comma list; `all` names none.

    >>> in_commas("uds, es"), in_commas("all")
    (('uds', 'es'), ())
    """
    if text == "all":
        return ()
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, kw_only=True)
class Replaces:
    """Whether a named folder may lose what a run of this command took long to make."""

    section: ClassVar[Section] = "Output"
    force: Annotated[
        bool,
        Option("Replace the result of another run of this command in --out.", typed=True),
    ] = False


@dataclass(frozen=True, kw_only=True)
class CheckupSettings(Caches, Precision, Names):
    """What `lensaudit doctor` looks at."""

    model: Annotated[
        str, Option("Compare the bridge with Hugging Face on this model.", is_a="model")
    ] = "demo/full"
