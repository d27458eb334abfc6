"""A model that a function is given: a bridge, or a name that is loaded."""

from typing import Any

from lensaudit.models.bridge import TransformerBridge, load_model
from lensaudit.results.reading import place_in
from lensaudit.settings import Place


def bridged(model: TransformerBridge | Place, call: str) -> TransformerBridge:
    """A bridge as it is, or the model of a name.

    Raises:
        InputError: something of another kind, or see `load_model`; `call` is who was given it.
    """
    given: Any = model
    return given if hasattr(given, "original_model") else load_model(place_in(call, given))
