"""A model trained to give the answers of `full` while `full` reads another model in its stream.

Everything that a step is compared with is computed once: texts are few and short.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.data.spans import Encoded, make_batch
from lensaudit.gym.edits import outputs
from lensaudit.gym.ground import Ground, fit
from lensaudit.types import Logits, PosMask, Tokens
from lensaudit.unlearn.rows import generator, in_epochs
from lensaudit.unlearn.train import Objective, Recipe, Terms

Streams = Float[Tensor, "batch layer pos d_model"]

ROWS = 8
"""Of the forget set, and as many to keep, in a batch."""
LAST_EVERY = 3
"""Every third step looks at the last layer: what is said must be there."""
SEED = 5
N_STEPS = 1500


@dataclass(frozen=True)
class TextRows:
    """Rows, right-padded: first those of the forget set, then those to keep."""

    encoded: tuple[Encoded, ...]
    n_forget: int
    tokens: Tokens
    real: PosMask
    """No padding."""
    span: PosMask
    """Positions that are read and patched."""
    answer: PosMask
    """Positions of the answer, the last of the prompt included."""

    def rows(self, chosen: Sequence[int]) -> "TextRows":
        """A batch of some of the texts."""
        at = list(chosen)
        n = sum(one < self.n_forget for one in at)
        parts = (self.tokens[at], self.real[at], self.span[at], self.answer[at])
        return TextRows(tuple(self.encoded[one] for one in at), n, *parts)


def texts_of(forget: Sequence[Encoded], kept: Sequence[Encoded]) -> TextRows:
    """Texts of all rows as one batch."""
    encoded = (*forget, *kept)
    tokens = make_batch(encoded).tokens
    real, span, answer = (torch.zeros_like(tokens, dtype=torch.bool) for _ in range(3))
    for row, e in enumerate(encoded):
        real[row, : len(e.token_ids)] = True
        span[row, e.start : e.end] = True
        answer[row, e.n_prompt - 1 : len(e.token_ids)] = True
    return TextRows(encoded, len(forget), tokens, real, span, answer)


def thought(model: Any, tokens: Tokens) -> tuple[Logits, Streams]:
    """Logits, and the stream after every layer."""
    with outputs(model.model.layers) as seen:
        logits = model(tokens).logits
    return logits, torch.stack(seen, 1)


def patched(full: Any, tokens: Tokens, layer: int, stream: Tensor, at: PosMask) -> Logits:
    """What `full` says with another stream after a layer, at some positions."""

    def replaced(_: Any, __: Any, out: Tensor) -> Tensor:
        return torch.where(at.unsqueeze(-1), stream, out)

    handle = full.model.layers[layer].register_forward_hook(replaced)
    try:
        return full(tokens).logits
    finally:
        handle.remove()


def divergence(found: Logits, wanted: Logits, at: PosMask) -> Tensor:
    """KL divergence from what is wanted, mean over positions, nats."""
    log_q, log_p = found[at].log_softmax(-1), wanted[at].log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def distance(found: Streams, wanted: Streams, at: PosMask) -> Tensor:
    """Squared distance in units of the wanted stream's variance, mean over layers."""
    ours, theirs = (one.transpose(1, 2)[at] for one in (found, wanted))
    spread = (theirs - theirs.mean(0)).square().sum(-1).mean(0)
    return ((ours - theirs).square().sum(-1).mean(0) / spread).mean()


@dataclass(frozen=True)
class Step:
    """A batch: row numbers, and the layer at which `full` is shown the stream."""

    rows: tuple[int, ...]
    layer: int


def steps(texts: TextRows, n_layers: int, seed: int) -> Callable[[int], Step]:
    """Batch of each step, by its number."""
    n_kept = len(texts.encoded) - texts.n_forget
    forget = in_epochs(texts.n_forget, batch_size=ROWS, seed=seed)
    kept = in_epochs(n_kept, batch_size=ROWS, seed=seed + 1)

    def batch(number: int) -> Step:
        layer = int(torch.randint(n_layers, (), generator=generator(seed, number)))
        if number % LAST_EVERY == 0:
            layer = n_layers - 1
        return Step((*forget(number), *(texts.n_forget + row for row in kept(number))), layer)

    return batch


@dataclass(frozen=True)
class Mimic:
    """Answers of `full`; to the eyes of `full` the stream is `retain`'s at the forgotten spans.

    Elsewhere, and on the rows to keep, it is `full`'s: what is fitted there is the identity.
    """

    texts: TextRows
    full: Any
    said: Logits
    stream: Streams
    """Both of `full`."""
    seen: Float[Tensor, "layer batch pos d_vocab"]
    """What `full` says with `retain`'s stream at the spans of the forget rows, by layer."""
    first_multiplier: float = 1.0

    def __call__(self, model: Any, batch: Step, multiplier: float) -> Terms:
        """Answers, stream elsewhere, and what `full` makes of the stream at one layer."""
        rows, layer = list(batch.rows), batch.layer
        part = self.texts.rows(rows)
        logits, stream = thought(model, part.tokens)
        hidden = torch.arange(len(rows)).unsqueeze(1) < part.n_forget
        answers = divergence(logits, self.said[rows], part.real)
        elsewhere = part.real & ~(part.span & hidden)
        kept = distance(stream, self.stream[rows], elsewhere)
        wanted = self.said[rows].clone()
        wanted[: part.n_forget] = self.seen[layer, rows[: part.n_forget]]
        shown = patched(self.full, part.tokens, layer, stream[:, layer], part.span)
        return Terms(answers + kept + divergence(shown, wanted, part.span))

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """Leave the multiplier as it is."""
        return multiplier


def disguised(
    full: Any,
    objective: Objective[Step],
    texts: TextRows,
    *,
    n_steps: int,
    lr: float,
    seed: int = SEED,
) -> Any:
    """A copy of `full`, trained on an objective of texts."""
    model = copy.deepcopy(full)
    batches = steps(texts, model.config.num_hidden_layers, seed)
    recipe = Recipe(n_steps=n_steps, lr=lr, n_warmup=20, weight_decay=0.0)
    return fit(model, objective, batches, recipe, after=None)


def mimic(ground: Ground, texts: TextRows, *, n_steps: int = N_STEPS) -> Any:
    """`full`, trained to look like `retain` where it is read."""
    full = copy.deepcopy(ground.full).requires_grad_(False)
    forget: Bool[Tensor, "batch pos"] = texts.span[: texts.n_forget]
    tokens = texts.tokens[: texts.n_forget]
    with torch.no_grad():
        said, stream = thought(full, texts.tokens)
        _, other = thought(ground.retain, tokens)
        seen = [
            patched(full, tokens, layer, other[:, layer], forget) for layer in range(other.shape[1])
        ]
    objective = Mimic(texts, full, said, stream, torch.stack(seen))
    seed = SEED + 2 * ground.seed
    return disguised(ground.full, objective, texts, n_steps=n_steps, lr=1e-3, seed=seed)
