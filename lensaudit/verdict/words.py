"""How a verdict is said in two or three words, of one model and of many."""

from collections.abc import Mapping
from typing import Any, Literal

from lensaudit.results.sentences import rows_only
from lensaudit.verdict.decide import Code

LIMITS = {"hidden_below": 0.25, "erased_from": 0.75}
"""What stands between the shades of single examples on the page; models have verdicts."""

Tone = Literal["hidden", "partly-erased", "erased", "no-verdict"]

WORDS: Mapping[Code, tuple[str, Tone]] = {
    "answers": ("answers", "hidden"),
    "hidden": ("hidden", "hidden"),
    "hidden_other_basis": ("hidden in another basis", "hidden"),
    "partly_erased": ("partly erased", "partly-erased"),
    "unreadable": ("unreadable", "no-verdict"),
    "undecided": ("undecided", "no-verdict"),
    "erased": ("erased", "erased"),
    "unscored": ("no verdict", "no-verdict"),
}
"""Code -> how it is said in two or three words, and its colour; from held to gone."""

HOLDS = ("answers", "hidden", "hidden_other_basis")
"""Codes of models that still hold the facts."""


def said(summary: Mapping[str, Any]) -> str:
    """What a summary of `patch` says, in words.

    >>> said({"source": "x", "score": "lens", "lens": 0.5, "ci95": None, "ci95_why": "3 authors"})
    'x: Logit Lens depth 0.500. 3 authors; this describes these rows only.'
    """
    if summary["score"] == "lens" and summary["lens"] is not None:
        value, only = with_limits(summary["lens"], summary)
        return f"{summary['source']}: Logit Lens depth {value}.{only}"
    return summary["verdict"]["sentence"]


def with_limits(value: float, summary: Mapping[str, Any], name: str = "ci95") -> tuple[str, str]:
    """A value with its interval, and the sentence that follows where it has none.

    >>> with_limits(0.5, {"ci95": [0.25, 0.75]})
    ('0.500 [0.250, 0.750]', '')
    >>> with_limits(0.5, {"ci95": None, "ci95_why": "3 authors: no interval"})
    ('0.500', ' 3 authors: no interval; this describes these rows only.')
    """
    if summary.get(name):
        low, high = summary[name]
        return f"{value:.3f} [{low:.3f}, {high:.3f}]", ""
    return f"{value:.3f}", f" {rows_only(summary.get(f'{name}_why') or 'no interval')}."


def headline(codes: Mapping[str, Code]) -> str:
    """The first sentence of the page: models by name, with their verdict.

    >>> headline({"npo": "hidden"})
    'npo still holds what it was made to forget.'
    >>> headline({"a": "hidden", "b": "answers", "c": "erased"})
    '2 of 3 models still hold what they were made to forget.'
    >>> headline({"a": "undecided", "b": "erased"})
    'Of none of 2 models is it shown that it still holds what it was made to forget.'
    """
    if not codes:
        return "No unlearning depth was measured."
    if len(codes) == 1:
        ((name, code),) = codes.items()
        return _ALONE[code].format(name)
    n_held = sum(code in HOLDS for code in codes.values())
    if n_held == 0:
        n = len(codes)
        return f"Of none of {n} models is it shown that it still holds what it was made to forget."
    who = f"{n_held} of {len(codes)} models" if n_held < len(codes) else f"All {n_held} models"
    holds = "holds what it was" if n_held == 1 else "hold what they were"
    return f"{who} still {holds} made to forget."


_ALONE: Mapping[Code, str] = {
    "answers": "{} still says what it was made to forget.",
    "hidden": "{} still holds what it was made to forget.",
    "hidden_other_basis": "{} still holds what it was made to forget, in another basis.",
    "partly_erased": "{} lost part of what it was made to forget.",
    "erased": "{} lost what it was made to forget, as far as its stream shows.",
    "unreadable": "{}: its stream cannot be read, so nothing is shown.",
    "undecided": "{}: not decided whether it holds what it was made to forget.",
    "unscored": "{}: no example could be scored.",
}


def tally(codes: Mapping[str, Code]) -> list[tuple[str, Tone, list[str]]]:
    """Verdicts that occur, from held to gone, with their colour and the models that have them.

    >>> tally({"a": "erased", "b": "hidden", "c": "hidden"})
    [('hidden', 'hidden', ['b', 'c']), ('erased', 'erased', ['a'])]
    """
    found = []
    for code, (word, tone) in WORDS.items():
        names = [name for name, own in codes.items() if own == code]
        if names:
            found.append((word, tone, names))
    return found
