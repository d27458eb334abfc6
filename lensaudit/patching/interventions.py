"""Edits of the residual stream: pure functions, installed by `bridge.intervening` alone."""

from jaxtyping import Bool, Float
from torch import Tensor, where

from lensaudit.types import Intervention, PosMask, Resid


def replace_at(source: Float[Tensor, "*at d"], mask: Bool[Tensor, "*at"]) -> Intervention:
    """Activation patching: `source` where the mask holds, the running stream elsewhere.

    `at` is batch and position; for attention heads also the head.
    """
    return lambda resid: where(mask.unsqueeze(-1), source.to(resid), resid)


def add(
    direction: Float[Tensor, " d_model"], *, strength: float, mask: PosMask | None = None
) -> Intervention:
    """Steering: `strength * direction` added, at all positions or where the mask holds.

    Undone by the same call with `-strength`.
    """

    def intervention(resid: Resid) -> Resid:
        return _where(mask, resid + (strength * direction.float()).to(resid), resid)

    return intervention


def project_out(
    direction: Float[Tensor, " d_model"], *, mask: PosMask | None = None
) -> Intervention:
    """Ablation: the component along `direction` removed. Idempotent."""
    return clamp(direction, to=0.0, mask=mask)


def clamp(
    direction: Float[Tensor, " d_model"], *, to: float, mask: PosMask | None = None
) -> Intervention:
    """The component along the unit vector of `direction` set to `to`. Idempotent."""
    unit = direction.float() / direction.float().norm()

    def intervention(resid: Resid) -> Resid:
        wide = resid.float()
        component = wide @ unit.to(wide.device)
        shift = (to - component).unsqueeze(-1) * unit.to(wide.device)
        return _where(mask, (wide + shift).to(resid.dtype), resid)

    return intervention


def _where(mask: PosMask | None, edited: Resid, resid: Resid) -> Resid:
    return edited if mask is None else where(mask.unsqueeze(-1), edited, resid)
