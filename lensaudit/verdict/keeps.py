"""What does a model keep, beside what `full` has? Model utility, else its answers to kept rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lensaudit.results.eval_runs import EvaluationResult
from lensaudit.results.reading import part
from lensaudit.verdict.views import hundredths

KEPT: Mapping[str, str] = {
    "retain_Q_A_Prob": "Prob on kept rows",
    "retain_Q_A_ROUGE": "ROUGE on kept rows",
}
"""Metrics of rows to keep, which need nothing but question and answer."""
NAMED: Mapping[str, str] = {"model_utility": "model utility", **KEPT}


@dataclass(frozen=True)
class Keeps:
    """One metric of a model and of its `full`, on the same rows."""

    metric: str
    own: float
    full: float

    @property
    def share(self) -> float:
        """What is left of what `full` has."""
        return self.own / self.full

    @property
    def told(self) -> str:
        """In words.

        >>> Keeps("retain_Q_A_Prob", 0.97, 0.98).told
        ".97 of full's .98 (Prob on kept rows)"
        """
        return f"{hundredths(self.own)} of full's {hundredths(self.full)} ({NAMED[self.metric]})"


def kept(own: Mapping[str, float | None], full: Mapping[str, float | None]) -> tuple[Keeps, ...]:
    """Model utility where both have it; else what both have of kept rows.

    >>> [one.metric for one in kept({"model_utility": None, "retain_Q_A_Prob": 0.9},
    ...     {"model_utility": 0.6, "retain_Q_A_Prob": 0.95})]
    ['retain_Q_A_Prob']
    """
    both = [
        Keeps(name, mine, whole)
        for name in NAMED
        if (mine := own.get(name)) is not None and (whole := full.get(name))
    ]
    return tuple(both[:1] if both and both[0].metric not in KEPT else both)


def kept_of_runs(
    own: Sequence[EvaluationResult], full: Sequence[EvaluationResult]
) -> tuple[Keeps, ...]:
    """The same of evaluations, of the first two that asked for the same rows."""
    pairs = ((one, other) for one in own for other in full if _rows(one) == _rows(other))
    found = (
        kept(*({name: one.value for name, one in run.entries.items()} for run in both))
        for both in pairs
    )
    return next(filter(None, found), ())


def _rows(run: EvaluationResult) -> object:
    """Content of the rows to keep; None where a log of another tool does not say."""
    return part(run.manifest, "inputs", "data").get("retain")


def keeps_line(source: str, found: Iterable[Keeps]) -> str | None:
    """One line for a model; None where nothing was measured beside `full`."""
    told = ", ".join(one.told for one in found)
    return f"{source} keeps {told}" if told else None


def keeps_document(found: Iterable[Keeps]) -> dict[str, dict[str, float]]:
    """Metric -> what a model has of it, and what `full` has, as plain JSON."""
    return {one.metric: {"value": one.own, "full": one.full} for one in found}


def keeps_of(document: Mapping[str, Mapping[str, float]]) -> list[Keeps]:
    """What `keeps_document` wrote."""
    return [Keeps(metric, one["value"], one["full"]) for metric, one in document.items()]
