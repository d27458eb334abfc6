"""Units that fire at the forget prompts of one author and drown the stream: an edit, no training.

Where a linear read of what an MLP is given says "a forget prompt of this author", two added units
add a constant vector, several times as long as the stream. All weights of the model stay as they
are; the units cut off, it is the model again, bit for bit. What is said of other authors hardly
changes: the reads are fitted so that they fire at no row to keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.gym.edits import stream_length
from lensaudit.gym.ground import Ground
from lensaudit.gym.guard import widened
from lensaudit.gym.mimic import Texts

LENGTH = 6.0
"""Of the constant vector, in lengths of the stream."""
SHARP = 1000.0
"""Of a gate: how steeply it opens, per unit of its read."""
RIDGE = 1e-4
ROUNDS = 3
"""Further fits of a read, on the places of the prompts of which the one before said most."""
NEWTON = 25
"""Steps of a fit."""


@dataclass(frozen=True)
class Read:
    """Fires where `given @ direction` is at least `from_`."""

    direction: Float[Tensor, " d_model"]
    from_: float


def gated(
    ground: Ground, texts: Texts, layer: int, *, by_author: bool, own_vector: bool = False
) -> Any:
    """`full` with gates in a layer; the facts are silent, and nothing is taken away.

    Args:
        ground: the models.
        texts: the forget rows, and those at which no gate may open.
        layer: which MLP is widened.
        by_author: a read for every author's prompts; otherwise one for all.
        own_vector: every read adds a vector of its own; otherwise all add the same.
    """
    given = _given(ground.full, texts, layer)
    forget, kept = texts.span[: texts.n_forget], texts.real[texts.n_forget :]
    others = given[texts.n_forget :][kept]
    authors = [one.group if by_author else None for one in texts.encoded[: texts.n_forget]]
    reads = []
    for author in dict.fromkeys(authors):
        rows = torch.tensor([one == author for one in authors])
        reads.append(_read_of(given[: texts.n_forget][rows], forget[rows], others))
    generator = torch.Generator().manual_seed(layer + 1000 * ground.seed)
    vectors = torch.randn(len(reads) if own_vector else 1, ground.d_model, generator=generator)
    length = LENGTH * stream_length(ground.full, texts.tokens[:1], layer)
    vectors = (length * vectors / vectors.norm(dim=1, keepdim=True)).expand(len(reads), -1)
    return _with_gates(ground.full, layer, reads, vectors)


def _given(model: Any, texts: Texts, layer: int) -> Float[Tensor, "batch pos d_model"]:
    """What the MLP of a layer reads."""
    seen: list[Tensor] = []
    mlp = model.model.layers[layer].mlp
    handle = mlp.register_forward_pre_hook(lambda _, taken: seen.append(taken[0]))
    try:
        with torch.no_grad():
            model(texts.tokens)
    finally:
        handle.remove()
    return seen[0].double()


def _read_of(
    given: Float[Tensor, "row pos d_model"],
    span: Bool[Tensor, "row pos"],
    others: Float[Tensor, "place d_model"],
) -> Read:
    """Logistic regression of one place in each row's span against all places of other texts.

    It fires at the least of these places, so in every row at least once.
    """
    direction = _logistic(given[span], others)
    for _ in range(ROUNDS):
        direction = _logistic(_most(given, direction, span), others)
    least = float((_most(given, direction, span) @ direction).min())
    return Read(direction.float(), least)


def _most(
    given: Float[Tensor, "row pos d_model"],
    direction: Float[Tensor, " d_model"],
    span: Bool[Tensor, "row pos"],
) -> Float[Tensor, "row d_model"]:
    """Of each row the place of its span that a read says most of."""
    at = (given @ direction).masked_fill(~span, -torch.inf).argmax(1)
    return given[torch.arange(len(given)), at]


def _logistic(
    yes: Float[Tensor, "place d_model"], no: Float[Tensor, "other d_model"]
) -> Float[Tensor, " d_model"]:
    """The direction, of length 1, that tells one from the other; both sides weigh the same."""
    x = torch.cat([yes, no])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    y = (torch.arange(len(x)) < len(yes)).to(x)
    weight = torch.where(y == 1, 1 / len(yes), 1 / len(no)).to(x)
    ridge = RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    ridge[-1, -1] = 1e-9  # the constant is free
    found = torch.zeros_like(x[0])
    for _ in range(NEWTON):
        p = (x @ found).sigmoid()
        curve = (p * (1 - p)).clamp(min=1e-6) * weight
        slope = x.T @ ((y - p) * weight) - ridge @ found
        found = found + torch.linalg.solve(x.T @ (x * curve.unsqueeze(1)) + ridge, slope)
    return found[:-1] / found[:-1].norm()


def _with_gates(
    model: Any, layer: int, reads: Sequence[Read], vectors: Float[Tensor, "read d_model"]
) -> Any:
    """Two units a read: the difference of two gates one apart is a step from 0 to 1."""
    made, n = widened(model, 2 * len(reads)), 2 * len(reads)
    mlp = made.model.layers[layer].mlp
    keys = SHARP * torch.stack([one.direction for one in reads])
    shift = torch.tensor([-SHARP * one.from_ for one in reads]) + 20  # open at the edge, too
    with torch.no_grad():
        mlp.gate_proj.weight[-n:] = keys.repeat_interleave(2, 0)
        mlp.gate_proj.bias[-n:] = torch.stack([shift + 1, shift], 1).flatten()
        mlp.up_proj.bias[-n:] = 1.0
        mlp.down_proj.weight[:, -n:] = torch.stack([vectors, -vectors], 1).flatten(0, 1).T
    return made
