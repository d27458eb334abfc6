"""One number per model, and which method is best: the aggregates of the published result files.

Definitions: gnueaj/unlearning-depth-score @ fc31639, docs/data/method_results.json, whose rows they
reproduce. `EPS` goes on each term of every harmonic mean but that of `mem`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lensaudit.meta.reading import EPOCHS, FLUENCY, UTILITY_PARTS, Values
from lensaudit.results.reading import null
from lensaudit.scores.stats import harmonic_mean

EPS = 1e-12
"""On each term: a component of 0 gives about n * 1e-12, not 0."""
MEMORIZATION = ("es", "em", "paraprob", "truth_ratio")
ATTACKS = ("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp")
SCORES = (
    "mem",
    "privacy_mia",
    "privacy",
    "model_utility",
    "utility",
    "utility_rel",
    "overall",
    "overall_without_uds",
)


@dataclass(frozen=True)
class Aggregate:
    """The aggregates of one model; NaN where a part is missing, with the reason."""

    model: str
    method: str
    epoch: str | None
    uds: float
    mem: float
    """How little is memorised: of 1 - ES, 1 - EM, 1 - ParaProb, 1 - Truth Ratio."""
    privacy_mia: float
    """Of the four s_MIA."""
    privacy: float
    """Of `privacy_mia` and UDS."""
    model_utility: float
    """Of the nine utility parts."""
    utility: float
    """Of `model_utility` and fluency."""
    utility_rel: float
    """`utility` over that of the full model of the same epoch, at most 1."""
    overall: float
    """Of `mem`, `privacy` and `utility_rel`."""
    overall_without_uds: float
    """Of `mem`, `privacy_mia` and `utility_rel`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Aggregate -> why it is NaN."""


def aggregated(values: Values, *, full: str = "full", fluency: bool = True) -> list[Aggregate]:
    """The aggregates of every model, in the order of the results.

    Args:
        values: of the forget-set metrics, s_MIA, UDS, the nine utility parts and fluency. The
            utility to divide by is the one the results name, else that of the full model's own
            row of the same epoch (`full_ep5`), else of the row `full`.
        full: name of that row.
        fluency: False where no text classifier rated the generations: utility is then the
            model utility alone, for the full model too.
    """
    reference = _full_utility(values, full, fluency=fluency) | dict(values.full_utility)
    return [_aggregate(model, values, reference, fluency=fluency) for model in values.models]


def ranking(rows: Sequence[Aggregate]) -> list[dict[str, Any]]:
    """Methods by their best Overall without UDS; models that no method made are left out.

    Of each its best configuration under each of the two Overalls, and its UDS.
    """
    methods = dict.fromkeys(row.method for row in rows if row.method not in ("full", "retain"))
    ranked: list[dict[str, Any]] = []
    for method in methods:
        theirs = [row for row in rows if row.method == method]
        depths = [row.uds for row in theirs if math.isfinite(row.uds)]
        ranked.append(
            {
                "method": method,
                "n_models": len(theirs),
                "best_without_uds": _best(theirs, "overall_without_uds"),
                "best_with_uds": _best(theirs, "overall"),
                "uds_mean": math.fsum(depths) / len(depths) if depths else None,
                "uds_low": min(depths, default=None),
                "uds_high": max(depths, default=None),
            }
        )
    return sorted(ranked, key=lambda one: -_overall(one["best_without_uds"]))


def _overall(best: Mapping[str, Any] | None) -> float:
    return best["overall_without_uds"] if best else -1.0


def _best(rows: Sequence[Aggregate], by: str) -> dict[str, Any] | None:
    finite = [row for row in rows if math.isfinite(getattr(row, by))]
    best = max(finite, key=lambda row: getattr(row, by), default=None)
    kept = ("model", "overall_without_uds", "overall", "uds")
    return None if best is None else null({name: getattr(best, name) for name in kept})


class _Parts:
    """Collects the harmonic means of one model, and why one of them fails."""

    def __init__(self, model: str, values: Values):
        self.model, self.values = model, values
        self.found: dict[str, float] = {}
        self.reasons: dict[str, str] = {}

    def value(self, key: str) -> float:
        """A measured value or an aggregate that is already there."""
        return self.found[key] if key in self.found else self.values.value(self.model, key)

    def why_not(self, key: str) -> str:
        """Reason why `value` is NaN."""
        return self.reasons[key] if key in self.reasons else self.values.why_not(self.model, key)

    def mean(self, name: str, parts: Sequence[str], *, inverted: bool = False) -> None:
        """`name` = harmonic mean of `parts`, or of 1 - each, which then has no eps."""
        self.found[name], components = math.nan, {}
        for part in parts:
            value = self.value(part)
            if math.isnan(value):
                self.reasons[name] = f"{part}: {self.why_not(part)}"
                return
            components[part] = 1 - value if inverted else value
        low, value = min((value, part) for part, value in components.items())[::-1]
        shown = f"1 - {low}" if inverted else low
        if value < 0 or (inverted and value == 0):
            self.reasons[name] = f"{shown} is {value:.3g}: no harmonic mean"
            return
        self.found[name] = harmonic_mean(list(components.values()), eps=0.0 if inverted else EPS)


def _aggregate(
    model: str, values: Values, full_utility: Mapping[str | None, float], *, fluency: bool
) -> Aggregate:
    epoch, method = epoch_of(model), method_of(model)
    parts = _utilities(model, values, fluency=fluency)
    parts.mean("mem", MEMORIZATION, inverted=True)
    parts.mean("privacy_mia", ATTACKS)
    parts.mean("privacy", ("privacy_mia", "uds"))
    _relative(parts, full_utility.get(epoch, full_utility.get(None, math.nan)), epoch)
    parts.mean("overall", ("mem", "privacy", "utility_rel"))
    parts.mean("overall_without_uds", ("mem", "privacy_mia", "utility_rel"))
    numbers = {name: parts.found[name] for name in SCORES}
    return Aggregate(
        model, method, epoch, values.value(model, "uds"), **numbers, reasons=parts.reasons
    )


def _utilities(model: str, values: Values, *, fluency: bool) -> _Parts:
    parts = _Parts(model, values)
    parts.mean("model_utility", tuple(UTILITY_PARTS))
    if fluency:
        parts.mean("utility", ("model_utility", FLUENCY))
    else:
        parts.found["utility"] = parts.found["model_utility"]
        if "model_utility" in parts.reasons:
            parts.reasons["utility"] = parts.reasons["model_utility"]
    return parts


def _relative(parts: _Parts, full: float, epoch: str | None) -> None:
    utility = parts.found["utility"]
    parts.found["utility_rel"] = min(1.0, utility / (full + EPS))
    if math.isnan(utility):
        parts.found["utility_rel"] = math.nan
        parts.reasons["utility_rel"] = parts.reasons["utility"]
    elif not (math.isfinite(full) and full > 0):
        parts.found["utility_rel"] = math.nan
        parts.reasons["utility_rel"] = (
            f"no utility of the full model{f' of {epoch}' if epoch else ''} to divide by"
        )


def _full_utility(values: Values, full: str, *, fluency: bool) -> dict[str | None, float]:
    """The full model's own utility, per epoch where it has a row of that epoch."""
    found = {}
    for epoch in (None, *EPOCHS):
        for name in (f"{full}_{epoch}", full):
            utility = _utilities(name, values, fluency=fluency).found["utility"]
            if math.isfinite(utility):
                found[epoch] = utility
                break
    return found


def epoch_of(model: str) -> str | None:
    """`ep5` or `ep10`, by which the full model of the same run is chosen.

    >>> epoch_of("npo_lr5e5_b01_a1_ep10"), epoch_of("demo/npo")
    ('ep10', None)
    """
    ending = model.rpartition("_")[2]
    return ending if ending in EPOCHS else None


def method_of(model: str) -> str:
    """The method that a name begins with; `full` and `retain` for the two anchors.

    >>> method_of("npo_lr5e5_b01_a1_ep10"), method_of("full_ep5"), method_of("demo/idknll")
    ('npo', 'full', 'idknll')
    """
    return model.rpartition("/")[2].partition("_")[0]
