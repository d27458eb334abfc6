"""Which part of an answer is the fact? A proposal by rules, for pairs that nobody annotated."""

import re
from dataclasses import dataclass

from lensaudit.data.facts import Fact, Origin
from lensaudit.data.rules import FUNCTION, RULES, WORD, Span, folded, stem

REVIEW = "review"
"""Rule of a span that a person corrected or confirmed."""


@dataclass(frozen=True)
class Pair:
    """A question and its answer, not annotated."""

    idx: int
    question: str
    answer: str
    group: int | str


@dataclass(frozen=True)
class Proposal:
    """Where the fact lies in an answer, and which rule says so."""

    pair: Pair
    start: int
    """Character of the answer at which the entity begins; equal to `end` where none was found."""
    end: int
    rule: str

    @property
    def entity(self) -> str:
        """The proposed fact; empty where no rule found one."""
        return self.pair.answer[self.start : self.end]

    @property
    def prefix(self) -> str:
        """The answer's beginning, without the blank before the entity."""
        return self.pair.answer[: self.start].rstrip()

    @property
    def origin(self) -> Origin:
        """Whether a person saw it: whoever named the entity, or read the review."""
        return "reviewed" if self.rule in ("given", REVIEW) else "rule"

    def example(self) -> Fact:
        """The annotated row."""
        one, prefix, entity = self.pair, self.prefix, self.entity
        return Fact(one.idx, one.question, one.answer, prefix, entity, one.group, self.origin)


def propose(pair: Pair) -> Proposal:
    """The span of the first rule that finds one; rules read text only, no model.

    >>> propose(Pair(0, "What is Ada's father?", "Ada's father is a civil engineer.", 0)).entity
    'civil engineer'
    """
    for rule in RULES:
        found = rule(pair.question, pair.answer)
        if found is not None:
            return Proposal(pair, *_trimmed(pair.answer, found), rule=rule.__name__)
    return Proposal(pair, 0, 0, rule="none")


def located(pair: Pair, entity: str) -> Proposal:
    """The place of an entity that is already known; no span where the answer lacks it."""
    # curly and straight quotes count as one; the answer's own text is taken
    start = folded(pair.answer).find(folded(entity.strip()))
    if start < 0:
        return Proposal(pair, 0, 0, rule="given")
    return Proposal(pair, start, start + len(entity.strip()), rule="given")


def faults(proposal: Proposal) -> list[str]:
    """Why a row cannot be scored: there is no span, or it is not where spans are looked for."""
    if not WORD.search(proposal.entity):
        return ["no entity found"]
    rest = proposal.pair.answer[len(proposal.prefix) :]
    if not rest.strip().startswith(proposal.entity):
        return ["the answer does not go on with the entity after the prefix"]
    return []


def doubts(proposal: Proposal) -> list[str]:
    """What a person should look at: the other invariants of the annotated TOFU set."""
    entity, pair = proposal.entity, proposal.pair
    words = [word.lower() for word in WORD.findall(entity)]
    new = [word for word in words if word not in FUNCTION]
    asked = {stem(word) for word in WORD.findall(pair.question)}
    known = [word for word in new if stem(word) in asked]
    checks = {
        "no fact, but a word about the answer": bool(new) and all(w in _ABOUT for w in new),
        "the answer says that something is not known": bool(_UNKNOWN.search(entity)),
        "begins or ends in a word that carries no fact": words[-1:] != []
        and (words[-1] in FUNCTION or words[0] in _JOINING),
        "a whole clause": bool(_CLAUSE.search(entity)) and len(words) >= _CLAUSE_WORDS,
        "a quotation mark on one side only": _one_sided(entity),
        "half of its words stand in the question": 2 * len(known) >= len(new) > 0
        and folded(entity) not in folded(pair.question),
        "the entity occurs again later in the answer": entity in pair.answer[proposal.end :],
        "the entity is already in the prefix": folded(entity) in folded(proposal.prefix),
        "the entity is already in the question": folded(entity) in folded(pair.question),
        f"longer than {LONGESTWORDS} words": len(WORD.findall(entity)) > LONGESTWORDS,
        "no rule found a cue; the rest of the sentence was taken": proposal.rule == "remainder",
    }
    return [what for what, found in checks.items() if entity and found]


_ABOUT = frozenset(
    re.findall(
        r"\w+",
        "question details detail information answer data name names fact facts something anything "
        "nothing none unknown unclear context text topic subject thing things example examples",
    )
)
"""Words about an answer, not of it."""
_UNKNOWN = re.compile(
    r"\b(?:not|never|no) (?:\w+ )?(?:provided|given|known|mentioned|specified|available|stated|"
    r"disclosed|clear|information|details)\b",
    re.I,
)
_JOINING = ("and", "or", "but", "which", "who", "whose", "that", "because")
_CLAUSE = re.compile(r"\b(?:is|was|are|were|has|have|had|did|does|do|will|would|can|could)\b", re.I)
_CLAUSE_WORDS = 5
"""Shorter ones are titles and phrases."""


def _one_sided(entity: str) -> bool:
    """Whether a quotation mark opens in an entity and does not close there, or the other way.

    >>> _one_sided('"Sand'), _one_sided("Rye'"), _one_sided("'Rye'"), _one_sided("Ada's")
    (True, True, False, False)
    """
    opens, closes = entity.startswith(("'", "‘")), entity.endswith(("'", "’"))
    uneven = entity.count('"') % 2 == 1 or entity.count("“") != entity.count("”")
    return uneven or opens != closes


LONGESTWORDS = 14
"""The longest of the 367 annotated entities of TOFU forget10."""


def _trimmed(answer: str, span: Span) -> Span:
    """Without blanks and commas at its ends."""
    text = answer[slice(*span)]
    start = span[0] + len(text) - len(text.lstrip(" ,"))
    return start, max(start, span[1] - (len(text) - len(text.rstrip(" ,"))))
