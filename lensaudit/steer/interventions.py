"""Edits that steer or ablate a residual stream: pure functions, as `replace_at` of patching is."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, isfinite, zeros_like

from lensaudit.errors import InputError
from lensaudit.patching.interventions import chosen
from lensaudit.settings import Where
from lensaudit.types import Intervention, PosMask, Resid


def add(
    direction: Float[Tensor, " d_model"], *, strength: float, mask: PosMask | None = None
) -> Intervention:
    """Steering: `strength * direction` added, at all positions or where the mask holds.

    Undone by the same call with `-strength`.
    """

    def intervention(resid: Resid) -> Resid:
        return within(mask, resid + (strength * direction.float()).to(resid), resid)

    return intervention


def mask_of(
    where: Where, positions: Int[Tensor, "batch pos"], n_prompt: Int[Tensor, " batch"]
) -> PosMask:
    """Positions at which a rule holds, from each row's own positions.

    `prompt` is before the answer; `response` begins at the last prompt token, whose output is the
    first token of the answer; `last_prompt` is that one alone.

    >>> from torch import arange, tensor
    >>> mask_of("response", arange(-1, 3).unsqueeze(0), tensor([2])).int()
    tensor([[0, 0, 1, 1]], dtype=torch.int32)

    Args:
        where: the rule.
        positions: place of each token in its own sequence, from 0; negative at padding. With
            cached keys and values these are the places of the new tokens, not 0.
        n_prompt: tokens of each prompt.
    """
    last = n_prompt.unsqueeze(1).to(positions) - 1
    real = positions >= 0
    match where:
        case "all":
            return real
        case "prompt":
            return real & (positions <= last)
        case "response":
            return real & (positions >= last)
        case "last_prompt":
            return real & (positions == last)


def project_out(
    direction: Float[Tensor, " d_model"], *, mask: PosMask | None = None
) -> Intervention:
    """Ablation: the component along `direction` removed. Idempotent; errors as `clamp`."""
    return clamp(direction, to=0.0, mask=mask)


def clamp(
    direction: Float[Tensor, " d_model"],
    *,
    to: float | Float[Tensor, "*batch"],
    mask: PosMask | None = None,
) -> Intervention:
    """The component along the unit vector of `direction` set to `to`, one for all or one per row.

    Idempotent.

    Raises:
        InputError: a direction without a length.
    """
    length = direction.float().norm()
    if not (length > 0 and isfinite(length)):
        raise InputError(
            f"a direction of length {length:g}: it points nowhere; between equal streams there is "
            "none, so take another layer or model"
        )
    unit = direction.float() / length

    def intervention(resid: Resid) -> Resid:
        wide = resid.float()
        component = wide @ unit.to(wide.device)
        wanted = to.to(component).reshape(-1, 1) if isinstance(to, Tensor) else to
        shift = (wanted - component).unsqueeze(-1) * unit.to(wide.device)
        return within(mask, (wide + shift).to(resid.dtype), resid)

    return intervention


def within(mask: Bool[Tensor, "*_"] | None, edited: Resid, resid: Resid) -> Resid:
    """The edited stream where the mask holds, the stream as it was elsewhere."""
    return edited if mask is None else chosen(mask, edited, resid)


def project_out_span(
    basis: Float[Tensor, "rank d_model"],
    *,
    centre: Float[Tensor, " d_model"] | None = None,
    mask: PosMask | None = None,
) -> Intervention:
    """Ablation of the components along the orthonormal rows of `basis`. Idempotent.

    With a `centre` they become those of the centre, which stays nearer to what the model has seen.
    """

    def intervention(resid: Resid) -> Resid:
        wide, axes = resid.float(), basis.float().to(resid.device)
        middle = zeros_like(axes[0]) if centre is None else centre.float().to(resid.device)
        removed = (wide - middle) @ axes.T @ axes
        return within(mask, (wide - removed).to(resid.dtype), resid)

    return intervention
