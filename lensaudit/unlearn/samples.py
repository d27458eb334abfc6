"""Which batch is number n? Pure functions, so that a resumed run reads what it would have read."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from lensaudit.unlearn.encode import Sample, TrainBatch, collate
from lensaudit.unlearn.objective import UnlearnBatch

SEED_STRIDE = 1_000_003
"""A prime that keeps the generators of neighbouring seeds apart."""


def generator(seed: int, number: int) -> torch.Generator:
    """The generator of one epoch or one batch."""
    return torch.Generator().manual_seed(seed * SEED_STRIDE + number)


@lru_cache(maxsize=4)
def _order(n: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(torch.randperm(n, generator=generator(seed, epoch)).tolist())


def in_epochs(n: int, *, batch_size: int, seed: int) -> Callable[[int], list[int]]:
    """Row numbers of a batch: every row once per epoch, in a new order; the last may be short."""
    per_epoch = -(-n // batch_size)

    def rows(number: int) -> list[int]:
        epoch, place = divmod(number, per_epoch)
        return list(_order(n, seed, epoch)[place * batch_size : (place + 1) * batch_size])

    return rows


def finetune_batches(
    samples: Sequence[Sample], *, batch_size: int, seed: int, pad: int
) -> Callable[[int], TrainBatch]:
    """Batches of fine-tuning."""
    rows = in_epochs(len(samples), batch_size=batch_size, seed=seed)
    return lambda number: collate([samples[row] for row in rows(number)], pad=pad)


def unlearn_batches(
    forget: Sequence[Sample],
    retain: Sequence[Sample],
    alternates: Sequence[Sequence[Sample]] = (),
    *,
    batch_size: int,
    seed: int,
    pad: int,
) -> Callable[[int], UnlearnBatch]:
    """Forget rows in epochs; a retain row and an alternate answer drawn anew at every access.

    Retain rows come with replacement, as open-unlearning draws them. `alternates` holds the
    choices of each forget row; none, or one list per row.
    """
    rows = in_epochs(len(forget), batch_size=batch_size, seed=seed)

    def batch(number: int) -> UnlearnBatch:
        chosen = rows(number)
        draw = generator(seed + 1, number)
        kept = [retain[_draw(len(retain), draw)] for _ in chosen] if retain else []
        other = [alternates[row][_draw(len(alternates[row]), draw)] for row in chosen if alternates]
        return UnlearnBatch(
            forget=collate([forget[row] for row in chosen], pad=pad),
            retain=collate(kept, pad=pad) if kept else None,
            alternate=collate(other, pad=pad) if other else None,
        )

    return batch


def _draw(n: int, draw: torch.Generator) -> int:
    return int(torch.randint(n, (1,), generator=draw).item())
