"""Three models of one base: what they think, and what they know under an intervention.

The answer's prefix is forced, so the score is that of the entity alone: the share of its tokens
that are the likeliest (exact match), and their mean log-prob. An intervention acts from the last
prefix token on, unless its own rule says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fill import CACHE_BATCH, fill, fingerprint_of_run
from lensaudit.activations.store import ActivationStore
from lensaudit.data.spans import Encoded, buckets, make_batch
from lensaudit.errors import WorkError
from lensaudit.models.bridge import DTYPES, TransformerBridge, load, logits_of
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.progress import Tick
from lensaudit.scores.depth import label_logprob, mean_per_example, span_mean
from lensaudit.scores.erasure import label_hit
from lensaudit.steer.edits import NO_EDITS, Edits, Place, installed, one_after_the_other
from lensaudit.steer.generate import Format, prompt_ids
from lensaudit.types import Intervention, Logits, PosMask, Tokens

Role = Literal["full", "unlearned", "retain"]
ROLES: tuple[Role, ...] = ("full", "unlearned", "retain")
At = Literal["prefix", "span"]
"""Where activations are read: the last prefix token, or the mean over the entity's positions."""
Part = Literal["forget", "retain"]
Streams = Float[Tensor, "_ layer d_model"]


MOST_ROWS = 256


_COPIES = 4
"""Of the logits at once: the model's, in float32, and what a softmax needs."""


@dataclass(frozen=True)
class Scores:
    """Of each example under each setting; NaN is not possible, a span has at least one token."""

    em: Float[Tensor, "setting batch"]
    """Share of the entity's tokens that are the likeliest, 0 to 1."""
    logprob: Float[Tensor, "setting batch"]
    """Nats per token of the entity."""
    kl: Float[Tensor, "setting batch"]
    """KL(plain || intervened) at the entity's positions, nats per token."""

    def of(self, name: str) -> Float[Tensor, "setting batch"]:
        """By name: `em` or `logprob`."""
        return self.em if name == "em" else self.logprob


def scored(
    model: TransformerBridge,
    encoded: Sequence[Encoded],
    settings: Sequence[Edits],
    *,
    memory_bytes: int = 2 << 30,
) -> Scores:
    """Scores of every example under every setting; columns are in the order of `encoded`.

    Raises:
        WorkError: logits are not finite under a setting.
    """
    shape = (len(settings), len(encoded))
    em, logprob, kl = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    column = {e.idx: at for at, e in enumerate(encoded)}
    n_rows = rows_that_fit(model, max(len(e.token_ids) for e in encoded), memory_bytes)
    for bucket in buckets(encoded, min(n_rows, len(encoded)), length=lambda e: len(e.token_ids)):
        batch = make_batch(bucket)
        columns = [column[idx] for idx in batch.idx]
        at_once = max(1, n_rows // len(bucket))
        plain = _logits(model, bucket, [Edits()])
        for start in range(0, len(settings), at_once):
            some = settings[start : start + at_once]
            logits = _logits(model, bucket, some)
            tokens = batch.tokens.repeat(len(some), 1).to(logits.device)
            predict_at = batch.predict_at.repeat(len(some), 1).to(logits.device)
            found = (
                span_mean(logits, tokens, predict_at, label_hit),
                span_mean(logits, tokens, predict_at, label_logprob),
                divergence(plain.repeat(len(some), 1, 1), logits, predict_at),
            )
            for table, values in zip((em, logprob, kl), found, strict=True):
                table[start : start + len(some), columns] = values.reshape(len(some), -1).cpu()
    if not bool(logprob.isfinite().all()):
        raise WorkError("logits are not finite under an intervention; lower the strengths")
    return Scores(em, logprob, kl)


def log_odds(
    model: TransformerBridge,
    encoded: Sequence[Encoded],
    settings: Sequence[Edits],
    tokens: Sequence[int],
    *,
    memory_bytes: int = 2 << 30,
) -> Float[Tensor, "setting batch"]:
    """Log p - log(1 - p) of the next token being one of `tokens`, after each prompt's last one."""
    found = torch.zeros(len(settings), len(encoded))
    column = {e.idx: at for at, e in enumerate(encoded)}
    n_rows = rows_that_fit(model, max(len(e.token_ids) for e in encoded), memory_bytes)
    for bucket in buckets(encoded, min(n_rows, len(encoded)), length=lambda e: len(e.token_ids)):
        columns = [column[e.idx] for e in bucket]
        last = torch.tensor([e.n_prompt - 1 for e in bucket])
        at_once = max(1, n_rows // len(bucket))
        for start in range(0, len(settings), at_once):
            some = settings[start : start + at_once]
            logits = _logits(model, bucket, some)
            rows = logits[torch.arange(len(logits)), last.repeat(len(some))].double()
            chosen = torch.zeros(rows.shape[-1], dtype=torch.bool)
            chosen[list(tokens)] = True
            odds = rows[:, chosen].logsumexp(-1) - rows[:, ~chosen].logsumexp(-1)
            found[start : start + len(some), columns] = odds.reshape(len(some), -1).float().cpu()
    return found


def rows_that_fit(model: TransformerBridge, n_pos: int, memory_bytes: int) -> int:
    """Sequences whose logits stay within half of the budget."""
    config: Any = model.original_model.config
    row = n_pos * config.get_text_config().vocab_size * 4 * _COPIES
    return max(1, min(MOST_ROWS, memory_bytes // 2 // row))


def divergence(plain: Logits, edited: Logits, predict_at: PosMask) -> Float[Tensor, " batch"]:
    """Mean KL(plain || edited) over the marked positions, nats per token, in float32."""
    example = predict_at.nonzero(as_tuple=True)[0]
    before, after = (logits[predict_at].float().log_softmax(-1) for logits in (plain, edited))
    rows = (before.exp() * (before - after)).sum(-1)
    return mean_per_example(rows, example, len(predict_at))


def _logits(
    model: TransformerBridge, bucket: Sequence[Encoded], settings: Sequence[Edits]
) -> Logits:
    """Logits of every example under every setting, settings outermost."""
    batch = make_batch(bucket)
    device = next(model.original_model.parameters()).device
    tokens: Tokens = batch.tokens.repeat(len(settings), 1).to(device)
    rows = interventions_of(bucket, batch.tokens.shape[1], settings, device)
    with installed(model, rows):
        return logits_of(model, tokens)


def interventions_of(
    bucket: Sequence[Encoded], n_pos: int, settings: Sequence[Edits], device: torch.device
) -> Mapping[Place, Intervention]:
    """One intervention per place: each setting edits its own rows and leaves the others."""
    n_rows = len(settings) * len(bucket)
    lengths = torch.tensor([len(e.token_ids) for e in bucket]).repeat(len(settings), 1)
    n_prompt = torch.tensor([e.n_prompt for e in bucket]).repeat(len(settings)).to(device)
    place = torch.arange(n_pos).expand(n_rows, n_pos)
    place = place.where(place < lengths.reshape(-1, 1), -1).to(device)
    idx = tuple(e.idx for e in bucket) * len(settings)
    found: dict[Place, list[Intervention]] = {}
    for number, setting in enumerate(settings):
        own = slice(number * len(bucket), (number + 1) * len(bucket))
        positions = torch.full_like(place, -1)
        positions[own] = place[own]
        for at, edit in setting.rows(positions, n_prompt, idx).items():
            found.setdefault(at, []).append(edit)
    return {at: one_after_the_other(edits) for at, edits in found.items()}


@dataclass(frozen=True)
class Runs:
    """How models are run."""

    dtype: str = "float32"
    device: str = "cpu"
    memory_bytes: int = 2 << 30
    root: Path = Path("activations")
    progress: Tick | None = None


@dataclass(frozen=True)
class ThreeModels:
    """Three models of one base, and the two sets of questions."""

    models: Mapping[Role, TransformerBridge]
    checkpoints: Mapping[Role, Checkpoint]
    encoded: Mapping[Part, tuple[Encoded, ...]]
    questions: Mapping[Part, tuple[Encoded, ...]]
    """The same examples without any of the answer."""
    streams: Mapping[tuple[Role, Part], Streams]
    """After every block, one row per example."""
    asked: Mapping[Part, Streams]
    """Of the unlearned model at the last token of the question's prompt."""
    runs: Runs

    @property
    def n_layers(self) -> int:
        """Number of decoder blocks."""
        return self.checkpoints["full"].n_layers

    def gap(
        self, minuend: Role, subtrahend: Role, rows: Sequence[int], part: Part = "forget"
    ) -> Float[Tensor, "layer d_model"]:
        """Mean difference of two models' streams over some examples, at every layer."""
        first, second = (self.streams[role, part][list(rows)] for role in (minuend, subtrahend))
        return (first.double() - second.double()).mean(0).float()

    def scored(
        self, role: Role, rows: Sequence[int], settings: Sequence[Edits], part: Part = "forget"
    ) -> Scores:
        """Scores of some examples under every setting."""
        chosen = [self.encoded[part][row] for row in rows]
        return scored(self.models[role], chosen, settings, memory_bytes=self.runs.memory_bytes)

    def plain(self, role: Role) -> Scores:
        """Scores of all forget examples without an intervention."""
        return self.scored(role, range(len(self.encoded["forget"])), [NO_EDITS])

    def similarity(self, layer: int) -> float:
        """Mean cosine of the full and the unlearned model's streams on retain examples.

        Models of one base stay near 1; below 0.9 their axes may not mean the same.
        """
        first, second = (self.streams[role, "retain"][:, layer] for role in ROLES[:2])
        return float(torch.nn.functional.cosine_similarity(first, second).mean())


def question_only(encoded: Encoded, tokenizer: object, form: Format, question: str) -> Encoded:
    """The prompt that ends where an answer begins; its last token is what a cache keeps."""
    ids = prompt_ids(tokenizer, form, question, None)
    return Encoded(encoded.idx, encoded.group, ids, len(ids), len(ids) - 1, len(ids))


def open_models(
    checkpoints: Mapping[Role, Checkpoint],
    encoded: Mapping[Part, tuple[Encoded, ...]],
    texts: Mapping[Part, Mapping[int, str]],
    *,
    form: Format,
    at: At,
    runs: Runs,
) -> ThreeModels:
    """Load the models, and read their streams from caches that are filled where they lack rows.

    Args:
        checkpoints: of one base; all three stay in memory.
        encoded: annotated examples with the prefix forced.
        texts: question of each example, by part and idx.
        form: how a question is asked where the model may say what it likes.
        at: where streams are read.
        runs: how models are run.
    """
    tokenizer = load_tokenizer(checkpoints["full"])
    questions: dict[Part, tuple[Encoded, ...]] = {
        part: tuple(question_only(e, tokenizer, form, texts[part][e.idx]) for e in rows)
        for part, rows in encoded.items()
    }
    models: dict[Role, TransformerBridge] = {
        role: load(one, dtype=DTYPES[runs.dtype], device=runs.device)
        for role, one in checkpoints.items()
    }

    def read(role: Role, rows: Sequence[Encoded], place: At) -> Streams:
        return _streams(checkpoints[role], lambda: models[role], rows, place, runs)

    asked: dict[Part, Streams] = {
        part: read("unlearned", rows, "prefix") for part, rows in questions.items()
    }
    streams: dict[tuple[Role, Part], Streams] = {
        (role, part): read(role, rows, at) for role in ROLES for part, rows in encoded.items()
    }
    return ThreeModels(models, checkpoints, encoded, questions, streams, asked, runs)


def _streams(
    checkpoint: Checkpoint,
    loaded: Callable[[], TransformerBridge],
    rows: Sequence[Encoded],
    at: At,
    runs: Runs,
) -> Streams:
    fingerprint = fingerprint_of_run(
        checkpoint,
        rows,
        positions="span",
        dtype=runs.dtype,
        device=runs.device,
    )
    name = checkpoint.spec.name
    with fill(
        ActivationStore(runs.root),
        fingerprint,
        rows,
        name=name,
        load=loaded,
        batch_size=CACHE_BATCH,
        provenance={"made_by": "lensaudit steer audit", "model": name},
        progress=runs.progress,
    ) as activations:
        found = []
        for e in rows:
            wanted = range(e.start, e.end) if at == "span" else range(e.n_prompt - 1, e.n_prompt)
            example = activations.example(e.idx).at(torch.tensor(list(wanted)))
            found.append(example.resid.double().mean(1).float())
    return torch.stack(found)
