"""Does a score tell forgotten people from people who were never seen? A p by exchange.

Let both sides have been chosen alike. To a model that treats them alike, who of all people is
called forgotten is as good as drawn: each way to split the people into sides of these sizes is
equally likely. Of the splits p is the share whose area lies as far from 1/2, on either side. All
rows of a person change sides together. Where there are too many splits to list, some are drawn and
the true one is counted among them (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585).

Where people have different numbers of rows they are not exchanged for their like, and the areas of
splits vary by more or less than the true one does. How far is then counted in standard errors of
each area: p is exact no longer, but right for enough people (Chung and Romano 2013,
doi:10.1214/13-AOS1090).
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.groups import Group, author_key, is_own, unit_of
from lensaudit.scores.areas import least_chance
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import Values, typical_size
from lensaudit.scores.separation import auc
from lensaudit.verdict.thresholds import ALPHA

LISTED = 200_000
"""Splits up to which all are listed: those of ten people a side."""
N_DRAWS = 20_000
"""Splits that are drawn where there are more."""
_CHUNK = 1000
_ROUNDING = 1e-9
FEWEST_UNLIKE = 4
"""People a side, where they have different numbers of rows: of two a side 12 % are called told
apart that are treated alike, of three 5."""
FEWEST_LIKE = 3.0
"""People of equal numbers of rows that those of a side are worth (Kish 1965): where one holds
nearly all rows of a side, up to 16 % are called told apart that are treated alike."""
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
    least = least_chance(n_members, n_strangers)
    if least > ALPHA:
        told = f"{n_members} forgotten and {n_strangers} never-seen {unit}s"
        return f"{told} allow no p below {least:.2g}; 4 a side do"
    return _unlike(strangers, members, unit)


def _unlike(strangers: Sequence[Group], members: Sequence[Group], unit: str) -> str | None:
    """Why unlike numbers of rows are too few people's.

    >>> _unlike("aabbccddd", "eeffgghhhhhhhhhhhhhh", "author")
    'author h has 14 of 20 rows of a side, as if of 1.9 equal authors; wanted 3'
    """
    sides = [Counter(members), Counter(strangers)]
    n_rows = {n for side in sides for n in side.values()}
    if len(n_rows) == 1:
        return None
    if (fewest := min(map(len, sides))) < FEWEST_UNLIKE:
        return (
            f"{fewest} {unit}s on a side, with {min(n_rows)} to {max(n_rows)} "
            f"rows each; wanted {FEWEST_UNLIKE} a side, or the same number of rows of each"
        )
    for side in sides:
        if (like := side.total() / typical_size([*side.elements()])) < FEWEST_LIKE:
            ((one, n),) = side.most_common(1)
            held = f"{unit} {one!s:.40} has {n} of {side.total()} rows of a side"
            return f"{held}, as if of {like:.1f} equal {unit}s; wanted {FEWEST_LIKE:g}"
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
    # in an order that no name decides
    order = sorted(people, key=lambda one: (sum(people[one]), sorted(people[one])))
    on_lower, areas = {*lower_people}, _Areas([people[one] for one in order])
    true = np.array([[at for at, one in enumerate(order) if one in on_lower]])
    least = float(areas.off(true)[0]) * (1 - _ROUNDING)  # equal ones differ in their last digits
    n_lower = len(on_lower)
    as_far = sum(int((areas.off(at) >= least).sum()) for at in _splits(len(order), n_lower))
    if (n_splits := math.comb(len(order), n_lower)) <= LISTED:
        return as_far / n_splits, n_splits
    return (1 + as_far) / (1 + N_DRAWS), N_DRAWS


class _Areas:
    """Areas of splits of the same people, and their spread by people.

    The variance is that of Obuchowski 1997, doi:10.2307/2533958.
    """

    def __init__(self, people: Sequence[Sequence[float]]):
        """`people`: ranks of the rows of each."""
        self.n_rows = np.array([len(own) for own in people], dtype=float)
        rows = np.concatenate([np.array(own) for own in people])
        person = np.repeat(np.arange(len(people)), self.n_rows.astype(int))
        wins = []
        for own in map(np.sort, people):
            above = sum(np.searchsorted(own, rows, side) for side in ("left", "right")) / 2
            wins.append(np.bincount(person, weights=above))
        # [person, other]: pairs of their rows in which the person's is above the other's
        self.wins = np.stack(wins, axis=1)

    def off(self, lower: NDArray[np.int64]) -> NDArray[np.float64]:
        """How far from 1/2 the areas are of splits with these people on the lower side.

        In standard errors where numbers of rows differ: without any spread infinitely far, unless
        the area is 1/2.
        """
        sides = np.zeros((2, len(lower), len(self.n_rows)))
        np.put_along_axis(sides[0], lower, 1.0, axis=1)
        sides[1] = 1 - sides[0]
        n_rows, n_people = sides @ self.n_rows, sides.sum(2)
        # by person: pairs won against the rows of the other side, each worth one row
        won = [
            sides[1] @ self.wins / n_rows[1][:, None],
            sides[0] @ self.wins.T / n_rows[0][:, None],
        ]
        area = (won[1] * sides[1]).sum(1) / n_rows[1]
        far = abs(area - 0.5)
        if (self.n_rows == self.n_rows[0]).all():
            return far
        variance = np.zeros(len(lower))
        for side, own, rows, n in zip(sides, won, n_rows, n_people, strict=True):
            apart = (side * (own - self.n_rows * area[:, None]) ** 2).sum(1) / rows**2
            variance += apart * n / np.maximum(n - 1, 1)
        error, none = np.sqrt(variance), np.where(far > _ROUNDING, np.inf, 0.0)
        return np.divide(far, error, out=none, where=error > _ROUNDING)


def _splits(n: int, n_lower: int) -> Iterator[NDArray[np.int64]]:
    """Places of the people on the lower side, a split a row: all of them, or some that are drawn.

    >>> [sum(len(one) for one in _splits(*sizes)) for sizes in ((4, 2), (16, 8), (40, 20))]
    [6, 12870, 20000]
    """
    if math.comb(n, n_lower) <= LISTED:
        listed = combinations(range(n), n_lower)
        while some := list(islice(listed, _CHUNK)):
            yield np.array(some)
        return
    random = np.random.default_rng(0)
    for _ in range(N_DRAWS // _CHUNK):
        yield random.permuted(np.tile(np.arange(n), (_CHUNK, 1)), axis=1)[:, :n_lower]
