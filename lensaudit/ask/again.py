"""Find the answer to a question that was asked before in its folder; torch is not imported.

The key of a question hashes all that its settings stand for: every option, models and files by
content, the code and what comes with it, and the libraries. What cannot be known before something
is opened, as what is behind an address, leaves no key, and the run is made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from lensaudit.auditing.calls import answered, told
from lensaudit.auditing.question import content_key
from lensaudit.choices import option_in
from lensaudit.data.facts import EMBEDDED
from lensaudit.data.rows import kept_of_hub
from lensaudit.data.tofu import DEMO, TOFU_HUB, TOFU_PAIRS
from lensaudit.errors import InputError
from lensaudit.models.hashing import file_sha256
from lensaudit.models.registry import default_data, load_registry, resolve, usual_anchor
from lensaudit.progress import Notice, unheard
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.owner import check_free
from lensaudit.results.question import Key, Question
from lensaudit.results.reading import SUMMARY, read_as
from lensaudit.results.run import RunResult
from lensaudit.results.run_folder import RunFolder, taken_as_it_is
from lensaudit.settings import Option, Place, results_folder, several
from lensaudit.text import digest, slug

R = TypeVar("R")
One = TypeVar("One", bound=RunResult)
PACKAGE = Path(__file__).parents[1]
MOST_FILES = 256
"""Most files of a folder that is hashed; a run on a larger one is not found again."""
ANCHORS = ("--full", "--retain")
_PLACES = {"FILE", "PATH", "DIR"}
"""Words in an option's metavar that mean a file or a folder."""
_WRITTEN = ("out", "activations", "cache")
"""Folders and a judge's kept answers, which a run writes into."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Everything that decides what a run finds."""

    settings: Any
    names: Sequence[str] = ()
    """Models that are no field of the settings."""
    anchors: Sequence[str] = ANCHORS
    """Options whose models come from the family of the sources where none is named."""
    beside: Sequence[Path] = ()
    """Files and folders that are read and that no field of the settings names."""
    by: Any = None
    """What else decides the numbers, as the version of an optional library."""

    def key(self) -> str:
        """Content hash of all that decides what the run finds; 32 hex digits.

        Raises:
            InputError: a name or a file is wrong, or nobody knows yet what it stands for.
        """
        settings, options = self.settings, list(_options(self.settings))
        named = {flag: several(value) for _, flag, one, value in options if one.is_a == "model"}
        own = (*self.names, *named.get("--source", ()), *named.get("--model", ()))
        path = getattr(settings, "registry", None)
        registry = load_registry(path)
        for flag in self.anchors:
            if flag in named and not named[flag]:
                usual = usual_anchor(flag.removeprefix("--"), own, registry)
                if usual is None:
                    raise InputError(f"{flag}: your own folders have no usual model for it")
                named[flag] = (usual,)
        models = {f"{flag} {one}": resolve(one, registry) for flag in named for one in named[flag]}
        models |= {one: resolve(one, registry) for one in self.names}
        files = {
            name: _content(name, option, value, own, path)
            for name, _, option, value in options
            if option.is_a != "model" and name not in _WRITTEN
        }
        return content_key(
            settings,
            models,
            kind=type(settings).__name__,
            names=self.names,
            files=files | {str(one): _held(one) for one in self.beside},
            shipped=_shipped(),
            by=self.by,
        )


def once(
    asked: Asked,
    usual: Sequence[Path],
    read: Callable[[Sequence[Path]], R],
    made: Callable[[Notice, Callable[[], None]], R],
    *,
    notice: Notice,
    manifest: str = MANIFEST,
    named: bool = True,
    written: Callable[[R], Sequence[Path]] | None = None,
    says: bool = True,
    whole: Callable[[R], bool] = lambda _: True,
    key: Key | None = None,
) -> R:
    """The result of a run: read where its folders say that they were asked the same, else made.

    Args:
        asked: what the run is asked.
        usual: the folders of the result, each with a manifest.
        read: gives the result from the folders in which it is.
        made: the run, told whom remarks go to, and whom to tell that all names were opened.
        notice: told remarks.
        manifest: name of the manifest in each folder.
        named: the result is in no other folders.
        written: the folders of a result that was made; None: the usual ones.
        says: it is remarked that there is nothing to do.
        whole: whether a result may be the answer another time.
        key: of the question; None: that of `asked`.
    """

    def found(question: Question) -> R | None:
        places = [question.where(one, manifest, named=named) for one in usual]
        manifests = [one / manifest for one in places]
        result = told(question, manifests, lambda: read(places), notice)
        for one in places if says and result is not None else ():
            notice(taken_as_it_is(one))
        return result

    def make(question: Question) -> tuple[R, list[Path]]:
        result = made(question.tell, question.opened)
        places = written(result) if written else usual
        return result, [one / manifest for one in places] if whole(result) else []

    fresh = getattr(asked.settings, "fresh", False)
    return answered(key or asked.key, found, make, notice, fresh=fresh)


def once_of_one(
    command: str,
    source: str,
    settings: Any,
    folder: Path | None,
    kind: tuple[type[One], type[Any]],
    made: Callable[[Notice, Callable[[], None]], One],
    notice: Notice,
    key: Key | None = None,
) -> One:
    """The result of a command on one model, in its usual folder, beside it, or in one named."""
    result, record = kind
    return once(
        Asked(settings=settings, names=(source,)),
        [usual_place(command, source, folder)],
        lambda places: result(source, places[0], read_as(record, places[0] / SUMMARY)),
        made,
        notice=notice,
        named=folder is not None,
        written=lambda found: [found.folder],
        key=key,
    )


def usual_place(command: str, source: str, folder: Path | None) -> Path:
    """Usual result folder of a command on one model; another one where it holds other results.

    Raises:
        InputError: the folder was named, and is another command's.
    """
    if folder is not None:
        check_free(folder, command)
    return folder or results_folder() / f"{command}-{slug(source)}"


def folder_for(
    command: str,
    source: str,
    folder: Path | None,
    identity: Mapping[str, Any],
    *,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    force: bool = False,
    tell: Notice = unheard,
) -> RunFolder:
    """The folder of a run of a command on one model.

    Args:
        command: its first word is that of the usual folder.
        source: the model.
        folder: that was named; None: the usual one.
        identity: what tells the run from others.
        options: of the run, as its manifest will have them.
        inputs: what each name stands for, the same.
        force: replace another run in a folder that was named.
        tell: told where the result goes instead, or what is replaced.
    """
    return RunFolder(
        usual=usual_place(command, source, folder),
        command=command,
        key=digest(identity),
        asked={"options": options, "inputs": {**identity, **inputs}},
        named=folder is not None,
        force=force,
        tell=tell,
    )


def _options(settings: Any) -> Iterator[tuple[str, str, Option, Any]]:
    """Name, flag, option and value of every choice, those of records inside too."""
    hints = get_type_hints(type(settings), include_extras=True)
    for one in fields(settings):
        value, option = getattr(settings, one.name), option_in(hints[one.name])
        if is_dataclass(value):
            yield from _options(value)
        elif option is not None:
            yield one.name, option.flags(one.name)[-1], option, value


def _content(
    name: str, option: Option, value: Any, models: Sequence[str], registry: Place | None
) -> Any:
    """What the files and rows that a choice names hold."""
    if option.is_a == "served" and "://" in str(value):
        raise InputError(f"{value}: what is behind an address cannot be checked")
    if name == "data" and value is None and models:
        value = default_data(models[0], registry)
    is_place = option.is_a in ("file", "folder") or _PLACES & {*(option.metavar or "").split("|")}
    every = value if isinstance(value, tuple | list) else (value,)
    return [_held(one) for one in every if isinstance(one, Path) or (one and is_place)]


def _held(place: str | Path) -> Any:
    """Content hash of a file or folder, revisions of TOFU's rows; None of what is none."""
    path, text = Path(place).expanduser(), str(place)
    if text in TOFU_PAIRS:
        return _fetched(TOFU_HUB)
    if text == DEMO or not path.exists():  # what comes along is hashed by itself
        return None
    if path.is_file():
        return file_sha256(path)
    inside = sorted(one for one in path.rglob("*") if one.is_file())
    if len(inside) > MOST_FILES:
        raise InputError(f"{path}: holds {len(inside)} files, too many to hash")
    return [[one.relative_to(path).as_posix(), file_sha256(one)] for one in inside]


def _shipped() -> list[str]:
    """Content hashes of the rows, traits and texts that come with the package."""
    folders = [EMBEDDED, *(PACKAGE / room for room in ("data", "judge", "steer", "training"))]
    files = (
        one for folder in folders for kind in ("json*", "txt") for one in folder.rglob(f"*.{kind}")
    )
    return [file_sha256(one) for one in sorted(files)]


def _fetched(repo: str) -> list[str]:
    """Revisions of a data set's configurations in the local cache; nothing is fetched for a key.

    Raises:
        InputError: none is: the run fetches what it reads.
    """
    kept = kept_of_hub(repo)
    if not (found := sorted(one.relative_to(kept).as_posix() for one in kept.glob("*/*/*/"))):
        raise InputError(f"{repo}: is not in the local cache yet")
    return found
