"""Who has what? A finished run of `lensaudit know`."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import PlainSerializer

from lensaudit.results.reading import (
    SUMMARY,
    AtLayer,
    Number,
    Whole,
)
from lensaudit.scores.estimate import UNMEASURED, Estimate

FILES = ("facts.csv", "relations.csv", "layers.csv", "matrix.json", SUMMARY)
PERSONS = "persons.csv"
"""Beside these, where people are judged one by one."""
LEVEL = 0.01
"""Chance of convicting an ignorant model by the assignment test."""


@dataclass(frozen=True)
class KnownRelation:
    """A relation of a run of `know`."""

    relation: str
    n: Whole
    trace: Number
    z: Number
    p: Number


@dataclass(frozen=True)
class KnowControl:
    """A control that must hold before anything is concluded."""

    name: str
    passed: bool
    said: str
    """With the number."""


@dataclass(frozen=True)
class KnowPower:
    """What the test would have found."""

    bits: Number | None
    """Least mean familiarity, bits a fact, that is found with a chance of `share`; None: none."""
    share: Number
    why: str = ""
    """Why there are none, where that is no matter of the subjects' number alone."""


Bits = Annotated[Estimate, PlainSerializer(lambda one: {k: getattr(one, k) for k in _BITS})]
"""Mean bits a fact, with the ends of the 95 % interval."""
_BITS = ("value", "low", "high", "n", "why")


@dataclass(frozen=True, kw_only=True)
class KnowRecord:
    """Who has what, in `summary.json` of a run of `know`."""

    kind: str = "know"
    source: str
    headline: str
    finds: bool
    """It binds values to subjects, beyond chance and beyond what names give away."""
    p: Number
    z: Number
    reader: str = ""
    """Whose trace is the largest."""
    exact: bool = False
    n_permutations: Whole = 0
    gamma: Number = 0.0
    """Largest tilt by cues that p survives."""
    gamma_controls: Number = 1.0
    """Tilt that names alone show in models that never knew; 1 where none is seen."""
    bits: Bits | None
    """Mean bits a fact."""
    bits_familiar: Bits = UNMEASURED
    power: KnowPower = field(default_factory=lambda: KnowPower(None, 0.0))
    named: list[Whole] = field(default_factory=list)
    naming: dict[str, Any] = field(default_factory=dict)
    controls: list[KnowControl]
    alike: list[str] = field(default_factory=list)
    """Never-trained models that know the same kept rows and bind none of the values: what training
    on these rows ties to names, they would show."""
    priors: list[str] = field(default_factory=lambda: ["uniform"])
    """Of which the largest counts."""
    readers: list[str] = field(default_factory=list)
    n: Whole = 0
    """Facts."""
    n_subjects: Whole
    people: str = ""
    """Who is found alone, in words; `persons.csv` has a row a person."""
    relations: list[KnownRelation]
    max_bits: Number
    """Of a reader that is sure of every fact."""
    unscored: dict[AtLayer, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def failed(self) -> KnowControl | None:
        """The first control that did not pass, of those that a finding needs."""
        return next((one for one in self.controls if not one.passed and one.name != "kept"), None)

    @property
    def refused(self) -> str | None:
        """Why a small p is no finding; None where it is one."""
        if self.failed is not None:
            return self.failed.said
        if self.gamma < self.gamma_controls and self.gamma_controls > 1:
            alone = f"names alone tilt odds by {self.gamma_controls:.2g} in models that never knew"
            return f"{alone} ({self.tilt})"
        if self.gamma > 1 or self.alike:
            return None
        return (
            f"{self.tilt}, and no never-trained model of the same kept rows was asked beside it "
            "(--retain)"
        )

    @property
    def undecided(self) -> bool:
        """Whether a control failed, or p is small and yet no finding."""
        return self.failed is not None or (self.p <= LEVEL and self.refused is not None)

    @property
    def tilt(self) -> str:
        """The tilt by names under which p stays small, in words."""
        if self.gamma > 1:
            return f"survives cues that tilt odds by up to {self.gamma:.2g}"
        return "no tilt by names is borne"


@dataclass(frozen=True, kw_only=True)
class KnowMatrix:
    """Subjects by values: what a reader says of one relation, probabilities."""

    relation: str
    reader: str = ""
    subjects: list[str]
    values: list[str]
    truth: list[Whole]
    p: list[list[Number]]
