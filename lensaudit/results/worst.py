"""The worst case on the page: which facts come out by attack, and what samples say."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lensaudit.results.reading import JsonObject, brief, json_object
from lensaudit.results.schema import AtLayer, Length, Number, Whole, checked


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
class _Bound:
    draws: Whole
    rate: Number | None


@dataclass(frozen=True)
class _ShownAttack:
    seconds: Length


@dataclass(frozen=True)
class _ShownWorst:
    """What a screen shows beside the above."""

    n: Whole
    unscored: dict[AtLayer, str]
    authors: Whole
    no_interval: str | None
    bound: _Bound
    attacks: list[_ShownAttack]


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


@dataclass(frozen=True)
class _ShownLeak:
    corrected: Number | None
    reason: str | None


@dataclass(frozen=True)
class _ShownSample:
    n: Whole
    unscored: dict[AtLayer, str]
    never_hit_bound: Number
    leak: list[_ShownLeak]


def shown_worst(path: Path) -> JsonObject:
    """The content of the `summary.json` of a worst case, with all that a screen shows of it.

    Raises:
        InputError: the file holds something else.
    """
    return _shown(path, _Worst, _ShownWorst)


def shown_sample(path: Path) -> JsonObject:
    """The same of sampled answers.

    Raises:
        InputError: the file holds something else.
    """
    return _shown(path, _Sample, _ShownSample)


def _shown(path: Path, *kinds: type) -> JsonObject:
    content = json_object(path)
    for kind in kinds:
        checked(kind, content, path, remedy="delete the folder and run the command again")
    return content


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
