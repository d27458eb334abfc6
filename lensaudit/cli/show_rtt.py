"""What a person reads of a retraining study, and of its data."""

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lensaudit.attacks.rtt.defects import MEANINGS as DEFECTS
from lensaudit.attacks.rtt.defects import Inspection
from lensaudit.attacks.rtt.items import LETTERS, Dataset
from lensaudit.attacks.rtt.study import MEANINGS
from lensaudit.attacks.rtt.summary import Outcome, Ratio, Summary
from lensaudit.files import printable

WIDTH = 110
EXAMPLES = 2


def print_summary(summary: Summary) -> None:
    """Accuracies, recovery, other selections, remarks."""
    study = summary.study
    console = _console()
    console.print(_accuracies(summary))
    if summary.verdict.passed:
        console.print(_recovery(summary))
    for note in summary.notes:
        click.echo(f"- {printable(note)}")
    click.echo(
        f"chance {1 / study.n_choices:.0%}; held out: {', '.join(study.held_out)}; loss on "
        f"{study.sweep['loss_on']}; read by {summary.readout}"
    )


def print_inspection(dataset: Dataset, found: Inspection) -> None:
    """Sizes, the prior of the letters, and defects with examples."""
    sizes = ", ".join(f"{split.name} {len(split.items)}" for split in dataset.splits)
    click.echo(
        f"{printable(dataset.name)}: {found.n_items} items of {dataset.n_choices} choices: {sizes}"
    )
    places = zip(LETTERS, found.n_answers, strict=False)
    click.echo("right answers: " + ", ".join(f"{letter} {n}" for letter, n in places))
    for where, reason in list(dataset.left_out.items())[:EXAMPLES]:
        click.echo(
            f"left out: {printable(where)}: {printable(reason)} ({len(dataset.left_out)} in all)"
        )
    for kind, n in found.counts.items():
        defects = found.of(next(one.kind for one in found.defects if one.kind == kind))
        mark = "refused" if defects[0].blocks else "noted"
        click.echo(f"{kind} ({mark}): {n} x {DEFECTS[defects[0].kind]}")
        for one in defects[:EXAMPLES]:
            click.echo(f"    {printable(one.detail)}")
    if not found.defects:
        click.echo("no defects found")


def _console() -> Console:
    console = Console(highlight=False)
    # a pipe has no width: 80 columns would cut the names
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _accuracies(summary: Summary) -> Table:
    title = f"{summary.study.models['unlearned']} on {summary.study.data}"
    table = Table(title=escape(printable(title)))
    for name in ("", "model", "accuracy", "95 % interval", "items"):
        table.add_column(name, justify="right" if name in ("accuracy", "items") else "left")
    accuracies = {**summary.as_they_are, **summary.main.accuracies}
    for condition, meaning in MEANINGS.items():
        one = accuracies.get(condition)
        if one is None:
            table.add_row(condition, meaning, "–", "", "")
            continue
        interval = f"{one.interval.low:.3f} to {one.interval.high:.3f}"
        table.add_row(condition, meaning, f"{one.value:.3f}", interval, str(one.n))
    return table


def _recovery(summary: Summary) -> Table:
    table = Table(title="recovery, by how learning rate and epoch are selected")
    for name in ("selection", "epochs", "(B-N)/(C-N)", "95 % interval", "B/C", "(B-A)/(C-A)"):
        table.add_column(name, justify="left" if name in ("selection", "epochs") else "right")
    for outcome in (summary.main, *summary.others):
        table.add_row(outcome.selection, outcome.rule, *_ratios(outcome))
    if reason := summary.main.adjusted.reason:
        table.caption = escape(printable(reason))
    return table


def _ratios(outcome: Outcome) -> tuple[str, ...]:
    interval = outcome.adjusted.interval
    shown = f"{interval.low:.3f} to {interval.high:.3f}" if interval else ""
    return (
        _value(outcome.adjusted),
        shown,
        _value(outcome.recovery),
        _value(outcome.gap_closed),
    )


def _value(ratio: Ratio) -> str:
    return "–" if ratio.value is None else f"{ratio.value:.3f}"
