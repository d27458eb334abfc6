"""What are answers worth? A finished run of `lensaudit judge run` or `judge batch run`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lensaudit.results.kinds.patch import Ends
from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import JsonObject, Number, Whole


@dataclass(frozen=True, kw_only=True)
class GradeSummary:
    """One metric of a judge over the rows of a context, on its scale."""

    mean: Number | None
    median: Number | None
    std: Number | None
    """Of a sample (ddof 1)."""
    min: Number | None
    max: Number | None
    n: Whole
    """Rows with a score."""
    n_invalid: Whole
    ci95: Ends
    """Of the mean, by authors or rows."""
    ci95_why: str | None


@dataclass(frozen=True, kw_only=True)
class JudgeRecord:
    """`summary.json` of judged answers."""

    judge: JsonObject
    """What the scores depend on: grader, model, host, prompts, scale."""
    calibration: JsonObject = field(default_factory=dict)
    """Prompt -> how far this judge agreed with labels, where it was tried."""
    log: str
    log_digest: str = ""
    n: Whole
    n_scored: Whole
    n_cut: Whole = 0
    """Rows of which the judge saw the beginning alone."""
    status: Mapping[str, Whole] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[str, GradeSummary]]
    """`forget` or `retain` -> metric -> its scores."""
    calls: Mapping[str, Whole] | None = None
    spent: Mapping[str, Whole | Number] | None = None
    """None of both: nobody was asked."""


KINDS = {"judge": ResultKind(record=JudgeRecord, field="log_digest")}
