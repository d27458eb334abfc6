"""Checkpoint files: used where they are, or fetched into the sweep's own folder within a quota.

Every process of the sweep agrees through one journal, changed under a lock. The user's model cache
is read and never written. A checkpoint is removed when all its units are done or failed for good;
the anchors stay until the sweep is finished. What the Hub holds of a checkpoint is asked, fetched
and checked here too.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.filesize import decimal as size

from lensaudit.errors import InputError, LensAuditError, PartialError, TryAgainError, WorkError
from lensaudit.files import make_folder, os_errors, read_json, write_json
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.hub_files import UNWANTED, WANTED, asking
from lensaudit.models.registry import ModelSpec, resolve
from lensaudit.partials import is_running, process_name
from lensaudit.results.reading import Whole, checked_as
from lensaudit.sweep.attempts import locked, state_of
from lensaudit.sweep.plan import Sweep, Target
from lensaudit.sweep.removal import check_unlinked
from lensaudit.text import slug

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

POLL_S = 0.5
DEFAULT_CHECKPOINTS = 4
"""The quota where none is given, in units of the first checkpoint fetched: both anchors, the one
that is worked on, and the next."""
NO_QUOTA = 1 << 62
TIMEOUT_S = 30.0
THREADS = 4
"""Files of one checkpoint at once: hundreds of requests a minute are refused."""
Rows = dict[str, dict[str, Any]]


def spec_of(target: Target) -> ModelSpec:
    """The spec of a checkpoint on the Hub."""
    return ModelSpec(target.name, target.repo, target.revision, "unlearned", target.method)


def listing(target: Target) -> "ModelInfo":
    """A checkpoint on the Hub at one commit, asked of it; of its files those that are fetched.

    Raises:
        LensAuditError: there is no such repository, no access or no network.
    """
    from huggingface_hub import HfApi  # a third of a second, and nothing is fetched twice
    from huggingface_hub.utils import filter_repo_objects

    with asking(spec_of(target)):
        info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(
            target.repo, revision=target.revision, files_metadata=True, timeout=TIMEOUT_S
        )
    found = filter_repo_objects(
        info.siblings or [],
        allow_patterns=list(WANTED),
        ignore_patterns=list(UNWANTED),
        key=lambda one: one.rfilename,
    )
    info.siblings = list(found)
    return info


def bytes_of(there: "ModelInfo") -> int:
    """Size of all files of a listing."""
    return sum(one.size or 0 for one in there.siblings or ())


def download(target: Target, there: "ModelInfo", folder: Path) -> None:
    """Fetch the files of a listing into `folder`, and compare sizes and hashes with it.

    Raises:
        LensAuditError: it cannot be fetched; what is there is used by the next try.
        TryAgainError: a file is not what the Hub says it is; it is removed.
    """
    from huggingface_hub import snapshot_download

    folder.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(folder).free, bytes_of(there)
    if free < needed:
        raise TryAgainError(
            f"{target.name}: needs {size(needed)} in {folder.parent}, {size(free)} are free; free "
            "some and run again"
        )
    files = there.siblings or ()
    with asking(spec_of(target)):
        snapshot_download(
            target.repo,
            revision=there.sha,
            local_dir=folder,
            allow_patterns=[one.rfilename for one in files],
            max_workers=THREADS,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    for one in files:
        name, path = one.rfilename, folder / one.rfilename
        if not path.is_file():
            raise WorkError(f"{target.name}: {name} was not fetched")
        differs = path.stat().st_size != (one.size or 0)
        if not differs and one.lfs is not None:  # of small files the Hub names no SHA-256
            with path.open("rb") as stream:
                differs = hashlib.file_digest(stream, "sha256").hexdigest() != one.lfs.sha256
        if differs:
            path.unlink()
            raise TryAgainError(f"{target.name}: {name} is not the file the Hub names; run again")


def cached(target: Target) -> Path | None:
    """The folder of a checkpoint that is whole in the user's own cache; nothing is written."""
    from huggingface_hub import snapshot_download

    wanted = {"revision": target.revision, "allow_patterns": list(WANTED)}
    with contextlib.suppress(OSError, ValueError, InputError):
        folder = snapshot_download(target.repo, local_files_only=True, **wanted)
        open_checkpoint(resolve(folder, {}))
        return Path(folder)
    return None


@dataclass(frozen=True)
class Weights:
    """Fetched checkpoints of a sweep, within a quota."""

    sweep: Sweep
    quota_bytes: int | None = None
    offline: bool = False
    pause: Callable[[float], object] = time.sleep

    def obtain(self, target: Target, *, ahead: bool = False) -> Path | None:
        """The folder of a checkpoint; waits until there is room for it.

        Args:
            target: the checkpoint.
            ahead: fetched for later: nothing is removed to make room for it.

        Returns:
            None for a checkpoint that needs no fetching.

        Raises:
            InputError: it is larger than the quota, or may not be fetched.
            LensAuditError: it cannot be fetched.
        """
        if target.is_folder:
            return None
        own = self.sweep.weights / folder_name(target)
        there: ModelInfo | None = None
        while True:
            found = self._look(target, own, there, ahead)
            if found == "mine" and there is not None:
                self._fetched(target, there, own)
                there = None
            elif found != "wait":
                return own if found == "here" else None
            elif there is not None:
                self.pause(POLL_S)
            elif (folder := cached(target)) is not None:
                return folder
            else:
                there = self._listed(target)

    def _look(
        self, target: Target, own: Path, there: "ModelInfo | None", ahead: bool
    ) -> Literal["here", "needless", "mine", "wait"]:
        """Whether a checkpoint is here, and if not, whether this process may fetch it now."""
        with self._journal() as rows:
            row = rows.get(own.name)
            if row is not None and row["state"] == "ready" and own.is_dir():
                if not ahead:
                    row["users"] = sorted({*row["users"], process_name()})
                return "here"
            if ahead and not self._is_needed(target):
                return "needless"  # its worker was faster and is through
            if there is not None and self._reserved(rows, own.name, bytes_of(there), ahead):
                return "mine"
            return "wait"

    def release(self, target: Target) -> None:
        """This process needs a checkpoint no more; it goes when no unit needs it."""
        if target.is_folder:
            return
        name = folder_name(target)
        with self._journal() as rows:
            if row := rows.get(name):
                row["users"] = [one for one in row["users"] if one != process_name()]
                if not self._is_needed(target) and not _living(row["users"]):
                    self._drop(rows, name)

    def fetch(self, target: Target) -> None:
        """Fetch a checkpoint that is not here, beside all that is kept.

        Raises:
            InputError: the quota is too small.
            LensAuditError: it cannot be fetched.
        """
        if self.is_here(target):
            return
        n_bytes, used = bytes_of(self._listed(target)), self.used_bytes()
        if self.quota_bytes is not None and used + n_bytes > self.quota_bytes:
            raise self._too_small(n_bytes, self.quota_bytes, f"beside {size(used, precision=2)}")
        # ahead: nothing makes room for another, all of it is wanted
        self.obtain(target, ahead=True)

    def used_bytes(self) -> int:
        """What fetched checkpoints take, those under way included."""
        with self._journal() as rows:
            return sum(row["bytes"] for row in rows.values())

    def is_here(self, target: Target) -> bool:
        """Whether a checkpoint needs no fetching any more."""
        if target.is_folder:
            return True
        with self._journal() as rows:
            row = rows.get(folder_name(target), {})
        return row.get("state") == "ready" or cached(target) is not None

    def unused(self) -> int:
        """Checkpoints that were fetched ahead and wait for their worker."""
        with self._journal() as rows:
            return sum(not row["users"] for name, row in rows.items() if name not in self._pinned)

    @property
    def _pinned(self) -> set[str]:
        """Folders of the anchors, which stay until the sweep is finished."""
        return {folder_name(self.sweep.by_name[one]) for one in self.sweep.anchors.values()}

    @contextlib.contextmanager
    def _journal(self) -> Iterator[Rows]:
        """What is fetched, to be read and changed by one process at a time."""
        path = self.sweep.weights / "journal.json"
        if not path.parent.is_dir():
            make_folder(path.parent)
        with locked(path.with_suffix(".lock")):
            rows = read_json(path) if path.exists() else {}
            # names are folders of ours, so that nothing else is ever removed
            for name in checked_as(dict[str, _Fetched], rows, path):
                if slug(name, 180) != name:
                    raise InputError(f"{path}: {name[:60]!r} names no folder; remove this file")
            before = repr(rows)
            yield rows
            if repr(rows) != before:
                write_json(path, rows)

    def _listed(self, target: Target) -> "ModelInfo":
        if self.offline:
            raise InputError(
                f"{target.name}: its files are not here and --offline forbids to fetch them; run "
                "`lensaudit sweep fetch` where there is a network"
            )
        return listing(target)

    def _reserved(self, rows: Rows, name: str, n_bytes: int, ahead: bool) -> bool:
        """Reserve room for a checkpoint, if no process fetches it and there is room."""
        row = rows.get(name)
        if row is not None and row["state"] == "fetching" and _living(row["users"]):
            return False
        others = {key: one["bytes"] for key, one in rows.items() if key != name}
        quota = self.quota_bytes or DEFAULT_CHECKPOINTS * max([n_bytes, *others.values()])
        # what nobody works on makes room, the latest first: it was fetched too early
        for other in () if ahead else [key for key in reversed(others) if key not in self._pinned]:
            if sum(others.values()) + n_bytes > quota and not _living(rows[other]["users"]):
                self._drop(rows, other)
                others.pop(other)
        if sum(others.values()) + n_bytes > quota:
            kept = sum(others[key] for key in self._pinned & others.keys())
            if kept + n_bytes > quota:  # waiting would never end
                where = f"beside the anchors' {size(kept, precision=2)}"
                raise self._too_small(n_bytes, quota, where)
            return False
        rows[name] = {"state": "fetching", "bytes": n_bytes, "users": [process_name()]}
        return True

    def _too_small(self, n_bytes: int, quota: int, where: str) -> InputError:
        return InputError(
            f"the quota of {size(quota, precision=2)} has no room for {size(n_bytes, precision=2)} "
            f"{where}; give a larger --quota"
        )

    def _fetched(self, target: Target, there: "ModelInfo", own: Path) -> None:
        """Download into a folder of another name, which becomes the checkpoint's when checked."""
        partial, state = own.with_name(f"{own.name}.partial"), "fetching"
        try:
            # one download at a time: a server refuses who asks for everything at once
            with locked(self.sweep.weights / "download.lock"):
                download(target, there, partial)
            partial.rename(own)
            state = "ready"
        finally:
            with self._journal() as rows:
                # of one that failed the bytes stay reserved: the next try goes on with them
                rows[own.name] = {"state": state, "bytes": bytes_of(there), "users": []}

    def _drop(self, rows: Rows, name: str) -> None:
        """Remove a checkpoint: renamed first, so that nothing half-deleted looks complete."""
        trash = make_folder(self.sweep.weights / "trash")
        for folder in (self.sweep.weights / name, self.sweep.weights / f"{name}.partial"):
            gone = trash / f"{folder.name}-{os.urandom(4).hex()}"
            with os_errors(folder):
                if folder.exists():
                    os.rename(folder, gone)
            shutil.rmtree(gone, ignore_errors=True)
        rows.pop(name, None)

    def _is_needed(self, target: Target) -> bool:
        is_anchor = target.name in self.sweep.anchors.values()
        units = (one for one in self.sweep.units if is_anchor or one.target == target.name)
        return any(state_of(self.sweep, one).name in ("to do", "running") for one in units)


def folder_name(target: Target) -> str:
    """Folder that a checkpoint is fetched into; `.partial` is appended meanwhile."""
    return slug(f"{target.repo}--{target.revision}", 180)


@dataclass(frozen=True)
class _Fetched:
    """Row of the journal of fetched checkpoints."""

    state: Literal["fetching", "ready"]
    bytes: Whole
    users: list[str]
    """Processes that read it, or the one that fetches it."""


def _living(processes: Sequence[str]) -> bool:
    """Whether one of the processes is alive; those of another machine count as alive."""
    return any(is_running(one) is not False for one in processes)


def fetch_ahead(
    weights: Weights, targets: Sequence[Target], stop: Callable[[], bool], *, depth: int = 2
) -> None:
    """Fetch checkpoints in the order they are needed, a few ahead of the work.

    A failure is left to the worker that needs the checkpoint: there it is the unit's.
    """
    for target in targets:
        while not stop() and weights.unused() >= depth:
            weights.pause(POLL_S)
        if stop():
            return
        try:
            weights.obtain(target, ahead=True)
        except LensAuditError:
            continue


def bytes_to_fetch(sweep: Sweep, names: Iterable[str]) -> dict[str, int | None]:
    """Checkpoints that are not here, and their sizes; None where the Hub cannot be asked."""
    found: dict[str, int | None] = {}
    for name in names:
        target = sweep.by_name[name]
        if target.is_folder or cached(target) is not None:
            continue
        if (sweep.weights / "journal.json").exists() and Weights(sweep).is_here(target):
            continue
        try:
            found[name] = bytes_of(listing(target))
        except LensAuditError:
            # one answer is enough: without a network every question takes its time
            return {one: None for one in names if not sweep.by_name[one].is_folder}
    return found


def fetch_left(sweep: Sweep, quota_bytes: int | None, report: Callable[[str], None]) -> None:
    """Fetch the checkpoints of all units that are left.

    Raises:
        InputError: there is a link where a run writes.
        PartialError: names those that were not fetched, and why.
    """
    check_unlinked(sweep.root)
    left = [unit.target for unit in sweep.units if state_of(sweep, unit).name != "done"]
    names = [*dict.fromkeys([*sweep.anchors.values(), *left])] if left else []
    weights = Weights(sweep, NO_QUOTA if quota_bytes is None else quota_bytes)
    failed: list[str] = []
    for at, name in enumerate(names, 1):
        try:
            weights.fetch(sweep.by_name[name])
            report(f"{at}/{len(names)} {name}")
        except LensAuditError as error:
            failed.append(f"{name}: {error}")
            report(failed[-1])
    if failed:
        raise PartialError(f"{len(failed)} checkpoints were not fetched: {'; '.join(failed)}")
