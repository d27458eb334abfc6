"""A model that a function is given: a bridge, or a name that is loaded."""

from typing import Any

import torch

from lensaudit.errors import InputError
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import open_model
from lensaudit.models.device import resolve_device
from lensaudit.results.reading import place_in
from lensaudit.settings import Place, named


def bridged(model: TransformerBridge | Place, call: str) -> TransformerBridge:
    """A bridge as it is, or the model of a name.

    Raises:
        InputError: something of another kind, or see `load_model`; `call` is who was given it.
    """
    given: Any = model
    return given if hasattr(given, "original_model") else load_model(place_in(call, given))


def load_model(
    name: Place,
    *,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    registry: Place | None = None,
) -> TransformerBridge:
    """The bridged model of a registry name, a Hub id with an optional revision, or a folder.

    Raises:
        InputError: unknown, unreachable or not loadable; or no such device here.
    """
    if dtype not in DTYPES:
        raise InputError(f"load_model(dtype={dtype!r}): wanted one of {', '.join(DTYPES)}")
    return load(
        open_model(named(place_in("load_model", name)), registry),
        dtype=DTYPES[dtype],
        device=resolve_device(str(device)),
    )
