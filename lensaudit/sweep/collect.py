"""All finished units as one table, and as the folders that `meta` and `report` read.

results/table.csv, table.json, table.parquet   one row per unit and metric
results/verdicts.json                           what may be said of each model, by variant
results/<variant>/<model>/{eval,patch,know}     as these commands leave them
results/<variant>/to_do.json                    models without a result, and why
results/collected.json                          how many planned units each number rests on
results/manifest.json                           last of all: the key of what was collected, and the
                                                hash of every file
"""

import importlib.util
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, PartialError, VerificationError, shortened
from lensaudit.files import (
    files_below,
    make_folder,
    os_errors,
    remove_files,
    write_csv,
    write_json,
)
from lensaudit.partials import is_partial
from lensaudit.progress import Notice, unheard
from lensaudit.results.integrity import answered_for, misfits
from lensaudit.results.locate import COLLECTED, Found
from lensaudit.results.manifest import MANIFEST, code_digest, manifest, signed
from lensaudit.results.owner import check_free, mark_in
from lensaudit.results.planned import PARTS, RESULT, TO_DO
from lensaudit.results.reading import json_object, part
from lensaudit.results.run_folder import begin, finished, seal, taken_as_it_is
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.sweep.attempts import (
    UnitState,
    states_of,
    strangers,
    why_missing,
)
from lensaudit.sweep.plan import Sweep, Unit, file_name
from lensaudit.sweep.values import Values, results_in, values_of
from lensaudit.text import digest
from lensaudit.turns import in_turn
from lensaudit.verdict.collect import Verdicts, keeps_document, kept
from lensaudit.verdict.decide import Verdict
from lensaudit.verdict.views import Calibration, read_calibration

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
    "path",
)
COMMAND = "sweep collect"
VERDICTS = "verdicts.json"
_AT_THE_TOP = (COLLECTED, VERDICTS, "table.csv", "table.json", "table.parquet")
TableRow = Mapping[str, Any]
"""Column -> value."""
Results = Mapping[Unit, Mapping[str, Any]]
"""Finished unit -> what its result says of it."""
Measured = Mapping[Unit, Values]
"""Finished unit -> its values."""
Words = Mapping[Unit, Sequence[Verdict]]
"""Finished unit -> what may be said of its model; nothing of an anchor."""
_SHOWN = 5


def collect(
    sweep: Sweep,
    out: Path | None = None,
    *,
    allow_missing: bool = False,
    notice: Notice = unheard,
) -> Path:
    """Write the table of all numbers and the folders that `meta` and `report` read; where they are.

    Where the folder holds them already, it stays as it is. Another process that collects there is
    waited for, and what it made is found.

    Args:
        sweep: in its folder.
        out: where to; the sweep's `results/` by default.
        allow_missing: go on where planned units are not done.
        notice: told what a reader of the table has to know, and what is missing.

    Raises:
        InputError: the folder holds files that no collection wrote where one writes; names them.
        PartialError: planned units are not done; names them.
        VerificationError: a finished unit's files were changed.
    """
    folder = out or sweep.root / "results"

    def turn() -> AbstractContextManager[bool]:
        return in_turn(folder, lambda: notice(f"{folder}: another process collects there"))

    with turn():  # while one is replaced by another, the folder is nobody's
        check_free(folder, COMMAND, _AT_THE_TOP)
    states = states_of(sweep)
    missing = {one.unit.label: why_missing(one) for one in states if one.result is None}
    if missing and not allow_missing:
        named = shortened([f"{label}: {why}" for label, why in missing.items()], _SHOWN)
        raise PartialError(
            f"{len(missing)} of {len(states)} planned units have no result: {named}\n"
            "run the sweep again, or collect what is there with --allow-missing"
        )
    done = _finished(sweep, states)
    make_folder(folder)
    with turn():
        _collect(sweep, states, done, missing, folder, notice)
    for line in (*_notes(sweep, done), *(f"missing: {one}: {why}" for one, why in missing.items())):
        notice(line)
    return folder


def _collect(
    sweep: Sweep,
    states: Sequence[UnitState],
    done: Results,
    missing: Mapping[str, str],
    folder: Path,
    notice: Notice,
) -> None:
    started, with_pandas = time.monotonic(), importlib.util.find_spec("pyarrow") is not None
    # a unit's result holds the hashes of its records, from which all numbers follow
    of_units = {unit.id: dict(result) for unit, result in done.items()}
    key = digest([sweep.hash, missing, of_units, with_pandas, code_digest()])
    variants = _variants(states)
    if _is_there(folder, key, variants):
        notice(taken_as_it_is(folder))
        return
    values, words = dict[Unit, Values](), dict[Unit, list[Verdict]]()
    nulls = read_calibration()
    for unit, one in done.items():  # the records of one at a time
        results = results_in(sweep.unit(unit.id))
        values[unit] = values_of(results, one["not_asked"])
        words[unit] = _words_of(results, nulls)
    # an earlier collection goes: what is here belongs to one plan
    parts = _places(sweep, done, folder).items()
    new = {to / one.relative_to(source) for source, to in parts for one in source.rglob("*")}
    new |= {folder / variant / TO_DO for variant in variants}
    for place, files in _earlier(folder, variants, new).items():
        remove_files(place, files)
    begin(folder, key, COMMAND)
    _write(sweep, states, done, values, words, missing, folder)
    made = manifest(
        COMMAND,
        kind="collection",
        options={},
        inputs={"plan": sweep.hash},
        device="none",
        started=started,
    )
    seal(folder, made, key=key, files=_files(folder, variants))


def _is_there(folder: Path, key: str, variants: Iterable[str]) -> bool:
    """Whether a folder holds a collection of this key, with no file changed or added."""
    if not finished(folder, key, COMMAND):
        return False
    return _files(folder, variants) <= part(json_object(folder / MANIFEST), "files").keys()


def _variants(states: Iterable[UnitState]) -> list[str]:
    return [*dict.fromkeys(one.unit.variant for one in states)]


def _files(folder: Path, variants: Iterable[str]) -> set[str]:
    """Names of all files of a collection below its folder."""
    found = {folder / name for name in _AT_THE_TOP if (folder / name).is_file()}
    for variant in variants:
        found |= {path for path in (folder / variant).rglob("*") if path.is_file()}
    return {path.relative_to(folder).as_posix() for path in found}


def _earlier(folder: Path, variants: Iterable[str], new: Iterable[Path]) -> dict[Path, list[Path]]:
    """Folder of a variant -> the files in it, which earlier collections wrote.

    Args:
        folder: of the collection.
        variants: that are collected now.
        new: files that are written now; a collection that was killed has written some of them.

    Raises:
        InputError: names what else lies in the folder of a variant; nothing was removed.
    """
    named = {*new} if mark_in(folder) else set[Path]()
    with suppress(InputError):  # there is none, or it was edited
        named |= {one for one in answered_for(folder / MANIFEST) if one.is_relative_to(folder)}
    inner = {folder / one.relative_to(folder).parts[0] for one in named if one.parent != folder}
    places = sorted(inner | {folder / one for one in variants})
    if link := next((one for one in places if one.is_symlink()), None):
        raise InputError(f"{link}: is a link, and lensaudit makes none; name another --out")
    return {
        place: files_below(place, lambda path: path in named or is_partial(path))
        for place in places
        if place.is_dir()
    }


def _write(
    sweep: Sweep,
    states: Sequence[UnitState],
    done: Results,
    values: Measured,
    words: Words,
    missing: Mapping[str, str],
    folder: Path,
) -> None:
    rows = [row for unit in done for row in table_rows(sweep, unit, done[unit], values[unit])]
    counted = summary(sweep, states, rows, missing) | {"keeps": keeps(sweep, values)}
    for name in _AT_THE_TOP:
        (folder / name).unlink(missing_ok=True)
    _folders(sweep, done, folder)
    for variant in _variants(states):
        own = [one for one in states if one.unit.variant == variant and one.result is None]
        to_do = {one.unit.target: why_missing(one) for one in own}
        write_json(make_folder(folder / variant) / TO_DO, to_do)
    _table(folder, rows)
    write_json(folder / VERDICTS, judged(_homes(sweep, done, folder), words))
    write_json(folder / COLLECTED, signed(counted))


def _finished(sweep: Sweep, states: Sequence[UnitState]) -> Results:
    """The results of finished units, whose files are as they were written."""
    done = {one.unit: one.result for one in states if one.result is not None}
    for unit in done:
        if bad := misfits(sweep.unit(unit.id), name=RESULT):
            raise VerificationError(
                f"{unit.label}: {sweep.unit(unit.id)}: {bad[0]}; `lensaudit sweep retry --redo` "
                "computes the unit again"
            )
    return done


def _notes(sweep: Sweep, done: Results) -> Iterator[str]:
    """What a reader of the table has to know."""
    for column in ("dtype", "device"):
        kinds = sorted({str(result[column]) for result in done.values()})
        if len(kinds) > 1:
            yield f"units were measured with different {column}: {', '.join(kinds)}"
    for unit, result in done.items():
        if (remark := result.get("remark")) is not None:
            yield f"{unit.label}: {remark.partition('; ')[0]}"  # no option of a sweep
    if others := strangers(sweep):
        yield (
            f"{len(others)} results of another plan are not collected; "
            "`lensaudit sweep gc --others` removes them"
        )


def keeps(sweep: Sweep, measured: Measured) -> dict[str, Any]:
    """What every model but the anchors keeps beside `full`: all were asked the same rows."""
    values = {
        unit: {name: one.value for name, one in found.items()} for unit, found in measured.items()
    }
    retain, full = sweep.anchor_units()
    found = {
        unit.label: keeps_document(kept(own, values.get(full, {})))
        for unit, own in values.items()
        if unit not in (full, retain)
    }
    return {label: kept_rows for label, kept_rows in found.items() if kept_rows}


def judged(homes: Mapping[Unit, Path], words: Words) -> list[dict[str, Any]]:
    """Verdicts of the models of a collection, in the order of their folders."""
    return [
        {"variant": unit.variant, "model": unit.target} | asdict(word)
        for unit, _ in sorted(homes.items(), key=lambda one: one[1])
        for word in words[unit]
    ]


def _words_of(results: Sequence[Found], nulls: Calibration) -> list[Verdict]:
    """The verdict of a unit's model by its own results alone; none of an anchor."""
    found = Verdicts(nulls)
    if any(one.kind in ("patch", COUNTERFACTUAL) for one in results):
        for one in results:
            found.take(one)
    return [model.verdict for model in found.models if model.measured]


def table_rows(
    sweep: Sweep, unit: Unit, result: Mapping[str, Any], values: Values
) -> Iterator[TableRow]:
    """One row per metric of a unit, in the order of `COLUMNS`."""
    of_unit = {key: result.get(key) for key in ("role", "method", "weights", "dtype", "device")}
    of_unit |= {"model": unit.target, "variant": unit.variant, "unit": unit.id}
    of_unit |= {"path": sweep.by_name[unit.target].path}
    for metric, value in values.items():
        row = {**of_unit, **value.columns, "metric": metric}
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


def _places(sweep: Sweep, done: Iterable[Unit], folder: Path) -> dict[Path, Path]:
    """Folder of a part of a unit -> where it is collected."""
    return {
        source: home / part
        for unit, home in _homes(sweep, done, folder).items()
        for part in PARTS
        if (source := sweep.unit(unit.id) / part).is_dir()
    }


def _homes(sweep: Sweep, done: Iterable[Unit], folder: Path) -> dict[Unit, Path]:
    """Unit -> the folder in which its parts are collected."""
    called = {unit: file_name(unit.target, 180) for unit in done}
    names = Counter(file_name(target.name, 180) for target in sweep.targets)
    return {
        unit: folder / unit.variant / (name if names[name] == 1 else f"{name}-{unit.id[:8]}")
        for unit, name in called.items()
    }


def _folders(sweep: Sweep, done: Iterable[Unit], folder: Path) -> None:
    """Files of units, as links where the disk can: a copy of what is never changed is waste."""
    for source, to in _places(sweep, done, folder).items():
        for one in sorted(path for path in source.rglob("*") if path.is_file()):
            _link(one, to / one.relative_to(source))


def _link(source: Path, to: Path) -> None:
    with os_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, to)
        except OSError:  # another disk, or one without links
            shutil.copy2(source, to)


def _table(folder: Path, rows: Sequence[TableRow]) -> None:
    write_csv(folder / "table.csv", COLUMNS, [[*row.values()] for row in rows])
    write_json(folder / "table.json", rows)
    if importlib.util.find_spec("pyarrow") is not None:
        import pandas

        partial = folder / "table.parquet.partial"
        pandas.DataFrame(rows, columns=list(COLUMNS)).to_parquet(partial, index=False)
        os.replace(partial, folder / "table.parquet")
