"""What does a model think? Its residual streams, read token by token.

`last_prompt` is the stream at the end of the prompt, before a word of the answer is said; `lens` is
what `full` reads in it after each layer: the definition of a single number is that of the Logit
Lens depth (`patching.scoring`), here every token keeps its own, with its rank among all tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.chosen import parts_of
from lensaudit.activations.store import Activations
from lensaudit.ask.keywords import given_to
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, Tokenizer, make_batch, prompt_of
from lensaudit.data.tofu import DEMO
from lensaudit.doors.cache_fill import prepare_model
from lensaudit.doors.settings import CacheSettings
from lensaudit.errors import InputError
from lensaudit.models.bridge import TransformerBridge, device_of, residuals, unembedded
from lensaudit.models.checkpoint import open_model
from lensaudit.models.likeness import check_same_shape
from lensaudit.models.registry import anchors_of, load_registry
from lensaudit.patching import oracle
from lensaudit.patching.preflight import (
    TOLERANCE_NATS,
    PreflightCheck,
    check_model,
    readout_gap,
    self_patch_gap,
    sweep_gap,
)
from lensaudit.patching.session import Session
from lensaudit.progress import Tell, unheard
from lensaudit.results.reading import place_in
from lensaudit.scores.depth import label_logprob
from lensaudit.settings import (
    DtypeName,
    Kept,
    Place,
    Positions,
    named,
)

At = Literal["question", "prefix"]
Scored = Literal["span", "answer"]
SHOWN = 24
"""Rows of a table on the screen."""


class CacheKeywords(TypedDict, total=False):
    """Rows, and how a model runs on them: options of `lensaudit cache`."""

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
    found = given_to(call, CacheSettings, given, CacheKeywords.__annotations__)
    return CacheSettings(component=component, positions=positions, **found)


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
        yield session, session.cache(session.full, session.encoded, settings.positions, part)


@dataclass(frozen=True)
class LastPrompt:
    """The stream at the last prompt token of some examples, in the order of the data."""

    source: str
    at: At
    idx: tuple[int, ...]
    authors: tuple[int | str, ...]
    """Of each example: `group` of its row."""
    resid: Float[Tensor, "example layer d_model"]
    """In the type of the cache; of `heads` all of them end to end."""
    unscored: dict[int, str]
    """idx -> why the tokenizer lost its span."""

    def __repr__(self) -> str:
        """How long the rows are, at the first, the middle and the last layer."""
        n_layers = self.resid.shape[1]
        layers = sorted({0, n_layers // 2, n_layers - 1})
        norms = self.resid.float().norm(dim=-1)
        columns = {"idx": self.idx, "author": self.authors}
        columns |= {f"|layer {one}|": norms[:, one].tolist() for one in layers}
        shape = " x ".join(map(str, self.resid.shape))
        return f"{self.source}, end of the {self.at}: {shape}\n{_table(columns)}"


def _table(columns: Mapping[str, Sequence[Any]]) -> str:
    import pandas as pd

    return pd.DataFrame(dict(columns)).to_string(index=False, max_rows=SHOWN, float_format="%.3f")


def last_prompt(
    source: Place,
    *,
    at: At = "prefix",
    component: Kept = "resid",
    progress: Tell = unheard,
    **settings: Unpack[CacheKeywords],
) -> LastPrompt:
    """The residual stream, or a component, of every layer at the last prompt token, from a cache.

    The prompt ends where the scored answer begins: behind `prefix`, if the rows have one; the
    question ends before it. The model runs only where nothing is cached.

    Args:
        source: whose.
        at: the last token of the prompt (`prefix`), or of the question (`question`), for which the
            streams of every position are cached.
        component: of every layer; `resid` is the stream after it.
        progress: told what is cached.
        settings: `data`, `exclude`, `limit`, `registry`, `dtype`, `device`, `batch_size`, `memory`
            and `activations`, as of `lensaudit cache`.

    >>> la.last_prompt("demo/npo", limit=8).resid.shape  # doctest: +SKIP
    torch.Size([8, 16, 64])

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    _check_one_of("last_prompt", "at", at, At)
    _check_one_of("last_prompt", "component", component, Kept)
    name = named(place_in("last_prompt", source))
    positions = "span" if at == "prefix" else "all"
    how = settings_of("last_prompt", settings, positions=positions, component=component)
    with streams(name, how, progress=progress) as (session, activations):
        encoded = session.encoded
        ends = [e.n_prompt for e in encoded]
        if at == "question":
            rows = {one.idx: one for one in session.examples}
            ends = [_question_end(e, rows[e.idx], session.tokenizer) for e in encoded]
        found = [
            activations.example(e.idx).at(torch.tensor([end - 1])).resid.squeeze(1)
            for e, end in zip(encoded, ends, strict=True)
        ]
        idx, authors = tuple(e.idx for e in encoded), tuple(e.group for e in encoded)
    return LastPrompt(name, at, idx, authors, torch.stack(found), session.unscored)


def _check_one_of(call: str, keyword: str, given: Any, kinds: Any) -> None:
    if not isinstance(given, str) or given not in get_args(kinds):
        wanted = ", ".join(get_args(kinds))
        raise InputError(f"{call}({keyword}={given!r:.60}): wanted one of {wanted}")


def _question_end(encoded: Encoded, row: Fact, tokenizer: Tokenizer) -> int:
    """Tokens up to the answer's beginning: those that the prompt has in common without prefix."""
    bare = tokenizer(prompt_of(replace(row, prefix="")).rstrip())["input_ids"]
    same = zip(bare, encoded.token_ids[: encoded.n_prompt], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], same))


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LensExample:
    """What is read of one example; a column for each token."""

    idx: int
    author: int | str
    """`group` of its row."""
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

    def __repr__(self) -> str:
        """A row for each token: from which layer on it is the first choice, and what it is last."""
        rows = [
            (one.idx, one.author, token, _first_choice(rank), rank[-1], logprob[-1])
            for one in self.examples
            for token, rank, logprob in zip(
                one.tokens, one.rank.T.tolist(), one.logprob.T.tolist(), strict=True
            )
        ]
        names = ("idx", "author", "token", "first choice from layer", "last rank", "nats")
        columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=False))
        return f"{self.source}, read by {self.full}\n{_table(columns)}"

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
            columns=["idx", "layer", "position", "token", "logprob", "rank"],
        )


def _first_choice(rank: Sequence[int]) -> int | str:
    """The lowest layer from which on a token stays the likeliest.

    >>> _first_choice([4, 0, 3, 0, 0]), _first_choice([0, 1])
    (3, '–')
    """
    others = [layer for layer, one in enumerate(rank) if one]
    first = others[-1] + 1 if others else 0
    return first if first < len(rank) else "–"


@dataclass(frozen=True)
class Preflight:
    """Identities that hold of a model, or do not."""

    source: str
    checks: tuple[PreflightCheck, ...]

    @property
    def passes(self) -> bool:
        """All that could be compared agree."""
        return all(one.passes for one in self.checks if one.gap is not None)

    def __repr__(self) -> str:
        columns = {
            "check": [one.name for one in self.checks],
            "largest gap": [
                one.why if one.gap is None else f"{one.gap:.2g}" for one in self.checks
            ],
            "allowed": [f"{one.allowed:.2g}" for one in self.checks],
            "passes": ["–" if one.gap is None else one.passes for one in self.checks],
        }
        return f"{self.source}\n{_table(columns)}"


def preflight(
    source: Place, *, progress: Tell = unheard, **settings: Unpack[CacheKeywords]
) -> Preflight:
    """What must hold of a model before numbers are believed: four identities, with their gaps.

    Final norm and unembedding of the last residual give the logits; a batch gives what single
    rows give; a self-patch at any layer changes nothing; the sweep gives what the oracle gives.

    Args:
        source: whose.
        progress: told what is cached.
        settings: as of `la.lens`; rows are four of the embedded set, and caches are put where they
            are forgotten, unless something else is named.

    >>> la.preflight("demo/full").passes  # doctest: +SKIP
    True

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    name = named(place_in("preflight", source))
    with TemporaryDirectory() as place:
        given: CacheKeywords = {"data": DEMO, "limit": 4, "activations": place, **settings}
        how = settings_of("preflight", given, positions="all")
        with prepare_model(name, how, progress=progress) as session:
            model, encoded = session.model(session.full), session.encoded
            layers, dtype = session.settings.at_layers, session.settings.dtype
            batch = make_batch(encoded).to(device_of(model))
            stack, _ = residuals(model, batch.tokens)
            streamed = session.streams(session.full, encoded)
            return Preflight(
                name,
                (
                    readout_gap(model, batch, stack, dtype),
                    batch_gap(model, encoded, dtype),
                    self_patch_gap(model, batch, stack, layers),
                    sweep_gap(session.runner(encoded), encoded, streamed),
                ),
            )


def lens(
    source: Place,
    *,
    full: Place | None = None,
    tokens: Scored = "span",
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
    _check_one_of("lens", "tokens", tokens, Scored)
    name = named(place_in("lens", source))
    reads = None if full is None else named(place_in("lens", full))
    how = settings_of("lens", settings, positions="span" if tokens == "span" else "all")
    anchor, _ = anchors_of([name], reads, None, load_registry(how.registry), without=True)
    reader = open_model(anchor, how.registry)
    check_same_shape(reader, open_model(name, how.registry))
    with streams(name, how, progress=progress) as (session, activations):
        session.full = reader  # it stays; the source has run, and goes where both are large
        model = session.model(reader)
        check_model(model, session.encoded[0], session.settings.dtype)
        examples = tuple(_read(activations, e, model, tokens) for e in session.encoded)
    return LensReading(name, anchor, examples, session.unscored)


def _read(
    activations: Activations,
    encoded: Encoded,
    model: TransformerBridge,
    tokens: Scored,
) -> LensExample:
    low, high = encoded.start, encoded.end
    if tokens == "answer":
        low, high = encoded.n_prompt - 1, len(encoded.token_ids) - 1
    positions = torch.arange(low, high)
    labels = torch.tensor(encoded.token_ids[low + 1 : high + 1])
    resid = activations.example(encoded.idx).at(positions).resid
    device = device_of(model)
    found_at = [_scores(model, layer.to(device), labels.to(device)) for layer in resid]
    return LensExample(
        idx=encoded.idx,
        author=encoded.group,
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


def batch_gap(model: TransformerBridge, encoded: Sequence[Encoded], dtype: str) -> PreflightCheck:
    """Log-probs of spans, nats per token, in one padded batch against one by one."""
    with torch.no_grad():
        together = oracle.baseline(model, make_batch(encoded).to(device_of(model)))
        alone = [oracle.baseline(model, make_batch([e]).to(device_of(model))) for e in encoded]
    gap = float((together - torch.cat(alone)).abs().max())
    return PreflightCheck("batch equals single", gap, TOLERANCE_NATS[dtype])


def label_rank(
    logits: Float[Tensor, "row d_vocab"], labels: Int[Tensor, " row"]
) -> Int[Tensor, " row"]:
    """How many tokens are more likely than each row's label: 0 is the first choice.

    >>> label_rank(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([2]))
    tensor([1])
    """
    return (logits > logits.gather(-1, labels.unsqueeze(-1))).sum(-1)
