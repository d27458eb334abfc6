"""Is a model of the embedded family? Its million weights want rates of their own."""

from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.likeness import same_tokenizer
from lensaudit.models.registry import EMBEDDED, resolve


def of_embedded_family(model: Checkpoint) -> bool:
    """Whether a model is of the embedded family, whatever its folder or name: by its tokenizer.

    No other cuts words as that family's does.

    Raises:
        InputError: its tokenizer is saved otherwise than the family's, and cannot be loaded.
    """
    return same_tokenizer(model, embedded_full())


def embedded_full() -> Checkpoint:
    """The family's model before unlearning, whatever a registry file calls by its name."""
    return open_checkpoint(resolve(str(EMBEDDED / "full"), {}))
