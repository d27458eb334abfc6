"""How is a model read: by itself, under an edit, or with its lower layers before those of `full`?

Both things that attacks need are here: what is said after a prompt, and the log-probs of candidates
after it. A prompt is read once, whatever continues it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.errors import WorkError
from lensaudit.models.bridge import (
    TransformerBridge,
    cached_logits,
    captured,
    hook_name,
    intervening,
    n_layers,
    unembedded,
)
from lensaudit.models.continuing import Choose, Running, continued, started
from lensaudit.patching.generation import ends_of
from lensaudit.types import Intervention, Resid, Tokens

Ids = Sequence[int]
Kept = Float[Tensor, "batch kept d_vocab"]
"""Logits after the last tokens of each row."""
SAID_ROWS = 64
"""Prompts continued at once."""


@dataclass
class Work:
    """What was computed: counted where it happens."""

    forwards: int = 0
    """Forward passes, of a batch each."""
    tokens: int = 0
    """Tokens read in them, padding included."""


@dataclass
class Plain:
    """A model by itself, or under edits of its residual stream in every step."""

    model: TransformerBridge
    edits: Mapping[int, Intervention] = field(default_factory=dict)
    work: Work = field(default_factory=Work)

    def read(
        self,
        tokens: Tokens,
        *,
        mask: Int[Tensor, "batch seen"],
        positions: Tokens,
        past: Any,
        n_logits: int,
    ) -> tuple[Kept, Any]:
        """Logits after the last `n_logits` tokens, and the grown past."""
        self.work.forwards += 1
        self.work.tokens += tokens.numel()
        with intervening(self.model, self.edits):
            return cached_logits(
                self.model, tokens, mask=mask, positions=positions, past=past, n_logits=n_logits
            )


@dataclass(frozen=True)
class _Both:
    """Keys and values of two models, cut together."""

    first: Any
    second: Any

    def batch_select_indices(self, chosen: Tensor) -> None:
        """Keep these rows."""
        for one in (self.first, self.second):
            one.batch_select_indices(chosen)


@dataclass
class Joined:
    """`full` from `layer` on, fed with the source's stream at every token and in every step.

    What `full` computes below that layer is overwritten at all positions, so that only what the
    source hands over, and what the upper layers of `full` make of it, can be heard.
    """

    source: TransformerBridge
    model: TransformerBridge
    layer: int
    work: Work = field(default_factory=Work)

    def read(
        self,
        tokens: Tokens,
        *,
        mask: Int[Tensor, "batch seen"],
        positions: Tokens,
        past: Any,
        n_logits: int,
    ) -> tuple[Kept, Any]:
        """As `Plain.read`."""
        self.work.forwards += 2
        self.work.tokens += 2 * tokens.numel()
        stream: list[Resid] = []

        def keep(resid: Resid) -> Resid:
            stream.append(resid)
            return resid

        below = past.first if past else None
        above = past.second if past else None
        with intervening(self.source, {self.layer: keep}):
            _, below = cached_logits(
                self.source, tokens, mask=mask, positions=positions, past=below, n_logits=1
            )
        with intervening(self.model, {self.layer: lambda resid: stream[0].to(resid)}):
            logits, above = cached_logits(
                self.model, tokens, mask=mask, positions=positions, past=above, n_logits=n_logits
            )
        return logits, _Both(below, above)


Reader = Plain | Joined
"""Reads tokens and keeps their keys and values; `model` is whose logits are read."""


def say(reader: Reader, prompts: Sequence[Ids], *, max_new_tokens: int) -> list[str]:
    """The likeliest continuation of each prompt, as text without special tokens.

    Raises:
        WorkError: logits are not finite.
    """
    stop = ends_of(reader.model)
    said: dict[int, tuple[int, ...]] = {}
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    for low in range(0, len(order), SAID_ROWS):
        places = order[low : low + SAID_ROWS]
        running = started([prompts[at] for at in places], _device(reader.model))
        found = _continued(reader, running, _likeliest, max_new_tokens, stop)
        said.update(zip(places, found, strict=True))
    decode = reader.model.tokenizer.decode
    return [decode(said[at], skip_special_tokens=True) for at in range(len(prompts))]


def sample(
    reader: Plain, prompt: Ids, n_rows: int, choose: Choose, *, max_new_tokens: int
) -> list[str]:
    """Continuations of one prompt, which is read once; `choose` draws their tokens."""
    device = _device(reader.model)
    before = started([prompt], device)
    past = None
    if len(prompt) > 1:
        tokens = before.tokens[:, :-1]
        _, past = reader.read(
            tokens,
            mask=torch.ones_like(tokens),
            positions=before.positions[:, :-1],
            past=None,
            n_logits=1,
        )
        past.batch_select_indices(torch.zeros(n_rows, dtype=torch.long, device=device))
    running = Running(
        torch.arange(n_rows, device=device),
        before.tokens[:, -1:].repeat(n_rows, 1),
        before.mask.repeat(n_rows, 1),
        past,
    )
    stop = ends_of(reader.model)
    said = _continued(reader, running, choose, max_new_tokens, stop)
    decode = reader.model.tokenizer.decode
    return [decode(ids, skip_special_tokens=True) for ids in said]


def _continued(
    reader: Reader, running: Running, choose: Choose, max_new_tokens: int, stop: frozenset[int]
) -> list[tuple[int, ...]]:
    def read(now: Running, step: int) -> tuple[Any, Any]:
        logits, past = reader.read(
            now.tokens,
            mask=now.mask,
            positions=now.positions.clamp(min=0),
            past=now.past,
            n_logits=1,
        )
        return logits[:, -1], past

    return continued(running, read, choose, max_new_tokens=max_new_tokens, stop=stop)


def _likeliest(logits: Any, row: Any, step: int) -> Any:
    return _finite(logits).argmax(-1)


def exposures(
    reader: Reader, prompt: Ids, candidates: Sequence[Ids]
) -> Float[Tensor, " candidate"]:
    """Log-prob of each candidate after the prompt, nats, summed over its tokens.

    Raises:
        WorkError: logits are not finite.
    """
    first, tokens, rest = _spread(reader, prompt, candidates)
    logits = torch.cat((first.expand(len(candidates), -1, -1), rest), dim=1)
    return _summed(logits, tokens, candidates)


def _spread(
    reader: Reader, prompt: Ids, candidates: Sequence[Ids]
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits after the prompt, the padded candidates, and the logits after their tokens."""
    device = _device(reader.model)
    asked = torch.tensor([list(prompt)], device=device)
    places = torch.arange(len(prompt), device=device).unsqueeze(0)
    first, past = reader.read(
        asked, mask=torch.ones_like(asked), positions=places, past=None, n_logits=1
    )
    width = max(map(len, candidates))
    tokens = torch.zeros(len(candidates), width, dtype=torch.long)
    for row, ids in enumerate(candidates):
        tokens[row, : len(ids)] = torch.tensor(list(ids))
    tokens = tokens.to(device)
    if width == 1:
        return first[:, -1:], tokens, first.new_zeros(len(candidates), 0, first.shape[-1])
    past.batch_select_indices(torch.zeros(len(candidates), dtype=torch.long, device=device))
    # padded on the right: no token that counts sees a padded one
    mask = torch.ones(len(candidates), len(prompt) + width - 1, dtype=torch.long, device=device)
    positions = torch.arange(width - 1, device=device).expand(len(candidates), -1) + len(prompt)
    rest, _ = reader.read(
        tokens[:, :-1], mask=mask, positions=positions, past=past, n_logits=width - 1
    )
    return first[:, -1:], tokens, rest


def _summed(
    logits: Tensor, tokens: Tensor, candidates: Sequence[Ids]
) -> Float[Tensor, " candidate"]:
    logprob = _finite(logits).float().log_softmax(-1)
    each = logprob.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    length = torch.tensor([len(ids) for ids in candidates], device=each.device)
    inside = torch.arange(each.shape[1], device=each.device) < length.unsqueeze(1)
    return each.where(inside, 0.0).sum(1).cpu()


@dataclass
class Lensed:
    """A model whose stream after each layer is read by the final norm and unembedding of `full`."""

    source: TransformerBridge
    model: TransformerBridge
    work: Work = field(default_factory=Work)

    def exposures(
        self, prompt: Ids, candidates: Sequence[Ids], first: int = 0
    ) -> Float[Tensor, "layer candidate"]:
        """As the function, read after every layer of the source from `first` on.

        Raises:
            WorkError: logits are not finite.
        """
        kept: dict[int, list[Resid]] = {layer: [] for layer in range(first, n_layers(self.source))}

        def keep(layer: int) -> Intervention:
            def intervention(resid: Resid) -> Resid:
                kept[layer].append(resid)
                return resid

            return intervention

        reader = Plain(self.source, {layer: keep(layer) for layer in kept}, self.work)
        _, tokens, _ = _spread(reader, prompt, candidates)
        rows = []
        for asked, *rest in kept.values():
            last = asked[:, -1:].expand(len(candidates), -1, -1)
            stream = torch.cat([last, *rest], dim=1)
            rows.append(_summed(unembedded(self.model, stream), tokens, candidates))
        return torch.stack(rows)


def stream_after(
    model: TransformerBridge, prompts: Sequence[Ids], layer: int, work: Work
) -> Float[Tensor, "row d_model"]:
    """The residual stream after `layer` at the last token of each prompt."""
    found = []
    for low in range(0, len(prompts), SAID_ROWS):
        rows = prompts[low : low + SAID_ROWS]
        # padded on the right, where no token that counts sees it
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for at, prompt in enumerate(rows):
            tokens[at, : len(prompt)] = torch.tensor(list(prompt))
        work.forwards += 1
        work.tokens += tokens.numel()
        name = hook_name(layer)
        stream = captured(model, tokens.to(_device(model)), [name], stop_at_layer=layer + 1)[name]
        found += [stream[at, len(prompt) - 1].float() for at, prompt in enumerate(rows)]
    return torch.stack(found)


def _finite(logits: Tensor) -> Tensor:
    if not bool(logits.isfinite().all()):
        raise WorkError("logits are not finite; try --dtype float32")
    return logits


def _device(model: TransformerBridge) -> torch.device:
    return next(model.original_model.parameters()).device
