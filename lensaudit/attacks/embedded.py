"""Is a model of the embedded family? Its million weights want rates of their own."""

from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.hashing import tokenizer_hash
from lensaudit.models.registry import EMBEDDED


def of_embedded_family(checkpoint: Checkpoint) -> bool:
    """Whether a model is of the embedded family, whatever its folder or name.

    No other tokenizer cuts words as that family's does.
    """
    return checkpoint.tokenizer == tokenizer_hash(EMBEDDED / "full")
