"""Load a model as TransformerLens' bridge, read its residuals, intervene on them."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.errors import InputError, WorkError
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.models.conditions import EAGER
from lensaudit.models.large.streaming import streamed
from lensaudit.models.wrappers import of_user
from lensaudit.once import holding, read_once
from lensaudit.types import Intervention, Logits, Resid, Tokens

if TYPE_CHECKING:
    from lensaudit.models.booting import TransformerBridge as TransformerBridge
else:  # `booting` imports TransformerLens, which takes seconds
    TransformerBridge = Any

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Component = Literal["resid", "attn", "mlp", "resid_mid", "head", "resid_pre"]
"""What is replaced: the block's output; attention's or the MLP's contribution to the stream; the
stream between them; one attention head's output before the output projection; the block's input."""


_OpenedModels = dict[tuple[str, str, str, torch.dtype], TransformerBridge]
_OPENED: ContextVar[_OpenedModels | None] = ContextVar("opened", default=None)
OPENED_BYTES = 2**30
"""Weights that `opened_once` holds at most."""


@contextlib.contextmanager
def opened_once() -> Iterator[None]:
    """While the block lasts, `load` gives a model that was loaded in it again; rows are read once.

    For what asks the same models several things, one after the other, and edits none. On the
    processor alone, and no more than `OPENED_BYTES`: the others are loaded each time.
    """
    with holding(_OPENED, {}), read_once():
        yield


def opened_models() -> _OpenedModels:
    """What `opened_once` holds: a session counts it and lets it go with its own models."""
    return _OPENED.get() or {}


def n_bytes(model: TransformerBridge) -> int:
    """What its weights take."""
    return sum(p.numel() * p.element_size() for p in model.original_model.parameters())


def load(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    spread: int | None = None,
) -> TransformerBridge:
    """The model of `checkpoint` in eval mode: safetensors only, no remote code, no weight folding.

    Args:
        checkpoint: an opened checkpoint; nothing is fetched here.
        dtype: of weights and activations.
        device: `cpu`, `cuda`, `cuda:1` …
        spread: see `load_causal`.

    Raises:
        InputError: the device is absent, or the folder is not a causal language model.
    """
    opened = _OPENED.get() if device == "cpu" else None
    key = (checkpoint.weights, checkpoint.tokenizer, str(checkpoint.folder), dtype)
    if opened and key in opened:
        return opened[key]
    model = load_causal(checkpoint, dtype=dtype, device=device, attn=EAGER, spread=spread)
    bridge = bridge_from(model, load_tokenizer(checkpoint))
    if (
        opened is not None
        and not streamed(model)
        and sum(map(n_bytes, (bridge, *opened.values()))) <= OPENED_BYTES
    ):
        opened[key] = bridge
    return bridge


def bridge_from(model: Any, tokenizer: Any) -> TransformerBridge:
    """A bridge on a Hugging Face causal model that is already in memory.

    The model is put in eval mode, and stays in it: to train on, call `model.train()` afterwards.
    The tokenizer is taken as it is; TransformerLens gives it a padding token where it has none.
    """
    from lensaudit.models.booting import booted  # TransformerLens takes seconds to import

    return booted(model, tokenizer)


def n_layers(model: TransformerBridge) -> int:
    """Number of decoder blocks."""
    return len(model.blocks)


def device_of(model: TransformerBridge) -> torch.device:
    """Device of the model's weights."""
    return next(model.original_model.parameters()).device


def check_layers(model: TransformerBridge, layers: Iterable[int]) -> None:
    """Refuse a layer that the model lacks, and what is no whole number.

    Raises:
        InputError: names the first.
    """
    if odd := [
        layer
        for layer in layers
        if isinstance(layer, bool)
        or not hasattr(layer, "__index__")
        or layer not in range(n_layers(model))
    ]:
        raise InputError(f"layer {odd[0]!r}: the model has layers 0 to {n_layers(model) - 1}")


def hook_name(layer: int, component: Component = "resid") -> str:
    """Hook point that carries a component of a layer.

    `resid_mid` is read here but cannot be replaced here: the skip connection leaves the stream
    before this point, see `intervening`.

    Raises:
        InputError: there is no such component.
    """
    names = {
        "resid": "hook_out",
        "attn": "hook_attn_out",
        "mlp": "hook_mlp_out",
        "resid_mid": "hook_resid_mid",
        "head": "attn.hook_z",
        "resid_pre": "hook_in",
    }
    if component not in names:
        raise InputError(f"component {component}: wanted one of {', '.join(names)}")
    return f"blocks.{layer}.{names[component]}"


def _check_hooks(model: TransformerBridge, names: Iterable[str]) -> None:
    """Refuse a hook point that the architecture lacks."""
    known = model.hook_dict
    if missing := [name for name in names if name not in known]:
        raise InputError(
            f"this architecture has no hook {missing[0]}; "
            + ("choose another --component" if "blocks" in missing[0] else "it cannot be cached")
        )


def captured(
    model: TransformerBridge, tokens: Tokens, names: list[str], **options: Any
) -> dict[str, Tensor]:
    """Activations at the named hook points in one forward pass without gradients.

    Raises:
        InputError: the architecture has no such hook point.
    """
    _check_hooks(model, names)
    with torch.no_grad():
        _, cache = model.run_with_cache(
            tokens, return_cache_object=False, names_filter=names, logits_to_keep=1, **options
        )
    return {name: cache[name] for name in names}


@contextlib.contextmanager
def passing(model: TransformerBridge, name: str) -> Iterator[list[Tensor]]:
    """What passes a hook point while the block lasts, pass after pass."""
    seen: list[Tensor] = []
    with model.hooks(fwd_hooks=[(name, lambda value, hook: seen.append(value))]):
        yield seen


def residuals(
    model: TransformerBridge, tokens: Tokens, *, component: Component = "resid"
) -> tuple[Float[Tensor, "batch layer pos *d"], Resid]:
    """A component of every layer, and the final norm's output, in one forward pass.

    Logits are computed at the last position only.

    Raises:
        InputError: the stream has another type than the weights, or no final norm at every token.
    """
    names = [hook_name(layer, component) for layer in range(n_layers(model))]
    cache = captured(model, tokens, [*names, "ln_final.hook_out"])
    stack, last = torch.stack([cache[name] for name in names], dim=1), cache["ln_final.hook_out"]
    kind, dtype = type(model.original_model).__name__, next(model.original_model.parameters()).dtype
    if last.shape[1] != tokens.shape[1]:
        raise InputError(f"{kind}: its final norm reads the last token alone; it cannot be cached")
    if stack.dtype != dtype:
        raise InputError(
            f"{kind}: its stream is {stack.dtype}, its weights are {dtype}; use --dtype float32"
        )
    return stack, last


def residuals_by_block(
    model: TransformerBridge,
    batches: Sequence[Int[Tensor, "_ _"]],
    streams: tuple[Sequence[Float[Tensor, "_ _ d_model"]], Sequence[Float[Tensor, "_ _ d_model"]]],
    *,
    component: Component = "resid",
    n_done: int = 0,
) -> Iterator[tuple[int, int, Float[Tensor, "batch pos *d"]]]:
    """Run `residuals` for every batch, a block over all batches before the next one.

    Gives a layer, a batch and what is read there; after the last layer, as one more, the final
    norm's output.

    Args:
        model: of an architecture whose blocks are called alike whatever runs through them; those
            of `models.decoder` are.
        batches: tokens on the model's device.
        streams: room for the stream of each batch before a block and after it, on any device; the
            two take turns, and what enters a block stays until the next one has left.
        component: what is read.
        n_done: blocks that ran before, and left their streams in `streams[n_done % 2]`.
    """
    with torch.no_grad():
        calls: list[list[_Call]] = []
        for tokens, stream in zip(batches, streams[0], strict=True):
            entering, with_what = _calls(model, tokens)
            calls.append(with_what)
            if not n_done:
                stream.copy_(entering)
        device = device_of(model)
        for layer, block in islice(enumerate(model.blocks), n_done, None):
            with passing(model, hook_name(layer, component)) as read:
                for at, stream in enumerate(streams[layer % 2]):
                    args, options = _instead(*calls[at][layer], stream.to(device))
                    left = block(*args, **options)
                    streams[1 - layer % 2][at].copy_(left[0] if isinstance(left, tuple) else left)
                    yield layer, at, read.pop()
        for at, stream in enumerate(streams[n_layers(model) % 2]):
            yield n_layers(model), at, model.ln_final(stream.to(device))


_Call = tuple[tuple[Any, ...], dict[str, Any]]


def _calls(model: TransformerBridge, tokens: Tokens) -> tuple[Resid, list[_Call]]:
    """What enters the first block, and with what else each is called; none of them is run."""
    from lensaudit.models.booting import whole_pass

    calls, entering = list[_Call](), list[Resid]()

    def noted(*args: Any, **options: Any) -> Tensor:
        entering[:] = [args[0] if args else options["hidden_states"]]
        calls.append(_instead(args, options, entering[0].new_empty(0, 0, 0)))
        return entering[0]

    blocks: list[Any] = list(model.blocks)
    for block in blocks:
        object.__setattr__(block, "forward", noted)  # its own would set it on what it wraps
    try:
        whole_pass(model, tokens)
    finally:
        for block in blocks:
            object.__delattr__(block, "forward")
    return entering[0], calls


def _instead(args: tuple[Any, ...], options: dict[str, Any], stream: Resid) -> _Call:
    return ((stream, *args[1:]), options) if args else ((), {**options, "hidden_states": stream})


def embedded(model: TransformerBridge, tokens: Tokens) -> Resid:
    """The stream that enters block 0, as the model itself scales it."""
    return captured(model, tokens, ["blocks.0.hook_in"], stop_at_layer=1)["blocks.0.hook_in"]


def logits_of(model: TransformerBridge, tokens: Tokens) -> Logits:
    """Logits at every position, no gradients."""
    with torch.no_grad():
        return model(tokens, return_type="logits")


def cached_logits(
    model: TransformerBridge,
    tokens: Tokens,
    *,
    mask: Int[Tensor, "batch cached_and_pos"] | Float[Tensor, "batch 1 pos cached_and_pos"],
    positions: Tokens,
    past: Any | None = None,
    n_logits: int,
) -> tuple[Float[Tensor, "batch kept d_vocab"], Any]:
    """Logits after the last `n_logits` tokens; keys and values of all so far (`past` grown).

    Hooks fire. `mask` is 1 at real tokens, 0 at padding; one of four axes is added to the scores of
    attention instead. `positions` are those of `tokens`.

    Raises:
        InputError: the model keeps another state than keys and values, or none (Mamba).
    """
    with torch.no_grad():
        logits, grown = model(
            tokens,
            return_type="logits_and_cache",
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=n_logits,
        )
    # of a layer with another state, as a convolution's, rows cannot be chosen
    if grown is None or any(hasattr(one, "conv_states") for one in grown.layers):
        kept = "no keys and values" if grown is None else "more than keys and values"
        raise InputError(
            f"{type(model.original_model).__name__} keeps {kept}, so lensaudit cannot generate "
            "with it; `lensaudit patch --ask none` asks it nothing"
        )
    return logits, grown


def read_out(logits: Float[Tensor, "*at d_vocab"], config: Any) -> Float[Tensor, "*at d_vocab"]:
    """Logits from an unembedding's output: Cohere multiplies it, Granite divides, Gemma caps."""
    config = config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    softcap = getattr(config, "final_logit_softcapping", None)
    logits = logits if scale == 1.0 else logits * scale
    return logits if not softcap else softcap * torch.tanh(logits / softcap)


def unembedded(model: TransformerBridge, resid: Resid) -> Logits:
    """What the model's own final norm and unembedding read from a residual stream."""
    with torch.no_grad():
        logits = model.unembed(model.ln_final(resid))
    return read_out(logits, model.original_model.config)


@contextlib.contextmanager
def intervening(
    model: TransformerBridge,
    interventions: Mapping[int, Intervention],
    *,
    component: Component = "resid",
) -> Iterator[TransformerBridge]:
    """Install one pure edit per layer; removed on exit and on error.

    Every edit of a stream is installed here; `models.large.streaming` and the gym hook only to
    bring weights and to plant. For `component="head"` an intervention sees
    `[batch, pos, n_heads, d_head]`, else `[batch, pos, d_model]`.

    Raises:
        InputError: a layer the model lacks, or a hook point its architecture lacks there; in the
            pass, an edit that returns no stream of the shape and type of its own.
    """
    check_layers(model, interventions)
    hooks = [
        hook for layer, edit in interventions.items() for hook in _hooks(layer, edit, component)
    ]
    _check_hooks(model, [name for name, _ in hooks])
    # entered before `try`, left in `finally`: TransformerLens removes only what it added
    with model.hooks(fwd_hooks=hooks):
        yield model


def _hooks(layer: int, intervention: Intervention, component: Component) -> list[tuple[str, Any]]:
    def edited(value: Tensor) -> Tensor:
        made: Any = intervention(value)
        if not isinstance(made, Tensor) or (made.shape, made.dtype) != (value.shape, value.dtype):
            raise InputError(
                f"the intervention at layer {layer} returned "
                + (
                    f"{made.dtype} of {tuple(made.shape)}"
                    if isinstance(made, Tensor)
                    else f"{made!r:.60}"
                )
                + f"; wanted the stream, edited: {value.dtype} of {tuple(value.shape)}"
            )
        return made

    if component != "resid_mid":
        return [(hook_name(layer, component), lambda value, hook: edited(value))]
    entering: list[Resid] = []
    # hook_resid_mid is the MLP norm's input, past the fork of the skip connection: writing there
    # would leave the stream as it was. So attention's contribution is set to what is missing.
    return [
        (f"blocks.{layer}.hook_in", lambda value, hook: entering.append(value)),
        (hook_name(layer, "attn"), lambda v, hook: edited(entering[-1] + v) - entering.pop()),
    ]


def user_hooks(model: TransformerBridge) -> list[str]:
    """Names of hook points, and of modules underneath, that carry a hook of the user's."""
    own = vars(model).get("_own_hooks", {})
    return sorted(
        {
            one.name or "?"
            for one in model.hook_points()
            if len(one.fwd_hooks + one.bwd_hooks) > own.get(one.name, 0)
        }
        | {
            name or "?"
            for name, one in model.original_model.named_modules()
            if of_user(one._forward_hooks | one._forward_pre_hooks)
        }
    )


def check_finite(
    stack: Float[Tensor, "batch layer pos *d"], idx: tuple[int, ...], name: str
) -> None:
    """Refuse NaN and infinite activations: every later number would be one.

    Raises:
        WorkError: names the first example concerned.
    """
    if bad := (~stack.isfinite().flatten(1).all(1)).nonzero().flatten().tolist():
        raise WorkError(
            f"{name}: activations of example {idx[bad[0]]} are not finite; "
            "try --dtype float32, or check the checkpoint"
        )
