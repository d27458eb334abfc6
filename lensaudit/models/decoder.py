"""The bare weights of a bridged decoder, for code that runs blocks by itself.

Calling a bridged module fires its hooks and costs Python at every one of them. The sweep runs each
block on rows that no forward pass has, so it needs the modules underneath.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from lensaudit.models.bridge import TransformerBridge, read_out
from lensaudit.models.large.streaming import Streamed, streamed
from lensaudit.models.linear import linear
from lensaudit.models.sizes import ropes_of
from lensaudit.models.wrappers import bare

ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings of a position that do not depend on how long the sequence is."""
OTHER_ATTENTION = ("qk_layernorm", "reorder_and_upcast_attn")
"""Settings of a configuration under which attention is another: StableLM's, Phi's and GPT-2's."""


@dataclass(frozen=True)
class Parts:
    """Where an architecture keeps its parts, and how its block is put together."""

    trunk: str = "model"
    layers: str = "layers"
    ln_final: str = "norm"
    attention: str = "self_attn"
    ln1: str | None = "input_layernorm"
    ln1_post: str | None = None
    ln2: str | None = "post_attention_layernorm"
    """None: the MLP reads what attention reads."""
    ln2_post: str | None = None
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """One name: queries, keys and values are one projection."""
    by_head: bool = False
    """The one projection holds the three of each head side by side."""
    o: str = "o_proj"
    qk_norm: bool = False
    """Queries and keys may be normed."""
    gate: str | None = "gate_proj"
    up: str = "up_proj"
    """Without `gate` there is none; of the same name, both are one projection."""
    act: str = "act_fn"
    down: str = "down_proj"
    parallel: str | bool = False
    """The MLP reads the block's input: always, or where this setting says so."""
    experts: bool = False
    """An MLP is called as it is: it sends each token to some of its experts."""
    window: bool = False
    """Every layer has the configuration's sliding window; else a layer says so itself."""
    neighbours: bool = False
    """Rotary embeddings turn pairs of neighbours, not one half of a head with the other."""
    rope_in_windows: bool = False
    """Layers without a sliding window have no rotary embedding."""


_POST_NORMS = Parts(
    ln1_post="post_attention_layernorm",
    ln2="pre_feedforward_layernorm",
    ln2_post="post_feedforward_layernorm",
)
_QK_NORM = ("q_norm", "k_norm")
_GEMMA3 = replace(_POST_NORMS, qk_norm=True)
_OLMO2 = Parts(
    ln1=None,
    ln1_post="post_attention_layernorm",
    ln2=None,
    ln2_post="post_feedforward_layernorm",
    qk_norm=True,
)
_COHERE = Parts(ln2=None, qk_norm=True, parallel=True, neighbours=True)

FAMILIES: Mapping[str, Parts] = {
    "LlamaForCausalLM": Parts(),
    "Qwen2ForCausalLM": Parts(),
    "MistralForCausalLM": Parts(window=True),
    "GemmaForCausalLM": Parts(),
    "Gemma2ForCausalLM": _POST_NORMS,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, trunk="model.language_model"),
    "Qwen3ForCausalLM": Parts(qk_norm=True),
    "Phi3ForCausalLM": Parts(
        qkv=("qkv_proj",), gate="gate_up_proj", up="gate_up_proj", act="activation_fn", window=True
    ),
    "PhiForCausalLM": Parts(
        ln_final="final_layernorm",
        o="dense",
        ln2=None,
        gate=None,
        up="fc1",
        act="activation_fn",
        down="fc2",
        parallel=True,
    ),
    "GPTNeoXForCausalLM": Parts(
        trunk="gpt_neox",
        ln_final="final_layer_norm",
        attention="attention",
        qkv=("query_key_value",),
        by_head=True,
        o="dense",
        gate=None,
        up="dense_h_to_4h",
        act="act",
        down="dense_4h_to_h",
        parallel="use_parallel_residual",
    ),
    "GPT2LMHeadModel": Parts(
        trunk="transformer",
        layers="h",
        ln_final="ln_f",
        attention="attn",
        ln1="ln_1",
        ln2="ln_2",
        qkv=("c_attn",),
        o="c_proj",
        gate=None,
        up="c_fc",
        act="act",
        down="c_proj",
    ),
    "StableLmForCausalLM": Parts(parallel="use_parallel_residual"),
    "SmolLM3ForCausalLM": Parts(),
    "GraniteForCausalLM": Parts(),
    "OlmoForCausalLM": Parts(),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO2,
    "CohereForCausalLM": _COHERE,
    "Cohere2ForCausalLM": replace(_COHERE, rope_in_windows=True),
    "MixtralForCausalLM": Parts(experts=True, window=True),
    "Qwen2MoeForCausalLM": Parts(experts=True),
    "Qwen3MoeForCausalLM": Parts(experts=True, qk_norm=True),
    "OlmoeForCausalLM": Parts(experts=True, qk_norm=True),
}
"""Architectures whose sweep is tested equal to the oracle."""

Packed = Float[Tensor, "token d_model"]
Projection = Callable[[Tensor], Tensor]
Rotary = str | None
"""A rotary embedding by its name: empty for that of all layers, or a kind of layer; None: none."""


class NotSweepable(Exception):
    """The sweep was not verified on this model; the message says why."""


@dataclass(frozen=True)
class Attention:
    """Projections and constants of one attention layer."""

    q: Projection
    k: Projection
    v: Projection
    o: Projection
    d_head: int
    scaling: float
    softcap: float | None
    window: int | None
    """Sliding window: position p sees the `window` positions up to and including p."""
    q_norm: nn.Module | None = None
    k_norm: nn.Module | None = None
    """Over each head, or over all heads of a token where the norm is so wide."""
    clip: float | None = None
    """Bound of queries, keys and values, after their norms; OLMo's."""
    rotary: Rotary = ""

    def heads(self, inner: Packed) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[token, head, d_head]`, normed and not yet turned."""
        return self._normed(self.q(inner), self.q_norm), self.keys(inner), self.values(inner)

    def keys(self, inner: Packed) -> Float[Tensor, "token kv d_head"]:
        """Normed keys."""
        return self._normed(self.k(inner), self.k_norm)

    def values(self, inner: Packed) -> Float[Tensor, "token kv d_head"]:
        """Values by head."""
        return self._normed(self.v(inner), None)

    def _normed(self, projected: Tensor, norm: nn.Module | None) -> Tensor:
        split = rearrange(projected, "token (kv d_head) -> token kv d_head", d_head=self.d_head)
        if norm is not None:
            weight: Any = norm.weight
            by_head = weight.shape[-1] == self.d_head
            split = norm(split) if by_head else norm(projected).view_as(split)
        return split if self.clip is None else split.clamp(-self.clip, self.clip)


@dataclass(frozen=True)
class Block:
    """One decoder block: norms, attention, MLP; what an architecture lacks is None."""

    ln1: Projection
    attention: Attention
    ln1_post: nn.Module | None
    ln2: Projection
    gate: Projection | None
    up: Projection
    act: Any
    down: Projection
    ln2_post: nn.Module | None
    parallel: bool = False
    """The MLP reads what enters the block, and not what attention leaves."""
    multiplier: float = 1.0
    """Of what each half adds to the stream; Granite's."""

    def after_attention(self, resid: Packed, mixed: Float[Tensor, "token d_mixed"]) -> Packed:
        """The stream between attention and MLP, from the heads' concatenated outputs."""
        return resid + self._added(self.attention.o(mixed), self.ln1_post)

    def after_mlp(
        self, resid_mid: Packed, entering: Packed, chunk: int, *, out: Packed | None = None
    ) -> Packed:
        """The block's output, `chunk` tokens at a time; written into `out` if it is given.

        `entering` is the block's input, read where the MLP stands beside attention; it may be
        `out`.
        """
        out = torch.empty_like(resid_mid) if out is None else out
        read = entering if self.parallel else resid_mid
        parts = (one.split(chunk) for one in (out, resid_mid, read))
        for target, mid, before in zip(*parts, strict=True):
            target.copy_(mid + self._added(self._mlp(self.ln2(before)), self.ln2_post))
        return out

    def _mlp(self, inner: Packed) -> Packed:
        if self.gate is None:
            return self.down(self.act(self.up(inner)))
        return self.down(self.act(self.gate(inner)).mul_(self.up(inner)))

    def _added(self, part: Packed, norm: nn.Module | None) -> Packed:
        part = part if norm is None else norm(part)
        return part if self.multiplier == 1.0 else part * self.multiplier


@dataclass(frozen=True)
class Decoder:
    """A decoder-only model as bare modules."""

    rotary: nn.Module | None
    blocks: tuple[Block, ...]
    ln_final: nn.Module
    unembed: nn.Linear
    config: Any
    """Of the text model."""
    neighbours: bool = False
    """What the rotary embeddings turn: see `Parts`."""
    streamed: Streamed | None = None
    """What brings the blocks of a model that does not fit."""

    def ready(self, layer: int) -> Block:
        """A block with its weights in their place."""
        if self.streamed is not None:
            self.streamed.bring(layer)
        return self.blocks[layer]

    def rotations(
        self, n_pos: int, like: Tensor
    ) -> Mapping[Rotary, tuple[Float[Tensor, "pos d_turned"], Float[Tensor, "pos d_turned"]]]:
        """Cosine and sine of each rotary embedding at positions 0 to n_pos - 1."""
        positions = torch.arange(n_pos, device=like.device).unsqueeze(0)
        rotary: Any = self.rotary
        names = {block.attention.rotary for block in self.blocks} - {None}
        turned = {name: rotary(like, positions, *filter(None, (name,))) for name in names}
        return {name: (cos[0], sin[0]) for name, (cos, sin) in turned.items()}

    def logits(self, resid: Packed) -> Float[Tensor, "token d_vocab"]:
        """Final norm and unembedding."""
        return read_out(self.unembed(self.ln_final(resid)), self.config)


def unverified(architecture: str, config: Any) -> str | None:
    """Why a model of this configuration is not swept; None: it may be."""
    config = config.get_text_config()
    kinds = [rope.get("rope_type", "default") for rope in ropes_of(config)]
    odd = [
        *([] if architecture in FAMILIES else [architecture]),
        *(f"{kind} rotary embeddings" for kind in kinds if kind not in ROTATIONS),
        *(f"attention with {one}" for one in OTHER_ATTENTION if getattr(config, one, False)),
    ]
    return f"the sweep is not verified on {odd[0]}" if odd else None


def decoder_of(model: TransformerBridge) -> Decoder:
    """The bare modules under a bridge.

    Raises:
        NotSweepable: an architecture or a setting that the sweep was not verified on.
    """
    hf: Any = model.original_model
    name = type(hf).__name__
    if why := unverified(name, hf.config):
        raise NotSweepable(why)
    parts, config = FAMILIES[name], hf.config.get_text_config()
    trunk = attrgetter(parts.trunk)(hf)
    layers = enumerate(getattr(trunk, parts.layers))
    return Decoder(
        rotary=bare(getattr(trunk, "rotary_emb", None)),
        blocks=tuple(_block(bare(layer), at, parts, config) for at, layer in layers),
        ln_final=bare(getattr(trunk, parts.ln_final)),
        unembed=bare(hf.lm_head),
        config=config,
        neighbours=parts.neighbours,
        streamed=streamed(hf),
    )


def _part(owner: Any, name: str | None) -> Any:
    return bare(getattr(owner, name)) if name else None


def _block(layer: Any, at: int, parts: Parts, config: Any) -> Block:
    said = parts.parallel
    parallel = bool(getattr(config, said)) if isinstance(said, str) else said
    ln1 = _part(layer, parts.ln1) or _unchanged
    # parallel blocks without a norm of their own for the MLP share attention's
    ln2 = _part(layer, parts.ln2)
    if ln2 is None:
        ln2 = ln1 if parallel or parts.ln2 is None else _unchanged
    gate, up, act, down = _mlp(bare(layer.mlp), parts)
    return Block(
        ln1=ln1,
        attention=_attention(_part(layer, parts.attention), at, parts, config),
        ln1_post=_part(layer, parts.ln1_post),
        ln2=ln2,
        gate=gate,
        up=up,
        act=act,
        down=down,
        ln2_post=_part(layer, parts.ln2_post),
        parallel=parallel,
        multiplier=getattr(config, "residual_multiplier", None) or 1.0,
    )


def _unchanged(inner: Tensor) -> Tensor:
    return inner


def _mlp(mlp: Any, parts: Parts) -> tuple[Projection | None, Projection, Projection, Projection]:
    """Gate, up, activation and down."""
    if parts.experts:
        return None, lambda inner: mlp(inner.unsqueeze(0)).squeeze(0), _unchanged, _unchanged
    act, up, down = (_part(mlp, name) for name in (parts.act, parts.up, parts.down))
    if parts.gate == parts.up:
        gate, up = _sliced(up, [up.out_features // 2] * 2)
        return gate, up, act, down
    return _part(mlp, parts.gate), up, act, down


def _attention(attention: Any, at: int, parts: Parts, config: Any) -> Attention:
    odd = ("sinks", *(() if parts.qk_norm else _QK_NORM))
    if found := [name for name in odd if hasattr(attention, name)]:
        raise NotSweepable(f"the sweep is not verified on attention with {found[0]}")
    n_heads = config.num_attention_heads
    d_head = getattr(attention, "head_dim", None) or config.hidden_size // n_heads
    q, k, v = _projections(attention, parts, n_heads, d_head, config)
    q_norm, k_norm = (bare(getattr(attention, name, None)) for name in _QK_NORM)
    default = config.sliding_window if parts.window else None
    window = getattr(attention, "sliding_window", default)
    return Attention(
        q=q,
        k=k,
        v=v,
        o=_part(attention, parts.o),
        d_head=d_head,
        scaling=attention.scaling,
        softcap=getattr(attention, "attn_logit_softcapping", None),
        window=window,
        q_norm=q_norm,
        k_norm=k_norm,
        clip=getattr(config, "clip_qkv", None),
        rotary=_rotary(attention, at, window, parts, config),
    )


def _rotary(attention: Any, at: int, window: int | None, parts: Parts, config: Any) -> Rotary:
    """The name of the rotary embedding of a layer; None where it turns nothing."""
    turned = window is not None or not parts.rope_in_windows
    ropes = getattr(config, "rope_parameters", None)
    if not (turned and ropes and getattr(attention, "use_rope", True)):
        return None
    return "" if "rope_type" in ropes else config.layer_types[at]


def _projections(
    attention: Any, parts: Parts, n_heads: int, d_head: int, config: Any
) -> list[Projection]:
    if len(parts.qkv) == 3:
        return [_part(attention, name) for name in parts.qkv]
    joint = _part(attention, parts.qkv[0])
    n_kv = getattr(config, "num_key_value_heads", None) or n_heads
    if parts.by_head:
        return [partial(_of_heads, joint, which, d_head) for which in range(3)]
    return _sliced(joint, [n_heads * d_head, n_kv * d_head, n_kv * d_head])


def _sliced(joint: Any, sizes: Sequence[int]) -> list[Projection]:
    """Several projections in one: each is a slice of its weights, which are not copied."""
    edges = pairwise(accumulate(sizes, initial=0))
    return [partial(_slice_of, joint, slice(start, end)) for start, end in edges]


def _slice_of(joint: Any, rows: slice, inner: Tensor) -> Tensor:
    # Conv1D keeps [in, out]
    weight = joint.weight if isinstance(joint, nn.Linear) else joint.weight.T
    return linear(inner, weight[rows], None if joint.bias is None else joint.bias[rows])


def _of_heads(joint: Any, which: int, d_head: int, inner: Tensor) -> Tensor:
    """Queries, keys or values where each head's three stand side by side."""
    parts = "(head part d_head) ... -> part (head d_head) ..."
    weight, *bias = (
        rearrange(one, parts, part=3, d_head=d_head)[which]
        for one in (joint.weight, joint.bias)
        if one is not None
    )
    return linear(inner, weight, *bias or (None,))
