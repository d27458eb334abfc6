"""What does a score say, in a sentence?"""

from collections.abc import Mapping
from typing import Any, Literal

from lensaudit.results.verdict import CALIBRATED_WITHIN, ERASED_FROM, HIDDEN_BELOW

Verdict = Literal["hidden", "partly erased", "erased", "no verdict"]

LIMITS = {"hidden_below": HIDDEN_BELOW, "erased_from": ERASED_FROM}
"""What stands between the words; the page says them of single examples, too."""


def word_of(score: float | None) -> Verdict:
    """One word for a UDS.

    >>> word_of(0.1), word_of(0.25), word_of(0.75), word_of(None)
    ('hidden', 'partly erased', 'erased', 'no verdict')
    """
    if score is None:
        return "no verdict"
    if score >= LIMITS["erased_from"]:
        return "erased"
    return "partly erased" if score >= LIMITS["hidden_below"] else "hidden"


def verdict(summary: Mapping[str, Any]) -> str:
    """What the score says, in words.

    >>> verdict({"source": "x", "score": "uds", "uds": 0.05, "ci95": [0.03, 0.08]})
    'x: hidden. UDS 0.050 [0.030, 0.080]: about 5 % of what full encodes and retain lacks is gone.'
    """
    score = summary[summary["score"]]
    if score is None:
        return f"{summary['source']}: no verdict. No example could be scored."
    low, high = summary["ci95"]
    if summary["score"] == "lens":
        return f"{summary['source']}: Logit Lens depth {score:.3f} [{low:.3f}, {high:.3f}]."
    return (
        f"{summary['source']}: {word_of(score)}. UDS {score:.3f} [{low:.3f}, {high:.3f}]: "
        f"about {round(100 * score)} % of what full encodes and retain lacks is gone."
    )


def headline(scores: Mapping[str, float | None]) -> str:
    """The first sentence of the page: models by name, with their UDS.

    >>> headline({"npo": 0.1})
    'npo still holds what it was made to forget.'
    >>> headline({"a": 0.1, "b": 0.2, "c": 0.9})
    '2 of 3 models still hold what they were made to forget.'
    """
    words: list[Verdict] = [word_of(score) for score in scores.values()]
    if not words:
        return "No unlearning depth was measured."
    if len(words) == 1:
        return _ALONE[words[0]].format(next(iter(scores)))
    n_hidden = words.count("hidden")
    if n_hidden == 0:
        return f"None of {len(words)} models still holds most of what it was made to forget."
    who = (
        f"{n_hidden} of {len(words)} models" if n_hidden < len(words) else f"All {n_hidden} models"
    )
    holds = "holds what it was" if n_hidden == 1 else "hold what they were"
    return f"{who} still {holds} made to forget."


_ALONE: dict[Verdict, str] = {
    "hidden": "{} still holds what it was made to forget.",
    "partly erased": "{} lost part of what it was made to forget.",
    "erased": "{} lost what it was made to forget.",
    "no verdict": "{}: no example could be scored.",
}


def tally(scores: Mapping[str, float | None]) -> list[tuple[Verdict, list[str]]]:
    """Verdicts that occur, from hidden to erased, with the models that have them.

    >>> tally({"a": 0.9, "b": 0.1, "c": 0.05})
    [('hidden', ['c', 'b']), ('erased', ['a'])]
    """
    ranked = sorted(scores, key=lambda name: (scores[name] is None, scores[name]))
    order: tuple[Verdict, ...] = ("hidden", "partly erased", "erased", "no verdict")
    found: list[tuple[Verdict, list[str]]] = []
    for word in order:
        names = [name for name in ranked if word_of(scores[name]) == word]
        if names:
            found.append((word, names))
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
