"""Is a model of the embedded family? Its million weights want rates of their own."""

from lensaudit.models.hashing import tokenizer_hash
from lensaudit.models.registry import EMBEDDED


def of_embedded_family(tokenizer: str | None) -> bool:
    """Whether a model is of the embedded family, whatever its folder or name: by its tokenizer.

    No other cuts words as that family's does. None: its content hash is not known.
    """
    return tokenizer == tokenizer_hash(EMBEDDED / "full")
