"""What `full` says where another model's stream is patched in, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from lensaudit.errors import InputError
from lensaudit.models.bridge import (
    TransformerBridge,
    check_layers,
    device_of,
    n_layers,
    residuals,
)
from lensaudit.models.named import bridged
from lensaudit.models.sizes import context_of
from lensaudit.patching.generation import generate, patched_rows
from lensaudit.patching.options import PATCHED_TOKENS
from lensaudit.patching.sources import as_patched
from lensaudit.patching.speech import ends_of
from lensaudit.settings import LastLayer, Place


@dataclass(frozen=True)
class Continuation:
    """What `full` says with one layer patched."""

    layer: int | None
    """None: not patched."""
    text: str


def patched_generation(
    full: TransformerBridge | Place,
    source: TransformerBridge | Place,
    prompt: str,
    *,
    layers: Sequence[int] | None = None,
    max_new_tokens: int = PATCHED_TOKENS,
    last_layer: LastLayer = "resid_post",
) -> list[Continuation]:
    """What `full` says after `prompt`: unpatched, then with `source` patched in at each layer.

    The stream of `source` replaces that of `full` at the prompt's last token alone. Without layers
    it is the unpatched text alone.

    Raises:
        InputError: no text or an empty one, one longer than a context, a layer the model lacks,
            another word for `last_layer`, or see `load_model`.
    """
    if last_layer not in get_args(LastLayer):
        known = ", ".join(get_args(LastLayer))
        raise InputError(f"patched_generation(last_layer={last_layer!r}): wanted one of {known}")
    if not isinstance(prompt, str):
        raise InputError(f"patched_generation: found prompt {prompt!r:.60}, wanted one text")
    full, source = (bridged(one, "patched_generation") for one in (full, source))
    ids = full.tokenizer(prompt)["input_ids"]
    chosen = list(range(n_layers(full)) if layers is None else layers)
    if not ids:
        raise InputError("an empty prompt; wanted at least one token")
    for one, n_new in ((full, max_new_tokens), (source, 0)):
        config: Any = one.original_model.config
        if problem := context_of(config).too_long(len(ids), n_new):
            raise InputError(f"patched_generation: the prompt has {problem}")
    check_layers(full, chosen)
    stack, final_norm = residuals(source, torch.tensor([ids], device=device_of(source)))
    value = as_patched(stack[0, :, -1], final_norm[0, -1], last_layer)
    more = {"max_new_tokens": max_new_tokens, "stop": ends_of(full)}
    rows = {"row_prompt": [0] * len(chosen), "layer": chosen, "value": value[chosen]}
    generated = patched_rows(full, [ids], **rows, **more)
    plain = generate(full, [ids], **more)
    texts = [full.tokenizer.decode(said, skip_special_tokens=True) for said in [*plain, *generated]]
    return [Continuation(*pair) for pair in zip([None, *chosen], texts, strict=True)]
