"""What a reader says after a prompt, which is read once, whatever continues it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lensaudit.data.chat import answer_of
from lensaudit.groups import by_length
from lensaudit.models.bridge import TransformerBridge, device_of
from lensaudit.models.generation import Choose, Running, continued, likeliest, started, stop_ids
from lensaudit.patching.generation import shared_out
from lensaudit.patching.reader import Ids, Reader

SAID_ROWS = 64
"""Prompts continued at once."""


Answer = str | None
"""A generated answer without its thought; None: the thought was cut at the limit."""
Hearing = Callable[[Any, Ids, Ids], Answer]


def say(
    reader: Reader, prompts: Sequence[Ids], *, max_new_tokens: int, hear: Hearing = answer_of
) -> list[Answer]:
    """The likeliest continuation of each prompt, as text without special tokens.

    Args:
        reader: of the prompts.
        prompts: token ids.
        max_new_tokens: longest continuation.
        hear: what of it is heard, of a tokenizer, a prompt and new tokens.

    Raises:
        WorkError: logits are not finite.
    """
    said: dict[int, Answer] = {}
    for places in by_length(prompts, SAID_ROWS):
        running = started([prompts[at] for at in places], device_of(reader.model))
        found = _continued(reader, running, likeliest, max_new_tokens, places)
        for at, ids in zip(places, found, strict=True):
            said[at] = hear(reader.model.tokenizer, prompts[at], ids)
    return [said[at] for at in range(len(prompts))]


def sample(
    reader: Reader, prompt: Ids, n_rows: int, choose: Choose, *, max_new_tokens: int
) -> list[Answer]:
    """Continuations of one prompt, which is read once; `choose` draws their tokens."""
    one = torch.zeros(n_rows, dtype=torch.long, device=device_of(reader.model))

    def read(before: Running) -> Any:
        where = {"mask": before.mask, "positions": before.positions}
        return reader.read(before.tokens, **where, past=None, n_logits=1, rows=one[:1])[1]

    running = shared_out([prompt], one, read)
    found = _continued(reader, running, choose, max_new_tokens, [0] * n_rows)
    return [answer_of(reader.model.tokenizer, prompt, ids) for ids in found]


def _continued(
    reader: Reader, running: Running, choose: Choose, max_new_tokens: int, places: Sequence[int]
) -> list[tuple[int, ...]]:
    """New tokens of each row of `running`; `places`: which prompt it continues."""
    prompt = torch.tensor(places, device=running.row.device)

    def read(now: Running, step: int) -> tuple[Any, Any]:
        where = {"mask": now.mask, "positions": now.positions.clamp(min=0)}
        rows = prompt[now.row]
        logits, past = reader.read(now.tokens, **where, past=now.past, n_logits=1, rows=rows)
        return logits[:, -1], past

    stop = ends_of(reader.model)
    return continued(running, read, choose, max_new_tokens=max_new_tokens, stop=stop)


def ends_of(model: TransformerBridge) -> frozenset[int]:
    """Tokens that end a text; see `stop_ids`."""
    generation = getattr(model.original_model, "generation_config", None)
    return stop_ids(getattr(generation, "eos_token_id", None), model.tokenizer.eos_token_id)
