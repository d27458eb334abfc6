"""Which facts come out by any of a list of attacks? A finished run of `lensaudit worst`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Len
from pydantic import BeforeValidator

from lensaudit.results.reading import Length, Number, Whole


@dataclass(frozen=True)
class WorstAttack:
    """One attack of a worst case over all facts, on every model."""

    name: str
    tier: str
    about: str
    n_scored: Whole
    control: Number | None
    """Hit rate on `full`, which knows: the positive control. None: it scored no fact."""
    source: Number | None
    """Hit rate on the source."""
    retain: Number | None
    """Mean hit rate on the control arm."""
    counts: bool
    """It hits something on `full`, of the facts that it scores on the source and on every model of
    the control arm; an attack that does not is left out of every maximum."""
    only: Whole
    """Facts of the source that no other attack breaks."""
    gain: Number | None
    """Excess of the list minus that of the list without it."""
    seconds: Length
    forwards: Whole
    tokens: Whole


Marked = Annotated[
    Number | None,
    BeforeValidator(lambda one: (float(one) if one else None) if isinstance(one, str) else one),
]
"""A number; the ledger of the shipped nulls has it as text, empty where there was none."""


@dataclass(frozen=True)
class WorstFact:
    """What a worst case says of one fact: a row of `facts.csv`."""

    idx: Whole
    group: Whole | str = ""
    entity: str = ""
    attacks: str = ""
    """Names joined by `;`."""
    statistic: Marked = None
    """Of the entity among its placebos; None where no attack scores both."""
    p: Marked = None
    q: Marked = None
    """Below it the fact may be named as known."""
    unscored: str = ""
    question: str = ""


@dataclass(frozen=True, kw_only=True)
class WorstRecord:
    """`summary.json` of a worst case; of the gym's ledger what a verdict reads of one."""

    kind: str = "worst"
    source: str
    full: str = ""
    retain: Annotated[list[str], Len(1)]
    data: str = ""
    tier: str = ""
    attack_list: str = ""
    headline: str = ""
    n: Whole = 0
    n_scored: Whole
    unscored: Mapping[str, str] = field(default_factory=dict)
    """Idx -> why a fact was not asked."""
    authors: Whole = 0
    per_author: Number | None = None
    """Facts of the author that a fact is of, in the mean; None where another version wrote it."""
    n_out: Whole
    """k: facts that some attack brings out of the source."""
    expected: Number
    """Facts that would come out of a model that never knew."""
    full_out: Whole | None = None
    """Facts that the attacks that count bring out of `full`, the positive control of all together;
    None: not known, as in the ledger of the shipped nulls."""
    excess: Number
    ci95: tuple[Number, Number] | None
    no_interval: str | None = None
    excess_share: Number | None = None
    """Of the largest excess that there can be."""
    named: list[Whole]
    naming: Mapping[str, Any] = field(default_factory=dict)
    people: str = ""
    """Who stands out over all of their facts, in words; `persons.csv` has a row a person."""
    bound: Mapping[str, Any] = field(default_factory=dict)
    """Most a fact's rate per sample can be where so many samples of leak@k did not hit it."""
    attacks: list[WorstAttack] = field(default_factory=list)
    facts: list[WorstFact]
