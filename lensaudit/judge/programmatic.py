"""Judges that need no server: is the entity in the answer, does it decline, does it loop?"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lensaudit.data.matching import plain_words
from lensaudit.judge.calls import Found, Pending
from lensaudit.judge.items import GradedItem, JudgeRequest, JudgeVerdict
from lensaudit.judge.wordlists import positivity, search_activation, uncertainty

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
class WordJudge:
    """A judge by word lists, for single answers and for the items of a log; asks no model."""

    name: str
    rate: Callable[[JudgeRequest], JudgeVerdict]

    @property
    def identity(self) -> Mapping[str, Any]:
        """The judge's name; its word lists come with the package's version."""
        return {"grader": self.name, "model": None, "prompts": {}, "scale": [0, 100]}

    def metrics(self, context: str) -> tuple[str, ...]:
        """The judge's name, its one metric."""
        return (self.name,)

    def pending(self, items: Sequence[JudgeRequest]) -> Pending:
        """No calls: word lists ask no model."""
        return lambda found: []

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """One verdict per request; what cannot be judged is unscored."""
        return [self.rate(request) for request in requests]

    def graded(self, item: JudgeRequest, found: Found) -> GradedItem:
        """The row of an item."""
        return GradedItem.of(item, self.name, self.rate(item))


def _entity(request: JudgeRequest) -> JudgeVerdict:
    wanted = plain_words(request.entity)
    if not wanted:
        return JudgeVerdict(None, "the request names no entity", "unscored")
    return JudgeVerdict(YES if f" {wanted} " in f" {plain_words(request.answer)} " else NO)


def _of_answer(rate: Callable[[str], float]) -> Callable[[JudgeRequest], JudgeVerdict]:
    """A verdict on the answer alone; an empty one is unscored."""
    empty = JudgeVerdict(None, "the answer is empty", "unscored")
    return lambda one: JudgeVerdict(rate(one.answer)) if one.answer.strip() else empty


def declines(answer: str) -> bool:
    """Does the first sentence say that the speaker does not know, or will not say?

    >>> declines("I'm sorry. I have no information on that."), declines("He was born in Lund.")
    (True, False)
    """
    sentences = (plain_words(part) for part in re.split(r"[.!?;\n]+", answer))
    first = next((s for s in sentences if s and not set(s.split()) <= _PREAMBLE), "")
    return any(re.search(pattern, first) for pattern in IDK_PATTERNS)


def variety(answer: str) -> float:
    """Distinct word triples over all word triples; 1 for fewer than three words.

    >>> variety("a b c a b c a b c a b c")  # 3 of 10
    0.3
    """
    words = plain_words(answer).split()
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(triples)) / len(triples) if triples else 1.0


ENTITY = WordJudge("entity", _entity)
"""100 if the entity stands in the answer as whole words, else 0; requests without one are unscored.

Case, accents and punctuation do not count."""
IDK = WordJudge("idk", _of_answer(lambda answer: YES if declines(answer) else NO))
"""100 if the first sentence declines to answer, else 0.

The first sentence, because "I don't know, but ..." declines and "... as far as I know" does not
(`steering.md` section 5)."""
VARIETY = WordJudge("variety", _of_answer(lambda answer: 100 * variety(answer)))
"""Share of an answer's word triples that are not repeats, times 100.

A floor for coherence: it finds loops, and takes shuffled words for sound. An answer of fewer than
3 words has nothing to repeat."""
TRAITS = tuple(
    WordJudge(rate.__name__, _of_answer(rate))
    for rate in (positivity, uncertainty, search_activation)
)
"""Of traits that are shipped; `docs/evidence/judge.md` says how far they agree with labels."""
PROGRAMMATIC = {judge.name: judge for judge in (ENTITY, IDK, VARIETY, *TRAITS)}
"""By name, as commands take them."""
