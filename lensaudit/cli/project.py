"""How a project file reaches the options of a command: as defaults, which options override."""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.types import FloatParamType, IntParamType

from lensaudit.cli import library
from lensaudit.cli.options import ModelName, PlaceName, SettingOption, add_vocabulary, options_of
from lensaudit.cli.terminal import notice, say
from lensaudit.errors import InputError
from lensaudit.judge.settings import JudgeSettings
from lensaudit.project import (
    FILE,
    NONE,
    VARIABLE,
    Project,
    find_project,
    is_place,
    model_seen,
    own_places,
    read_project,
    seen,
    strangeness,
)
from lensaudit.screen.cells import name
from lensaudit.settings import NO_RETAIN_MODEL, RESULTS_VARIABLE, several

_META = "lensaudit.project"
_JUDGE, _SERVER = "judge", "base-url"
"""Table of what all commands share that ask a judge, and its model; where that is reached."""
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
    "data": "data",
}
"""Parameter of any command -> key of the project file that gives its value."""
_OWN: Mapping[str, Mapping[str, str]] = {
    "annotate": {
        "pairs": "forget",
        "out": "data",
        "question_key": "question",
        "answer_key": "answer",
        "group_key": "group",
    },
    "gym make": {"retain_data": "kept_rows"},
    "gym submit": {"retain_data": "kept_rows"},
    "effort": {"retain_data": "kept_rows"},
    "relearn": {"model": "sources"},
    "quantize": {"model": "sources"},
    "rtt run": {"names": "sources"},
    "meta robustness": {"models": "sources"},
    "steer audit": {"name": "sources", "retain_data": "retain_data"},
    "sweep plan": {"models": "sources"},
    "unlearn": {"model": "full", "retain_data": "kept_rows"},
    "know": {"retain_data": "retain_data"},
    "doctor": {"model": "full"},
    "report": {"results": "results"},
}
"""Command -> parameter -> key of the project file that gives its value in that command."""
_UNSAID = {one.name: one.default for one in fields(Project)}
"""Key of the project file -> its value where the file says nothing, which is the command's too."""
_NAMING = ("metrics", "attack", "auditor")
"""Parameters whose names may be those of code in installed packages."""
_ORIGINS = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.PROMPT: "asked",
}


def as_all(command: click.Command, path: str) -> click.Command:
    """The command, and those inside it, with what all share, and the defaults of a project file."""
    if isinstance(command, click.Group):
        for key, inner in command.commands.items():
            as_all(inner, f"{path} {key}")
        if not command.invoke_without_command:
            return command
    if any(one.name == "project" for one in command.params):
        return command
    add_vocabulary(command)
    option = click.Option(
        ["--project"],
        type=PlaceName(),
        metavar="FILE",
        envvar=VARIABLE,
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, _, value: _use(ctx, path, value),
        help=f"Project file that names your models and rows. "
        f"[default: {FILE} here or above; {NONE}: no file]",
    )
    command.params.append(option)
    if command.callback is not None:
        command.callback = _checked(command.callback, path)
    return command


def current_project() -> Project | None:
    """The project of the running command."""
    context = click.get_current_context(silent=True)
    return context and context.find_root().meta.get(_META)


def lacking(error: click.MissingParameter) -> str:
    """The message, and what a project file could say in its place."""
    said, ctx, parameter = error.format_message(), error.ctx, error.param
    if ctx is None or parameter is None:
        return said
    key = {**_ALIKE, **_OWN.get(ctx.command_path.partition(" ")[2], {})}.get(parameter.name or "")
    project = ctx.find_root().meta.get(_META)
    if key is None or (project is not None and key == "sources" and project.sources):
        is_one_model = isinstance(parameter.type, ModelName) and not parameter.multiple
        return f"{said}{choosing(project, key) if is_one_model else ''}"
    once = f"Or name models and rows once: `lensaudit init` writes {FILE} for a folder."
    return f"{said} {once if project is None else f'{project.file} could name it: {key} = …'}"


def choosing(project: Project | None, key: str | None = None) -> str:
    """What to add where one model is wanted and a project names several; of its sources, or any."""
    if project is None:
        return ""
    ends = [project.full, *project.retain] if key is None else []
    every = [one for one in (*ends, *project.sources) if one]
    what = "models" if key is None else key
    known = f" {project.file} names {len(every)} {what}; choose one: {', '.join(every)}"
    return known if every else ""


def is_typed(parameter: str) -> bool:
    """Whether a value was given on the command line, not taken from a project or a default."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source == ParameterSource.COMMANDLINE


def _use(ctx: click.Context, path: str, given: Path | None) -> None:
    """Take defaults, and where results go, from the project file; unnamed, it must be ours."""
    file = None if ctx.resilient_parsing or str(given) == NONE else given or find_project()
    if file is None:
        return
    if given is None and (why := strangeness(file)):
        notice(f"{file} is not read: {why}; name it with --project or {VARIABLE} to use it")
        return
    project = read_project(file)
    _check_tables(ctx, project)
    values = _values(project, path, ctx.command, is_named=given is not None)
    ctx.default_map = {**values, **(ctx.default_map or {})}
    ctx.find_root().meta[_META] = project
    if places := own_places(project.file):
        ctx.with_resource(library.results_manifest.placed(places))
    # as of an option with a variable: what is typed, the environment, the file, the usual
    if project.out is not None and not os.environ.get(RESULTS_VARIABLE):
        os.environ[RESULTS_VARIABLE] = str(project.out)
        ctx.call_on_close(lambda: os.environ.pop(RESULTS_VARIABLE, None))


def _check_tables(ctx: click.Context, project: Project) -> None:
    """Refuse a table that is of no command, or of a group of them; [judge] is of all judges.

    Raises:
        InputError: names the table or the key, and the nearest that is known.
    """
    root = ctx.find_root().command
    for table in project.commands if isinstance(root, click.Group) else ():
        group, head = root, f"{project.file}: [{table.replace(' ', '.')}]"
        for word in table.split():
            if not isinstance(group, click.Group):
                raise InputError(f"{head} is no command; an option has a value: {word} = …")
            known = group.list_commands(ctx)
            if word not in known:
                raise InputError(f"{head} is no command{_meant(word, known)}")
            group = group.get_command(ctx, word)
        if table != _JUDGE and isinstance(group, click.Group) and not group.invoke_without_command:
            own = ", ".join(f"[{table}.{one}]" for one in group.list_commands(ctx))
            raise InputError(f"{head} is a group of commands; name the command: {own}")


def _meant(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; wanted {', '.join(known)}"


def _of_judges(project: Project, command: click.Command, *, is_named: bool) -> Mapping[str, Any]:
    """What [judge] says of any command that asks a judge.

    Where rows are sent, a file may say that a person named.

    Raises:
        InputError: it says what no judge has, or only a person may say.
    """
    table, head = project.commands.get(_JUDGE, {}), f"{project.file}: [{_JUDGE}]"
    known = {_key(one): one for one in options_of(JudgeSettings)}
    if unknown := [key for key in table if key.replace("_", "-") not in known]:
        raise InputError(f"{head} has no {unknown[0]}{_meant(unknown[0], [*known])}")
    own = {_key(one): one for one in command.params if isinstance(one, SettingOption)}
    if _SERVER not in own:  # this one asks no judge
        return {}
    said = {key.replace("_", "-"): value for key, value in table.items()}
    for key in said.keys() & own.keys():
        goes = key in (_SERVER, _JUDGE)
        if own[key].typed and not (goes and is_named):
            raise InputError(
                f"{head} {key}: decides to whom a model's answers are sent; set it on the "
                f"command line, or in a project file that you name (--project, {VARIABLE})"
                if goes
                else f"{head} {key}: reads a secret, which no project file may ask for; give it "
                "on the command line"
            )
    base = project.file.parent
    return {
        str(own[key].name): _said(f"{head} {key}", value, own[key], base)
        for key, value in said.items()
        if key in own
    }


def _key(option: click.Option) -> str:
    return option.opts[0].removeprefix("--")


def _values(
    project: Project, path: str, command: click.Command, *, is_named: bool = False
) -> dict[str, Any]:
    """Parameter -> value, of what the command takes; its own table wins."""
    wanted = {**_ALIKE, **_OWN.get(path, {})}
    found = {
        str(one.name): _fit(getattr(project, wanted[one.name]), one, wanted[one.name])
        for one in command.params
        if one.name in wanted
    }
    said = {
        name: value
        for name, value in found.items()
        if value not in (None, "", [], _UNSAID.get(wanted[name]))
    }
    judges = _of_judges(project, command, is_named=is_named)
    return {**said, **judges, **_own_table(project, path, command)}


def _fit(value: Any, parameter: click.Parameter, key: str) -> Any:
    """Several values where several are taken; else the first retain model, or the only source."""
    many = getattr(parameter, "multiple", False) or parameter.nargs == -1
    several = value if isinstance(value, tuple) else (value,) * (value is not None)
    plain = [str(one) if isinstance(one, Path) else one for one in several]
    if many:
        return plain
    return plain[0] if len(plain) == 1 or (plain and key == "retain") else None


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
        for opt in (*one.opts, *getattr(one, "understood", ()), one.name or "")
    }
    if unknown := [key for key in table if key not in known]:
        raise InputError(
            f"{head} has no option {', '.join(unknown)}; `lensaudit {path} --help` lists them"
        )
    if refused := [key for key in table if getattr(known[key], "typed", False)]:
        raise InputError(
            f"{head} {', '.join(refused)}: runs, sends, overwrites or deletes something, which "
            "no project file may ask for; give it on the command line"
        )
    return {
        str(known[key].name): _said(f"{head} {key}", value, known[key], project.file.parent)
        for key, value in table.items()
    }


def _said(at: str, value: Any, option: click.Option, base: Path) -> Any:
    """The value of an entry of a table; where an option is repeatable, one value is a list of one.

    Raises:
        InputError: there are several where one is wanted, or one is of another kind.
    """
    several = value if isinstance(value, list) else [value]
    commas = getattr(option, "commas", False)
    if isinstance(value, list) and not (option.multiple or commas):
        raise InputError(f"{at}: found a list of {len(value)}, wanted one value")
    wanted, kinds = _kinds(option)
    for one in several:
        # to Python, true and false are numbers
        if not isinstance(one, kinds) or (isinstance(one, bool) and not option.is_flag):
            raise InputError(f"{at}: found {_in_toml(one)}, wanted {wanted}")
    said = [_placed(one, option, base) for one in several]
    if commas:
        return ",".join(map(str, said))
    return said if option.multiple else said[0]


def _placed(value: Any, option: click.Option, base: Path) -> Any:
    """A place as seen from the working folder; a name of an option that takes both as it is."""
    if not isinstance(value, str) or option.is_flag:
        return value
    if isinstance(option.type, ModelName):
        return model_seen(value, base)
    # an option of text says by its metavar that it takes a place too
    also = any(word in (option.metavar or "") for word in ("FILE", "DIR", "PATH"))
    is_one = isinstance(option.type, click.Path) or (also and is_place(value, base))
    return seen(value, base) if is_one else value


def _kinds(option: click.Option) -> tuple[str, tuple[type, ...]]:
    """What a table may say of an option, in words and as Python has it; a text is read as typed."""
    if option.is_flag:
        return "true or false", (bool, str)
    if isinstance(option.type, click.Path | ModelName):
        return "text", (str,)
    if isinstance(option.type, IntParamType):
        return "a whole number", (int, str)
    if isinstance(option.type, FloatParamType):
        return "a number", (int, float, str)
    return "text or a number", (int, float, str)


def _in_toml(value: Any) -> str:
    """A value as TOML, or the kind of value that it is.

    >>> _in_toml(True), _in_toml(2.5), _in_toml([1]), _in_toml({})
    ('true', '2.5', 'a list', 'a table')
    """
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(call: Callable[..., Any], path: str) -> Callable[..., Any]:
    """The command; before it a word on what it read, after a dry run where values came from."""

    @wraps(call)
    def run(*positional: Any, **values: Any) -> Any:
        project, ctx = current_project(), click.get_current_context()
        if values.get("dry_run"):  # nothing is written
            ctx.with_resource(library.models_hashing.looking())
        if project is None:
            return call(*positional, **values)
        names = [str(one.name) for one in ctx.command.params if one.name in values]
        sources = {one: ctx.get_parameter_source(one) for one in names}
        from_file = [n for n, said in sources.items() if said == ParameterSource.DEFAULT_MAP]
        _check_annotated(project, {name: values[name] for name in from_file})
        said = [text for one in _NAMING if one in from_file for text in values[one]]
        ctx.with_resource(library.plugins.refusing(one.partition(":")[0] for one in said))
        flags = {
            str(one.name): max(one.opts, key=len)
            if isinstance(one, click.Option)
            else one.human_readable_name
            for one in ctx.command.params
        }
        if from_file and not values.get("as_json"):
            notice(f"from {project.file}: {', '.join(flags[one] for one in from_file)}")
        values |= _sources(project, path, {**values}, from_file)
        answer = call(*positional, **values)
        if values.get("dry_run") and not values.get("as_json"):
            origins: dict[Any, str] = {**_ORIGINS, ParameterSource.DEFAULT_MAP: str(project.file)}
            say("values:")
            for key in names:
                value = ctx.params[key]  # None where it was left out, as it cannot act
                shown = ", ".join(map(str, value)) if isinstance(value, tuple | list) else value
                is_said = shown not in (None, "") and shown is not False
                if is_said and key not in ("dry_run", "as_json"):
                    say(f"  {flags[key]}: {name(shown)} ({origins.get(sources[key], 'default')})")
        return answer

    return run


def _sources(
    project: Project, path: str, values: Mapping[str, Any], from_file: Sequence[str]
) -> Mapping[str, Any]:
    """Sources that the file lists, without those that the command takes in another role.

    Raises:
        InputError: no other is listed.
    """
    of = {**_ALIKE, **_OWN.get(path, {})}
    listed = next((one for one in from_file if of.get(one) == "sources"), None)
    roles = {of[one]: one for one in values if of.get(one) in ("full", "retain")}
    if listed is None or not roles:
        return {}
    every = several(values[listed])
    is_pattern = library.sweep_settings.is_pattern
    alone = [one for one in every if not is_pattern(one) and "://" not in one]
    names = library.models_registry
    known = names.load_registry(values.get("registry"))
    named = {
        role: several(values[one]) or several(names.usual_anchor(role, alone, known))
        for role, one in roles.items()
    }
    never = [one for one in named.get("retain", ()) if one != NO_RETAIN_MODEL]
    found = library.models_family.brought_along(
        alone, named.get("full", ()), never, values.get("registry")
    )
    kept, told = [one for one in every if one in found[0] or one not in alone], found[1]
    if told is None:
        return {}
    if not kept:
        raise InputError(f"{project.file}: {told}; name the model to audit as another of sources")
    notice(f"{project.file}: {told}")
    return {listed: tuple(kept) if isinstance(values[listed], tuple) else kept[0]}


def _check_annotated(project: Project, values: Mapping[str, Any]) -> None:
    """Rows that are not annotated yet: say which command does it."""
    rows = {project.retain_data: project.retain_rows, project.data: project.forget}
    for one in ("data", "forget", "retain_set", "validity_data", "retain_data"):
        value = str(values.get(one) or "")
        if rows.get(value) is not None and not Path(value).exists():
            raise InputError(
                f"{value}: no such file; {rows[value]} is not annotated yet, run "
                "`lensaudit annotate`"
            )
