"""Tokens drawn by numbers that a row brings along, whatever stands beside it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.models.generation import Choose, Logits, likeliest
from lensaudit.text import digest


def draws_of(keys: Sequence[str], *, n_steps: int, seed: int, temperature: float) -> Choose:
    """What chooses the tokens of each row: numbers in [0, 1) by its own key and the run's seed.

    Equal numbers choose equal tokens unless probability moved across them: steering that changes
    little changes few tokens.

    Args:
        keys: of each row: its question and rollout.
        n_steps: tokens at most.
        seed: of the run.
        temperature: 0 takes the likeliest token.

    Raises:
        ValueError: a negative temperature, or NaN.
    """
    if not temperature >= 0:  # NaN too
        raise ValueError("draws: wanted a temperature from 0")
    if temperature == 0:
        return likeliest
    seeds = [int(digest([seed, key])[:15], 16) for key in keys]
    rows = [
        torch.rand(n_steps, generator=torch.Generator().manual_seed(one), dtype=torch.float32)
        for one in seeds
    ]

    def choose(logits: Logits, row: Int[Tensor, " running"], step: int) -> Int[Tensor, " running"]:
        numbers = torch.stack([rows[at][step] for at in row.tolist()])
        return drawn(logits, numbers.to(row.device), temperature)

    return choose


def drawn(
    logits: Logits, numbers: Float[Tensor, " running"], temperature: float
) -> Int[Tensor, " running"]:
    """The tokens whose shares of [0, 1) hold each row's number."""
    shares = (logits.double() / temperature).softmax(-1).cumsum(-1)
    wanted = numbers.double().unsqueeze(1) * shares[:, -1:]
    return torch.searchsorted(shares, wanted, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
