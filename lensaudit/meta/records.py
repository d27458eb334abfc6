"""What `lensaudit meta faithfulness` and `meta robustness` write: the judgement of every metric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lensaudit.meta.judging import Faithfulness, Stability
from lensaudit.meta.settings import Attack
from lensaudit.results.integrity import check_result
from lensaudit.results.reading import Number, Record, Whole, read_as

SCHEMA = 1
"""Raised when a field changes its meaning."""


@dataclass(frozen=True, kw_only=True)
class FaithfulnessRecord:
    """`faithfulness.json`."""

    kind: str = "faithfulness"
    schema: Whole = SCHEMA
    pools: Mapping[str, list[str]] = field(default_factory=dict)
    """`knows` and `forgot` -> models."""
    to_do: Mapping[str, str] = field(default_factory=dict)
    """Model -> why it was not measured yet."""
    metrics: list[Faithfulness]
    values: Mapping[str, Mapping[str, Number | None]] = field(default_factory=dict)
    """Model -> metric -> its raw value."""


@dataclass(frozen=True, kw_only=True)
class RobustnessRecord:
    """`robustness-quantize.json` or `robustness-relearn.json`."""

    kind: str = "robustness"
    schema: Whole = SCHEMA
    attack: Attack
    form: str | None = None
    """The formula, see `judging`."""
    filter: str | None = None
    """By which the models of each metric were picked."""
    retain: str | None = None
    models: list[str] = field(default_factory=list)
    """Candidates."""
    common: list[str] = field(default_factory=list)
    """Models that every metric has."""
    metrics: list[Stability]


def read_judged(kind: type[Record], path: Path) -> Record:
    """A judgement, read back from its file.

    Raises:
        InputError: the file was changed, or holds something else.
    """
    check_result(path)
    return read_as(kind, path)
