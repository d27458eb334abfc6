"""The worst case on the page: which facts come out by attack, and what samples say."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lensaudit.results.reading import brief, json_object
from lensaudit.results.schema import Number, Whole, checked


@dataclass(frozen=True)
class _Attack:
    name: str
    about: str
    control: Number | None
    source: Number | None
    retain: Number | None
    counts: bool
    only: Whole
    gain: Number | None


@dataclass(frozen=True)
class _Fact:
    idx: Whole
    group: Whole | str
    entity: str
    attacks: str
    """Names joined by `;`."""
    q: str
    unscored: str


@dataclass(frozen=True)
class _Worst:
    """What `summary.json` of a worst case must hold."""

    source: str
    retain: list[str]
    attack_list: str
    headline: str
    excess: Number
    ci95: tuple[Number, Number] | None
    named: list[Whole]
    attacks: list[_Attack]
    facts: list[_Fact]


@dataclass(frozen=True)
class _Leak:
    temperature: Number
    top_p: Number
    k: Whole
    source: Number | None
    retain: Number | None
    excess: Number | None
    low: Number | None
    high: Number | None
    false_leak: Number


@dataclass(frozen=True)
class _Sample:
    """What `summary.json` of sampled answers must hold."""

    source: str
    retain: list[str]
    samples: Whole
    leak: list[_Leak]


def read_worst(path: Path) -> dict[str, Any]:
    """Facts, attacks and headline of a worst case.

    Raises:
        InputError: the file holds something else.
    """
    found = checked(_Worst, json_object(path), path)
    return brief({"kind": "worst", "folder": str(path.parent), **asdict(found)})


def read_sample(path: Path) -> dict[str, Any]:
    """Leak@k of sampled answers.

    Raises:
        InputError: the file holds something else.
    """
    found = checked(_Sample, json_object(path), path)
    return brief({"kind": "sample", "folder": str(path.parent), **asdict(found)})
