"""What is a language model's answer worth between 0 and 100?

Scores are weighted by the probabilities of the first token, not taken from the likeliest one:

    score = sum_k k p_k / M,    M = sum_k p_k,    over first tokens that are numbers k of the scale

and there is no score where M < 0.25 (persona_vectors @ e9f55e7, `judge.py`).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lensaudit.judge.programmatic import declines
from lensaudit.judge.verdict import JudgeVerdict, Status

MIN_MASS = 0.25
"""Below it the numbers among the first tokens say nothing (persona_vectors @ e9f55e7)."""
N_SAMPLES = 5
"""Answers averaged in mode `sample` (spec: 5 to 10)."""
_SHOWN_TOKENS = 5
_ROUNDING = 1e-3
_THOUGHT = re.compile(r"\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_NUMBER = re.compile(r'\s*["\'`*]*(\d{1,3})(?:\.0+)?["\'`*]*\s*(?:/\s*100|%)?\s*\.?["\'`*]*\s*')

Mode = Literal["int100", "digit10", "letters", "sample", "text"]
"""In order of preference; the first three read probabilities."""
LETTERS = {"A": 0.0, "B": 25.0, "C": 50.0, "D": 75.0, "E": 100.0}
SUFFIXES: dict[Mode, str] = {
    "int100": "",
    "digit10": "\n\nAnswer on a scale of 0 to 9 instead of 0 to 100. Just one digit.",
    "letters": "\n\nAnswer with one letter instead of a number: A for 0, B for 25, C for 50, "
    "D for 75, E for 100. Just the letter.",
    "sample": "",
    "text": "",
}
"""What is added to a prompt that asks for 0 to 100, so that one token can answer it."""


@dataclass(frozen=True)
class TokenProb:
    """One alternative for the first token."""

    token: str
    logprob: float
    """Natural logarithm."""


@dataclass(frozen=True)
class Reading:
    """A score and its evidence."""

    score: float | None
    """0 to 100."""
    status: Status = "ok"
    reason: str = ""
    mass: float | None = None
    """M, the probability of all numbers of the scale; None where probabilities are not read."""
    argmax: float | None = None
    """The value of the likeliest number."""
    variance: float | None = None
    """sum_k k^2 p_k / M - score^2; in mode `sample` that of the samples (over n)."""
    tokens: tuple[TokenProb, ...] = ()
    """The likeliest first tokens, numbers or not."""

    @property
    def verdict(self) -> JudgeVerdict:
        """Without the evidence."""
        return JudgeVerdict(self.score, self.reason, self.status)


def uses_logprobs(mode: Mode) -> bool:
    """Does the mode read probabilities of the first token?"""
    return mode in ("int100", "digit10", "letters")


def value_of(token: str, mode: Mode) -> float | None:
    """What a first token is worth, 0 to 100; None for one that is no value of the scale.

    >>> value_of(" 80", "int100"), value_of("8", "digit10"), value_of("101", "int100")
    (80.0, 88.88888888888889, None)
    """
    text = token.strip()
    if mode == "letters":
        return LETTERS.get(text)
    if not (text.isascii() and text.isdigit()):
        return None
    top = 9 if mode == "digit10" else 100
    return 100 * int(text) / top if int(text) <= top else None


def weighted(tokens: Sequence[TokenProb], mode: Mode) -> Reading:
    """The expected score over the alternatives of the first token.

    Variants of one number ("80", " 80") count together; a token listed twice counts once.

    >>> top = [("80", 0.5), ("70", 0.3), ("60", 0.05), ("The", 0.15)]
    >>> reading = weighted([TokenProb(t, math.log(p)) for t, p in top], "int100")
    >>> round(reading.score, 2), round(reading.mass, 2), reading.argmax
    (75.29, 0.85, 80.0)
    """
    once = {one.token: one for one in reversed(tokens)}
    ranked = tuple(sorted(once.values(), key=lambda one: (-one.logprob, one.token)))
    shown = ranked[:_SHOWN_TOKENS]
    probs = [math.exp(min(one.logprob, 1.0)) for one in ranked]
    if not ranked or any(math.isnan(p) for p in probs) or sum(probs) > 1 + _ROUNDING:
        reason = f"the first token's probabilities sum to {sum(probs):.3g}: no log-probabilities"
        return Reading(None, "no_logprobs", reason, tokens=shown)
    worth: dict[float, float] = {}
    for one, p in zip(ranked, probs, strict=True):
        value = value_of(one.token, mode)
        if value is not None:
            worth[value] = worth.get(value, 0.0) + p
    return _expected(worth, shown)


def _expected(worth: dict[float, float], shown: tuple[TokenProb, ...]) -> Reading:
    mass = sum(worth.values(), 0.0)
    argmax = max(worth, key=lambda value: worth[value]) if worth else None
    if mass < MIN_MASS:
        said = shown[0].token
        reason = f"numbers hold {mass:.2f} of the probability, wanted {MIN_MASS}; it says {said!r}"
        return Reading(None, "low_mass", reason, mass, argmax, tokens=shown)
    score = sum(value * p for value, p in worth.items()) / mass
    variance = sum(value**2 * p for value, p in worth.items()) / mass - score**2
    return Reading(score, "ok", "", mass, argmax, max(0.0, variance), shown)


def unthought(text: str) -> str:
    """A reply without the thought that a server may leave before it."""
    return _THOUGHT.sub("", text, count=1)


def parsed(text: str) -> Reading:
    """The score in a reply that is a number and nothing else.

    A number inside a sentence is not taken: which one would be a guess.

    >>> parsed(" 85/100. ").score, parsed("7 of 10 say 85").status
    (85.0, 'parse_error')
    """
    text = unthought(text)
    match = _NUMBER.fullmatch(text)
    if match is not None and int(match[1]) <= 100:
        return Reading(float(match[1]), argmax=float(match[1]))
    if declines(text) or text.strip().upper().startswith("REFUSAL"):
        return Reading(None, "refusal", "the judge declines to answer")
    return Reading(None, "parse_error", f"the reply is no number from 0 to 100: {text[:40]!r}")


def averaged(readings: Sequence[Reading]) -> Reading:
    """Mean over the samples that gave a score; at least half of them must.

    Raises:
        ValueError: no readings.
    """
    if not readings:
        raise ValueError("averaged: wanted at least one reading")
    scores = [one.score for one in readings if one.score is not None]
    if 2 * len(scores) < len(readings):
        return next(one for one in readings if one.score is None)
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / len(scores)
    return Reading(mean, argmax=max(set(scores), key=scores.count), variance=variance)
