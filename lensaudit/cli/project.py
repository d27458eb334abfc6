"""How a project file reaches the options of a command: as defaults, which options override."""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lensaudit.cli.terminal import notice, say
from lensaudit.errors import InputError
from lensaudit.project import (
    FILE,
    NONE,
    VARIABLE,
    Project,
    find_project,
    read_project,
    seen,
    strangeness,
)
from lensaudit.screen.cells import name
from lensaudit.settings import RESULTS_VARIABLE

_META = "lensaudit.project"
_ALIKE = {
    "full": "full",
    "original": "full",
    "retain": "retain",
    "control": "retain",
    "sources": "sources",
    "source": "sources",
    "holdout": "holdout",
    "retain_set": "kept_rows",
    "validity_data": "retain_data",
    "template": "template",
    "device": "device",
    "dtype": "dtype",
    "batch_size": "batch_size",
    "memory": "memory",
    "activations": "activations",
    "registry": "registry",
    "forget": "data",
}
"""Parameter of any command -> what of the project stands in for it."""
_SET = {"data": "data"}
_OWN: Mapping[str, Mapping[str, str]] = {
    "annotate": {
        "pairs": "forget",
        "out": "data",
        "question_key": "question",
        "answer_key": "answer",
        "group_key": "group",
    },
    "audit": _SET,
    "cache": _SET,
    "patch": _SET,
    "gym make": _SET | {"retain_data": "kept_rows"},
    "gym submit": _SET | {"retain_data": "kept_rows"},
    "effort": _SET | {"retain_data": "kept_rows"},
    "relearn": _SET | {"model": "sources"},
    "quantize": {"model": "sources"},
    "rtt run": _SET | {"names": "sources"},
    "steer audit": _SET | {"name": "sources", "retain_data": "retain_data"},
    "sweep plan": {"models": "sources"},
    "sample": _SET,
    "unlearn": _SET | {"model": "full", "retain_data": "kept_rows"},
    "worst": _SET,
    "know": _SET | {"retain_data": "retain_data"},
    "doctor": {"model": "full"},
    "report": {"results": "results"},
}
"""Command -> parameter -> what of the project stands in for it there."""
_ORIGINS = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.PROMPT: "asked",
}


def with_project(command: click.Command, path: str) -> click.Command:
    """The command, and those inside it, with `--project` and the defaults of a project file."""
    if isinstance(command, click.Group):
        for key, inner in command.commands.items():
            with_project(inner, f"{path} {key}")
        if not command.invoke_without_command:
            return command
    if any(one.name == "project" for one in command.params):
        return command
    option = click.Option(
        ["--project"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar=VARIABLE,
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, _, value: _use(ctx, path, value),
        help=f"Names models and rows once. [default: {FILE} here or above; {NONE}: without]",
    )
    command.params.append(option)
    if command.callback is not None:
        command.callback = _checked(command.callback, path)
    return command


def current_project() -> Project | None:
    """The project of the running command."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_root().meta.get(_META)


def lacking(error: click.MissingParameter) -> str:
    """The message, and what a project file could say in its place."""
    said, ctx, parameter = error.format_message(), error.ctx, error.param
    if ctx is None or parameter is None:
        return said
    path = ctx.command_path.partition(" ")[2]
    key = (_ALIKE | dict(_OWN.get(path, {}))).get(parameter.name or "")
    if key is None:
        return said
    project = ctx.find_root().meta.get(_META)
    if project is not None:
        return f"{said} {project.file} could name it: {key} = …"
    return f"{said} Or name models and rows once: `lensaudit init` writes {FILE} for a folder."


def is_typed(parameter: str) -> bool:
    """Whether a value was given on the command line, not taken from a project or a default."""
    return _source(click.get_current_context(), parameter) == ParameterSource.COMMANDLINE


def _use(ctx: click.Context, path: str, given: Path | None) -> None:
    if ctx.resilient_parsing or str(given) == NONE:
        return
    file = given or _found()
    if file is None:
        return
    project = read_project(file)
    values = _values(project, path, ctx.command)
    ctx.default_map = {**values, **(ctx.default_map or {})}
    ctx.find_root().meta[_META] = project
    if project.out is not None:
        _set_results(ctx, project.out)


def _found() -> Path | None:
    """The project file that nobody named, if it may be read; else a word on why not."""
    file = find_project()
    if file is not None and (why := strangeness(file)):
        notice(f"{file} is not read: {why}; name it with --project or {VARIABLE} to use it")
        return None
    return file


def _set_results(ctx: click.Context, folder: Path) -> None:
    """Results go where the project says, for as long as the command runs."""
    before = os.environ.get(RESULTS_VARIABLE)
    if before is not None:
        return
    os.environ[RESULTS_VARIABLE] = str(folder)
    ctx.call_on_close(lambda: os.environ.pop(RESULTS_VARIABLE, None))


def _values(project: Project, path: str, command: click.Command) -> dict[str, Any]:
    """Parameter -> value, of what the command takes; its own table wins."""
    wanted = {**_ALIKE, **_OWN.get(path, {})}
    found: dict[str, Any] = {}
    for one in command.params:
        if one.name in wanted:
            value = _fit(getattr(project, wanted[one.name]), one, wanted[one.name])
            if value not in (None, (), "", []):
                found[one.name] = value
    return {**found, **_own_table(project, path, command)}


def _fit(value: Any, parameter: click.Parameter, key: str) -> Any:
    """Several values where several are taken; else the first retain model, or the only source."""
    many = getattr(parameter, "multiple", False) or parameter.nargs == -1
    if not isinstance(value, tuple):
        return [str(value)] if many and value is not None else value and _plain(value)
    if many:
        return list(value)
    return value[0] if len(value) == 1 or (value and key == "retain") else None


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _own_table(project: Project, path: str, command: click.Command) -> Mapping[str, Any]:
    """The options of the command's own table; files and folders as seen from the working folder.

    Raises:
        InputError: it has no such option, or only a person may say it.
    """
    table, head = project.commands.get(path, {}), f"{project.file}: [{path.replace(' ', '.')}]"
    known = {
        opt.lstrip("-").replace("-", "_"): one
        for one in command.params
        if isinstance(one, click.Option)
        for opt in (*one.opts, one.name or "")
    }
    if unknown := [key for key in table if key not in known]:
        raise InputError(
            f"{head} has no option {', '.join(unknown)}; `lensaudit {path} --help` lists them"
        )
    if refused := [key for key in table if getattr(known[key], "typed", False)]:
        raise InputError(
            f"{head} {', '.join(refused)}: runs, sends, overwrites or deletes something, which "
            "no project file may ask for; say it on the command line"
        )
    return {
        str(known[key].name): _placed(value, known[key], project.file.parent)
        for key, value in table.items()
    }


def _placed(value: Any, option: click.Option, base: Path) -> Any:
    if not isinstance(option.type, click.Path):
        return value
    if isinstance(value, list):
        return [_placed(one, option, base) for one in value]
    return seen(value, base) if isinstance(value, str) else value


def _checked(call: Callable[..., Any], path: str) -> Callable[..., Any]:
    """The command; before it a word on what it read, after a dry run where values came from."""

    @wraps(call)
    def run(*positional: Any, **values: Any) -> Any:
        project, ctx = current_project(), click.get_current_context()
        if values.get("dry_run"):  # nothing is written
            from lensaudit.models.hashing import looking

            ctx.with_resource(looking())
        if project is None:
            return call(*positional, **values)
        from_file = [
            one.name
            for one in ctx.command.params
            if one.name and _source(ctx, one.name) == ParameterSource.DEFAULT_MAP
        ]
        _check_annotated(project, values, from_file, path)
        if from_file and not values.get("as_json"):
            notice(f"from {project.file}: {', '.join(_flag(ctx, one) for one in from_file)}")
        answer = call(*positional, **values)
        if values.get("dry_run") and not values.get("as_json"):
            _say_origins(ctx, project, values)
        return answer

    return run


def _check_annotated(
    project: Project, values: Mapping[str, Any], from_file: list[str], path: str
) -> None:
    """Rows that are not annotated yet: say which command does it."""
    for one in ("data", "forget", "retain_set", "validity_data", "retain_data"):
        value = str(values.get(one) or "")
        if one in from_file and value in (project.data, project.retain_data):
            of = project.forget if value == project.data else project.retain_rows
            if of is not None and not Path(value).exists():
                raise InputError(
                    f"{value}: no such file; {of} is not annotated yet, run `lensaudit annotate`"
                )


def _say_origins(ctx: click.Context, project: Project, values: Mapping[str, Any]) -> None:
    """A line for each value: what it is and who said so."""
    say("values:")
    for one in ctx.command.params:
        if one.name not in values or one.name in ("dry_run", "as_json"):
            continue
        source, value = _source(ctx, one.name), values[one.name]
        value = ", ".join(map(str, value)) if isinstance(value, tuple | list) else value
        if value in (None, "", False):
            continue
        origin = _ORIGINS.get(source, "default")
        origin = str(project.file) if source == ParameterSource.DEFAULT_MAP else origin
        say(f"  {_flag(ctx, one.name)}: {name(value)} ({origin})")


def _source(ctx: click.Context, parameter: str) -> Any:
    return ctx.get_parameter_source(parameter)


def _flag(ctx: click.Context, parameter: str) -> str:
    """An option as it is typed."""
    one = next(one for one in ctx.command.params if one.name == parameter)
    return max(one.opts, key=len) if isinstance(one, click.Option) else one.human_readable_name
