"""The table of kinds: of each the record that its file holds. A new kind is a file and a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lensaudit.results.kinds.curve import CurveRow
from lensaudit.results.kinds.directions import DirectionsRecord
from lensaudit.results.kinds.effort import EffortRecord
from lensaudit.results.kinds.eval import LOGS
from lensaudit.results.kinds.judge import JudgeRecord
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.meta import Aggregates, MetaTable
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.kinds.relearn import RelearnRecord
from lensaudit.results.kinds.rtt import RttRecord
from lensaudit.results.kinds.sample import SampleRecord
from lensaudit.results.kinds.steering import SteeringRecord, TraitMatrix
from lensaudit.results.kinds.worst import WorstRecord
from lensaudit.results.reading import SUMMARY, JsonObject, checked_as

Kind = Literal[
    "patch",
    "eval",
    "steering",
    "traits",
    "directions",
    "rtt",
    "relearn",
    "effort",
    "curve",
    "worst",
    "sample",
    "know",
    "counterfactual",
    "meta",
    "aggregate",
    "judge",
]


@dataclass(frozen=True)
class ResultKind:
    """A row of the table."""

    record: Any
    """What the file that marks a result holds."""
    files: Sequence[str] = (SUMMARY,)
    """What that file may be called."""
    said: Sequence[str] = ()
    """What it says of itself where no manifest says the kind, beside the kind's own name."""


KINDS: Mapping[Kind, ResultKind] = {
    "patch": ResultKind(PatchSummary),
    # a log in another tool's layout: `kinds.eval` reads it
    "eval": ResultKind(JsonObject, LOGS),
    "steering": ResultKind(
        SteeringRecord, ("results.json", "layer_sweep.json"), ("steer-results", "steer-sweep")
    ),
    "traits": ResultKind(TraitMatrix, ("traits.json",), ("steer-traits",)),
    "directions": ResultKind(DirectionsRecord, said=("steer-audit",)),
    "rtt": ResultKind(list[RttRecord]),
    "relearn": ResultKind(RelearnRecord, ("audit.json",)),
    "effort": ResultKind(EffortRecord),
    "curve": ResultKind(list[CurveRow], ("curve.json",)),
    "worst": ResultKind(WorstRecord),
    "sample": ResultKind(SampleRecord),
    "know": ResultKind(KnowRecord),
    "counterfactual": ResultKind(PatchSummary),
    "meta": ResultKind(MetaTable, ("meta_table.json",), ("meta_table",)),
    "aggregate": ResultKind(Aggregates, ("aggregate.json",)),
    "judge": ResultKind(JudgeRecord),
}
"""Kind of a result -> what it is on disk."""


def record_in(kind: Kind, content: Any, where: object) -> Any:
    """The record that a result holds as plain JSON.

    Raises:
        InputError: a field is missing or of another kind.
    """
    return checked_as(KINDS[kind].record, content, where)
