"""How steep is the loss at a text? One backward pass per text, at any batch size."""

from collections.abc import Sequence
from typing import Any

import torch

from lensaudit.data.chat import Encoding
from lensaudit.errors import InputError
from lensaudit.evaluation.view import Asked, padded
from lensaudit.models.streaming import streamed

IN_BLOCKS = "needs all weights at once, and the model is brought block by block"


def gradient_norms(model: Any, asked: Asked, texts: Sequence[Encoding]) -> list[float]:
    """Mean over parameter tensors of the 2-norm of the gradient of each text's loss.

    The loss is the mean negative log-probability of the content tokens; NaN where there are
    none. A tied embedding is one tensor. Upstream puts the model in train mode, where dropout
    would make the norm random; here it stays in eval mode, which is the same without dropout.

    Raises:
        InputError: the model's blocks are brought one by one.
    """
    if streamed(model):
        raise InputError(f"mia_gradnorm {IN_BLOCKS}; name a --device or --dtype it fits in")
    return [_norm(model, asked, text) for text in texts]


def _norm(model: Any, asked: Asked, text: Encoding) -> float:
    n_content = len(text.labels) - 1
    if n_content < 1:
        return float("nan")
    batch = padded([text.ids], asked, side="right", device=model.device)
    with torch.enable_grad():
        logits = model(
            input_ids=batch.tokens, attention_mask=batch.mask.long(), use_cache=False
        ).logits[0, text.start - 1 : text.start - 1 + n_content]
        target = batch.tokens[0, text.start : text.start + n_content]
        loss = torch.nn.functional.cross_entropy(logits.float(), target)
        parameters = [one for one in model.parameters() if one.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    norms = [gradient.float().norm() for gradient in gradients if gradient is not None]
    return float(torch.stack(norms).mean())
