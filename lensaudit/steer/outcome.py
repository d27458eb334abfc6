"""From judged answers to `results.json`: does the score follow the coefficient?

The keys are those of trait-interp's results, with intervals, counts and a split of the questions
added: what is chosen on one half is reported on the other (`steering.md` section 4).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import linregress, spearmanr

from lensaudit.files import digest
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean

SCALE = (0.0, 100.0)
"""Of a judge's scores."""
COHERENT_FROM = 50.0
"""Mean coherence below this flags a setting; the seed's threshold."""
FEWEST_COEFFICIENTS = 3
"""A correlation of two points is 1 or -1 whatever they are."""


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer and its scores, 0 to 100; None where a judge gives none."""

    question: int
    rollout: int
    text: str
    trait: float | None
    coherence: float | None
    reason: str = ""
    """Why there is no trait score."""
    coherence_reason: str = ""
    """Why there is no coherence."""


@dataclass(frozen=True)
class Level:
    """All answers under one setting."""

    answers: tuple[JudgedAnswer, ...]

    @property
    def scores(self) -> list[float]:
        """Of the answers that have one."""
        return [one.trait for one in self.answers if one.trait is not None]

    @property
    def mean(self) -> float | None:
        """Mean trait score of the valid answers."""
        return _mean(self.scores)

    @property
    def coherence(self) -> float | None:
        """Mean coherence of the answers that have one."""
        return _mean([one.coherence for one in self.answers if one.coherence is not None])

    @property
    def coherent(self) -> bool:
        """Whether the answers of the level hold together."""
        return self.coherence is not None and self.coherence >= COHERENT_FROM

    def only(self, questions: frozenset[int]) -> "Level":
        """The answers to some of the questions."""
        return Level(tuple(one for one in self.answers if one.question in questions))

    def interval(self) -> Estimate:
        """95 % interval of the mean by questions, or why there is none."""
        groups = [one.question for one in self.answers if one.trait is not None]
        return clustered_mean(self.scores, groups, bounds=SCALE, unit="question")

    def document(self, *, baseline: float | None, ratio: float | None) -> dict[str, Any]:
        """One entry of `coefficients`; `std` is that of a population (ddof 0)."""
        scores = self.scores
        n_invalid = len(self.answers) - len(scores)
        bound = None
        if baseline is not None and self.answers:
            bound = (math.fsum(scores) + n_invalid * baseline) / len(self.answers)
        return {
            "mean": self.mean,
            "std": float(np.std(scores)) if scores else None,
            "n": len(scores),
            "n_total": len(self.answers),
            "n_invalid": n_invalid,
            **self.interval().limits(),
            "mean_invalid_as_baseline": bound,
            "ratio": ratio,
        }

    @property
    def n_coherence(self) -> int:
        """Number of answers whose coherence is known."""
        return sum(one.coherence is not None for one in self.answers)


def key_of(coefficient: float) -> str:
    """How a coefficient is written everywhere, so that 0 and -0.0 are one key.

    >>> key_of(0.0), key_of(-0.0), key_of(1.5)
    ('0.0', '0.0', '1.5')
    """
    return str(float(coefficient) + 0.0)


def halves(questions: Sequence[str], seed: int) -> tuple[frozenset[int], frozenset[int]]:
    """Question numbers to choose on and to report on: alternately, in a shuffled order.

    A single question is in both.
    """
    order = sorted(range(len(questions)), key=lambda at: digest([seed, questions[at]]))
    if len(order) == 1:
        return frozenset(order), frozenset(order)
    return frozenset(order[::2]), frozenset(order[1::2])


def correlation(points: Mapping[float, float]) -> float | None:
    """Pearson r of score and coefficient: the seed's controllability.

    Free of units, so a small effect can reach 1 and a strong one that saturates cannot; read it
    beside the slope. None below three coefficients, or where all scores are equal.

    >>> correlation({0.0: 10.0, 1.0: 20.0, 2.0: 30.0})
    1.0
    """
    if _flat(points):
        return None
    return round(float(np.corrcoef(list(points), list(points.values()))[0, 1]), 12)


def rank_correlation(points: Mapping[float, float]) -> float | None:
    """Spearman's rho of score and coefficient; None where `correlation` is None."""
    if _flat(points):
        return None
    found: Any = spearmanr(list(points), list(points.values()))
    return float(found.statistic)


def slope(points: Mapping[float, float]) -> float | None:
    """Score points per unit of coefficient, least squares; None for a single coefficient."""
    if len(points) < 2:
        return None
    fit: Any = linregress(list(points), list(points.values()))
    return float(fit.slope)


def _flat(points: Mapping[float, float]) -> bool:
    return len(points) < FEWEST_COEFFICIENTS or len(set(points.values())) == 1


def strongest(levels: Mapping[float, Level], polarity: int) -> float | None:
    """The setting with the most (polarity 1) or least (-1) of the trait; None without scores.

    Of equal ones the first named.
    """
    known = {key: level.mean for key, level in levels.items() if level.mean is not None}
    return max(known, key=lambda key: polarity * (known[key] or 0.0)) if known else None


def coherent_only(levels: Mapping[float, Level]) -> dict[float, Level]:
    """The settings that hold together; the baseline always does."""
    return {key: level for key, level in levels.items() if level.coherent or key == 0}


def chosen_on_dev(
    levels: Mapping[float, Level], questions: Sequence[str], *, polarity: int, seed: int
) -> dict[str, Any] | None:
    """The coherent setting that is strongest on one half of the questions, reported on the other.

    `delta` is paired: per question, against the baseline; its interval is by questions.
    """
    dev, test = halves(questions, seed)
    best = strongest(coherent_only({k: v.only(dev) for k, v in levels.items()}), polarity)
    if best is None:
        return None
    report, base = levels[best].only(test), levels[0.0].only(test)
    gaps = paired_gaps(report, base)
    limits = clustered_mean(
        list(gaps.values()), list(gaps), bounds=(-SCALE[1], SCALE[1]), unit="question"
    )
    return {
        "setting": best,
        "dev_questions": sorted(dev),
        "test_questions": sorted(test),
        "dev_mean": levels[best].only(dev).mean,
        "test_mean": report.mean,
        "test_baseline": base.mean,
        "test_delta": _mean(list(gaps.values())),
        **limits.limits("test_delta_ci95"),
        "test_coherence": report.coherence,
    }


def paired_gaps(level: Level, base: Level) -> dict[int, float]:
    """Mean score minus the baseline's, by question; questions without scores are left out."""
    questions = sorted({one.question for one in level.answers})
    gaps = {}
    for question in questions:
        means = [one.only(frozenset((question,))).mean for one in (level, base)]
        if means[0] is not None and means[1] is not None:
            gaps[question] = means[0] - means[1]
    return gaps


def summary_of(
    levels: Mapping[float, Level],
    questions: Sequence[str],
    *,
    polarity: int,
    seed: int,
    ratios: Mapping[float, float | None],
) -> dict[str, Any]:
    """The numbers of `results.json`; `levels` holds coefficient 0.

    `max_delta` is the strongest setting minus the baseline in the direction of the polarity; the
    grid holds 0, so it is at least 0 for polarity 1 and at most 0 for -1.
    """
    baseline = levels[0.0].mean
    points = {key: level.mean for key, level in levels.items() if level.mean is not None}
    return {
        "coefficients": {
            key_of(key): level.document(baseline=baseline, ratio=ratios[key])
            for key, level in levels.items()
        },
        "coherence": {
            key_of(key): {"mean": level.coherence, "n": level.n_coherence}
            for key, level in levels.items()
        },
        "coherence_warnings": [key_of(k) for k, level in levels.items() if not level.coherent],
        "baseline": baseline,
        "max_delta": _delta(levels, baseline, polarity),
        "max_delta_coherent": _delta(coherent_only(levels), baseline, polarity),
        "controllability": correlation(points),
        "spearman": rank_correlation(points),
        "slope": slope(points),
        "chosen": chosen_on_dev(levels, questions, polarity=polarity, seed=seed),
    }


def _delta(levels: Mapping[float, Level], baseline: float | None, polarity: int) -> float | None:
    best = strongest(levels, polarity)
    if baseline is None or best is None:
        return None
    mean = levels[best].mean
    return None if mean is None else mean - baseline


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
