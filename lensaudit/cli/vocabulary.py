"""One vocabulary over all commands: short forms, and what an unknown option means."""

import difflib

import click

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
    """The command, and those inside it, with `-o` and `-q`."""
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
    command.params.append(
        click.Option(
            ["-q", "--quiet", "quieter"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_quiet,
            help="No progress and no remarks; errors only.",
        )
    )
    return command


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
