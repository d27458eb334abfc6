"""A model by name, for a notebook."""

from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.settings import Place, named


def load_model(
    name: Place,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    registry: Place | None = None,
) -> TransformerBridge:
    """The bridged model of a registry name, a Hub id with an optional revision, or a folder.

    Raises:
        InputError: unknown, unreachable or not loadable.
    """
    checkpoint = open_checkpoint(resolve(named(name), load_registry(registry)))
    return load(checkpoint, dtype=DTYPES[dtype], device=device)
