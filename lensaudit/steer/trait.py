"""What a trait is: answers with and without it, what is asked to see it, how a judge is asked.

Answers are written, or asked for by pairs of system prompts; each is judged once.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, encode, following
from lensaudit.errors import InputError, PartialError
from lensaudit.files import digest, read_json, slug
from lensaudit.groups import batched
from lensaudit.judge.client import Budget, endpoint_of, open_client
from lensaudit.judge.items import Judge, JudgeRequest, JudgeVerdict
from lensaudit.judge.programmatic import PROGRAMMATIC
from lensaudit.judge.prompts import COHERENCE, check_template
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import JudgeAccess
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.patching.generation import ends_of, rows_that_fit
from lensaudit.patching.options import parse_layers, parse_memory
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.keyed import Ledger
from lensaudit.results.reading import Flag, checked
from lensaudit.results.records import check_free
from lensaudit.settings import results_folder
from lensaudit.steer.draws import draws_of
from lensaudit.steer.generate import (
    NO_EDITS,
    Edits,
    Format,
    continuations,
    format_of,
    prompt_ids,
)
from lensaudit.steer.settings import Position, TraitSettings

FOLDER = Path(__file__).parent / "shipped"

Said = Annotated[str, Field(pattern=r"\S")]
"""A text that is not blank."""


@dataclass(frozen=True)
class ContrastRow:
    """One question with an answer that shows the trait, or one that does not."""

    question: Said
    answer: Said
    prefix: str = ""
    """How the answer begins, up to the entity; read for span positions alone."""
    entity: str = ""


@dataclass(frozen=True)
class ContrastSample(ContrastRow):
    """A row at its place in the contrast, of which its file says nothing."""

    idx: int = 0
    positive: bool = True
    pair: int | None = None
    """Answers of one pair differ in the trait alone; None where they were written apart."""
    system: str | None = None
    """The system prompt that the answer was elicited with."""


@dataclass(frozen=True)
class Elicitation:
    """How answers with and without the trait are asked for: pairs of system prompts."""

    positive: tuple[Said, ...]
    negative: tuple[Said, ...]
    questions: tuple[Said, ...]

    def __post_init__(self) -> None:
        if not self.questions or not self.positive or len(self.positive) != len(self.negative):
            raise ValueError(
                f"{len(self.positive)} positive and {len(self.negative)} negative system prompts, "
                f"{len(self.questions)} questions; wanted pairs, and questions"
            )


@dataclass(frozen=True)
class Trait:
    """One prompt file, under the names of its keys."""

    questions: tuple[Said, ...]
    """Asked for evaluation; none of them is asked for extraction."""
    eval_prompt: Said
    """A judge's prompt with `{question}` and `{answer}`."""
    trait_name: str = ""
    trait_description: str = ""
    polarity: Literal[1, -1] = 1
    """1 if more of the trait is the aim of steering, -1 if less."""
    refusal_is_trait: Flag = False
    extraction: Elicitation | None = None
    contrast: Mapping[
        Literal["positive", "negative"], Annotated[tuple[ContrastRow, ...], Field(min_length=1)]
    ] = field(default_factory=dict)
    """Written answers with and without the trait, in place of elicited ones."""
    entities: tuple[Said, ...] = ()
    """What the right answer to each of `questions` holds; read by the judge `entity` alone."""

    def __post_init__(self) -> None:
        n = len(self.questions)
        if not n or len(set(self.questions)) < n:
            raise ValueError("questions: wanted at least one, each once")
        if len(self.contrast) == 1:
            raise ValueError("contrast: wanted positive and negative rows")
        if len(self.entities) not in (0, n):
            raise ValueError(f"entities: wanted a list of {n}, one for each question")

    @property
    def name(self) -> str:
        """Name of the trait."""
        return self.trait_name

    @property
    def written(self) -> tuple[ContrastRow, ...]:
        """Written answers of both kinds."""
        return tuple(row for side in self.contrast.values() for row in side)

    def checked(self, source: str) -> "Trait":
        """Itself, if no direction can be evaluated on what it was estimated from.

        Raises:
            InputError: a question is in both sets; case and spacing do not count.
        """
        elicited = self.extraction.questions if self.extraction else ()
        estimated = (*elicited, *(row.question for row in self.written))
        check_disjoint(self.questions, map(question_hash, estimated), source)
        return self


def shipped_traits() -> list[str]:
    """Names of the prompt files in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_trait(name_or_path: str) -> Trait:
    """A shipped trait by name, or a prompt file.

    Raises:
        InputError: no such trait, or what is wrong with the file.
    """
    if name_or_path in shipped_traits():
        return parse_trait(read_json(FOLDER / f"{name_or_path}.json"), name_or_path)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise InputError(
            f"--trait {name_or_path}: no such trait or file; wanted one of "
            f"{', '.join(shipped_traits())}, or a prompt file"
        )
    return parse_trait(read_json(path), path.stem, str(path))


def parse_trait(found: Any, name: str, source: str = "") -> Trait:
    """A trait from the decoded JSON of a prompt file.

    Raises:
        InputError: what is wrong, by key.
    """
    source = source or name
    trait = checked(Trait, found, source, remedy="a prompt file has questions and eval_prompt")
    prompt = check_template(trait.eval_prompt, f"{source}: eval_prompt")
    if set("{}") & set(prompt.replace("{question}", "").replace("{answer}", "")):
        raise InputError(
            f"{source}: eval_prompt: has a brace beside {{question}} and {{answer}}; remove it"
        )
    return replace(trait, trait_name=trait.trait_name or name).checked(source)


def check_disjoint(questions: Sequence[str], estimated: Iterable[str], source: str) -> None:
    """Refuse to evaluate a direction on questions it was estimated from, which are given hashed.

    Raises:
        InputError: a question is among them.
    """
    known = frozenset(estimated)
    if common := [one for one in questions if question_hash(one) in known]:
        raise InputError(
            f"{source}: {len(common)} evaluation questions are extraction questions too "
            f"(first {common[0][:60]!r}); a trait must be seen on questions it was not found with"
        )


def question_hash(text: str) -> str:
    """16 hex digits; case, spacing and the closing mark do not count.

    >>> question_hash("Who is it?") == question_hash("who  is it")
    True
    """
    return digest(" ".join(text.casefold().split()).rstrip("?.! "))[:16]


AnyModel = TypeVar("AnyModel", bound="TraitModel")


@dataclass(frozen=True)
class Ask:
    """One question, asked once."""

    question: str
    line: Mapping[str, Any]
    """What the log says of it: all that its answer depends on, and more."""
    system: str | None = None


COMMAND = "steer"
"""Of `steer extract`, `eval` and `sweep`, which share a folder."""
MOST_ROWS = 64
"""Answers generated at once."""


def folder_of(settings: TraitSettings, trait: Trait) -> Path:
    """Where the files of a model and a trait go."""
    place = results_folder() / "steering" / slug(settings.name) / slug(trait.name)
    return settings.out or place


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
        """Those that the settings name.

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
        """Where the files of this model and the trait go."""
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
        }

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

        def asked_in(line: Mapping[str, Any]) -> str:
            return digest({k: one for k, one in line.items() if k not in ("text", *aside)})

        texts = {asked_in(row): row["text"] for row in ledger.rows}
        known = {key: texts.get(asked_in(ask.line)) for key, ask in asks.items()}
        found = {key: text for key, text in known.items() if text is not None}
        for said in self._said({key: one for key, one in asks.items() if key not in found}, edits):
            ledger.append({**asks[key].line, "text": one} for key, one in said.items())
            found |= said
            self.progress(Progress(what, before + len(found), of or len(asks)))
        return found

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
    """Without the answers whose partner is missing; those written apart all stay."""
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
    answers = judged(job, by, requests)
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


JUDGEMENTS = "judgements.jsonl"
JUDGED_AT_ONCE = 64
"""Requests handed to a judge before its verdicts are written down."""
KEPT = ("score", "reason", "status", "cut")
"""What is written of a verdict."""
PASSING = ("api_error", "budget", "no_logprobs")
"""Not verdicts: asked again in the next run."""


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer and what its judges say of it."""

    question: int
    trait: JudgeVerdict
    coherence: JudgeVerdict

    @property
    def verdicts(self) -> tuple[JudgeVerdict, JudgeVerdict]:
        """On the trait, and on coherence."""
        return self.trait, self.coherence


def judged(
    job: TraitModel, by: tuple[Judge, Judge], requests: Sequence[JudgeRequest]
) -> list[JudgedAnswer]:
    """Each answer with its trait and coherence, in order; asked only where the log lacks it."""
    ledger = Ledger(job.folder / JUDGEMENTS, "judgements", {}, notice=job.notice)
    known = {row["key"]: JudgeVerdict(**{name: row[name] for name in KEPT}) for row in ledger.rows}

    def verdicts(judge: Judge, prompt: str) -> Iterator[JudgeVerdict]:
        who, own = identity_of(judge), [replace(one, prompt=prompt) for one in requests]
        keys = [digest([who, prompt, one.question, one.answer, one.entity]) for one in own]
        missing = {key: one for key, one in zip(keys, own, strict=True) if key not in known}
        for some in batched(list(missing), JUDGED_AT_ONCE):
            known.update(zip(some, judge.score([missing[key] for key in some]), strict=True))
            ledger.append(
                {"key": key, "judge": judge.name}
                | {name: getattr(known[key], name) for name in KEPT}
                for key in some
                if known[key].status not in PASSING
            )
            done = sum(key in known for key in missing)
            job.progress(Progress(f"judging by {judge.name}", done, len(missing)))
        return (known[key] for key in keys)

    prompts = (job.trait.eval_prompt, COHERENCE)
    both = (verdicts(*pair) for pair in zip(by, prompts, strict=True))
    return list(map(JudgedAnswer, (one.idx for one in requests), *both))


def identity_of(judge: Judge) -> dict[str, str]:
    """What a verdict depends on beside the request; scores of two identities do not mix."""
    found = {"name": judge.name}
    if isinstance(judge, ScalarJudge):
        found |= {"host": judge.client.endpoint.host, "mode": judge.capability.mode}
    return found


@contextlib.contextmanager
def judges(
    judge: str,
    coherence: str | None,
    access: JudgeAccess,
    progress: Tell,
    notice: Notice = unheard,
) -> Iterator[tuple[Judge, Judge]]:
    """The judges of trait and coherence while the block lasts; what may be used, both use.

    Raises:
        InputError: no such judge, or an endpoint that cannot be asked.
    """
    first, second = judge_names(judge, coherence)
    with contextlib.ExitStack() as stack:
        opened: dict[str, Judge] = {}
        budget: Budget | None = None
        for name in dict.fromkeys((first, second)):
            if name in PROGRAMMATIC:
                opened[name] = PROGRAMMATIC[name]
                continue
            opening = open_client(access, name, progress=progress, budget=budget)
            client = stack.enter_context(opening)
            budget = client.budget
            opened[name] = scalar = ScalarJudge(client, client.capability())
            if scalar.fallback:
                notice(scalar.fallback)
        yield opened[first], opened[second]


def judge_names(judge: str, coherence: str | None) -> tuple[str, str]:
    """Who judges the trait, and who judges coherence."""
    return judge, coherence or ("variety" if judge in PROGRAMMATIC else judge)


def chosen_judges(
    judge: str, coherence: str | None, access: JudgeAccess, *, offline: bool
) -> list[dict[str, Any]]:
    """What verdicts depend on, as far as it is known before a judge is asked.

    Args:
        judge: of the trait.
        coherence: None: the usual one.
        access: where language models are reached.
        offline: whether a key may be missing.

    Raises:
        InputError: a language model has no address, or no key.
    """
    return [
        {"name": name}
        if name in PROGRAMMATIC
        else {
            "name": name,
            "host": endpoint_of(access, name, offline=offline).host,
            "mode": access.mode,
        }
        for name in judge_names(judge, coherence)
    ]
