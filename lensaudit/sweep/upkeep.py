"""Set failed units back; remove what nobody needs any more."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.files import remove_below
from lensaudit.sweep.attempts import set_back
from lensaudit.sweep.claims import holder
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.plan import Plan, Unit
from lensaudit.sweep.state import states_of, strangers


def retry(
    layout: Layout, plan: Plan, names: Sequence[str] = (), *, redo: bool = False
) -> list[Unit]:
    """Let failed units be tried again; the units that were set back.

    Args:
        layout: the sweep.
        plan: its plan.
        names: only units of these models or ids; all failed ones by default.
        redo: finished units of `names` too; their results are removed.

    Raises:
        InputError: a name is not in the plan, or `redo` without names.
    """
    if redo and not names:
        raise InputError("--redo computes finished units again: name their models")
    states = states_of(layout, plan)
    known = {one.unit.target for one in states} | plan.by_id.keys()
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{unknown[0]!r} is neither a model nor a unit of this plan")
    chosen = [s for s in states if not names or {s.unit.target, s.unit.id} & set(names)]
    for state in chosen:
        if redo and state.name == "done":
            remove_below(layout.units, layout.unit(state.unit.id))
            set_back(layout.attempts(state.unit.id))
        elif state.name == "failed":
            set_back(layout.attempts(state.unit.id))
    return [s.unit for s in chosen if s.name == "failed" or (redo and s.name == "done")]


def garbage(layout: Layout, plan: Plan, *, others: bool = False) -> list[Path]:
    """What `gc` removes: leftovers of finished units and dead workers, nothing that is in use."""
    states = states_of(layout, plan)
    idle = {state.unit.id for state in states if state.name != "running"}
    done = {state.unit.id for state in states if state.name == "done"}
    found = [path for path in _children(layout.root / "claims") if _is_void(path, idle)]
    found += [path for path in _children(layout.root / "work") if path.name in done]
    found += _children(layout.weights / "trash")
    found += _children(layout.root / "slurm") if len(done) == len(states) else []
    if len(done) == len(states):
        found += [path for path in _children(layout.weights) if path.name != "trash"]
    if others:
        found += [layout.units / name for name in strangers(layout, plan)]
        known = plan.by_id
        found += [path for path in _children(layout.root / "work") if path.name not in known]
    return found


def remove(layout: Layout, paths: Iterable[Path]) -> int:
    """Remove files and folders of a sweep; how many bytes that freed."""
    freed = 0
    for path in paths:
        files = [path] if path.is_symlink() or path.is_file() else path.rglob("*")
        freed += sum(one.lstat().st_size for one in files if not one.is_symlink())
        remove_below(layout.root, path)
    return freed


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_void(claim: Path, idle: set[str]) -> bool:
    """A claim or its lock, of a unit nobody works on."""
    return claim.stem in idle and holder(claim.with_suffix(".json")) is None
