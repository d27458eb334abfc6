"""What the Hub holds of a checkpoint, and how it is fetched and checked."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]
from huggingface_hub.utils import filter_repo_objects
from rich.filesize import decimal as size

from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.files import os_error
from lensaudit.models.checkpoint import UNWANTED, WANTED, explained, open_checkpoint
from lensaudit.models.registry import ModelSpec, Registry, resolve
from lensaudit.sweep.plan import Target

TIMEOUT_S = 30.0
THREADS = 4
"""Files of one checkpoint at once: hundreds of requests a minute are refused."""


@dataclass(frozen=True)
class Listing:
    """A checkpoint on the Hub, at one commit."""

    commit: str
    sizes: Mapping[str, int]
    """File -> bytes; only those that are fetched."""
    sha256: Mapping[str, str]
    """File -> hash, for large files; the Hub names no SHA-256 of small ones."""

    @property
    def n_bytes(self) -> int:
        """All files together."""
        return sum(self.sizes.values())


def spec_of(target: Target) -> ModelSpec:
    """The spec of a checkpoint on the Hub."""
    return ModelSpec(target.name, target.repo, target.revision, "unlearned", target.method)


def listing(target: Target) -> Listing:
    """Asks the Hub.

    Raises:
        LensAuditError: there is no such repository, no access or no network.
    """
    try:
        info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(
            target.repo, revision=target.revision, files_metadata=True, timeout=TIMEOUT_S
        )
    except (OSError, HTTPError, ValueError) as error:
        raise explained(error, spec_of(target)) from error
    found = filter_repo_objects(
        info.siblings or [],
        allow_patterns=list(WANTED),
        ignore_patterns=list(UNWANTED),
        key=lambda one: one.rfilename,
    )
    files = list(found)
    return Listing(
        commit=str(info.sha),
        sizes={one.rfilename: one.size or 0 for one in files},
        sha256={one.rfilename: one.lfs.sha256 for one in files if one.lfs is not None},
    )


def download(target: Target, there: Listing, folder: Path) -> None:
    """Fetch the files of a listing into `folder`, and check them against it.

    Raises:
        LensAuditError: it cannot be fetched; what is there is used by the next try.
        TryAgainError: a file is not what the Hub says it is; it is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < there.n_bytes:
        raise TryAgainError(
            f"{target.name}: needs {size(there.n_bytes)} in {folder.parent}, "
            f"{size(free)} are free; free some and run again"
        )
    try:
        snapshot_download(
            target.repo,
            revision=there.commit,
            local_dir=folder,
            allow_patterns=list(there.sizes),
            max_workers=THREADS,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except (OSError, HTTPError, ValueError) as error:
        raise explained(error, spec_of(target)) from error
    check(target, there, folder)


def check(target: Target, there: Listing, folder: Path) -> None:
    """Compare sizes, and hashes where the Hub names them.

    Raises:
        TryAgainError: a file differs; it is removed, so that it is fetched again.
    """
    for name, n_bytes in there.sizes.items():
        path = folder / name
        if not path.is_file():
            raise WorkError(f"{target.name}: {name} was not fetched")
        differs = path.stat().st_size != n_bytes
        if not differs and name in there.sha256:
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            differs = found != there.sha256[name]
        if differs:
            path.unlink()
            raise TryAgainError(f"{target.name}: {name} is not the file the Hub names; run again")


def cached(target: Target) -> Path | None:
    """The folder of a checkpoint that is whole in the user's own cache; nothing is written."""
    try:
        folder = Path(
            snapshot_download(
                target.repo,
                revision=target.revision,
                local_files_only=True,
                allow_patterns=list(WANTED),
            )
        )
    except (OSError, ValueError):
        return None
    return folder if is_whole(folder) else None


def is_whole(folder: Path) -> bool:
    """Does a folder hold a checkpoint that can be opened?"""
    try:
        open_checkpoint(resolve(str(folder), Registry({})))
    except InputError:
        return False
    return True


def removed(path: Path, trash: Path) -> None:
    """Remove a folder: renamed first, so that nothing half-deleted looks complete."""
    trash.mkdir(parents=True, exist_ok=True)
    gone = trash / f"{path.name}-{os.urandom(4).hex()}"
    try:
        os.rename(path, gone)
    except FileNotFoundError:
        return
    except OSError as error:
        raise os_error(error, path) from error
    shutil.rmtree(gone, ignore_errors=True)
