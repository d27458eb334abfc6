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


NOT_DECIDED = ("unreadable", "undecided", "unscored")
"""Codes that say neither that the facts are held nor that they are gone."""


def headline(codes: Mapping[str, Code], too_few: Mapping[str, int] | None = None) -> str:
    """The first sentence of the page: models by name, with their verdict.

    `too_few`: undecided models that more rows would decide, with the rows that were scored.

    >>> headline({"npo": "hidden"})
    'npo still holds what it was made to forget.'
    >>> headline({"a": "hidden", "b": "answers", "c": "undecided"})
    '2 of 3 models still hold what they were made to forget; 1 is not decided.'
    >>> headline({"a": "undecided", "b": "erased"})
    '2 models: 1 undecided, 1 erased.'
    >>> headline({"a": "undecided", "b": "undecided"}, {"a": 8, "b": 8})
    '2 models: too few rows to decide (8).'
    """
    few = too_few or {}
    if not codes:
        return "No unlearning depth was measured."
    if len(codes) == 1:
        ((name, code),) = codes.items()
        if name in few:
            return f"{name}: too few rows ({few[name]}) to decide whether it holds the facts."
        return _ALONE[code].format(name)
    n_held = sum(code in HOLDS for code in codes.values())
    if n_held == 0:
        if few.keys() >= codes.keys():
            rows = dict.fromkeys(map(str, (min(few.values()), max(few.values()))))
            return f"{len(codes)} models: too few rows to decide ({' to '.join(rows)})."
        told = ", ".join(f"{len(names)} {word}" for word, _, names in tally(codes))
        return f"{len(codes)} models: {told}."
    who = f"{n_held} of {len(codes)} models" if n_held < len(codes) else f"All {n_held} models"
    holds = "holds what it was" if n_held == 1 else "hold what they were"
    n_open = sum(code in NOT_DECIDED for code in codes.values())
    rest = f"; {n_open} {'is' if n_open == 1 else 'are'} not decided" if n_open else ""
    return f"{who} still {holds} made to forget{rest}."


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
