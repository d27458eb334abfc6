"""What does a model say while it is steered? Sampled or greedy, batched, with cached keys.

Random numbers belong to a row, not to a call: the same row draws the same numbers under every
coefficient, in every batch and after a restart, so differences between coefficients are paired.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.errors import WorkError
from lensaudit.files import digest
from lensaudit.models.bridge import TransformerBridge, cached_step
from lensaudit.patching.generation import COMPACT_ABOVE
from lensaudit.steer.edits import NO_EDITS, Edits, Idx, installed

TEMPERATURE = 0.7
"""trait-interp's generation at the time of the seed."""
MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class Draws:
    """Numbers in [0, 1) that choose the tokens of each row; none: the likeliest token is taken."""

    numbers: Float[Tensor, "row step"] | None
    temperature: float = TEMPERATURE

    def at(self, step: int, row: Int[Tensor, " running"]) -> Float[Tensor, " running"] | None:
        """One number for each row that still runs."""
        return None if self.numbers is None else self.numbers[row.cpu(), step].to(row.device)


GREEDY = Draws(None)


def draws_of(keys: Sequence[str], *, n_steps: int, seed: int, temperature: float) -> Draws:
    """Numbers by the row's own key (its question and rollout) and the run's seed.

    Raises:
        ValueError: a negative temperature.
    """
    if temperature < 0:
        raise ValueError("draws: wanted a temperature from 0")
    if temperature == 0:
        return GREEDY
    rows = [torch.rand(n_steps, generator=_generator(key, seed)) for key in keys]
    return Draws(torch.stack(rows) if rows else torch.empty(0, n_steps), temperature)


def _generator(key: str, seed: int) -> torch.Generator:
    number = int(digest([seed, key])[:15], 16)
    return torch.Generator().manual_seed(number)


@dataclass(frozen=True)
class _Running:
    """Rows in the middle of generation."""

    row: Int[Tensor, " running"]
    tokens: Int[Tensor, "running pos"]
    """What is read next: the whole prompt first, then one token each."""
    mask: Int[Tensor, "running seen"]
    n_prompt: Int[Tensor, " running"]
    past: Any

    @property
    def positions(self) -> Int[Tensor, "running pos"]:
        """Place of each token that is read in its own sequence; negative at padding."""
        n_new = self.tokens.shape[1]
        n_pad = self.mask.shape[1] - self.mask.sum(1, keepdim=True)
        last = self.mask.shape[1] - n_pad
        return last - n_new + torch.arange(n_new, device=self.mask.device)

    def step(
        self, model: TransformerBridge, edits: Edits, idx: Idx
    ) -> tuple[Float[Tensor, "running d_vocab"], Any]:
        """Logits after the last token, and the grown keys and values."""
        positions = self.positions
        chosen = tuple(idx[row] for row in self.row.tolist())
        with installed(model, edits.rows(positions, self.n_prompt, chosen)):
            return cached_step(
                model, self.tokens, mask=self.mask, positions=positions.clamp(min=0), past=self.past
            )

    def grown(self, token: Int[Tensor, " running"], past: Any) -> "_Running":
        """With one more token each."""
        mask = torch.cat((self.mask, torch.ones_like(self.mask[:, :1])), dim=1)
        return _Running(self.row, token.unsqueeze(1), mask, self.n_prompt, past)

    def only(self, alive: Bool[Tensor, " running"]) -> "_Running":
        """Without the rows that ended; the keys and values are cut in place."""
        chosen = alive.nonzero().squeeze(1)
        self.past.batch_select_indices(chosen)
        return _Running(
            self.row[chosen], self.tokens[chosen], self.mask[chosen], self.n_prompt[chosen],
            self.past,
        )  # fmt: skip


def continuations(
    model: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: frozenset[int],
    edits: Edits = NO_EDITS,
    draws: Draws = GREEDY,
    idx: Sequence[int] | None = None,
) -> list[tuple[int, ...]]:
    """Continuations of `prompts` under `edits`, up to and without the first token of `stop`.

    Prompts are padded on the left and masked, so a row does not depend on its neighbours.

    Args:
        model: in eval mode.
        prompts: token ids, at least one each.
        max_new_tokens: longest continuation.
        stop: ids that end a row.
        edits: act at the positions their rule names, in every step.
        draws: choose the tokens; without them the likeliest one.
        idx: the example of each prompt, for edits that depend on it; 0, 1, 2 … if not given.

    Raises:
        ValueError: an empty prompt, or no token to generate.
        WorkError: logits are not finite.
    """
    if max_new_tokens < 1 or not all(prompts):
        raise ValueError("continuations: wanted max_new_tokens >= 1 and prompts with a token")
    if not prompts:
        return []
    running = _started(model, prompts)
    examples = tuple(range(len(prompts)) if idx is None else idx)
    said: list[list[int]] = [[] for _ in prompts]
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for step in range(max_new_tokens):
        logits, past = running.step(model, edits, examples)
        token = chosen_tokens(logits, draws.at(step, running.row), draws.temperature)
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


def chosen_tokens(
    logits: Float[Tensor, "row d_vocab"],
    numbers: Float[Tensor, " row"] | None,
    temperature: float,
) -> Int[Tensor, " row"]:
    """The likeliest token, or the one whose share of [0, 1) holds the row's number.

    Equal numbers choose equal tokens unless probability moved across them: steering that changes
    little changes few tokens.

    Raises:
        WorkError: logits are not finite.
    """
    if not bool(logits.isfinite().all()):
        raise WorkError("logits are not finite while generating; lower --coefficients")
    if numbers is None:
        return logits.argmax(-1)
    shares = (logits.double() / temperature).softmax(-1).cumsum(-1)
    wanted = numbers.double().unsqueeze(1) * shares[:, -1:]
    found = torch.searchsorted(shares, wanted, right=True).squeeze(1)
    return found.clamp(max=logits.shape[1] - 1)


def _started(model: TransformerBridge, prompts: Sequence[Sequence[int]]) -> _Running:
    width = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for at, prompt in enumerate(prompts):
        tokens[at, width - len(prompt) :] = torch.tensor(prompt)
        mask[at, width - len(prompt) :] = 1
    device = next(model.original_model.parameters()).device
    n_prompt = torch.tensor([len(prompt) for prompt in prompts], device=device)
    rows = torch.arange(len(prompts), device=device)
    return _Running(rows, tokens.to(device), mask.to(device), n_prompt, None)
