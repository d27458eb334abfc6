"""Progress of a sweep, retries of failed units, and removal of what is no longer needed.

What is removed is named by the plan, which fits its own checksum: units, checkpoints. In their
folders every file must be one that a unit writes or a checkpoint has.
"""

import contextlib
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from rich.filesize import decimal as size

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import files_below, remove_files
from lensaudit.models.hub_files import WANTED
from lensaudit.partials import is_partial
from lensaudit.progress import Notice
from lensaudit.results.kinds import know, patch
from lensaudit.results.kinds.eval import LOGS
from lensaudit.results.manifest import PARTS, signed_object
from lensaudit.results.planned import RESULT
from lensaudit.results.run_log import SUMMARIES, is_kept
from lensaudit.sweep.attempts import (
    CHECKPOINT,
    REGISTRY,
    holder,
    set_back,
    states_of,
    strangers,
)
from lensaudit.sweep.plan import Sweep, Unit, is_id
from lensaudit.sweep.removal import check_below, check_unlinked
from lensaudit.sweep.weights import folder_name

_WRITTEN = {*patch.FILES, *know.FILES, know.PERSONS, *LOGS, *SUMMARIES}
"""What `eval`, `patch` and `know` write, beside what says of itself that it is ours."""
_ATTACKED = re.compile(r"losses\.csv|errors\.csv|training-\d{8}\.safetensors|training\.json")
"""What attacks write beside a checkpoint."""
_SUBMITTED = re.compile(
    r"slurm/(?:[0-9a-f]{16}/)?(?:[\w-]+_(?:submitted|result)\.pkl|[\w-]+_log\.(?:out|err)"
    r"|[\w-]+_submission\.sh|submission_file_[\w-]+\.sh)"
)
"""What submitit writes, in a folder a run; it used to be one for all."""
_TRASH = re.compile(r"(.+?)(?:\.partial)?-[0-9a-f]{8}")
_JOURNAL = ("journal.json", "journal.lock", "download.lock")
Ours = Callable[[Path], bool]


def retry(sweep: Sweep, names: Sequence[str] = (), *, redo: bool = False) -> list[Unit]:
    """Let failed units be tried again; the units that were set back.

    Args:
        sweep: in its folder.
        names: only units of these models or ids; all failed ones by default.
        redo: finished units of `names` too; their results are removed.

    Raises:
        InputError: a name is not in the plan, `redo` without names, a result's folder holds a file
            of others: it stays; or there is a link where a run writes.
    """
    check_unlinked(sweep.root)
    if redo and not names:
        raise InputError("--redo computes finished units again: name their models")
    states = states_of(sweep)
    known = {one.unit.target for one in states} | sweep.by_id.keys()
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{unknown[0]!r} is neither a model nor a unit of this plan")
    chosen = [s for s in states if not names or {s.unit.target, s.unit.id} & set(names)]
    chosen = [s for s in chosen if s.name == "failed" or (redo and s.name == "done")]
    done = [sweep.unit(state.unit.id) for state in chosen if state.name == "done"]
    remove(sweep, {unit: files_below(unit, _of_unit(unit)) for unit in done})
    for state in chosen:
        set_back(sweep.attempts(state.unit.id))
    return [state.unit for state in chosen]


def garbage(sweep: Sweep, *, others: bool, report: Notice) -> dict[Path, Sequence[Path]]:
    """Leftovers of finished units and dead workers, nothing that is in use; the files of each.

    Of each leftover that stays `report` is told what of it is not ours.
    """
    found: dict[Path, Sequence[Path]] = {}
    for path, ours in _leftovers(sweep, others=others):
        try:
            if path.is_symlink():
                raise InputError(f"{path}: is a link, and lensaudit makes none; it stays")
            if not path.is_dir() and not ours(path):
                raise InputError(f"{path}: lensaudit has no record of it; it stays as it is")
            found[path] = files_below(path, ours) if path.is_dir() else [path]
        except LensAuditError as error:
            report(str(error))
    return found


def remove(sweep: Sweep, found: Mapping[Path, Sequence[Path]]) -> int:
    """Remove leftovers of a sweep file by file; how many bytes that freed.

    Raises:
        InputError: one lies elsewhere; it stays.
    """
    freed = 0
    for path, files in found.items():
        check_below(sweep.root, path)
        freed += sum(one.lstat().st_size for one in files)
        remove_files(path, files)
    return freed


def _leftovers(sweep: Sweep, *, others: bool) -> Iterator[tuple[Path, Ours]]:
    """Leftovers of finished units and dead workers, each with the files that it may hold."""
    root, states = sweep.root, states_of(sweep)
    idle = {state.unit.id for state in states if state.name != "running"}
    done = {state.unit.id for state in states if state.name == "done"}
    all_done = len(done) == len(states)
    for path in sorted(root.glob("claims/*")):
        # a claim or its lock, of a unit nobody works on
        if path.stem in idle and holder(path.with_suffix(".json")) is None:
            yield path, lambda path: path.suffix in (".json", ".lock")
    for path in sorted(root.glob("work/*")):
        if path.name in done or (others and sweep.is_other(path.name)):
            yield path, partial(_is_of_work, path)
    # checkpoints that were on their way out, or all, where no unit needs one any more
    fetched = partial(_is_fetched, sweep.weights, {folder_name(one) for one in sweep.targets})
    yield from ((path, fetched) for path in sorted(root.glob("weights/trash/*")))
    if all_done:
        here = set(root.glob("weights/*")) - {sweep.weights / "trash"}
        yield from ((path, fetched) for path in sorted(here))
        yield from ((path, partial(_is_submitted, root)) for path in sorted(root.glob("slurm/*")))
    for unit in map(sweep.unit, strangers(sweep) if others else ()):
        yield unit, _of_unit(unit)


def _is_fetched(weights: Path, names: Set[str], path: Path) -> bool:
    """Whether a file is of a fetched checkpoint, or of the list of these."""
    below = path.relative_to(weights).parts
    if below[0] == "trash":
        gone = _TRASH.fullmatch(below[1])
        below = (gone[1] if gone else "", *below[2:])
    if below[0].removesuffix(".partial") not in names:
        return len(below) == 1 and below[0] in _JOURNAL
    return below[1:3] == (".cache", "huggingface") or (len(below) == 2 and _is_wanted(path))


def _is_wanted(path: Path) -> bool:
    """Whether a file has a name that is fetched of a checkpoint."""
    return any(fnmatchcase(path.name, pattern) for pattern in WANTED)


def _is_of_work(work: Path, path: Path) -> bool:
    """Does a unit write it while it is worked on?"""
    kind = path.relative_to(work).parts[0]
    if not is_id(work.name) or is_partial(path):
        return is_id(work.name)
    if kind in PARTS:
        return path.name in _WRITTEN or is_kept(path)
    if kind == CHECKPOINT:
        return _ATTACKED.fullmatch(path.name) is not None or _is_wanted(path)
    return kind in (RESULT, REGISTRY)


def _is_submitted(root: Path, path: Path) -> bool:
    return _SUBMITTED.fullmatch(path.relative_to(root).as_posix()) is not None


def _of_unit(unit: Path) -> Ours:
    """Whether the result of a unit names a file, or is that file."""
    try:
        named = signed_object(unit / RESULT).get("files") if is_id(unit.name) else None
    except InputError:
        named = None
    names = {RESULT, *named} if isinstance(named, Mapping) else set[str]()
    return lambda path: path.relative_to(unit).as_posix() in names


def status_of(sweep: Sweep) -> dict[str, Any]:
    """Counts, times and states of all units, as plain JSON."""
    states = states_of(sweep)
    n = Counter(one.name for one in states)
    seconds = [float(one.result["seconds"]) for one in states if one.result]
    typical = statistics.median(seconds) if seconds else None
    left = n["to do"] + n["running"]
    return {
        "schema": 1,
        "plan": sweep.hash,
        "n_units": len(states),
        "done": n["done"],
        "running": n["running"],
        "failed": n["failed"],
        "to_do": n["to do"],
        "seconds_per_unit": typical,
        "eta_s": typical * left / max(1, n["running"]) if typical is not None and left else None,
        "weights_bytes": folder_bytes(sweep, "weights"),
        "activations_bytes": folder_bytes(sweep, "activations"),
        "other_results": len(strangers(sweep)),
        "units": [
            {
                "id": one.unit.id,
                "model": one.unit.target,
                "variant": one.unit.variant,
                "state": one.name,
                "n_attempts": one.n_attempts,
                "n_killed": one.n_killed,
                "worker": one.worker,
                "failure": one.failure and asdict(one.failure),
                "seconds": one.result["seconds"] if one.result else None,
            }
            for one in states
        ],
    }


def folder_bytes(sweep: Sweep, name: str) -> int:
    """Bytes of the files under a folder of the sweep; what vanishes meanwhile counts as nothing."""
    total = 0
    for folder, _, names in os.walk(sweep.root / name):
        for file in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, file)).st_size
    return total


def line_of(status: dict[str, Any]) -> str:
    """`done 112/150 · running 4 · failed 2 (1 permanent) · 37 s/unit · ETA 6 min …`."""
    parts = [f"done {status['done']}/{status['n_units']}", f"running {status['running']}"]
    kinds = Counter(row["failure"]["kind"] for row in status["units"] if row["state"] == "failed")
    if kinds:
        counted = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        parts.append(f"failed {kinds.total()} ({counted})")
    if status["seconds_per_unit"] is not None:
        parts.append(f"{status['seconds_per_unit']:.0f} s/unit")
    if status["eta_s"] is not None:
        parts.append(f"ETA {duration(status['eta_s'])}")
    parts.append(f"weights {size(status['weights_bytes'])}")
    parts.append(f"caches {size(status['activations_bytes'])}")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Seconds in the largest unit that says enough.

    >>> duration(50.0), duration(400.0), duration(9000.0)
    ('50 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def problem_lines(status: dict[str, Any], limit: int | None = None) -> list[str]:
    """One line per unit that failed, and per unit that will be tried again after a failure."""
    rows: Sequence[dict[str, Any]] = [row for row in status["units"] if row["failure"]]
    return [
        f"{row['state']}: {row['model']} {row['variant']}: {row['failure']['kind']}: "
        f"{row['failure']['reason']}"
        for row in rows[:limit]
    ]
