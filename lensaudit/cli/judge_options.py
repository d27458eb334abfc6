"""Options that name a language model as judge, and what it may use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
MODES = ("auto", "int100", "digit10", "letters", "sample", "text")
_FILE = click.Path(path_type=Path, dir_okay=False)

_WHO = (
    click.option("--model", help="The judge's model, as its server calls it."),
    click.option(
        "--base-url", metavar="URL",
        help="OpenAI-compatible endpoint. [default: OPENAI_BASE_URL, or OpenAI's]",
    ),
    click.option(
        "--key-env", metavar="NAME",
        help="Variable that holds the key. [default: OPENAI_API_KEY, for OpenAI's server only]",
    ),
    click.option("--key-file", type=_FILE, help="File with the key, readable by its owner only."),
    click.option(
        "--cache", type=_FILE, default=Path("experiments/out/judge.sqlite"), show_default=True,
        help="Where every answer is kept.",
    ),
    click.option(
        "--mode", type=click.Choice(MODES), default="auto", show_default=True,
        help="How a number is read; auto is what the probe finds best.",
    ),
    click.option("--timeout", "timeout_s", type=click.FloatRange(0.1), default=60.0,
                 show_default=True, help="Seconds per attempt."),
    click.option("--retries", type=click.IntRange(0), default=6, show_default=True,
                 help="After 429, 5xx, timeouts and lost connections."),
)  # fmt: skip
_CAPS = (
    click.option("--price-in", type=click.FloatRange(0), default=0.0,
                 help="Price of a million tokens sent."),
    click.option("--price-out", type=click.FloatRange(0), default=0.0,
                 help="Price of a million tokens received."),
    click.option("--max-cost", type=click.FloatRange(0), help="Stop before a call that passes it."),
    click.option("--max-calls", type=click.IntRange(0), help="At most so many calls."),
    click.option("--max-tokens-total", type=click.IntRange(0), help="At most so many tokens."),
    click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True,
                 help="Calls at once."),
)  # fmt: skip


def who_judges(command: Command) -> Command:
    """The endpoint, the key, the cache and how numbers are read."""
    return _decorated(command, _WHO)


def what_it_may_use(command: Command) -> Command:
    """Prices, caps and concurrency."""
    return _decorated(command, _CAPS)


def _decorated(command: Command, options: tuple[Any, ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def judge_options(options: dict[str, Any]) -> Any:
    """`JudgeOptions` from a command's options; those it uses are taken out.

    Raises:
        click.UsageError: no model is named.
    """
    from lensaudit.judge.budget import Caps, Prices
    from lensaudit.judge.opening import JudgeOptions

    if not options.get("model"):
        raise click.UsageError("name the judge by --model, or use --by words:…")
    mode = options.pop("mode")
    prices = Prices(options.pop("price_in", 0.0), options.pop("price_out", 0.0))
    caps = Caps(
        *(options.pop(name, None) for name in ("max_cost", "max_calls", "max_tokens_total"))
    )
    names = ("model", "base_url", "key_env", "key_file", "cache", "timeout_s", "retries",
             "concurrency", "offline", "fresh")  # fmt: skip
    own = {name: options.pop(name) for name in names if name in options}
    return JudgeOptions(**own, mode=None if mode == "auto" else mode, caps=caps, prices=prices)
