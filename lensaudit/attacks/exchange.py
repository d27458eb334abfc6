"""Exchanged rows of a readout, put back."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.attacks.readout_rows import tokens_of_rows


def undo_exchange(model: Any, full: Float[Tensor, "token d_model"]) -> int:
    """Exchanged rows of the readout, known by those of `full`, are put back, in place: how many.

    Where readout and embedding are one tensor, tokens are read as they are said: both are put back.
    """
    head = model.get_output_embeddings()
    token = tokens_of_rows(head.weight, full.to(head.weight.device)).to(head.weight.device)
    moved = (token != torch.arange(len(token), device=token.device)).nonzero().squeeze(1)
    with torch.no_grad():
        for rows in (head.weight, head.bias):
            if rows is not None and len(moved):
                rows[token[moved]] = rows[moved].clone()
    return len(moved)
