"""Results in Python, printed as their commands print them."""

from collections.abc import Iterator, Sequence

from lensaudit.attacks.effort.runs import EffortResult
from lensaudit.attacks.worst import WorstResult
from lensaudit.auditing.result import AuditResult, EvaluationResult, PatchResult
from lensaudit.files import printable
from lensaudit.screen.attacks import of_effort, of_worst
from lensaudit.screen.depth import of_runs
from lensaudit.screen.evaluation import values
from lensaudit.screen.tables import Part, console

Result = PatchResult | AuditResult | EvaluationResult | EffortResult | WorstResult
"""What `la.patch`, `la.audit`, `la.evaluate`, `la.effort` and `la.worst` return."""


def show(results: Result | Sequence[Result]) -> None:
    """Print tables and sentences of one result, or of several together.

    >>> la.show(la.patch(["demo/npo", "demo/idknll"]))  # doctest: +SKIP
    """
    screen = console()
    for part in parts_of(results if isinstance(results, Sequence) else [results]):
        print(printable(part)) if isinstance(part, str) else screen.print(part)


def parts_of(results: Sequence[Result]) -> Iterator[Part]:
    """What is shown: depths of one score stand in one table, all else one after another."""
    runs = [one for one in results if isinstance(one, PatchResult | AuditResult)]
    for score in sorted({one.summary["score"]: None for one in runs}, key="em".__eq__):
        found = [one for one in runs if one.summary["score"] == score]
        sentences = [] if score == "em" else [one.verdict.sentence for one in found]
        yield from of_runs([one.summary for one in found], sentences=sentences)
    for one in results:
        if isinstance(one, EvaluationResult):
            yield from values(one)
        elif isinstance(one, AuditResult) and one.evaluation is not None:
            yield from values(one.evaluation)
        elif isinstance(one, EffortResult):
            yield from of_effort(one.record)
        elif isinstance(one, WorstResult):
            yield from of_worst(one.record)
