"""Before any number: is the bridge faithful, is a self-patch nothing, may the sweep be used?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lensaudit.data.spans import Batch, Encoded, make_batch
from lensaudit.errors import InputError, VerificationError
from lensaudit.models.bridge import (
    TransformerBridge,
    captured,
    device_of,
    hook_name,
    intervening,
    logits_of,
    n_layers,
    residuals,
    unembedded,
    user_hooks,
)
from lensaudit.models.checkpoint import Checkpoint, config_of
from lensaudit.models.decoder import Decoder, NotSweepable, decoder_of, unverified
from lensaudit.models.sizes import sizes_of
from lensaudit.patching import oracle
from lensaudit.patching.options import Engine, ResolvedSettings
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.stages import Fetched, Runner

TOLERANCE_NATS = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.05}
"""Largest difference between sweep and oracle on one example. Half-precision kernels round
differently for every batch shape (0.06 nats between batch sizes 1 and 8 in the reference)."""


WRITTEN = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
"""How far what is read after a component was replaced may be off, over its largest value."""


PREFLIGHT_PASSES = 4
"""Forward passes of `full` on the longest example; as many where sweep and oracle are compared."""


def check_model(model: TransformerBridge, example: Encoded, dtype: str) -> None:
    """Eval mode, logits reproduced from the last residual, self-patch exactly 0.

    Raises:
        VerificationError: names what failed; no number is produced.
    """
    if model.training:
        raise VerificationError("full is in training mode; call model.eval()")
    batch = make_batch([example]).to(device_of(model))
    stack, _ = residuals(model, batch.tokens)
    readout = readout_gap(model, batch, stack, dtype)
    if not readout.passes:
        raise VerificationError(
            f"preflight: final norm and unembedding of the last residual miss the logits by "
            f"{readout.gap:.2g} (allowed {readout.allowed:.2g}); this architecture cannot be "
            "audited"
        )
    change = self_patch_gap(model, batch, stack, [n_layers(model) // 2])
    if not change.passes:
        raise VerificationError(
            f"preflight: patching full with itself changed a score by {change.gap:.2g} nats; "
            "something else edits the model while it runs"
        )


@dataclass(frozen=True)
class PreflightCheck:
    """What must hold of a model before any number of it is believed."""

    name: str
    gap: float | None
    """Largest difference; None where it was not compared."""
    allowed: float
    why: str = ""
    """Why it was not compared."""

    @property
    def passes(self) -> bool:
        """The difference is within what is allowed; NaN is not, nor what was not compared."""
        return self.gap is not None and self.gap <= self.allowed


def readout_gap(
    model: TransformerBridge, batch: Batch, stack: oracle.SourceStack, dtype: str
) -> PreflightCheck:
    """Final norm and unembedding of the last residual against the logits."""
    logits = logits_of(model, batch.tokens).float()
    gap = (unembedded(model, stack[:, -1]).float() - logits).abs().max()
    allowed = TOLERANCE_NATS[dtype] * max(1.0, float(logits.abs().max()))
    return PreflightCheck("readout of the last residual equals the logits", float(gap), allowed)


def self_patch_gap(
    model: TransformerBridge, batch: Batch, stack: oracle.SourceStack, layers: Sequence[int]
) -> PreflightCheck:
    """Change of a span's log-prob, nats per token, where its own streams are patched in."""
    with torch.no_grad():
        change = oracle.layer_deltas(model, stack, batch, layers=layers)
    return PreflightCheck("self-patch is identity", float(change.abs().max()), 0.0)


def check_component(model: TransformerBridge, example: Encoded, settings: ResolvedSettings) -> None:
    """What is called a component is one: heads are the model's, what is written is read.

    A self-patch cannot tell: any slice of a model put back where it came from changes nothing.

    Raises:
        InputError: the bridge cannot replace this component on this architecture.
    """
    if settings.part == "resid":
        return
    tokens = make_batch([example]).to(device_of(model)).tokens
    stack, _ = residuals(model, tokens, component=settings.part)
    hf: Any = model.original_model
    if settings.part == "head":
        sizes = sizes_of(hf.config, settings.dtype)
        wanted = (sizes.n_heads, sizes.d_value)
        if stack.shape[-2:] != wanted:
            raise InputError(
                f"--component {settings.component}: the bridge shows heads of "
                f"{' x '.join(map(str, stack.shape[-2:]))}, the model has "
                f"{' x '.join(map(str, wanted))}; choose resid, attn or mlp"
            )
        return
    layer = stack.shape[1] // 2
    other = stack[:, (layer + 1) % stack.shape[1]]
    with intervening(model, {layer: lambda own: other.to(own)}, component=settings.part):
        name = hook_name(layer, settings.part)
        found = captured(model, tokens, [name])[name]
    gap = float((found - other).abs().max() / other.abs().max())
    if not gap <= WRITTEN[settings.dtype]:
        raise InputError(
            f"--component {settings.component}: what is patched in does not arrive there on "
            f"{type(model.original_model).__name__} (off by {gap:.2g} of the largest); choose "
            "another --component"
        )


def planned_engine(
    full: Checkpoint, settings: ResolvedSettings, notice: Callable[[str], None]
) -> Engine:
    """The engine asked for; the oracle, with a notice, where `full` may not be swept."""
    why = unverified(full.architecture, config_of(full))
    if settings.computed_with == "sweep" and why is not None:
        notice(f"{why}; one pass per layer is used instead")
        return "oracle"
    return settings.engine


def usable_decoder(
    model: TransformerBridge, settings: ResolvedSettings, notice: Callable[[str], None]
) -> Decoder | None:
    """The bare modules for the sweep; None, with a notice, where the oracle has to be used.

    Raises:
        VerificationError: hooks are registered on `full`, which the sweep would not fire.
    """
    if settings.engine == "oracle":
        return None
    try:
        decoder = decoder_of(model)
    except NotSweepable as reason:
        notice(f"{reason}; one pass per layer is used instead")
        return None
    if hooks := user_hooks(model):
        raise VerificationError(
            f"full carries hooks ({hooks[0]}), which the sweep does not fire; "
            "remove them or use --engine oracle"
        )
    return decoder


def _below(fetched: Fetched, layer_axis: int) -> Fetched:
    """Each layer with what the one below it holds: a patch that changes scores.

    Patching a model with itself would hide rows that are joined at the wrong place.
    """
    return replace(fetched, stacks=[one.roll(1, layer_axis) for one in fetched.stacks])


def sweep_gap(runner: Runner, encoded: Sequence[Encoded], source: CachedSource) -> PreflightCheck:
    """Patched log-probs, nats per token, by the sweep against the oracle's.

    The longest and the shortest example are patched at the lowest layer, so that every later
    block and any sliding window is passed, and at one in the middle.
    """
    name, allowed = "sweep equals oracle", TOLERANCE_NATS[runner.settings.dtype]
    if runner.decoder is None:
        return PreflightCheck(name, None, allowed, "one pass per layer is used")
    by_length = sorted(encoded, key=lambda e: (e.end, e.idx))
    pair = list({e.idx: e for e in (by_length[0], by_length[-1])}.values())
    layers = runner.settings.at_layers
    joins = torch.zeros(1, len(pair), len(runner.decoder.blocks), dtype=torch.bool)
    joins[:, :, [layers[0], layers[len(layers) // 2]]] = True
    # log-probs, whatever is measured: a single hit that flips is not a wrong sweep
    checked = replace(runner, settings=replace(runner.settings, measure="logprob"))
    swept = checked.score(pair, _below(checked.fetch(pair, [source]), 0), joins)
    slow = checked.by_oracle()
    defined = slow.score(pair, _below(slow.fetch(pair, [source]), 1), joins)
    difference = (swept.patched - defined.patched)[joins.to(swept.patched.device)].abs().max()
    gap = max(float(difference), float((swept.baseline - defined.baseline).abs().max()))
    return PreflightCheck(name, gap, allowed)
