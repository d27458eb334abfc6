"""Whose result does a folder hold, and where does one go? No run replaces another's.

What tells one run from another is a flat record of names and JSON values, made of a manifest: the
content of what was read, and the options that a number depends on. Where and how fast it was
computed is no part of it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import digest, read_json, slug
from lensaudit.results.records import MANIFEST
from lensaudit.settings import results_folder

Run = Mapping[str, Any]
"""What tells a run from others."""
Grew = Callable[[str, Any, Any], bool]
COMPARISON = "comparison.csv"
"""Beside the folders of several sources."""
COMPARISON_MANIFEST = f"comparison_{MANIFEST}"
_SHOWN = 60


def folders_for(sources: Sequence[str], out: Path | None) -> dict[str, Path]:
    """Result folder of each source: `out` itself for one, one folder inside it for several.

    >>> [path.as_posix() for path in folders_for(["demo/npo", "./runs/npo"], None).values()]
    ['experiments/out/demo-npo', 'experiments/out/npo']
    """
    base = out or results_folder()
    if len(sources) == 1 and out is not None:
        return {sources[0]: out}
    names = [slug(_named(source)) for source in sources]
    return {
        source: base / (name if names.count(name) == 1 else f"{name}-{digest(source)[:8]}")
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
