"""How do views scatter over models that never knew? Shipped, or of a run's own models.

`calibration.json` is made of the gym by `lensaudit gym table --calibration FILE`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from scipy.stats import t as student

from lensaudit.results.reading import Length, Number, Whole, checked_as
from lensaudit.results.records import signed_object
from lensaudit.scores.estimate import Estimate
from lensaudit.verdict.thresholds import LEAST_SPREAD, OWN_SPREAD_FROM

SHIPPED = Path(__file__).parent / "calibration.json"
_Z = 1.959964
"""Standard errors from the middle to the end of a 95 % interval."""


@dataclass(frozen=True)
class Null:
    """A view over models that never knew, as a share held: 0 as `retain`, 1 as `full`."""

    mean: Number
    spread: Length
    """Standard deviation between models, with n - 1."""
    n: Annotated[Whole, Ge(2)]

    def chance(self, found: Estimate) -> float | None:
        """That one more such model, measured as this one was, reads as high; None: no interval.

        Student's t for one more observation, with the estimate's own standard error beside it.

        >>> round(Null(0.1, 0.05, 30).chance(Estimate(0.1, 0.0, 0.2)), 3)
        0.5
        >>> Null(0.1, 0.05, 30).chance(Estimate(0.9))
        """
        if found.ends is None:
            return None
        error = (found.ends[1] - found.ends[0]) / (2 * _Z)
        spread = max(self.spread, LEAST_SPREAD) * math.sqrt(1 + 1 / self.n)
        return float(student.sf((found.point - self.mean) / math.hypot(spread, error), self.n - 1))


Calibration = Mapping[str, Null]
"""View -> its null."""


def zero_of(name: str, own: Sequence[float], calibration: Calibration) -> tuple[float, Null | None]:
    """Where 0 of a view lies in a run, as a share held, and how such models scatter around it.

    Args:
        name: of the view.
        own: shares held that the run's never-trained models read on each other's scale.
        calibration: what is shipped.

    From four own models on their spread is the null; below that their mean, with the spread and
    the degrees of freedom of what is shipped.

    >>> shipped = {"uds": Null(0.1, 0.03, 30)}
    >>> zero_of("uds", (), shipped)
    (0.0, Null(mean=0.1, spread=0.03, n=30))
    >>> zero_of("uds", (0.2, 0.3), shipped)[1].mean
    0.25
    """
    shipped = calibration.get(name)
    if not own:
        return 0.0, shipped
    at = sum(own) / len(own)
    if len(own) >= OWN_SPREAD_FROM:
        spread = math.sqrt(sum((one - at) ** 2 for one in own) / (len(own) - 1))
        return at, Null(at, spread, len(own))
    return at, shipped and Null(at, shipped.spread, shipped.n)


def read_calibration(path: Path | None = None) -> dict[str, Null]:
    """The nulls of a file that `gym table --calibration` wrote; None: those that are shipped.

    Raises:
        InputError: no such file, or another shape.
    """
    where = path or SHIPPED
    views, remedy = signed_object(where).get("views"), "wanted what `gym table` wrote"
    return checked_as(dict[str, Null], views, f"{where}: views", remedy=remedy)
