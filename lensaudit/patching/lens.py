"""The Logit Lens depth: what does the readout of `full` find in each model's residual stream?

    k_m[l] = mean over the span of log p(label), read by full's final norm and unembedding from
             the residual stream of m after layer l
    S1[l] = k_full[l] - k_retain[l],   S2[l] = k_full[l] - k_source[l]

and the score is that of `scores.depth.depth_score`, as for patching. One forward pass per model,
no patched one; over the 150 published models it correlates with UDS at .99. It sees only what can
be read out directly: knowledge that later layers would still turn into an answer counts as gone.
At the last layer, where patching is reading out, both deltas are the same.

Definition: gnueaj/unlearning-depth-score @ fc31639, compute_representation_baselines.py; the last
layer is taken before the final norm there too.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.bridge import TransformerBridge, unembedded
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.audit import Audit, Deltas, cached, cached_sources, loaded
from lensaudit.patching.books import Books
from lensaudit.patching.budget import Room
from lensaudit.patching.layout import Layout, layout_of
from lensaudit.patching.options import PatchOptions
from lensaudit.patching.preflight import check_model
from lensaudit.patching.score_cache import ByToken, ScoreBook
from lensaudit.patching.sources import CachedSource, SourceStreams
from lensaudit.patching.stages import Fetched, Joins, baselines, complete, deltas
from lensaudit.patching.wavefront import Swept
from lensaudit.scores.depth import label_logprob, mean_per_example


def lens_options(options: PatchOptions) -> PatchOptions:
    """The settings that the lens has.

    Raises:
        InputError: one was asked for that it has not.
    """
    plain = replace(options, engine="lens", profile="full")
    for name, only in {"component": "resid", "scope": "span", "last_layer": "resid_post"}.items():
        if getattr(plain, name) != only:
            option = name.replace("_", "-")
            raise InputError(
                f"--{option} {getattr(plain, name)}: the lens reads the residual stream at the "
                f"span and patches nothing; leave --{option} at {only}, or use --score uds"
            )
    return plain


@dataclass(frozen=True)
class Lens:
    """Reads cached streams with the final norm and the unembedding of `full`."""

    full: TransformerBridge
    own: CachedSource
    """What `full` itself cached."""
    room: Room

    @property
    def n_layers(self) -> int:
        """Layers that can be read."""
        return self.own.activations.n_layers

    def fetch(self, bucket: Sequence[Encoded], streams: Sequence[SourceStreams]) -> Fetched:
        """Read the spans from disk."""
        layout = layout_of(bucket, "span")
        own = self.own.packed(bucket, layout)
        others = (own if one == self.own else one.packed(bucket, layout) for one in streams)
        return Fetched(layout, None, [own, *others])

    def score(self, bucket: Sequence[Encoded], fetched: Fetched, joins: Joins) -> Swept:
        """Span log-probs read at the layers in `joins`; the baseline is full's own last layer."""
        own, *stacks = fetched.stacks
        layout = fetched.layout
        found = torch.full(joins.shape, torch.nan)
        by_token = torch.full((*joins.shape, layout.width), torch.nan)
        for source, stack in enumerate(stacks):
            for layer in joins[source].any(0).nonzero().squeeze(1).tolist():
                tokens = self._tokens(stack[layer], layout)
                found[source, :, layer] = _mean(tokens, layout)
                by_token[source, layout.span_example, layer, layout.span_column] = tokens
        baseline = _mean(self._tokens(own[-1], layout), layout)
        return Swept(baseline, found.where(joins, torch.nan), by_token)

    def _tokens(self, stream: Float[Tensor, "token d_model"], layout: Layout) -> Tensor:
        device = next(self.full.original_model.parameters()).device
        scores = [
            label_logprob(unembedded(self.full, part.to(device).unsqueeze(0))[0], labels.to(device))
            for part, labels in zip(
                stream.split(self.room.logit_rows),
                layout.span_label.split(self.room.logit_rows),
                strict=True,
            )
        ]
        return torch.cat(scores).cpu()


def _mean(tokens: Float[Tensor, " token"], layout: Layout) -> Float[Tensor, " batch"]:
    return mean_per_example(tokens, layout.span_example, layout.n_examples)


def read_all(audit: Audit) -> Deltas:
    """Logit Lens deltas of retain and of every source, nats per token; see `lens_options`.

    Raises:
        VerificationError: the preflight failed.
    """
    books = audit.books("lens")
    if books.incomplete():
        _fill(audit, books)
    encoded, layers = audit.encoded, audit.options.layers
    # read: baseline minus k; so the baseline falls out of every difference
    below = {w: deltas(book, encoded, layers) for w, book in books.by_weights.items()}
    own = below[audit.full.weights]
    return Deltas(
        baseline=baselines(books.by_weights[audit.full.weights], encoded),
        s1=below[audit.retain.weights] - own,
        s2={name: below[source.weights] - own for name, source in audit.sources.items()},
        self_patch=own - own,
        engine="lens",
        by_token={
            name: [_by_token(books.by_weights[source.weights], e, layers) for e in encoded]
            for name, source in audit.sources.items()
        },
    )


def _by_token(book: ScoreBook, encoded: Encoded, layers: Sequence[int]) -> ByToken | None:
    """Of one example; None where an earlier version kept means alone."""
    entry = book.entry(encoded)
    if entry is None or not all(layer in entry.by_token for layer in layers):
        return None
    return [entry.by_token[layer] for layer in layers]


def _fill(audit: Audit, books: Books) -> None:
    with ExitStack() as opened:
        caches = cached_sources(audit, books, opened, lambda one: loaded(audit, one))
        full = loaded(audit, audit.full)
        check_model(full, audit.encoded[0], audit.options.dtype)
        positions = audit.options.positions_needed(of_full=True)
        assert positions is not None
        own = CachedSource(
            opened.enter_context(cached(audit, audit.full, positions, lambda: full)), "resid_post"
        )
        if audit.full.weights in books.incomplete():
            caches[audit.full.weights] = own
        room = Room(sizes_on_disk(audit.full, audit.options.dtype), audit.options, sweeps=True)
        complete(
            Lens(full, own, room),
            audit.encoded,
            caches,
            books.by_weights,
            books.wanted(audit.full.weights),
            what="reading",
            progress=audit.progress,
        )
