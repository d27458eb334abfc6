"""What every score returns, and the record of how it was made."""

import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import lensaudit
from lensaudit.files import write_json

MANIFEST = "manifest.json"
PACKAGES = ("lensaudit", "torch", "transformers", "transformer-lens", "numpy", "h5py", "tokenizers")


@dataclass(frozen=True)
class Result:
    """One metric on one model."""

    value: float
    """NaN when nothing could be scored."""
    per_example: Mapping[int, float] = field(default_factory=dict)
    unscored: Mapping[int, str] = field(default_factory=dict)
    """idx -> reason; counted in the report, never averaged as 0."""


@dataclass(frozen=True)
class Manifest:
    """The conditions a result was made under, saved beside it as `manifest.json`."""

    command: str
    options: Mapping[str, Any]
    """The resolved arguments, as plain JSON values."""
    inputs: Mapping[str, Any]
    """Content hashes of weights, tokenizer and examples, and what each name resolved to."""
    device: str
    seconds: float
    finished: str
    versions: Mapping[str, str]
    git_commit: str | None
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name -> size and hash of what the run wrote; see `keyed.seal`."""

    def write(self, folder: Path, name: str = MANIFEST) -> Path:
        """Write `manifest.json` into `folder`."""
        content = dict(vars(self))
        if not self.files:
            del content["files"]
        return write_json(folder / name, content)


def manifest(
    command: str,
    *,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    device: str,
    started: float,
) -> Manifest:
    """The manifest of a run that began at `started` (`time.monotonic()`) and ends now."""
    return Manifest(
        command=command,
        options=options,
        inputs=inputs,
        device=device,
        seconds=round(time.monotonic() - started, 3),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=package_versions(),
        git_commit=git_commit(),
    )


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages a number may depend on."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_commit() -> str | None:
    """Commit of the checkout this package runs from; None in an installed wheel."""
    root = Path(lensaudit.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
