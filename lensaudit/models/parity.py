"""Does the bridge compute what Hugging Face computes? Logits and residual streams, side by side."""

from dataclasses import dataclass

import torch

from lensaudit.models.bridge import DTYPES, bridge_from, logits_of, residuals
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer

TEXT = "Question: Where does the river end?\nAnswer: The river ends in a lake in the north."
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.05, "float16": 0.01}
"""Allowed gap over the largest value. Half precision rounds differently in every kernel."""


@dataclass(frozen=True)
class Parity:
    """Largest differences between the bridge and Hugging Face on one text."""

    logits: float
    """Over the largest logit."""
    resid: float
    """Over the largest activation, all layers but the last, which Hugging Face norms."""
    allowed: float

    @property
    def holds(self) -> bool:
        """Both differences are within the tolerance of the dtype; NaN is not."""
        return self.logits <= self.allowed and self.resid <= self.allowed


def parity(checkpoint: Checkpoint, *, dtype: str = "float32", device: str = "cpu") -> Parity:
    """Compare the two on a fixed text; the model is loaded once and bridged after it has spoken."""
    model = load_causal(checkpoint, dtype=DTYPES[dtype], device=device, attn="eager")
    tokenizer = load_tokenizer(checkpoint)
    tokens = tokenizer(TEXT, return_tensors="pt")["input_ids"].to(device)
    with torch.no_grad():
        plain = model(tokens, output_hidden_states=True)
    stack, _ = residuals(bridge := bridge_from(model, tokenizer), tokens)
    wanted = torch.stack(plain.hidden_states[1:-1], dim=1)
    return Parity(
        logits=_gap(logits_of(bridge, tokens), plain.logits),
        resid=_gap(stack[:, :-1], wanted),
        allowed=TOLERANCE[dtype],
    )


def _gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    found, wanted = found.float(), wanted.float()
    return float((found - wanted).abs().max() / wanted.abs().max())
