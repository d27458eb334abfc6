"""Edits that wait for their positions: what steering and ablation hand to a run of the model."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.models.bridge import Component, TransformerBridge, intervening
from lensaudit.patching import interventions
from lensaudit.patching.interventions import Where, mask_of
from lensaudit.types import Intervention, PosMask, Resid

Idx = tuple[int, ...]
Edit = Callable[[PosMask, Idx], Intervention]
"""From the positions it acts at, and the example of each row, to an intervention."""
Place = tuple[Component, int]
"""What is edited, and at which layer."""


@dataclass(frozen=True)
class Edits:
    """A set of edits and the rule for where they act."""

    at: Mapping[Place, Edit] = field(default_factory=dict)
    where: Where = "all"

    def rows(
        self, positions: Int[Tensor, "batch pos"], n_prompt: Int[Tensor, " batch"], idx: Idx
    ) -> dict[Place, Intervention]:
        """The interventions for tokens at these positions; negative ones are padding."""
        mask = mask_of(self.where, positions, n_prompt)
        return {place: edit(mask, idx) for place, edit in self.at.items()}


NO_EDITS = Edits()


@contextlib.contextmanager
def installed(
    model: TransformerBridge, edits: Mapping[Place, Intervention]
) -> Iterator[TransformerBridge]:
    """Interventions on several components at once; removed on exit and on error."""
    by_component: dict[Component, dict[int, Intervention]] = {}
    for (component, layer), edit in edits.items():
        by_component.setdefault(component, {})[layer] = edit
    with contextlib.ExitStack() as stack:
        for component, layers in by_component.items():
            stack.enter_context(intervening(model, layers, component=component))
        yield model


def adding(direction: Float[Tensor, " d_model"], strength: float) -> Edit:
    """`strength * direction` added."""
    return lambda mask, idx: interventions.add(direction, strength=strength, mask=mask)


def removing(
    basis: Float[Tensor, "rank d_model"], *, centre: Float[Tensor, " d_model"] | None = None
) -> Edit:
    """Components along the orthonormal rows of `basis` taken out, or set to those of `centre`."""
    return lambda mask, idx: interventions.project_out_span(basis, centre=centre, mask=mask)


def clamping(direction: Float[Tensor, " d_model"], to: float | Mapping[int, float]) -> Edit:
    """The component along `direction` set to one number, or to one per example."""

    def edit(mask: PosMask, idx: Idx) -> Intervention:
        wanted = torch.tensor([to[one] for one in idx]) if isinstance(to, Mapping) else to
        return interventions.clamp(direction, to=wanted, mask=mask)

    return edit


def one_after_the_other(edits: list[Intervention]) -> Intervention:
    """Several interventions at one place."""

    def intervention(resid: Resid) -> Resid:
        for edit in edits:
            resid = edit(resid)
        return resid

    return intervention
