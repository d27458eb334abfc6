"""What changes the stream, or the weights that make it, and no answer? For map_attacks.py.

Each is a change that a linear layer can take back. What RMSNorm lets through is what keeps a
vector's length up to one factor: rotations (`edits.turned`), permutations with signs, one scale.
Every function takes a causal model that is laid out as Llama is and gives a changed copy.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.gym.edits import PARTS, Square, deeper, random_turn


def signed_permutation(d_model: int, seed: int) -> Square:
    """A rotation that gives every dimension another place, and half of them another sign."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(d_model, generator=generator)
    signs = torch.randint(0, 2, (d_model,), generator=generator) * 2.0 - 1.0
    return torch.eye(d_model)[:, places] * signs


def scaled_stream(model: Any, factors: Float[Tensor, " d_model"]) -> Any:
    """Every dimension of the stream times a factor, taken back by what reads it.

    Exact where all factors are of one size: the norms' epsilon is scaled with them. Factors of
    several sizes change the length that RMSNorm divides by, token by token, and so the function.
    """
    model = copy.deepcopy(model)
    config = model.config
    config.rms_norm_eps = float(config.rms_norm_eps * factors.square().mean())
    size = factors.square().mean().sqrt()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(factors)
        for layer in model.model.layers:
            for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writer.weight.mul_(factors.unsqueeze(1))
                if writer.bias is not None:
                    writer.bias.mul_(factors)
        for norm in _norms(model):
            norm.weight.mul_(size / factors)
            norm.variance_epsilon = config.rms_norm_eps
    return model


def _norms(model: Any) -> list[Any]:
    layers = model.model.layers
    inner = [n for one in layers for n in (one.input_layernorm, one.post_attention_layernorm)]
    return [*inner, model.model.norm]


def regauged(model: Any, *, seed: int) -> Any:
    """Another basis inside every head: the same attention and the same stream, other weights.

    Values are mixed by a rotation that the output projection takes back. Queries and keys are
    turned and scaled within the pairs of dimensions that rotary embeddings turn, oppositely.
    """
    model = copy.deepcopy(model)
    config = model.config
    d_head, n_kv = config.head_dim, config.num_key_value_heads
    for at, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        for head in range(n_kv):
            mix = random_turn(d_head, seed + at * n_kv + head)
            turn, scale = _rotary_gauge(d_head, seed + at * n_kv + head)
            group = config.num_attention_heads // n_kv
            queries = range(head * group, (head + 1) * group)
            with torch.no_grad():
                _rows(attention.v_proj, head, d_head).copy_(
                    mix.T @ _rows(attention.v_proj, head, d_head)
                )
                _rows(attention.k_proj, head, d_head).copy_(
                    (turn @ _rows(attention.k_proj, head, d_head)) / scale
                )
                for query in queries:
                    _rows(attention.q_proj, query, d_head).copy_(
                        (turn @ _rows(attention.q_proj, query, d_head)) * scale
                    )
                    columns = attention.o_proj.weight[:, query * d_head : (query + 1) * d_head]
                    columns.copy_(columns @ mix)
    return model


def _rows(reader: Any, head: int, d_head: int) -> Tensor:
    return reader.weight[head * d_head : (head + 1) * d_head]


def _rotary_gauge(d_head: int, seed: int) -> tuple[Tensor, Tensor]:
    """A rotation and a scale of each pair (i, i + d_head / 2), which rotary embeddings turn too."""
    generator = torch.Generator().manual_seed(seed)
    angles = 2 * torch.pi * torch.rand(d_head // 2, generator=generator)
    scale = (torch.rand(d_head // 2, generator=generator) - 0.5).exp().repeat(2).unsqueeze(1)
    cos, sin = angles.cos().diag(), angles.sin().diag()
    return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)]), scale


def with_idle_layers(model: Any, after: Sequence[int]) -> Any:
    """A deeper copy: behind each of these layers one that writes nothing into the stream."""
    return deeper(
        model,
        [
            (layer, parts)
            for layer in range(model.config.num_hidden_layers)
            for parts in ([(), PARTS] if layer in after else [()])
        ],
    )
