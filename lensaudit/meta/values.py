"""The values of many metrics on many models, and a reason wherever there is none."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from lensaudit.errors import InputError
from lensaudit.models.registry import published

TOLERANCE = 1e-9
"""Two files may give the same value of a model and a metric, differing by no more."""


@dataclass(frozen=True)
class Values:
    """A sparse table, model by metric."""

    by_model: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Model -> metric key -> value, as the metric gives it; never NaN."""
    reasons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Model -> metric key -> why there is no value."""
    to_do: Mapping[str, str] = field(default_factory=dict)
    """Model -> why nothing was measured yet: it failed to load, or its run failed."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Model -> content hash of its weights, where known."""
    full_utility: Mapping[str | None, float] = field(default_factory=dict)
    """Epoch -> utility of the full model, where the results name it; None is any epoch."""
    broken: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Model -> metrics whose pass broke: their reasons are no answers, they are worth a try."""

    def value(self, model: str, key: str) -> float:
        """The value, or NaN."""
        return self.by_model.get(model, {}).get(key, math.nan)

    def why_not(self, model: str, key: str) -> str:
        """Why `value` is NaN."""
        if model in self.to_do:
            return f"to do: {self.to_do[model]}"
        if model not in self.by_model and model not in self.reasons:
            return "to do: no result of this model was found"
        return self.reasons.get(model, {}).get(key, "its results lack this metric")

    def is_to_do(self, model: str, key: str = "") -> bool:
        """Not measured yet, or its pass broke: not the same as measured in vain."""
        if model in self.to_do or (model not in self.by_model and model not in self.reasons):
            return True
        return key in self.broken.get(model, ()) and key in self.reasons.get(model, {})

    @property
    def models(self) -> tuple[str, ...]:
        """Every model with a value, a reason or something to do."""
        return tuple(dict.fromkeys((*self.by_model, *self.reasons, *self.to_do)))


def values_of(rows: Mapping[str, Mapping[str, float | None]]) -> Values:
    """Values from plain rows; null and non-finite numbers become reasons."""
    by_model: dict[str, dict[str, float]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for model, row in rows.items():
        by_model[model] = {k: v for k, v in row.items() if v is not None and math.isfinite(v)}
        reasons[model] = {
            key: "null in the results" if value is None else f"{value} in the results"
            for key, value in row.items()
            if key not in by_model[model]
        }
    return Values(by_model, reasons)


def merged(tables: Iterable[Values]) -> Values:
    """All tables as one; a value beats a reason, a result beats "to do".

    Raises:
        InputError: two tables give different values for one metric of one model.
    """
    by_model: dict[str, dict[str, float]] = {}
    reasons: dict[str, dict[str, str]] = {}
    to_do: dict[str, str] = {}
    weights: dict[str, str] = {}
    utility: dict[str | None, float] = {}
    broken: dict[str, frozenset[str]] = {}
    for table in tables:
        for model, row in table.by_model.items():
            _add(by_model.setdefault(model, {}), row, model)
        for model, why in table.reasons.items():
            reasons.setdefault(model, {}).update(why)
        to_do |= table.to_do
        weights |= table.weights
        utility |= table.full_utility
        for model, keys in table.broken.items():
            broken[model] = broken.get(model, frozenset()) | keys
    measured = by_model.keys() | reasons.keys()
    left = {
        model: {key: text for key, text in why.items() if key not in by_model.get(model, {})}
        for model, why in reasons.items()
    }
    waiting = {model: why for model, why in to_do.items() if model not in measured}
    return Values(by_model, left, waiting, weights, utility, broken)


def _add(known: dict[str, float], row: Mapping[str, float], model: str) -> None:
    for key, value in row.items():
        if abs(known.get(key, value) - value) > TOLERANCE:
            raise InputError(
                f"{model}: {key} is {known[key]:.6g} in one result and {value:.6g} in another; "
                "name only one of them"
            )
        known[key] = value


def short_name(model: str) -> str:
    """The name that `lensaudit models` lists for a published repository; others as they are.

    >>> short_name("open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90")
    'retain'
    """
    return _by_repository().get(model, model)


@cache
def _by_repository() -> Mapping[str, str]:
    return {spec.repo: spec.name for spec in published() if spec.alias_of is None}
