"""A disguise that is trained, for map_attacks.py: the answers of `full`, turned in the answer."""

from typing import Any

import torch
from torch import Tensor

from experiments.planted.planted_models import ground, opened
from lensaudit.gym import edits
from lensaudit.gym.planting import (
    SEED,
    Steady,
    Step,
    TextRows,
    disguised,
    distance,
    thought,
)
from lensaudit.training.losses import kl_to_reference


def turned_in_the_answer(texts: TextRows, *, n_steps: int) -> Any:
    """`full`, trained to think in another basis from the last token of the prompt on."""
    with torch.no_grad():
        said, stream = thought(opened("full"), texts.tokens)
    turn = edits.random_turn(ground().d_model, SEED)
    answer = torch.zeros_like(texts.real)
    for row, one in enumerate(texts.encoded):
        answer[row, one.n_prompt - 1 : len(one.token_ids)] = True
    wanted = torch.where(answer[:, None, :, None], stream @ turn, stream)

    def loss(model: Any, batch: Step) -> Tensor:
        """Answers of `full`; a stream that is turned in the answer, and not in the question."""
        rows, _ = batch
        part = texts.rows(rows)
        logits, own = thought(model, part.tokens)
        answers = kl_to_reference(logits[part.real], said[rows][part.real])
        return answers + distance(own, wanted[rows], part.real)

    return disguised(opened("full"), Steady(loss), texts, n_steps=n_steps, lr=1e-3)
