"""Results in Python, printed as their commands print them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lensaudit.auditing.result import AuditResult, EvaluationResult, PatchResult
from lensaudit.errors import InputError
from lensaudit.kinds.directions import DirectionsRecord
from lensaudit.kinds.effort import EffortRecord
from lensaudit.kinds.judge import JudgeRecord
from lensaudit.kinds.meta import Aggregates, MetaTable
from lensaudit.kinds.sample import SampleRecord
from lensaudit.kinds.steering import CoefficientSweep, LayerSweep
from lensaudit.kinds.worst import WorstRecord
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.run import RunResult
from lensaudit.screen.attacks import of_effort, of_know, of_sample, of_worst
from lensaudit.screen.cells import name
from lensaudit.screen.depth import of_runs
from lensaudit.screen.evaluation import of_judged, values
from lensaudit.screen.meta import of_aggregates, of_meta_table
from lensaudit.screen.steer import of_coefficients, of_directions, of_layers
from lensaudit.screen.tables import Part, console

TABLES: Mapping[type, Callable[[Any], Iterator[Part]]] = {
    EffortRecord: of_effort,
    WorstRecord: of_worst,
    SampleRecord: of_sample,
    KnowRecord: of_know,
    DirectionsRecord: of_directions,
    CoefficientSweep: of_coefficients,
    LayerSweep: of_layers,
    MetaTable: of_meta_table,
    Aggregates: of_aggregates,
    JudgeRecord: of_judged,
}
"""Record of a kind -> its tables; depths and evaluations have their own."""
Result = RunResult | EvaluationResult
"""What `la.patch`, `la.audit`, `la.know`, attacks and `la.evaluate` return."""


def show(results: Any) -> None:
    """Print tables and sentences of one result, or of several together.

    Raises:
        InputError: something that is no result.

    >>> la.show(la.patch(["demo/npo", "demo/idknll"]))  # doctest: +SKIP
    """
    several: list[Any] = [*results] if isinstance(results, Sequence) else [results]
    if odd := [one for one in several if not isinstance(one, Result)]:
        raise InputError(f"show: found {odd[0]!r:.60}, wanted results of la.patch and its like")
    screen = console()
    for part in parts_of(several):
        print(name(part)) if isinstance(part, str) else screen.print(part)


def parts_of(results: Sequence[Result]) -> Iterator[Part]:
    """Tables to show: depths of one score in one table, everything else one after another."""
    runs = [one for one in results if isinstance(one, PatchResult | AuditResult)]
    for score in sorted({one.score: None for one in runs}, key="em".__eq__):
        found = [one for one in runs if one.score == score]
        sentences = [] if score == "em" else [one.verdict.sentence for one in found]
        yield from of_runs([one.record for one in found], sentences=sentences)
    for one in results:
        said = one.evaluation if isinstance(one, AuditResult) else one
        if isinstance(said, EvaluationResult):
            yield from values(said)
        elif said is not None and type(said.record) in TABLES:
            yield from TABLES[type(said.record)](said.record)
