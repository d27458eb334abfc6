"""Do two models differ? The paired difference of their scores, on the examples both score."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from lensaudit.groups import unit_of
from lensaudit.report.document import Pair
from lensaudit.results.patch_runs import PatchRun
from lensaudit.scores.intervals import clustered_mean

MOST_RUNS = 16
"""Runs of one condition up to which every pair gets an interval: 120 pairs, under a second."""


def paired(runs: Sequence[PatchRun], places: Sequence[int]) -> list[Pair]:
    """All pairs of the runs of one condition; none where they are too many.

    Intervals are by authors, as for the scores themselves.

    Args:
        runs: of one condition, so that their examples agree.
        places: where each run stands in `Document.depths`.
    """
    if len(runs) > MOST_RUNS:
        return []
    both = combinations(zip(places, runs, strict=True), 2)
    found = [_pair(first, second, a, b) for (first, a), (second, b) in both]
    return [pair for pair in found if pair is not None]


def _pair(first: int, second: int, a: PatchRun, b: PatchRun) -> Pair | None:
    gaps = a.scores - b.scores
    both = np.isfinite(gaps)
    if not both.any():
        return None
    groups = [one.group for one, yes in zip(a.examples, both, strict=True) if yes]
    difference = float(gaps[both].mean())
    limits = clustered_mean(gaps[both], groups, bounds=(-1.0, 1.0), unit=unit_of(groups))
    return Pair(first, second, difference, limits.low, limits.high, limits.why)
