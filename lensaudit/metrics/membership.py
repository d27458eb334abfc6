"""Can an attacker tell the forget set from texts the model never saw?

Every attack gives each text a score that is higher for less likely members; the value is
P(score of a holdout text > score of a forget text) + P(equal) / 2: near 1 while the forget set is
memorised, 0.5 where the two cannot be told apart, near 0 after over-unlearning. Beside it,
`betrayal` says how likely such a value is of a model that treats both sides alike.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.groups import unit_of
from lensaudit.metrics.betrayal import betrayal
from lensaudit.metrics.memorization import NO_CONTENT, only
from lensaudit.metrics.options import Choice
from lensaudit.metrics.registry import (
    NO_AUTHORS,
    NO_INTERVAL,
    GroupsBySide,
    Kind,
    MetricContext,
    MetricResult,
    Read,
    Trace,
    authors_of,
    mean_of,
    metric,
    no_rows,
    with_limits,
)
from lensaudit.scores.areas import clustered_auc_limits
from lensaudit.scores.separation import auc

UPSTREAM = "open-unlearning d3d7cf9 evals/metrics/mia/"
MIN_K = 0.4
"""Share of tokens in min-k and min-k++; every configuration of open-unlearning says so."""
VARIANCE_FLOOR = 1e-6
"""Least variance min-k++ divides by; min_k_plus_plus.py of open-unlearning."""


def separation(attack: MetricResult, groups: GroupsBySide | None = ()) -> MetricResult:
    """The value of an attack from the scores of its two sides, `forget` before `holdout`.

    Where `groups` is None nobody knows whose rows these are: no interval, and no test.
    """
    for name, part in attack.parts.items():
        if not part.records:
            return replace(attack, value=None, why=f"{name}: {no_rows(part.unscored)}")
    higher, lower = (
        [mean_of("score")(record) for record in attack.parts[side].records.values()]
        for side in ("holdout", "forget")
    )
    value = auc(higher, lower)
    if groups is None:
        untested = {"p": None, "says": f"not tested: {NO_AUTHORS}"}
        found = replace(attack, value=value, details={"auc": value, "betrayal": untested})
        return with_limits(found, NO_INTERVAL, ())
    members = authors_of(attack.parts["forget"].records, groups, 0)
    strangers = authors_of(attack.parts["holdout"].records, groups, 1)
    limits = clustered_auc_limits(
        higher, lower, strangers, members, unit=unit_of([*members, *strangers])
    )
    exchanged = betrayal(higher, lower, strangers, members, limits)
    found = replace(attack, value=value, details={"auc": value, "betrayal": exchanged})
    return with_limits(found, limits, [*members, *strangers])


def _both(kind: Kind = "trace") -> dict[str, Any]:
    """Forget and holdout side of each suite."""
    return {
        "high_means": "knows",
        "combine": separation,
        "tofu": (Read(kind, "forget"), Read(kind, "holdout")),
        "muse": (Read(kind, "members", "text"), Read(kind, "non_members", "text")),
    }


@metric("mia_loss", source=f"arXiv:1709.01604; {UPSTREAM}loss.py", **_both())
def loss_attack(context: MetricContext) -> MetricResult:
    """Score: mean negative log-probability, the end token included."""
    return _attacked(context, lambda trace, read, idx: trace.loss)


@metric("mia_zlib", source=f"arXiv:2012.07805; {UPSTREAM}zlib.py", **_both())
def zlib_attack(context: MetricContext) -> MetricResult:
    """Score: loss divided by the bytes of the zlib-compressed answer."""
    texts = {read: context.passes.answer_texts(read).rows for read in context.reads}

    def score(trace: Trace, read: Read, idx: int) -> float:
        return trace.loss / compressed_bytes(texts[read][idx][0])

    return _attacked(context, score)


_K: dict[str, Any] = {"options": {"k": Choice(MIN_K, kind=float, above=0, most=1)}}


@metric("mia_min_k", source=f"arXiv:2310.16789; {UPSTREAM}min_k.py", **_both(), **_K)
def min_k_attack(context: MetricContext) -> MetricResult:
    """Score: minus the mean of the least `k` (40 %) of the content tokens' log-probabilities."""
    return _attacked_content(context, lambda content: content.log_prob)


@metric(
    "mia_min_k_plus_plus",
    source=f"arXiv:2404.02936; {UPSTREAM}min_k_plus_plus.py",
    **_both(),
    **_K,
)
def min_k_plus_plus_attack(context: MetricContext) -> MetricResult:
    """As min-k, each log-probability standardised under the model's own distribution."""
    return _attacked_content(context, standardised)


@metric("mia_entropy", source="arXiv:2003.10595 (prediction entropy)", on_request=True, **_both())
def entropy_attack(context: MetricContext) -> MetricResult:
    """Score: mean entropy of the next-token distributions, nats, the end token's included."""
    return _attacked(context, lambda trace, read, idx: -float(trace.mean.mean()))


@metric("mia_gradnorm", source=f"arXiv:2402.17012; {UPSTREAM}gradnorm.py", **_both("gradient"))
def gradnorm_attack(context: MetricContext) -> MetricResult:
    """Score: mean over parameter tensors of the gradient's 2-norm, one text at a time."""
    # a text without content tokens has no gradient, and NaN says so
    return _attacked(context, lambda norm, read, idx: norm if math.isfinite(norm) else None)


@metric(
    "mia_reference",
    high_means="knows",
    combine=separation,
    source=f"arXiv:2012.07805; {UPSTREAM}reference.py",
    tofu=(*_both()["tofu"], *_both("reference")["tofu"]),
    muse=(*_both()["muse"], *_both("reference")["muse"]),
)
def reference_attack(context: MetricContext) -> MetricResult:
    """Score: loss minus the loss of a reference model on the same text.

    With the model before unlearning as reference it is the change of loss.
    """
    base = {read.split: only(context.passes.measured(read)) for read in context.reads[2:]}
    gaps = {
        split: {idx: f"the reference model: {why}" for idx, why in unscored.items()}
        for split, (_, unscored) in base.items()
    }

    def score(trace: Trace, read: Read, idx: int) -> float:
        return trace.loss - base[read.split][0][idx].loss

    return _attacked(context, score, gaps)


def compressed_bytes(text: str) -> int:
    """Bytes of the text after zlib at its default level; 8 for no text.

    >>> compressed_bytes(""), compressed_bytes("a" * 200)
    (8, 12)
    """
    return len(zlib.compress(text.encode()))


def least_mean(log_probs: NDArray[np.float32], share: float) -> float:
    """Minus the mean of the least `share` of the values, at least one of them."""
    n_least = max(1, int(share * len(log_probs)))
    return float(-np.sort(log_probs)[:n_least].mean())


def standardised(trace: Trace) -> NDArray[np.float32]:
    """(log p - mean) / sqrt(variance), the variance at least 1e-6."""
    variance = np.maximum(trace.variance, np.float32(VARIANCE_FLOOR))
    return ((trace.log_prob - trace.mean) / np.sqrt(variance)).astype(np.float32)


def _attacked(
    context: MetricContext,
    score: Callable[[Any, Read, int], float | None],
    gaps: Mapping[str, Mapping[int, str]] = MappingProxyType({}),
) -> MetricResult:
    """Both sides of an attack.

    Args:
        context: of the metric.
        score: of a text; None without a content token.
        gaps: split -> idx -> why there is nothing to compare its text with.
    """
    parts: dict[str, MetricResult] = {}
    for side, read in zip(("forget", "holdout"), context.reads, strict=False):
        measured, unscored = only(context.passes.measured(read))
        unscored = {**gaps.get(read.split, {}), **unscored}
        found = {i: score(value, read, i) for i, value in measured.items() if i not in unscored}
        known = {idx: one for idx, one in found.items() if one is not None}
        finite = {idx: one for idx, one in known.items() if math.isfinite(one)}
        parts[side] = MetricResult(
            float(np.mean(list(finite.values()))) if finite else None,
            records={idx: {"score": one} for idx, one in finite.items()},
            unscored=unscored
            | dict.fromkeys(found.keys() - known.keys(), NO_CONTENT)
            | dict.fromkeys(known.keys() - finite.keys(), "the model's score is not finite"),
        )
    return MetricResult(parts=parts)


def _attacked_content(
    context: MetricContext, values: Callable[[Trace], NDArray[np.float32]]
) -> MetricResult:
    """The attack on the lowest values of the content tokens."""
    empty = 0.0 if context.empty == "upstream" else None
    share = context.options.get("k", MIN_K)

    def score(trace: Trace, read: Read, idx: int) -> float | None:
        content = trace.content
        return least_mean(values(content), share) if len(content) else empty

    return _attacked(context, score)
