"""Do results agree with the published tables? Each published number beside ours.

The tables lie in `expected/`, each with its source, the tolerance of each metric, and why it is
that wide. A tolerance is a judgement: the published files do not say how far two runs differ.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.meta.documents import read_sources
from lensaudit.meta.methods import em_rows
from lensaudit.meta.reading import (
    EPOCHS,
    Values,
    attack_aucs,
    joined,
    merged,
    read_values,
    with_s_mia,
)
from lensaudit.models.registry import load_registry
from lensaudit.results.reading import Number, checked

Found = Literal["equal", "differs", "not measured"]
JUDGED = ("faithfulness.json", "robustness-*.json")
"""What `meta faithfulness` and `meta robustness` write."""
PLACE = Path(__file__).with_name("expected")


@dataclass(frozen=True)
class Tolerance:
    """How far a number may lie from the published one."""

    within: Number
    why: str


@dataclass(frozen=True)
class ExpectedTable:
    """A published table."""

    name: str
    title: str
    source: str
    kind: Literal["values", "faithfulness", "quantize", "relearn"]
    """Values of models; or a judgement of metrics, by the name of its result."""
    metrics: list[str]
    tolerance: Mapping[str, Tolerance]
    rows: Mapping[str, list[Number | None]]
    """Model, or metric -> numbers in the order of `metrics`."""


@dataclass(frozen=True)
class CheckedNumber:
    """One published number beside what the results have."""

    table: str
    row: str
    metric: str
    published: float
    value: float | None
    within: float
    found: Found
    why: str
    """Why there is no value; else why the tolerance is that wide."""


def expected_tables() -> list[ExpectedTable]:
    """The published tables that come with the package."""
    return [checked(ExpectedTable, read_json(one), one) for one in sorted(PLACE.glob("*.json"))]


def check(results: Sequence[Path]) -> list[CheckedNumber]:
    """Every published number, with what the results have in its place.

    Args:
        results: as `meta aggregate` and `meta table` read them.

    Raises:
        InputError: no published row has a number here.
    """
    values, judged = _values(results), _judgements(results)
    rows = [
        one
        for table in expected_tables()
        for name, numbers in table.rows.items()
        for one in _compared(table, name, numbers, values, judged)
    ]
    if all(one.found == "not measured" for one in rows):
        named = ", ".join(table.name for table in expected_tables())
        raise InputError(
            f"{', '.join(map(str, results))}: no model and no metric of the published tables "
            f"({named}) has a number here; see `lensaudit models` for their names"
        )
    return rows


def _judgements(results: Sequence[Path]) -> Mapping[str, Mapping[str, float]]:
    """Kind of judgement -> metric -> number."""
    files = [one for path in results for one in _judged_in(path)]
    found = read_sources(files)
    areas = {key: one.auc for key, one in found.faithfulness.items() if one.auc is not None}
    stable = {
        attack: {key: one.value for key, one in rows.items() if one.value is not None}
        for attack, rows in found.robustness.items()
    }
    return {"faithfulness": areas, **stable}


def _judged_in(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.is_file():
        return [path] if any(path.match(one) for one in (*JUDGED, "meta_eval.json")) else []
    return [one for pattern in JUDGED for one in sorted(path.rglob(pattern))]


def _values(results: Sequence[Path]) -> Values:
    tables = []
    for path in results:
        judged = _judged_in(path)
        try:
            if path not in judged:
                tables += [read_values([path]), _erased(path)]
        except InputError:
            if not judged:  # a folder of judgements alone holds no values
                raise
    values = joined(tables)
    registry = load_registry()
    named = {
        name: (s and s.alias_of) or name for name in values.models for s in [registry.get(name)]
    }
    rows = merged([Values({named[name]: row}) for name, row in values.rows.items()]).rows
    values = Values(rows, {named[name]: why for name, why in values.to_do.items()})
    return with_s_mia(values, attack_aucs(values, "retain"))


def _erased(path: Path) -> Values:
    """What the method table has of each model beside its rate."""
    names = {"em_retention": "retention", "em_over": "over", "em_under": "under"}
    return Values(
        {
            one.model: {
                key: "no fact was scored" if value is None else value
                for key, name in names.items()
                for value in [getattr(one, name)]
            }
            for one in em_rows([path])
        }
    )


def _compared(
    table: ExpectedTable,
    name: str,
    numbers: Sequence[float | None],
    values: Values,
    judged: Mapping[str, Mapping[str, float]],
) -> Iterator[CheckedNumber]:
    for metric, published in zip(table.metrics, numbers, strict=True):
        if published is None:
            continue
        if table.kind == "values":
            # the run folders of UDS have the anchors once an epoch
            known = [name, *(f"{name}_{epoch}" for epoch in reversed(EPOCHS))]
            model = next((one for one in known if one in values.rows), name)
            value, why = values.value(model, metric), values.why_not(model, metric)
        else:
            value = judged.get(table.kind, {}).get(name, math.nan)
            why = f"no {table.kind} result"
        limit = table.tolerance[metric]
        lacks = math.isnan(value)
        near = "equal" if abs(value - published) <= limit.within + 1e-9 else "differs"
        yield CheckedNumber(
            table.name,
            name,
            metric,
            published,
            None if lacks else value,
            limit.within,
            "not measured" if lacks else near,
            why if lacks else limit.why,
        )
