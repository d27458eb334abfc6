"""Does a score tell forgotten people from people who were never seen? An exact p, by exchange.

Let both sides have been chosen alike. To a model that treats them alike, who of all people is
called forgotten is as good as drawn: each way to split the people into sides of these sizes is
equally likely. Of the splits p is the share whose area lies as far from 1/2, on either side. All
rows of a person change sides together. Where there are too many splits to list, some are drawn and
the true one is counted among them (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585).
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.groups import Group, author_key, is_own, unit_of
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import Values
from lensaudit.scores.separation import auc
from lensaudit.verdict.thresholds import ALPHA

LISTED = 200_000
"""Splits up to which all are listed: those of ten people a side."""
N_DRAWS = 20_000
"""Splits that are drawn where there are more."""
_CHUNK = 1000
SEEN, SHOUTS = "still treated as seen", "told apart from never seen: shouts"


def betrayal(
    strange: Values,
    forgotten: Values,
    strangers: Sequence[Group],
    members: Sequence[Group],
    limits: Estimate,
) -> dict[str, Any]:
    """The p of an attack and what it says, as the entry of a log holds it.

    Args:
        strange: scores of rows of people who were never seen, higher for less likely members.
        forgotten: scores of rows of people who were forgotten.
        strangers: the person of each row of `strange`.
        members: the person of each row of `forgotten`.
        limits: of the area.
    """
    unit = unit_of([*strangers, *members])
    sides = [len(set(members)), len(set(strangers))]
    found = {"p": None, "unit": unit, "n_forgotten": sides[0], "n_never_seen": sides[1]}
    if why := _untested(strangers, members, unit):
        return {**found, "says": f"not tested: {why}"}
    p, n_splits = exchange_p(
        strange, forgotten, [(1, one) for one in strangers], [(0, one) for one in members]
    )
    return {
        **found,
        "p": p,
        "n_splits": n_splits,
        "drawn": math.comb(sum(sides), sides[0]) > LISTED,
        "says": _said(p, auc(strange, forgotten), limits),
    }


def _untested(strangers: Sequence[Group], members: Sequence[Group], unit: str) -> str | None:
    """Why people cannot change sides, or not in ways enough."""
    named = [{author_key(one) for one in side if not is_own(one)} for side in (members, strangers)]
    if both := sorted(named[0] & named[1]):
        return f"{unit} {both[0]!r:.40} is on both sides, forgotten and never seen"
    n_members, n_strangers = len(set(members)), len(set(strangers))
    least = 2 / math.comb(n_members + n_strangers, n_members)
    if least > ALPHA:
        told = f"{n_members} forgotten and {n_strangers} never-seen {unit}s"
        return f"{told} allow no p below {least:.2g}; 4 a side do"
    return None


def _said(p: float, area: float, limits: Estimate) -> str:
    """The direction in words, or what could have been missed.

    >>> _said(0.001, 0.1, Estimate(0.1)), _said(0.5, 0.4, Estimate(0.4, 0.2, 0.6))[:40]
    ('told apart from never seen: shouts (p 0.001)', 'nothing is shown (p 0.5): an area of 0.2')
    """
    if p <= ALPHA:
        return f"{SEEN if area > 0.5 else SHOUTS} (p {p:.2g})"
    ends = limits.ends
    fits = f"an area of {ends[0]:.2f} to {ends[1]:.2f} fits" if ends else limits.why
    return f"nothing is shown (p {p:.2g}): {fits or 'no interval'}"


def exchange_p(
    higher: Values,
    lower: Values,
    higher_people: Sequence[Hashable],
    lower_people: Sequence[Hashable],
) -> tuple[float, int]:
    """P of an area that far from 1/2, either way, all rows of a person staying together.

    And the number of splits that were compared. Names and order of people and rows change nothing.

    >>> exchange_p([3.0, 4.0], [1.0, 2.0], ["c", "d"], ["a", "b"])  # 2 of 6: true and reversed
    (0.3333333333333333, 6)
    """
    from scipy.stats import rankdata  # half a second to import

    ranks = rankdata([*lower, *higher])
    people: dict[Hashable, list[float]] = {}
    for one, rank in zip([*lower_people, *higher_people], ranks, strict=True):
        people.setdefault(one, []).append(float(rank))
    n_lower = len(set(lower_people))
    # sum of ranks and rows of each person, in an order that no name decides
    each = np.array(sorted((sum(own), len(own)) for own in people.values()))

    def off(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far from 1/2 the area is of people with these sums on the lower side."""
        total, n = sums[:, 0], sums[:, 1]
        return abs(0.5 - (total - n * (n + 1) / 2) / (n * (len(ranks) - n)))

    true = np.array([[ranks[: len(lower)].sum(), len(lower)]])
    least = float(off(true)[0]) - 1e-12  # equal areas differ in their last digits
    as_far = sum(int((off(each[at].sum(1)) >= least).sum()) for at in _splits(len(each), n_lower))
    if (n_splits := math.comb(len(each), n_lower)) <= LISTED:
        return as_far / n_splits, n_splits
    return (1 + as_far) / (1 + N_DRAWS), N_DRAWS


def _splits(n: int, n_lower: int) -> Iterator[NDArray[np.int64]]:
    """Places of the people on the lower side, a split a row: all of them, or some that are drawn.

    >>> [len(one) for one in _splits(4, 2)], sum(len(one) for one in _splits(40, 20))
    ([6], 20000)
    """
    if math.comb(n, n_lower) <= LISTED:
        yield np.array(list(combinations(range(n), n_lower)))
        return
    random = np.random.default_rng(0)
    for _ in range(N_DRAWS // _CHUNK):
        yield random.permuted(np.tile(np.arange(n), (_CHUNK, 1)), axis=1)[:, :n_lower]
