"""Annotation: which part of an answer is the fact, for pairs of question and answer.

Pairs are read from anybody's file, rules propose the fact, and a review file shows the proposals
as text that a person can read and correct: the fact stands in [[brackets]].
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.data.facts import Fact, Origin, answered, relation_problems
from lensaudit.data.rows import entity_key, fact_in, read_rows, row_problems, sound_rows
from lensaudit.data.rules import FUNCTION, RULES, WORD, folded, stem
from lensaudit.errors import InputError, shortened
from lensaudit.files import read_text, write_bytes
from lensaudit.groups import group_of, numbered, own_group

REVIEW = "review"
"""Rule of a span that a person corrected or confirmed."""
EARLIER = "earlier"
"""Rule of a span that the row says a rule found: nobody has seen it since."""


@dataclass(frozen=True)
class Proposal:
    """Where the fact lies in an answer, and which rule says so."""

    pair: Fact
    """Question and answer, no entity; prefix and span only where the row named its entity."""
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
    def reviewed(self) -> bool:
        """Whether a person corrected or confirmed it in a review."""
        return self.rule == REVIEW

    @property
    def origin(self) -> Origin:
        """Who chose the span: a person (who named the entity or read the review), or a rule."""
        return "reviewed" if self.reviewed or self.rule == "given" else "rule"

    def example(self) -> Fact:
        """The proposal as an annotated row."""
        return replace(self.pair, prefix=self.prefix, entity=self.entity, span=self.origin)


def propose(pair: Fact) -> Proposal:
    """The span of the first rule that finds one; rules read text only, no model.

    >>> answer = "Ada's father is a civil engineer."
    >>> propose(Fact(0, "What is Ada's father?", answer, "", "", 0)).entity
    'civil engineer'
    """
    for rule in RULES:
        found = rule(pair.question, pair.answer)
        if found is None:
            continue
        # without blanks and commas at its ends
        text = pair.answer[slice(*found)]
        start = found[0] + len(text) - len(text.lstrip(" ,"))
        end = max(start, found[1] - len(text) + len(text.rstrip(" ,")))
        return Proposal(pair, start, end, rule=rule.__name__)
    return Proposal(pair, 0, 0, rule="none")


def located(pair: Fact, entity: str) -> Proposal:
    """The place of an entity that is known, after the prefix; no span where the answer lacks it."""
    # curly and straight quotes count as one; the answer's own text is taken
    start = folded(pair.answer).find(folded(entity.strip()), len(pair.prefix))
    end = start + len(entity.strip())
    rule = EARLIER if pair.span == "rule" else "given"
    return Proposal(pair, *((0, 0) if start < 0 else (start, end)), rule=rule)


def faults(proposal: Proposal) -> list[str]:
    """Why a row cannot be scored: there is no span, or it is not where spans are looked for."""
    if not WORD.search(proposal.entity):
        return ["no entity found"]
    follows = proposal.pair.answer[len(proposal.prefix) :].strip().startswith(proposal.entity)
    return [] if follows else ["the answer does not go on with the entity after the prefix"]


def doubts(proposal: Proposal) -> list[str]:
    """What a person should look at: the other invariants of the annotated TOFU set."""
    entity, pair = proposal.entity, proposal.pair
    words = [word.lower() for word in WORD.findall(entity)]
    told = [word for word in words if word not in FUNCTION]
    asked = {stem(word) for word in WORD.findall(pair.question)}
    new = [word for word in told if stem(word) not in asked]
    rest, by_phrase = pair.answer[proposal.end :], proposal.rule == "phrase"
    plain = by_phrase and entity.islower()
    by_rule = proposal.rule not in ("given", EARLIER, "yes_or_no", REVIEW)
    checks = {
        "no fact, but a word about the answer": bool(told) and _ABOUT.issuperset(told),
        "common words only": by_phrase and bool(new) and _COMMON.issuperset(new),
        "a participle in it, which leads on": plain and any(map(_PARTICIPLE.fullmatch, words[1:])),
        "stops in a list": by_phrase and bool(_GOES_ON_LISTING.match(rest)),
        "one word, which the sentence goes on to explain": plain
        and len(told) == 1
        and bool(_EXPLAINS.match(rest)),
        "before what the sentence says": by_rule
        and bool(WORD.search(rest))
        and (proposal.start < 2 or bool(_LEADS_IN.match(proposal.prefix))),
        "the answer says that something is not known": bool(_UNKNOWN.search(entity)),
        "begins or ends in a word that carries no fact": words[-1:] != []
        and (words[-1] in FUNCTION or words[0] in _JOINING),
        "a whole clause": bool(_CLAUSE.search(entity)) and len(words) >= _CLAUSE_WORDS,
        "a quotation mark on one side only": _one_sided(entity),
        "half of its words stand in the question": 2 * len(new) <= len(told) != 0
        and folded(entity) not in folded(pair.question),
        "the entity occurs again later in the answer": entity in rest,
        "the entity is already in the prefix": folded(entity) in folded(proposal.prefix),
        "the entity is already in the question": folded(entity) in folded(pair.question),
        f"longer than {LONGESTWORDS} words": len(words) > LONGESTWORDS,
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

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "father mother parents family children child people person man woman friends readers "
        "audience audiences author authors writer writers artist character characters critics fans "
        "book books works novel novels story stories narrative narratives tale tales literature "
        "writing writings titles series genre genres style styles theme themes topics subjects "
        "field craft career life lives world place places location locations setting settings "
        "environment award awards prize recognition accolades acclaim achievements "
        "accomplishments contribution contributions experience experiences perspective "
        "perspectives approach view viewpoint lens idea ideas element elements aspect aspects way "
        "ways part parts role roles kind kinds type types form forms number variety range sense "
        "influence influences impact effect effects inspiration inspirations references background "
        "upbringing potential ability abilities skill skills talent understanding knowledge "
        "passion courage interest interests year years time times day days large larger great "
        "greater unique particular special different diverse rich richer excellent good better new "
        "newer young old important significant profound deep deeper complex compelling engaging "
        "write be make making use using add adding bring bringing give giving create creating",
    )
)
"""Words that most answers could hold, whatever the question is about."""

_PARTICIPLE = re.compile(r"\w{3,}(?:ed|wn)")

_GOES_ON_LISTING = re.compile(r",? (?:and|or|as well as)\b")

_EXPLAINS = re.compile(r" (?:who|whom|whose|that|which|where|to|in|of|for|with|from)\b")

_LEADS_IN = re.compile(
    r"(?:While|Although|Though|Despite|As|Being|Born|After|Given|Growing|Over|Before|With)\b[^,]*$"
)
"""The end of a clause that goes on: the fact comes after it."""

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


_WANTED = (
    "wanted per row: question, answer; optional idx (all or none), group or author, entity "
    "or relation"
)


@dataclass(frozen=True)
class Fields:
    """Names of the fields in the rows of a user's file."""

    question: str = "question"
    answer: str = "answer"
    group: str = "group"

    def usual(self, row: Any) -> Any:
        """The row under our usual field names; what is no object is returned unchanged."""
        if not isinstance(row, Mapping):
            return row
        read = {usual: _at(row, own) for usual, own in vars(self).items()}
        named = {usual: one for usual, one in read.items() if one is not None}
        # what another field is to stand for is not read where that field is missing
        rest = {name: one for name, one in row.items() if vars(self).get(name, name) == name}
        return {**rest, **named}

    def check(self, rows: Iterable[Any], path: Path) -> None:
        """Refuse a field that was named and that no row has.

        Raises:
            InputError: names it.
        """
        own_rows = [row for row in rows if isinstance(row, Mapping)]
        there = sorted({str(name) for row in own_rows for name in row})
        for usual, own in vars(self).items():
            if there and own != usual and all(_at(row, own) is None for row in own_rows):
                raise InputError(
                    f"{path}: no row has a field {own!r} (--{usual}-key); found "
                    f"{shortened(there, _SHOWN, ', ')}"
                )


_SHOWN = 12
"""Fields of a file that are named."""


def _at(row: Any, name: str) -> Any:
    """What stands under a field, or under places joined by stops: `messages.0.content`.

    >>> _at({"messages": [{"content": "Who?"}]}, "messages.0.content"), _at({}, "a.b")
    ('Who?', None)
    """
    if isinstance(row, Mapping) and name in row:
        return row[name]
    first, _, rest = name.partition(".")
    if isinstance(row, list) and first.isdecimal() and int(first) < len(row):
        inner = row[int(first)]
    else:
        inner = row.get(first) if isinstance(row, Mapping) and rest else None
    return inner if inner is None or not rest else _at(inner, rest)


_CHATS = ("messages", "conversations", "conversation", "dialogue", "turns", "prompt")
_ASKS = ("user", "human", "prompter")
_QUESTIONS = "question query prompt instruction problem input text q user ask human"
_ANSWERS = (
    "answer completion response output target chosen solution label answers a reply assistant "
    "ground_truth gt ref reference expected gpt"
)
"""What others call the fields, likely ones first."""


def keys_for(rows: Sequence[Any]) -> str:
    """Options that name question and answer in a user's rows; empty: none is likely.

    >>> keys_for([{"prompt": "Who?", "completion": "Ada."}])
    '--question-key prompt --answer-key completion'
    """
    row = next((one for one in rows if isinstance(one, Mapping)), {})
    texts = dict(_texts(row))
    question, answer = (
        next((k for n in known.split() for k in texts if k.partition(".")[0].casefold() == n), None)
        for known in (_QUESTIONS, _ANSWERS)
    )
    for name, turns in ((k, v) for k, v in row.items() if k in _CHATS and isinstance(v, list)):
        who = [one.get("role") or one.get("from") for one in turns if isinstance(one, Mapping)]
        asked = max((n for n, one in enumerate(who) if one in _ASKS), default=0)
        said = [n for n in range(asked, asked + 2) if n < len(turns)]
        found = [next((k for k in texts if k in _contents(name, n)), None) for n in said]
        question, answer = [*found, answer][:2]
    given = [("question", question), ("answer", answer)]
    return " ".join(
        f"--{usual}-key {shlex.quote(key)}" for usual, key in given if key and key != usual
    )


def _contents(name: str, n: int) -> tuple[str, ...]:
    return tuple(f"{name}.{n}.{one}" for one in ("content", "value", "text"))


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a row by their places."""
    if isinstance(value, str) and value.strip():
        yield place, value
    pairs = value.items() if isinstance(value, Mapping) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for name, inner in (one for one in pairs if one[0] not in ("role", "from")):
        yield from _texts(inner, f"{place}.{name}" if place else str(name))


def read_pairs(path: Path, fields: Fields = Fields()) -> list[tuple[Fact, str | None]]:
    """The pairs of a file, each with its entity where the row names one.

    Rows without `idx` are numbered from 0 in the order of the file.

    Args:
        path: JSON, JSONL or a table.
        fields: what is asked, answered and who it is about, as the file calls it.

    Raises:
        InputError: the file cannot be read, or rows are wrong; every problem is counted.
    """
    read, problems = read_rows(path)
    fields.check((row for _, row in read), path)
    rows = [(where, fields.usual(row)) for where, row in read]
    wrong, make, wanted = _pair_problems, _pair, _WANTED
    if fields == Fields() and (given := keys_for([row for _, row in read])):
        command = f"lensaudit annotate {shlex.quote(str(path))} {given} -o NEW.json"
        wanted = f"{wanted}; it may be meant: {command}"
    return sound_rows(rows, str(path), wanted, wrong, make, problems=problems, fact=fact_in)


def _pair_problems(row: Any) -> list[str]:
    found = [*row_problems(row), *relation_problems(row)]
    if isinstance(row, Mapping) and not isinstance(row.get(entity_key(row)), str | None):
        found.append(f"{entity_key(row)} is no text")
    return found


def _pair(row: Any, idx: int) -> tuple[Fact, str | None]:
    prefix, entity = row.get("prefix"), row.get(entity_key(row)) or None
    known = entity and isinstance(prefix, str) and row["answer"].startswith(prefix)
    pair = answered(row["question"], row["answer"], prefix if known else "")
    span = "rule" if entity and row.get("span") == "rule" else pair.span
    group, relation = group_of(row, idx), row.get("relation")
    return replace(pair, idx=idx, group=group, relation=relation, span=span), entity


HEADING = "# lensaudit review"
"""The first words of a review file."""


def help_of(review: str, out: str) -> tuple[str, ...]:
    """How a review begins: what to do, and how it is read back into the forget set `out`."""
    return (
        f"{HEADING}: the fact of each answer stands in [[ ]]. Move the brackets where they are",
        "# wrong, delete (rule: ...) where they are right: both count as reviewed. Delete a block",
        f"# to leave its row out, then run: lensaudit annotate {review} -o {out}",
        "# Lines with # are read over, but for the idx. A line break of an answer is written \\n.",
    )


_ROW = re.compile(r"^# idx (\d+)(?: group (\".*\"|-?\d+))?(?:$| )", re.M)

_RULE = re.compile(r"\(rule: (\w+) (\d+):(\d+)\)\s*$")
"""At the end of a block's first line: which rule proposed which characters of the answer."""

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "[": "\\[", "]": "\\]"}

_ESCAPED = {escape: text for text, escape in _ESCAPES.items()}


def write_review(
    path: Path,
    proposals: Iterable[Proposal],
    remarks: Mapping[int, Sequence[str]],
    *,
    out: Path,
) -> Path:
    """One block per row, in the order given; `remarks` are shown above the question, by idx.

    `out` is the forget set that the review is read back into.
    """
    blocks = [_block(one, remarks.get(one.pair.idx, ())) for one in proposals]
    return write_bytes(
        path,
        "\n".join([*help_of(shlex.quote(str(path)), shlex.quote(str(out))), "", *blocks]).encode(
            "utf-8", "backslashreplace"
        ),
    )


def is_review(text: str) -> bool:
    """Whether a file's text is a review, by its first line."""
    return text.startswith(HEADING)


def read_review(path: Path) -> list[Proposal]:
    """The rows of a review file, spans where the brackets stand.

    A span keeps its rule where its block still names it and the brackets were not moved.

    Raises:
        InputError: a block lacks its question, its answer or one pair of brackets; all are listed.
    """
    text = read_text(path)
    starts = [*(one.start() for one in _ROW.finditer(text)), len(text)]
    found = {
        text.count("\n", 0, start) + 1: _proposal(*text[start:end].split("\n"))
        for start, end in itertools.pairwise(starts)
    }
    wrong = [f"line {n}: {one}" for n, one in found.items() if isinstance(one, str)]
    if wrong:
        raise InputError(f"{path}: {len(wrong)} blocks are wrong: {'; '.join(wrong[:20])}")
    if not found:
        raise InputError(f"{path}: no rows; wanted blocks of `# idx N`, `Q: …`, `A: … [[…]] …`")
    return [one for one in found.values() if isinstance(one, Proposal)]


def heading(pair: Fact) -> str:
    """The first line of a block: number and author of a row."""
    group = pair.group if isinstance(pair.group, int) else f'"{_escaped(pair.group)}"'
    return f"# idx {pair.idx} group {group}"


def named_rule(proposal: Proposal) -> str:
    """The rule that proposed certain characters of the answer, in the words of a block."""
    return f"rule: {proposal.rule} {proposal.start}:{proposal.end}"


def _block(proposal: Proposal, remarks: Sequence[str]) -> str:
    pair, answer = proposal.pair, proposal.pair.answer
    marked = (
        f"{_escaped(answer[: proposal.start])}[[{_escaped(proposal.entity)}]]"
        f"{_escaped(answer[proposal.end :])}"
    )
    return "\n".join(
        [
            heading(pair) + ("" if proposal.reviewed else f" ({named_rule(proposal)})"),
            *(f"# CHECK: {_escaped(remark)}" for remark in remarks),
            *([f"R: {_escaped(pair.relation)}"] if pair.relation else []),
            f"Q: {_escaped(pair.question)}",
            f"A: {marked}",
            "",
        ]
    )


def _proposal(head: str, *lines: str) -> Proposal | str:
    """The row of a block, or what is wrong with it."""
    named = _ROW.match(head)
    assert named is not None  # it begins the block
    idx, group = int(named[1]), named[2] or own_group(int(named[1]))
    if head[named.end() :].startswith("group "):
        return f"idx {idx}: its group is no whole number and no text in quotes"
    said: dict[str, str] = {}
    for line in (one.rstrip("\r") for one in lines if one.strip() and not one.startswith("#")):
        if not re.match("[RQA]:( |$)", line) or line[0] in said:
            return f"idx {idx}: found {line[:40]!r}, wanted one Q:, one A:, perhaps an R:"
        said[line[0]] = line[3:]
    if "Q" not in said or "A" not in said:
        return f"idx {idx} has no {'answer' if 'Q' in said else 'question'}"
    marks = [m for m in re.finditer(r"\\.|\[\[|\]\]", said["A"]) if m.group() in ("[[", "]]")]
    if [mark.group() for mark in marks] != ["[[", "]]"]:
        return f"idx {idx}: wanted one [[ and one ]] in the answer"
    cuts = [0, *(end for mark in marks for end in mark.span()), len(said["A"])]
    parts = (said["A"][start:end] for start, end in zip(cuts[::2], cuts[1::2], strict=True))
    before, entity, after = map(_plain, parts)
    if named[2]:
        group = numbered(_plain(group[1:-1])) if group.startswith('"') else int(group)
    relation = _plain(said.get("R", "")).strip() or None
    pair = Fact(idx, _plain(said["Q"]), before + entity + after, "", "", group, relation=relation)
    start, end = len(before), len(before) + len(entity)
    rule = _RULE.search(head)
    untouched = rule is not None and (rule[2], rule[3]) == (str(start), str(end))
    return Proposal(pair, start, end, rule=rule[1] if rule and untouched else REVIEW)


def _escaped(text: str) -> str:
    r"""One line, without brackets of its own.

    >>> print(_escaped("a\nb [c] \\n"))
    a\nb \[c\] \\n
    """
    return re.sub(r"[\\\n\r\[\]]", lambda found: _ESCAPES[found.group()], text)


def _plain(text: str) -> str:
    r"""Undo `_escaped`; other backslashes stay.

    >>> _plain(_escaped("a\nb [c] \\n"))
    'a\nb [c] \\n'
    """
    return re.sub(r"\\[\\nr\[\]]", lambda found: _ESCAPED[found.group()], text)
