"""What does `full` read, token by token, in what another model thought after each layer?

The definition of a single number is that of the Logit Lens depth (`patching.lens`): full's final
norm and unembedding, applied to the cached residual stream. Here every token of every example keeps
its own, with its rank among all tokens.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.auditing.streams import Asked, Streams, asked, streams
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.bridge import DTYPES, TransformerBridge, load, unembedded
from lensaudit.models.checkpoint import check_same_shape, open_checkpoint
from lensaudit.models.registry import default_anchor, load_registry, resolve
from lensaudit.patching.preflight import check_model
from lensaudit.progress import Tell, unheard
from lensaudit.scores.depth import label_logprob, label_rank
from lensaudit.settings import Place, named

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LensExample:
    """What is read of one example; a column for each token."""

    idx: int
    tokens: tuple[str, ...]
    """Those that are predicted, as text."""
    positions: Int[Tensor, " token"]
    """Where they are predicted: one left of each."""
    token_ids: Int[Tensor, " token"]
    logprob: Float[Tensor, "layer token"]
    """Nats, float32."""
    rank: Int[Tensor, "layer token"]
    """How many tokens are more likely: 0 is the first choice."""


@dataclass(frozen=True)
class LensReading:
    """What `full` reads in the streams of one model."""

    source: str
    full: str
    examples: tuple[LensExample, ...]
    unscored: dict[int, str]
    """idx -> why the tokenizer lost its span."""

    def example(self, idx: int) -> LensExample:
        """One example.

        Raises:
            InputError: it was not read.
        """
        for one in self.examples:
            if one.idx == idx:
                return one
        known = ", ".join(str(one.idx) for one in self.examples[:8])
        raise InputError(f"{self.source}: example idx {idx} was not read; {known} … were")

    @property
    def frame(self) -> "pd.DataFrame":
        """A row per example, layer and token: `logprob` in nats, `rank` from 0."""
        import pandas as pd

        columns = ("idx", "layer", "position", "token", "logprob", "rank")
        return pd.DataFrame(
            [
                (one.idx, layer, position, token, logprob, rank)
                for one in self.examples
                for layer, row in enumerate(
                    zip(one.logprob.tolist(), one.rank.tolist(), strict=True)
                )
                for position, token, logprob, rank in zip(
                    one.positions.tolist(), one.tokens, *row, strict=True
                )
            ],
            columns=list(columns),
        )


def lens(
    source: Place,
    *,
    full: Place | None = None,
    tokens: Literal["span", "answer"] = "span",
    progress: Tell = unheard,
    **settings: Unpack[Asked],
) -> LensReading:
    """Log-probability and rank of the answer's tokens after each layer, read from a cache.

    The source runs only where its streams are not cached; `full` lends its final norm and its
    unembedding.

    Args:
        source: whose streams are read.
        full: whose readout; that of the source's family where none is named.
        tokens: the scored span, or all from the prompt's end to the answer's, for which the
            streams of every position are cached.
        progress: told what is cached.
        settings: `data`, `exclude`, `limit`, `registry`, `dtype`, `device`, `batch_size`, `memory`
            and `activations`, as of `lensaudit cache`.

    >>> la.lens("demo/npo", limit=8).examples[0].rank.shape  # doctest: +SKIP
    torch.Size([16, 3])

    Raises:
        InputError: a name, a file or a pair of models is wrong.
        VerificationError: full's readout does not reproduce its own logits.
    """
    name = named(source)
    anchor = named(full) if full is not None else default_anchor("full", [name])
    how = asked("lens", settings, positions="span" if tokens == "span" else "all")
    registry = load_registry(how.registry)
    reader = open_checkpoint(resolve(anchor, registry))
    check_same_shape(reader, open_checkpoint(resolve(name, registry)))
    with streams(name, how, progress=progress) as found:
        model = load(reader, dtype=DTYPES[found.dtype], device=found.device)
        check_model(model, found.encoded[0], found.dtype)
        examples = tuple(_read(found, e, model, tokens) for e in found.encoded)
    return LensReading(name, anchor, examples, found.unscored)


def _read(
    found: Streams,
    encoded: Encoded,
    model: TransformerBridge,
    tokens: Literal["span", "answer"],
) -> LensExample:
    low, high = encoded.start, encoded.end
    if tokens == "answer":
        low, high = encoded.n_prompt - 1, len(encoded.token_ids) - 1
    positions = torch.arange(low, high)
    labels = torch.tensor(encoded.token_ids[low + 1 : high + 1])
    resid = found.activations.example(encoded.idx).at(positions).resid
    device = next(model.original_model.parameters()).device
    found_at = [_scores(model, layer.to(device), labels.to(device)) for layer in resid]
    return LensExample(
        idx=encoded.idx,
        tokens=tuple(model.tokenizer.decode([one]) for one in labels.tolist()),
        positions=positions,
        token_ids=labels,
        logprob=torch.stack([logprob for logprob, _ in found_at]).cpu(),
        rank=torch.stack([rank for _, rank in found_at]).cpu(),
    )


def _scores(
    model: TransformerBridge,
    stream: Float[Tensor, "token d_model"],
    labels: Int[Tensor, " token"],
) -> tuple[Float[Tensor, " token"], Int[Tensor, " token"]]:
    logits = unembedded(model, stream.unsqueeze(0))[0]
    return label_logprob(logits, labels), label_rank(logits, labels)
