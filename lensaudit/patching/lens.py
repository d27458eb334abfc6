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
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.bridge import TransformerBridge, unembedded
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.budget import Room
from lensaudit.patching.layout import Layout, layout_of
from lensaudit.patching.preflight import check_model
from lensaudit.patching.score_cache import ByToken, example_hash
from lensaudit.patching.scoring import Deltas, Scored, scored
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource, SourceStreams
from lensaudit.patching.stages import Fetched, Joins, baselines, complete
from lensaudit.patching.wavefront import Swept
from lensaudit.scores.depth import label_logprob, mean_per_example


def as_lens(session: Session) -> Session:
    """The session with the settings that the lens has.

    Raises:
        InputError: one was asked for that it has not.
    """
    for name, only in {"component": "resid", "scope": "span", "last_layer": "resid_post"}.items():
        if (asked := getattr(session.options, name)) != only:
            option = name.replace("_", "-")
            raise InputError(
                f"--{option} {asked}: the lens reads the residual stream at the span and patches "
                f"nothing; leave --{option} at {only}, or use --score uds"
            )
    return session.under(engine="lens", profile="full")


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


def score_lens(session: Session) -> Scored:
    """Logit Lens depth of every source, and of the two anchors."""
    with as_lens(session) as reading:
        return scored(reading, read_all(reading))


def read_all(session: Session) -> Deltas:
    """Logit Lens deltas of retain and of every source, nats per token; see `lens_options`.

    Raises:
        VerificationError: the preflight failed.
    """
    if session.incomplete():
        _fill(session)
    encoded, layers = session.encoded, session.options.layers
    # read: baseline minus k; so the baseline falls out of every difference
    below = {w: session.read(w, encoded, layers) for w in session.patched_in()}
    own = below[session.full.weights]

    def by_token(source: str) -> list[ByToken]:
        entries = (session.scores(source).known[example_hash(e)] for e in encoded)
        return [[entry.by_token[layer] for layer in layers] for entry in entries]

    return Deltas(
        baseline=baselines(session.scores(session.full.weights), encoded),
        s1=below[session.retain.weights] - own,
        s2={name: below[source.weights] - own for name, source in session.sources.items()},
        self_patch=own - own,
        engine="lens",
        by_token={name: by_token(source.weights) for name, source in session.sources.items()},
    )


def _fill(session: Session) -> None:
    encoded, patched_in, full = session.encoded, session.patched_in(), session.full.weights
    lacking = session.incomplete()
    streams = {one: session.streams(patched_in[one], encoded) for one in lacking if one != full}
    model = session.model(session.full)
    check_model(model, encoded[0], session.options.dtype)
    own = session.streams(session.full, encoded)
    if full in lacking:
        streams[full] = own
    sizes = sizes_on_disk(session.full, session.options.dtype)
    complete(
        Lens(model, own, Room(sizes, session.options, sweeps=True)),
        encoded,
        streams,
        {one: session.scores(one) for one in streams},
        session.wanted(),
        what="reading",
        progress=session.progress,
    )
