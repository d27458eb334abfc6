"""Options that several commands share, and how they report."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lensaudit.files import printable

Command = TypeVar("Command", bound=Callable[..., Any])


def shared(*names: str) -> Callable[[Command], Command]:
    """The named options, in this order in the help."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = OPTIONS[name](command)
        return command

    return decorate


class BatchSize(click.ParamType):
    """`auto` or a positive number; `auto` is None."""

    name = "auto|N"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        """A number, or None for `auto`."""
        if value is None or value == "auto":
            return None
        if str(value).isdigit() and int(value) > 0:
            return int(value)
        self.fail(f"{value!r} is not auto or a number from 1", param, ctx)


class ModelName(click.ParamType):
    """A model as the user names it; the shell completes registered names and folders."""

    name = "name"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Names of the registry that begin so; where none does, the shell completes paths."""
        from lensaudit.models.registry import load_registry

        known = [name for name in load_registry().specs if name.startswith(incomplete)]
        return [CompletionItem(name) for name in known] or [CompletionItem(incomplete, type="dir")]


def _path(**kind: bool) -> click.Path:
    return click.Path(path_type=Path, **kind)


OPTIONS: dict[str, Callable[[Any], Any]] = {
    "sources": click.option(
        "--source",
        "sources",
        type=ModelName(),
        multiple=True,
        required=True,
        help="Model to audit. Repeatable.",
    ),
    "full": click.option(
        "--full", type=ModelName(), help="Model patched into. [default: full, or demo/full]"
    ),
    "retain": click.option(
        "--retain", type=ModelName(), help="Model that never saw the forget set. [default: retain]"
    ),
    "data": click.option(
        "--data",
        metavar="NAME|FILE",
        help="Forget set: forget10, demo, or a JSON/JSONL file. "
        "[default: forget10; demo for demo/… models]",
    ),
    "exclude": click.option(
        "--exclude",
        multiple=True,
        metavar="FILTER",
        help="Leave out a named index list, e.g. v2_full_wrong. Repeatable.",
    ),
    "registry": click.option(
        "--registry",
        type=_path(),
        envvar="LENSAUDIT_REGISTRY",
        help="TOML or JSON file that adds or overrides model names.",
    ),
    "dtype": click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="Of weights and activations; auto is float32 on a CPU, bfloat16 on CUDA.",
    ),
    "device": click.option(
        "--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 …"
    ),
    "attn": click.option(
        "--attn",
        type=click.Choice(["eager", "sdpa"]),
        default="eager",
        show_default=True,
        help="Attention of the Hugging Face model; the bridge computes its own, eager one.",
    ),
    "batch_size": click.option(
        "--batch-size",
        type=BatchSize(),
        default="auto",
        show_default=True,
        help="Examples per batch; auto chooses from --memory.",
    ),
    "memory": click.option(
        "--memory", default="2G", show_default=True, help="Budget above the weights, e.g. 800M."
    ),
    "limit": click.option(
        "--limit", type=click.IntRange(min=1), help="Only the first N examples of the set."
    ),
    "activations": click.option(
        "--activations",
        type=_path(file_okay=False),
        default=Path("activations"),
        show_default=True,
        help="Folder of the activation caches.",
    ),
    "json": click.option(
        "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."
    ),
    "dry_run": click.option(
        "--dry-run", is_flag=True, help="Print the plan; load and write nothing."
    ),
    "fresh": click.option("--fresh", is_flag=True, help="Ignore scores of earlier runs."),
}


def check_names(names: Iterable[str | None], registry: Path | None) -> None:
    """Refuse an unknown model name at once, before anything that takes seconds is imported."""
    from lensaudit.models.registry import load_registry, resolve

    known = load_registry(registry)
    for name in names:
        if name is not None:
            resolve(name, known)


def is_quiet() -> bool:
    """Whether `lensaudit --quiet` was asked for: results and errors only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def notice(text: str) -> None:
    """A remark that changes nothing of the result, on stderr; names in it may be anybody's."""
    if not is_quiet():
        click.echo(f"lensaudit: {printable(text)}", err=True)


class ProgressBar:
    """Progress on stderr: one bar with rate and time left on a terminal, else a line a tenth."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._tenths: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total`."""
        if is_quiet():
            return
        what = printable(what)
        if sys.stderr.isatty():
            self._draw(what, done, total)
            return
        tenth = 10 * done // max(1, total)
        if self._tenths.get(what) != tenth:
            self._tenths[what] = tenth
            click.echo(f"{what}: {done}/{total}", err=True)

    def _draw(self, what: str, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(f"{task.speed:.3g}/s" if task.speed else "")

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                Rate(), TimeElapsedColumn(), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
