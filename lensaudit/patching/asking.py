"""Does a model give a fact away when it is plainly asked? Once, greedily, by one matcher.

Each fact is asked as the question of the patched prompt, and in the chat template where there is
one: of the source, of `full`, and of every model that never saw the facts. An answer counts in any
surface form (`data.candidates.mentions`), and a fact counts once, whichever way it is given away;
the same in all arms. Texts are kept by content, so those of `full` and `retain` serve every source.
A model that thinks is asked after an empty thought: a thought takes more tokens than an answer has.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lensaudit.data.chat import Template, answer_of, check_tokenizer, encode_qa, thinks
from lensaudit.data.facts import Fact
from lensaudit.data.matching import gives_away, why_not
from lensaudit.data.spans import prompt
from lensaudit.errors import InputError, WorkError
from lensaudit.groups import by_length
from lensaudit.models.bridge import DTYPES, TransformerBridge
from lensaudit.models.checkpoint import Checkpoint, config_of, load_tokenizer
from lensaudit.models.generation import stop_of
from lensaudit.models.large.placement import fits_whole
from lensaudit.models.likeness import same_tokenizer
from lensaudit.models.sizes import context_of
from lensaudit.patching.generation import as_guessed, generate, rows_that_fit
from lensaudit.patching.options import ANSWER_TOKENS
from lensaudit.patching.score_cache import AnswerCache, answer_key, prompt_key
from lensaudit.patching.session import Session
from lensaudit.progress import Progress
from lensaudit.results.kinds.patch import Answer, InType, Outputs, Told, Way
from lensaudit.scores.intervals import typical_size

_CUT = f"the thought was cut at {ANSWER_TOKENS} tokens"
ASKED_AT_ONCE = 64
"""Questions of one batch, where memory holds them: an interruption loses at most these."""
Ids = tuple[int, ...]
Prompts = Mapping[Way, Mapping[int, Ids]]
"""Way of asking -> tokens by idx."""


@dataclass
class DirectQuestions:
    """The facts that the models of a session are asked, and what each says."""

    session: Session
    _prompts: dict[str, Prompts] = field(default_factory=dict)
    """By tokenizer."""
    guesses: Mapping[str, tuple[Ids, str]] | None = None
    """What models may say, by `prompt_key`: what they said in another type of numbers."""

    @cached_property
    def unasked(self) -> dict[int, str]:
        """Idx -> why a fact is not asked: the answer would show nothing, or be too long."""
        found = {row.idx: why for row in self.session.examples if (why := why_not(row))}
        for one in self.models:
            window = context_of(config_of(one))
            for idx, ids in (pair for way in self.asked(one).values() for pair in way.items()):
                if idx not in found and (why := window.too_long(len(ids), ANSWER_TOKENS)):
                    found[idx] = why
        return found

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts that are asked."""
        return tuple(row for row in self.session.examples if row.idx not in self.unasked)

    @property
    def models(self) -> Sequence[Checkpoint]:
        """Whoever is asked; each set of weights once, and `full` last: it stays in memory."""
        session = self.session
        every = (*session.sources.values(), *session.never, session.full)
        return list({one.weights: one for one in every}.values())

    def missing(self, one: Checkpoint) -> list[Ids]:
        """Prompts of a model whose answers are not kept yet."""
        known = self._kept(one).known
        return [ids for ids in self.every(one) if prompt_key(ids) not in known]

    def answers(self, one: Checkpoint) -> dict[Way, dict[int, str | None]]:
        """What a model says, by way of asking and idx; it runs for what is not kept.

        None: its thought was cut.

        Raises:
            WorkError: logits are not finite.
        """
        asked, kept, tokenizer = self.asked(one), self._kept(one), self._tokenizer(one)
        if todo := self.missing(one):
            session, model, stop = self.session, self.session.model(one), stop_of(one, tokenizer)
            longest, n_done = max(map(len, todo)) + ANSWER_TOKENS, 0
            n_logits = 1 if self.guesses is None else 1 + ANSWER_TOKENS
            settings = session.settings
            fit = rows_that_fit(model, longest, settings.memory_bytes, n_logits)
            for places in by_length(todo, settings.batch_size or min(ASKED_AT_ONCE, fit)):
                batch = [todo[at] for at in places]
                said = self._said(model, batch, stop)
                decode = model.tokenizer.decode
                kept.add(batch, said, [decode([*ids], skip_special_tokens=True) for ids in said])
                n_done += len(batch)
                session.progress(Progress(f"asking {one.spec.name}", n_done, len(todo)))

        def heard(prompt: Ids) -> str | None:
            said = answer_of(tokenizer, prompt, kept.known[prompt_key(prompt)][0])
            return None if said is None else said.strip()

        return {
            way: {row.idx: heard(of[row.idx]) for row in self.facts} for way, of in asked.items()
        }

    def _said(
        self, model: TransformerBridge, batch: Sequence[Ids], stop: frozenset[int]
    ) -> list[Ids]:
        how: Any = {"max_new_tokens": ANSWER_TOKENS, "stop": stop}
        if self.guesses is None:
            return generate(model, batch, **how)
        guesses = [self.guesses.get(prompt_key(ids), ((), ""))[0] for ids in batch]
        return as_guessed(model, batch, guesses, **how)

    def told(self, source: Checkpoint) -> Told:
        """What a source gives away, beside `full` and the models that never saw the facts."""
        if not self.facts:
            return Told(why=f"no fact can be asked: {next(iter(self.unasked.values()))}")
        arms = {"source": (source,), "full": (self.session.full,), "retain": self.session.never}
        heard = {role: [self._given(one) for one in ones] for role, ones in arms.items() if ones}
        clear = [
            row.idx
            for row in self.facts
            if all(row.idx in found for ones in heard.values() for found in ones)
        ]
        lost = {row.idx: _CUT for row in self.facts if row.idx not in clear}
        if lost:
            self.session.notice(f"{len(lost)} of {len(self.facts)} facts are not counted: {_CUT}")
        if not clear:
            return Told(why=f"no answer can be counted: {_CUT}")
        given = {
            role: [{idx: found[idx] for idx in clear} for found in ones]
            for role, ones in heard.items()
        }
        own, texts, n = given["source"][0], self.answers(source), len(clear)
        groups = [row.group for row in self.facts if row.idx in own]

        def shares(ways: Collection[Way]) -> Outputs:
            """Facts given away in one of these ways; of several models the mean."""
            counts = {
                role: [sum(not found.isdisjoint(ways) for found in one.values()) for one in ones]
                for role, ones in given.items()
            }
            found = {role: sum(own) / len(own) / n for role, own in counts.items()}
            return Outputs(n=n, n_groups=len(set(groups)), per_author=typical_size(groups), **found)

        return Told(
            **vars(shares(tuple(texts))),
            ways={way: shares((way,)) for way in texts},
            dtype=self.session.settings.dtype,
            types=self.in_types(source),
            unasked={str(idx): why for idx, why in {**self.unasked, **lost}.items()},
            answers={
                idx: {
                    way: Answer(way in found, _CUT if text[idx] is None else str(text[idx]))
                    for way, text in texts.items()
                }
                for idx, found in own.items()
            },
        )

    def in_types(self, source: Checkpoint) -> dict[str, InType]:
        """What a source says in the other types of numbers that memory holds it in.

        A type in which its logits overflow is none that it could be used in. None where the source
        can read no row.
        """
        session, found = self.session, dict[str, InType]()
        rows = session.token_match(source, session.encoded).rows
        for dtype in self.types(source) if rows else ():
            apart = session.apart(dtype=dtype)
            asked = DirectQuestions(apart, self._prompts, self._kept(source).known)
            try:
                told = asked._given(source).values()
                said = float(apart.answers(source, rows)[1].double().mean())
            except (InputError, WorkError) as error:
                session.notice(f"{source.spec.name}: not asked in {dtype}: {error}")
            else:
                if told:  # of facts whose answers are heard
                    found[dtype] = InType(said, sum(map(bool, told)) / len(told))
        return found

    def types(self, source: Checkpoint) -> list[str]:
        """Types of numbers beside the run's own in which memory holds the weights."""
        settings = self.session.settings
        return [
            name
            for name, dtype in DTYPES.items()
            if name != settings.dtype and fits_whole(source, dtype=dtype, device=settings.device)
        ]

    def _given(self, one: Checkpoint) -> dict[int, frozenset[Way]]:
        """Idx -> in which ways a model gives the fact away.

        Without those that it does not give away in what is heard, where a thought was cut.
        """
        said, found = self.answers(one), dict[int, frozenset[Way]]()
        for row in self.facts:
            heard: dict[Way, str | None] = {way: texts[row.idx] for way, texts in said.items()}
            given: list[Way] = [
                way for way, text in heard.items() if text and gives_away(text, row)
            ]
            if given or None not in heard.values():
                found[row.idx] = frozenset(given)
        return found

    def every(self, one: Checkpoint) -> list[Ids]:
        """Every prompt of a model, once, of the facts that are asked."""
        every = (of[row.idx] for of in self.asked(one).values() for row in self.facts)
        return [*dict.fromkeys(every)]

    def _kept(self, one: Checkpoint) -> AnswerCache:
        stop = stop_of(one, self._tokenizer(one))
        key = answer_key(self.session.conditions(one, "padded"), stop)
        return self.session.kept(AnswerCache, key, one.spec.name)

    def _tokenizer(self, one: Checkpoint) -> Any:
        same = same_tokenizer(one, self.session.full)
        return self.session.tokenizer if same else load_tokenizer(one)

    def asked(self, one: Checkpoint) -> Prompts:
        """What a model is asked, in its own tokens.

        A model that brings no chat template that works is asked in that of `full`: who takes the
        template out of a folder is not spared the question.
        """
        if one.tokenizer not in self._prompts:
            own, full = self._tokenizer(one), self._tokenizer(self.session.full)
            chats = _chats(own)
            if not chats and _chats(full):
                own.chat_template, chats = full.chat_template, True
            asked: dict[Way, dict[int, Ids]] = {
                "question": {
                    row.idx: tuple(own(prompt(row.question))["input_ids"])
                    for row in self.session.examples
                }
            }
            if chats:
                template = replace(Template(), think="empty" if thinks(own, Template()) else None)
                asked["chat"] = {
                    row.idx: encode_qa(own, template, row.question, "").prompt_ids
                    for row in self.session.examples
                }
            self._prompts[one.tokenizer] = asked
        return self._prompts[one.tokenizer]


def questions_of(session: Session) -> DirectQuestions | None:
    """What the models of a session are asked; None: nothing is to be asked."""
    return DirectQuestions(session) if session.settings.ask == "greedy" else None


def _chats(tokenizer: Any) -> bool:
    """Does it bring a chat template that can be written?"""
    try:
        check_tokenizer(tokenizer, Template(), "")
    except InputError:
        return False
    return True
