"""Sentences for findings: a number with its limits, or why there are none.

A sentence stands with its finding: of a model in `lensaudit.verdict`, of a direction in
`lensaudit.steer`. An interval decides, and every control: what holds 0, or what a control does as
well, is said to do so. Without an interval (too few authors) the point stands in for both limits,
and the sentence says of what it speaks.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lensaudit.scores.estimate import Estimate

STRONG, WEAK = 0.8, 0.2
"""Share of a gap read as all of it, and as none of it."""


def rows_only(why: str) -> str:
    """What stands where an interval would, in every sentence that has none.

    >>> rows_only("3 authors: no interval")
    '3 authors: no interval; this describes these rows only'
    """
    return f"{why}; this describes these rows only"


def by_root(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """Reasons without their row, the commonest first, each with its count.

    >>> by_root(["alone (genre)", "closed", "alone (prize)"])
    [('alone', 2), ('closed', 1)]
    """
    return Counter(re.sub(r" ?\(.*\)|: .*", "", one) for one in reasons).most_common()


def shown(one: Estimate, digits: int = 2) -> str:
    """A value with its limits.

    >>> shown(Estimate(0.28, -0.3, 0.81)), shown(Estimate(0.5))
    ('0.28 [-0.30, 0.81]', '0.50')
    """
    value = f"{one.point:.{digits}f}"
    if one.low is None or one.high is None:
        return value
    return f"{value} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


def by_rule(spans: Mapping[Any, int]) -> Iterator[str]:
    """How many facts no person reviewed; empty where all were reviewed.

    >>> list(by_rule({"rule": 33, "reviewed": 22})), list(by_rule({}))
    (['33 of 55 spans by rule, not reviewed'], [])
    """
    if n := spans.get("rule"):
        yield f"{n} of {sum(spans.values())} spans by rule, not reviewed"
