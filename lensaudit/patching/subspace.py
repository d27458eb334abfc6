"""A stream without its components in a subspace."""

from jaxtyping import Float
from torch import Tensor, zeros_like

from lensaudit.patching.interventions import within
from lensaudit.types import Intervention, PosMask, Resid


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
