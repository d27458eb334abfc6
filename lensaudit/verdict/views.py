"""A view: one number of one model, with its interval, its control, and what it says.

The unit is the same for all: the share of the facts that is held, 0 as a model that never knew, 1
as `full`. A view finds, rules out, or cannot tell; where it cannot tell it says why. How views
scatter over models that never knew is shipped in `calibration.json`, which `lensaudit gym table
--calibration FILE` makes, or read off a run's own models.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge

from lensaudit.results.manifest import signed_object
from lensaudit.results.reading import Length, Number, Whole, checked_as
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.scores.intervals import exact_excess
from lensaudit.scores.special import stdtr
from lensaudit.verdict.thresholds import (
    ALPHA,
    FEWEST_AUTHORS,
    HELD_FROM,
    LEAST_SPREAD,
    OTHERS_HELD_FROM,
    OWN_SPREAD_FROM,
    RULED_OUT_BELOW,
    SAYS_HALF,
    TELLS,
)

Group = Literal["answers", "association", "stream", "aligned", "training", "directions"]
Says = Literal["finds", "rules out", "cannot tell"]


@dataclass(frozen=True)
class Kind:
    """What a view is, whatever the model."""

    group: Group
    title: str
    is_mean: bool = True
    """Of all facts: its lower limit may say that they are held."""
    held_from: float = HELD_FROM
    """That limit."""


VIEWS: Mapping[str, Kind] = {
    "said": Kind("answers", "answers after the prefix"),
    "told": Kind("answers", "facts told when asked"),
    "worst_case": Kind("answers", "worst case"),
    "named": Kind("answers", "facts named", is_mean=False),
    "leak": Kind("answers", "leak of samples", is_mean=False),
    "sampled": Kind("answers", "sampled answers", is_mean=False),
    "asked": Kind("answers", "answers when asked", is_mean=False),
    "assignment": Kind("association", "assignment test", is_mean=False),
    "bits": Kind("association", "bits a fact", is_mean=False),
    "uds": Kind("stream", "UDS"),
    "uds_prefix": Kind("stream", "UDS, prefix too"),
    "lens": Kind("stream", "Logit Lens"),
    "weakest": Kind("stream", "weakest layer", is_mean=False),
    "counterfactual": Kind(
        "stream", "depth beside another question's stream", held_from=OTHERS_HELD_FROM
    ),
    "uds_weakest": Kind("aligned", "weakest layer, aligned", is_mean=False),
    "uds_aligned": Kind("aligned", "aligned UDS"),
    "shared_weakest": Kind("aligned", "weakest layer without the shared direction", is_mean=False),
    "shared": Kind("aligned", "aligned UDS without the shared direction"),
    "many_weakest": Kind("aligned", "weakest layer without a direction an author", is_mean=False),
    "many": Kind("aligned", "aligned UDS without a direction an author"),
    "rtt": Kind("training", "retraining on other facts"),
    "relearn_gain": Kind("training", "relearning", is_mean=False),
    "effort": Kind("training", "effort", is_mean=False),
    "ablate": Kind("directions", "one direction taken away"),
}
"""Name -> what it is; in a group the strongest first."""
GROUPS: tuple[Group, ...] = get_args(Group)
LEVEL = ALPHA / len(GROUPS)
"""Of each group: the number of groups that there are, not of those that were asked."""
NOT_TRIED: Mapping[Group, str] = {
    "answers": "what it says was not asked",
    "association": "who has what was not asked",
    "stream": "its stream was not patched",
    "aligned": "its stream was not aligned",
    "training": "retraining was not tried",
    "directions": "directions were not taken away",
}


@dataclass(frozen=True)
class View:
    """A number of a model, and what it shows."""

    name: str
    held: Estimate | None
    """The share held; None where there is no number, and `why` says why."""
    shown: str = ""
    """The number as its command prints it."""
    chance: float | None = None
    """That a model that never knew reads as high; None where no null or no interval is known."""
    n_authors: int | None = None
    """Clusters that the interval counts."""
    control: str | None = None
    """What failed of its own control: then it neither finds nor rules out."""
    blind: str | None = None
    """Why it may not rule out: what would hide the facts from it."""
    why: str | None = None
    """Why there is no number, or no interval."""
    number: Estimate | None = None
    """The number in the unit of its command; None where it is the share held, or there is none."""
    n_results: int = 1
    """Results of this name that have a number, of which this is the strongest."""

    @property
    def kind(self) -> Kind:
        """Place of the view in the table of kinds."""
        return VIEWS[self.name]

    @property
    def group(self) -> Group:
        """Group of views: what it reads."""
        return self.kind.group

    @property
    def finds(self) -> bool:
        """Whether "never knew" is excluded at its group's level."""
        return self.control is None and self.chance is not None and self.chance <= LEVEL

    @property
    def rules_out(self) -> bool:
        """Whether less than a fifth is shown to be held."""
        limits = None if self.held is None else self.held.one_sided
        able = self.control is None and self.blind is None and not self.few
        return able and limits is not None and limits[1] < RULED_OUT_BELOW and not self.finds

    @property
    def few(self) -> bool:
        """Whether there are too few authors to rule anything out."""
        return self.n_authors is None or self.n_authors < FEWEST_AUTHORS

    @property
    def short(self) -> bool:
        """Would more rows tell: too few authors, no interval, or one that is too wide?"""
        able = self.held is not None and self.control is None and self.blind is None
        return able and self.says == "cannot tell"

    @property
    def holds(self) -> bool:
        """Whether most facts are shown to be held: three quarters, or what its kind wants."""
        low = None if self.held is None else self.held.low
        able = self.kind.is_mean and self.control is None and (self.finds or self.chance is None)
        return able and low is not None and low >= self.kind.held_from

    @property
    def below(self) -> bool:
        """Whether it is shown to lie below models that never knew, as only an intervention can."""
        high = None if self.held is None else self.held.high
        return self.control is None and high is not None and high < 0

    @property
    def says(self) -> Says:
        """Reading of the view in two words."""
        return "finds" if self.finds else "rules out" if self.rules_out else "cannot tell"

    @property
    def reason(self) -> str:
        """Why it cannot tell; empty where it can."""
        if self.says != "cannot tell":
            return ""
        if self.held is None:
            return self.why or "not measured"
        if self.control is not None:
            return self.control
        if self.held.ends is None:
            return self.why or self.held.why or "no interval"
        if self.blind is not None:
            return self.blind
        if self.few:
            return f"{self.n_authors or 0} authors, wanted {FEWEST_AUTHORS} to rule out"
        return (
            "too wide to tell" if self.chance is not None else "no model that never knew beside it"
        )

    @property
    def line(self) -> str:
        """A line of the chain: the view's group, kind and number, and what it shows.

        >>> View("uds", None, why="no layer encodes the fact").line
        'stream: UDS: cannot tell (no layer encodes the fact)'
        """
        return f"{self.group}: {self.told}"

    @property
    def told(self) -> str:
        """The view in words, without its group."""
        number = f" {self.shown}" if self.shown else ""
        held = "" if self.held is None else f", held {share(self.held)}"
        why = f" ({self.reason})" if self.reason else ""
        of = f", the strongest of {self.n_results}" if self.n_results > 1 else ""
        below = ", below models that never knew" if self.below else ""
        return f"{self.kind.title}{number}{held}{of}: {self.says}{below}{why}"

    def document(self) -> dict[str, Any]:
        """The record as a JSON object; the value is the share held."""
        held = self.held or UNMEASURED
        return {
            "value": held.value,
            "ci95": held.ends and list(held.ends),
            "n": held.n,
            "shown": self.shown,
            "group": self.group,
            "vote": self.says,
            "chance": self.chance,
            "control": self.control,
            "why": self.reason or None,
        }


def strongest(views: Iterable[View]) -> View:
    """The view that shows most of the facts, among views of one name in any order.

    What has a vote goes before what has none, what finds before what does not, what has a number
    before what has none, and what cannot tell before what rules out: no further result takes a
    finding away. Results that are equal count once.
    """
    every = {repr(one): one for one in views}
    n = sum(_strength(one)[4] and one.control is None for one in every.values())
    best = max(sorted(every), key=lambda key: _strength(every[key]))
    return replace(every[best], n_results=max(1, n))


def _strength(one: View) -> tuple[bool | float, ...]:
    least = one.held.least if one.held and one.held.value is not None else -math.inf
    says = one.finds and one.held is not None and one.held.point >= SAYS_HALF
    has = one.held is not None or one.chance is not None
    ranked = (one.control is None, one.finds, says, one.holds, has, not one.rules_out, least)
    return *ranked, -(2.0 if one.chance is None else one.chance)


def rows_each(n: int, authors: int | None, per_author: float | None = None) -> float:
    """Rows of the author that a row is of, in the mean.

    Records of another version do not say it, but how many authors there are: as many rows of each
    are the least that it can be. Who names no number of authors has the fewest of an interval.

    >>> rows_each(68, 8, 25.2), rows_each(68, 8), rows_each(68, None)
    (25.2, 8.5, 13.6)
    """
    return per_author or n / (authors or FEWEST_AUTHORS)


def beyond(
    view: View,
    own: float | int,
    full: float,
    retain: float,
    each: float | int,
    n_ways: int = 1,
) -> View:
    """What it says, by counts, as a share of what `full` says beyond `retain`.

    Args:
        view: what is shown of it, with `number` the share of so many facts.
        own: facts that it says.
        full: share that `full` says.
        retain: share that a model that never saw them says.
        each: facts of the author that a fact is of.
        n_ways: of asking, of which this is one.
    """
    n, tells = (view.number or UNMEASURED).n or 0, full - retain
    if tells <= 0:
        return replace(view, why="full says no more than retain")
    held, chance = exact_excess(own, retain * n, n, each)
    weak = None if tells >= TELLS else f"full says only {tells:.0%} more than retain"
    return replace(view, held=held.on(0.0, tells), chance=min(1.0, n_ways * chance), control=weak)


def share(one: Estimate) -> str:
    """A share with its interval, two decimals.

    >>> share(Estimate(0.5, 0.25, 0.75)), share(Estimate(0.5))
    ('.50 [.25, .75]', '.50')
    """
    ends = "" if one.ends is None else f" [{hundredths(one.ends[0])}, {hundredths(one.ends[1])}]"
    return f"{hundredths(one.point)}{ends}"


def hundredths(value: float) -> str:
    """Two decimals, without a zero before the point.

    >>> hundredths(-0.25), hundredths(1.5), hundredths(-0.001)
    ('-.25', '1.50', '.00')
    """
    return f"{value:z.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"


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
        """Chance that one more such model, measured alike, reads as high; None: no interval.

        Student's t for one more observation, with the estimate's own standard error beside it.

        >>> round(Null(0.1, 0.05, 30).chance(Estimate(0.1, 0.0, 0.2)), 3)
        0.5
        >>> Null(0.1, 0.05, 30).chance(Estimate(0.9))
        """
        if found.ends is None:
            return None
        error = (found.ends[1] - found.ends[0]) / (2 * _Z)
        spread = max(self.spread, LEAST_SPREAD) * math.sqrt(1 + 1 / self.n)
        above = (found.point - self.mean) / math.hypot(spread, error)
        return float(stdtr(self.n - 1, -above))


Calibration = Mapping[str, Null]
"""View -> its null."""


def zero_of(name: str, own: Sequence[float], calibration: Calibration) -> tuple[float, Null | None]:
    """Zero of a view in a run, as a share held, and how such models scatter around it.

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


def null_of(name: str, nulls: Calibration) -> Null | None:
    """The gym's null of a view that its own control arm is taken off already.

    Where it has none, the worst case lends its spread; around 0, for its mean is of its own list.
    """
    own, other = nulls.get(name), nulls.get("worst_case")
    return own or (other and Null(0.0, other.spread, other.n))


def over_arm(
    name: str,
    held: Estimate,
    shown: str,
    nulls: Calibration,
    authors: int | None,
    exact: float | None = None,
    **rest: Any,
) -> View:
    """A view of an excess over the control arm; of counts the more careful of two chances.

    Args:
        name: of the view.
        held: the share held.
        shown: the number as its command prints it.
        nulls: how models that never knew scatter.
        authors: that the interval counts.
        exact: chance by counts alone, which needs no interval.
        **rest: further fields.
    """
    null = null_of(name, nulls)
    known = [one for one in (exact, null and null.chance(held)) if one is not None]
    return View(name, held, shown, max(known, default=None), authors, why=held.why, **rest)
