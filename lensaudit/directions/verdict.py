"""What the experiments say together: recovery with its interval, beside every control.

    recovery = (mean s(intervened) - mean s(before)) / (mean s(target) - mean s(before))

over the authors that were scored, each once over the folds. Before and target are unlearned and
full; for the never-trained control retain and full; for an edit of full, full and unlearned.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lensaudit.directions.experiments import Finding, Kind
from lensaudit.directions.models import Role
from lensaudit.groups import unit_of
from lensaudit.results.sentences import (
    WEAK,
    component_clamped,
    direction_ablated,
    direction_added,
)
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.recovery import recovery
from lensaudit.steer.outcome import rank_correlation

TARGET: Mapping[Role, Role] = {"unlearned": "full", "retain": "full", "full": "unlearned"}
SCORES = ("em", "logprob", "said")
"""Entity tokens right with the prefix forced; their log-prob; the entity in a free answer."""
LEAST_SE = 2.0
"""The gap to close must exceed so many standard errors, or there is nothing to restore."""
COMPARABLE = 0.9
"""Mean cosine of two models' streams on retain examples below which their axes may differ."""
SMALL = 0.1
"""Gap, in shares of answers, below which a recovery rests on a handful of tokens."""
CONTROLS: Mapping[str, str] = {
    "random": "random directions",
    "never_trained": "the same on the never-trained model",
}
"""Arm -> what it is called in a sentence."""


@dataclass(frozen=True)
class PlainScores:
    """Scores without an intervention, by idx, and whose authors they are."""

    scores: Mapping[Role, Mapping[int, float]]
    groups: Mapping[int, int | str]

    def gaps(self, before: Role, target: Role, idx: Iterable[int]) -> list[float]:
        """Per example: target minus before."""
        return [self.scores[target][one] - self.scores[before][one] for one in idx]


@dataclass(frozen=True)
class Recovery(Estimate):
    """How much of a gap an arm closes: 0 none, 1 all of it.

    Without a value where full is not ahead by more than two standard errors.
    """

    mean: float = math.nan
    """Mean score under the intervention."""
    sd: float | None = None
    """Over random directions; None for a single direction."""

    def document(self) -> dict[str, Any]:
        """The recovery as a JSON object."""
        own = {"recovery": self.value, "score": self.mean, "n_items": self.n, "sd": self.sd}
        return own | self.limits()


def standard_error(values: Sequence[float], groups: Sequence[int | str]) -> float:
    """Of the mean, from the spread of author means (ddof 1); infinite for a single author.

    >>> standard_error([1.0, 1.0, 3.0], ["a", "a", "b"])  # means 1 and 3: sqrt(2) / sqrt(2)
    1.0
    """
    by_group: dict[int | str, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(value)
    means = [math.fsum(one) / len(one) for one in by_group.values()]
    return float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.inf


def is_gap(plain: PlainScores, before: Role, target: Role, idx: Sequence[int]) -> bool:
    """Is full ahead of the other model by more than two standard errors?

    Behind it there is nothing to bring back: closing that gap would make answers worse.
    """
    other = target if before == "full" else before
    gaps = plain.gaps(other, "full", idx)
    groups = [plain.groups[one] for one in idx]
    return math.fsum(gaps) / len(gaps) > LEAST_SE * standard_error(gaps, groups)


def recovery_of(findings: Sequence[Finding], plain: PlainScores, score: str) -> Recovery:
    """One arm over all folds; several random directions are averaged per example."""
    before = findings[0].label.role
    target = TARGET[before]
    by_idx: dict[int, list[float]] = {}
    for one in findings:
        for idx, value in one.values(score).items():
            by_idx.setdefault(idx, []).append(value)
    idx = sorted(by_idx)
    means = [math.fsum(by_idx[one]) / len(by_idx[one]) for one in idx]
    mean = math.fsum(means) / len(means)
    if not is_gap(plain, before, target, idx):
        return Recovery(None, n=len(idx), why="no gap to close: no interval", mean=mean)
    start, goal = ([plain.scores[role][one] for one in idx] for role in (before, target))
    groups = [plain.groups[one] for one in idx]
    found = recovery(means, goal, start, groups, unit=unit_of(groups))
    spread = _spread(findings, score, math.fsum(plain.gaps(before, target, idx)))
    return Recovery(**vars(found), mean=mean, sd=spread)


def _spread(findings: Sequence[Finding], score: str, gap: float) -> float | None:
    """Standard deviation (ddof 1) of the recovery over random directions of each fold's number."""
    sums: dict[int, float] = {}
    places: dict[int, int] = {}
    for one in findings:
        if one.label.seed is None:
            return None
        place = places[one.fold] = places.get(one.fold, -1) + 1
        sums[place] = sums.get(place, 0.0) + math.fsum(one.values(score).values())
    values = [total / gap for total in sums.values()]
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def summary_of(
    kind: Kind, findings: Sequence[Finding], plain: Mapping[str, PlainScores], score: str
) -> dict[str, Any]:
    """The numbers of one experiment; None where a score has no gap to close."""
    tested = [one for one in findings if one.kind == kind and one.stage == "score"]
    if not tested:
        return {"kind": kind, "unscored": _NO_SHIFT[kind]}
    arms: dict[str, list[Finding]] = {}
    for one in tested:
        arms.setdefault(_arm_key(one), []).append(one)
    main = arms["direction"]
    found = {
        name: {key: recovery_of(own, plain[key], key) for key in plain if own[0].values(key)}
        for name, own in arms.items()
    }
    value = found["direction"][score].value
    control = found["never_trained"][score].value if "never_trained" in found else None
    summary = {
        "kind": kind,
        "unscored": None if value is not None else _NO_GAP,
        "score": score,
        "recovery": value,
        **found["direction"][score].limits(),
        "recovery_above_control": None if None in (value, control) else value - control,  # pyright: ignore
        "arms": {n: {k: r.document() for k, r in both.items()} for n, both in found.items()},
        "chosen": [{"fold": one.fold, **vars(one.label)} for one in main],
        "kl_retain": _mean([one.kl_retain for one in main]),
        "utility_delta": _mean([one.utility_delta for one in main]),
        "similarity": _mean([one.similarity for one in main]),
        "speech": {name: _speech(own) for name, own in arms.items() if own[0].speech},
    }
    doses = {
        float(name.split()[1]): both[score].mean
        for name, both in found.items()
        if name.startswith(("dose", "curve"))
    }
    idx = sorted(i for one in main for i in one.em)
    gaps = plain[score].gaps("unlearned", "full", idx)
    summary["gap"] = math.fsum(gaps) / len(gaps)
    summary["dose_spearman"] = rank_correlation(doses) if kind == "clamp" else None
    scored = {name: both[score] for name, both in found.items() if score in both}
    return summary | {"warnings": _warnings(summary), "reading": reading(kind, summary, scored)}


_NO_GAP = "nothing to restore: full is not ahead by more than 2 SE"
_SAME = "the streams of full and unlearned are equal: the difference lies after the last block"
_NO_SHIFT: Mapping[Kind, str] = {
    "add": _SAME,
    "ablate": "no direction in the first 80 % of the layers",
    "clamp": _SAME,
}


def _arm_key(finding: Finding) -> str:
    label = finding.label
    if label.arm == "curve":
        return f"curve {label.strength:g}"
    return label.variant if label.arm == "dose" else label.arm


def _speech(findings: Sequence[Finding]) -> dict[str, float | None]:
    """Means over the folds that have the number."""
    return {key: _mean([one.speech.get(key) for one in findings]) for key in findings[0].speech}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    warnings = []
    if summary["similarity"] is not None and summary["similarity"] < COMPARABLE:
        warnings.append(
            f"streams of full and unlearned have mean cosine {summary['similarity']:.2f} on retain "
            "examples: not comparable, a direction of one may mean another thing in the other"
        )
    if summary["score"] != "logprob" and summary["gap"] < SMALL:
        warnings.append(
            f"full and unlearned differ by {summary['gap']:.2f} only: there is little to restore"
        )
    random = summary["arms"].get("random", {}).get(summary["score"], {}).get("recovery")
    if random is not None and random > WEAK:
        warnings.append(
            f"random directions recover {random:.2f}: the effect is not the direction's"
        )
    return warnings


def reading(kind: Kind, summary: Mapping[str, Any], found: Mapping[str, Recovery]) -> str:
    """One sentence; it says what the intervals and the controls show and no more."""
    # where there was no gap to close there is no evidence
    known = {arm: one for arm, one in found.items() if one.value is not None}
    if "direction" not in known:
        return f"Not scored: {summary['unscored']}."
    main, general = known["direction"], known.get("retain_derived")
    controls = {name: known[arm] for arm, name in CONTROLS.items() if arm in known}
    if kind == "clamp":
        drawn = known.get("random_sufficiency")
        into_full = {"random directions into full": drawn} if drawn else {}
        return component_clamped(main, known.get("sufficiency"), controls, into_full, general)
    return (direction_added if kind == "add" else direction_ablated)(main, controls, general)
