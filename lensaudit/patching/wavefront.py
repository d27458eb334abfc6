"""The patch engine: every layer's patched score in one sweep over the span positions.

A patch cannot change an earlier position, nothing after the span is read, and a patched run equals
the clean one up to its layer. So rows join one sweep as it passes their layer, attend to the clean
run's prefix, and each weight matrix is read once per batch. Derivation and cost model: the
explanation in `docs/engine.md`. The definition is `patching.oracle`; this is tested equal to it.
"""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.models.bridge import Component
from lensaudit.models.decoder import Attention, Block, Decoder, Packed
from lensaudit.patching.layout import Index, Layout, Schedule, schedule_of
from lensaudit.scores.depth import LabelScore, label_logprob, mean_per_example

MLP_CHUNK = 2048
"""Tokens per MLP call: large enough for full speed, small enough to bound its hidden layer."""

Stack = Float[Tensor, "layer token *d"]


@dataclass(frozen=True)
class CleanRun:
    """What the sweep needs of the unpatched `full`."""

    prefix: Float[Tensor, "layer prefix_token d_model"]
    span: Float[Tensor, "layer token d_model"]
    embedded: Float[Tensor, "token d_model"] | None = None
    """Stream entering block 0 at the span, and `embedded_prefix` at the prefix: only components
    join inside block 0."""
    embedded_prefix: Float[Tensor, "prefix_token d_model"] | None = None

    def to(self, device: torch.device) -> "CleanRun":
        """The same run on another device."""
        moved = (getattr(self, f.name) for f in fields(self))
        return CleanRun(*(None if part is None else part.to(device) for part in moved))

    def entering(self, layer: int) -> tuple[Packed, Float[Tensor, "prefix_token d_model"]]:
        """Stream that enters a block: at the span, at the prefix."""
        if layer > 0:
            return self.span[layer - 1], self.prefix[layer - 1]
        if self.embedded is None or self.embedded_prefix is None:
            raise ValueError("a component patch at layer 0 needs the embedded tokens")
        return self.embedded, self.embedded_prefix


@dataclass(frozen=True)
class Swept:
    """Span log-probs, nats per token."""

    baseline: Float[Tensor, " batch"]
    patched: Float[Tensor, "source batch layer"]
    """NaN for rows that were not asked for."""


@dataclass(frozen=True)
class Sweep:
    """One batch on one device: modules, positions, and the chunk that bounds the logits."""

    decoder: Decoder
    layout: Layout
    logit_rows: int
    """Rows of [rows, d_vocab] logits held at once."""
    component: Component = "resid"
    head: int | None = None
    label_score: LabelScore = label_logprob

    def run(
        self, clean: CleanRun, sources: list[Stack], joins: Bool[Tensor, "source batch layer"]
    ) -> Swept:
        """Patched scores of the rows marked in `joins`; sources are packed spans."""
        plan = schedule_of(self.layout, joins)
        device = clean.span.device
        here = replace(self, layout=self.layout.to(device))
        place, rank = plan.span.to(device), plan.rank.to(device)
        resid = clean.span.new_empty(len(place), clean.span.shape[-1])
        rotation = self.decoder.rotation(self.layout.n_pos, clean.span)
        present = 0
        for layer, block in enumerate(self.decoder.blocks):
            after = plan.count[layer]
            prefix = None
            if present or (self.component != "resid" and after):
                _, entering = clean.entering(layer)
                prefix = Prefix.of(block, entering, here.layout, rotation)
            if present:
                grid = Grid.of(here.layout, place[:present], rank[:present], plan.n_rank[layer - 1])
                mixed = attend(block.attention, block.ln1(resid[:present]), prefix, grid)
                mid = block.after_attention(resid[:present], mixed)
                resid[:present] = block.after_mlp(mid, MLP_CHUNK)
            for source, n_tokens in plan.joining[layer]:
                tokens = place[present : present + n_tokens]
                value = sources[source][layer][tokens].to(resid)
                resid[present : present + n_tokens] = here._joined(
                    block, clean, layer, prefix, value, tokens
                )
                present += n_tokens
        return here._scores(clean, resid, plan, joins)

    def _joined(self, block, clean: CleanRun, layer, prefix, value, tokens: Index) -> Packed:
        """Output of a block of the clean run, with the source's value in its place."""
        if self.component == "resid":
            return self._blend(value, clean.span[layer][tokens], tokens)
        entering, _ = clean.entering(layer)
        everyone = torch.arange(len(entering), device=entering.device)
        grid = Grid.of(self.layout, everyone, torch.zeros_like(everyone), 1)
        mixed = attend(block.attention, block.ln1(entering), prefix, grid)
        return self._inside(block, mixed[tokens], entering[tokens], value, tokens)

    def _inside(self, block: Block, mixed, entering: Packed, value, tokens: Index) -> Packed:
        """The rest of a block after its heads, with one component replaced."""
        if self.component == "head":
            heads = mixed.view(len(tokens), -1, block.attention.d_head).clone()
            heads[:, self.head] = self._blend(value[:, self.head], heads[:, self.head], tokens)
            mixed = heads.flatten(1)
        mid = block.after_attention(entering, mixed)
        if self.component == "attn":
            mid = entering + self._blend(value, mid - entering, tokens)
        if self.component == "resid_mid":
            mid = self._blend(value, mid, tokens)
        after = block.after_mlp(mid, MLP_CHUNK)
        return mid + self._blend(value, after - mid, tokens) if self.component == "mlp" else after

    def _blend(self, value: Tensor, own: Tensor, tokens: Index) -> Tensor:
        """The source where the scope replaces, the clean run elsewhere."""
        return torch.where(self.layout.patched[tokens].unsqueeze(-1), value, own)

    def _scores(self, clean: CleanRun, resid: Packed, plan: Schedule, joins) -> Swept:
        layout, device = self.layout, resid.device
        baseline = mean_per_example(
            self._logprob(clean.span[-1][layout.read], layout.span_label[layout.read]),
            layout.span_example[layout.read],
            layout.n_examples,
        )
        read = plan.read.to(device)
        label = layout.span_label[plan.span.to(device)]
        scores = self._logprob(resid[read], label[read])
        patched = mean_per_example(scores, plan.row[plan.read].to(device), joins.numel())
        return Swept(baseline, patched.view(joins.shape))

    def _logprob(self, resid: Packed, label: Index) -> Float[Tensor, " token"]:
        """Label log-probs, a bounded number of full-vocabulary rows at a time."""
        parts = zip(resid.split(self.logit_rows), label.split(self.logit_rows), strict=True)
        scores = [self.label_score(self.decoder.logits(part), labels) for part, labels in parts]
        return torch.cat(scores) if scores else resid.new_zeros(0, dtype=torch.float32)


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the clean prefix in one block, padded per example."""

    key: Float[Tensor, "batch n_kv prefix d_head"]
    value: Float[Tensor, "batch n_kv prefix d_head"]
    rotation: tuple[Tensor, Tensor]

    @staticmethod
    def of(block: Block, entering: Packed, layout: Layout, rotation) -> "Prefix":
        """From the stream that enters the block: norm, projections, rotary embedding."""
        attention, inner = block.attention, block.ln1(entering)
        key = rotate(split_heads(attention.k(inner), attention), rotation, layout.prefix_pos)
        value = split_heads(attention.v(inner), attention)
        place = layout.prefix_example, layout.prefix_pos
        size = (layout.n_examples, layout.n_prefix, *key.shape[1:])
        padded = [
            part.new_zeros(size).index_put_(place, part).transpose(1, 2) for part in (key, value)
        ]
        return Prefix(padded[0], padded[1], rotation)


@dataclass(frozen=True)
class Grid:
    """Rows as a rectangle [batch, rank, column], for attention alone."""

    size: tuple[int, int, int]
    place: tuple[Index, Index, Index]
    pos: Index
    first: Int[Tensor, " batch"]

    @staticmethod
    def of(layout: Layout, place: Index, rank: Index, n_rank: int) -> "Grid":
        """The smallest rectangle that holds the rows present."""
        return Grid(
            size=(layout.n_examples, n_rank, layout.width),
            place=(layout.span_example[place], rank, layout.span_column[place]),
            pos=layout.span_pos[place],
            first=layout.first,
        )

    def spread(self, packed: Float[Tensor, "token head d_head"]) -> Tensor:
        """Packed tokens on the rectangle; empty places are zero."""
        return packed.new_zeros(*self.size, *packed.shape[1:]).index_put_(self.place, packed)


def split_heads(
    projected: Float[Tensor, "token n_heads*d_head"], attention: Attention
) -> Float[Tensor, "token head d_head"]:
    """The heads of a projection."""
    n_heads = projected.shape[-1] // attention.d_head
    return projected.view(len(projected), n_heads, attention.d_head)


def rotate(x: Float[Tensor, "token head d_head"], rotation, pos: Index) -> Tensor:
    """Rotary position embedding, half-split form, as in transformers' Llama."""
    cos, sin = (part[pos].unsqueeze(1) for part in rotation)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def attend(
    attention: Attention, inner: Packed, prefix: Prefix, grid: Grid
) -> Float[Tensor, "token n_heads*d_head"]:
    """Causal attention of each row over the clean prefix and its own earlier tokens."""
    query, key, value = (
        split_heads(project(inner), attention)
        for project in (attention.q, attention.k, attention.v)
    )
    query = grid.spread(rotate(query, prefix.rotation, grid.pos))
    key, value = grid.spread(rotate(key, prefix.rotation, grid.pos)), grid.spread(value)
    n_kv = key.shape[3]
    # [batch, kv, rank, group, column, d_head]: query heads share a key head in groups
    query = query.unflatten(3, (n_kv, -1)).permute(0, 3, 1, 4, 2, 5)
    own_key, own_value = (x.permute(0, 3, 1, 2, 4).unsqueeze(3) for x in (key, value))
    flat = query.flatten(2, 4)
    before = (flat @ prefix.key.transpose(-1, -2)).view(*query.shape[:-1], prefix.key.shape[2])
    own = query @ own_key.transpose(-1, -2)
    scores = torch.cat((before, own), dim=-1) * attention.scaling
    if attention.softcap is not None:
        scores = attention.softcap * torch.tanh(scores / attention.softcap)
    scores = scores + _mask(attention, prefix, grid, scores)
    weights = scores.softmax(-1, dtype=torch.float32).to(inner.dtype)
    n_before = prefix.key.shape[2]
    mixed = weights[..., :n_before].flatten(2, 4) @ prefix.value
    mixed = mixed.view(query.shape) + weights[..., n_before:] @ own_value
    return mixed.permute(0, 2, 4, 1, 3, 5)[grid.place].flatten(1)


def _mask(
    attention: Attention, prefix: Prefix, grid: Grid, scores: Tensor
) -> Float[Tensor, "batch 1 1 1 column key"]:
    """0 where a key may be seen, -inf elsewhere."""
    n_before, width = prefix.key.shape[2], grid.size[2]
    first = grid.first.view(-1, 1, 1)
    column = torch.arange(width, device=scores.device)
    query_pos = (first + column.view(1, -1, 1)).expand(-1, -1, n_before + width)
    before = torch.arange(n_before, device=scores.device).view(1, 1, -1)
    key_pos = torch.cat((before.expand(len(first), 1, -1), first + column.view(1, 1, -1)), dim=-1)
    seen = key_pos <= query_pos
    seen[..., :n_before] &= before < first
    if attention.window is not None:
        seen &= query_pos - key_pos < attention.window
    mask = torch.zeros(seen.shape, dtype=scores.dtype, device=scores.device)
    return mask.masked_fill_(~seen, float("-inf")).view(len(first), 1, 1, 1, width, -1)
