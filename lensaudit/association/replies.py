"""Does a server's reply belong to the prompt that was sent, and does it hold an answer?

Nothing is concluded from log-probs whose tokens spell another text, that are all alike or at a
floor, nor from samples most of which are no answers.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lensaudit.data.thoughts import answer_in
from lensaudit.judge.client import FLOOR_NATS
from lensaudit.judge.items import MOST_VOID
from lensaudit.judge.programmatic import declines

Scored = list[tuple[Any, float]]
"""Tokens of a text, each with its log-prob, nats; that of the first is nothing."""
MOST_AT_FLOOR = 0.5
APART_NATS = 2.0
"""Between two readings of one beginning: rounding and other batches make less."""
VOID = {
    "empty": "are empty",
    "cut": "are cut before they name a value",
    "thought": "are thoughts that were cut",
    "refused": "are refusals",
    "alike": "are the same to every prompt",
}
"""Kinds of samples that hold no answer."""
_LEAST = 3
_PARTIAL = "\ufffd"
_BYTES = re.compile(r"<0x[0-9A-Fa-f]{2}>|\\x[0-9a-f]{2}|^bytes:")
_BLANKS = re.compile(r"[\s▁ĠĊ]+")
_MARK = re.compile(r"[<\[].*[>\]]|")


class NotItsReply(ValueError):
    """A reply that is not about the prompt that was sent, or says nothing of it; why."""


def check_echo(names: Sequence[str], text: str) -> None:
    """Refuse tokens that do not spell a text, whole; a mark of the beginning may stand before it.

    Raises:
        NotItsReply: they do not.
    """
    squeezed = _squeezed(text)
    if not (_spell(names, squeezed, [0]) or _spell(_unmarked(names), squeezed, [0])):
        raise NotItsReply("the reply's tokens do not spell the whole text that was sent")


def check_rest(names: Sequence[str], text: str) -> None:
    """Check tokens as `check_echo` does, without the first: a mark, or part of the first word.

    Raises:
        NotItsReply: they do not spell it.
    """
    squeezed, first = _squeezed(text), _squeezed(text.split(maxsplit=1)[0])
    if not _spell(_unmarked(names), squeezed, range(len(first) + 1)):
        raise NotItsReply("the reply's tokens do not spell the whole text that was sent")


def check_chat(names: Sequence[str], question: str, begun: str) -> None:
    """Refuse tokens of a chat that lack the question, or do not end in the answer that has begun.

    Raises:
        NotItsReply: they do.
    """
    pieces = [_piece(name) for name in names]
    said, wanted = "".join(pieces), _squeezed(question)
    if _PARTIAL in said or "" in pieces:  # letters in parts: those that are whole are compared
        said, wanted = _ascii(said), _ascii(wanted)
    if wanted not in said:
        raise NotItsReply("the reply's tokens do not hold the question that was sent")
    if not _ends_in(pieces, _squeezed(begun)):
        raise NotItsReply(
            "the prompt in the reply does not end with the answer's beginning, as it was sent"
        )


def check_readings(texts: Sequence[Sequence[Scored]]) -> None:
    """Refuse log-probs of values that are all alike, or mostly at a floor.

    Args:
        texts: by prompt, alone and before each value.

    Raises:
        NotItsReply: they are.
    """
    found: dict[tuple[Any, ...], float] = {}
    for alone, one in ((row[0], one) for row in texts for one in row[1:]):
        names = tuple(name for name, _ in one)
        begin = len(alone) if continues(one, alone) else 1
        found |= {names[: at + 1]: one[at][1] for at in range(begin, len(one))}
    nats, n_low = sorted(found.values()), sum(one <= FLOOR_NATS for one in found.values())
    if n_low > MOST_AT_FLOOR * len(nats):
        low = f"{n_low} of {len(nats)} log-probs of values are at a floor ({nats[0]:g})"
        raise NotItsReply(f"{low}: the server gives log-probs of the likeliest tokens only")
    if len(nats) >= _LEAST and nats[0] == nats[-1]:
        raise NotItsReply(f"all {len(nats)} log-probs of values are the same, {nats[0]:g}")


def check_beginning(alone: Scored, joint: Scored) -> None:
    """Refuse two readings of one beginning that say different things of it.

    Raises:
        NotItsReply: they do; e.g. each log-prob is the next token's.
    """
    if not continues(joint, alone):
        return
    apart = max(
        (abs(one - two) for (_, one), (_, two) in zip(alone, joint, strict=False)), default=0
    )
    if apart > APART_NATS:
        raise NotItsReply(
            f"the same prompt's tokens differ by {apart:.1f} nats when a value follows"
        )


def continues(joint: Scored, alone: Scored) -> bool:
    """Do the tokens of a text begin those of a longer one?"""
    return [one for one, _ in joint[: len(alone)]] == [one for one, _ in alone]


def _squeezed(text: str) -> str:
    """A text as tokens may spell it: without blanks, case and compatible forms."""
    return unicodedata.normalize("NFKC", _BLANKS.sub("", text)).casefold()


def _piece(name: str) -> str:
    """A token's letters; what is a part of one is a sign of its own."""
    return _squeezed(_BYTES.sub(_PARTIAL, name))


def _unmarked(names: Sequence[str]) -> Sequence[str]:
    """Tokens without the marks before them, as `<s>` or `[gMASK]<sop>`."""
    first = next((at for at, name in enumerate(names) if not _MARK.fullmatch(name)), len(names))
    return names[first:]


def _spell(names: Iterable[str], text: str, starts: Iterable[int]) -> bool:
    """Do tokens spell a squeezed text from one of these places to its end?

    A letter of several tokens is told as signs of parts, or as nothing but at its last token.

    >>> _spell(["Ab", "c"], "abc", [0]), _spell(["c"], "abc", [0])
    (True, False)
    """
    ends = set(starts)
    for name in names:
        piece = _piece(name)
        if piece.strip(_PARTIAL) and _PARTIAL not in piece:
            ends = {at + len(piece) for at in ends if text.startswith(piece, at)}
        else:
            for part in re.findall(f"{_PARTIAL}|[^{_PARTIAL}]+", piece) or [_PARTIAL]:
                ends = _after(part, text, ends)
    return len(text) in ends


def _after(part: str, text: str, ends: set[int]) -> set[int]:
    """Places after a part of a token; its sign stands for one letter beyond ASCII, or none."""
    if part != _PARTIAL:
        return {at + len(part) for at in ends if text.startswith(part, at)}
    return ends | {at + 1 for at in ends if not text[at : at + 1].isascii()}


def _ends_in(pieces: Sequence[str], text: str) -> bool:
    """Do the last tokens spell a squeezed text? The first of them may begin before it."""
    lefts = {len(text)}
    for piece in reversed(pieces):
        if 0 in lefts:
            break
        if not piece or _PARTIAL in piece:
            most = max(1, len(piece))
            lefts = {left - n for left in lefts for n in range(min(most, left) + 1)}
        else:
            whole = {left - len(piece) for left in lefts if text.endswith(piece, 0, left)}
            lefts = whole | {0 for left in lefts if piece.endswith(text[:left])}
    return 0 in lefts


def _ascii(text: str) -> str:
    return "".join(char for char in text if char.isascii())


@dataclass(frozen=True)
class Sample:
    """An answer of a model behind an address."""

    text: str
    """Without its thought, and of a completion the first line."""
    void: str = ""
    """Why it holds no answer unless it names a value: a key of `VOID`."""
    thought: bool = False
    """Did the model think before it?"""


def sample_of(choice: Mapping[str, Any], prompt: str) -> Sample:
    """A sampled answer as a choice of a reply tells it; `prompt` is empty for a chat."""
    cut = choice.get("finish_reason") == "length"
    if "message" not in choice:
        # some servers give the prompt back before its continuation
        text = answer_in(choice["text"].removeprefix(prompt))
        if text is None:
            return Sample("", "thought", True)
        text = text.lstrip().partition("\n")[0]
        return Sample(text, "" if text else "empty")
    message = choice.get("message") or {}
    content = str(message.get("content") or "")
    text = answer_in(content)
    sent = message.get("reasoning_content") or message.get("reasoning")
    thought = bool(sent or text != content)
    if text is None:
        return Sample("", "thought", True)
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        return Sample(text, "refused", thought)
    if not text.strip():
        return Sample("", "thought" if sent or cut else "empty", thought or cut)
    if declines(text):
        return Sample(text, "refused", thought)
    return Sample(text, "cut" if cut else "", thought)


def counts_of(
    samples: Sequence[Sequence[Sample]], named: Sequence[Sequence[bool]]
) -> dict[str, int]:
    """How many samples hold no answer, by kind; all of them, and those after a thought.

    Args:
        samples: by prompt.
        named: whether each names a value: then it is an answer, whatever else it is.
    """
    every = [one for row in samples for one in row]
    silent = [
        one
        for one, is_named in zip(every, [x for row in named for x in row], strict=True)
        if not is_named
    ]
    alike = len(samples) > 1 and len(silent) == len(every) and len({one.text for one in every}) == 1
    kinds = [one.void or ("alike" if alike else "") for one in silent]
    found = {kind: kinds.count(kind) for kind in VOID if kind in kinds}
    return {
        "samples": len(every),
        "thinking": sum(one.thought and one.void != "thought" for one in every),
        **found,
    }


def void_line(counts: Mapping[str, int]) -> str:
    """Shares of samples that hold no answer, in words; empty where all hold one."""
    n = counts.get("samples", 0)
    told = [f"{counts[kind]} {what}" for kind, what in VOID.items() if counts.get(kind)]
    told += [f"{counts['thinking']} follow a thought"] if counts.get("thinking") else []
    return f"of {n} samples {', '.join(told)}" if told else ""


def check_samples(counts: Mapping[str, int]) -> None:
    """Refuse to read samples most of which hold no answer.

    Raises:
        NotItsReply: they hold none.
    """
    if sum(counts.get(kind, 0) for kind in VOID) > MOST_VOID * counts["samples"]:
        raise NotItsReply(
            f"{void_line(counts)}; they are not read, as more than {MOST_VOID:.0%} hold no answer"
        )
