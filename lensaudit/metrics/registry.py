"""What is a metric, which ones exist, and in which order can they be computed?

A metric is one function `MetricContext -> MetricResult` under `@metric`; a file in this folder that
holds one is found by itself. One function may be registered under several names, each with its
own reads.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

import lensaudit.metrics
from lensaudit.data.suites import Suite
from lensaudit.errors import FailureKind, InputError
from lensaudit.groups import Group
from lensaudit.scores.estimate import Estimate

T = TypeVar("T")
Kind = Literal["trace", "reference", "gradient", "text", "jailbreak", "fluency", "patched"]
"""What a pass does with a split: score its answers; score them with the reference model;
differentiate the score; generate; generate after a forced beginning; rate the generations;
patch the model into `full`, where the field names the score."""
Record = Mapping[str, Any]
"""The scores of one row under open-unlearning's names; lists where a row has alternatives."""
EmptyRow = Literal["unscored", "upstream"]
ANNOTATED = "annotated"
"""The split of `patched` passes: the annotated forget set, which is not part of a suite."""
RETAIN = "retain:"
"""A need so prefixed is looked up in the retain model's log."""


@dataclass(frozen=True)
class Read:
    """One pass over one field of one split."""

    kind: Kind
    split: str
    field: str = "answer"


@dataclass(frozen=True)
class MetricResult(Estimate):
    """One metric of one model, its interval by authors; `why` it has no value, or no interval."""

    value: float | None = None
    per_example: Mapping[int, float] = field(default_factory=dict)
    unscored: Mapping[int, str] = field(default_factory=dict)
    """idx -> reason; counted in the report, never averaged as 0."""
    records: Mapping[int, Record] = field(default_factory=dict)
    """idx -> what `value_by_index` of a log holds."""
    parts: Mapping[str, "MetricResult"] = field(default_factory=dict)
    """Membership inference: its two sides."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers worth logging: a KS statistic, sample sizes, the parts of a mean."""
    failed: FailureKind | None = None
    """How a pass that it reads broke: `why` is no answer, it is worth another try."""
    assumes: str | None = None
    """What the interval takes for granted of rows that name no author."""

    @property
    def reason(self) -> str | None:
        """Why there is no value; None where there is one."""
        return self.why if self.value is None else None


@dataclass(frozen=True)
class Measured(Generic[T]):
    """The rows of one pass."""

    rows: Mapping[int, tuple[T, ...]]
    """idx -> one value per alternative."""
    unscored: Mapping[int, str]
    listed: bool = False
    """The field holds lists, so records hold lists."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """How the numbers of a patched pass were made."""

    @property
    def values(self) -> list[T]:
        """All, row by row and alternative by alternative."""
        return [one for alternatives in self.rows.values() for one in alternatives]


@dataclass(frozen=True)
class MetricContext:
    """Everything a metric may look at."""

    suite: Suite
    reads: tuple[Read, ...]
    passes: Any
    """What was read of the model: `ModelPasses` of `evaluation`, a room above this one; None where
    there is a log alone."""
    done: Mapping[str, MetricResult] = field(default_factory=dict)
    """Its needs, already computed, in the order they are named."""
    retain: Mapping[str, MetricResult] = field(default_factory=dict)
    """Metrics of the retain model's log; empty without one."""
    empty: EmptyRow = "unscored"
    """What a row without content tokens scores: nothing; or extraction strength 0 and min-k 0."""
    retain_value: float | None = None
    """AUC that stands in for a missing retain reference; open-unlearning takes 0.5 silently."""
    name: str = ""
    """Of the metric: one function may serve several."""


MetricFunction = Callable[[MetricContext], MetricResult]
RowValue = Callable[[Record], float]
GroupsBySide = Sequence[Mapping[int, Group]]
"""idx -> author, one mapping for each split that a metric reads; shorter where nobody knows."""
Combine = Callable[[MetricResult, GroupsBySide], MetricResult]


@dataclass(frozen=True)
class Metric:
    """One registered metric."""

    name: str
    fn: MetricFunction
    high_means: Literal["knows", "forgot"]
    source: str
    """Where it is defined: arXiv section, or repository, file and commit."""
    reads: Mapping[Suite, tuple[Read, ...]]
    """Suites it belongs to and what it reads there; nothing for what follows from its needs."""
    needs: tuple[str, ...] = ()
    row_value: RowValue | None = None
    """What is averaged over rows; None where the function itself gives the value."""
    combine: Combine | None = None
    """Turns `parts` into a value."""
    package: str | None = None
    """A package without which it cannot be computed."""
    on_request: bool = False
    """Computed where it is named, and not as a part of all."""

    @property
    def local_needs(self) -> tuple[str, ...]:
        """Needs from the same log."""
        return tuple(need for need in self.needs if not need.startswith(RETAIN))


_METRICS: dict[str, Metric] = {}


def metric(
    name: str,
    *,
    high_means: Literal["knows", "forgot"],
    source: str,
    tofu: Iterable[Read] | None = None,
    muse: Iterable[Read] | None = None,
    needs: Iterable[str] = (),
    row_value: RowValue | None = None,
    combine: Combine | None = None,
    package: str | None = None,
    on_request: bool = False,
) -> Callable[[MetricFunction], MetricFunction]:
    """Register a function as the metric `name` of the suites it is given reads for.

    Raises:
        ValueError: the name is taken.
    """
    given: dict[Suite, Iterable[Read] | None] = {"tofu": tofu, "muse": muse}
    reads: dict[Suite, tuple[Read, ...]] = {
        suite: tuple(read) for suite, read in given.items() if read is not None
    }

    def register(fn: MetricFunction) -> MetricFunction:
        if name in _METRICS:
            raise ValueError(f"metric {name} is registered twice")
        _METRICS[name] = Metric(
            name,
            fn,
            high_means,
            source,
            reads,
            tuple(needs),
            row_value,
            combine,
            package,
            on_request,
        )
        return fn

    return register


def all_metrics() -> Mapping[str, Metric]:
    """Every metric, by name; imports each file of this folder once.

    In the order of the files, whatever was imported before: passes run in the order of metrics.
    """
    names = (one.name for one in pkgutil.iter_modules(lensaudit.metrics.__path__))
    # its passes are those that most metrics read
    place: dict[str, int] = {}
    for name in sorted(names, key=lambda name: (name != "probability", name)):
        place[importlib.import_module(f"lensaudit.metrics.{name}").__name__] = len(place)
    ranked = sorted(_METRICS.values(), key=lambda one: place.get(one.fn.__module__, len(place)))
    return {one.name: one for one in ranked}


def ordered(suite: Suite, names: Iterable[str] = ()) -> list[Metric]:
    """The named metrics of a suite, or all but those on request, each after what it needs.

    Raises:
        InputError: a name that the suite does not have; the known ones are listed.
    """
    known = {name: one for name, one in all_metrics().items() if suite in one.reads}
    wanted = list(names) or [name for name, one in known.items() if not one.on_request]
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(
            f"suite {suite} has no metric {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
    order: dict[str, Metric] = {}

    def visit(name: str) -> None:
        if name in order:
            return
        for need in known[name].local_needs:
            visit(need)
        order[name] = known[name]

    for name in wanted:
        visit(name)
    return list(order.values())


def retain_names(metrics: Iterable[Metric]) -> list[str]:
    """What the retain model's log must hold for these metrics."""
    needs = {need for one in metrics for need in one.needs if need.startswith(RETAIN)}
    return sorted(need.removeprefix(RETAIN) for need in needs)


def unscored(reason: str, failed: FailureKind | None = None) -> MetricResult:
    """No number, and why."""
    return MetricResult(why=reason, failed=failed)


@dataclass(frozen=True)
class Trace:
    """The scored tokens of one text, the closing one included; nats."""

    log_prob: NDArray[np.float32]
    hit: NDArray[np.bool_]
    """The token is the model's first choice."""
    mean: NDArray[np.float32]
    """Expected log-probability under the model's own next-token distribution."""
    variance: NDArray[np.float32]
    """Variance of the log-probability under that distribution."""

    @property
    def loss(self) -> float:
        """Mean negative log-probability over all scored tokens."""
        total = -self.log_prob.sum(dtype=np.float32)
        return float(total / np.float32(len(self.log_prob)))

    @property
    def content(self) -> "Trace":
        """Without the last token, which upstream takes for the end token."""
        return Trace(*(getattr(self, one.name)[:-1] for one in fields(self)))

    def __len__(self) -> int:
        return len(self.log_prob)
