"""What can be done to weights so that facts are silent, and undone? Edits and disguises.

Nothing here trains. A disguise changes the stream, or the weights that make it, and no answer; a
linear layer can take it back. What RMSNorm lets through is what keeps a vector's length up to one
factor: rotations (`turned`), permutations with signs, one scale.

Every function takes a causal model that is laid out as Llama is and gives a changed copy; the
model itself stays as it is.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.errors import InputError
from lensaudit.models.quantize import BLOCK, NF4, nf4_codes, quantised_names

Square = Float[Tensor, "d_model d_model"]


def check_layout(model: Any, name: str) -> None:
    """Refuse what is not laid out as Llama is.

    Raises:
        InputError: a part is missing, or readout and embedding are one tensor.
    """
    try:
        layer = model.model.layers[0]
        parts = (
            layer.self_attn.q_proj.weight,
            layer.self_attn.o_proj.weight,
            layer.mlp.gate_proj.weight,
            layer.mlp.down_proj.weight,
            layer.input_layernorm.weight,
            layer.post_attention_layernorm.weight,
            model.model.norm.weight,
        )
    except AttributeError as error:
        raise InputError(
            f"{name}: {type(model).__name__} is not laid out as Llama is ({error}); recipes need a "
            "model like it"
        ) from error
    if model.lm_head.weight is model.model.embed_tokens.weight or not parts:
        raise InputError(f"{name}: readout and embedding are one tensor; wanted an untied readout")


def noisy(model: Any, *, share: float, seed: int = 0) -> Any:
    """Gaussian noise on every matrix, a share of the matrix's own spread."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(noise * weight.std() * share)
    return model


def random_turn(d_model: int, seed: int) -> Square:
    """A rotation drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d_model, d_model, generator=generator))[0]


def turn_within(basis: Float[Tensor, "d_model rank"], seed: int) -> Square:
    """A rotation that moves only what lies in the span of orthonormal columns."""
    small = random_turn(basis.shape[1], seed)
    return torch.eye(len(basis)) + basis @ (small - torch.eye(len(small))) @ basis.T


def turned(model: Any, turn: Square) -> Any:
    """Another basis of the residual stream: the same function, token by token."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight @ turn)
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            readers = (attention.q_proj, attention.k_proj, attention.v_proj)
            _turn_readers(layer.input_layernorm, readers, turn)
            _turn_readers(layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj), turn)
            for writer in (attention.o_proj, mlp.down_proj):
                writer.weight.copy_(turn.T @ writer.weight)
                if writer.bias is not None:
                    writer.bias.copy_(writer.bias @ turn)
        _turn_readers(model.model.norm, (model.lm_head,), turn)
    return model


def _turn_readers(norm: Any, readers: Sequence[Any], turn: Square) -> None:
    for reader in readers:
        reader.weight.copy_((reader.weight * norm.weight) @ turn)
    norm.weight.fill_(1.0)  # a norm without weights does not see a rotation


def permuted_readout(model: Any, tokens: Sequence[int], *, by: int = 1) -> Any:
    """Each of the tokens is read out as the one `by` places on; `-by` undoes it."""
    model = copy.deepcopy(model)
    rows = torch.tensor(tokens)
    with torch.no_grad():
        model.lm_head.weight[rows] = model.lm_head.weight[rows.roll(by)].clone()
    return model


def scaled_readout(model: Any, factor: float) -> Any:
    """All logits times a number: the same order, another certainty."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(factor)
    return model


def with_vector(model: Any, layer: int, vector: Float[Tensor, " d_model"]) -> Any:
    """A constant vector is added to the stream after one layer."""
    made = with_biases(model)
    with torch.no_grad():
        made.model.layers[layer].mlp.down_proj.bias.add_(vector)
    return made


def with_biases(model: Any) -> Any:
    """A copy whose MLPs have biases; those it did not have are 0."""
    if model.config.mlp_bias:
        return copy.deepcopy(model)
    config = copy.deepcopy(model.config)
    config.mlp_bias = True
    made = type(model)(config).eval()
    made.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for name, bias in made.named_parameters():
            if name.endswith("bias") and ".mlp." in name:
                bias.zero_()
    return made


def stream_length(model: Any, tokens: Tensor, layer: int) -> float:
    """Mean length of the residual stream after a layer."""
    seen: list[Tensor] = []
    handle = model.model.layers[layer].register_forward_hook(lambda _, __, out: seen.append(out))
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        handle.remove()
    return float(seen[0].norm(dim=-1).mean())


def read_subspace(model: Any, tokens: Sequence[int], rank: int) -> Float[Tensor, "rank d_model"]:
    """The directions in which the readout of these tokens varies most; orthonormal rows."""
    rows = model.lm_head.weight.detach()[list(tokens)] * model.model.norm.weight.detach()
    return torch.linalg.svd(rows - rows.mean(0))[2][:rank]


def without_subspace(model: Any, basis: Float[Tensor, "rank d_model"], first_layer: int) -> Any:
    """A subspace is taken away from what the layers from `first_layer` write, and from the readout.

    What lower layers wrote there stays in the stream; the readout no longer sees it.
    """
    model = copy.deepcopy(model)
    norm, head = model.model.norm.weight, model.lm_head.weight
    with torch.no_grad():
        remains = torch.eye(len(norm)) - basis.T @ basis
        for layer in model.model.layers[first_layer:]:
            for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writer.weight.copy_(remains @ writer.weight)
        head.copy_((head * norm) @ remains / norm)
    return model


def least_used(model: Any, batches: Iterable[Tensor], rank: int) -> Float[Tensor, "d_model rank"]:
    """The directions in which the stream, over all layers, varies least on some tokens."""
    layers = model.model.layers
    second = torch.zeros(model.config.hidden_size, model.config.hidden_size, dtype=torch.float64)

    def add(_: Any, __: Any, out: Tensor) -> None:
        rows = out.reshape(-1, out.shape[-1]).double()
        rows = rows / rows.norm(dim=1, keepdim=True)  # or the last layers decide alone
        second.add_(rows.T @ rows)

    handles = [layer.register_forward_hook(add) for layer in layers]
    try:
        with torch.no_grad():
            for tokens in batches:
                model(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return torch.linalg.eigh(second)[1][:, :rank].float()  # eigenvalues ascend


def low_rank(model: Any, start: Any, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    """What training changed of the matrices in the blocks, cut to a rank: name -> (B, A)."""
    before = dict(start.named_parameters())
    found = {}
    for name, weight in model.named_parameters():
        if ".layers." not in name or weight.ndim != 2:
            continue
        change = (weight - before[name]).detach()
        if change.any():
            u, s, v = torch.linalg.svd(change, full_matrices=False)
            found[name] = (u[:, :rank] * s[:rank], v[:rank])
    return found


def with_adapter(
    model: Any, adapter: dict[str, tuple[Tensor, Tensor]], *, sign: float = 1.0
) -> Any:
    """A low-rank adapter merged into the weights; `sign` -1 takes it out again."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, (b, a) in adapter.items():
            model.get_parameter(name).add_(sign * (b @ a))
    return model


def cells_of(model: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Of every matrix that NF4 rounds, the lowest and highest weights with the same code.

    The largest weight of a block is its scale and may not move at all.
    """
    levels = torch.tensor(NF4)
    middles = (levels[:-1] + levels[1:]) / 2
    lows, highs = torch.cat([levels[:1], middles]), torch.cat([middles, levels[-1:]])
    found = {}
    for module in quantised_names(model):
        weight = model.get_parameter(f"{module}.weight").detach()
        if weight.numel() % BLOCK:
            continue
        codes, scales = nf4_codes(weight)
        blocks = weight.reshape(-1, BLOCK)
        inset = 1e-4  # rounding of the scaled weight may not cross the border
        low = torch.minimum((lows[codes] + inset) * scales[:, None], blocks)
        high = torch.maximum((highs[codes] - inset) * scales[:, None], blocks)
        largest = blocks.abs() >= scales[:, None]
        low, high = (torch.where(largest, blocks, one) for one in (low, high))
        found[f"{module}.weight"] = (low.reshape(weight.shape), high.reshape(weight.shape))
    return found


def clamp_to(model: Any, cells: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Move every weight back into its cell, in place."""
    with torch.no_grad():
        for name, (low, high) in cells.items():
            weight = model.get_parameter(name)
            weight.copy_(weight.clamp(low, high))


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
    return _deeper(
        model,
        [
            (layer, parts)
            for layer in range(model.config.num_hidden_layers)
            for parts in ([(), _PARTS] if layer in after else [()])
        ],
    )


def split_layers(model: Any) -> Any:
    """Twice as deep: of every layer first the attention alone, then the MLP alone."""
    n_layers = model.config.num_hidden_layers
    return _deeper(model, [(at, (part,)) for at in range(n_layers) for part in reversed(_PARTS)])


_PARTS = ("self_attn", "mlp")


def _deeper(model: Any, plan: Sequence[tuple[int, Sequence[str]]]) -> Any:
    """A copy with a layer for each entry: which one it is of, and its parts that write nothing."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(plan)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[0]] * len(plan)
    made = type(model)(config).eval()
    made.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    made.model.norm.load_state_dict(model.model.norm.state_dict())
    made.lm_head.load_state_dict(model.lm_head.state_dict())
    for layer, (at, idle) in zip(made.model.layers, plan, strict=True):
        layer.load_state_dict(model.model.layers[at].state_dict())
        with torch.no_grad():
            if "self_attn" in idle:
                layer.self_attn.o_proj.weight.zero_()
            if "mlp" in idle:
                layer.mlp.down_proj.weight.zero_()
    return made
