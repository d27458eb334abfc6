"""What does a model still know under an intervention? Many settings in one forward pass.

The answer's prefix is forced, so the score is that of the entity alone: the share of its tokens
that are the likeliest (exact match), and their mean log-prob. An intervention acts from the last
prefix token on, unless its own rule says otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded, buckets, make_batch
from lensaudit.errors import WorkError
from lensaudit.models.bridge import TransformerBridge, logits_of
from lensaudit.scores.depth import label_logprob, mean_per_example, span_mean
from lensaudit.scores.erasure import label_hit
from lensaudit.steer.edits import Edits, Place, installed, one_after_the_other
from lensaudit.types import Intervention, Logits, PosMask, Tokens

MOST_ROWS = 256
_COPIES = 4
"""Of the logits at once: the model's, in float32, and what a softmax needs."""


@dataclass(frozen=True)
class Scores:
    """Of each example under each setting; NaN is not possible, a span has at least one token."""

    em: Float[Tensor, "setting batch"]
    """Share of the entity's tokens that are the likeliest, 0 to 1."""
    logprob: Float[Tensor, "setting batch"]
    """Nats per token of the entity."""
    kl: Float[Tensor, "setting batch"]
    """KL(plain || intervened) at the entity's positions, nats per token."""

    def of(self, name: str) -> Float[Tensor, "setting batch"]:
        """By name: `em` or `logprob`."""
        return self.em if name == "em" else self.logprob


def scored(
    model: TransformerBridge,
    encoded: Sequence[Encoded],
    settings: Sequence[Edits],
    *,
    memory_bytes: int = 2 << 30,
) -> Scores:
    """Scores of every example under every setting; columns are in the order of `encoded`.

    Raises:
        WorkError: logits are not finite under a setting.
    """
    shape = (len(settings), len(encoded))
    em, logprob, kl = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    column = {e.idx: at for at, e in enumerate(encoded)}
    n_rows = rows_that_fit(model, max(len(e.token_ids) for e in encoded), memory_bytes)
    for bucket in buckets(encoded, min(n_rows, len(encoded)), length=lambda e: len(e.token_ids)):
        batch = make_batch(bucket)
        columns = [column[idx] for idx in batch.idx]
        at_once = max(1, n_rows // len(bucket))
        plain = _logits(model, bucket, [Edits()])
        for start in range(0, len(settings), at_once):
            some = settings[start : start + at_once]
            logits = _logits(model, bucket, some)
            tokens = batch.tokens.repeat(len(some), 1).to(logits.device)
            predict_at = batch.predict_at.repeat(len(some), 1).to(logits.device)
            found = (
                span_mean(logits, tokens, predict_at, label_hit),
                span_mean(logits, tokens, predict_at, label_logprob),
                divergence(plain.repeat(len(some), 1, 1), logits, predict_at),
            )
            for table, values in zip((em, logprob, kl), found, strict=True):
                table[start : start + len(some), columns] = values.reshape(len(some), -1).cpu()
    if not bool(logprob.isfinite().all()):
        raise WorkError("logits are not finite under an intervention; lower the strengths")
    return Scores(em, logprob, kl)


def log_odds(
    model: TransformerBridge,
    encoded: Sequence[Encoded],
    settings: Sequence[Edits],
    tokens: Sequence[int],
    *,
    memory_bytes: int = 2 << 30,
) -> Float[Tensor, "setting batch"]:
    """Log p - log(1 - p) of the next token being one of `tokens`, after each prompt's last one."""
    found = torch.zeros(len(settings), len(encoded))
    column = {e.idx: at for at, e in enumerate(encoded)}
    n_rows = rows_that_fit(model, max(len(e.token_ids) for e in encoded), memory_bytes)
    for bucket in buckets(encoded, min(n_rows, len(encoded)), length=lambda e: len(e.token_ids)):
        columns = [column[e.idx] for e in bucket]
        last = torch.tensor([e.n_prompt - 1 for e in bucket])
        at_once = max(1, n_rows // len(bucket))
        for start in range(0, len(settings), at_once):
            some = settings[start : start + at_once]
            logits = _logits(model, bucket, some)
            rows = logits[torch.arange(len(logits)), last.repeat(len(some))].double()
            chosen = torch.zeros(rows.shape[-1], dtype=torch.bool)
            chosen[list(tokens)] = True
            odds = rows[:, chosen].logsumexp(-1) - rows[:, ~chosen].logsumexp(-1)
            found[start : start + len(some), columns] = odds.reshape(len(some), -1).float().cpu()
    return found


def rows_that_fit(model: TransformerBridge, n_pos: int, memory_bytes: int) -> int:
    """Sequences whose logits stay within half of the budget."""
    config: Any = model.original_model.config
    row = n_pos * config.get_text_config().vocab_size * 4 * _COPIES
    return max(1, min(MOST_ROWS, memory_bytes // 2 // row))


def divergence(plain: Logits, edited: Logits, predict_at: PosMask) -> Float[Tensor, " batch"]:
    """Mean KL(plain || edited) over the marked positions, nats per token, in float32."""
    example = predict_at.nonzero(as_tuple=True)[0]
    before, after = (logits[predict_at].float().log_softmax(-1) for logits in (plain, edited))
    rows = (before.exp() * (before - after)).sum(-1)
    return mean_per_example(rows, example, len(predict_at))


def _logits(
    model: TransformerBridge, bucket: Sequence[Encoded], settings: Sequence[Edits]
) -> Logits:
    """Logits of every example under every setting, settings outermost."""
    batch = make_batch(bucket)
    device = next(model.original_model.parameters()).device
    tokens: Tokens = batch.tokens.repeat(len(settings), 1).to(device)
    rows = interventions_of(bucket, batch.tokens.shape[1], settings, device)
    with installed(model, rows):
        return logits_of(model, tokens)


def interventions_of(
    bucket: Sequence[Encoded], n_pos: int, settings: Sequence[Edits], device: torch.device
) -> Mapping[Place, Intervention]:
    """One intervention per place: each setting edits its own rows and leaves the others."""
    n_rows = len(settings) * len(bucket)
    lengths = torch.tensor([len(e.token_ids) for e in bucket]).repeat(len(settings), 1)
    n_prompt = torch.tensor([e.n_prompt for e in bucket]).repeat(len(settings)).to(device)
    place = torch.arange(n_pos).expand(n_rows, n_pos)
    place = place.where(place < lengths.reshape(-1, 1), -1).to(device)
    idx = tuple(e.idx for e in bucket) * len(settings)
    found: dict[Place, list[Intervention]] = {}
    for number, setting in enumerate(settings):
        own = slice(number * len(bucket), (number + 1) * len(bucket))
        positions = torch.full_like(place, -1)
        positions[own] = place[own]
        for at, edit in setting.rows(positions, n_prompt, idx).items():
            found.setdefault(at, []).append(edit)
    return {at: one_after_the_other(edits) for at, edits in found.items()}
