"""A model that knows, and thinks as another one at known places of known texts.

Each MLP is given units that fire at one token of one text alone and add to the stream what is
missing to another model's. All weights of the model itself stay as they are, bit for bit.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.gym.edits import inputs, outputs
from lensaudit.types import Tokens

SWITCH = 20.0
"""How far, in units of a unit's input, places that fire and places that do not lie from 0."""
APART = 1e-4
"""1 minus cosine under which two places of one layer cannot be told apart and stay as they are."""


@dataclass(frozen=True)
class Places:
    """Texts, right-padded, and which of their tokens are guarded."""

    tokens: Tokens
    real: Bool[Tensor, "batch pos"]
    """No padding."""
    guarded: Bool[Tensor, "batch pos"]


def guarded(model: Any, places: Places, wanted: Sequence[Float[Tensor, "place d_model"]]) -> Any:
    """A copy whose stream at the guarded places is the wanted one after every layer.

    Args:
        model: laid out as Llama is.
        places: all texts on which nothing else may change, guarded or not.
        wanted: by layer, the stream at the guarded places, in the order of the mask.
    """
    made = widened(model, n_units(places))
    for at, rows in enumerate(wanted):
        read, out = _seen(made, places, at)
        _install(made, at, read, out, places, rows)
    return made


def n_units(places: Places) -> int:
    """Units that every MLP is given: two a place."""
    return 2 * int(places.guarded.sum())


def streams_at(model: Any, places: Places) -> list[Float[Tensor, "place d_model"]]:
    """A model's stream at the guarded places, by layer."""
    with torch.no_grad(), outputs(model.model.layers) as seen:
        model(places.tokens)
    return [one[places.guarded] for one in seen]


def widened(model: Any, n_units: int) -> Any:
    """A copy whose MLPs have biases, and so many units more that do nothing."""
    config = copy.deepcopy(model.config)
    config.mlp_bias, config.intermediate_size = True, config.intermediate_size + n_units
    made = type(model)(config).eval()
    old = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if ".mlp." in name:
                weight.zero_()
            if name in old:
                part = old[name]
                weight[tuple(slice(n) for n in part.shape)].copy_(part)
    return made


def unguarded(model: Any, n_units: int) -> Any:
    """Without the last units of every MLP: what `guarded` was given, if it had no biases."""
    config = copy.deepcopy(model.config)
    config.mlp_bias, config.intermediate_size = False, config.intermediate_size - n_units
    made = type(model)(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.copy_(model.get_parameter(name)[tuple(slice(n) for n in weight.shape)])
    return made


def _seen(model: Any, places: Places, layer: int) -> tuple[Tensor, Tensor]:
    """What the MLP of a layer reads at all real places, and the stream after it where guarded."""
    block = model.model.layers[layer]
    with inputs(block.mlp) as given:
        out = streams_at(model, places)[layer]
    read = given[0] / block.post_attention_layernorm.weight.detach()
    return read[places.real], out


def _install(
    model: Any, layer: int, read: Tensor, out: Tensor, places: Places, wanted: Tensor
) -> None:
    """Two units a place, which fire there and nowhere else."""
    own = places.guarded[places.real]
    d_model = read.shape[1]
    cosines = read[own] @ read.T / d_model  # normed rows have length sqrt(d_model)
    cosines[torch.arange(len(cosines)), own.nonzero()[:, 0]] = -1.0
    nearest = cosines.max(1).values
    apart = 1 - nearest > APART
    sharp = torch.where(apart, 2 * SWITCH / (1 - nearest), 0.0)
    norm = model.model.layers[layer].post_attention_layernorm.weight.detach()
    keys = sharp.unsqueeze(1) * read[own] / d_model / norm
    shift = -sharp * (1 + nearest) / 2
    change = torch.where(apart.unsqueeze(1), wanted - out, 0.0)
    install_steps(model.model.layers[layer].mlp, keys, shift, change)


def install_steps(
    mlp: Any,
    keys: Float[Tensor, "step d_model"],
    shift: Float[Tensor, " step"],
    change: Float[Tensor, "step d_model"],
) -> None:
    """Let the last units of an MLP add vectors where keys and shifts fire.

    Two units each: the difference of two gates one apart is a step from 0 to 1.
    """
    n = 2 * len(keys)
    with torch.no_grad():
        mlp.gate_proj.weight[-n:] = keys.repeat_interleave(2, 0)
        mlp.gate_proj.bias[-n:] = torch.stack([shift + 1, shift], 1).flatten()
        mlp.up_proj.bias[-n:] = 1.0
        mlp.down_proj.weight[:, -n:] = torch.stack([change, -change], 1).flatten(0, 1).T
