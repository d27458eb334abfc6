"""How was a result made? The manifest beside it says, and is written last.

It holds what was asked, what was read, by which code and libraries, size and hash of every file
that its run left, and a checksum of itself.
"""

import functools
import hashlib
import json
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lensaudit
from lensaudit.errors import InputError
from lensaudit.files import check_plain, os_errors, write_json
from lensaudit.once import holding
from lensaudit.results.reading import Number, checked, json_object, part
from lensaudit.text import digest

MANIFEST = "manifest.json"
MANIFESTS = "manifests"
"""Folder for the manifests of several runs that write into one folder, each in a folder here."""
BEGUN = "begun.json"
"""In a folder whose run has begun and is not finished."""
AGAIN = "run again the command that made it"
PACKAGES = ("torch", "transformers", "transformer-lens", "numpy", "h5py", "tokenizers")
_places: ContextVar[Mapping[str, str]] = ContextVar("places", default=MappingProxyType({}))
_outside: ContextVar[Mapping[str, str]] = ContextVar("outside", default=MappingProxyType({}))
_NUMERIC = ("lensaudit", "torch", "transformers", "transformer-lens")


@dataclass(frozen=True)
class Manifest:
    """The conditions a result was made under, saved beside it as `manifest.json`."""

    command: str
    kind: str = field(default="", kw_only=True)
    """Of the result that it answers for; empty: of none, or an earlier version did not say."""
    options: Mapping[str, Any]
    """The resolved arguments, as plain JSON values."""
    inputs: Mapping[str, Any]
    """Content hashes of weights, tokenizer and examples, and what each name resolved to."""
    device: str = ""
    seconds: Number | None = None
    finished: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """Of the process that wrote the result; scores that were found say their own, see `inputs`."""
    git_commit: str | None = None

    def write(self, folder: Path, files: Iterable[str], name: str = MANIFEST) -> Path:
        """Write the manifest into `folder`, after everything else.

        One that says the same of the same files stays: a run that found everything and computed
        nothing leaves the hour at which it was made, and the versions that made it.

        Args:
            folder: of the results.
            files: names below `folder` that the manifest answers for.
            name: of the manifest, below `folder`.
        """
        path, said = folder / name, signed({**vars(self), "files": marks(folder, files)})
        if _lasting(said) != _lasting(path):
            write_json(path, said)
        (folder / BEGUN).unlink(missing_ok=True)
        return path


@dataclass(frozen=True)
class NamedModel:
    """A model as a manifest names it."""

    name: str | None = None
    weights: str | None = None
    """Content hash."""


def model_in(manifest: Any, role: str, where: object = MANIFEST) -> NamedModel:
    """The model that a manifest has in a role; without a name where there is none.

    Raises:
        InputError: its name or hash is no text.
    """
    return checked(NamedModel, part(manifest, "inputs", role), f"{where}: inputs.{role}")


def models_in(manifest: Any) -> dict[str, dict[str, Any]]:
    """Role -> name and weights of every model that a manifest names by its weights."""
    named = {role: part(manifest, "inputs", role) for role in part(manifest, "inputs")}
    return {
        role: {key: one.get(key) for key in ("name", "weights")}
        for role, one in named.items()
        if one.get("weights")
    }


def mark_of(path: Path) -> dict[str, Any]:
    """What a manifest says of a file: `n_bytes`, and `blake2b`, 128 bits as 32 hex digits.

    Raises:
        InputError | TryAgainError | WorkError: it cannot be read.
    """
    check_plain(path)
    with os_errors(path), path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16))
        return {"n_bytes": path.stat().st_size, "blake2b": found.hexdigest()}


def marks(folder: Path, files: Iterable[str]) -> dict[str, Any]:
    """What a manifest says of some files of a folder: name -> see `mark_of`."""
    return {name: mark_of(folder / name) for name in sorted(files)}


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of itself under `check`."""
    # as it comes back from the file: names are texts there, and tuples lists
    plain = json.loads(json.dumps(dict(content), allow_nan=False))
    rest = {name: value for name, value in plain.items() if name != "check"}
    return {**rest, "check": digest(rest)}


def is_signed(content: Mapping[str, Any]) -> bool:
    """Whether a JSON object has the checksum of its other fields."""
    with suppress(ValueError, RecursionError):  # NaN, or a nesting that nobody wrote
        return content.get("check") == signed(content)["check"]
    return False


def signed_object(path: Path) -> dict[str, Any]:
    """A JSON object that was written with `signed`, without its checksum.

    Raises:
        InputError: no JSON object, it was edited, or it has no checksum.
    """
    content = json_object(path)
    if not is_signed(content):
        has = content.get("check") is not None
        what = "was changed after it was written" if has else "has no checksum of itself"
        raise InputError(f"{path}: {what}; {AGAIN}")
    del content["check"]
    return content


_OF_THE_HOUR = ("seconds", "finished", "versions", "git_commit", "asked", "check")


def _lasting(made: Path | Mapping[str, Any]) -> dict[str, Any] | None:
    """What a manifest says of its files and of how they are made; None of a damaged or missing one.

    When, how fast and by which versions that was done is left out.
    """
    with suppress(InputError):
        said = signed_object(made) if isinstance(made, Path) else made
        return {name: one for name, one in said.items() if name not in _OF_THE_HOUR}
    return None


def manifests_of(place: Path) -> list[str]:
    """Manifests that tell of a place, below its folder: of a file one, of a folder all."""
    if place.is_dir():
        patterns = (MANIFEST, f"*_{MANIFEST}", f"{MANIFESTS}/*/{MANIFEST}")
        found = (path for pattern in patterns for path in sorted(place.glob(pattern)))
        return [path.relative_to(place).as_posix() for path in found]
    beside = (f"{place.stem}_{MANIFEST}", f"{MANIFESTS}/{place.stem}/{MANIFEST}", MANIFEST)
    return [name for name in beside if (place.parent / name).exists()][:1]


def placed(places: Mapping[str, str]) -> AbstractContextManager[None]:
    """Name the places of a project file in options as they are seen from its folder.

    Args:
        places: as seen from the working folder -> from the folder of the file.
    """
    return holding(_places, places)


def using(code: Mapping[str, str]) -> AbstractContextManager[None]:
    """Let keys and manifests hold the code from outside that is asked for: name -> content hash."""
    return holding(_outside, {**_outside.get(), **code})


def from_outside() -> dict[str, Mapping[str, str]]:
    """The code from outside that is asked for, as an input; nothing where there is none."""
    return {"outside": dict(_outside.get())} if _outside.get() else {}


def as_placed(options: Any) -> Any:
    """Options with the places of a project file as seen from its folder, see `placed`."""
    if isinstance(options, Mapping):
        return {name: as_placed(one) for name, one in options.items()}
    if isinstance(options, list | tuple):
        return [as_placed(one) for one in options]
    if not isinstance(options, str | Path):
        return options
    places, text = _places.get(), str(options)
    return places.get(text) or "+".join(places.get(one, one) for one in text.split("+"))


def manifest(
    command: str,
    *,
    kind: str = "",
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    device: str,
    started: float,
) -> Manifest:
    """The manifest of a run that began at `started` (`time.monotonic()`) and ends now."""
    return Manifest(
        command=command,
        kind=kind,
        options=as_placed(options) if _places.get() else options,
        inputs={**inputs, **from_outside()},
        device=device,
        seconds=round(time.monotonic() - started, 3),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=package_versions(),
        git_commit=git_commit(),
    )


@functools.cache
def package_versions() -> Mapping[str, str]:
    """Versions of Python and of the packages a number may depend on."""
    found = {one: metadata.version(one) for one in PACKAGES}
    return {"python": platform.python_version(), "lensaudit": lensaudit.__version__, **found}


@functools.cache
def computed_by() -> str:
    """The versions that decide the last bits of a number, in a line: kept with each score.

    They are in no key: a library's patch release would make every score anew. What moves a number
    by more than its last bits raises the key's algorithm.
    """
    known = package_versions()
    return ", ".join(f"{name} {known[name]}" for name in _NUMERIC)


@functools.cache
def code_digest() -> str:
    """Content hash of this package's own code, 32 hex digits: no two versions share it."""
    root = Path(lensaudit.__file__).parent
    code = sorted(root.rglob("*.py"))
    return digest([[one.relative_to(root).as_posix(), one.read_text("utf-8")] for one in code])


@functools.cache
def git_commit() -> str | None:
    """Commit of the checkout this package runs from; None in an installed wheel."""
    root = Path(lensaudit.__file__).resolve().parent.parent
    asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.SubprocessError):
        if (root / ".git").exists():
            return subprocess.check_output(
                asked, stderr=subprocess.DEVNULL, text=True, timeout=5
            ).strip()
    return None


PARTS = EVAL, PATCH, KNOW = "eval", "patch", "know"
"""Folders of an audit, of a finished unit of a sweep, and of a model of a collection."""
COMPARISON = "comparison.csv"
"""Beside the folders of several sources."""
AUDIT_MANIFEST = f"audit_{MANIFEST}"
"""Beside the page: what the whole run asked, and every file of its parts."""
NOT_ASKED = "who has what was not asked"
"""Input of that manifest: by model why nobody could be asked who has what."""
