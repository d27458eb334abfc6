"""Does a metric tell models that know from models that do not? AUC over two pools of models.

Definition: arXiv:2506.12618 section 4.1. The score is the metric's
value turned so that higher means more knowledge; the pool that knows is positive.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from lensaudit.errors import InputError
from lensaudit.meta.catalogue import JudgedMetric
from lensaudit.meta.values import Values
from lensaudit.results.sentences import pools_told_apart
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import auc_limits
from lensaudit.scores.stats import Threshold, auc, best_threshold

LEAST = 2
"""Models per pool below which an AUC is not given."""
N_BINS = 10
LEAST_RANGE = 1e-9
"""Values closer than this are drawn as one: floats cannot hold the edges of bins so narrow."""


@dataclass(frozen=True)
class Histogram:
    """Values of both pools, as the metric gives them, in the same bins."""

    edges: tuple[float, ...]
    knows: tuple[int, ...]
    forgot: tuple[int, ...]


@dataclass(frozen=True)
class Faithfulness:
    """One metric over two pools; NaN where there is no number, with the reason."""

    metric: JudgedMetric
    auc: float
    interval: Estimate
    """95 % interval over models, Newcombe's, or why there is none."""
    n_knows: int
    """Models with a value."""
    n_forgot: int
    knows_mean: float
    """Of the raw values."""
    forgot_mean: float
    threshold: Threshold | None
    """In the knowledge direction, see `Judged.knowledge`; None while a model is to do."""
    histogram: Histogram | None
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Model -> why it has no value of this metric."""
    to_do: Mapping[str, str] = field(default_factory=dict)
    """Model -> why it was not measured yet. While there is one, `auc` is NaN."""
    preliminary: float = math.nan
    """The AUC of the models that are measured, while others are to do."""
    reason: str | None = None
    """Why `auc` is NaN, or what a reader should know about it."""

    @property
    def raw_threshold(self) -> float:
        """The threshold on the metric's own values; NaN without one."""
        return self.metric.knowledge(self.threshold.at) if self.threshold else math.nan


def check_pools(knows: Sequence[str], forgot: Sequence[str], values: Values) -> None:
    """Refuse pools that say nothing: empty, with a model twice, or with a model in both.

    Raises:
        InputError: names the pool and the models.
    """
    for name, pool in (("--pool-knows", knows), ("--pool-forgot", forgot)):
        if not pool:
            raise InputError(f"{name}: an empty pool; name at least {LEAST} models")
        if twice := [model for model, n in Counter(pool).items() if n > 1]:
            raise InputError(f"{name}: {', '.join(twice)} is named twice")
    if both := sorted(set(knows) & set(forgot)):
        raise InputError(f"the pools overlap: {', '.join(both)} is in both")
    owner: dict[str, str] = {}
    for model in (*knows, *forgot):
        weights = values.weights.get(model)
        if weights is None:
            continue
        other = owner.setdefault(weights, model)
        if other != model:
            what = "the pools overlap" if (other in knows) != (model in knows) else "counted twice"
            raise InputError(f"{what}: {other} and {model} have the same weights")


def faithfulness(
    metric: JudgedMetric, knows: Sequence[str], forgot: Sequence[str], values: Values
) -> Faithfulness:
    """AUC, interval, threshold, means and histogram of one metric."""
    raw = [_present(pool, metric.key, values) for pool in (knows, forgot)]
    turned = [[metric.knowledge(value) for value in pool] for pool in raw]
    missing = [m for m in (*knows, *forgot) if math.isnan(values.value(m, metric.key))]
    to_do = {m: values.why_not(m, metric.key) for m in missing if values.is_to_do(m, metric.key)}
    enough = min(map(len, raw)) >= LEAST
    area = auc(*turned) if enough else math.nan
    limits = auc_limits(*turned) if enough else Estimate(None, why="too few models: no interval")
    return Faithfulness(
        metric,
        auc=math.nan if to_do else area,
        interval=limits,
        n_knows=len(raw[0]),
        n_forgot=len(raw[1]),
        knows_mean=_mean(raw[0]),
        forgot_mean=_mean(raw[1]),
        threshold=best_threshold(*turned) if enough and not to_do else None,
        histogram=_histogram(*raw),
        excluded={m: values.why_not(m, metric.key) for m in missing if m not in to_do},
        to_do=to_do,
        preliminary=area if to_do else math.nan,
        reason=_reason(raw, to_do) or _shown(limits),
    )


def _present(pool: Sequence[str], key: str, values: Values) -> list[float]:
    found = [values.value(model, key) for model in pool]
    return [value for value in found if not math.isnan(value)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _reason(raw: Sequence[Sequence[float]], to_do: Mapping[str, str]) -> str | None:
    if to_do:
        return f"{len(to_do)} to do: {', '.join(to_do)}"
    if min(map(len, raw)) < LEAST:
        return (
            f"{len(raw[0])} that know and {len(raw[1])} that forgot have a value, "
            f"wanted at least {LEAST} each"
        )
    if len({value for pool in raw for value in pool}) == 1:
        return "the metric has one value on every model: it tells nothing apart"
    return None


def _shown(area: Estimate) -> str | None:
    """What to know of an AUC whose interval does not say that the pools are told apart."""
    return pools_told_apart(area) if area.ends else None


def _histogram(knows: Sequence[float], forgot: Sequence[float]) -> Histogram | None:
    both = [*knows, *forgot]
    if not both or not all(map(math.isfinite, both)):
        return None
    low, high = min(both), max(both)
    margin = 0.5 if high - low < LEAST_RANGE else 0.0
    edges = np.linspace(low - margin, high + margin, N_BINS + 1)
    counts = [tuple(np.histogram(pool, bins=edges)[0].tolist()) for pool in (knows, forgot)]
    assert all(low < high for low, high in pairwise(edges))
    return Histogram(tuple(edges.tolist()), *counts)
