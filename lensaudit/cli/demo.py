"""`lensaudit demo`: the embedded family, audited from nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.cli.options import ProgressBar, notice, shared
from lensaudit.cli.terminal import (
    dim,
    emit,
    interval,
    no_interval,
    number,
    row,
    say,
    show,
    table,
)

if TYPE_CHECKING:
    from lensaudit.auditing.demo import Demo
    from lensaudit.results.verdict import Code

_SAID: tuple[tuple[str, tuple["Code", ...]], ...] = (
    ("Says it once its answer is begun", ("intact",)),
    ("Does not say it, and holds it", ("hidden", "hidden_other_basis")),
    ("As without it, in the stream", ("erased",)),
    ("Between, or not decided", ("partly_erased", "unreadable", "undecided")),
)


def says(share: float) -> str:
    """A share of the facts."""
    return f"{share:.0%}"


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("experiments/out/demo"),
    show_default=True,
    help="Result folder.",
)
@shared("activations", "json")
def demo(out: Path, activations: Path, as_json: bool) -> None:
    """Audit every unlearned model of the embedded family, and say what was found.

    No network and no GPU. The family was trained on fictional authors, so the truth is known.
    """
    from lensaudit.auditing.demo import demo_into

    with ProgressBar() as bar:
        found = demo_into(out, activations=activations, notice=notice, progress=bar.tell)
    if as_json:
        results = found.patched.results
        emit([{**one.summary, "answers": found.answers[one.source]} for one in results])
    else:
        print_demo(found)


def print_demo(found: "Demo") -> None:
    """What each model says, what it holds, and what follows."""
    from lensaudit.auditing.demo import FULL, RETAIN
    from lensaudit.results.words import verdict

    columns = [
        *("model", "asked,\nanswers", "begun,\nsays it"),
        *("UDS: 0 held, 1 erased", "aligned"),
    ]
    shown = table("What each model says, and what it still holds", columns, left=("model",))
    first = found.patched.results[0].summary
    for name in (FULL, RETAIN):
        anchor = name.rpartition("/")[2]
        row(
            shown,
            dim(name),
            number(found.answers[name]),
            says(first["outputs"][anchor]),
            number(first["calibration"][anchor]),
        )
    shown.add_section()
    for one in sorted(found.patched.results, key=lambda one: one.uds or 0.0):
        summary = one.summary
        value = f"{number(one.uds)} {interval(one.ci95, no_interval(summary))}"
        row(
            shown,
            one.source,
            number(found.answers[one.source]),
            says(summary["outputs"]["source"]),
            value,
            number(summary["aligned"]["uds"]),
        )
    show(shown)
    for one in found.patched.results:
        say(verdict(one.summary))
    say("")
    for words, codes in _SAID:
        say(f"{words}: {', '.join(found.found(*codes)) or 'none'}.")
    say("answers: ROUGE-L of what it writes when it is asked, 1 for the true answers.")
    say("says it: of 64 facts, those word for word after the beginning of the answer.")
    say("Next: lensaudit patch --source NAME --full … --retain … --data forget.json")
