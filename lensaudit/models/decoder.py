"""The bare weights of a bridged decoder, for code that runs blocks by itself.

Calling a bridged module fires its hooks and costs Python at every one of them. The sweep runs each
block on rows that no forward pass has, so it needs the modules underneath.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lensaudit.models.bridge import TransformerBridge

VERIFIED = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "MistralForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
)
"""Architectures whose sweep is tested equal to the oracle."""

ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings of a position that do not depend on how long the sequence is."""

Packed = Float[Tensor, "token d_model"]


class NotSweepable(Exception):
    """The sweep was not verified on this model; the message says why."""


@dataclass(frozen=True)
class Attention:
    """Projections and constants of one attention layer."""

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    d_head: int
    scaling: float
    softcap: float | None
    window: int | None
    """Sliding window: position p sees the `window` positions up to and including p."""


@dataclass(frozen=True)
class Block:
    """One decoder block: norms, attention, gated MLP; the post-norms are Gemma 2's."""

    ln1: nn.Module
    attention: Attention
    ln1_post: nn.Module | None
    ln2: nn.Module
    gate: nn.Linear
    up: nn.Linear
    act: Any
    down: nn.Linear
    ln2_post: nn.Module | None

    def after_attention(self, resid: Packed, mixed: Float[Tensor, "token d_mixed"]) -> Packed:
        """The stream between attention and MLP, from the heads' concatenated outputs."""
        out = self.attention.o(mixed)
        return resid + (out if self.ln1_post is None else self.ln1_post(out))

    def after_mlp(self, resid_mid: Packed, chunk: int, *, out: Packed | None = None) -> Packed:
        """The block's output, `chunk` tokens at a time; written into `out` if it is given."""
        out = torch.empty_like(resid_mid) if out is None else out
        for target, part in zip(out.split(chunk), resid_mid.split(chunk), strict=True):
            target.copy_(self._after_mlp(part))
        return out

    def _after_mlp(self, resid_mid: Packed) -> Packed:
        inner = self.ln2(resid_mid)
        hidden = self.act(self.gate(inner))
        out = self.down(hidden.mul_(self.up(inner)))
        return resid_mid + (out if self.ln2_post is None else self.ln2_post(out))


@dataclass(frozen=True)
class Decoder:
    """A decoder-only model as bare modules."""

    embed: nn.Module
    rotary: nn.Module
    blocks: tuple[Block, ...]
    ln_final: nn.Module
    unembed: nn.Linear
    logit_softcap: float | None

    def rotation(
        self, n_pos: int, like: Tensor
    ) -> tuple[Float[Tensor, "pos d_head"], Float[Tensor, "pos d_head"]]:
        """Cosine and sine of the rotary embedding at positions 0 to n_pos - 1."""
        positions = torch.arange(n_pos, device=like.device).unsqueeze(0)
        cos, sin = self.rotary(like, positions)
        return cos[0], sin[0]

    def logits(self, resid: Packed) -> Float[Tensor, "token d_vocab"]:
        """Final norm and unembedding."""
        logits = self.unembed(self.ln_final(resid))
        if self.logit_softcap is None:
            return logits
        return logits.div_(self.logit_softcap).tanh_().mul_(self.logit_softcap)


def decoder_of(model: TransformerBridge) -> Decoder:
    """The bare modules under a bridge.

    Raises:
        NotSweepable: an architecture the sweep was not verified on.
    """
    hf: Any = model.original_model
    name = type(hf).__name__
    if name not in VERIFIED:
        raise NotSweepable(f"the sweep is not verified on {name}")
    config = hf.config
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in ROTATIONS:
        raise NotSweepable(f"the sweep is not verified on {rope} rotary embeddings")
    return Decoder(
        embed=_bare(hf.model.embed_tokens),
        rotary=_bare(hf.model.rotary_emb),
        blocks=tuple(_block(_bare(layer), config) for layer in hf.model.layers),
        ln_final=_bare(hf.model.norm),
        unembed=_bare(hf.lm_head),
        logit_softcap=getattr(config, "final_logit_softcapping", None),
    )


def _bare(module: Any) -> Any:
    """The Hugging Face module under a bridge component."""
    while getattr(module, "original_component", None) is not None:
        module = module.original_component
    return module


def _block(layer: Any, config: Any) -> Block:
    # Gemma 2 norms each half's output too, and names the MLP's own norm differently
    post_norms = hasattr(layer, "pre_feedforward_layernorm")
    ln2 = layer.pre_feedforward_layernorm if post_norms else layer.post_attention_layernorm
    mlp = _bare(layer.mlp)
    return Block(
        ln1=_bare(layer.input_layernorm),
        attention=_attention(_bare(layer.self_attn), config),
        ln1_post=_bare(layer.post_attention_layernorm) if post_norms else None,
        ln2=_bare(ln2),
        gate=_bare(mlp.gate_proj),
        up=_bare(mlp.up_proj),
        act=_bare(mlp.act_fn),
        down=_bare(mlp.down_proj),
        ln2_post=_bare(layer.post_feedforward_layernorm) if post_norms else None,
    )


def _attention(attention: Any, config: Any) -> Attention:
    if any(hasattr(attention, extra) for extra in ("q_norm", "k_norm", "sinks")):
        raise NotSweepable("the sweep is not verified on attention with norms or sinks")
    # Mistral keeps the window in its configuration, the others per layer
    default = config.sliding_window if config.model_type == "mistral" else None
    return Attention(
        q=_bare(attention.q_proj),
        k=_bare(attention.k_proj),
        v=_bare(attention.v_proj),
        o=_bare(attention.o_proj),
        d_head=attention.head_dim,
        scaling=attention.scaling,
        softcap=getattr(attention, "attn_logit_softcapping", None),
        window=getattr(attention, "sliding_window", default),
    )
