"""What does a score say, in a sentence?"""

from collections.abc import Mapping
from typing import Any, Literal

from lensaudit.results.verdict import (
    CALIBRATED_WITHIN,
    ERASED_FROM,
    HIDDEN_BELOW,
    Code,
    Evidence,
    Measured,
    decide,
    rows_only,
    shown,
    verdict_of,
)

LIMITS = {"hidden_below": HIDDEN_BELOW, "erased_from": ERASED_FROM}
"""What stands between the shades of single examples on the page; models have verdicts."""

Tone = Literal["hidden", "partly-erased", "erased", "no-verdict"]

WORDS: Mapping[Code, tuple[str, Tone]] = {
    "intact": ("intact", "hidden"),
    "hidden": ("hidden", "hidden"),
    "hidden_other_basis": ("hidden in another basis", "hidden"),
    "partly_erased": ("partly erased", "partly-erased"),
    "unreadable": ("unreadable", "no-verdict"),
    "undecided": ("undecided", "no-verdict"),
    "erased": ("erased", "erased"),
    "unscored": ("no verdict", "no-verdict"),
}
"""Code -> how it is said in two or three words, and its colour; from held to gone."""

HOLDS = ("intact", "hidden", "hidden_other_basis")
"""Codes of models that still hold the facts."""


def code_of(summary: Mapping[str, Any]) -> Code:
    """The verdict of a summary; of one without controls what its score alone decides.

    >>> code_of({"uds": 0.05, "ci95": [0.03, 0.08]}), code_of({"uds": 0.99, "ci95": [0.98, 1.0]})
    ('hidden', 'undecided')
    """
    known = summary.get("verdict")
    if isinstance(known, Mapping) and known.get("code") in WORDS:
        return known["code"]
    score = summary.get("uds")
    low, high = summary.get("ci95") or (None, None)
    return decide(Evidence(None if score is None else Measured(score, low, high)))[0]


def verdict(summary: Mapping[str, Any]) -> str:
    """What a summary says, in words.

    >>> verdict({"source": "x", "score": "uds", "uds": 0.05, "ci95": [0.03, 0.08]})
    'x: hidden: full still reads most of the facts in its stream. UDS 0.050 [0.030, 0.080].'
    """
    score, ends = summary[summary["score"]], summary["ci95"]
    found = None if score is None else Measured(score, *(ends or ()), why=summary.get("ci95_why"))
    if summary["score"] == "lens" and found is not None:
        only = f" {rows_only(found.why)}." if found.why else ""
        return f"{summary['source']}: {shown('Logit Lens depth', found)}.{only}"
    if "verdict" in summary:
        return summary["verdict"]["sentence"]
    return verdict_of(summary["source"], Evidence(found)).sentence


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
    >>> headline({"a": "hidden", "b": "intact", "c": "erased"})
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
    "intact": "{} still says what it was made to forget.",
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


def calibration_problem(calibration: Mapping[str, float | None]) -> str | None:
    """What is wrong with the anchors, or None.

    >>> calibration_problem({"full": 0.001, "retain": 1.0})
    >>> calibration_problem({"full": 0.3, "retain": 1.0})
    'full as source reads 0.300, not 0: the scale is off, and no number below can be trusted.'
    """
    for name, wanted in (("full", 0.0), ("retain", 1.0)):
        found = calibration.get(name)
        if found is None:
            return f"{name} as source has no score: the scale is not calibrated."
        if abs(found - wanted) > CALIBRATED_WITHIN:
            return (
                f"{name} as source reads {found:.3f}, not {wanted:.0f}: the scale is off, and no "
                "number below can be trusted."
            )
    return None
