"""What a model says, and what it thinks while it does."""

import torch


def logits(model, text):
    with torch.no_grad():
        return model(text).logits


def streams(model, text):
    """The residual stream after every layer, before any final norm."""
    seen = []
    handles = [
        layer.register_forward_hook(lambda _, __, out: seen.append(out))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(text)
    for handle in handles:
        handle.remove()
    return seen
