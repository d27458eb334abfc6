"""One vocabulary over all commands: short forms, sections of the help, and the word for another."""

import difflib
from functools import partial
from typing import Any, get_args

import click

from lensaudit.settings import Section

EVERY = "lensaudit.every"
"""Key of a context in which experts' options are shown."""
SAME = (
    ("--source", "--sources", "--model", "--models", "--unlearned", "--unlearn"),
    ("--full", "--original", "--base", "--target", "--finetuned"),
    ("--retain", "--control", "--retrain", "--gold"),
    ("--data", "--dataset", "--forget", "--forget-data", "--forget-set"),
    ("--retain-data", "--retain-set", "--retain-rows"),
    ("--metric", "--metrics"),
    ("--out", "--output", "--output-dir", "--save"),
    ("--limit", "--n", "--max-examples", "--num-examples"),
    ("--batch-size", "--bs", "--batch"),
    ("--epochs", "--num-epochs"),
    ("--lr", "--learning-rate"),
    ("--device", "--gpu", "--cuda"),
    ("--dtype", "--precision"),
)
"""Words for one thing, the house's first."""


def with_vocabulary(command: click.Command) -> click.Command:
    """The command, and those inside it, with `-o`, `-q`, `--help-all` and sections in its help."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_vocabulary(inner)
        if not command.invoke_without_command:
            return command
    if any(one.name == "quieter" for one in command.params):
        return command
    for one in command.params:
        if "--out" in one.opts and "-o" not in one.opts:
            one.opts.insert(0, "-o")
    quiet = _switch("-q --quiet quieter", "No progress and no remarks; errors only.", _quiet)
    every = _switch("--help-all", "Show every option, experts' too, and exit.", _show_every)
    is_long = any(getattr(one, "expert", False) for one in command.params)
    command.params += [quiet, every] if is_long else [quiet]
    vars(command)["format_options"] = partial(_format_options, command)
    return command


def _switch(flags: str, said: str, callback: Any) -> click.Option:
    return click.Option(
        flags.split(), is_flag=True, expose_value=False, is_eager=True, callback=callback, help=said
    )


def _format_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Options under the headings of their settings; experts' where all are asked for."""
    found: dict[Section, list[tuple[str, str]]] = {}
    for one in command.get_params(ctx):
        line = one.get_help_record(ctx)
        if line and (ctx.meta.get(EVERY) or not getattr(one, "expert", False)):
            found.setdefault(getattr(one, "section", "Output"), []).append(line)
    for section in get_args(Section):
        if section in found:
            with formatter.section(section if len(found) > 1 else "Options"):
                formatter.write_dl(found[section])
    if isinstance(command, click.Group):
        command.format_commands(ctx, formatter)


def _show_every(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[EVERY] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def suggestion(error: click.NoSuchOption) -> str:
    """The message, with the option of this command that means the same, or is spelled alike."""
    wanted = error.option_name
    known = [] if error.ctx is None else _options_of(error.ctx.command)
    for words in SAME:
        if wanted in words and (here := next((one for one in words if one in known), None)):
            return f"No such option '{wanted}': here it is {here}"
    near = difflib.get_close_matches(wanted, known, n=3)
    return f"No such option '{wanted}'" + (f"; did you mean {', '.join(near)}?" if near else "")


def _options_of(command: click.Command) -> list[str]:
    return [opt for one in command.params if isinstance(one, click.Option) for opt in one.opts]


def _quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().params["quiet"] = True
