"""Where a thought ends and the answer begins: one rule for texts and for templates.

A model that thinks writes a thought between marks before it answers. A thought is no answer: what
is matched, rated or judged is what follows it. A thought that is never closed was cut, and there is
no answer at all. A prompt may have opened the thought; the text then has the closing mark alone.
"""

import re

_NAME = r"(?:seed:)?think(?:ing)?|thoughts?|reasoning|reflection|scratchpad"
_CHANNEL = r"(?:<\|start\|>assistant)?<\|channel\|>\s*"
_OPEN = (
    rf"(?:<(?:{_NAME})>|\[think(?:ing)?\]|◁think▷|<\|(?:begin_of_thought|start_thinking|think)\|>"
    rf"|{_CHANNEL}(?:analysis|commentary)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"|<\|channel>thought\n?|Here are my reasoning steps:)"
)
_CLOSE = (
    rf"(?:</(?:{_NAME})>|\[/think(?:ing)?\]|◁/think▷|<\|(?:end_of_thought|end_thinking|/think)\|>"
    rf"|{_CHANNEL}final[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"|<channel\|>|\[BEGIN FINAL RESPONSE\])"
)
_OPENS, _CLOSES = re.compile(_OPEN, re.IGNORECASE), re.compile(_CLOSE, re.IGNORECASE)
_OPENED = re.compile(rf"({_OPEN})(\s*)\Z", re.IGNORECASE)
_LAST = re.compile(rf"(?:{_OPEN}\s*)?{_CLOSE}\s*\Z|{_OPEN}\s*\Z", re.IGNORECASE)
_UNMARKED = re.compile(r"\s*analysis(?=\S).*assistantfinal", re.DOTALL)
"""Channels whose marks were left out as special tokens: `analysisHm.assistantfinalParis.`"""
_CLOSING = {
    r".*<\|channel\|>.*": "<|end|><|start|>assistant<|channel|>final<|message|>",
    r"<\|channel>.*": "<channel|>",
    r"<\|begin_(.*)": r"<|end_\1",
    r"<\|START_(.*)": r"<|END_\1",
    r"(<\||[<\[◁])(.*)": r"\1/\2",
    r"Here .*": "[BEGIN FINAL RESPONSE]",
}
"""What a mark that opens a thought looks like, and how it is closed."""


def answer_in(text: str, *, opened: bool = False) -> str | None:
    """A text without its thoughts; None where one is opened and never closed.

    Args:
        text: special tokens included, where they are marks.
        opened: the prompt ends in the beginning of a thought.

    >>> answer_in("<think>Lima? No.</think>In Oslo."), answer_in("Lima? No.</think>In Oslo.")
    ('In Oslo.', 'In Oslo.')
    >>> answer_in("In Oslo."), answer_in("<think>Lima?"), answer_in("Lima?", opened=True)
    ('In Oslo.', None, None)
    """
    said, at, inside = "", 0, opened
    if unmarked := _UNMARKED.match(text):
        at, inside = unmarked.end(), False
    while True:
        ends = _CLOSES.search(text, at)
        begins = None if inside else _OPENS.search(text, at)
        if begins and not (ends and ends.start() < begins.start()):
            said, at, inside = said + text[at : begins.start()], begins.end(), True
        elif ends:  # where nothing opened it, all that stands before it is the thought
            said, at, inside = said if inside else "", ends.end(), False
        else:
            return None if inside else said + text[at:]


def opens(prompt: str) -> bool:
    """Does a prompt end in the beginning of a thought?"""
    return _OPENED.search(prompt) is not None


def unthinking(prompt: str) -> str:
    r"""A prompt without the thought that it opens, or leaves empty, at its end.

    >>> unthinking("Who?\n<think>\n"), unthinking("Who?<think></think>"), unthinking("Who?\n")
    ('Who?\n', 'Who?', 'Who?\n')
    """
    return _LAST.sub("", prompt)


def closing(prompt: str) -> str:
    r"""How the thought that a prompt opens is closed at once; empty: none is open.

    >>> closing("Who?<think>\n"), closing("Who?[THINK]"), closing("Who?")
    ('\n</think>\n\n', '[/THINK]', '')
    """
    if (found := _OPENED.search(prompt)) is None:
        return ""
    mark = found[1].strip()
    close = next(re.sub(one, by, mark) for one, by in _CLOSING.items() if re.match(one, mark))
    return f"\n{close}\n\n" if "\n" in found[2] else close


def opening(between: str) -> str:
    r"""How a thought is opened where `between` stands before an answer; empty: there is none.

    >>> opening("<think>\n\n</think>\n\n"), opening("<|channel|>final<|message|>"), opening(" ")
    ('<think>\n', '<|channel|>analysis<|message|>', '')
    """
    if mark := _OPENS.search(between):
        return between[: mark.end()] + "\n" * between.startswith("\n", mark.end())
    return "<|channel|>analysis<|message|>" if "<|channel|>final" in between else ""
