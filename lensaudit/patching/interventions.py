"""Activation patching: the pure function that `bridge.intervening` installs.

Edits that steer stand in `steer.interventions`.
"""

from jaxtyping import Bool, Float
from torch import Tensor, where

from lensaudit.errors import InputError
from lensaudit.types import Intervention


def replace_at(source: Float[Tensor, "*at d"], mask: Bool[Tensor, "*at"]) -> Intervention:
    """Activation patching: `source` where the mask holds, the running stream elsewhere.

    `at` is batch and position; for attention heads also the head.
    """
    return lambda resid: chosen(mask, source.to(resid), resid)


def chosen(
    mask: Bool[Tensor, "*_"], edited: Float[Tensor, "*_"], resid: Float[Tensor, "*at d"]
) -> Float[Tensor, "*at d"]:
    """What is edited where the mask holds, the running stream elsewhere.

    Raises:
        InputError: they are of other rows or positions than this pass, or of another width.
    """
    if mask.shape != resid.shape[:-1] or edited.shape != resid.shape:
        raise InputError(
            f"an edit of {tuple(edited.shape)} under a mask of {tuple(mask.shape)} in a stream of "
            f"{tuple(resid.shape)}; wanted the rows and positions of this pass (la.steer and "
            "la.patched_generation edit while a model generates)"
        )
    return where(mask.unsqueeze(-1), edited, resid)
