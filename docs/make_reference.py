"""Pages of the site: one for each command, one of all public names; from help and docstrings."""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import lensaudit
from lensaudit.cli.main import COMMANDS, cli
from lensaudit.cli.options import EVERY

DOCS = Path(__file__).resolve().parent
WIDTH = 80
"""Characters of a line of help: what a page shows without scrolling."""
MODULES = ("lensaudit.doors.frames", "lensaudit.doors.plot")
"""Modules whose functions are public as they are."""


@functools.cache
def pages() -> dict[str, str]:
    """Content of every page, by its place in the site."""
    commands = {f"reference/commands/{name}.md": command_page(name) for name in COMMANDS}
    return {
        "reference/commands.md": commands_page(),
        **commands,
        "reference/python.md": python_page(),
    }


def summaries() -> dict[str, str]:
    """What each page is for, in the words of the command's own list."""
    commands = {f"reference/commands/{name}.md": text for name, (_, text) in COMMANDS.items()}
    return {
        "reference/commands.md": "all commands, a page each",
        **commands,
        "reference/python.md": "all public names",
    }


def commands_page() -> str:
    rows = [
        f"| [lensaudit {name}](commands/{name}.md) | {text} |"
        for name, (_, text) in COMMANDS.items()
    ]
    table = "\n".join(["| command | what |", "|---|---|", *rows])
    return "\n".join(["# Commands\n", _help(cli, "lensaudit"), table]) + "\n"


def command_page(name: str) -> str:
    """Help of a command and of its subcommands, and the pages that show it at work."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    parts = [f"# lensaudit {name}\n", *_with_subcommands(command, f"lensaudit {name}")]
    if links := [f"- [{path}](../../{path})" for path in _examples(name)]:
        parts.append("## Examples\n\n" + "\n".join(links) + "\n")
    return "\n".join(parts)


def _examples(name: str) -> list[str]:
    """Pages of docs/ and docs/doors/ with a block that calls the command."""
    call = re.compile(rf"^lensaudit {name}\b(?!-)", re.M)
    shell = re.compile(r"^```(?:sh|text)\b.*?^```$", re.M | re.S)
    return [
        path.relative_to(DOCS).as_posix()
        for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("doors/*.md")])
        if any(call.search(block) for block in shell.findall(path.read_text()))
    ]


def _with_subcommands(command: click.Command, name: str) -> Iterator[str]:
    yield _help(command, name)
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield f"## {name} {inner}\n"
                yield from _with_subcommands(found, f"{name} {inner}")


def _help(command: click.Command, name: str) -> str:
    context = click.Context(
        command,
        info_name=name,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **cli.context_settings,  # inherited by every command where it is called
    )
    context.meta[EVERY] = True
    return f"```text\n{command.get_help(context)}\n```\n"


def public_names() -> list[tuple[str, str]]:
    """Public names and their modules, in the order of the stub."""
    stub = ast.parse(Path(lensaudit.__file__ or "").with_suffix(".pyi").read_text())
    return [
        (alias.name, f"lensaudit.{node.module}")
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not inspect.ismodule(getattr(lensaudit, alias.name))
    ]


def python_page() -> str:
    by_module: dict[str, list[str]] = {}
    for name, module in public_names():
        by_module.setdefault(module, []).append(name)
    for module in MODULES:
        loaded = importlib.import_module(module)
        own = [
            name
            for name, value in vars(loaded).items()
            if inspect.isfunction(value) and value.__module__ == module and name[:1] != "_"
        ]
        by_module[module] = own
    parts = ["# Python\n", "`import lensaudit as la`; each name is loaded when it is used.\n"]
    for module, names in by_module.items():
        loaded = importlib.import_module(module)
        parts.append(f"## {module}\n\n{_first_line(loaded)}\n")
        where = f"la.{module.rpartition('.')[2]}" if module in MODULES else "la"
        parts += [_entry(getattr(loaded, name), f"{where}.{name}") for name in names]
    return "\n".join(parts)


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").splitlines()[0]


def _entry(value: Any, name: str) -> str:
    doc = textwrap.indent(inspect.getdoc(value) or "", "    ")
    return f"### {name}\n\n```text\n{name}{_signature(value)}\n\n{doc}\n```\n"


def _signature(value: Any) -> str:
    """As written in the source: evaluated annotations of tensors are long."""
    if isinstance(record := getattr(value, "settings", None), type):
        first = (
            "source: Place | Sequence[Place], out: Place | None = None, progress: Tell = unheard"
        )
        return f"({first}, progress: Tell = unheard, *, {', '.join(_fields_of(record))})"
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"({ast.unparse(node.args)}){returns}"
    return f"({', '.join(_fields(node))})"


def _fields_of(record: type) -> list[str]:
    """The fields of a dataclass, those of its bases first."""
    own = [one for one in reversed(record.__mro__) if one is not object]
    trees = [ast.parse(textwrap.dedent(inspect.getsource(one))).body[0] for one in own]
    return [field for tree in trees for field in _fields(tree)]


def _fields(node: ast.stmt) -> list[str]:
    return [ast.unparse(one) for one in getattr(node, "body", []) if isinstance(one, ast.AnnAssign)]
