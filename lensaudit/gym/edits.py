"""What can be done to weights so that facts are silent, and undone? Edits without training.

Every function takes a causal model that is laid out as Llama is and gives a changed copy; the
model itself stays as it is.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.attacks.quantize import BLOCK, NF4, nf4_codes, quantised_names
from lensaudit.errors import InputError

P = ParamSpec("P")
Square = Float[Tensor, "d_model d_model"]
_LLAMA = (
    *(f"model.layers.0.self_attn.{name}_proj.weight" for name in "qo"),
    *(f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "down")),
    *(f"model.layers.0.{name}_layernorm.weight" for name in ("input", "post_attention")),
    "model.norm.weight",
)


@contextmanager
def heard(modules: Iterable[Any], *, given: bool = False) -> Iterator[list[Tensor]]:
    """What modules give in the passes that follow, or what they are `given`, in order."""
    seen: list[Tensor] = []
    handles = [
        one.register_forward_pre_hook(lambda _, taken: seen.append(taken[0]))
        if given
        else one.register_forward_hook(lambda _, __, out: seen.append(out))
        for one in modules
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def edit(change: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], Any]:
    """A function that gives a changed copy, of one that changes the weights in place."""

    @wraps(change)
    def edited(model: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        made = copy.deepcopy(model)
        with torch.no_grad():
            change(made, *args, **kwargs)
        return made

    return edited


def check_layout(model: Any, name: str) -> None:
    """Refuse what is not laid out as Llama is.

    Raises:
        InputError: a part is missing, or readout and embedding are one tensor.
    """
    try:
        for part in _LLAMA:
            model.get_parameter(part)
    except AttributeError as error:
        raise InputError(
            f"{name}: {type(model).__name__} is not laid out as Llama is ({error}); recipes need a "
            "model like it"
        ) from error
    if model.lm_head.weight is model.model.embed_tokens.weight:
        raise InputError(f"{name}: readout and embedding are one tensor; wanted an untied readout")


@edit
def noisy(model: Any, *, share: float, seed: int = 0) -> None:
    """Gaussian noise on every matrix, a share of the matrix's own spread."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim == 2:
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise * weight.std() * share)


def random_turn(d_model: int, seed: int) -> Square:
    """Rotation of the stream drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d_model, d_model, generator=generator))[0]


def turn_within(basis: Float[Tensor, "d_model rank"], seed: int) -> Square:
    """A rotation that moves only what lies in the span of orthonormal columns."""
    small = random_turn(basis.shape[1], seed)
    return torch.eye(len(basis)) + basis @ (small - torch.eye(len(small))) @ basis.T


@edit
def turned(model: Any, turn: Square) -> None:
    """Another basis of the residual stream: the same function, token by token."""
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


def _turn_readers(norm: Any, readers: Sequence[Any], turn: Square) -> None:
    for reader in readers:
        reader.weight.copy_((reader.weight * norm.weight) @ turn)
    norm.weight.fill_(1.0)  # a norm without weights does not see a rotation


@edit
def permuted_readout(model: Any, tokens: Sequence[int], *, by: int = 1) -> None:
    """Each of the tokens is read out as the one `by` places on; `-by` undoes it."""
    rows = torch.tensor(tokens)
    model.lm_head.weight[rows] = model.lm_head.weight[rows.roll(by)].clone()


@edit
def mixed_readout(model: Any, tokens: Sequence[int], turn: Float[Tensor, "token token"]) -> None:
    """Each of the tokens is read out as a mixture of all of them; `turn.T` undoes a rotation."""
    rows = torch.tensor(tokens)
    model.lm_head.weight[rows] = turn @ model.lm_head.weight[rows]


@edit
def with_weights(model: Any, other: Any, mask: str) -> None:
    """The tensors whose names match are those of another model."""
    for name, weight in other.named_parameters():
        if re.search(mask, name):
            model.get_parameter(name).copy_(weight)


@edit
def scaled_readout(model: Any, factor: float) -> None:
    """All logits times a number: the same order, another certainty."""
    model.lm_head.weight.mul_(factor)


def with_vector(model: Any, layer: int, vector: Float[Tensor, " d_model"]) -> Any:
    """A constant vector is added to the stream after one layer."""
    made = widened(model, 0)
    with torch.no_grad():
        made.model.layers[layer].mlp.down_proj.bias.add_(vector)
    return made


def like(model: Any, **changes: Any) -> Any:
    """A new model of the same kind, another one in some of its settings."""
    config = copy.deepcopy(model.config)
    for name, value in changes.items():
        setattr(config, name, value)
    return type(model)(config).eval()


def widened(model: Any, n_units: int, *, biases: bool = True) -> Any:
    """A copy whose MLPs have biases, and so many units more that do nothing.

    A negative number takes the last units away; without `biases` those of MLPs go, too.
    """
    width = model.config.intermediate_size + n_units
    made, before = like(model, mlp_bias=biases, intermediate_size=width), model.state_dict()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            old = before.get(name)
            if old is None or old.shape != weight.shape:
                weight.zero_()
            if old is not None:
                both = tuple(map(slice, map(min, weight.shape, old.shape)))
                weight[both] = old[both]
    return made


def stream_length(model: Any, tokens: Tensor, layer: int) -> float:
    """Mean length of the residual stream after a layer."""
    with torch.no_grad(), heard([model.model.layers[layer]]) as seen:
        model(tokens)
    return float(seen[0].norm(dim=-1).mean())


def read_subspace(model: Any, tokens: Sequence[int], rank: int) -> Float[Tensor, "rank d_model"]:
    """The directions in which the readout of these tokens varies most; orthonormal rows."""
    rows = model.lm_head.weight.detach()[list(tokens)] * model.model.norm.weight.detach()
    return torch.linalg.svd(rows - rows.mean(0))[2][:rank]


@edit
def without_subspace(model: Any, basis: Float[Tensor, "rank d_model"], first_layer: int) -> None:
    """A subspace is taken away from what the layers from `first_layer` write, and from the readout.

    What lower layers wrote there stays in the stream; the readout no longer sees it.
    """
    norm, head = model.model.norm.weight, model.lm_head.weight
    remains = torch.eye(len(norm)) - basis.T @ basis
    for layer in model.model.layers[first_layer:]:
        for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
            writer.weight.copy_(remains @ writer.weight)
    head.copy_((head * norm) @ remains / norm)


def least_used(model: Any, batches: Iterable[Tensor], rank: int) -> Float[Tensor, "d_model rank"]:
    """The directions in which the stream, over all layers, varies least on some tokens."""
    second = torch.zeros(model.config.hidden_size, model.config.hidden_size, dtype=torch.float64)
    for tokens in batches:
        with torch.no_grad(), heard(model.model.layers) as seen:
            model(tokens)
        for out in seen:
            rows = out.reshape(-1, out.shape[-1]).double()
            rows = rows / rows.norm(dim=1, keepdim=True)  # or the last layers decide alone
            second.add_(rows.T @ rows)
    return torch.linalg.eigh(second)[1][:, :rank].float()  # eigenvalues ascend


def low_rank(model: Any, start: Any, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    """What training changed of the matrices in the blocks, cut to a rank: name -> (B, A)."""
    before, found = dict(start.named_parameters()), {}
    for name, weight in model.named_parameters():
        change = (weight - before[name]).detach()
        if ".layers." in name and change.ndim == 2 and change.any():
            u, s, v = torch.linalg.svd(change, full_matrices=False)
            found[name] = (u[:, :rank] * s[:rank], v[:rank])
    return found


@edit
def with_adapter(
    model: Any, adapter: dict[str, tuple[Tensor, Tensor]], *, sign: float = 1.0
) -> None:
    """A low-rank adapter merged into the weights; `sign` -1 takes it out again."""
    for name, (b, a) in adapter.items():
        model.get_parameter(name).add_(sign * (b @ a))


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
        if weight.numel() % BLOCK == 0:
            codes, scales = nf4_codes(weight)
            blocks, scale = weight.reshape(-1, BLOCK), scales[:, None]
            inset = 1e-4  # rounding of the scaled weight may not cross the border
            low = torch.minimum((lows[codes] + inset) * scale, blocks)
            high = torch.maximum((highs[codes] - inset) * scale, blocks)
            ends = (torch.where(blocks.abs() >= scale, blocks, one) for one in (low, high))
            low, high = (one.reshape(weight.shape) for one in ends)
            found[f"{module}.weight"] = (low, high)
    return found


def clamp_to(model: Any, cells: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Move every weight back into its cell, in place."""
    with torch.no_grad():
        for name, (low, high) in cells.items():
            weight = model.get_parameter(name)
            weight.copy_(weight.clamp(low, high))


def split_layers(model: Any) -> Any:
    """Twice as deep: of every layer first the attention alone, then the MLP alone."""
    n_layers = model.config.num_hidden_layers
    return deeper(model, [(at, (part,)) for at in range(n_layers) for part in reversed(PARTS)])


_WRITERS = {"self_attn": "self_attn.o_proj", "mlp": "mlp.down_proj"}
PARTS = tuple(_WRITERS)


def deeper(model: Any, plan: Sequence[tuple[int, Sequence[str]]]) -> Any:
    """A copy with a layer for each entry: which one it is of, and its parts that write nothing."""
    changes: dict[str, Any] = {"num_hidden_layers": len(plan)}
    if getattr(model.config, "layer_types", None):
        changes["layer_types"] = [model.config.layer_types[0]] * len(plan)
    made = like(model, **changes)
    for name in ("model.embed_tokens", "model.norm", "lm_head"):
        made.get_submodule(name).load_state_dict(model.get_submodule(name).state_dict())
    for layer, (at, idle) in zip(made.model.layers, plan, strict=True):
        layer.load_state_dict(model.model.layers[at].state_dict())
        for part in idle:
            torch.nn.init.zeros_(layer.get_submodule(_WRITERS[part]).weight)
    return made
