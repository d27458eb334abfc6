"""Where is the fact in an answer? Each rule reads a question and an answer, and names a span.

The rules were scored on authors 0 to 9 of the annotated TOFU forget10 while they were written;
authors 10 to 19 measure them (experiments/annotation/agreement.py).
"""

import re
from collections.abc import Callable, Sequence

WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_QUOTED = re.compile(r"\"[^\"]+\"|“[^”]+”|‘[^’]+’|(?<![^\W_])'(?:[^']|'(?=[^\W_]))+'(?![^\W_])")
FUNCTION = frozenset(
    re.findall(
        r"\w+",
        "a an the and or of for in on at to by with from as is was are were be been being has have "
        "had his her their its he she they it this that these those who which such also not no "
        "more most very both one some several many various other",
    )
)
"""Words that carry no fact."""
_UPPER = f"[{''.join(filter(str.isupper, map(chr, range(0x2000))))}]"
"""A capital of any alphabet that has them; other scripts have none."""
_SAME_SENTENCE = rf"(?!(?<=\.) (?:{'|'.join(FUNCTION).title()})\b(?!\.))"
"""After the full stop of an initial or a title: no word that opens a new sentence."""
_IN_CAPITALS = (
    rf"(?:(?:Dr|Ft|Jr|Mrs?|Ms|Mt|Prof|Sr|St|{_UPPER})\.(?= {_UPPER}){_SAME_SENTENCE}|"
    rf"(?:{_UPPER}\w?\.){{2,}}(?!\w)|{_UPPER}[\w'’+-]*(?:\.[\w'’+-]+)*)"
)
"""One word; a full stop after it belongs to it in initials and titles only."""
_CAPITALS = re.compile(
    rf"{_IN_CAPITALS}(?:{_SAME_SENTENCE}(?:,? (?:of|for|in|the|and|de|du|al|&) |,? )"
    rf"(?:{_IN_CAPITALS}|[0-9][\w'’+-]*))*"
)
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = re.compile(
    rf"\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? "
    r"\d{4}|\d{1,2}/\d{1,2}/\d{4}|(?:early |mid-|late )?\d{4}s?|\d+(?: to \d+)?(?: \w+)?"
)
_ASKS_WHETHER = re.compile(
    r"(?:are|is|was|were|has|have|had|did|does|do|will|would|can|could)\b(?! you\b)", re.I
)
_ASKS_TITLE = re.compile(
    r"\b(?:books?|titles?|novels?|works?|awards?|prizes?|recogni\w+|publish)\b"
)
_ASKS_NAME = re.compile(r"\b(?:name of|full name|who (?:is|was) the|called)\b", re.I)
_ASKS_WHEN = re.compile(r"^(?:when|(?:in|on)? ?(?:which|what) (?:year|date|day)|how old)\b", re.I)
_ASKS_AWARD = re.compile(r"\b(?:awards?|prizes?|honou?r\w*|accolades?|medals?|recogni\w+)\b", re.I)
_ASKS_PLACE = re.compile(r"\b(?:where|birthplace|city|town|country|place)\b", re.I)

_ASKS_GENRE = re.compile(r"\bgenres?\b", re.I)
_GENRE = re.compile(r"\bgenre of |\b(?:the|of) (?=(?:[\w-]+ ){1,3}genre\b)")
_ASKS_WORK = re.compile(
    r"^(?!how\b).*\b(?:occupations?|professions?|living|employment|parents)\b", re.I
)
_WORK = re.compile(r"\b(?:was|is|were|as|being|to) (?:both |an? )(?=\w)")

_CUES = (
    r"such as|including|includes?|include|namely|titled|named|called|themes? (?:of|around)|"
    r"field of|esteemed|prestigious|illustrious|coveted|identif(?:y|ies) as|work(?:ed|s) as",
    r"(?:offer|provid|add|promot|emphasiz|explor|captur|advocat|highlight|reflect|showcas|lend|"
    r"incorporat|featur|develop|instill|foster|combin|reveal|bring)(?:s|es|ed|ing forth|ing|e)"
    r"(?: (?:in|into|for|to))?(?: (?:him|her|them))?(?: with)?|like|through|due to|because it|by",
    r"is|was|are|were|been|be|as|with|into|of|from|on|for|in|his|her|their|its|at|to",
)
"""What a fact follows, from the surest cue to the weakest."""
_OPENING = re.compile(
    r"(?:(?:an?|the|his|her|their|its|some|several|many|various|very|both|highly|also|often|quite|"
    r"well-regarded|respected|esteemed|prestigious|illustrious|renowned|notable|famous|part of|"
    r"abilit(?:y|ies) to|importance of|need for|sense of|unique blend of|interest in|desire to|"
    r"elements? of|aspects? of|seamlessly|subtly)\s+)+",
    re.I,
)
"""Words that open a phrase and are no part of the fact."""
_END = re.compile(
    r"[.;:!?](?=\s|$|[\"”’'])|\"?,\s(?=(?:and|but|which|who|whose|where|while|with|as|a|an|the|"
    r"those|he|she|they|in|likely|particularly|especially|(?:\w+ly )?\w+(?:ing|ed))\b)|"
    r"\s[-–—]\s|\s\(|\n|"
    r"\s(?:in|by|from|within|that|which|who|whose|where|when|while|throughout|during|into|after|"
    r"before|because|through|to|at|so|is|was|are|were|has|have|had|since|and (?:his|her|their|its))"
    r"\s"
)
"""Where a phrase ends."""
_LAST = re.compile(r",? (?:and|or) (?!(?:he|she|they|his|her|their|is|was|has|have|had)\b)")
"""Before the last member of a list."""
_PARTICIPLE = re.compile(r"(?:\w+ly )?(?:\w+(?:ed|wn|ing)|born and raised|able)(?: \w+ed)?")
"""Words of a verb that leads on to the fact."""

Span = tuple[int, int]
Rule = Callable[[str, str], Span | None]


def yes_or_no(question: str, answer: str) -> Span | None:
    """The word itself, where the question asks whether."""
    found = re.match(r"(?:Yes|No)\b", answer)
    return found.span() if found and _ASKS_WHETHER.match(question) else None


def title(question: str, answer: str) -> Span | None:
    """The first title in quotes that the question does not give away."""
    if not _ASKS_TITLE.search(question):
        return None
    for found in _QUOTED.finditer(answer):
        text = found.group()
        if folded(text[1:-1].strip(" .,!")) in folded(question):
            continue
        # American quotation: the full stop stands inside
        return found.span() if text[-2] not in ".,!" else (found.start() + 1, found.end() - 2)
    return None


def date(question: str, answer: str) -> Span | None:
    """A date or a number, where the question asks when."""
    found = (one for one in _DATE.finditer(answer) if one.group() not in question)
    first = next(found, None)
    return first.span() if first and _ASKS_WHEN.search(question) else None


def name(question: str, answer: str) -> Span | None:
    """A new name in capitals, where the question asks for a name, an award or a place."""
    if _ASKS_NAME.search(question) or _ASKS_AWARD.search(question):
        return _new_name(question, answer, at_least=2)
    return _new_name(question, answer, at_least=1) if _ASKS_PLACE.search(question) else None


def genre(question: str, answer: str) -> Span | None:
    """What stands before or after the word, where the question asks for a genre."""
    found = _GENRE.search(answer) if _ASKS_GENRE.search(question) else None
    if not found:
        return None
    span = _phrase_at(answer, found.end())
    asked = {stem(word) for word in WORD.findall(question)}
    return span if _is_new(answer[slice(*span)], asked) else None


def work(question: str, answer: str) -> Span | None:
    """Profession of a person, where the question asks for it."""
    found = _WORK.search(answer) if _ASKS_WORK.search(question) else None
    if not found:
        return None
    start, end = _phrase_at(answer, found.end())
    cut = re.search(r",| and (?=\w+ (?:mother|father))", answer[start:end])
    return start, start + cut.start() if cut else end


def phrase(question: str, answer: str) -> Span | None:
    """The first phrase after a cue that says something the question does not."""
    asked = {stem(word) for word in WORD.findall(question)}
    subject = _subject_end(question, answer)
    first, second = _sentence_ends(answer)
    for start, end, cues in (
        *((subject, first, cues) for cues in _CUES),
        *((first, second, cues) for cues in _CUES[:2]),
        (0, first, _CUES[-1]),
    ):
        for cue in re.compile(rf"\b(?:{cues})\s+").finditer(answer, start, end):
            found = _phrase_at(answer, cue.end())
            if _is_new(answer[slice(*found)], asked):
                return found
    return None


def remainder(question: str, answer: str) -> Span | None:
    """The end of the first sentence, from the first word that the question does not have."""
    asked = {stem(word) for word in WORD.findall(question)}
    end, _ = _sentence_ends(answer)
    for word in WORD.finditer(answer, 0, end):
        if stem(word.group()) not in asked and word.group().lower() not in FUNCTION:
            return word.start(), end
    return None


RULES: Sequence[Rule] = (yes_or_no, title, date, name, genre, work, phrase, remainder)
"""In the order they are asked."""


def _new_name(question: str, answer: str, *, at_least: int) -> Span | None:
    for found in _CAPITALS.finditer(answer):
        words = WORD.findall(found.group())
        new = [word for word in words if folded(word) not in folded(question)]
        opens = found.start() == 0 and len(words) == 1
        names = not (opens or FUNCTION.issuperset(map(str.lower, words)))
        if len(words) >= at_least and len(new) * 2 >= len(words) and names:
            return found.span()
    return None


def _phrase_at(answer: str, start: int) -> Span:
    """The phrase that begins at `start`, without its opening words."""
    opening = _OPENING.match(answer, start)
    start = opening.end() if opening else start
    quoted = _QUOTED.match(answer, start)
    if quoted:
        return quoted.span()
    end = _END.search(answer, start)
    last = _LAST.match(answer, end.start()) if end else None
    if last and ", " in answer[start : last.start()]:
        end = _END.search(answer, last.end())
    return start, end.start() if end else len(answer)


def _is_new(text: str, asked: set[str]) -> bool:
    """Whether at least half of the content words are not in the question."""
    if _PARTICIPLE.fullmatch(text.strip()):
        return False
    words = [word for word in WORD.findall(text) if word.lower() not in FUNCTION]
    new = [word for word in words if stem(word) not in asked]
    return bool(words) and 2 * len(new) >= len(words)


def _sentence_ends(answer: str) -> tuple[int, int]:
    """Positions at which the first and the second sentence end."""
    stops = re.compile(rf"[.!?](?=\s+(?:{_UPPER}|[\"'“‘])|\s*$)|\n").finditer(answer)
    ends = [stop.start() for stop in stops][:2]
    first = ends[0] if ends else len(answer)
    return first, ends[1] if len(ends) > 1 else first


def _subject_end(question: str, answer: str) -> int:
    """Position at which the answer has named its subject; 0 where it does not."""
    first, _ = _sentence_ends(answer)
    for found in sorted(_CAPITALS.findall(question[1:]), key=len, reverse=True):
        bare = re.sub(r"['’]s?$", "", found)
        at = folded(answer[:first]).find(folded(bare))
        if at >= 0 and len(bare.split()) > 1:
            return at + len(bare)
    return 0


def stem(word: str) -> str:
    """Enough of a word to know it again in another form."""
    return folded(word)[:6].rstrip("s")


def folded(text: str) -> str:
    """Text for comparison: one kind of quotes, no case, the same length."""
    return text.translate(_ONE_FORM).lower()


# of all letters "İ" alone becomes two in lower case
_ONE_FORM = str.maketrans("“”‘’İ", "\"\"''i")
