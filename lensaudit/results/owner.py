"""Owner of a folder, and where a run may write.

No run replaces another's. What tells one from another is a flat record of names and JSON values,
made of a manifest: the content of what was read, and the options that a number depends on. Where
and how fast it was computed is no part of it.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import check_plain, make_folder, read_json, write_json
from lensaudit.progress import FolderRemark, Notice, unheard
from lensaudit.results.manifest import BEGUN, COMPARISON, MANIFEST, manifests_of, models_in
from lensaudit.results.planned import PLAN, is_ours
from lensaudit.results.reading import json_object, part
from lensaudit.settings import results_folder
from lensaudit.text import canonical_json, digest, is_path, slug

_SHARED = ("gym", "meta", "patch")
"""First words of commands whose results may share a folder, each with a manifest of its own."""
_LEFT = {
    "curve.json": "watch",
    PLAN: "sweep",
    "collected.json": "sweep collect",
    "attacks.jsonl": "effort",
    "vectors": "steer",
}
"""What stands in a folder that has no manifest at its top -> whose folder it is; the first counts.

A folder that is watched has a plan too.
"""


def other_owner(folder: Path, command: str) -> str | None:
    """The other command that owns a folder, in words; None: the folder is free, or own.

    A command owns the folder in which it has begun or finished something. Folders inside have
    owners of their own.

    Args:
        folder: may be missing.
        command: as its manifest calls it.
    """
    if not folder.is_dir():
        return None
    owners = {
        *[
            one
            for name, one in _LEFT.items()
            if (folder / name).exists() and (name != PLAN or is_ours(folder / name))
        ][:1]
    }
    for name in (*manifests_of(folder), BEGUN):
        with suppress(InputError):  # of a damaged one: its command is told to run again
            said = json_object(folder / name).get("command") if (folder / name).exists() else None
            if isinstance(said, str):
                owners.add(said)
            elif name == MANIFEST:
                return _NOBODY
    return next(
        (f"`lensaudit {one}`" for one in sorted(owners) if _kin(one) != _kin(command)), None
    )


_NOBODY = "an unknown program"


def _kin(command: str) -> str:
    return first if (first := command.partition(" ")[0]) in _SHARED else command


def mark_in(folder: Path, name: str = MANIFEST) -> str | None:
    """Which mark of a run is in a folder: its manifest where it is finished, or that it has begun.

    Looked for twice: a run that ends writes the one before it takes the other away.

    Args:
        folder: may be missing.
        name: of the manifest.
    """
    return next((one for one in (name, BEGUN, name) if (folder / one).exists()), None)


def check_free(folder: Path, command: str, files: Iterable[str] = (), name: str = MANIFEST) -> None:
    """Refuse a folder that another command owns, or that holds files of unknown origin.

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
    if there and not mark_in(folder, name):
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


Run = Mapping[str, Any]
"""What tells a run from others."""
Grew = Callable[[str, Any, Any], bool]
_SHOWN = 60
OTHERWISE = "name another --out, or replace it with --force"
"""What to do about another run of a command, whose result took long to make."""


def folders_for(sources: Sequence[str], out: Path | None) -> dict[str, Path]:
    """Result folder of each source: `out` itself for one, one folder inside it for several.

    >>> [path.as_posix() for path in folders_for(["demo/npo", "./runs/npo"], None).values()]
    ['experiments/out/demo-npo', 'experiments/out/npo']
    """
    if len(sources) == 1 and out is not None:
        return {sources[0]: out}
    return folders_within(out or results_folder(), sources)


def folders_within(folder: Path, sources: Sequence[str]) -> dict[str, Path]:
    """A folder in `folder` for each source, called by its short name where no other has that."""
    names = [slug(short_name(source)) for source in sources]
    return {
        source: folder / (name if names.count(name) == 1 else f"{name}-{digest(source)[:8]}")
        for source, name in zip(sources, names, strict=True)
    }


def check_beside(folder: Path, command: str, n_sources: int) -> None:
    """Refuse a folder of another command, or where results of one source and of several would mix.

    One lies in the folder, the others inside it, see `folders_for`: neither replaces the other, and
    whoever reads the folder would take both for one run.

    Args:
        folder: of the results; may be missing.
        command: as its manifest calls it.
        n_sources: of the run that is about to write.

    Raises:
        InputError: names the result that is there; nothing was touched.
    """
    check_free(folder, command)
    inside = () if (folder / MANIFEST).exists() else sorted(folder.glob("*/"))
    for one in [folder] if n_sources > 1 else filter(_is_of_several, inside):
        if (one / MANIFEST).exists() and other_owner(one, "") == f"`lensaudit {command}`":
            raise InputError(
                f"{folder}: the result in {one} would stay beside this run's, not be replaced; "
                "name another --out"
            )


def _is_of_several(folder: Path) -> bool:
    """Whether a folder is called as `folders_for` calls that of a model in its manifest."""
    with suppress(InputError):
        names = (str(one["name"]) for one in models_in(json_object(folder / MANIFEST)).values())
        return any(folder.name.startswith(slug(short_name(name))) for name in names)
    return False


def short_name(source: str) -> str:
    """Short name of a model: the last part of a folder or an adapter; other names are kept whole.

    A folder is what is written as one: a result has one name wherever it is read.

    >>> short_name("demo/full+runs/one/adapter"), short_name("./runs/npo")
    ('demo/full+adapter', 'npo')
    """
    base, *adapter = source.split("+")
    base = (is_path(base) and Path(base).name) or base
    return "+".join([base, *(Path(place).name for place in adapter)])


def place_of(
    usual: Path,
    other: str | None,
    key: str,
    *,
    named: bool,
    replaced: bool = False,
    tell: Notice = unheard,
) -> Path:
    """Folder that a run may write into: the usual one, or one of its own beside it.

    A folder that the user named is not exchanged: what else is in it is replaced or refused.

    Args:
        usual: where the result goes if nothing else is there; or the folder that was named.
        other: what else is in it and, after a semicolon, what to do about that; None: nothing.
        key: of the run, hexadecimal; with its first 8 digits the folder beside is called.
        named: the user chose the folder.
        replaced: what else is in a named folder goes.
        tell: told where the result goes instead, or what is replaced.

    Raises:
        InputError: the folder was named, and what is in it stays.
    """
    if other is None:
        return usual
    if named and not replaced:
        raise InputError(f"{usual}: {other}")
    what = other.partition("; ")[0]
    if named:
        tell(FolderRemark(f"{usual}: {what.replace('holds', 'held', 1)}; it is replaced"))
        return usual
    own = usual.with_name(f"{usual.name}-{key[:8]}")
    tell(FolderRemark(f"{usual}: {what}; this run goes to {own}"))
    return own


def another(why: str | None, what: str = "the result of another run") -> str:
    """What a folder holds that is not the run's, and by what it differs where that is known."""
    return f"holds {what} ({why})" if why else f"holds {what}"


def folder_of(
    wanted: Path,
    run: Run,
    read: Callable[[Mapping[str, Any]], Run],
    *,
    named: bool,
    kind: Collection[str],
    tell: Notice = unheard,
    grew: Grew = lambda name, old, new: False,
) -> Path:
    """Folder that a run may write into whose manifests say what tells it from others.

    Args:
        wanted: may be missing, hold nothing finished, or hold this very run: then it is taken.
        run: what tells this run from others.
        read: the same of a manifest's content.
        named: the user chose the folder.
        kind: names in which results of one kind agree, and one replaces another.
        tell: told where the result goes instead, or what is replaced.
        grew: whether a run asks, under a name, for the old value and more: it may replace it.

    Raises:
        InputError: the folder was named, and holds a result of another kind.
    """
    found = differences(wanted, run, read, grew)
    other = f"{another(next(iter(found.values())))}; name another --out" if found else None
    replaced = not set(kind) & found.keys()
    return place_of(wanted, other, digest(dict(run)), named=named, replaced=replaced, tell=tell)


def comparison_in(folders: Sequence[Path]) -> Path:
    """Table that compares results: the usual one, or one beside it where that is of others.

    Args:
        folders: of the results, beside each other, in the order of the sources.
    """
    usual, names = folders[0].with_name(COMPARISON), [one.name for one in folders]
    with suppress(InputError):  # none, or a damaged one, which is replaced like any other
        made = json_object(usual.with_name(f"{usual.stem}_{MANIFEST}"))
        if part(made, "inputs").get("folders", names) != names:  # once it said nothing of them
            return usual.with_stem(f"{usual.stem}-{digest(names)[:8]}")
    return usual


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
    if (command := run.get("command")) and (other := other_owner(folder, command)):
        return {"command": f"command: {other}, here {command}"}
    if not (folder / MANIFEST).exists():
        return {}
    try:
        found = read(read_json(folder / MANIFEST))
    except (InputError, KeyError, TypeError, AttributeError):
        return {MANIFEST: f"{MANIFEST} is no record of such a run"}
    # as it comes back from a file
    run = {name: json.loads(canonical_json(value)) for name, value in run.items()}
    return {
        name: f"{name}: {_brief(found.get(name))}, here {_brief(run.get(name))}"
        for name in dict.fromkeys((*run, *found))
        if not _same(found.get(name), run.get(name))
        and not grew(name, found.get(name), run.get(name))
    }


def _same(old: Any, new: Any) -> bool:
    """Whether two values are one, or one place: an old path may lead nowhere from this folder.

    What a run read there stands beside it by content.
    """
    return bool(old == new) or (
        isinstance(old, str)
        and isinstance(new, str)
        and os.path.isabs(new)
        and os.path.basename(old) == os.path.basename(new)
        and os.path.exists(new)
        and not os.path.exists(old)
    )


def known_as(name: str) -> str:
    """A model as a run knows it: a folder by its resolved path, others by name."""
    place = Path(name).expanduser()
    return str(place.resolve()) if place.is_dir() else name


def _brief(value: Any) -> str:
    text = "none" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
