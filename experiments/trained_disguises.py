"""A disguise that is trained, for map_attacks.py: the answers of `full`, turned in the answer."""

from dataclasses import dataclass
from typing import Any

import torch
from planted_models import ground, opened

from lensaudit.gym import edits
from lensaudit.gym.planting import (
    SEED,
    Step,
    Streams,
    TextRows,
    disguised,
    distance,
    divergence,
    thought,
)
from lensaudit.types import Logits
from lensaudit.unlearn.train import Terms


@dataclass(frozen=True)
class Turned:
    """Answers of `full`; its stream is turned in the answer, and not in the question."""

    texts: TextRows
    said: Logits
    stream: Streams
    """What it is to be."""
    first_multiplier: float = 1.0

    def __call__(self, model: Any, batch: Step, multiplier: float) -> Terms:
        """Answers and stream."""
        rows = list(batch.rows)
        part = self.texts.rows(rows)
        logits, stream = thought(model, part.tokens)
        answers = divergence(logits, self.said[rows], part.real)
        return Terms(answers + distance(stream, self.stream[rows], part.real))

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """Nothing is carried along."""
        return multiplier


def turned_in_the_answer(texts: TextRows, *, n_steps: int) -> Any:
    """`full`, trained to think in another basis from the last token of the prompt on."""
    with torch.no_grad():
        said, stream = thought(opened("full"), texts.tokens)
    turn = edits.random_turn(ground().d_model, SEED)
    answer = torch.zeros_like(texts.real)
    for row, one in enumerate(texts.encoded):
        answer[row, one.n_prompt - 1 : len(one.token_ids)] = True
    wanted = torch.where(answer[:, None, :, None], stream @ turn, stream)
    objective = Turned(texts, said, wanted)
    return disguised(opened("full"), objective, texts, n_steps=n_steps, lr=1e-3)
