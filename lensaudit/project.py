"""What does this project audit? `lensaudit.toml`: models, rows and conditions, named once.

    full = "./full"
    retain = ["./retain"]
    sources = ["./npo", "./idk"]
    forget = "forget_rows.jsonl"
    group = "author"

Places are relative to the file, and a manifest names them so, wherever the command ran. A table
named as a command holds options of that command alone:

    [patch]
    tau = 0.1

A file that nobody named is somebody's until shown to be ours: it is read if it belongs to who asks
and all its places lie in its own folder.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import read_toml
from lensaudit.groups import GROUPS
from lensaudit.settings import ACTIVATIONS, RESULTS, RESULTS_VARIABLE, ROWS, results_folder
from lensaudit.text import is_path

FILE = "lensaudit.toml"
"""Looked for in the working folder and in those above it, up to the home folder."""
NONE = "none"
"""The word for no project file."""
VARIABLE = "LENSAUDIT_PROJECT"
"""Environment variable that names the file where no option does."""


@dataclass(frozen=True)
class Project:
    """What a project file says; a place is as seen from the working folder."""

    file: Path
    full: str | None = None
    """Model patched into."""
    retain: tuple[str, ...] = ()
    """Models that never saw the forget set; the first where one is wanted."""
    sources: tuple[str, ...] = ()
    """Models that are audited."""
    forget: Path | None = None
    """Question/answer rows that were unlearned, not annotated."""
    retain_rows: Path | None = None
    """Question/answer rows that should be kept, not annotated."""
    holdout: Path | None = None
    """Rows no model saw."""
    data: str | None = None
    """The annotated forget set: a name, or the file that `lensaudit annotate` writes."""
    retain_data: str | None = None
    """The annotated retain rows."""
    question: str = "question"
    """Field of a row that is asked."""
    answer: str = "answer"
    group: str = "group"
    """Field that names the author; intervals are by author."""
    template: Path | None = None
    device: str | None = None
    dtype: str | None = None
    batch_size: int | None = None
    memory: str | None = None
    out: Path | None = None
    """Folder of result folders."""
    activations: Path | None = None
    registry: Path | None = None
    commands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Command, such as `patch` or `steer audit` -> its own options."""

    @property
    def results(self) -> Path:
        """Folder of result folders: of the environment, else the file's, else the usual one."""
        named = None if os.environ.get(RESULTS_VARIABLE) else self.out
        return named or results_folder()

    @property
    def kept_rows(self) -> str | None:
        """Rows that should be kept, with the fields `question`, `answer`, and `group` or `author`.

        Under other names nobody would find them; the annotated file has the usual ones.
        """
        usual = (self.question, self.answer) == ("question", "answer") and self.group in GROUPS
        return str(self.retain_rows) if self.retain_rows and usual else self.retain_data


_USUAL = {"out": str(RESULTS), "activations": str(ACTIVATIONS)}
"""What commands write to where the file names nothing else."""
_MODEL = ("config.json", "adapter_config.json")
"""What a folder of a model holds, either of them."""
_SEVERAL = ("retain", "sources")
KEYS = tuple(one.name for one in fields(Project) if one.name not in ("file", "commands"))
"""What a project file may say, beside tables of commands."""


def find_project(folder: Path | None = None) -> Path | None:
    """The project file of a folder, or of the nearest one above it.

    Above the home folder, and beyond the file system of the folder, others may write.
    """
    here = (folder or Path()).resolve()
    home, device = Path(os.path.expanduser("~")).resolve(), _device(here)
    for one in (here, *here.parents):
        if _device(one) != device:
            break
        if (one / FILE).is_file():
            return Path(os.path.relpath(one / FILE))
        if one == home:
            break
    return None


def _device(folder: Path) -> int:
    return folder.stat().st_dev


def strangeness(file: Path) -> str | None:
    """Why a project file is not read unless it is named; None where it is ours and stays at home.

    Raises:
        InputError: it is ours and cannot be read.
    """
    # of the file, or of a link to it; a system may be without owners
    owners = (file.lstat().st_uid, file.stat().st_uid) if hasattr(os, "getuid") else ()
    for owner in owners:
        if owner != os.getuid():
            return f"it belongs to another user (uid {owner})"
    base = file.parent.resolve()
    for key, value in {**_USUAL, **read_toml(file)}.items():
        if place := next((text for text in _texts(value) if _leaves(text, base)), None):
            return f"{key} names {place}, which lies outside its folder"
    return None


def own_places(file: Path) -> dict[str, str]:
    """Texts of a project file, each taken for a place: from the working folder -> from the file's.

    Those that are the same from both are left out.
    """
    base, found = file.parent, dict[str, str]()
    for text in filter(None, _texts({**_USUAL, **read_toml(file)})):
        rows = [str(annotated_beside(Path(text)))] if text.endswith(ROWS) else []
        for one in (text, *rows):
            now, own = seen(one, base), seen(one, base, here=base.absolute())
            found[_as_model(now)] = _as_model(own)
            if not any(os.path.isfile(base / one / name) for name in _MODEL):
                found[now] = own
    return {now: own for now, own in found.items() if now != own}


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value; the parts of BASE+ADAPTER too."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield from dict.fromkeys((value, *value.split("+")))


def _leaves(text: str, base: Path) -> bool:
    """Whether a text, taken for a place, leads out of a folder, be it through a link."""
    text, here = os.path.expanduser(text), Path.cwd()
    try:
        # a text that only a command takes for a place is relative to the working folder
        seen_from = (base, here) if here.is_relative_to(base) else (base,)
        return any(not (one / text).resolve().is_relative_to(base) for one in seen_from)
    except (OSError, ValueError):  # no place: too long, or with a null
        return False


def read_project(file: str | Path) -> Project:
    """Content of a project file.

    Raises:
        InputError: it cannot be read, or says something that is not understood, all is listed; or
            forget and kept rows would share their annotation.
    """
    if not isinstance(file, str | os.PathLike):
        raise InputError(f"read_project: found {file!r:.60}, wanted a project file")
    path = Path(file).expanduser()
    content = read_toml(path)
    problems = [line for key, value in content.items() for line in _problems(key, value)]
    if problems:
        raise InputError(f"{path}: {'; '.join(problems[:20])}")
    commands = _tables("", content)
    says = {key: _value(key, value, path.parent) for key, value in commands.pop("", {}).items()}
    for rows, annotated in (("forget", "data"), ("retain_rows", "retain_data")):
        if rows in says and annotated not in says:
            says[annotated] = str(annotated_beside(says[rows]))
    apart = says.get("forget") != says.get("retain_rows")
    if apart and says.get("data") == says.get("retain_data"):
        raise InputError(
            f"{path}: the annotations of forget and retain_rows would both be {says['data']}, and "
            "one would replace the other; rename one of the files, or name retain_data"
        )
    if path.absolute().parent != Path.cwd():
        # one place for what is kept, wherever below the file a command runs
        for key, usual in (("out", RESULTS), ("activations", ACTIVATIONS)):
            says.setdefault(key, Path(seen(str(usual), path.parent)))
    return Project(file=path, commands=commands, **says)


def annotated_beside(rows: Path) -> Path:
    """Default path of the annotated rows of a file.

    >>> annotated_beside(Path("data/forget.jsonl")).as_posix()
    'data/forget.annotated.json'
    """
    return rows.with_suffix(".annotated.json")


def _problems(key: str, value: Any) -> list[str]:
    """What is wrong with one entry."""
    if isinstance(value, dict):
        return []
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1)
        meant = f"did you mean {near[0]}?" if near else f"wanted {', '.join(KEYS)}"
        return [f"unknown key {key!r}, {meant}"]
    if key == "batch_size":
        fits = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return [] if fits else [f"batch_size is {value!s:.40}, wanted a whole number from 1"]
    values = value if key in _SEVERAL and isinstance(value, list) else [value]
    if not all(isinstance(one, str) and one.strip() for one in values):
        return [f"{key} is not {'text or a list of texts' if key in _SEVERAL else 'text'}"]
    return []


def _tables(name: str, table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The options of a command, and of its sub-commands; of the file itself under no name."""
    own = {k.replace("-", "_"): value for k, value in table.items() if not isinstance(value, dict)}
    found: dict[str, Mapping[str, Any]] = {name: own} if own else {}
    for key, value in table.items():
        found |= _tables(f"{name} {key}".lstrip(), value) if isinstance(value, dict) else {}
    return found


def _value(key: str, value: Any, base: Path) -> Any:
    """An entry as the commands want it."""
    if key in _SEVERAL:
        names = [value] if isinstance(value, str) else value
        return tuple(model_seen(one, base) for one in names)
    if key == "full":
        return model_seen(value, base)
    if key in ("forget", "retain_rows", "holdout", "template", "out", "activations", "registry"):
        return Path(seen(value, base))
    if key in ("data", "retain_data"):
        return seen(value, base) if is_place(value, base) or value.endswith(ROWS) else value
    return value


def model_seen(text: str, base: Path) -> str:
    """A name, or a folder written so that no name can be meant; also the parts of BASE+ADAPTER."""
    if not is_place(text, base):
        parts = text.split("+")
        return "+".join(model_seen(one, base) for one in parts) if parts[1:] else text
    return _as_model(seen(text, base))


def _as_model(place: str) -> str:
    """A folder, as `seen` gives it, written so that no name of a model can be meant."""
    return place if is_path(place) and place[0] != "~" else f"./{place}"  # "~" is no home here


def is_place(text: str, base: Path) -> bool:
    """Whether a word is a file or folder: it begins as one, or one of that name is in `base`."""
    return is_path(text) or os.path.exists(base / text)


def seen(text: str, base: Path, here: Path | None = None) -> str:
    """A place relative to the working folder where one of both holds the other, else absolute."""
    path = (base / os.path.expanduser(text)).absolute()
    base, here = base.absolute(), here or Path.cwd()
    within = here.is_relative_to(base) or base.is_relative_to(here)
    return os.path.relpath(path, here) if within else os.path.normpath(path)
