"""What does a model think, token by token? Readings of its cached streams.

`last_prompt` is the stream at the end of the prompt, before a word of the answer is said; `lens` is
what `full` reads in it after each layer: the definition of a single number is that of the Logit
Lens depth (`patching.scoring`), here every token keeps its own, with its rank among all tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.spec import parts_of
from lensaudit.activations.store import Activations
from lensaudit.auditing.cache import prepare_model
from lensaudit.auditing.calls import check_keywords
from lensaudit.auditing.settings import CacheSettings
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.bridge import TransformerBridge, unembedded
from lensaudit.models.checkpoint import check_same_shape, open_checkpoint
from lensaudit.models.registry import default_anchor, load_registry, resolve
from lensaudit.patching.preflight import check_model
from lensaudit.patching.session import Session
from lensaudit.progress import Tell, unheard
from lensaudit.scores.depth import label_logprob, label_rank
from lensaudit.settings import DtypeName, Kept, Place, Positions, named


class CacheKeywords(TypedDict, total=False):
    """Which rows, and how a model runs on them: options of `lensaudit cache`."""

    data: Place | None
    exclude: Sequence[str]
    limit: int | None
    registry: Place | None
    dtype: DtypeName
    device: str
    batch_size: int | None
    memory: str
    activations: Place


def settings_of(
    call: str, given: CacheKeywords, *, positions: Positions, component: Kept = "resid"
) -> CacheSettings:
    """The settings of a cache, from the keywords of `call`.

    Raises:
        TypeError: a keyword that it has not.
    """
    check_keywords(call, list(CacheKeywords.__annotations__), given)
    data = given.get("data")
    return CacheSettings(
        component=component,
        positions=positions,
        **{**given, "data": data and named(data), "exclude": tuple(given.get("exclude", ()))},
    )


@contextmanager
def streams(
    model: str, settings: CacheSettings, *, progress: Tell = unheard
) -> Iterator[tuple[Session, Activations]]:
    """One part of a model on its rows, from the cache; the model runs only where there is none.

    A cache of all positions serves where the span is wanted.

    Raises:
        InputError: before any work.
    """
    (part,) = parts_of(settings.component)
    with prepare_model(model, settings, progress=progress) as session:
        found = session.there(session.full, settings.positions, part)
        if found is None:
            found = session.filled(session.full, session.encoded, settings.positions, part)
        with found as activations:
            yield session, activations


@dataclass(frozen=True)
class LastPrompt:
    """The last prompt token of some examples, in the order of the data."""

    source: str
    idx: tuple[int, ...]
    resid: Float[Tensor, "example layer d_model"]
    """In the type of the cache; of `heads` all of them end to end."""
    unscored: dict[int, str]
    """idx -> why the tokenizer lost its span."""


def last_prompt(
    source: Place,
    *,
    component: Kept = "resid",
    progress: Tell = unheard,
    **settings: Unpack[CacheKeywords],
) -> LastPrompt:
    """The residual stream, or a component, of every layer at the last prompt token, from a cache.

    The prompt ends where the scored answer begins: behind `prefix`, if the rows have one. The
    model runs only where nothing is cached.

    Args:
        source: whose.
        component: of every layer; `resid` is the stream after it.
        progress: told what is cached.
        settings: `data`, `exclude`, `limit`, `registry`, `dtype`, `device`, `batch_size`, `memory`
            and `activations`, as of `lensaudit cache`.

    >>> la.last_prompt("demo/npo", limit=8).resid.shape  # doctest: +SKIP
    torch.Size([8, 16, 64])

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    name = named(source)
    how = settings_of("last_prompt", settings, positions="span", component=component)
    with streams(name, how, progress=progress) as (session, activations):
        rows = [
            activations.example(e.idx).at(torch.tensor([e.n_prompt - 1])).resid.squeeze(1)
            for e in session.encoded
        ]
        idx = tuple(e.idx for e in session.encoded)
    return LastPrompt(name, idx, torch.stack(rows), session.unscored)


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
        """Reading of one example.

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
    **settings: Unpack[CacheKeywords],
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
    how = settings_of("lens", settings, positions="span" if tokens == "span" else "all")
    registry = load_registry(how.registry)
    reader = open_checkpoint(resolve(anchor, registry))
    check_same_shape(reader, open_checkpoint(resolve(name, registry)))
    with streams(name, how, progress=progress) as (session, activations):
        model = session.model(reader)
        check_model(model, session.encoded[0], session.options.dtype)
        examples = tuple(_read(activations, e, model, tokens) for e in session.encoded)
    return LensReading(name, anchor, examples, session.unscored)


def _read(
    activations: Activations,
    encoded: Encoded,
    model: TransformerBridge,
    tokens: Literal["span", "answer"],
) -> LensExample:
    low, high = encoded.start, encoded.end
    if tokens == "answer":
        low, high = encoded.n_prompt - 1, len(encoded.token_ids) - 1
    positions = torch.arange(low, high)
    labels = torch.tensor(encoded.token_ids[low + 1 : high + 1])
    resid = activations.example(encoded.idx).at(positions).resid
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
