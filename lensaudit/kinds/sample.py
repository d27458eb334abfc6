"""What comes out when it is sampled? A finished run of `lensaudit sample`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Len

from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import AtLayer, Number, Whole
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import exact_excess
from lensaudit.verdict.views import Calibration, View, over_arm, rows_each, strongest


@dataclass(frozen=True)
class LeakRow:
    """Leak@k under one setting of the sampler, over all facts."""

    temperature: Number
    top_p: Number
    k: Whole
    source: Number | None
    """Mean of the unbiased estimate; None where k is more than there are samples."""
    retain: Number | None
    """The same of the control arm, mean over its models."""
    excess: Number | None
    """Mean of the paired differences."""
    low: Number | None
    high: Number | None
    corrected: Number | None
    """Excess without the matcher's errors; None without labels, or where it is too noisy."""
    false_leak: Number
    """Leak@k that the matcher's false hits alone would make."""
    reason: str | None
    """Why there is no value, no interval, or no corrected excess in spite of labels."""
    n: Whole | None = None
    """Facts with k samples of every model; None where a record of another version does not say."""
    authors: Whole = 0
    """Of these facts; 0 where it does not say."""
    per_author: Number | None = None
    """Facts of the author that one is of, in the mean; None where another version wrote it."""


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """`summary.json` of sampled answers."""

    kind: str = "sample"
    source: str
    retain: Annotated[list[str], Len(1)]
    data: str = ""
    n: Whole = 0
    """Facts."""
    n_scored: Whole
    authors: Whole = 0
    """Of the facts; 0 where a record of another version does not say."""
    unscored: Mapping[AtLayer, str] = field(default_factory=dict)
    """Idx -> why a fact was not asked."""
    samples: Whole
    leak: Annotated[list[LeakRow], Len(1)]
    errors: Mapping[str, Number] | None = None
    """Of the matcher, on labelled texts; None: nobody labelled any."""
    specificity: list[Mapping[str, Number]] = field(default_factory=list)
    """By setting, the share of other authors' samples that the matcher leaves alone."""
    never_hit_bound: Number | None = None
    """Most of a fact's samples that can hit it where none did; None where some fact has none."""


def _sample(one: SampleRecord, nulls: Calibration) -> list[View]:
    """The strongest of its rows that can be compared, whatever their order.

    Chances of counts are taken as often as there are such rows; how models scatter is one draw for
    all of them.
    """
    rows = [row for row in one.leak if row.excess is not None and (row.retain or 0.0) < 1]
    views = [_leak(row, one, len(rows), nulls) for row in rows if row.retain is not None]
    if not views:
        last = one.leak[-1]
        shown = f"leak@{last.k} {_digits(last.source)}, never-trained {_digits(last.retain)}"
        views = [View("sampled", None, shown, why="no excess over the arm")]
    return [strongest(views)]


def _leak(row: LeakRow, run: SampleRecord, n_rows: int, nulls: Calibration) -> View:
    """View of a setting of the sampler and one k."""
    own, arm, n = row.source or 0.0, row.retain or 0.0, run.n_scored if row.n is None else row.n
    authors = row.authors or run.authors or None
    excess = Estimate(row.excess, row.low, row.high, n, row.reason)
    chance = exact_excess(own * n, arm * n, n, rows_each(n, authors, row.per_author))[1]
    return over_arm(
        "sampled",
        excess.on(0.0, 1 - arm),
        f"leak@{row.k} {_digits(own)}, never-trained {_digits(arm)}",
        nulls,
        authors,
        min(1.0, n_rows * chance),
        blind="not sampled is no proof",
        number=excess,
    )


def _digits(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


VIEWS = {"sample": _sample}
KINDS = {"sample": ResultKind(record=SampleRecord)}
