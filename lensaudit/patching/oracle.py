"""Patched scores by one hooked forward pass per layer: slow, obvious, the definition.

The engine (`patching.wavefront`) is tested equal to this.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Batch
from lensaudit.errors import InputError
from lensaudit.models.bridge import (
    Component,
    TransformerBridge,
    check_layers,
    intervening,
    logits_of,
)
from lensaudit.patching.interventions import replace_at
from lensaudit.scores.depth import LabelScore, label_logprob, span_mean

SourceStack = Float[Tensor, "batch layer pos *d"]
"""A source's activations at the positions of the batch's tokens."""


def baseline(
    full: TransformerBridge, batch: Batch, *, label_score: LabelScore = label_logprob
) -> Float[Tensor, " batch"]:
    """Span log-prob of `full` without a patch, nats per token; or the mean of another score."""
    return span_mean(logits_of(full, batch.tokens), batch.tokens, batch.predict_at, label_score)


def patched(
    full: TransformerBridge,
    source: SourceStack,
    batch: Batch,
    *,
    layers: Sequence[int],
    component: Component = "resid",
    head: int | None = None,
    label_score: LabelScore = label_logprob,
) -> Float[Tensor, "batch chosen"]:
    """Span log-prob of `full` with `source` patched in at one layer at a time, nats per token.

    `source` holds every layer; the columns of the answer are `layers`. With `component="head"`
    only head `head` is replaced.
    """
    columns, mask = [], batch.patch_at
    if component == "head":
        heads = torch.arange(source.shape[3], device=mask.device)
        if head not in heads.tolist():
            raise InputError(f"head={head}: wanted one of 0 to {len(heads) - 1}")
        mask = mask.unsqueeze(-1) & (heads == head)
    elif head is not None:
        raise InputError(f'head={head}: wanted component="head" with it, found {component!r}')
    check_layers(full, layers)
    for layer in layers:
        with intervening(full, {layer: replace_at(source[:, layer], mask)}, component=component):
            columns.append(baseline(full, batch, label_score=label_score))
    return torch.stack(columns, dim=1) if columns else torch.empty(len(mask), 0, device=mask.device)


def layer_deltas(
    full: TransformerBridge,
    source: SourceStack,
    batch: Batch,
    *,
    layers: Sequence[int] | int | None = None,
    component: Component = "resid",
    head: int | None = None,
) -> Float[Tensor, "batch chosen"]:
    """Drop in span log-prob of `full`, nats per token, with `source` patched in at each layer.

    Raises:
        InputError: `source` has other rows or positions than the batch, `component="head"` lacks
            its `head`, or the model lacks a layer.
    """
    chosen = range(source.shape[1]) if layers is None else layers
    return baseline(full, batch).unsqueeze(1) - patched(
        full,
        source,
        batch,
        layers=[*chosen] if isinstance(chosen, Iterable) else [chosen],
        component=component,
        head=head,
    )
