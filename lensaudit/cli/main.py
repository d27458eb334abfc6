"""The `lensaudit` command: names its sub-commands, loads one only when it is called."""

import difflib
import errno
import importlib
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from lensaudit import __version__
from lensaudit.cli.terminal import LEVELS, announce, listening
from lensaudit.errors import LensAuditError
from lensaudit.files import os_error
from lensaudit.text import printable

_USER = re.compile(r"(?<=\w\w:)(//?)[^\s/]*@")
"""User and password in an address; of a place one slash is left."""

COMMANDS = {
    "init": ("lensaudit.cli.setup:init", "Write lensaudit.toml: models and rows, named once."),
    "audit": (
        "lensaudit.cli.measure:audit_command",
        "Audit models in one go: everything, to one page.",
    ),
    "cache": ("lensaudit.cli.measure:cache_command", "Cache a model's residual streams."),
    "patch": (
        "lensaudit.cli.measure:patch_command",
        "Patch residuals into full; score unlearning depth.",
    ),
    "eval": (
        "lensaudit.cli.measure:evaluate_command",
        "Compute every metric of a suite in one pass.",
    ),
    "activations": (
        "lensaudit.cli.activations:activations",
        "List, check, repair, prune and move activation caches.",
    ),
    "models": ("lensaudit.cli.setup:models", "List model names and what they resolve to."),
    "unlearn": ("lensaudit.cli.attacks:unlearn", "Unlearn a forget set by one of 13 methods."),
    "rtt": ("lensaudit.cli.attacks:rtt", "Retrain on some forgotten facts, measure the others."),
    "effort": ("lensaudit.cli.attacks:effort", "How many steps of training bring facts back?"),
    "relearn": (
        "lensaudit.cli.attacks:relearn",
        "Fine-tune a model on the forget set: does knowledge come back?",
    ),
    "quantize": ("lensaudit.cli.attacks:quantize", "Round a model's weights to 4 or 8 bits."),
    "annotate": (
        "lensaudit.cli.setup:annotate",
        "Propose which part of each answer is scored, for an own forget set.",
    ),
    "data": ("lensaudit.cli.setup:data_command", "Make rows of other people's data sets."),
    "report": ("lensaudit.cli.results:report", "Write one HTML page of results on disk."),
    "runs": ("lensaudit.cli.results:runs", "What was run: list, show, compare, delete."),
    "meta": ("lensaudit.cli.many:meta", "Judge the metrics themselves, over many models."),
    "steer": (
        "lensaudit.cli.steering:steer_command",
        "Find directions, steer with them, audit by them.",
    ),
    "judge": ("lensaudit.cli.judge:judge", "Judge answers by a language model or word lists."),
    "worst": (
        "lensaudit.cli.attacks:worst",
        "Attack every fact: which come out?",
    ),
    "know": (
        "lensaudit.cli.measure:know_command",
        "Who has what? An exact test without a retain model.",
    ),
    "canaries": (
        "lensaudit.cli.measure:people_command",
        "Invented people, taught by coin: an exact test.",
    ),
    "sample": (
        "lensaudit.cli.attacks:sample",
        "Sample answers: how often do facts leak?",
    ),
    "sweep": ("lensaudit.cli.many:sweep", "Audit many checkpoints: plan, run, collect."),
    "lm-eval": ("lensaudit.cli.measure:lm_eval", "Run lm-evaluation-harness on a model."),
    "connect": (
        "lensaudit.cli.setup:connect",
        "Make lensaudit an evaluator of an open-unlearning checkout.",
    ),
    "watch": ("lensaudit.cli.many:watch_command", "Audit each new checkpoint of a training run."),
    "verdict": ("lensaudit.cli.results:verdict", "One verdict from all that was measured."),
    "explain": (
        "lensaudit.cli.results:explain_command",
        "Walk through the score of one fact, step by step.",
    ),
    "export": (
        "lensaudit.cli.results:export_command",
        "Write results as every_eval_ever, the Hub, Inspect and CI read them.",
    ),
    "gym": ("lensaudit.cli.many:gym", "Judge auditors on models of planted truth."),
    "verify": (
        "lensaudit.cli.results:verify_command",
        "Compare results, models, passes, books and caches with their checksums.",
    ),
    "doctor": (
        "lensaudit.cli.setup:doctor",
        "Check versions, device, disk, caches and the bridge.",
    ),
    "demo": ("lensaudit.cli.measure:demo", "Audit the embedded model family."),
    "more": ("lensaudit.cli.main:more", "List the commands that stand nowhere here."),
}
"""Name -> (module:command, line of `lensaudit --help`). The help needs no import."""


GROUPS = {
    "Main": ("init", "annotate", "audit", "verdict", "report", "demo"),
    "Measure": ("patch", "know", "eval", "steer", "judge"),
    "Attack": ("worst", "sample", "relearn", "effort", "rtt", "quantize"),
    "Many models": ("sweep", "gym"),
    "Housekeeping": ("cache", "runs", "doctor", "more"),
}
"""Heading of the help -> commands; what stands nowhere is listed by `lensaudit more`."""
USERS = (
    LensAuditError,
    click.ClickException,
    KeyboardInterrupt,
    MemoryError,
    RuntimeError,
    OSError,
    UnicodeEncodeError,
)
"""Errors of which some or all are no bugs."""
SILENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
}
"""Variables that keep remarks and bars of other packages off stderr, where nobody set them."""
HUB_READS = ("HF_ENDPOINT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
"""Variables of the Hub's client that hold an address or a number."""


@contextmanager
def _piped() -> Iterator[None]:
    """Where the reader of stdout left (`| head`), end as a pipe's writer does, silently.

    Of this error click itself makes exit code 1, which is that of a failure.
    """
    try:
        yield
        stdout: Any = sys.stdout
        if stdout is not None:  # it was closed before: `>&-`
            stdout.flush()
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(128 + signal.SIGPIPE) from error


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        from lensaudit.cli import project  # the help of `lensaudit` needs none

        module, attribute = COMMANDS[cmd_name][0].split(":")
        return project.as_all(getattr(importlib.import_module(module), attribute), cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that is named; an unknown one is answered with the nearest."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            meant = "".join(f" Did you mean '{one}'?" for one in near)
            ctx.fail(f"No such command '{args[0]}'.{meant}")
        return super().resolve_command(ctx, args)

    def make_context(self, *named: Any, **extra: Any) -> click.Context:
        """Read the command line, and print the help of `lensaudit`."""
        with _piped():
            return super().make_context(*named, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _piped():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help lines, from the table alone."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="lensaudit")
@click.option("-v", "--verbose", is_flag=True, help="Show third-party warnings and progress bars.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no remarks; errors only.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    envvar="LENSAUDIT_LOG_LEVEL",
    help="error is -q, debug is -v; warning: remarks and no progress.",
)
@click.pass_context
def cli(ctx: click.Context, verbose: bool, quiet: bool, log_level: str) -> None:
    """Is unlearned knowledge gone, or only hidden? Audits a language model from inside.

    Results go to stdout, progress and remarks to stderr. Completion in the shell: run
    `eval "$(_LENSAUDIT_COMPLETE=bash_source lensaudit)"`, or with zsh_source or fish_source.
    """
    level = "error" if quiet else "debug" if verbose else log_level
    ctx.params["log_level"] = level
    ctx.with_resource(listening(level))
    if level != "debug":
        warnings.filterwarnings("ignore")
        os.environ.update(SILENT | dict(os.environ))
    if named := [one for one in os.environ if one in HUB_READS]:
        _check_hub_reads(named)


def _check_hub_reads(named: Sequence[str]) -> None:
    """Refuse what the Hub's client cannot read; it reads these variables when it is imported."""
    try:
        from huggingface_hub import get_session  # a tenth of a second

        get_session()
    except ValueError:  # quotes the address, and with it a password
        raise click.UsageError(
            f"{', '.join(named)}: huggingface_hub cannot read it; wanted http(s)://host[:port], of "
            "a timeout seconds; correct or unset it"
        ) from None


@click.command()
@click.pass_context
def more(ctx: click.Context) -> None:
    """List the commands that `lensaudit --help` leaves out."""
    shown = [name for names in GROUPS.values() for name in names]
    formatter = ctx.make_formatter()
    formatter.write_dl([(name, COMMANDS[name][1]) for name in COMMANDS if name not in shown])
    click.echo(formatter.getvalue().rstrip())


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run, and turn every user's mistake into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        # a name that the terminal's encoding lacks is escaped, and ends no command
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    announce(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; see the table in docs/terminal.md."""
    try:
        answer: Any = cli.main(args=arguments, prog_name="lensaudit", standalone_mode=False)
    except USERS as error:
        if (said := _said(error)) is None:
            raise
        return complain(*said)
    return answer if isinstance(answer, int) else 0


def _said(error: BaseException) -> tuple[str, int] | None:
    """The line for an error, and the exit code; None of a bug."""
    from lensaudit.cli import options, project

    match error:
        case LensAuditError():
            return str(error), error.exit_code
        case click.NoSuchOption():
            return options.suggestion(error), 2
        case click.MissingParameter():
            return project.lacking(error), 2
        case click.ClickException():
            return error.format_message(), 2
        case click.exceptions.Abort() | KeyboardInterrupt():
            return "interrupted; finished batches are kept, run the same command again", 130
        case RecursionError():
            return "an input is nested too deep; nothing was written", 2
        case OSError() | UnicodeEncodeError() if getattr(error, "errno", None) != errno.ENOMEM:
            return _of_the_system(error)
    # torch says a lack of memory in a RuntimeError
    what = "out of memory; finished batches are kept, run again with a smaller --batch-size"
    is_bug = isinstance(error, RuntimeError) and "memory" not in str(error)
    return None if is_bug else (f"{what} or --memory", 1)


def _of_the_system(error: OSError | UnicodeEncodeError) -> tuple[str, int]:
    """The line for what no check foresaw, as a name too long for any disk, and the exit code."""
    if isinstance(error, UnicodeEncodeError):
        name = printable(str(error.object)[:80])
        return f"{name!r}: the file system's encoding lacks a character of it", 2
    if error.filename is None and not _has_place():
        return "the working folder was deleted; change into one that is there", 2
    said = os_error(error, Path(str(error.filename or "?")))
    return str(said), said.exit_code


def _has_place() -> bool:
    """Is the working folder still there?"""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def complain(message: str, exit_code: int) -> int:
    """Print at most three lines on stderr and return the exit code.

    An address that was typed where a place or name is wanted loses its user and password.
    """
    shown = _USER.sub(r"\1…@", printable(message))
    click.echo("lensaudit: " + "\n".join(shown.splitlines()[:3]), err=True)
    return exit_code


if __name__ == "__main__":
    main()
