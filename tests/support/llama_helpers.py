"""What a model says, and what it thinks while it does."""

import torch

from lensaudit.gym.edits import heard


def logits(model, text):
    with torch.no_grad():
        return model(text).logits


def streams(model, text):
    """The residual stream after every layer, before any final norm."""
    with torch.no_grad(), heard(model.model.layers) as seen:
        model(text)
    return seen
