"""Scores of a model from inside: patched into `full`, read by it, or compared with it.

Patched and read scores are those of `lensaudit patch`. CKA reads the span caches that an audit
fills; the Fisher information needs one backward pass per example of each model, and what it gave
is kept by content hash.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from rich.filesize import decimal as size
from safetensors.torch import load, save
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError, WorkError
from lensaudit.files import digest, make_folder
from lensaudit.metrics.registry import Measured
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.conditions import EAGER
from lensaudit.models.device import free_bytes
from lensaudit.patching.controls import controls_of
from lensaudit.patching.layout import layout_of
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.summary import kept_beside, summaries
from lensaudit.progress import Progress
from lensaudit.results.keyed import read_marked, write_marked
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.ledger import Ledger
from lensaudit.results.reading import null
from lensaudit.scores.depth import label_logprob
from lensaudit.scores.estimate import UNMEASURED
from lensaudit.scores.representation import (
    FisherMask,
    LayerErasure,
    cka,
    cka_erasure,
    fisher_erasure,
    fisher_mask,
    masked_count,
    weighted_erasure,
)
from lensaudit.verdict.thresholds import ALIGN_FROM

_ASKED: Mapping[str, Mapping[str, Any]] = {
    "uds": {},
    "lens": {"score": "lens"},
    "em": {"score": "em", "em_form": "teacher"},
    "collateral": {"also": ("retain",)},
    "controls": {},
}
"""Score -> how it differs from what `lensaudit patch` asks by default."""
_PATCHED = ("last_layer", "scope", "component")
_READ = {
    "uds": ("uds", ("tau", *_PATCHED, "engine", "calibration")),
    "lens": ("lens", ("tau", "calibration")),
    "em": ("udr", ("em_form", "threshold", *_PATCHED, "retention", "calibration")),
}
"""Score -> its name in a row, and what of its summary goes into the log."""
SHARES = (0.0001, 0.001, 0.01)
"""Of a layer's parameters, in its mask; compute_representation_baselines.py."""
ALGORITHM = 1
"""Raised when a change of code changes Fisher information."""


def cka_layers(session: Session, model: str) -> list[LayerErasure]:
    """Erasure and weight of every layer, on the residual streams at the scored positions."""
    layout = layout_of(session.encoded, "span")
    with session:

        def stack(checkpoint: Checkpoint) -> Float[Tensor, "layer token d_model"]:
            cache = session.cache(checkpoint, session.encoded, "span")
            return CachedSource(cache, "resid_post").packed(session.encoded, layout)

        full, retain = stack(session.full), stack(session.retain)
        other = stack(session.sources[model])
    return [cka_erasure(cka(f, r), cka(m, r)) for f, r, m in zip(full, retain, other, strict=True)]


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


def score_inside(session: Session, model: str, score: str) -> Measured[float]:
    """The rows of a score of one model, and how they were made."""
    match score:
        case "cka":
            return _layered(session, {"cka": cka_layers(session, model)})
        case "fisher":
            shares = fisher_layers(session, model).items()
            found = {f"fisher_masked_{one:.4f}".rstrip("0"): rows for one, rows in shares}
            return _layered(session, found)
        case "leak":
            return _leak(session, model)
    asked = session.under(**_ASKED[score])
    with asked:
        controls = controls_of(asked) if score == "controls" else None
        (found,) = summaries(asked, controls, kept_beside(asked))
    names = {"full_model": session.full.spec.name, "retain_model": session.retain.spec.name}
    if score in _READ:
        key, kept = _READ[score]
        return Measured(
            {row["idx"]: (row[key],) for row in found.rows if row["unscored"] is None},
            {row["idx"]: row["unscored"] for row in found.rows if row["unscored"] is not None},
            details=names | {name: getattr(found.summary, name) for name in kept},
        )
    made = _collateral(found.summary) if score == "collateral" else _controls(found.summary)
    return Measured({}, {}, details=names | made)


def _collateral(summary: PatchSummary) -> dict[str, Any]:
    found = summary.collateral["retain"]
    chosen = found.selectivity
    return {
        **{
            key: getattr(found, key) for key in ("anchor", "relative_to", "n", "n_scored", "strata")
        },
        "values": {
            "collateral": (found.depth, found.ci95),
            "selectivity": (chosen["value"], chosen["ci95"]),
        },
    }


def _controls(summary: PatchSummary) -> dict[str, Any]:
    aligned, validity, uds = summary.aligned, summary.validity, summary.uds
    depth = aligned.uds or UNMEASURED
    values = {
        "uds_aligned": (depth.value, depth.ends),
        "uds_validity": (validity.d_share, validity.ci95),
    }
    if aligned.kind is None and uds is not None and uds < ALIGN_FROM:
        # so low that nothing has to be aligned: the depth itself
        values["uds_aligned"] = uds, None
    why = {"uds_aligned": aligned.why, "uds_validity": validity.why}
    return {"values": values, "why": why}


def _leak(session: Session, model: str) -> Measured[float]:
    """Log-prob of the whole span by the model itself; nothing is patched."""
    with session:
        own, other = (
            session.answers(one, session.encoded)[0]
            for one in (session.sources[model], session.retain)
        )
    n_span = torch.tensor([one.n_span for one in session.encoded])
    idx = [one.idx for one in session.encoded]
    return Measured(
        {one: (total,) for one, total in zip(idx, (own * n_span).tolist(), strict=True)},
        session.unscored,
        details={
            "retain_model": session.retain.spec.name,
            "retain": dict(zip(idx, (other * n_span).tolist(), strict=True)),
        },
    )


def _layered(session: Session, found: Mapping[str, Sequence[LayerErasure]]) -> Measured[float]:
    """Scores without rows: one number per name, and what each layer says."""
    values = {name: weighted_erasure(rows) for name, rows in found.items()}
    return Measured(
        {},
        session.unscored,
        details={
            "full_model": session.full.spec.name,
            "retain_model": session.retain.spec.name,
            "n_examples": len(session.encoded),
            "values": {name: (null(value), None) for name, value in values.items()},
            "layers": {name: [asdict(row) for row in rows] for name, rows in found.items()},
        },
    )
