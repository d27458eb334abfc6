"""Three models of one base: what they think, and what they know under an intervention.

The answer's prefix is forced, so the score is that of the entity alone: the share of its tokens
that are the likeliest (exact match), and their mean log-prob. An intervention acts from the last
prefix token on, unless its own rule says otherwise.

A patch of an example's own activations carries its answer; a direction from other authors cannot.
So what a direction from T brings back on V was suppressed, not erased (`steering.md` section 6):
folds say which authors it is estimated on, which it is chosen on, and which it is scored on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fill import encoded_hash
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, buckets, make_batch
from lensaudit.errors import InputError, WorkError
from lensaudit.groups import Group, grouped
from lensaudit.judge.items import JudgeRequest
from lensaudit.judge.programmatic import ENTITY, declines
from lensaudit.models.bridge import TransformerBridge, device_of, logits_of
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.stops import told_stops
from lensaudit.patching.session import Session
from lensaudit.patching.speech import ends_of
from lensaudit.scores.depth import label_hit, label_logprob, mean_per_example, span_mean
from lensaudit.steer.asking import positions_read
from lensaudit.steer.generate import (
    NO_EDITS,
    Edits,
    Format,
    continuations,
    installed,
    prompt_ids,
)
from lensaudit.steer.settings import DirectionSettings, Kind, Position
from lensaudit.text import digest
from lensaudit.types import Intervention, Logits, PosMask, Resid

KINDS: tuple[Kind, ...] = ("add", "ablate", "clamp")
Role = Literal["full", "unlearned", "retain"]
ROLES: tuple[Role, ...] = ("full", "unlearned", "retain")
Part = Literal["forget", "retain"]
Streams = Float[Tensor, "_ layer d_model"]
DEV_SHARE = 0.2
"""Of the authors of T: layer and strength are chosen on them."""
MOST_ROWS = 256
_COPIES = 4
"""Of the logits at once: the model's, in float32, and what a softmax needs."""


@dataclass(frozen=True)
class Fold:
    """A split of the authors in three."""

    number: int
    estimate: frozenset[Group]
    dev: frozenset[Group]
    score: frozenset[Group]


def author_folds(groups: Sequence[Group], n_folds: int) -> list[Fold]:
    """Folds in which every author is scored once.

    >>> fold = author_folds(["a", "b", "c", "d"], 2)[0]
    >>> sorted(fold.estimate), sorted(fold.dev), sorted(fold.score)
    (['d'], ['b'], ['a', 'c'])

    Raises:
        InputError: too few authors to estimate, choose and score on different ones.
    """
    authors = sorted(dict.fromkeys(groups), key=lambda g: (str(type(g)), g))
    n_folds = min(n_folds, len(authors))
    if len(authors) < 3 or n_folds < 2:
        raise InputError(
            f"found {len(authors)} authors, wanted at least 3 (and 2 folds): a direction is "
            "estimated, chosen and scored on different ones; rows name theirs by `group`"
        )
    folds = []
    for number in range(n_folds):
        score = frozenset(authors[number::n_folds])
        rest = [author for author in authors if author not in score]
        # the dev authors rotate with the fold
        rest = rest[number % len(rest) :] + rest[: number % len(rest)]
        n_dev = min(len(rest) - 1, max(1, round(DEV_SHARE * len(rest))))
        folds.append(Fold(number, frozenset(rest[n_dev:]), frozenset(rest[:n_dev]), score))
    return folds


@dataclass(frozen=True, kw_only=True)
class DirectionsAudit:
    """Three models of one base, two sets of questions, and what is tried."""

    settings: DirectionSettings
    """As asked; what is derived from a text of them stands beside them."""
    session: Session
    """`full`, retain, and the unlearned model as the one source; the forget questions."""
    strengths: tuple[float, ...]
    form: Format
    facts: Mapping[Part, tuple[Fact, ...]]
    encoded: Mapping[Part, tuple[Encoded, ...]]
    """Those that have a token to score."""
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Of the subspaces that ABLATE tries."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The experiments that are run, in order."""
        return tuple(kind for kind in KINDS if kind in self.settings.kinds) or KINDS

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers at which directions are looked for."""
        return self.session.settings.at_layers

    @cached_property
    def checkpoints(self) -> Mapping[Role, Checkpoint]:
        """The three models by what they are."""
        (source,) = self.session.sources.values()
        return dict(zip(ROLES, (self.session.full, source, self.session.retain), strict=True))

    def model(self, role: Role) -> TransformerBridge:
        """One of the models, in memory."""
        return self.session.model(self.checkpoints[role])

    def identity(self) -> str:
        """Content hash of what determines a finding."""
        # what decides what is tried, beside layers and strengths
        names = ("score", "n_random", "seed", "kl_cap", "where", "max_new_tokens")
        searched = {name: getattr(self.settings, name) for name in names}
        tried = {"layers": self.layers, "strengths": self.strengths, "ranks": self.ranks}
        return digest(
            [
                {role: one.weights for role, one in self.checkpoints.items()},
                {part: encoded_hash(rows) for part, rows in self.encoded.items()},
                [[e.idx, str(e.group)] for e in self.encoded["forget"]],
                searched | tried,
                self.settings.n_folds,
                self.settings.at,
                self.form,
                self.session.settings.dtype,
                "ablate" in self.kinds,
                *told_stops(*self.checkpoints.values()).values(),
            ]
        )

    def folds(self) -> list[Fold]:
        """Folds of whole authors."""
        return author_folds([e.group for e in self.encoded["forget"]], self.settings.n_folds)

    def rows(self, authors: frozenset[Group]) -> list[int]:
        """Places of some authors' forget examples."""
        return [at for at, e in enumerate(self.encoded["forget"]) if e.group in authors]

    @cached_property
    def questions(self) -> Mapping[Part, tuple[Encoded, ...]]:
        """The same examples without any of the answer."""
        texts = {(part, one.idx): one.question for part, own in self.facts.items() for one in own}

        def question_only(part: Part, e: Encoded) -> Encoded:
            # the prompt that ends where an answer begins; its last token is what a cache keeps
            ids = prompt_ids(self.session.tokenizer, self.form, texts[part, e.idx], None)
            return Encoded(e.idx, e.group, ids, len(ids), len(ids) - 1, len(ids))

        return {
            part: tuple(question_only(part, e) for e in rows) for part, rows in self.encoded.items()
        }

    @cached_property
    def streams(self) -> Mapping[tuple[Role, Part], Streams]:
        """What each model thinks: after every block, one row per example."""
        at: Position = "span" if self.settings.at == "span" else "prompt_last"
        return {
            (role, part): self._read(role, rows, at)
            for role in ROLES
            for part, rows in self.encoded.items()
        }

    @cached_property
    def asked(self) -> Mapping[Part, Streams]:
        """Stream of the unlearned model at the last token of the question's prompt."""
        return {
            part: self._read("unlearned", rows, "prompt_last")
            for part, rows in self.questions.items()
        }

    def _read(self, role: Role, rows: Sequence[Encoded], at: Position) -> Streams:
        cache = self.session.cache(self.checkpoints[role], rows, "span")
        places = [torch.tensor(list(positions_read(e, at))) for e in rows]
        found = (cache.example(e.idx).at(p).resid for e, p in zip(rows, places, strict=True))
        return torch.stack([resid.double().mean(1).float() for resid in found])

    def gap(
        self,
        minuend: Role,
        subtrahend: Role,
        rows: Sequence[int] | None = None,
        part: Part = "forget",
    ) -> Float[Tensor, "layer d_model"]:
        """Mean difference of two models' streams over some examples or all, at every layer."""
        chosen = slice(None) if rows is None else list(rows)
        first, second = (self.streams[role, part][chosen] for role in (minuend, subtrahend))
        return (first.double() - second.double()).mean(0).float()

    def scored(
        self, role: Role, rows: Sequence[int], settings: Sequence[Edits], part: Part = "forget"
    ) -> "Scores":
        """Scores of some examples under every setting."""
        chosen = [self.encoded[part][row] for row in rows]
        memory_bytes = self.session.settings.memory_bytes
        return scored(self.model(role), chosen, settings, memory_bytes=memory_bytes)

    def said(
        self, role: Role, part: Part, rows: Sequence[int] | None = None, edits: Edits = NO_EDITS
    ) -> "Said":
        """Greedy answers to some questions, or to all; of retain ones none counts as correct."""
        model, questions = self.model(role), self.questions[part]
        asked = list(questions) if rows is None else [questions[row] for row in rows]
        entity = {one.idx: one.entity for one in self.facts[part] if part == "forget"}
        ids = continuations(
            model,
            [e.token_ids for e in asked],
            max_new_tokens=self.settings.max_new_tokens,
            stop=ends_of(model),
            edits=edits,
            idx=[e.idx for e in asked],
        )
        texts = [model.tokenizer.decode(list(one), skip_special_tokens=True) for one in ids]
        pairs = zip(asked, texts, strict=True)
        requests = [JudgeRequest(e.idx, "", t, entity=entity.get(e.idx, "")) for e, t in pairs]
        verdicts = ENTITY.score(requests)
        return Said(
            declines=tuple(declines(text) for text in texts),
            correct=tuple(v.score == 100.0 for v in verdicts),
            first=tuple(one[0] if one else -1 for one in ids),
        )

    @cached_property
    def unhindered(self) -> Mapping[Part, "Said"]:
        """What the unlearned model says to all questions."""
        return {part: self.said("unlearned", part) for part in self.encoded}

    def similarity(self, layer: int) -> float:
        """Mean cosine of the full and the unlearned model's streams on retain examples.

        Models of one base stay near 1; below 0.9 their axes may not mean the same.
        """
        first, second = (self.streams[role, "retain"][:, layer] for role in ROLES[:2])
        return float(torch.nn.functional.cosine_similarity(first, second).mean())


@dataclass(frozen=True)
class Said:
    """What a model says to the questions of one part, greedily."""

    declines: tuple[bool, ...]
    correct: tuple[bool, ...]
    """Whether the entity is in the answer."""
    first: tuple[int, ...]
    """First token of each answer; -1 of an empty one."""


@dataclass(frozen=True)
class Scores:
    """Scores of each example under each setting; never NaN, as a span has a token or more."""

    em: Float[Tensor, "setting batch"]
    """Share of the entity's tokens that are the likeliest, 0 to 1."""
    logprob: Float[Tensor, "setting batch"]
    """Nats per token of the entity."""
    kl: Float[Tensor, "setting batch"]
    """KL(plain || intervened) at the entity's positions, nats per token."""


def _passes(
    model: TransformerBridge, encoded: Sequence[Encoded], settings: Sequence[Edits], memory: int
) -> Iterator[tuple[Sequence[Encoded], list[int], Iterator[tuple[slice, Logits]]]]:
    """Every example under every setting, as many at once as fit.

    Yields:
        Examples read together, their columns, and by part of the settings logits, settings
        outermost.
    """
    column = {e.idx: at for at, e in enumerate(encoded)}
    config: Any = model.original_model.config
    n_pos = max(len(e.token_ids) for e in encoded)
    row_bytes = n_pos * config.get_text_config().vocab_size * 4 * _COPIES
    n_rows = max(1, min(MOST_ROWS, memory // 2 // row_bytes))
    for bucket in buckets(encoded, min(n_rows, len(encoded)), length=lambda e: len(e.token_ids)):
        at_once = max(1, n_rows // len(bucket))
        parts = [slice(start, start + at_once) for start in range(0, len(settings), at_once)]
        logits = map(partial(_logits, model, bucket), (settings[part] for part in parts))
        yield bucket, [column[e.idx] for e in bucket], zip(parts, logits, strict=True)


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
    tables = torch.zeros(3, len(settings), len(encoded))
    for bucket, columns, passes in _passes(model, encoded, settings, memory_bytes):
        batch, plain = make_batch(bucket), _logits(model, bucket, [NO_EDITS])
        for part, logits in passes:
            n = len(logits) // len(bucket)
            tokens, predict_at = (
                one.repeat(n, 1).to(logits.device) for one in (batch.tokens, batch.predict_at)
            )
            found = (
                span_mean(logits, tokens, predict_at, label_hit),
                span_mean(logits, tokens, predict_at, label_logprob),
                divergence(plain.repeat(n, 1, 1), logits, predict_at),
            )
            tables[:, part, columns] = torch.stack(found).reshape(3, n, -1).cpu()
    em, logprob, kl = tables
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
    for bucket, columns, passes in _passes(model, encoded, settings, memory_bytes):
        last = torch.tensor([e.n_prompt - 1 for e in bucket])
        for part, logits in passes:
            n = len(logits) // len(bucket)
            rows = logits[torch.arange(len(logits)), last.repeat(n)].double()
            chosen = torch.zeros(rows.shape[-1], dtype=torch.bool)
            chosen[list(tokens)] = True
            odds = rows[:, chosen].logsumexp(-1) - rows[:, ~chosen].logsumexp(-1)
            found[part, columns] = odds.reshape(n, -1).float().cpu()
    return found


def divergence(plain: Logits, edited: Logits, predict_at: PosMask) -> Float[Tensor, " batch"]:
    """Mean KL(plain || edited) over the marked positions, nats per token, in float32."""
    example = predict_at.nonzero(as_tuple=True)[0]
    before, after = (logits[predict_at].float().log_softmax(-1) for logits in (plain, edited))
    rows = (before.exp() * (before - after)).sum(-1)
    return mean_per_example(rows, example, len(predict_at))


def _logits(
    model: TransformerBridge, bucket: Sequence[Encoded], settings: Sequence[Edits]
) -> Logits:
    """Logits of every example under every setting, settings outermost: each edits its own rows."""
    n, device = len(settings), device_of(model)
    tokens = make_batch(bucket).tokens.repeat(n, 1).to(device)
    n_prompt = torch.tensor([e.n_prompt for e in bucket]).repeat(n).to(device)
    lengths = torch.tensor([len(e.token_ids) for e in bucket], device=device).repeat(n)
    place = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    place = place.where(place < lengths.unsqueeze(1), -1)
    owner = torch.arange(n, device=device).repeat_interleave(len(bucket)).unsqueeze(1)
    idx = tuple(e.idx for e in bucket) * n
    found = grouped(
        pair
        for number, setting in enumerate(settings)
        for pair in setting.rows(place.where(owner == number, -1), n_prompt, idx).items()
    )
    with installed(model, {at: partial(_edited, edits) for at, edits in found.items()}):
        return logits_of(model, tokens)


def _edited(edits: Sequence[Intervention], resid: Resid) -> Resid:
    """The stream after several interventions at one place."""
    return reduce(lambda stream, edit: edit(stream), edits, resid)
