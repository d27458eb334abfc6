"""`lensaudit demo`: the embedded family, audited from nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lensaudit.cli.options import ProgressBar, notice, shared
from lensaudit.cli.terminal import dim, emit, number, row, say, show, table

if TYPE_CHECKING:
    from lensaudit.auditing.demo import Demo


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
        emit([one.summary for one in found.patched.results])
    else:
        print_demo(found)


def print_demo(found: "Demo") -> None:
    """What each model says, what it holds, and what follows."""
    from lensaudit.auditing.demo import FULL, RETAIN
    from lensaudit.results.words import verdict

    columns = ["model", "says the answer\n(nats per token)", "UDS: 0 held, 1 erased"]
    shown = table("What each model says, and what it still holds", columns, left=("model",))
    calibration = found.patched.results[0].summary["calibration"]
    for name in (FULL, RETAIN):
        anchor = name.rpartition("/")[2]
        row(shown, dim(name), number(found.says[name], 2), number(calibration[anchor]))
    shown.add_section()
    for one in sorted(found.patched.results, key=lambda one: one.uds or 0.0):
        low, high = one.ci95 or (float("nan"), float("nan"))
        says = number(found.says[one.source], 2)
        row(shown, one.source, says, f"{number(one.uds)} [{low:.2f}, {high:.2f}]")
    show(shown)
    for one in found.patched.results:
        say(verdict(one.summary))
    say("")
    say(f"Stopped saying it but still holding it: {', '.join(found.hidden) or 'none'}.")
    say(f"Really without it: {', '.join(found.erased) or 'none'}.")
    say("Next: lensaudit patch --source NAME --full … --retain … --data forget.json")
