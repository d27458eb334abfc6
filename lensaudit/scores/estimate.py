"""A number and how sure it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A value with its limits; without them the point stands for both, and `why` says why."""

    value: float
    low: float | None = None
    """Ends of the 95 % interval."""
    high: float | None = None
    n: int | None = None
    """Rows, or whatever was counted."""
    why: str | None = None
    """Why there are no limits."""
    lower: float | None = None
    """One-sided 95 % limits, the ends of the 90 % interval; where they are not known the ends of
    the 95 % one stand in, which is the careful side."""
    upper: float | None = None

    @property
    def least(self) -> float:
        """Lower limit, or the point."""
        return self.value if self.low is None else self.low

    @property
    def most(self) -> float:
        """Upper limit, or the point."""
        return self.value if self.high is None else self.high

    @property
    def ends(self) -> tuple[float, float] | None:
        """The 95 % interval; None where there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def one_sided(self) -> tuple[float, float] | None:
        """Lower and upper one-sided 95 % limits; None where there is no interval."""
        if self.ends is None:
            return None
        low, high = self.ends
        return (
            low if self.lower is None else self.lower,
            high if self.upper is None else self.upper,
        )

    def kept(self) -> "Estimate":
        """1 minus it: from a share that is lost to one that is held, or back.

        >>> Estimate(0.25, 0.125, 0.5).kept()
        Estimate(value=0.75, low=0.5, high=0.875, n=None, why=None, lower=None, upper=None)
        """
        return self.on(1.0, 0.0)

    def on(self, zero: float, one: float) -> "Estimate":
        """On another scale: `zero` becomes 0, `one` becomes 1; limits change places if it turns.

        >>> Estimate(3.0, 2.0, 4.0).on(0.0, 4.0).ends
        (0.5, 1.0)
        """

        def moved(value: float | None) -> float | None:
            return None if value is None else (value - zero) / (one - zero)

        ends = (moved(self.low), moved(self.high), moved(self.lower), moved(self.upper))
        low, high, lower, upper = ends
        if one < zero:
            low, high, lower, upper = high, low, upper, lower
        return Estimate(
            (self.value - zero) / (one - zero), low, high, self.n, self.why, lower, upper
        )
