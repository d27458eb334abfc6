"""How was a result made, is it as it was written, and whose is the folder? Its manifest says.

A manifest is written last and holds size and hash of every file that its run left, and a checksum
of itself. Whoever reads a result compares first: a file that was cut, edited, or copied over from
another run is told from one that is as it was written.

No run replaces another's. What tells one from another is a flat record of names and JSON values,
made of a manifest: the content of what was read, and the options that a number depends on. Where
and how fast it was computed is no part of it.
"""

import functools
import hashlib
import json
import platform
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lensaudit
from lensaudit.errors import InputError, shortened
from lensaudit.files import check_plain, digest, make_folder, os_errors, read_json, slug, write_json
from lensaudit.results.reading import Number, checked, document, json_object, part
from lensaudit.settings import results_folder

MANIFEST = "manifest.json"
MANIFESTS = "manifests"
"""Folder for the manifests of several runs that write into one folder, each in a folder here."""
BEGUN = "begun.json"
"""In a folder whose run has begun and is not finished."""
AGAIN = "run the command that made it again"
PACKAGES = ("torch", "transformers", "transformer-lens", "numpy", "h5py", "tokenizers")
_places: ContextVar[Mapping[str, str]] = ContextVar("places", default=MappingProxyType({}))
_NUMERIC = ("lensaudit", "torch", "transformers", "transformer-lens")


@dataclass(frozen=True)
class Manifest:
    """The conditions a result was made under, saved beside it as `manifest.json`."""

    command: str
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
        path, said = folder / name, signed({**vars(self), "files": _marks(folder, files)})
        if _lasting(said) != _lasting(path):
            write_json(path, said)
        (folder / BEGUN).unlink(missing_ok=True)
        return path


@dataclass(frozen=True)
class RunResult:
    """What a run on one model came to, and where it is written."""

    source: str
    folder: Path
    """Holds manifest.json, summary.json and tables; of `effort`'s single model its log too."""
    record: Any
    """What it came to, as its kind of result has it."""

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json, to be read."""
        return self.record if isinstance(self.record, Mapping) else document(self.record)

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval by authors of the run's number; None where there is none, or no number."""
        ends = self.summary.get("ci95")
        return None if ends is None else (ends[0], ends[1])

    @property
    def unscored(self) -> Mapping[int, str]:
        """Idx -> why this example has no score."""
        return {int(idx): why for idx, why in self.summary.get("unscored", {}).items()}


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


def _marks(folder: Path, files: Iterable[str]) -> dict[str, Any]:
    return {name: mark_of(folder / name) for name in sorted(files)}


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of itself under `check`."""
    # as it comes back from the file: names are texts there, and tuples lists
    plain = json.loads(json.dumps(dict(content), allow_nan=False))
    rest = {name: value for name, value in plain.items() if name != "check"}
    return {**rest, "check": digest(rest)}


def _fits(content: Mapping[str, Any]) -> bool:
    """Whether a JSON object has the checksum of its other fields."""
    rest = {name: value for name, value in content.items() if name != "check"}
    with suppress(ValueError, RecursionError):  # NaN, or a nesting that nobody wrote
        return content.get("check") == digest(rest)
    return False


def signed_object(path: Path) -> dict[str, Any]:
    """A JSON object that was written with `signed`, without its checksum.

    Raises:
        InputError: no JSON object, it was edited, or it has no checksum.
    """
    content = json_object(path)
    if not _fits(content):
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


_SHARED = ("gym", "meta", "patch")
"""First words of commands whose results may share a folder, each with a manifest of its own."""
_LEFT = {
    "curve.json": "watch",
    "plan.json": "sweep",
    "collected.json": "sweep collect",
    "attacks.jsonl": "effort",
    "vectors": "steer",
}
"""What stands in a folder that has no manifest at its top -> whose folder it is; the first counts.

A folder that is watched has a plan too.
"""


def other_owner(folder: Path, command: str) -> str | None:
    """Who else owns a folder, whatever files lie in it, as words; None: it is free, or own.

    A command owns the folder in which it has begun or finished something. Folders inside have
    owners of their own.

    Args:
        folder: may be missing.
        command: as its manifest calls it.
    """
    if not folder.is_dir():
        return None
    owners = {*[owner for name, owner in _LEFT.items() if (folder / name).exists()][:1]}
    for name in (*_manifests(folder), BEGUN):
        with suppress(InputError):  # of a damaged one: its command is told to run again
            said = json_object(folder / name).get("command") if (folder / name).exists() else None
            if isinstance(said, str):
                owners.add(said)
            elif name == MANIFEST:
                return _NOBODY
    other = min((one for one in owners if _kin(one) != _kin(command)), default=None)
    return other and f"`lensaudit {other}`"


_NOBODY = "no command that is known"


def _kin(command: str) -> str:
    first = command.partition(" ")[0]
    return first if first in _SHARED else command


def check_free(folder: Path, command: str, files: Iterable[str] = (), name: str = MANIFEST) -> None:
    """Refuse a folder that another command owns, or that holds files of nobody we know.

    Args:
        folder: of the results; may be missing.
        command: as its manifest will call it.
        files: that the command is going to write.
        name: of the manifest.

    Raises:
        InputError: one line; nothing was touched.
    """
    if other := other_owner(folder, command):
        raise InputError(f"{folder}: was written by {other}; name another --out")
    there = [folder / one for one in files if (folder / one).exists()]
    if there and not any((folder / one).exists() for one in (name, BEGUN)):
        raise InputError(f"{there[0]}: was written by {_NOBODY}; name another --out")
    for one in there:
        check_plain(one)


def claim(folder: Path, command: str, files: Iterable[str], name: str = MANIFEST) -> None:
    """Make a folder for the results of a command, and mark it as begun.

    A run that is killed leaves the mark, so that the next one knows what it finds for its own.
    Arguments and refusals are those of `check_free`.
    """
    check_free(folder, command, files, name)
    make_folder(folder)
    write_json(folder / BEGUN, {"command": command})


def renew(folder: Path, files: Iterable[str], name: str = MANIFEST) -> None:
    """Let the manifest of `folder` answer for files that were written again since."""
    path = folder / name
    if path.exists():
        content = json_object(path)
        marks = {**(content.get("files") or {}), **_marks(folder, files)}
        if marks != content.get("files"):
            write_json(path, signed({**content, "files": marks}))


def check_result(path: Path) -> None:
    """As `check_whole` of a file, but what has no manifest of ours passes.

    For what other tools write too, as a log in open-unlearning's layout.

    Raises:
        InputError: names the first file that does not fit.
    """
    for name in _manifests(path):
        # a damaged one counts as ours
        with suppress(InputError):
            if {"files", "check"}.isdisjoint(json_object(path.parent / name)):
                return
        check_whole(path)


def _manifests(place: Path) -> list[str]:
    """Manifests that tell of a place, below its folder: of a file one, of a folder all."""
    if place.is_dir():
        patterns = (MANIFEST, f"*_{MANIFEST}", f"{MANIFESTS}/*/{MANIFEST}")
        found = (path for pattern in patterns for path in sorted(place.glob(pattern)))
        return [path.relative_to(place).as_posix() for path in found]
    beside = (f"{place.stem}_{MANIFEST}", f"{MANIFESTS}/{place.stem}/{MANIFEST}", MANIFEST)
    return [name for name in beside if (place.parent / name).exists()][:1]


def is_orphan(path: Path) -> bool:
    """Whether a file lies where no manifest answers for anything, and no run has begun."""
    return not _manifests(path.parent) and not (path.parent / BEGUN).exists()


def check_whole(place: Path, *, largest: int | None = None, beside: bool = True) -> None:
    """Refuse a result that is not, file by file, what its run wrote: for whoever believes it.

    All files of a run are compared, not only the one that is read: what is said of it is joined
    from them. A change that was sealed again by its maker cannot be told.

    Args:
        place: a file of a run (`OUT/summary.json`), or its folder; of a folder that several runs
            wrote into, all of them. A folder of folders (`OUT/patch/*/`) has no manifest of its
            own: name each file that is read.
        largest: of files with more bytes, as weights, only the size is compared.
        beside: False compares the named file alone: for what the others are made from.

    Raises:
        InputError: one line. The place or its manifest is missing, the manifest was edited, holds
            no hashes or tells of another file than this one; a file is missing, cut or edited.
    """
    if not place.exists():
        raise InputError(f"{place}: is gone, or was never written; wanted a result; {AGAIN}")
    folder, file = (place, None) if place.is_dir() else (place.parent, place.name)
    names = _manifests(place)
    if not names:
        raise InputError(
            f"{place}: no {MANIFEST} to compare it with, so nobody knows whether it is as it was "
            f"written; {AGAIN}"
        )
    for name in names:
        try:
            lines = misfits(folder, name=name, largest=largest, only=None if beside else file)
            files = json_object(folder / name).get("files") or {}
        except InputError as error:
            raise InputError(f"{error}; {AGAIN}") from error
        if not files and not lines:
            lines = [f"{name}: holds no hashes of files"]
        if file is not None and not lines and file not in files:
            lines = [f"{file}: is of another run than {name} tells of"]
        if lines:
            raise InputError(f"{folder}: {shortened(lines)}; {AGAIN}")


def misfits(
    folder: Path, *, name: str = MANIFEST, largest: int | None = None, only: str | None = None
) -> list[str]:
    """Files that are not what the manifest says, one line each; empty where all is as written.

    Args:
        folder: with a manifest.
        name: of the manifest, below `folder`.
        largest: of files with more bytes only the size is compared.
        only: the one file that is compared; None: all.

    Raises:
        InputError: the manifest is missing or damaged.
    """
    content = json_object(folder / name)
    said = content.get("files")
    if not isinstance(said, Mapping) or not _fits(content):
        return [f"{name}: was changed after the run wrote it"]
    found = {
        one: _misfit(folder, one, mark, largest)
        for one, mark in said.items()
        if only in (None, one)
    }
    return [f"{one}: {what}" for one, what in found.items() if what]


def _misfit(folder: Path, name: str, mark: Any, largest: int | None) -> str | None:
    path = folder / name
    if not isinstance(mark, Mapping) or _is_away(name):
        return "the manifest does not say what it was"
    if not path.is_file():
        return "is gone"
    n_bytes = path.stat().st_size
    if n_bytes != mark.get("n_bytes"):
        return f"has {n_bytes} bytes, the manifest says {mark.get('n_bytes')}"
    same = (largest is not None and n_bytes > largest) or mark_of(path) == mark
    return None if same else "was changed after the run wrote it"


def answered_for(path: Path) -> list[Path]:
    """The files of which a manifest says how a run of ours wrote them, there or not.

    Raises:
        InputError: it was edited, or is another program's.
    """
    content = signed_object(path)
    files, wanted = content.get("files"), {one.name for one in fields(Manifest)}
    if not isinstance(files, Mapping) or not wanted <= content.keys():
        raise InputError(f"{path}: is no manifest of a run of ours")
    if away := next(filter(_is_away, files), None):
        raise InputError(f"{path}: names {away[:80]!r}, which is not below its folder")
    return [home_of(path) / name for name in files]


def home_of(manifest: Path) -> Path:
    """The folder whose files a manifest tells of: its own, or the one above `manifests/<name>/`.

    Raises:
        InputError: it is damaged.
    """
    own = manifest.parent
    above = own.parent.name == MANIFESTS and not any(
        (own / name).is_file() for name in part(json_object(manifest), "files")
    )
    return own.parent.parent if above else own


def _is_away(name: str) -> bool:
    return Path(name).is_absolute() or ".." in Path(name).parts


def is_whole(folder: Path) -> bool:
    """Whether a folder has its manifest, and each file is as it was written."""
    with suppress(InputError):
        return not misfits(folder)
    return False


@contextmanager
def placed(places: Mapping[str, str]) -> Iterator[None]:
    """Name the places of a project file in options as they are seen from its folder.

    Args:
        places: as seen from the working folder -> from the folder of the file.
    """
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


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
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    device: str,
    started: float,
) -> Manifest:
    """The manifest of a run that began at `started` (`time.monotonic()`) and ends now."""
    return Manifest(
        command=command,
        options=as_placed(options) if _places.get() else options,
        inputs=inputs,
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


Run = Mapping[str, Any]
"""What tells a run from others."""
Grew = Callable[[str, Any, Any], bool]
COMPARISON = "comparison.csv"
"""Beside the folders of several sources."""
COMPARISON_MANIFEST = f"comparison_{MANIFEST}"
AUDIT_MANIFEST = f"audit_{MANIFEST}"
"""Beside the page: what the whole run asked, and every file of its parts."""
NOT_ASKED = "who has what was not asked"
"""Input of that manifest: by model why nobody could be asked who has what."""
_SHOWN = 60


def folders_for(sources: Sequence[str], out: Path | None) -> dict[str, Path]:
    """Result folder of each source: `out` itself for one, one folder inside it for several.

    >>> [path.as_posix() for path in folders_for(["demo/npo", "./runs/npo"], None).values()]
    ['experiments/out/demo-npo', 'experiments/out/npo']
    """
    if len(sources) == 1 and out is not None:
        return {sources[0]: out}
    names = [slug(_named(source)) for source in sources]
    return {
        source: (out or results_folder())
        / (name if names.count(name) == 1 else f"{name}-{digest(source)[:8]}")
        for source, name in zip(sources, names, strict=True)
    }


def _named(source: str) -> str:
    """Of a folder or an adapter its own name is enough; a registry or Hub name is kept whole.

    >>> _named("demo/full+runs/one/adapter")
    'demo/full+adapter'
    """
    base, *adapter = source.split("+")
    base = Path(base).name if base[:1] in ("/", ".", "~") else base
    return "+".join([base, *(Path(place).name for place in adapter)])


def folder_of(
    wanted: Path,
    run: Run,
    read: Callable[[Mapping[str, Any]], Run],
    *,
    named: bool,
    tell: Callable[[str], None] = lambda line: None,
    grew: Grew = lambda name, old, new: False,
    kind: Collection[str] | None = None,
) -> Path:
    """Where a run may write: the folder wanted, or one of its own beside it.

    A folder that the user named is not exchanged: a result of another kind in it is an error, one
    of the same kind is replaced, which is told.

    Args:
        wanted: may be missing, hold nothing finished, or hold this very run: then it is taken.
        run: what tells this run from others.
        read: the same of a manifest's content.
        named: the user chose the folder.
        tell: told where the result goes instead, or what is replaced.
        grew: whether a run asks, under a name, for the old value and more: it may replace it.
        kind: names in which results of one kind agree; None: all.

    Raises:
        InputError: the folder was named, or the run's own is taken, too.
    """
    found = differences(wanted, run, read, grew)
    if not found:
        return wanted
    why = next(iter(found.values()))
    if named and kind is not None and not set(kind) & set(found):
        tell(f"{wanted}: held the result of another run ({why}); it is replaced")
        return wanted
    own = wanted.with_name(f"{wanted.name}-{digest(dict(run))[:8]}")
    if named or differences(own, run, read, grew):
        raise InputError(f"{wanted}: holds the result of another run ({why}); name another --out")
    tell(f"{wanted}: holds the result of another run ({why}); this one goes to {own}")
    return own


def differences(
    folder: Path,
    run: Run,
    read: Callable[[Mapping[str, Any]], Run],
    grew: Grew = lambda name, old, new: False,
) -> dict[str, str]:
    """How the finished result in a folder is another run's; empty if it is not, or there is none.

    Returns:
        Name -> `name: theirs, here ours`.
    """
    command = run.get("command")
    if command and (other := other_owner(folder, command)):
        return {"command": f"command: {other}, here {command}"}
    if not (folder / MANIFEST).exists():
        return {}
    try:
        found = read(read_json(folder / MANIFEST))
    except (InputError, KeyError, TypeError, AttributeError):
        return {MANIFEST: f"{MANIFEST} is no record of such a run"}
    return {
        name: f"{name}: {_brief(found.get(name))}, here {_brief(run.get(name))}"
        for name in dict.fromkeys((*run, *found))
        if found.get(name) != run.get(name) and not grew(name, found.get(name), run.get(name))
    }


def known_as(name: str) -> str:
    """A model as a run knows it: a folder by its resolved path, others by name."""
    place = Path(name).expanduser()
    return str(place.resolve()) if place.is_dir() else name


def _brief(value: Any) -> str:
    text = "none" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
