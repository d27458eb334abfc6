"""The table of kinds: of each the record that its file holds. A new kind is a file and a row."""

from collections.abc import Mapping
from typing import Any, Literal

from lensaudit.results.kinds.curve import CurveRow
from lensaudit.results.kinds.directions import DirectionsRecord
from lensaudit.results.kinds.effort import EffortRecord
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.meta import Aggregates, MetaTable
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.kinds.relearn import RelearnRecord
from lensaudit.results.kinds.rtt import RttRecord
from lensaudit.results.kinds.sample import SampleRecord
from lensaudit.results.kinds.steering import SteeringRecord
from lensaudit.results.kinds.worst import WorstRecord
from lensaudit.results.reading import JsonObject, checked_as

Kind = Literal[
    "patch",
    "eval",
    "steering",
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
]

KINDS: Mapping[Kind, Any] = {
    "patch": PatchSummary,
    "eval": JsonObject,  # a log in another tool's layout: `kinds.eval` reads it
    "steering": SteeringRecord,
    "directions": DirectionsRecord,
    "rtt": list[RttRecord],
    "relearn": RelearnRecord,
    "effort": EffortRecord,
    "curve": list[CurveRow],
    "worst": WorstRecord,
    "sample": SampleRecord,
    "know": KnowRecord,
    "counterfactual": PatchSummary,
    "meta": MetaTable,
    "aggregate": Aggregates,
}
"""Kind -> what the file that marks a result holds."""


def record_in(kind: Kind, content: Any, where: object) -> Any:
    """The record that a result holds as plain JSON.

    Raises:
        InputError: a field is missing or of another kind.
    """
    return checked_as(KINDS[kind], content, where)
