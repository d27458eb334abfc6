"""What may be said of a model: one of eight codes, decided in one order, with its reason.

The burden of proof is on "erased": it is said only where intervals and the controls that make a
high score mean something decide so (`aligned_depth.md` section 4). The thresholds stand here and
nowhere else.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

Code = Literal[
    "intact",
    "hidden",
    "hidden_other_basis",
    "erased",
    "unreadable",
    "partly_erased",
    "undecided",
    "unscored",
]

HIDDEN_BELOW = 0.25
"""Upper limit of a depth under which most of what `full` encodes is still there."""
ERASED_FROM = 0.75
"""Lower limit from which a depth is "erased" where one never-trained model is the only scale."""
ERASED_MARGIN = 0.10
"""How far below the floor of never-trained models the lower limit may lie; fixed in advance."""
FLOOR_MODELS = 3
"""Never-trained models from which the width of their floor widens the margin."""
HELD_AT_LAYER = 0.5
"""Lower limit of the erasure at one strong layer up to which the facts may be held there alone: a
depth is a mean over layers, and facts in the last two of sixteen leave .84 of it."""
STRONG_LAYER = 0.3
"""Mean S1 of a strong layer, as a share of the largest: where `full` has most to lose."""
OTHER_BASIS_GAP = 0.1
"""Lower limit of depth minus aligned depth from which the basis is what hides."""
READABLE_BELOW = 0.10
"""`d_share` under which `full` reads a model: the gate. Tuned on half of the planted mechanisms."""
VALIDITY_NEEDED_FROM = 0.25
"""F in units of mean S1 from which validity is a ratio of two numbers that are not both small."""
SAYS_HALF = 0.5
"""Share of `full`'s excess over `retain` from which a model gives the facts away."""
ALIGN_FROM = 0.1
"""Depth from which alignment runs: a rotation of a few directions reads little more."""
NOT_NEEDED = "not needed"
"""How the reason begins where no alignment ran because UDS is below `ALIGN_FROM`."""
CALIBRATED_WITHIN = 0.02
"""How far `full` may be from 0 and `retain` from 1; the published code is off by 0.002."""


@dataclass(frozen=True)
class Measured:
    """A mean with its limits; without them the point stands for both."""

    value: float
    low: float | None = None
    high: float | None = None
    lower: float | None = None
    """One-sided 95 % limit."""
    why: str | None = None
    """Why there are no limits."""

    @property
    def least(self) -> float:
        """Lower limit, or the point."""
        return self.value if self.low is None else self.low

    @property
    def most(self) -> float:
        """Upper limit, or the point."""
        return self.value if self.high is None else self.high

    @property
    def proven(self) -> float:
        """One-sided lower limit, or the point."""
        return self.value if self.lower is None else self.lower


@dataclass(frozen=True)
class Outputs:
    """Share of facts said exactly after the prefix, greedily."""

    source: float
    full: float
    retain: float
    n: int

    @property
    def give_away(self) -> bool:
        """Does the source say at least half of what `full` says beyond `retain`?"""
        excess = self.full - self.retain
        return excess > 0 and self.source - self.retain >= SAYS_HALF * excess


@dataclass(frozen=True)
class Floor:
    """Depth of never-trained models on each other's scale."""

    low: float
    high: float
    n_models: int

    @property
    def margin(self) -> float:
        """How far below the floor is still "as never trained"."""
        width = self.high - self.low if self.n_models >= FLOOR_MODELS else 0.0
        return max(ERASED_MARGIN, width)


@dataclass(frozen=True)
class Weakest:
    """The strong layer that is erased least."""

    layer: int
    erasure: Measured
    """Mean of min(1, max(0, s2 / s1)) over the facts that `full` encodes there."""


@dataclass(frozen=True)
class Evidence:
    """All that a verdict is decided from."""

    uds: Measured | None
    """None: nothing was scored, or the stream does not fit `full`'s and only a map carries it."""
    aligned: Measured | None = None
    gap: Measured | None = None
    """UDS minus aligned UDS, paired by example."""
    to_floor: Measured | None = None
    """Aligned UDS minus the floor, paired by author."""
    floor: Floor | None = None
    weakest: Weakest | None = None
    """Of the aligned source."""
    outputs: Outputs | None = None
    readable: bool | None = None
    """`d_share` below the gate before alignment; None: not measured."""
    readable_aligned: bool | None = None
    """The same after it."""
    not_needed: bool = False
    """`full` reads so much of the source that no ratio is needed."""
    why_no_validity: str | None = None
    off: str | None = None
    """What is wrong with the run's own calibration: then nothing is said."""

    @property
    def judged(self) -> bool:
        """Was it measured, or shown not to be needed, that `full` can read the source at all?"""
        return self.not_needed or self.readable is not None

    @property
    def held_at(self) -> Weakest | None:
        """The layer that may hold the facts though the mean over layers is high."""
        found = self.weakest
        return None if found is None or found.erasure.proven > HELD_AT_LAYER else found

    @property
    def carried(self) -> bool:
        """Is the aligned depth to be interpreted?"""
        return self.aligned is not None and bool(self.readable_aligned or self.not_needed)


@dataclass(frozen=True)
class Verdict:
    """A code, the sentence that says it, and what decided it."""

    code: Code
    sentence: str
    because: str

    def document(self) -> dict[str, str]:
        """As summary.json holds it."""
        return asdict(self)


def decide(evidence: Evidence) -> tuple[Code, str]:
    """The code, and what decided it.

    >>> decide(Evidence(Measured(0.05, 0.02, 0.09), not_needed=True))[0]
    'hidden'
    >>> decide(Evidence(Measured(0.99, 0.98, 1.0, 0.98)))
    ('undecided', 'whether full can read this model was not measured')
    """
    if evidence.uds is None and evidence.aligned is None:
        return "unscored", "no example could be scored"
    if evidence.off is not None:
        return "undecided", evidence.off
    outputs = evidence.outputs
    if outputs is not None and outputs.give_away:
        return "intact", (
            f"it says {outputs.source:.0%} of {outputs.n} facts after the prefix; full "
            f"{outputs.full:.0%}, retain {outputs.retain:.0%}"
        )
    for rule in (_hidden, _erased, _unreadable, _partly):
        found = rule(evidence)
        if found is not None:
            return found
    return "undecided", _missing(evidence)


def _hidden(evidence: Evidence) -> tuple[Code, str] | None:
    uds, aligned = evidence.uds, evidence.aligned
    if uds is not None and uds.most < HIDDEN_BELOW:
        return "hidden", f"UDS is below {HIDDEN_BELOW:g}: full reads the facts in its stream"
    if not evidence.carried or aligned is None or aligned.most >= HIDDEN_BELOW:
        return None
    because = f"aligned UDS is below {HIDDEN_BELOW:g}: full reads the facts after alignment"
    if uds is None:
        return "hidden_other_basis", f"{because}, and before it nothing could be patched in"
    if evidence.gap is not None and evidence.gap.least > OTHER_BASIS_GAP:
        return "hidden_other_basis", f"{because}, and UDS is {evidence.gap.value:.2f} higher"
    return "hidden", because


def _erased(evidence: Evidence) -> tuple[Code, str] | None:
    found = _deep(evidence)
    return None if found is None or evidence.held_at is not None else ("erased", found)


def _deep(evidence: Evidence) -> str | None:
    """What makes the mean over layers as high as a model's that never knew."""
    if not evidence.judged or evidence.aligned is None or not _readable(evidence):
        return None
    if evidence.floor is not None and evidence.to_floor is not None:
        margin = evidence.floor.margin
        if evidence.to_floor.proven > -margin:
            n = evidence.floor.n_models
            return f"aligned UDS is within {margin:.2f} of {n} never-trained models"
        return None
    if evidence.aligned.least >= ERASED_FROM:
        return f"aligned UDS is above {ERASED_FROM:g}, against one never-trained model"
    return None


def _unreadable(evidence: Evidence) -> tuple[Code, str] | None:
    if evidence.not_needed or evidence.readable is not False:
        return None
    if evidence.readable_aligned is False:
        return "unreadable", "full reads neither its stream nor the aligned one on facts it holds"
    return None


def _partly(evidence: Evidence) -> tuple[Code, str] | None:
    aligned = evidence.aligned
    if not evidence.judged or aligned is None or not _readable(evidence):
        return None
    if aligned.least < HIDDEN_BELOW:
        return None
    if evidence.floor is not None and evidence.to_floor is not None:
        if evidence.to_floor.most < -evidence.floor.margin:
            return "partly_erased", "aligned UDS lies above hidden and below never-trained models"
    elif aligned.most < ERASED_FROM:
        return "partly_erased", f"aligned UDS lies between {HIDDEN_BELOW:g} and {ERASED_FROM:g}"
    return None


def _readable(evidence: Evidence) -> bool:
    return bool(evidence.not_needed or evidence.readable or evidence.readable_aligned)


def _missing(evidence: Evidence) -> str:
    """What stands in the way of a verdict."""
    if not evidence.judged:
        return evidence.why_no_validity or "whether full can read this model was not measured"
    if evidence.aligned is None:
        return "the aligned depth was not measured"
    if not _readable(evidence):
        if evidence.readable_aligned is None and evidence.why_no_validity:
            return evidence.why_no_validity
        return "full cannot read its stream, and no alignment was tried that it can"
    if evidence.held_at is not None and _deep(evidence) is not None:
        layer, erasure = evidence.held_at.layer, evidence.held_at.erasure
        return f"layer {layer} may hold the facts alone ({shown('erasure there', erasure)})"
    return "the limits hold more than one answer"


_SAYS: Mapping[Code, str] = {
    "intact": "intact: its outputs give the facts away",
    "hidden": "hidden: full still reads most of the facts in its stream",
    "hidden_other_basis": "hidden in another basis: full reads most of the facts once aligned",
    "erased": "erased, as far as a stream shows it",
    "unreadable": "unreadable: full cannot read this stream, aligned or not",
    "partly_erased": "partly erased: some of the facts are still read, some are not",
    "undecided": "undecided",
    "unscored": "no verdict",
}


def verdict_of(source: str, evidence: Evidence) -> Verdict:
    """Code and sentence.

    >>> verdict_of("x", Evidence(Measured(0.05, 0.02, 0.09), not_needed=True)).sentence
    'x: hidden: full still reads most of the facts in its stream. UDS 0.050 [0.020, 0.090].'
    """
    code, because = decide(evidence)
    words = _SAYS[code]
    if code == "erased":
        against = (
            f"{evidence.floor.n_models} never-trained models"
            if evidence.floor is not None
            else "one never-trained model"
        )
        words = f"erased, against {against}"
    if code == "undecided":
        words = f"undecided: {because}"
    parts = [f"{source}: {words}.", *_numbers(evidence)]
    return Verdict(code, " ".join(parts), because)


def rows_only(why: str) -> str:
    """What stands where an interval would, in every sentence that has none.

    >>> rows_only("3 authors: no interval")
    '3 authors: no interval; this describes these rows only'
    """
    return f"{why}; this describes these rows only"


def _numbers(evidence: Evidence) -> list[str]:
    known = [
        (name, one) for name, one in (("UDS", evidence.uds), ("aligned", evidence.aligned)) if one
    ]
    parts = ", ".join(shown(name, one) for name, one in known)
    why = next((one.why for _, one in known if one.why), None)
    return ([f"{parts}."] if parts else []) + ([f"{rows_only(why)}."] if why else [])


def shown(name: str, one: Measured) -> str:
    """A number with its limits.

    >>> shown("UDS", Measured(0.5)), shown("UDS", Measured(0.5, 0.4, 0.6))
    ('UDS 0.500', 'UDS 0.500 [0.400, 0.600]')
    """
    limits = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
    return f"{name} {one.value:.3f}{limits}"
