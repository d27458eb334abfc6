"""The demo: what each model says, what it holds, and what follows."""

from collections.abc import Iterator

from lensaudit.auditing.demo import Demo
from lensaudit.screen.cells import interval, no_interval, number
from lensaudit.screen.tables import Part, dim, row, table
from lensaudit.verdict.decide import Code

_SAID: tuple[tuple[str, tuple[Code, ...]], ...] = (
    ("Says it once its answer is begun", ("answers",)),
    ("Does not say it, and holds it", ("hidden", "hidden_other_basis")),
    ("As without it, in the stream", ("erased",)),
    ("Between, or not decided", ("partly_erased", "unreadable", "undecided")),
)


def _says(share: float) -> str:
    """A share of the facts."""
    return f"{share:.0%}"


def _answers(found: Demo, name: str) -> list[float | None]:
    """One cell, or none where nobody was asked."""
    return [found.answers[name]] if found.answers else []


def of_demo(found: Demo) -> Iterator[Part]:
    """What each model says, what it holds, and what follows."""
    asked = ["asked,\nanswers"] if found.answers else []
    columns = ["model", *asked, "begun,\nsays it", "UDS: 0 held, 1 erased", "aligned"]
    shown = table("What each model says, and what it still holds", columns, left=("model",))
    first = found.patched.results[0].summary
    for name in (found.full, found.retain):
        anchor = name.rpartition("/")[2]
        row(
            shown,
            dim(name),
            *(number(one) for one in _answers(found, name)),
            _says(first["outputs"][anchor]),
            number(first["calibration"][anchor]),
        )
    shown.add_section()
    for one in sorted(found.patched.results, key=lambda one: one.uds or 0.0):
        summary = one.summary
        value = f"{number(one.uds)} {interval(one.ci95, no_interval(summary))}"
        row(
            shown,
            one.source,
            *(number(said) for said in _answers(found, one.source)),
            _says(summary["outputs"]["source"]),
            value,
            number(summary["aligned"]["uds"]),
        )
    yield shown
    for one in found.verdicts.values():
        yield one.sentence
    yield ""
    for words, codes in _SAID:
        yield f"{words}: {', '.join(found.found(*codes)) or 'none'}."
    if found.answers:
        yield "answers: ROUGE-L of what it writes when it is asked, 1 for the true answers."
    yield "says it: of 64 facts, those word for word after the beginning of the answer."
    yield "Next: lensaudit patch --source NAME --full … --retain … --data forget.json"
