"""The patch engine: every layer's patched score in one sweep over the span positions.

A patch cannot change an earlier position, nothing after the span is read, and a patched run equals
the clean one up to its layer. So rows join one sweep as it passes their layer, attend to the clean
run's prefix, and each weight matrix is read once per batch. Derivation and cost model: the
explanation in `docs/engine.md`. The definition is `patching.oracle`; this is tested equal to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.models.bridge import Component
from lensaudit.models.decoder import Block, Decoder, Packed
from lensaudit.patching.layout import (
    Index,
    Layout,
    Prefix,
    Rotation,
    RowGrid,
    Schedule,
    attend,
    prefix_of,
    schedule_of,
    sight_of,
)
from lensaudit.scores.depth import LabelScore, label_logprob, mean_per_example
from lensaudit.types import Movable

Stack = Float[Tensor, "layer token *d"]


@dataclass(frozen=True)
class CleanRun(Movable):
    """What the sweep needs of the unpatched `full`."""

    prefix: Float[Tensor, "layer prefix_token d_model"]
    span: Float[Tensor, "layer token d_model"]
    embedded: Float[Tensor, "token d_model"] | None = None
    """Stream entering block 0 at the span, and `embedded_prefix` at the prefix: only components
    join inside block 0."""
    embedded_prefix: Float[Tensor, "prefix_token d_model"] | None = None

    def entering(self, layer: int, *, prefix: bool = False) -> Packed:
        """Stream that enters a block, at the span or at the prefix."""
        resid, first = (self.prefix, self.embedded_prefix) if prefix else (self.span, self.embedded)
        if layer > 0:
            return resid[layer - 1]
        assert first is not None  # of components alone rows join inside block 0
        return first


@dataclass(frozen=True)
class Swept:
    """Span log-probs, nats per token."""

    baseline: Float[Tensor, " batch"]
    patched: Float[Tensor, "source batch layer"]
    """NaN for rows that were not asked for."""
    by_token: Float[Tensor, "source batch layer token"] | None = None
    """Of every token of a span, nats, where streams were read and not patched in; NaN beyond it."""


def sweep(
    decoder: Decoder,
    layout: Layout,
    clean: CleanRun,
    sources: Sequence[Stack],
    joins: Bool[Tensor, "source batch layer"],
    *,
    logit_rows: int,
    mlp_rows: int = 2048,
    component: Component = "resid",
    head: int | None = None,
    label_score: LabelScore = label_logprob,
) -> Swept:
    """Patched scores of the rows marked in `joins`, one batch on one device.

    Args:
        decoder: modules of `full`.
        layout: positions.
        clean: the unpatched run of `full`.
        sources: packed spans.
        joins: the rows that are scored.
        logit_rows: rows of [rows, d_vocab] logits held at once.
        mlp_rows: tokens per MLP call: enough for full speed, few enough to bound its hidden layer.
        component: what is replaced.
        head: which, of heads.
        label_score: what is read of a label's logits.
    """
    same, moved = torch.zeros_like(joins), layout.to(clean.span.device)
    if component == "resid":
        same = unchanged(clean, sources, moved).cpu() & joins
    plan = schedule_of(layout, joins & ~same)
    here = _Moving(decoder, clean, plan, moved, mlp_rows, component, head)
    for layer in range(len(decoder.blocks)):
        here.advance(layer)
        here.join(layer, sources)
    swept = here.scores(joins, logit_rows, label_score)
    own = swept.baseline.unsqueeze(-1).expand(joins.shape)
    return replace(swept, patched=torch.where(same.to(own.device), own, swept.patched))


def unchanged(
    clean: CleanRun, sources: Sequence[Stack], layout: Layout
) -> Bool[Tensor, "source batch layer"]:
    """Rows whose source is the clean run itself wherever it is patched in: they need no sweep.

    So are all rows of `full` patched into itself, and those of layers below any that was trained.
    """
    counts = []
    for source in sources:
        differs = (source.to(clean.span) != clean.span).any(-1) & layout.patched
        count = differs.new_zeros(len(differs), layout.n_examples, dtype=torch.int32)
        counts.append(count.index_add_(1, layout.span_example, differs.int()))
    return torch.stack(counts).transpose(1, 2) == 0


class _Moving:
    """A sweep under way: `resid[:present]` holds the rows that have joined."""

    def __init__(
        self,
        decoder: Decoder,
        clean: CleanRun,
        plan: Schedule,
        layout: Layout,
        mlp_rows: int,
        component: Component,
        head: int | None,
    ):
        self.decoder, self.clean, self.plan, self.layout = decoder, clean, plan, layout
        self.mlp_rows, self.component, self.head = mlp_rows, component, head
        tables = decoder.rotations(layout.n_pos, clean.span).items()
        # by kind of rotary embedding; layers without one turn nothing
        self.span_rotations, self.prefix_rotations = (
            {name: Rotation.at(*one, pos, neighbours=decoder.neighbours) for name, one in tables}
            for pos in (layout.span_pos, layout.prefix_pos)
        )
        windows = {block.attention.window for block in decoder.blocks}
        self.sights = {window: sight_of(layout, window, clean.span) for window in windows}
        self.place, rank = plan.span.to(clean.span.device), plan.rank.to(clean.span.device)
        self.rows = RowGrid.of(layout, self.span_rotations, self.place, rank, plan.n_rank[-1])
        self.resid = clean.span.new_empty(len(self.place), clean.span.shape[-1])
        self.prefix: Prefix | None = None
        self.present = 0

    def advance(self, layer: int) -> None:
        """Run a block on the rows present."""
        block, n_tokens = self.decoder.ready(layer), self.present
        inside = self.component != "resid" and self.plan.count[layer] > n_tokens
        if n_tokens or inside:
            entering = self.clean.entering(layer, prefix=True)
            self.prefix = prefix_of(block, entering, self.layout, self.prefix_rotations)
        if n_tokens:
            rows = self.rows.head(n_tokens, self.plan.n_rank[layer - 1])
            resid = self.resid[:n_tokens]
            mid = block.after_attention(resid, self._attend(block, resid, rows))
            block.after_mlp(mid, resid, self.mlp_rows, out=resid)

    def _attend(self, block: Block, resid: Packed, rows: RowGrid) -> Tensor:
        assert self.prefix is not None
        sight = self.sights[block.attention.window]
        return attend(block.attention, block.ln1(resid), self.prefix, rows, sight)

    def join(self, layer: int, sources: Sequence[Stack]) -> None:
        """Append the rows that are patched at this layer."""
        for source, n_tokens in self.plan.joining[layer]:
            if n_tokens:
                after = self.present + n_tokens
                tokens = self.place[self.present : after]
                value = sources[source][layer][tokens].to(self.resid)
                self.resid[self.present : after] = self._joined(layer, value, tokens)
                self.present = after

    def _joined(self, layer: int, value: Tensor, tokens: Index) -> Packed:
        """Output of a block of the clean run, with the source's value in its place."""
        if self.component == "resid":
            whole, own = self.layout.all_patched, self.clean.span[layer]
            return value if whole else self._blended(value, own[tokens], tokens)
        block, entering = self.decoder.ready(layer), self.clean.entering(layer)
        everyone = torch.arange(len(entering), device=entering.device)
        first = torch.zeros_like(everyone)
        clean_row = RowGrid.of(self.layout, self.span_rotations, everyone, first, 1)
        mixed = self._attend(block, entering, clean_row)[tokens]
        # the rest of a block after its heads, with one component replaced
        component, head, entering = self.component, self.head, entering[tokens]
        if component == "head":
            d_head = block.attention.d_head
            heads = rearrange(mixed, "token (head d_head) -> token head d_head", d_head=d_head)
            heads = heads.clone()
            heads[:, head] = self._blended(value[:, head], heads[:, head], tokens)
            mixed = rearrange(heads, "token head d_head -> token (head d_head)")
        mid = block.after_attention(entering, mixed)
        if component == "attn":
            mid = entering + self._blended(value, mid - entering, tokens)
        if component == "resid_mid":
            mid = self._blended(value, mid, tokens)
        after = block.after_mlp(mid, entering, self.mlp_rows)
        return mid + self._blended(value, after - mid, tokens) if component == "mlp" else after

    def _blended(self, value: Tensor, own: Tensor, tokens: Index) -> Tensor:
        """The source where the scope replaces, the clean run elsewhere."""
        return torch.where(self.layout.patched[tokens].unsqueeze(-1), value, own)

    def scores(
        self, joins: Bool[Tensor, "source batch layer"], at_once: int, label_score: LabelScore
    ) -> Swept:
        """Read what the span's labels get from every row, and from the clean run.

        `at_once`: rows of full-vocabulary logits.
        """
        layout, device = self.layout, self.resid.device

        def read(
            resid: Packed, tokens: Int[Tensor, " read"], label: Int[Tensor, " token"]
        ) -> Float[Tensor, " read"]:
            scores = [
                label_score(self.decoder.logits(resid[rows]), label[rows])
                for rows in tokens.split(at_once)
            ]
            return torch.cat(scores) if scores else resid.new_zeros(0, dtype=torch.float32)

        own, of = layout.read.nonzero().squeeze(1), self.plan.row[self.plan.read].to(device)
        clean = read(self.clean.span[-1], own, layout.span_label)
        baseline = mean_per_example(clean, layout.span_example[own], layout.n_examples)
        scores = read(self.resid, self.plan.read.to(device), layout.span_label[self.place])
        patched = mean_per_example(scores, of, joins.numel())
        return Swept(baseline, patched.view(joins.shape))
