"""Tasks of lm-evaluation-harness in one YAML file: names, and whole tasks as mappings."""

import os
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from lensaudit.choices import in_commas
from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.progress import Notice, unheard

Task = str | Mapping[str, Any]
"""A task's name, or a whole task as a dictionary, as its YAML file would say it."""
_WANTED = "wanted a list of names and mappings, or one under `tasks:`"


def tasks_named(text: str, tell: Notice = unheard) -> tuple[Task, ...]:
    """The tasks that `--tasks` names: by name, and those that its YAML files list.

    Args:
        text: names and files with commas.
        tell: told which other keys of a file are not read.

    Raises:
        InputError: a file cannot be read, or lists something else.
    """
    found: list[Task] = []
    for one in in_commas(text):
        found += _listed(Path(one), tell) if is_file(one) else [one]
    return tuple(found)


def is_file(named: str) -> bool:
    """Whether a part of `--tasks` is a file.

    >>> is_file("arc_easy"), is_file("lm_eval.yaml")
    (False, True)
    """
    return named.endswith((".yaml", ".yml"))


def files_of(text: str, include: Path | None) -> list[Path]:
    """The YAML files that `--tasks` names, and the local rows of tasks in them and below `include`.

    Raises:
        InputError: as `tasks_named`.
    """
    files = [Path(one) for one in in_commas(text) if is_file(one)]
    files += [one for task in tasks_named(text) for one in rows_of(task)]
    return files + rows_below(include)


def rows_below(include: Path | None) -> list[Path]:
    """The local files whose rows the tasks of a folder ask; a task there may name another's file.

    What cannot be read has none: the harness says why.
    """
    import yaml

    found: list[Path] = []
    for path in sorted(include.rglob("*")) if include else ():
        if not is_file(path.name) or not path.is_file():
            continue
        try:
            read = yaml.load(read_text(path), _without_code())
        except (yaml.YAMLError, InputError):
            continue
        found += rows_of(read) if isinstance(read, Mapping) else []
    return found


def _without_code() -> Any:
    """A loader to which the functions that a task may name are nothing; none is run."""
    import yaml

    class Loader(yaml.SafeLoader):
        """For one file."""

    Loader.add_multi_constructor("!", lambda loader, tag, node: None)
    return Loader


def rows_of(task: Task) -> list[Path]:
    """The local files whose rows a mapping asks, by name, pattern or folder; none of a name."""
    said: Mapping[str, Any] = {} if isinstance(task, str) else task
    given = said.get("dataset_kwargs")
    more: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    places = (*_texts(said.get("dataset_path")), *_texts(more.get("data_dir")))
    found = [one for text in _texts(more.get("data_files")) for one in _matching(text)]
    return found + [one for place in places for one in _files_of(place)]


def _matching(text: str) -> list[Path]:
    """The file of this name, and the files that fit it as a pattern."""
    names = dict.fromkeys([text, *sorted(glob(text, recursive=True))])
    return [one for one in map(Path, names) if one.is_file()]


def _files_of(place: str) -> list[Path]:
    """The file of this name, or all below a folder; hidden ones hold no rows."""
    top = Path(os.path.expanduser(place))
    below = sorted(top.rglob("*")) if place and top.is_dir() else [top]
    seen = (one for one in below if not any(n[0] == "." for n in one.relative_to(top).parts))
    return [one for one in seen if one.is_file()]


def task_name(task: Task) -> str:
    """A dictionary's own name: the harness loses it.

    Raises:
        InputError: it has none.
    """
    name = task if isinstance(task, str) else task.get("task")
    if not isinstance(name, str) or not name:
        raise InputError("a task given as a dictionary needs its name under `task`")
    return name


def _listed(path: Path, tell: Notice) -> Sequence[Task]:
    import yaml  # the harness brings it

    try:
        read = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise InputError(f"{path}: {_problem(error)}") from error
    rest = []
    if isinstance(read, Mapping) and "tasks" in read:
        rest, read = [str(key) for key in read if key != "tasks"], read["tasks"]
    elif isinstance(read, Mapping) and "task" in read:
        read = [read]
    if not isinstance(read, list) or not read:
        raise InputError(f"{path}: found {type(read).__name__}; {_WANTED}")
    for at, one in enumerate(read, 1):
        if not isinstance(one, str | Mapping):
            raise InputError(f"{path}: task {at} is {one!r}; {_WANTED}")
        _check(path, at, one)
    if rest:
        tell(f"{path}: {', '.join(rest)} not read; what --help lists is said by options")
    return read


def _check(path: Path, at: int, task: Task) -> None:
    try:
        task_name(task)
    except InputError as error:
        raise InputError(f"{path}: task {at}: {error}") from error


def _problem(error: Any) -> str:
    """What is wrong with a YAML file, in one line."""
    what = " ".join(str(getattr(error, "problem", None) or error).split())
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f" in line {mark.line + 1}"
    if "!function" in what:
        return f"!function{where} runs code; put this task into a folder for --include"
    return f"no YAML{where} ({what})"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | Mapping):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
