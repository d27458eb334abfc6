"""Is a model of the embedded family? Its million weights want rates of their own."""

from typing import Protocol

from lensaudit.models.hashing import tokenizer_hash
from lensaudit.models.registry import EMBEDDED


class KnownByTokenizer(Protocol):
    """A checkpoint, opened or planned."""

    @property
    def tokenizer(self) -> str | None:
        """Content hash of its tokenizer; None where it was not opened."""
        ...


def of_embedded_family(model: KnownByTokenizer) -> bool:
    """Whether a model is of the embedded family, whatever its folder or name.

    No other tokenizer cuts words as that family's does.
    """
    return model.tokenizer == tokenizer_hash(EMBEDDED / "full")
