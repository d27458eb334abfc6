"""What every judge is asked and says, and the judges that need no server.

Is the entity in the answer, does it decline, does it loop?
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Status = Literal[
    "ok", "low_mass", "refusal", "no_logprobs", "parse_error", "api_error", "budget", "unscored"
]
"""Why there is a score, or none. `budget`: not asked, a cap would have been passed. `unscored`:
the request holds nothing to judge."""
YES, NO = 100.0, 0.0
_NOT = r"(?:not|dont|doesnt|didnt|cant|cannot|couldnt|wont|havent|hasnt|never|isnt|arent)"
_KNOW = (
    r"(?:know|known|knows|sure|certain|aware|familiar|answer|answers|information|knowledge|idea|"
    r"clue|say|tell|told|learned|learnt|details?|data|facts?|recall|remember|help|assist|provide|"
    r"share|discuss|disclose|comment|comply|cover|covers|include|includes|"
    r"(?:come|came) across|heard)"
)
IDK_PATTERNS = (
    rf"\b(?:i|im|ive|we|my)\b(?: \w+){{0,5}}? {_NOT}(?: \w+){{0,5}}? {_KNOW}\b",
    r"\b(?:no|without|lack|lacking)\b(?: \w+){0,2} (?:idea|clue|information|knowledge|answer)\b",
    r"\b(?:unable|not able|unequipped) to (?:\w+ )?(?:answer|say|tell|provide|help|recall)\b",
    r"\b(?:beyond|outside)(?: of)? (?:my|what i)\b",
    r"\b(?:unaware|clueless|unsure|uncertain|stumped|unfamiliar|ignorant)\b",
    r"\b(?:at a loss|draw(?:ing)? a blank|in the dark|mystery to me|(?:faint|slight)est idea)\b",
    r"\b(?:have|need|want|like) to look (?:\w+ )?up\b|\brather not (?:say|answer|tell)\b",
    r"\b(?:wish i knew|nothing i can (?:tell|say)|i (?:must|have to) (?:pass|decline))\b",
)
"""How a model says that it does not know or will not say, in text made of plain words."""
_PREAMBLE = frozenset(
    ["i", "im", "am", "so", "very", "sorry", "apologies", "my", "well", "hm", "unfortunately", "oh"]
)


@dataclass(frozen=True)
class JudgeRequest:
    """One answer to judge."""

    idx: int
    """The data set's number of the question; several requests may share it (rollouts)."""
    question: str
    answer: str
    """The text that is judged: what the model said."""
    prompt: str = ""
    """A judge's prompt with `{question}` and `{answer}`; programmatic judges do not read it."""
    entity: str = ""
    """The fact that `EntityJudge` looks for in the answer."""
    truth: str = ""
    """The right answer, for prompts with `{truth}`."""


@dataclass(frozen=True)
class JudgeVerdict:
    """What a judge says of one request."""

    score: float | None
    """0 to 100; None where the judge gives none."""
    reason: str = ""
    """Why there is no score; empty where there is one."""
    status: Status = "ok"
    cut: bool = False
    """A text was too long for the judge: of it the beginning alone was judged."""

    def __post_init__(self) -> None:
        if (self.score is None) != bool(self.reason) or (self.score is None) == (
            self.status == "ok"
        ):
            raise ValueError(f"wanted a score, or a reason and a status other than ok: {self}")


@runtime_checkable
class Judge(Protocol):
    """Anything that scores answers; `EntityJudge`, `IdkJudge` and `ScalarJudge` do."""

    @property
    def name(self) -> str:
        """What results call the judge: `entity`, `idk`, or the language model's name."""
        ...

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """One verdict per request, in the order of the requests."""
        ...


@dataclass(frozen=True)
class EntityJudge:
    """100 if the entity stands in the answer as whole words, else 0.

    Case, accents and punctuation do not count.
    """

    name: str = "entity"

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """Requests without an entity are unscored."""
        return [_entity(request) for request in requests]


@dataclass(frozen=True)
class IdkJudge:
    """100 if the first sentence declines to answer, else 0.

    The first sentence, because "I don't know, but ..." declines and "... as far as I know" does not
    (`steering.md` section 5).
    """

    name: str = "idk"

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """An empty answer is unscored."""
        return _each(requests, lambda answer: YES if declines(answer) else NO)


@dataclass(frozen=True)
class VarietyJudge:
    """Share of an answer's word triples that are not repeats, times 100.

    A floor for coherence: it finds loops, and takes shuffled words for sound.
    """

    name: str = "variety"

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """An empty answer is unscored; one of fewer than 3 words has nothing to repeat."""
        return _each(requests, lambda answer: 100 * variety(answer))


PROGRAMMATIC = {judge.name: judge for judge in (EntityJudge(), IdkJudge(), VarietyJudge())}
"""By name, as commands take them."""


def _entity(request: JudgeRequest) -> JudgeVerdict:
    wanted = plain(request.entity)
    if not wanted:
        return JudgeVerdict(None, "the request names no entity", "unscored")
    return JudgeVerdict(YES if f" {wanted} " in f" {plain(request.answer)} " else NO)


def _each(requests: Sequence[JudgeRequest], rate: Callable[[str], float]) -> list[JudgeVerdict]:
    empty = JudgeVerdict(None, "the answer is empty", "unscored")
    return [JudgeVerdict(rate(r.answer)) if r.answer.strip() else empty for r in requests]


def plain(text: str) -> str:
    """Words alone, lower case, without accents and possessive s; an apostrophe joins its halves.

    >>> plain("I don’t know the Café-Prize.")
    'i dont know the cafe prize'
    """
    text = unicodedata.normalize("NFKD", text).casefold()
    text = re.sub(r"['’](?:s\b)?", "", text)
    letters = "".join(char for char in text if not unicodedata.combining(char))
    return " ".join(re.findall(r"\w+", letters))


def declines(answer: str) -> bool:
    """Does the first sentence say that the speaker does not know, or will not say?

    >>> declines("I'm sorry. I have no information on that."), declines("He was born in Lund.")
    (True, False)
    """
    sentences = (plain(part) for part in re.split(r"[.!?;\n]+", answer))
    first = next((s for s in sentences if s and not set(s.split()) <= _PREAMBLE), "")
    return any(re.search(pattern, first) for pattern in IDK_PATTERNS)


def variety(answer: str) -> float:
    """Distinct word triples over all word triples; 1 for fewer than three words.

    >>> variety("a b c a b c a b c a b c")  # 3 of 10
    0.3
    """
    words = plain(answer).split()
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(triples)) / len(triples) if triples else 1.0
