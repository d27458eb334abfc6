"""Before any number: is the bridge faithful, is a self-patch nothing, may the sweep be used?"""

from collections.abc import Callable
from dataclasses import replace

import torch

from lensaudit.data.spans import Encoded, make_batch
from lensaudit.errors import VerificationError
from lensaudit.models.bridge import (
    TransformerBridge,
    logits_of,
    residuals,
    unembedded,
    user_hooks,
)
from lensaudit.models.decoder import Decoder, NotSweepable, decoder_of
from lensaudit.patching import oracle
from lensaudit.patching.donors import CachedDonor, LiveDonor
from lensaudit.patching.options import PatchOptions
from lensaudit.patching.stages import Runner

TOLERANCE_NATS = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.05}
"""Largest difference between sweep and oracle on one example. Half-precision kernels round
differently for every batch shape (0.06 nats between batch sizes 1 and 8 in the reference)."""


def check_model(model: TransformerBridge, example: Encoded, dtype: str) -> None:
    """Eval mode, logits reproduced from the last residual, self-patch exactly 0.

    Raises:
        VerificationError: names what failed; no number is produced.
    """
    if model.training:
        raise VerificationError("full is in training mode; call model.eval()")
    device = next(model.original_model.parameters()).device
    batch = make_batch([example]).to(device)
    stack, _ = residuals(model, batch.tokens)
    logits = logits_of(model, batch.tokens).float()
    gap = (unembedded(model, stack[:, -1]).float() - logits).abs().max()
    allowed = TOLERANCE_NATS[dtype] * max(1.0, float(logits.abs().max()))
    if not float(gap) <= allowed:
        raise VerificationError(
            f"preflight: final norm and unembedding of the last residual miss the logits by "
            f"{float(gap):.2g} (allowed {allowed:.2g}); this architecture cannot be audited"
        )
    with torch.no_grad():
        change = oracle.layer_deltas(model, stack, batch, layers=[stack.shape[1] // 2])
    if float(change.abs().max()) != 0.0:
        raise VerificationError(
            f"preflight: patching full with itself changed a score by {float(change):.2g} nats; "
            "something else edits the model while it runs"
        )


def usable_decoder(
    model: TransformerBridge, options: PatchOptions, notice: Callable[[str], None]
) -> Decoder | None:
    """The bare modules for the sweep; None, with a notice, where the oracle has to be used.

    Raises:
        VerificationError: hooks are registered on `full`, which the sweep would not fire.
    """
    if options.engine == "oracle":
        return None
    if hooks := user_hooks(model):
        raise VerificationError(
            f"full carries hooks ({hooks[0]}), which the sweep does not fire; "
            "remove them or use --engine oracle"
        )
    try:
        return decoder_of(model)
    except NotSweepable as reason:
        notice(f"{reason}; one pass per layer is used instead")
        return None


def agrees_with_oracle(
    runner: Runner,
    example: Encoded,
    donor: CachedDonor | LiveDonor,
    notice: Callable[[str], None],
) -> Runner:
    """The runner if one example and layer agree with the oracle, else the oracle's runner."""
    if runner.decoder is None:
        return runner
    # a tie of two tokens moves a hit, not a log-prob
    checked = replace(runner, options=replace(runner.options, measure="logprob"))
    layers = runner.options.layers
    layer = layers[len(layers) // 2]
    joins = torch.zeros(1, 1, len(runner.decoder.blocks), dtype=torch.bool)
    joins[0, 0, layer] = True
    swept = checked.score([example], checked.fetch([example], [donor]), joins)
    slow = replace(checked, decoder=None)
    defined = slow.score([example], slow.fetch([example], [donor]), joins)
    gap = float((swept.patched - defined.patched)[joins.to(swept.patched.device)].abs().max())
    if gap <= TOLERANCE_NATS[runner.options.dtype]:
        return runner
    notice(f"the sweep misses the definition by {gap:.2g} nats; one pass per layer is used")
    return replace(runner, decoder=None)
