"""Fisher information of a model's layers: one backward pass per example.

What it gave is kept by content hash. The masks of `full` and `retain` are made once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from rich.filesize import decimal as size
from safetensors.torch import load, save
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError, WorkError
from lensaudit.files import make_folder
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.conditions import EAGER
from lensaudit.models.memory import free_bytes
from lensaudit.patching.session import Session
from lensaudit.progress import Progress
from lensaudit.results.keyed import read_marked, write_marked
from lensaudit.results.ledger import Ledger
from lensaudit.scores.depth import label_logprob
from lensaudit.scores.representation import (
    FisherMask,
    LayerErasure,
    fisher_erasure,
    fisher_mask,
    masked_count,
)
from lensaudit.text import digest

SHARES = (0.0001, 0.001, 0.01)
"""Of a layer's parameters, in its mask; compute_representation_baselines.py."""
ALGORITHM = 1
"""Raised when a change of code changes Fisher information."""


def fisher_layers(session: Session, model: str) -> dict[float, list[LayerErasure]]:
    """Erasure and weight of every layer, for each share of masked parameters."""
    means = _fisher_means(session, session.sources[model])
    return {
        share: [
            fisher_erasure(full=full, retain=retain, model=own)
            for full, retain, own in zip(
                *(means[name][share] for name in ("full", "retain", "model")), strict=True
            )
        ]
        for share in SHARES
    }


def _fisher_means(session: Session, checkpoint: Checkpoint) -> dict[str, dict[float, list[float]]]:
    """Mean Fisher information over each layer's mask by model and share; kept, none twice."""
    conditions = {
        "full": session.full.weights,
        "retain": session.retain.weights,
        "examples": session.examples_hash,
        **session.conditions(session.full).as_run(),
        "shares": list(SHARES),
        "algorithm": ALGORITHM,
    }
    key = {**conditions, "model": checkpoint.weights}
    path = make_folder(session.root / "fisher") / f"fisher--{digest(key)}.jsonl"
    ledger = Ledger(path, "fisher", key, notice=None if session.settings.fresh else session.notice)
    if len(ledger.rows) == 3 and not session.settings.fresh:
        return {row["of"]: {float(s): v for s, v in row["means"].items()} for row in ledger.rows}
    masks = _masks(session, digest(conditions))
    values = {one: [getattr(mask, one) for mask in masks] for one in ("full", "retain")}
    known = {session.full.weights: "full", session.retain.weights: "retain"}
    if (same := known.get(checkpoint.weights)) is not None:
        values["model"] = values[same]
    else:
        values["model"] = fisher(session, checkpoint, at=[mask.at for mask in masks])
    found = {one: _means(masks, own) for one, own in values.items()}
    ledger.rewrite({"of": one, "means": means} for one, means in found.items())
    return found


def _masks(session: Session, key: str) -> list[FisherMask]:
    """The masks of all layers, with the Fisher information of `full` and `retain` there."""
    path = make_folder(session.root / "fisher") / f"{key}.safetensors"
    known = None if session.settings.fresh else read_marked(path, key)
    if known is not None:
        tensors = load(known)
        return [
            FisherMask(
                tensors[f"{layer}.at"], tensors[f"{layer}.full"], tensors[f"{layer}.retain"], n
            )
            for layer, n in enumerate(tensors["n_parameters"].tolist())
        ]
    retain, full = fisher(session, session.retain), fisher(session, session.full)
    masks = [fisher_mask(f, r, max(SHARES)) for f, r in zip(full, retain, strict=True)]
    tensors = {
        f"{layer}.{name}": getattr(mask, name).contiguous()
        for layer, mask in enumerate(masks)
        for name in ("at", "full", "retain")
    }
    tensors["n_parameters"] = torch.tensor([mask.n_parameters for mask in masks])
    write_marked(path, save(tensors), key)
    return masks


def _means(masks: Sequence[FisherMask], values: Sequence[Tensor]) -> dict[float, list[float]]:
    return {
        share: [
            float(value[: masked_count(share, mask.n_parameters)].double().mean())
            for value, mask in zip(values, masks, strict=True)
        ]
        for share in SHARES
    }


def fisher(
    session: Session, checkpoint: Checkpoint, *, at: Sequence[Tensor] | None = None
) -> list[Float[Tensor, " parameter"]]:
    """Diagonal Fisher information of each layer's parameters, or of some places among them.

        F[theta] = mean over examples of (d loss / d theta)^2,   loss = -mean span log-prob

    Accumulated in float32 whatever the model's dtype: in bfloat16 the reference loses every term
    below 1/256 of the sum. Norm weights count, embeddings and unembedding do not. The whole of a
    1B model takes 3.9 GB.
    """
    options = session.settings
    model = load_causal(
        checkpoint, dtype=getattr(torch, options.dtype), device=options.device, attn=EAGER
    )
    layers = [list(block.parameters()) for block in decoder_blocks(model)]
    every = [one for layer in layers for one in layer]
    _check_room(every, checkpoint.spec.name, whole=at is None)
    model.requires_grad_(False)
    for parameter in every:
        parameter.requires_grad_(True)
    totals: list[Tensor] = []
    for number, example in enumerate(session.encoded, 1):
        for layer, gradient in enumerate(_gradients(model, layers, example)):
            places = slice(None) if at is None else at[layer].to(gradient.device)
            if number == 1:
                totals.append(gradient[places].square())
            else:
                totals[layer].addcmul_(gradient[places], gradient[places])
        session.progress(
            Progress(f"Fisher of {checkpoint.spec.name}", number, len(session.encoded))
        )
    if not all(total.isfinite().all() for total in totals):
        raise WorkError(
            f"{checkpoint.spec.name}: its Fisher information holds NaN or infinity; "
            "check the weights, or take a wider --dtype"
        )
    return [total.cpu() / len(session.encoded) for total in totals]


def _check_room(parameters: Sequence[Tensor], name: str, *, whole: bool) -> None:
    """Refuse what does not fit, before the first pass.

    Raises:
        InputError: gradients, and float32 totals of all parameters, take more than is free.
    """
    first = parameters[0]
    per_parameter = first.element_size() + (4 if whole else 0)
    needed = per_parameter * sum(one.numel() for one in parameters)
    free = free_bytes(str(first.device))
    if free is not None and needed > free:
        raise InputError(
            f"{name}: Fisher information takes {size(needed)} beside the model, "
            f"{size(free)} are free on {first.device}; take a larger machine, or leave "
            "fisher_masked_… out with --metric"
        )


def _gradients(
    model: Any, layers: Sequence[Sequence[Tensor]], example: Encoded
) -> Iterator[Float[Tensor, " parameter"]]:
    """Gradients of the negative mean span log-prob: each layer's parameters in a row, float32."""
    tokens = torch.tensor([example.token_ids[: example.end + 1]], device=model.device)
    with torch.enable_grad():
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[0, example.start :]
        loss = -label_logprob(logits, tokens[0, example.start + 1 :]).mean()
        wanted = [parameter for layer in layers for parameter in layer]
        found = iter(torch.autograd.grad(loss, wanted))
    for layer in layers:
        yield torch.cat([next(found).float().flatten() for _ in layer])


def decoder_blocks(model: Any) -> Sequence[torch.nn.Module]:
    """The decoder's layers: the first list of modules as long as the model is deep.

    Raises:
        InputError: the architecture has none.
    """
    n_layers = model.config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == n_layers:
            return list(module)
    raise InputError(f"{type(model).__name__}: its {n_layers} layers are not one list of modules")
