"""The passes that compare models from inside: residual streams by CKA, curvature by Fisher.

Neither patches anything. CKA reads the span caches that an audit fills; the Fisher information
needs one backward pass per example of each model, and what it gave is kept by content hash.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Len
from jaxtyping import Float
from rich.filesize import decimal as size
from safetensors.torch import load, save
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError, WorkError
from lensaudit.files import digest, make_folder
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.conditions import EAGER
from lensaudit.models.device import free_bytes
from lensaudit.results.keyed import read_marked, write_marked
from lensaudit.results.ledger import Ledger
from lensaudit.results.schema import Number
from lensaudit.scores.depth import label_logprob
from lensaudit.scores.representation import (
    FisherMask,
    LayerErasure,
    cka,
    cka_erasure,
    fisher_erasure,
    fisher_mask,
    masked_count,
)

if TYPE_CHECKING:
    from lensaudit.patching.session import Session

SHARES = (0.0001, 0.001, 0.01)
"""Of a layer's parameters, in its mask; compute_representation_baselines.py."""
ALGORITHM = 1
"""Raised when a change of code changes Fisher information."""


def cka_layers(audit: "Session", model: str) -> list[LayerErasure]:
    """Erasure and weight of every layer, on the residual streams at the scored positions."""
    from lensaudit.patching.layout import layout_of
    from lensaudit.patching.sources import CachedSource

    layout = layout_of(audit.encoded, "span")
    with audit:

        def stack(checkpoint: Checkpoint) -> Float[Tensor, "layer token d_model"]:
            cache = audit.cache(checkpoint, audit.encoded, "span")
            return CachedSource(cache, "resid_post").packed(audit.encoded, layout)

        full, retain = stack(audit.full), stack(audit.retain)
        other = stack(audit.sources[model])
    return [cka_erasure(cka(f, r), cka(m, r)) for f, r, m in zip(full, retain, other, strict=True)]


def fisher_layers(audit: "Session", model: str) -> dict[float, list[LayerErasure]]:
    """Erasure and weight of every layer, for each share of masked parameters."""
    store = _FisherStore(audit)
    means = store.means(audit.sources[model])
    return {
        share: [
            fisher_erasure(full=f, retain=r, model=m)
            for f, r, m in zip(
                means["full"][share], means["retain"][share], means["model"][share], strict=True
            )
        ]
        for share in SHARES
    }


@dataclass(frozen=True)
class _Anchors:
    """The masks of all layers, with the Fisher information of `full` and `retain` there."""

    masks: tuple[FisherMask, ...]
    n_parameters: tuple[int, ...]


Means = dict[str, dict[float, list[float]]]
"""Model -> share -> mean Fisher information over each layer's mask."""


_ByShare = Annotated[dict[Literal["0.0001", "0.001", "0.01"], list[Number]], Len(3)]


@dataclass(frozen=True)
class _Line:
    """What a line of the store must hold: a mean for each layer, by share."""

    of: Literal["full", "retain", "model"]
    means: _ByShare


class _FisherStore:
    """Fisher information by content hash, so that no backward pass is run twice."""

    def __init__(self, audit: "Session"):
        self.audit = audit
        self.conditions = {
            "full": audit.full.weights,
            "retain": audit.retain.weights,
            "examples": audit.examples_hash,
            **audit.conditions(audit.full).as_run(),
            "shares": list(SHARES),
            "algorithm": ALGORITHM,
        }
        self.folder = audit.root / "fisher"

    def means(self, checkpoint: Checkpoint) -> Means:
        """Of `full`, `retain` and the checkpoint."""
        ledger = self._ledger(checkpoint)
        known = {row["of"]: {float(s): v for s, v in row["means"].items()} for row in ledger.rows}
        n_layers = {len(values) for means in known.values() for values in means.values()}
        if len(known) == 3 and len(n_layers) == 1:
            return known
        anchors = self._anchors()
        found = {
            "full": _means(anchors, [mask.full for mask in anchors.masks]),
            "retain": _means(anchors, [mask.retain for mask in anchors.masks]),
            "model": _means(anchors, self._at_masks(checkpoint, anchors)),
        }
        ledger.rewrite({"of": one, "means": means} for one, means in found.items())
        return found

    def _ledger(self, checkpoint: Checkpoint) -> Ledger:
        """What is known of a checkpoint: a line per model."""
        audit = self.audit
        key = {**self.conditions, "model": checkpoint.weights}
        if not audit.fresh and (old := self.folder / f"{digest(key)}.json").exists():
            audit.notice(f"{old}: was written without checksums by 0.1.0; it is not used any more")
        path = make_folder(self.folder) / f"fisher--{digest(key)}.jsonl"
        ledger = Ledger(
            path, "fisher", key, record=_Line, notice=None if audit.fresh else audit.notice
        )
        if audit.fresh:
            ledger.clear()
        return ledger

    def _at_masks(self, checkpoint: Checkpoint, anchors: _Anchors) -> list[Tensor]:
        """The checkpoint's Fisher information where the masks are."""
        for name in ("full", "retain"):
            if checkpoint.weights == getattr(self.audit, name).weights:
                return [getattr(mask, name) for mask in anchors.masks]
        return fisher(self.audit, checkpoint, at=[mask.at for mask in anchors.masks])

    def _anchors(self) -> _Anchors:
        key = digest(self.conditions)
        path = self.folder / f"{key}.safetensors"
        known = None if self.audit.fresh else read_marked(path, key)
        if known is not None:
            return _read_anchors(known)
        retain = fisher(self.audit, self.audit.retain)
        full = fisher(self.audit, self.audit.full)
        masks = tuple(fisher_mask(f, r, max(SHARES)) for f, r in zip(full, retain, strict=True))
        anchors = _Anchors(masks, tuple(len(one) for one in full))
        make_folder(self.folder)
        write_marked(path, _anchor_bytes(anchors), key)
        return anchors


def _anchor_bytes(anchors: _Anchors) -> bytes:
    tensors = {
        f"{layer}.{name}": value.contiguous()
        for layer, mask in enumerate(anchors.masks)
        for name, value in vars(mask).items()
    }
    return save(tensors | {"n_parameters": torch.tensor(anchors.n_parameters)})


def _read_anchors(content: bytes) -> _Anchors:
    tensors = load(content)
    sizes = tuple(tensors["n_parameters"].tolist())
    masks = tuple(
        FisherMask(*(tensors[f"{layer}.{name}"] for name in ("at", "full", "retain")))
        for layer in range(len(sizes))
    )
    return _Anchors(masks, sizes)


def _means(anchors: _Anchors, values: Sequence[Tensor]) -> dict[float, list[float]]:
    return {
        share: [
            float(value[: masked_count(share, n)].double().mean())
            for value, n in zip(values, anchors.n_parameters, strict=True)
        ]
        for share in SHARES
    }


def fisher(
    audit: "Session", checkpoint: Checkpoint, *, at: Sequence[Tensor] | None = None
) -> list[Float[Tensor, " parameter"]]:
    """Diagonal Fisher information of each layer's parameters, or of some places among them.

        F[theta] = mean over examples of (d loss / d theta)^2,   loss = -mean span log-prob

    Accumulated in float32 whatever the model's dtype: in bfloat16 the reference loses every term
    below 1/256 of the sum. Norm weights count, embeddings and unembedding do not. The whole of a
    1B model takes 3.9 GB.
    """
    options = audit.options
    model = load_causal(
        checkpoint, dtype=getattr(torch, options.dtype), device=options.device, attn=EAGER
    )
    layers = [list(block.parameters()) for block in decoder_blocks(model)]
    _check_room([one for layer in layers for one in layer], checkpoint.spec.name, whole=at is None)
    model.requires_grad_(False)
    for parameter in (one for layer in layers for one in layer):
        parameter.requires_grad_(True)
    totals: list[Tensor] = []
    for number, example in enumerate(audit.encoded, 1):
        for layer, gradient in enumerate(_gradients(model, layers, example)):
            places = slice(None) if at is None else at[layer].to(gradient.device)
            if number == 1:
                totals.append(gradient[places].square())
            else:
                totals[layer].addcmul_(gradient[places], gradient[places])
        if audit.progress is not None:
            audit.progress(f"Fisher of {checkpoint.spec.name}", number, len(audit.encoded))
    if not all(total.isfinite().all() for total in totals):
        raise WorkError(
            f"{checkpoint.spec.name}: its Fisher information holds NaN or infinity; "
            "check the weights, or take a wider --dtype"
        )
    return [total.cpu() / len(audit.encoded) for total in totals]


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
    """Of the negative mean span log-prob: each layer's parameters end to end, in float32."""
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
