"""What a unit came to: its values by metric, read from the records that its commands wrote."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.results.kinds.eval import MetricResult
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.locate import Found, locate
from lensaudit.results.planned import PARTS
from lensaudit.scores.estimate import Estimate

LENS = "logit_lens"


@dataclass(frozen=True)
class UnitValue:
    """A number of a unit, with its limits, or the reason why there is none."""

    found: Estimate
    n_unscored: int
    high_means: str | None
    """`knows` or `forgot`; None where no manifest says."""
    family: str

    @property
    def value(self) -> float | None:
        """The number; None where there is none."""
        return self.found.value

    @property
    def columns(self) -> dict[str, Any]:
        """The value as a row of the table."""
        found = self.found
        return {
            "value": found.value,
            "low": found.low,
            "high": found.high,
            "n_scored": found.n or 0,
            "n_unscored": self.n_unscored,
            "reason": found.why if found.value is None else None,
            "high_means": self.high_means,
            "family": self.family,
        }


Values = Mapping[str, UnitValue]
"""By metric."""


def results_in(folder: Path) -> list[Found]:
    """The results that a unit is made of; `folder` is that of the unit, finished or at work."""
    return locate([folder / part for part in PARTS if (folder / part).is_dir()])[0]


def values_in(folder: Path, not_asked: str | None) -> Values:
    """The values of a unit in its folder, see `values_of`."""
    return values_of(results_in(folder), not_asked)


def values_of(results: Iterable[Found], not_asked: str | None) -> Values:
    """The values of a unit, by metric.

    Args:
        results: of the unit.
        not_asked: why nobody was asked who has what; None where it was, or is no part of the plan.

    Raises:
        InputError: a file is missing, or was changed since it was written.
    """
    records = {one.kind: one.record for one in results}
    found: dict[str, UnitValue] = {}
    if "eval" in records:
        found |= {name: _said(one) for name, one in sorted(records["eval"].entries.items())}
    if not_asked is not None or "know" in records:
        found |= _association(records.get("know", not_asked))
    if "patch" in records:
        found |= _depths(records["patch"])
    return found


def _said(entry: MetricResult) -> UnitValue:
    """A metric of an evaluation, as a value of the unit."""
    found = Estimate.within(
        entry.value, entry.ends, n=entry.n_scored, why=entry.reason or "no value"
    )
    return UnitValue(found, entry.n_unscored, entry.high_means, entry.family)


def _association(known: KnowRecord | str) -> Iterator[tuple[str, UnitValue]]:
    """P of the assignment test and bits per fact; the reason where they were not asked."""
    unknown = Estimate(None, n=0, why="no model that never knew was asked: no prior")
    p, bits, unscored = unknown, unknown, 0
    if isinstance(known, str):
        p = bits = replace(unknown, why=known)
    else:
        unscored = len(known.unscored)
        p, mean = Estimate(known.p, n=known.n), known.bits or unknown
        bits = replace(mean, n=known.n, why=unknown.why)
    yield "assignment", UnitValue(p, unscored, "forgot", "association")
    yield "bits", UnitValue(bits, unscored, "knows", "association")


def _depths(summary: PatchSummary) -> Iterator[tuple[str, UnitValue]]:
    """Logit Lens depth, depth on facts to keep and selectivity, where asked."""
    if summary.lens_per_layer:
        n = summary.lens_n_scored
        depth = Estimate.within(summary.lens, summary.lens_ci95, n=n)
        yield LENS, UnitValue(depth, summary.n - n, "forgot", "depth")
    for name, one in summary.collateral.items():
        deeper, n = one.selectivity, one.n_scored
        for key, value, ends in (
            ("collateral", one.depth, one.ci95),
            ("selectivity", deeper["value"], deeper["ci95"]),
        ):
            depth = Estimate.within(value, ends, n=n, why="no fact could be scored")
            yield f"{key}_{name}", UnitValue(depth, one.n - n, "forgot", "depth")
