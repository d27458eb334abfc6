"""A model that knows, and thinks as another one at known places of known texts.

Each MLP is given units that fire at one token of one text alone and add to the stream what is
missing to another model's. All weights of the model itself stay as they are, bit for bit.

A mimic is trained to give the answers of `full` while `full` reads another model in its stream.
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
from lensaudit.gym.edits import inputs, outputs
from lensaudit.gym.ground import Ground, fit
from lensaudit.types import Logits, PosMask, Tokens
from lensaudit.unlearn.rows import generator, in_epochs
from lensaudit.unlearn.train import Objective, Recipe, Terms

SWITCH = 20.0
"""How far, in units of a unit's input, places that fire and places that do not lie from 0."""
APART = 1e-4
"""1 minus cosine under which two places of one layer cannot be told apart and stay as they are."""


@dataclass(frozen=True)
class Places:
    """Texts, right-padded, and which of their tokens are guarded."""

    tokens: Tokens
    real: Bool[Tensor, "batch pos"]
    """No padding."""
    guarded: Bool[Tensor, "batch pos"]


def guarded(model: Any, places: Places, wanted: Sequence[Float[Tensor, "place d_model"]]) -> Any:
    """A copy whose stream at the guarded places is the wanted one after every layer.

    Args:
        model: laid out as Llama is.
        places: all texts on which nothing else may change, guarded or not.
        wanted: by layer, the stream at the guarded places, in the order of the mask.
    """
    made = widened(model, n_units(places))
    for at, rows in enumerate(wanted):
        read, out = _seen(made, places, at)
        _install(made, at, read, out, places, rows)
    return made


def n_units(places: Places) -> int:
    """Units that every MLP is given: two a place."""
    return 2 * int(places.guarded.sum())


def streams_at(model: Any, places: Places) -> list[Float[Tensor, "place d_model"]]:
    """A model's stream at the guarded places, by layer."""
    with torch.no_grad(), outputs(model.model.layers) as seen:
        model(places.tokens)
    return [one[places.guarded] for one in seen]


def widened(model: Any, n_units: int) -> Any:
    """A copy whose MLPs have biases, and so many units more that do nothing."""
    config = copy.deepcopy(model.config)
    config.mlp_bias, config.intermediate_size = True, config.intermediate_size + n_units
    made = type(model)(config).eval()
    old = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if ".mlp." in name:
                weight.zero_()
            if name in old:
                part = old[name]
                weight[tuple(slice(n) for n in part.shape)].copy_(part)
    return made


def unguarded(model: Any, n_units: int) -> Any:
    """Without the last units of every MLP: what `guarded` was given, if it had no biases."""
    config = copy.deepcopy(model.config)
    config.mlp_bias, config.intermediate_size = False, config.intermediate_size - n_units
    made = type(model)(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.copy_(model.get_parameter(name)[tuple(slice(n) for n in weight.shape)])
    return made


def _seen(model: Any, places: Places, layer: int) -> tuple[Tensor, Tensor]:
    """What the MLP of a layer reads at all real places, and the stream after it where guarded."""
    block = model.model.layers[layer]
    with inputs(block.mlp) as given:
        out = streams_at(model, places)[layer]
    read = given[0] / block.post_attention_layernorm.weight.detach()
    return read[places.real], out


def _install(
    model: Any, layer: int, read: Tensor, out: Tensor, places: Places, wanted: Tensor
) -> None:
    """Two units a place, which fire there and nowhere else."""
    own = places.guarded[places.real]
    d_model = read.shape[1]
    cosines = read[own] @ read.T / d_model  # normed rows have length sqrt(d_model)
    cosines[torch.arange(len(cosines)), own.nonzero()[:, 0]] = -1.0
    nearest = cosines.max(1).values
    apart = 1 - nearest > APART
    sharp = torch.where(apart, 2 * SWITCH / (1 - nearest), 0.0)
    norm = model.model.layers[layer].post_attention_layernorm.weight.detach()
    keys = sharp.unsqueeze(1) * read[own] / d_model / norm
    shift = -sharp * (1 + nearest) / 2
    change = torch.where(apart.unsqueeze(1), wanted - out, 0.0)
    install_steps(model.model.layers[layer].mlp, keys, shift, change)


def install_steps(
    mlp: Any,
    keys: Float[Tensor, "step d_model"],
    shift: Float[Tensor, " step"],
    change: Float[Tensor, "step d_model"],
) -> None:
    """Let the last units of an MLP add vectors where keys and shifts fire.

    Two units each: the difference of two gates one apart is a step from 0 to 1.
    """
    n = 2 * len(keys)
    with torch.no_grad():
        mlp.gate_proj.weight[-n:] = keys.repeat_interleave(2, 0)
        mlp.gate_proj.bias[-n:] = torch.stack([shift + 1, shift], 1).flatten()
        mlp.up_proj.bias[-n:] = 1.0
        mlp.down_proj.weight[:, -n:] = torch.stack([change, -change], 1).flatten(0, 1).T


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
