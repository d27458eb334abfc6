"""Does a metric tell models that know from models that do not, and does it survive attacks?

Everything is in the knowledge direction first (`JudgedMetric.knowledge`). Faithfulness is the AUC
over two pools of models, the pool that knows being positive (arXiv:2506.12618, section 4.1).
Stability is a mean over a filtered set of models. Before the attack is b, after it a, and
d = a - b; the retain model's is d_ret.

    symmetric   Q = 1 - |a - b| / (|a| + |b| + eps)
                R = 1 - |d - d_ret| / (|d| + |d_ret| + eps)                  cut to [0, 1]
    recovery    Q = min(b / a, 1), 1 if a <= 0: punishes an increase of knowledge only
    as_written  Q = min(a / b, 1), 1 if b <= 0: as the text of the UDS repository says it
    both        R = d_ret / d cut to [0, 1], 1 if |d| < 1e-8

Symmetric is the form of the paper's tables, `recovery` that of open-unlearning
(arXiv:2506.12618), and `as_written` is upside down relative to the code that was used
(docs/meta_fields.md). In the one-sided forms deltas of opposite sign give R = 0.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lensaudit.errors import InputError
from lensaudit.meta.pools import alike, pool_limits
from lensaudit.meta.reading import CATALOGUE, JudgedMetric, Values
from lensaudit.meta.settings import Attack, Filter, Form
from lensaudit.results.reading import Number, Share, Whole
from lensaudit.scores.areas import least_chance
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import FEWEST_GROUPS
from lensaudit.scores.means import harmonic_mean
from lensaudit.scores.separation import auc
from lensaudit.scores.threshold import best_threshold
from lensaudit.verdict.thresholds import ALPHA

EPS = 1e-6
"""Of the symmetric forms; gnueaj/unlearning-depth-score plot_quant_symmetric.py."""
NO_SHIFT = 1e-8
"""A shift below it is none, in the one-sided form of R."""
LEAST_UTILITY = 0.8
"""Share of the full model's utility below which a model is not used."""
ROUNDING = 1e-9
"""Such a share is off by less: .6 of .75 is .8 of it."""


def quantization(before: float, after: float, form: Form = "symmetric") -> float:
    """Q of one model: 1 where quantisation leaves the metric alone.

    >>> quantization(0.4, 0.5, "recovery"), quantization(0.4, 0.5, "as_written")
    (0.8, 1.0)
    """
    if form == "symmetric":
        return max(0.0, 1 - min(abs(after - before) / (abs(before) + abs(after) + EPS), 1.0))
    above, below = (before, after) if form == "recovery" else (after, before)
    return _cut(above / below) if below > 0 else 1.0


def relearning(delta: float, delta_retain: float, form: Form = "symmetric") -> float:
    """R of one model: 1 where relearning moves the metric as it moves that of retain.

    >>> relearning(0.4, 0.2, "recovery"), relearning(0.2, -0.2, "recovery")
    (0.5, 0.0)
    """
    if form == "symmetric":
        apart = abs(delta - delta_retain) / (abs(delta) + abs(delta_retain) + EPS)
        return max(0.0, 1 - min(apart, 1.0))
    return _cut(delta_retain / delta) if abs(delta) >= NO_SHIFT else 1.0


def _cut(value: float) -> float:
    return min(1.0, max(0.0, value))


@dataclass(frozen=True, kw_only=True)
class Stability:
    """One metric under one attack, a row of `robustness-….json`; null where there is no number."""

    metric: str
    label: str = ""
    category: str = ""
    high_means: str = ""
    value: Share | None = None
    """Mean over the usable models; null while one is to do."""
    n: Whole | None = None
    """Number of models behind `value`."""
    n_candidates: Whole | None = None
    n_utility: Whole | None = None
    preliminary: Number | None = None
    """The mean over the measured models, while others are to do."""
    common_value: Share | None = None
    """Mean over the models that every metric of the run has."""
    n_common: Whole | None = None
    threshold: Number | None = None
    """By which models were filtered."""
    threshold_of: str | None = None
    """The metric that it is of."""
    retain_shift: Number | None = None
    """d_ret, under relearning."""
    per_model: Mapping[str, Number] = field(default_factory=dict)
    filtered_out: Mapping[str, str] = field(default_factory=dict)
    """Model -> why it is not used."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Usable models without a number -> why."""
    to_do: Mapping[str, str] = field(default_factory=dict)
    """Usable models not attacked or not measured yet."""
    reason: str | None = None


def usable(
    metric: JudgedMetric,
    models: Sequence[str],
    values: Values,
    *,
    utility_rel: Mapping[str, float],
    threshold: float,
    by: Filter = "both",
) -> Stability:
    """Row of a metric before the attack: models that forgot by its threshold and still work.

    Those are `left` of the candidates; of the others the row says why they are out, or to do.

    Args:
        metric: the metric; s_MIA takes the models of its attack, so `threshold` is the attack's.
        models: the candidates.
        values: before the attack.
        utility_rel: of each candidate.
        threshold: on raw values; NaN where the pools gave none, and then no model is usable.
        by: which of the two filters to apply.
    """
    own = CATALOGUE[metric.usable_as] if metric.usable_as else metric
    to_do = {m: values.why_not(m, own.key) for m in models if values.is_to_do(m, own.key)}
    out: dict[str, str] = {}
    measured = [model for model in models if model not in to_do]
    for model in measured if by != "none" else ():
        utility = utility_rel.get(model, math.nan)
        if not utility >= LEAST_UTILITY - ROUNDING:
            shown = "unknown" if math.isnan(utility) else f"{utility:.3f} < {LEAST_UTILITY}"
            out[model] = f"relative utility {shown}"
    n_utility = len(measured) - len(out)
    for model in measured if by == "both" else ():
        value = values.value(model, own.key)
        forgot = value <= threshold if own.high_means == "knows" else value >= threshold
        if model in out or forgot:
            continue
        out[model] = f"{own.key} {value:.4f} is on the side that knows"
        if math.isnan(threshold):
            out[model] = f"{own.key} has no faithfulness threshold"
        elif math.isnan(value):
            out[model] = f"{own.key}: {values.why_not(model, own.key)}"
    return Stability(
        **metric.named,
        n_candidates=len(models),
        n_utility=n_utility,
        threshold_of=own.key,
        filtered_out=out,
        to_do=to_do,
    )


def left(models: Sequence[str], chosen: Stability) -> list[str]:
    """The candidates that a metric is judged on."""
    return [m for m in models if m not in chosen.filtered_out and m not in chosen.to_do]


def stability(
    metric: JudgedMetric,
    attack: Attack,
    models: Sequence[str],
    chosen: Stability,
    before: Values,
    after: Values,
    *,
    retain: str | None = None,
    form: Form = "symmetric",
) -> Stability:
    """Q or R of one metric: the mean over its usable models.

    Args:
        metric: the metric.
        attack: `quantize` gives Q, `relearn` gives R.
        models: the candidates.
        chosen: which of them are usable, as `usable` says.
        before: values before the attack.
        after: values after it, under the same names.
        retain: the retain model's name, for R.
        form: see the module.
    """
    shift, reason = None, None
    per_model: dict[str, float] = {}
    excluded: dict[str, str] = {}
    to_do: dict[str, str] = dict(chosen.to_do)

    if attack == "relearn" and retain is None:
        reason = "relearning needs the retain model's own shift; name it with --retain"
    elif attack == "relearn" and retain is not None:
        gaps: dict[str, str] = {}
        if pair := _pair(metric, retain, (before, after), to_do, gaps):
            shift = pair[1] - pair[0]
        else:
            reason = f"retain model {retain}: {(to_do | gaps)[retain]}"
    used = left(models, chosen)
    for model in used:
        pair = _pair(metric, model, (before, after), to_do, excluded)
        if pair and reason is None:
            b, a = pair
            per_model[model] = (
                quantization(b, a, form) if shift is None else relearning(a - b, shift, form)
            )
    mean = _mean([*per_model.values()])
    return replace(
        chosen,
        value=None if to_do else mean,
        n=len(per_model),
        preliminary=mean if to_do else None,
        retain_shift=shift,
        per_model=per_model,
        excluded=excluded,
        to_do=to_do,
        reason=reason or _reason(len(models), len(used), per_model, to_do),
    )


def _pair(
    metric: JudgedMetric,
    model: str,
    tables: tuple[Values, Values],
    to_do: dict[str, str],
    gaps: dict[str, str],
) -> list[float]:
    """Knowledge before and after; nothing where one is missing, and `to_do` or `gaps` says why."""
    for when, values in zip(("before", "after"), tables, strict=True):
        if math.isnan(values.value(model, metric.key)):
            told = to_do if values.is_to_do(model, metric.key) else gaps
            told[model] = f"{when}: {values.why_not(model, metric.key)}"
            return []
    return [metric.knowledge(values.value(model, metric.key)) for values in tables]


def _reason(
    n: int, n_used: int, per_model: Mapping[str, float], to_do: Mapping[str, str]
) -> str | None:
    if to_do:
        return _to_do(to_do)
    if not n_used:
        return f"none of {n} models passes the filter"
    return None if per_model else f"none of {n_used} usable models has both values"


def _to_do(models: Mapping[str, str]) -> str:
    return f"{len(models)} to do: {', '.join(models)}"


def on_common(found: Sequence[Stability]) -> tuple[tuple[str, ...], list[Stability]]:
    """The models that every metric with a usable one has, and the rows with their means over them.

    Metrics that are filtered to different models are not comparable; these means are. None for a
    metric without any model, and for all where no model is common.
    """
    with_models = [set(one.per_model) for one in found if one.per_model]
    common = sorted(set.intersection(*with_models)) if with_models else []
    rows = [
        replace(
            one,
            common_value=_mean([one.per_model[m] for m in common if one.per_model]),
            n_common=len(common),
        )
        for one in found
    ]
    return tuple(common), rows


def combined(*parts: float | None) -> float:
    """Harmonic mean, NaN where a part is missing: Robustness of Q and R, Overall with the AUC."""
    return harmonic_mean([math.nan if one is None else one for one in parts])


LEAST = 2
"""Models per pool below which an AUC is not given."""
N_BINS = 10
LEAST_RANGE = 1e-9
"""Values closer than this are drawn as one: floats cannot hold the edges of bins so narrow."""


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """One metric over two pools, a row of `faithfulness.json`; null where there is no number."""

    metric: str
    label: str = ""
    category: str = ""
    high_means: str = ""
    auc: Share | None = None
    """Null while a model is to do."""
    interval_95: tuple[Share | None, Share | None] | None = None
    """Over models, see `pool_limits`."""
    interval_95_why: str | None = None
    preliminary_auc: Share | None = None
    """The AUC of the models that are measured, while others are to do."""
    n_knows: Whole | None = None
    """Models with a value."""
    n_forgot: Whole | None = None
    knows_mean: Number | None = None
    """Of the raw values."""
    forgot_mean: Number | None = None
    threshold: Number | None = None
    """On the metric's own values; null while a model is to do."""
    threshold_accuracy: Share | None = None
    histogram: Mapping[str, tuple[Whole | Number, ...]] | None = None
    """`edges` of bins, and how many values of each pool lie in each, as the metric gives them."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Model -> why it has no value of this metric."""
    to_do: Mapping[str, str] = field(default_factory=dict)
    """Model -> why it was not measured yet."""
    reason: str | None = None
    """Why `auc` is null, or what a reader should know about it."""

    @property
    def interval(self) -> Estimate:
        """AUC with its limits."""
        return Estimate.within(self.auc, self.interval_95)


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
    for other, model in _copies((*knows, *forgot), values.weights):
        what = "the pools overlap" if (other in knows) != (model in knows) else "counted twice"
        raise InputError(f"{what}: {other} and {model} have the same weights")


def check_attacked(
    models: Sequence[str], anchors: Sequence[str], before: Mapping[str, str], after: Values
) -> None:
    """Refuse candidates that are copies, and an attack that left the weights as they were.

    Args:
        models: the candidates.
        anchors: other models that are attacked.
        before: model -> content hash of its weights, where known.
        after: results of the attack.

    Raises:
        InputError: names the models.
    """
    for other, model in _copies(models, before):
        raise InputError(f"counted twice: {other} and {model} have the same weights")
    for model in (*models, *anchors):
        if model in before and before[model] == after.weights.get(model):
            raise InputError(
                f"{model}: not attacked, its weights are the same before and after; name results "
                "of the attacked model with --after"
            )


def _copies(models: Sequence[str], weights: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of models that have the same weights."""
    owner: dict[str, str] = {}
    for model in (one for one in models if one in weights):
        other = owner.setdefault(weights[model], model)
        if other != model:
            yield other, model


def faithfulness(
    metric: JudgedMetric, knows: Sequence[str], forgot: Sequence[str], values: Values
) -> Faithfulness:
    """AUC, interval, threshold, means and histogram of one metric."""
    raw = [
        [v for v in (values.value(model, metric.key) for model in pool) if not math.isnan(v)]
        for pool in (knows, forgot)
    ]
    turned = [[metric.knowledge(value) for value in pool] for pool in raw]
    missing = [m for m in (*knows, *forgot) if math.isnan(values.value(m, metric.key))]
    to_do = {m: values.why_not(m, metric.key) for m in missing if values.is_to_do(m, metric.key)}
    enough = min(map(len, raw)) >= LEAST
    area = auc(*turned) if enough else None
    limits = pool_limits(*turned) if enough else Estimate(None, why="too few models: no interval")
    best = best_threshold(*turned) if enough and not to_do else None
    reason = pools_told_apart(limits, *map(len, raw)) if limits.ends else None
    if to_do:
        reason = _to_do(to_do)
    elif not enough:
        reason = (
            f"{len(raw[0])} that know and {len(raw[1])} that forgot have a value, "
            f"wanted at least {LEAST} each"
        )
    elif len({value for pool in raw for value in pool}) == 1:
        reason = "the metric has one value on every model: it tells nothing apart"
    return Faithfulness(
        **metric.named,
        auc=None if to_do else area,
        interval_95=limits.ends,
        interval_95_why=None if limits.ends else limits.why,
        preliminary_auc=area if to_do else None,
        n_knows=len(raw[0]),
        n_forgot=len(raw[1]),
        knows_mean=_mean(raw[0]),
        forgot_mean=_mean(raw[1]),
        threshold=metric.knowledge(best.at) if best else None,
        threshold_accuracy=best.accuracy if best else None,
        histogram=_histogram(*raw),
        excluded={m: values.why_not(m, metric.key) for m in missing if m not in to_do},
        to_do=to_do,
        reason=reason,
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _histogram(knows: Sequence[float], forgot: Sequence[float]) -> Mapping[str, Any] | None:
    both = [*knows, *forgot]
    if not both or not all(map(math.isfinite, both)):
        return None
    low, high = min(both), max(both)
    margin = 0.5 if high - low < LEAST_RANGE else 0.0
    edges = np.linspace(low - margin, high + margin, N_BINS + 1)
    counts = {"knows": knows, "forgot": forgot}
    counted = {side: np.histogram(pool, bins=edges)[0] for side, pool in counts.items()}
    return {key: tuple(one.tolist()) for key, one in {"edges": edges, **counted}.items()}


def pools_told_apart(area: Estimate, n_knows: int, n_forgot: int) -> str | None:
    """What to know of a metric's AUC; None where it is shown to tell the pools apart.

    Limits of fewer than five models assume that both pools scatter alike (`pool_limits`). Of few
    models even complete separation is likely by chance (Wilcoxon-Mann-Whitney), whatever the
    interval holds.

    >>> pools_told_apart(Estimate(0.6, 0.31, 0.85), 10, 10)
    'not shown to tell the pools apart: the interval holds .5'
    >>> pools_told_apart(Estimate(1.0, 0.501, 1.0), 3, 3)
    'not shown to tell the pools apart: 3 and 3 models allow no p below 0.1'
    >>> pools_told_apart(Estimate(0.97, 0.7, 1.0), 30, 3)
    'told apart if both pools scatter alike: 5 models each would show it'
    >>> pools_told_apart(Estimate(0.9, 0.7, 0.97), 10, 10)
    """
    if not (area.least > 0.5 or area.most < 0.5):
        return "not shown to tell the pools apart: the interval holds .5"
    if (least := least_chance(n_knows, n_forgot)) > ALPHA:
        few = f"{n_knows} and {n_forgot} models allow no p below {least:.2g}"
        return f"not shown to tell the pools apart: {few}"
    if area.least <= 0.5:
        return "points the wrong way: the pool that forgot scores higher"
    # separated pools show no spread, however many models they have
    if area.value != 1 and alike(n_knows, n_forgot):
        return f"told apart if both pools scatter alike: {FEWEST_GROUPS} models each would show it"
    return None
