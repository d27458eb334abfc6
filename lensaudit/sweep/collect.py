"""All finished units as one table, and as the folders that `meta` and `report` read.

results/table.csv, table.json, table.parquet   one row per unit and metric
results/collected.json                          how many planned units each number rests on
results/verdicts.json                           what may be said of each model, by variant
results/<variant>/<model>/{eval,patch,know}     as these commands leave them
results/<variant>/to_do.json                    models without a result, and why
"""

import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.errors import PartialError, VerificationError, shortened
from lensaudit.files import make_folder, os_error, remove_below, slug, write_csv, write_json
from lensaudit.progress import Notice, unheard
from lensaudit.results.records import misfits
from lensaudit.sweep.attempts import PARTS, RESULT, UnitState, check_values, states_of, strangers
from lensaudit.sweep.plan import Sweep, Unit
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.keeps import Keeps, keeps_document, kept

COLUMNS = (
    "model",
    "role",
    "method",
    "variant",
    "metric",
    "family",
    "high_means",
    "value",
    "low",
    "high",
    "n_scored",
    "n_unscored",
    "reason",
    "weights",
    "dtype",
    "device",
    "unit",
)
COLLECTED, VERDICTS = "collected.json", "verdicts.json"
TableRow = Mapping[str, Any]
"""Column -> value."""
_SHOWN = 5


def collect(
    sweep: Sweep,
    out: Path | None = None,
    *,
    allow_missing: bool = False,
    notice: Notice = unheard,
) -> Path:
    """Write the table of all numbers and the folders that `meta` and `report` read; where they are.

    Args:
        sweep: in its folder.
        out: where to; the sweep's `results/` by default.
        allow_missing: go on where planned units are not done.
        notice: told what a reader of the table has to know, and what is missing.

    Raises:
        PartialError: planned units are not done; names them.
        InputError: a value lies outside its range or its own interval.
        VerificationError: a finished unit's files were changed.
    """
    states = states_of(sweep)
    missing = {one.unit.label: why_missing(one) for one in states if one.result is None}
    if missing and not allow_missing:
        named = shortened([f"{label}: {why}" for label, why in missing.items()], _SHOWN)
        raise PartialError(
            f"{len(missing)} of {len(states)} planned units have no result: {named}\n"
            "run the sweep again, or collect what is there with --allow-missing"
        )
    done = [one for one in states if one.result is not None]
    for one in done:
        if bad := misfits(sweep.unit(one.unit.id), name=RESULT):
            raise VerificationError(
                f"{one.unit.label}: {sweep.unit(one.unit.id)}: {bad[0]}; `lensaudit sweep retry "
                "--redo` computes the unit again"
            )
        check_values(one.unit, one.result or {})
    folder = make_folder(out or sweep.results)
    _clear(folder)
    _folders(sweep, done, folder)
    _to_do(states, folder)
    rows = [row for one in done for row in table_rows(one.unit, one.result or {})]
    _table(folder, rows)
    told = {label: keeps_document(one) for label, one in kept_of_units(sweep, done).items()}
    write_json(folder / COLLECTED, summary(sweep, states, rows, missing) | {"keeps": told})
    write_json(folder / VERDICTS, judged(folder))
    for line in (*notes(sweep, rows), *(f"missing: {one}: {why}" for one, why in missing.items())):
        notice(line)
    return folder


def kept_of_units(sweep: Sweep, done: Sequence[UnitState]) -> dict[str, Sequence[Keeps]]:
    """What every model but the anchors keeps beside `full`: all were asked the same rows."""
    values = {
        one.unit: {name: value["value"] for name, value in (one.result or {})["values"].items()}
        for one in done
    }
    base = {unit.target: own for unit, own in values.items() if unit.variant == "base"}
    full, anchors = base.get(sweep.anchors["full"], {}), sweep.anchors.values()
    found = {
        unit.label: kept(own, full)
        for unit, own in values.items()
        if unit.variant != "base" or unit.target not in anchors
    }
    return {label: keeps for label, keeps in found.items() if keeps}


def judged(folder: Path) -> list[dict[str, Any]]:
    """What may be said of the models of a collection, each by its own results alone."""
    found = {one.parent for one in folder.glob("*/*/patch/summary.json")}
    return [
        {"variant": place.parts[-3], "model": place.parts[-2]} | model.verdict.document()
        for place in sorted(found)
        for model in verdicts([place.parent]).models
        if model.measured and not model.is_anchor
    ]


def why_missing(state: UnitState) -> str:
    """Reason why a planned unit has no result."""
    if state.name == "running":
        return f"running ({state.worker})"
    if state.failure is None:
        return "not begun"
    return f"{state.failure.kind}: {state.failure.reason}"


def table_rows(unit: Unit, result: Mapping[str, Any]) -> Iterator[TableRow]:
    """One row per metric of a unit, in the order of `COLUMNS`."""
    of_unit = {key: result.get(key) for key in ("role", "method", "weights", "dtype", "device")}
    for metric, value in result["values"].items():
        row = {
            **of_unit,
            **value,
            "model": unit.target,
            "variant": unit.variant,
            "metric": metric,
            "unit": unit.id,
        }
        yield {column: row[column] for column in COLUMNS}


def summary(
    sweep: Sweep,
    states: Sequence[UnitState],
    rows: Sequence[TableRow],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """How many of the planned units are behind each metric of each variant."""
    planned = Counter(one.unit.variant for one in states)
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        counts = found.setdefault(row["variant"], {}).setdefault(
            row["metric"], {"n_values": 0, "n_planned": planned[row["variant"]]}
        )
        counts["n_values"] += row["value"] is not None
    return {
        "plan": sweep.hash,
        "n_planned": len(states),
        "n_done": len(states) - len(missing),
        "missing": dict(missing),
        "metrics": found,
    }


def notes(sweep: Sweep, rows: Sequence[TableRow]) -> tuple[str, ...]:
    """What a reader of the table has to know."""
    said = []
    for column in ("dtype", "device"):
        kinds = sorted({str(row[column]) for row in rows})
        if len(kinds) > 1:
            said.append(f"units were measured with different {column}: {', '.join(kinds)}")
    if others := strangers(sweep):
        said.append(
            f"{len(others)} results of another plan are not collected; "
            "`lensaudit sweep gc --others` removes them"
        )
    return tuple(said)


def _clear(folder: Path) -> None:
    """Take away an earlier collection: what is here belongs to one plan."""
    for name in (COLLECTED, VERDICTS, "table.csv", "table.json", "table.parquet"):
        (folder / name).unlink(missing_ok=True)
    for variant in folder.iterdir():
        if variant.is_dir() and (variant / "to_do.json").is_file():
            remove_below(folder, variant)


def _folders(sweep: Sweep, done: Sequence[UnitState], folder: Path) -> None:
    names = [slug(target.name) for target in sweep.targets]
    for state in done:
        unit = state.unit
        name = slug(unit.target)
        name = name if names.count(name) == 1 else f"{name}-{unit.id[:8]}"
        for part in PARTS:
            source = sweep.unit(unit.id) / part
            if source.is_dir():
                _copy(source, folder / unit.variant / name / part)


def _copy(source: Path, to: Path) -> None:
    """Files of a unit, as links where the disk can: a copy of what is never changed is waste."""
    try:
        shutil.copytree(source, to, copy_function=_link)
    except OSError as error:
        raise os_error(error, to) from error


def _link(source: str, to: str) -> str:
    try:
        os.link(source, to)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, to)
    return to


def _to_do(states: Sequence[UnitState], folder: Path) -> None:
    for variant in dict.fromkeys(one.unit.variant for one in states):
        missing = {
            one.unit.target: why_missing(one)
            for one in states
            if one.unit.variant == variant and one.result is None
        }
        write_json(make_folder(folder / variant) / "to_do.json", missing)


def _table(folder: Path, rows: Sequence[TableRow]) -> None:
    lines = [["" if v is None else v for v in row.values()] for row in rows]
    write_csv(folder / "table.csv", COLUMNS, lines)
    write_json(folder / "table.json", rows)
    if all(importlib.util.find_spec(name) is not None for name in ("pandas", "pyarrow")):
        import pandas

        partial = folder / "table.parquet.partial"
        pandas.DataFrame(rows, columns=list(COLUMNS)).to_parquet(partial, index=False)
        os.replace(partial, folder / "table.parquet")
