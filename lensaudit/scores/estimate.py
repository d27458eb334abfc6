"""A number and how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AllowInfNan, Strict

Number = Annotated[float, Strict(), AllowInfNan(False)]
"""A finite number; no text that looks like one, no true."""
Ends = tuple[float, float]
OpenEnds = Sequence[float | None] | None


@dataclass(frozen=True)
class Estimate:
    """A value with its limits; without them the point stands for both, and `why` says why."""

    value: Number | None
    """None where nothing could be scored."""
    low: Number | None = None
    """Ends of the 95 % interval."""
    high: Number | None = None
    n: int | None = None
    """Rows, or whatever was counted."""
    why: str | None = None
    """Why there is no value, or are no limits: `3 authors: no interval`."""
    lower: Number | None = None
    """One-sided 95 % limits, the ends of the 90 % interval; where they are not known the ends of
    the 95 % one stand in, which is the careful side."""
    upper: Number | None = None

    @classmethod
    def within(
        cls,
        value: float | None,
        ends: OpenEnds,
        one_sided: OpenEnds = None,
        *,
        n: int | None = None,
        why: str | None = None,
    ) -> "Estimate":
        """From pairs of limits, as result files hold them: each null, or with a null in it."""
        (low, high), (lower, upper) = ends or (None, None), one_sided or (None, None)
        return cls(value, low, high, n, why, lower, upper)

    @property
    def point(self) -> float:
        """The value; NaN where there is none."""
        return math.nan if self.value is None else self.value

    @property
    def least(self) -> float:
        """Lower limit, or the point."""
        return self.point if self.low is None else self.low

    @property
    def most(self) -> float:
        """Upper limit, or the point."""
        return self.point if self.high is None else self.high

    @property
    def ends(self) -> Ends | None:
        """The 95 % interval; None where there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def one_sided(self) -> Ends | None:
        """Lower and upper one-sided 95 % limits; None where there is no interval."""
        if self.ends is None:
            return None
        low, high = self.ends
        return (
            low if self.lower is None else self.lower,
            high if self.upper is None else self.upper,
        )

    def limits(self, name: str = "ci95") -> dict[str, Any]:
        """The interval as result files hold it: `[low, high]` or null, and why it is null.

        >>> Estimate(0.5, why="3 authors: no interval").limits()
        {'ci95': None, 'ci95_why': '3 authors: no interval'}
        """
        ends = self.ends
        return {name: ends and list(ends), f"{name}_why": None if ends else self.why}

    def spelled(self, name: str) -> dict[str, Any]:
        """Both intervals of a depth as result files hold them.

        >>> Estimate(0.5, 0.25, 0.75).spelled("uds")
        {'uds': 0.5, 'ci95': [0.25, 0.75], 'ci90': [0.25, 0.75]}
        """
        one_sided = self.one_sided
        ends = {"ci95": self.ends and list(self.ends), "ci90": one_sided and list(one_sided)}
        return {name: self.value, **ends}

    def around(self, value: float | None) -> "Estimate":
        """The same limits around a value that was summed in another order."""
        return replace(self, value=value)

    def on(self, zero: float, one: float) -> "Estimate":
        """The estimate on another scale: `zero` becomes 0, `one` becomes 1; limits may swap.

        >>> Estimate(3.0, 2.0, 4.0).on(0.0, 4.0).ends
        (0.5, 1.0)
        """
        known = (self.value, self.low, self.high, self.lower, self.upper)
        value, low, high, lower, upper = (
            None if end is None else (end - zero) / (one - zero) for end in known
        )
        if one < zero:
            low, high, lower, upper = high, low, upper, lower
        return Estimate(value, low, high, self.n, self.why, lower, upper)


UNMEASURED = Estimate(None)
NO_ROWS = Estimate(None, n=0, why="no row has a score: no interval")
