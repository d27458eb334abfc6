"""Does a model's tokenizer find the annotated spans, and does the model know the facts?"""

from collections.abc import Sequence
from typing import Any

import torch

from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, buckets, make_batch
from lensaudit.models.bridge import DTYPES
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.patching.prepare import encode_all
from lensaudit.scores.depth import LabelScore, label_logprob, span_mean
from lensaudit.settings import Place

BATCH = 16


def known_facts(
    examples: Sequence[Fact],
    model: str,
    min_logprob: float | None,
    *,
    registry: Place | None,
    dtype: str,
    device: str,
) -> tuple[dict[int, str], dict[int, list[str]]]:
    """Reasons to leave rows out, and remarks on the others, by idx.

    Args:
        examples: annotated rows.
        model: whose tokenizer finds the spans.
        min_logprob: nats per token that the model must give a fact; None: it is not loaded.
        registry: of names.
        dtype: of the model.
        device: it runs on.
    """
    checkpoint = open_model(model, registry)
    encoded, left_out = encode_all(examples, checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    by_idx = {one.idx: one for one in examples}
    remarks = {e.idx: said for e in encoded if (said := _span_remarks(e, by_idx[e.idx], tokenizer))}
    if min_logprob is not None:
        scores = _answer_logprobs(checkpoint, encoded, dtype=dtype, device=device)
        left_out |= {
            idx: f"{model} gives the entity {score:.2f} nats per token, wanted {min_logprob:g}"
            for idx, score in scores.items()
            if not score >= min_logprob
        }
    return left_out, remarks


def answer_logprobs(examples: Sequence[Fact], model: str) -> dict[int, float]:
    """Mean log-prob of every entity after its question, nats per token; none without tokens."""
    checkpoint = open_model(model, None)
    encoded, _ = encode_all(examples, checkpoint)
    return _answer_logprobs(checkpoint, encoded, dtype="auto", device="auto")


def _span_remarks(encoded: Encoded, example: Fact, tokenizer: Any) -> list[str]:
    """Spans that are not the entity alone: the tokenizer joins it with what is around."""
    tokens = encoded.token_ids[encoded.start + 1 : encoded.end + 1]
    text = tokenizer.decode(tokens)
    said = []
    if text.strip() != example.entity.strip():
        said.append(f"the scored tokens read {text!r}")
    if len(tokens) > 1 and not tokenizer.decode(tokens[:1]).strip():
        said.append("the span begins with a lone blank token")
    return said


def _answer_logprobs(
    checkpoint: Checkpoint, encoded: Sequence[Encoded], *, dtype: str, device: str
) -> dict[int, float]:
    device = resolve_device(device)
    model = load_causal(checkpoint, dtype=DTYPES[resolve_dtype(dtype, device)], device=device)
    return span_values(model, encoded, device=device)


def span_values(
    model: Any,
    encoded: Sequence[Encoded],
    score: LabelScore = label_logprob,
    *,
    device: str = "cpu",
) -> dict[int, float]:
    """Mean score of every span's tokens by idx; of log-probs nats per token."""
    found: dict[int, float] = {}
    for bucket in buckets(encoded, BATCH):
        batch = make_batch(bucket).to(device)
        with torch.no_grad():
            logits = model(batch.tokens).logits
        values = span_mean(logits, batch.tokens, batch.predict_at, score)
        found |= dict(zip(batch.idx, values.tolist(), strict=True))
    return found
