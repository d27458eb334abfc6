"""Which of the answer's tokens does the model predict, and from where on all of them?

Content tokens are the scored tokens without the last, which upstream takes for the end token; on
MUSE texts, which get no end token, that is the last word's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.metrics.registry import (
    Measured,
    MetricContext,
    MetricResult,
    Read,
    T,
    mean_of,
    metric,
)

SOURCE = "open-unlearning d3d7cf9 evals/metrics/memorization.py"
_ROWS: dict[str, Any] = {
    "high_means": "knows",
    "tofu": (Read("trace", "forget"),),
    "muse": (Read("trace", "verbmem", "gt"),),
    "row_value": mean_of("score"),
}

NO_CONTENT = "no content token: the answer is empty or a single token"
SEVERAL = "several answers, of which none is the row's own"

Hits = NDArray[np.bool_]
"""Per content token: it is the model's first choice after the true tokens before it."""


@metric("exact_memorization", source=f"arXiv:2204.10127; {SOURCE}", **_ROWS)
def exact_memorization(context: MetricContext) -> MetricResult:
    """Share of content tokens predicted; a row without any is unscored."""
    return _scored(context, share_predicted, empty=None)


@metric("extraction_strength", source=SOURCE, **_ROWS)
def extraction_strength(context: MetricContext) -> MetricResult:
    """1 - k/L for the shortest true prefix of k content tokens after which all are predicted.

    Upstream's form: k stops at L - 1, so the floor is 1/L and a one-token answer scores 1 even
    when it is wrong. `extraction_strength_generative` has no floor. A row without content tokens
    is unscored; `empty="upstream"` scores it 0 and averages it.
    """
    return _scored(context, strength_with_floor, empty=0.0 if context.empty == "upstream" else None)


@metric("extraction_strength_generative", source="arXiv:2406.09179 (extraction strength)", **_ROWS)
def extraction_strength_generative(context: MetricContext) -> MetricResult:
    """1 - k/L for the shortest true prefix from which the model generates the rest; 0 if none.

    Greedy decoding from a prefix gives the rest of the answer exactly if each token of the rest
    is the first choice after the true tokens before it (induction over the rest), so the same
    forward pass answers it; a test generates from every prefix. Where the upstream mask hides
    real tokens, generation counts positions otherwise than scoring does: such rows are unscored.
    """
    rows, mask = context.passes.view(context.reads[0]).rows, context.passes.asked.mask_of
    hidden = {idx for idx, ones in rows.items() if not all(all(mask(one.ids)) for one in ones)}
    entry = _scored(context, strength, empty=None)
    reason = "the upstream mask hides real tokens, so generation sees other positions; --mask true"
    kept = {idx: record for idx, record in entry.records.items() if idx not in hidden}
    return MetricResult(
        records=kept, unscored={**entry.unscored, **dict.fromkeys(sorted(hidden), reason)}
    )


def share_predicted(hits: Hits) -> float:
    """Share of tokens predicted, rounded to float32 as upstream."""
    return float(np.float32(hits.sum()) / np.float32(len(hits)))


def strength_with_floor(hits: Hits) -> float:
    """Extraction strength with k at most L - 1.

    >>> strength_with_floor(np.array([True, False, True, True]))
    0.5
    >>> strength_with_floor(np.array([False]))
    1.0
    """
    return 1 - min(_first_of_final_run(hits), len(hits) - 1) / len(hits)


def strength(hits: Hits) -> float:
    """Extraction strength with k up to L: 0 where not even the last token is predicted.

    >>> strength(np.array([True, False, True, True])), strength(np.array([False]))
    (0.5, 0.0)
    """
    return 1 - _first_of_final_run(hits) / len(hits)


def _first_of_final_run(hits: Hits) -> int:
    """First token of the run of hits that reaches the end; the length if there is none."""
    misses = np.flatnonzero(~hits)
    return int(misses[-1]) + 1 if len(misses) else 0


def _scored(
    context: MetricContext, score: Callable[[Hits], float], *, empty: float | None
) -> MetricResult:
    traces, unscored = only(context.passes.measured(context.reads[0]))
    records = {}
    for idx, trace in traces.items():
        hits = trace.content.hit
        value = score(hits) if len(hits) else empty
        if value is None:
            unscored[idx] = NO_CONTENT
        else:
            records[idx] = {"score": value}
    return MetricResult(records=records, unscored=unscored)


def only(measured: Measured[T]) -> tuple[dict[int, T], dict[int, str]]:
    """What was measured of rows with one answer, and why the others have no score."""
    rows = {idx: values[0] for idx, values in measured.rows.items() if len(values) == 1}
    several = measured.rows.keys() - rows.keys()
    return rows, {**measured.unscored, **dict.fromkeys(sorted(several), SEVERAL)}
