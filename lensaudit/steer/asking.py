"""What a model says about a trait: asked, or read where answers are written.

Answers are written, or asked for by pairs of system prompts; each is judged once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, Tokenizer, encode, joined
from lensaudit.errors import InputError, PartialError
from lensaudit.groups import batched
from lensaudit.judge.items import Judge, JudgeRequest
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.stops import told_stops
from lensaudit.patching.generation import rows_that_fit
from lensaudit.patching.options import parse_layers, parse_memory
from lensaudit.patching.speech import ends_of
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.ledger import Ledger
from lensaudit.results.owner import check_free
from lensaudit.steer.draws import draws_of
from lensaudit.steer.generate import (
    NO_EDITS,
    Edits,
    Format,
    continuations,
    format_of,
    prompt_ids,
)
from lensaudit.steer.judging import JUDGEMENTS, PASSING, JudgedAnswer, judged
from lensaudit.steer.settings import Position, TraitSettings
from lensaudit.steer.trait import COMMAND, ContrastSample, Elicitation, Trait, folder_of
from lensaudit.text import digest

AnyModel = TypeVar("AnyModel", bound="TraitModel")


@dataclass(frozen=True)
class Ask:
    """A question, asked once."""

    question: str
    line: Mapping[str, Any]
    """What the log says of it: all that its answer depends on, and more."""
    system: str | None = None


MOST_ROWS = 64
"""Answers generated at once."""


@dataclass(frozen=True)
class TraitModel:
    """A model that is asked or read about a trait; loaded when it must say something."""

    settings: Any
    """Of `steer extract`, `eval` or `sweep`."""
    trait: Trait
    checkpoint: Checkpoint
    form: Format
    dtype: str
    device: str
    notice: Notice = unheard
    """Told which lines of a log do not count."""
    progress: Tell = unheard

    @classmethod
    def opened(
        cls: type[AnyModel],
        settings: TraitSettings,
        trait: Trait,
        notice: Notice = unheard,
    ) -> AnyModel:
        """The model that is named, and how it runs."""
        check_free(folder_of(settings, trait), COMMAND)
        parse_memory(settings.memory)
        checkpoint = open_model(settings.name, settings.registry)
        device = resolve_device(settings.device)
        form = format_of(load_tokenizer(checkpoint), settings.form)
        dtype = resolve_dtype(settings.dtype, device)
        return cls(settings, trait, checkpoint, form, dtype, device, notice)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that the settings name.

        Raises:
            InputError: the model has no such layer.
        """
        return parse_layers(self.settings.layers, self.checkpoint.n_layers)

    @property
    def sampling(self) -> dict[str, Any]:
        """How its answers are drawn."""
        names = ("temperature", "max_new_tokens", "seed")
        return {name: getattr(self.settings, name) for name in names}

    @property
    def folder(self) -> Path:
        """Folder of the files of this model and trait."""
        return folder_of(self.settings, self.trait)

    @cached_property
    def model(self) -> TransformerBridge:
        """The model that answers, loaded."""
        return load(self.checkpoint, dtype=DTYPES[self.dtype], device=self.device)

    def conditions(self) -> dict[str, Any]:
        """What determines an answer beside question, steering and sampling."""
        return {
            "model": self.checkpoint.spec.name,
            "weights": self.checkpoint.weights,
            "tokenizer": self.checkpoint.tokenizer,
            "format": self.form,
            "dtype": self.dtype,
            **told_stops(self.checkpoint),
        }

    def inputs(self) -> dict[str, Any]:
        """The same, as a manifest names it: the model by its name and its weights."""
        one = self.checkpoint
        return {**self.conditions(), "model": {"name": one.spec.name, "weights": one.weights}}

    def answers(
        self,
        log: Path,
        kind: str,
        asks: Mapping[str, Ask],
        what: str,
        edits: Edits = NO_EDITS,
        aside: tuple[str, ...] = (),
        *,
        before: int = 0,
        of: int | None = None,
    ) -> dict[str, str]:
        """What it says, by the key of a question: generated where the log lacks it, and kept there.

        Args:
            log: a ledger of this `kind`, written batch by batch.
            kind: of the ledger.
            asks: what is asked, by what its random numbers belong to.
            what: is going on, for whoever is told after each batch.
            edits: under which it is said.
            aside: names in a line on which its answer does not depend.
            before: how many answers to other questions are there.
            of: how many are wanted in all; None: these.
        """
        ledger = Ledger(log, kind, {}, notice=self.notice)
        found = said_in(ledger, asks, aside)
        for said in self._said({key: one for key, one in asks.items() if key not in found}, edits):
            ledger.append({**asks[key].line, "text": one} for key, one in said.items())
            found |= said
            self.progress(Progress(what, before + len(found), of or len(asks)))
        return found

    def judged(
        self, by: tuple[Judge, Judge], requests: Sequence[JudgeRequest]
    ) -> list[JudgedAnswer]:
        """Each answer with its trait and coherence, in order."""
        prompt, place = self.trait.eval_prompt, self.folder
        return judged(by, prompt, requests, place, notice=self.notice, progress=self.progress)

    def _said(self, asks: Mapping[str, Ask], edits: Edits) -> Iterator[dict[str, str]]:
        """What it says, batch by batch."""
        if not asks:
            return
        settings, tokenizer, stop = self.settings, self.model.tokenizer, ends_of(self.model)
        prompts = {
            key: prompt_ids(tokenizer, self.form, one.question, one.system)
            for key, one in asks.items()
        }
        n_new = settings.max_new_tokens
        n_pos, memory = max(map(len, prompts.values())) + n_new, parse_memory(settings.memory)
        size = settings.batch_size or min(MOST_ROWS, rows_that_fit(self.model, n_pos, memory))
        for keys in batched(list(prompts), size):
            said = continuations(
                self.model,
                [prompts[key] for key in keys],
                max_new_tokens=n_new,
                stop=stop,
                edits=edits,
                draws=draws_of(
                    keys, n_steps=n_new, seed=settings.seed, temperature=settings.temperature
                ),
            )
            texts = (tokenizer.decode(list(ids), skip_special_tokens=True).strip() for ids in said)
            yield dict(zip(keys, texts, strict=True))


def said_in(ledger: Ledger, asks: Mapping[str, Ask], aside: tuple[str, ...] = ()) -> dict[str, str]:
    """The answers that a ledger has, by the key of a question; `aside` as of `answers`."""

    def asked_in(line: Mapping[str, Any]) -> str:
        return digest({k: one for k, one in line.items() if k not in ("text", *aside)})

    texts = {asked_in(row): row["text"] for row in ledger.rows}
    known = {key: texts.get(asked_in(ask.line)) for key, ask in asks.items()}
    return {key: text for key, text in known.items() if text is not None}


def written(trait: Trait) -> list[ContrastSample]:
    """The samples of a trait's own rows; pairs where both sides ask the same questions in order."""
    sides = {True: trait.contrast["positive"], False: trait.contrast["negative"]}
    asked = [[row.question for row in side] for side in sides.values()]
    rows = [
        ContrastSample(**vars(row), positive=is_it, pair=at if asked[0] == asked[1] else None)
        for is_it, side in sides.items()
        for at, row in enumerate(side)
    ]
    return [replace(row, idx=idx) for idx, row in enumerate(rows)]


def whole_pairs(samples: Sequence[ContrastSample]) -> list[ContrastSample]:
    """Answers whose partner is there; of those written in advance all stay."""
    n_in = Counter(one.pair for one in samples)
    return [one for one in samples if one.pair is None or n_in[one.pair] == 2]


def encode_sample(
    sample: ContrastSample, tokenizer: Any, *, form: Format, position: Position
) -> Encoded | str:
    """Prompt and answer joined; the kept rows are the last prompt token's and the answer's.

    For `span` they are those that score the entity, in the format of the depth score.

    Raises:
        InputError: `span` of an answer without an entity.
    """
    idx, question, text = sample.idx, sample.question, sample.answer
    if position == "span":
        if not sample.entity or sample.system:
            raise InputError(
                f"--position span: {question[:60]!r} has no entity; give annotated rows "
                "(question, answer, prefix, entity)"
            )
        return encode(Fact(idx, question, text, sample.prefix, sample.entity, question), tokenizer)
    prompt = prompt_ids(tokenizer, form, question, sample.system)
    if form == "chat":
        answer = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    else:
        answer = following(tokenizer, text if text[:1].isspace() else f" {text}")
    if not answer:
        return "the tokenizer makes no token of the answer"
    ids = (*prompt, *answer)
    # folds keep the answers to a question together
    return Encoded(idx, question, ids, len(prompt), len(prompt), len(ids))


def following(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Tokens of a `text` that follows another."""
    ids, _, n_prompt = joined(tokenizer, "", text)
    return ids[n_prompt:]


def positions_read(encoded: Encoded, position: Position) -> range:
    """Token positions that are averaged."""
    if position == "prompt_last":
        return range(encoded.n_prompt - 1, encoded.n_prompt)
    return range(encoded.start, encoded.end)


KEPT_FROM = 50.0
"""A pair stays if the positive answer scores at least this and the negative one less, and both
cohere at least so much; arXiv:2507.21509."""


def asked(elicitation: Elicitation, n_rollouts: int) -> list[tuple[str, ContrastSample]]:
    """Every question under every system prompt, `n_rollouts` times; pairs share a number.

    Returns:
        What the random numbers of an answer belong to, and the sample that it is for.
    """
    systems = zip(elicitation.positive, elicitation.negative, strict=True)
    asks = product(systems, elicitation.questions, range(n_rollouts))
    every = [
        (question, system, rollout, is_positive, pair)
        for pair, (both, question, rollout) in enumerate(asks)
        for is_positive, system in zip((True, False), both, strict=True)
    ]
    return [
        (
            digest([question, system, rollout]),
            ContrastSample(question, "", "", "", idx, is_positive, pair, system),
        )
        for idx, (question, system, rollout, is_positive, pair) in enumerate(every)
    ]


def to_elicit(job: TraitModel) -> list[tuple[str, ContrastSample]]:
    """The samples that a model is asked for, see `asked`.

    Raises:
        InputError: the trait has no elicitation, or entities are wanted, which no such answer has.
    """
    if job.trait.extraction is None:
        raise InputError(f"trait {job.trait.name}: no extraction prompts and no contrast rows")
    if job.settings.position == "span":
        raise InputError(
            "--position span: elicited answers have no entity; give annotated rows (question, "
            "answer, prefix, entity)"
        )
    return asked(job.trait.extraction, job.settings.n_rollouts)


def elicit(job: TraitModel) -> list[ContrastSample]:
    """The trait's answers, generated where the log lacks them, batch by batch.

    Raises:
        InputError: as `to_elicit`.
    """
    wanted = to_elicit(job)
    # what determines an answer: weights, format, sampling, prompt
    identity = digest(job.conditions())

    def ask(key: str, one: ContrastSample) -> Ask:
        line = {"key": digest([identity, job.sampling, key])}
        line |= {"question": one.question, "system": one.system}
        return Ask(one.question, line, one.system)

    asks = {key: ask(key, one) for key, one in wanted}

    said = job.answers(job.folder / "elicited.jsonl", "elicited", asks, "eliciting")
    return whole_pairs([replace(one, answer=said[key]) for key, one in wanted if said[key]])


def filtered(
    job: TraitModel, samples: Sequence[ContrastSample], by: tuple[Judge, Judge]
) -> list[ContrastSample]:
    """Pairs in which the answers differ in the trait and both hold together.

    Raises:
        InputError: no pair is left.
        PartialError: the judge could not be asked about some answers; a direction from the others
            would be another one.
    """
    requests = [JudgeRequest(one.idx, one.question, one.answer) for one in samples]
    answers = job.judged(by, requests)
    waiting = [one.reason for pair in answers for one in pair.verdicts if one.status in PASSING]
    if waiting:
        raise PartialError(
            f"{len(waiting)} of {2 * len(samples)} judgements of elicited answers are missing "
            f"({waiting[0]}); {job.folder / JUDGEMENTS} holds the others, run the same command "
            "again to go on"
        )
    good = {
        sample.idx
        for sample, one in zip(samples, answers, strict=True)
        if one.coherence.score is not None and one.coherence.score >= KEPT_FROM
        if one.trait.score is not None and (one.trait.score >= KEPT_FROM) == sample.positive
    }
    kept = whole_pairs([one for one in samples if one.idx in good])
    if not kept:
        raise InputError(
            f"trait {job.trait.name}: {by[0].name} finds no pair of answers that differ in the "
            f"trait (of {len(samples) // 2}); use another model, another judge or --filter none"
        )
    return kept
