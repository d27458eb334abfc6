"""Generation token by token: one loop for all that generates, one rule of where a text ends.

Who calls says how the model reads (patched, steered, plain) and how a token is chosen. This module
imports no bridge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.errors import WorkError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.generation_settings import generation_config_of
from lensaudit.types import padded_rows

COMPACT_ABOVE = 0.25
"""Share of ended rows above which they are cut out of the batch; a cut copies the cache."""


@dataclass(frozen=True)
class Running:
    """Rows in the middle of generation."""

    row: Int[Tensor, " running"]
    """Which of the rows asked for each one is."""
    tokens: Int[Tensor, "running pos"]
    """What is read next: a prompt or its end first, then one token each."""
    mask: Int[Tensor, "running seen"]
    past: Any = None
    """Keys and values of all tokens before; None before the first one."""

    @property
    def positions(self) -> Int[Tensor, "running pos"]:
        """Place of each token that is read in its own sequence; negative at padding."""
        n_new = self.tokens.shape[1]
        return self.mask.sum(1, keepdim=True) - n_new + torch.arange(n_new, device=self.mask.device)

    def grown(self, token: Int[Tensor, " running"], past: Any) -> "Running":
        """Generated rows grown by one token."""
        mask = torch.cat((self.mask, torch.ones_like(self.mask[:, :1])), dim=1)
        return Running(self.row, token.unsqueeze(1), mask, past)

    def only(self, alive: Bool[Tensor, " running"]) -> "Running":
        """The rows that have not ended; their keys and values are cut in place."""
        chosen = alive.nonzero().squeeze(1)
        self.past.batch_select_indices(chosen)
        return Running(self.row[chosen], self.tokens[chosen], self.mask[chosen], self.past)


Logits = Float[Tensor, "running d_vocab"]
Read = Callable[[Running, int], tuple[Logits, Any]]
"""Logits after the last token, and the grown keys and values; told the step."""
Choose = Callable[[Logits, Int[Tensor, " running"], int], Int[Tensor, " running"]]
"""The next token of each row; told the rows and the step."""


def started(prompts: Sequence[Sequence[int]], device: torch.device) -> Running:
    """Prompts padded on the left and masked, so that a row does not depend on its neighbours."""
    tokens, real = padded_rows(prompts, side="left")
    return Running(
        torch.arange(len(prompts), device=device), tokens.to(device), real.long().to(device)
    )


def continued(
    running: Running, read: Read, choose: Choose, *, max_new_tokens: int, stop: frozenset[int]
) -> list[tuple[int, ...]]:
    """Up to `max_new_tokens` tokens of each row, up to and without the first one of `stop`.

    Raises:
        WorkError: logits are not finite.
    """
    said: list[list[int]] = [[] for _ in running.row]
    ended = torch.zeros(len(said), dtype=torch.bool)
    for step in range(max_new_tokens):
        logits, past = read(running, step)
        check_finite(logits)
        token = choose(logits, running.row, step)
        for row, found in zip(running.row.tolist(), token.tolist(), strict=True):
            ended[row] |= found in stop
            if not ended[row]:
                said[row].append(found)
        if bool(ended.all()):
            break
        running = running.grown(token, past)
        alive = ~ended[running.row.cpu()]
        if float((~alive).float().mean()) > COMPACT_ABOVE:
            running = running.only(alive.to(running.row.device))
    return [tuple(ids) for ids in said]


def check_finite(logits: Float[Tensor, "*at d_vocab"]) -> None:
    """See that a token can be chosen.

    Raises:
        WorkError: logits are not finite.
    """
    if not bool(logits.isfinite().all()):
        raise WorkError(
            "logits are not finite while generating; try --dtype float32, or weaker edits"
        )


def likeliest(logits: Logits, row: Int[Tensor, " running"], step: int) -> Int[Tensor, " running"]:
    """The likeliest token of each row."""
    return logits.argmax(-1)


def stop_of(checkpoint: Checkpoint, tokenizer: Any) -> frozenset[int]:
    """Token ids that end a text, read from a folder: before the model is loaded."""
    return stop_ids(generation_config_of(checkpoint).eos_token_id, tokenizer.eos_token_id)


def stop_ids(configured: int | Sequence[int] | None, tokenizers: int | None) -> frozenset[int]:
    """Token ids that end a text, one rule for all that generates.

    Those of the checkpoint's generation configuration, as open-unlearning has it; the tokenizer's
    end of text where that names none.

    >>> sorted(stop_ids([7, 2], 3)), sorted(stop_ids(None, 3)), sorted(stop_ids(2, None))
    ([2, 7], [3], [2])
    """
    given = tokenizers if configured is None else configured
    return frozenset([given] if isinstance(given, int) else given or ())
