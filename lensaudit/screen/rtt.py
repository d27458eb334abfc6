"""Retraining on T: accuracies and recovery; and what is wrong with the data."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from lensaudit.attacks.rtt.defects import MEANINGS as DEFECTS
from lensaudit.attacks.rtt.items import LETTERS
from lensaudit.attacks.rtt.log import MEANINGS as CONDITIONS
from lensaudit.attacks.rtt.summary import Summary
from lensaudit.screen.cells import interval, name, number
from lensaudit.screen.tables import Part, row, table

if TYPE_CHECKING:
    from lensaudit.attacks.rtt.runs import Validated  # seconds to import, for a log that is read

EXAMPLES = 2
"""Of each kind of defect."""


def of_summary(summary: Summary) -> Iterator[Part]:
    """Accuracies, recovery, other selections, remarks."""
    study = summary.study
    yield _accuracies(summary)
    if summary.verdict.passed:
        yield _recovery(summary)
        yield summary.reading
    for note in summary.notes:
        yield f"- {note}"
    yield (
        f"chance {1 / study.n_choices:.0%}; held out: {', '.join(study.held_out)}; loss on "
        f"{study.sweep['loss_on']}; read by {summary.readout}"
    )


def _accuracies(summary: Summary) -> Table:
    made = table(
        f"{summary.study.models['unlearned']} on {summary.study.data}",
        ("", "model", "accuracy", "95 % interval", "items"),
        left=("", "model", "95 % interval"),
    )
    accuracies = {**summary.as_they_are, **summary.main.accuracies}
    for condition, meaning in CONDITIONS.items():
        one = accuracies.get(condition)
        if one is None:
            row(made, condition, meaning, "–", "", "")
            continue
        shown = interval(one.ends, one.why or "–")
        row(made, condition, meaning, number(one.value), shown, str(one.n))
    return made


def _recovery(summary: Summary) -> Table:
    made = table(
        "recovery, by how learning rate and epoch are selected",
        ("selection", "epochs", "(B-N)/(C-N)", "95 % interval", "B/C", "(B-A)/(C-A)"),
        left=("selection", "epochs"),
    )
    for one in (summary.main, *summary.others):
        adjusted = one.adjusted
        row(
            made,
            one.selection,
            one.rule,
            number(adjusted.value),
            interval(adjusted.ends, adjusted.why or "" if adjusted.value is not None else ""),
            number(one.recovery.value),
            number(one.gap_closed.value),
        )
    if summary.main.adjusted.value is None:
        made.caption = name(summary.main.adjusted.why)
    return made


def of_data(seen: "Validated") -> Iterator[str]:
    """Sizes, the prior of the letters, and defects with examples."""
    data, found = seen.data, seen.found
    sizes = ", ".join(f"{split.name} {len(split.items)}" for split in data.splits)
    yield f"{data.name}: {found.n_items} items of {data.n_choices} choices: {sizes}"
    places = zip(LETTERS, found.n_answers, strict=False)
    yield "right answers: " + ", ".join(f"{letter} {n}" for letter, n in places)
    for where, reason in list(data.left_out.items())[:EXAMPLES]:
        yield f"left out: {where}: {reason} ({len(data.left_out)} in all)"
    for kind, n in found.counts.items():
        defects = found.of(next(one.kind for one in found.defects if one.kind == kind))
        mark = "refused" if defects[0].blocks else "noted"
        yield f"{kind} ({mark}): {n} x {DEFECTS[defects[0].kind]}"
        for one in defects[:EXAMPLES]:
            yield f"    {one.detail}"
    if not found.defects:
        yield "no defects found"
