"""A finished run on one model: its folder, and the record of what it came to."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lensaudit.results.reading import document


@dataclass(frozen=True)
class RunResult:
    """What a run on one model came to, and where it is written."""

    source: str
    folder: Path
    """Holds manifest.json, summary.json and tables; of `effort`'s single model its log too."""
    record: Any
    """What it came to, as its kind of result has it."""

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json, to be read."""
        return self.record if isinstance(self.record, Mapping) else document(self.record)

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval by authors of the run's number; None where there is none, or no number."""
        ends = self.summary.get("ci95")
        return None if ends is None else (ends[0], ends[1])

    @property
    def unscored(self) -> Mapping[int, str]:
        """Idx -> why this example has no score."""
        return {int(idx): why for idx, why in self.summary.get("unscored", {}).items()}
