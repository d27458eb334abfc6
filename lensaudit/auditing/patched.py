"""What patching found: the results of a run, as its folders hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from lensaudit.auditing.shown import Shown
from lensaudit.errors import InputError
from lensaudit.results.owners import COMPARISON
from lensaudit.results.patch_runs import read_shown
from lensaudit.results.reading import csv_rows
from lensaudit.settings import Score
from lensaudit.verdict.decide import Verdict
from lensaudit.verdict.depth import calibration_problem

VALUE: Mapping[Score, str] = {"uds": "uds", "lens": "lens", "em": "udr"}
"""Score -> what a summary calls its value."""
SUMMARY = "summary.json"


@dataclass(frozen=True)
class PatchResult(Shown):
    """What patching found of one model, and where it is."""

    source: str
    folder: Path
    """Holds manifest.json, summary.json, results.jsonl and layers.csv."""
    summary: Mapping[str, Any]
    """The content of summary.json."""

    @property
    def _run(self) -> tuple[str, Path, Mapping[str, Any]]:
        return self.source, self.folder, self.summary

    @property
    def score(self) -> Score:
        """What was computed."""
        return self.summary["score"]

    @property
    def value(self) -> float | None:
        """The score; None where no example could be scored: `reason` says why."""
        return self.summary[VALUE[self.score]]

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, 0 intact to 1 erased; None where there is none: see `reason`."""
        return self.value if self.score == "uds" else None

    @property
    def aligned(self) -> float | None:
        """UDS after a map to `full`'s basis: all there is of a source of another size; or None."""
        return self.summary.get("aligned", {}).get("uds")

    @property
    def found_nothing(self) -> bool:
        """Is there no depth at all, neither plain nor aligned?"""
        return self.value is None and self.aligned is None

    @property
    def verdict(self) -> Verdict:
        """What may be said of the model, and what decided it."""
        return Verdict(**self.summary["verdict"])

    @property
    def off(self) -> str | None:
        """What is wrong with the scale of this run; None where its depths may be read."""
        if self.uds is None and self.aligned is None:
            return None
        return calibration_problem(self.summary["calibration"])

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `value` by authors; None where there is none: `summary["ci95_why"]`."""
        ends = self.summary["ci95"]
        return None if ends is None else (ends[0], ends[1])

    @property
    def unscored(self) -> Mapping[int, str]:
        """Idx -> why this example has no score."""
        return {int(idx): why for idx, why in self.summary["unscored"].items()}

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        if self.uds is not None:
            return None
        if self.value is not None:
            return f"the score is {self.score}; UDS was not asked for"
        first = next(iter(self.unscored.values()), "")
        return f"no example could be scored ({first})"


@dataclass(frozen=True)
class Patched:
    """The results of one run."""

    results: tuple[PatchResult, ...]
    comparison: tuple[Sequence[Any], ...] = ()
    """Paired differences between the models, the rows of comparison.csv; of several only."""


def read_patched(folders: Mapping[str, Path]) -> Patched:
    """The results of a finished run.

    Args:
        folders: of each source; of several, beside their comparison if the score has one.

    Raises:
        InputError: a file is missing or damaged.
    """
    results = [PatchResult(name, one, read_shown(one / SUMMARY)) for name, one in folders.items()]
    table = next(iter(folders.values())).parent / COMPARISON
    if len(results) == 1 or results[0].score == "em":
        return Patched(tuple(results))
    try:
        rows = zip(combinations(folders, 2), csv_rows(table), strict=True)
        return Patched(tuple(results), tuple(_pair(names, row) for names, row in rows))
    except ValueError as error:
        raise InputError(f"{table}: holds other rows than pairs of these models") from error


def _pair(names: tuple[str, str], row: Mapping[str, str]) -> list[Any]:
    """A row of comparison.csv; names as they were given, which a table may spell otherwise."""
    *numbers, n, n_groups, why = list(row.values())[2:]
    return [*names, *(float(one) if one else "" for one in numbers), int(n), int(n_groups), why]
