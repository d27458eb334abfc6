"""What is a metric, which ones exist, in which order are they computed, and what do rows come to?

A metric is one function `MetricContext -> MetricResult` under `@metric`; a file in this folder that
holds one is found by itself. One function may be registered under several names, each with its
own reads. Its value is made of the records of its rows here, in one way for all. A name may say
options, `mia_min_k:k=0.2`: that is a metric of its own, under this name, and so are its needs.
"""

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

import lensaudit.metrics
from lensaudit.data.suites import Split, Suite, own_rows
from lensaudit.errors import FailureKind, InputError
from lensaudit.groups import Group, assumption, own_group, unit_of
from lensaudit.metrics.options import Choice, named_with, parsed, with_rest
from lensaudit.own_code import OWN, enter, is_outside
from lensaudit.results.kinds.eval import MetricResult, Record
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.settings import GENERATED

T = TypeVar("T")
Kind = Literal["trace", "reference", "gradient", "text", "jailbreak", "fluency", "patched"]
"""What a pass does with a split: score its answers; score them with the reference model;
differentiate the score; generate; generate after a forced beginning; rate the generations;
patch the model into `full`, where the field names the score."""
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
    how: tuple[tuple[str, Any], ...] = ()
    """What a metric's options change about the split; its name says them too."""

    def tuned(self, values: Mapping[str, Any]) -> "Read":
        """The same of the split as these options want it: other rows, tokens or batches."""
        acting = {"data": self.kind != "patched", "max_new_tokens": self.kind in GENERATED}
        acting["batch_size"] = self.kind not in ("patched", "gradient")
        how = tuple((name, value) for name, value in values.items() if acting.get(name))
        said = ",".join(f"{name}={value}" for name, value in how)
        return replace(self, split=f"{self.split}[{said}]", how=how) if how else self

    @property
    def of(self) -> str:
        """The suite's split that it is."""
        return self.split.partition("[")[0]


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
    """AUC to use where the retain model has none; open-unlearning takes 0.5 silently."""
    name: str = ""
    """Of the metric, without options: one function may serve several."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those that the metric declares, by name."""


MetricFunction = Callable[[MetricContext], MetricResult]
RowValue = Callable[[Record], float]
GroupsBySide = Sequence[Mapping[int, Group]]
"""idx -> author, one mapping per split that a metric reads; rows without author are left out."""
Combine = Callable[[MetricResult, GroupsBySide | None], MetricResult]
NO_AUTHORS = "the log does not say whose rows these are"
NO_INTERVAL = Estimate(None, why=f"{NO_AUTHORS}: no interval")


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
    on_request: bool = False
    """Computed where it is named, and not as a part of all."""
    options: Mapping[str, Choice] = field(default_factory=dict)
    """What may be chosen of it beside what its passes take."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Of all options those that its name says."""
    called: Mapping[str, str] = field(default_factory=dict)
    """Need with options -> what the function calls it."""

    @property
    def family(self) -> str:
        """Under which the page shows it: the name of its file."""
        return self.fn.__module__.rpartition(".")[2].removeprefix(OWN)

    @property
    def local_needs(self) -> tuple[str, ...]:
        """Needs from the same log."""
        return tuple(need for need in self.needs if not need.startswith(RETAIN))

    @property
    def rows_of(self) -> str:
        """The metric whose rows are the same, of which another field is averaged."""
        kept = {key: one for key, one in self.chosen.items() if key not in self.options}
        fields = all(one.field for one in self.options.values())
        return named_with(self.name.partition(":")[0], kept) if fields else self.name

    def numbers(self, entry: MetricResult) -> dict[int, float]:
        """Idx -> what is averaged of a row, or ranked by an attack; none where neither is done."""
        return {
            idx: (self.row_value or mean_of("score"))(record)
            for idx, record in entry.records.items()
            if self.row_value or (self.combine and "score" in record)
        }

    def context(
        self,
        suite: Suite,
        passes: Any,
        done: Mapping[str, MetricResult],
        retain: Mapping[str, MetricResult],
        **how: Any,
    ) -> MetricContext:
        """What the function is given: each need under the name that the function calls it."""
        names = {need: self.called.get(need, need) for need in self.local_needs}
        wanted = {need.removeprefix(RETAIN): name for need, name in self.called.items()}
        theirs = {name: one for name, one in retain.items() if name not in wanted.values()}
        return MetricContext(
            suite,
            self.reads[suite] if passes is not None else (),
            passes,
            {name: done[need] for need, name in names.items()},
            theirs | {name: retain[need] for need, name in wanted.items() if need in retain},
            name=self.name.partition(":")[0],
            options={name: one.default for name, one in self.options.items()} | dict(self.chosen),
            **how,
        )


METRICS: dict[str, Metric] = {}
"""Those that are registered, by name: `all_metrics` has all."""


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
    on_request: bool = False,
    options: Mapping[str, Choice] | None = None,
) -> Callable[[MetricFunction], MetricFunction]:
    """Register a function as the metric `name` of the suites it is given reads for.

    Raises:
        ValueError: the name is taken, or it is none; of a metric from outside: it reads what
            there is none of.
    """
    given: dict[Suite, Iterable[Read] | None] = {"tofu": tofu, "muse": muse}
    reads: dict[Suite, tuple[Read, ...]] = {
        suite: tuple(read) for suite, read in given.items() if read is not None
    }

    def register(fn: MetricFunction) -> MetricFunction:
        one = Metric(
            name,
            fn,
            high_means,
            source,
            reads,
            tuple(needs),
            row_value,
            combine,
            on_request,
            options or {},
        )
        if is_outside(fn):
            from lensaudit.metrics.given import sound

            all_metrics()  # whose names are taken
            one = sound(one)
        enter(METRICS, "metric", one)
        return fn

    return register


@functools.cache
def _files(folders: tuple[str, ...]) -> Mapping[str, int]:
    """Each module of the folders, imported, and its place: by name, after the first one."""
    names = {one.name for one in pkgutil.iter_modules(folders)}
    # its passes are those that most metrics read
    ordered = sorted(names, key=lambda name: (name != "probability", name))
    every = (importlib.import_module(f"lensaudit.metrics.{name}") for name in ordered)
    return {one.__name__: at for at, one in enumerate(every)}


def all_metrics() -> Mapping[str, Metric]:
    """Every metric, by name; imports each file of this folder once.

    In the order of the files, whatever was imported before: passes run in the order of metrics.
    """
    place = _files(tuple(lensaudit.metrics.__path__))
    ranked = sorted(METRICS.values(), key=lambda one: place.get(one.fn.__module__, len(place)))
    return {one.name: one for one in ranked}


def metric_of(name: str) -> Metric:
    """The metric of a name, with the options that the name says.

    Raises:
        InputError: there is none, or it has no such option or value.
    """
    (plain, said), known = parsed(name), all_metrics()
    if plain not in known:
        raise InputError(f"no metric {plain!r}; there are {', '.join(sorted(known))}")
    return tuned(known[plain], said) if said else known[plain]


def tuned(metric: Metric, said: Mapping[str, Any]) -> Metric:
    """A metric with options; each reaches its passes, its formula and what it needs.

    Raises:
        InputError: it has no such option or value.
    """
    known = choices(metric)
    if unknown := [key for key in said if key not in known]:
        has = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise InputError(f"--metric {metric.name}: no option {unknown[0]!r}; {has}")
    values = {key: known[key].read(said[key], f"--metric {metric.name}:{key}") for key in said}
    needs = {_need_with(need, values): need for need in metric.needs}
    plain = {need: metric.called.get(old, old) for need, old in needs.items() if need != old}
    field = next((values[key] for key in metric.options if known[key].field and key in said), None)
    return replace(
        metric,
        name=named_with(metric.name, values),
        reads={s: tuple(one.tuned(values) for one in own) for s, own in metric.reads.items()},
        needs=tuple(needs),
        row_value=mean_of(field) if field else metric.row_value,
        chosen={**metric.chosen, **values},
        called={need: one.removeprefix(RETAIN) for need, one in plain.items()},
    )


def _need_with(need: str, values: Mapping[str, Any]) -> str:
    """A need with those of the options that it has."""
    name = need.removeprefix(RETAIN)
    known = choices(metric_of(name))
    own = {key: value for key, value in values.items() if key in known}
    return need.removesuffix(name) + named_with(name, own)


_PASS_OPTIONS = {
    "data": Choice(kind=str),
    "max_new_tokens": Choice(kind=int, least=1),
    "batch_size": Choice(kind=int, least=1),
}
"""What reads take."""


def choices(metric: Metric) -> Mapping[str, Choice]:
    """Every option of a metric: its own, those of its passes, and those of what it needs."""
    found: dict[str, Choice] = {}
    for need in metric.needs:
        found |= dict(choices(metric_of(need.removeprefix(RETAIN))))
    every = [one for own in metric.reads.values() for one in own]
    probe = {name: name for name in _PASS_OPTIONS}
    acting = {name for one in every for name, _ in one.tuned(probe).how}
    found |= {name: one for name, one in _PASS_OPTIONS.items() if name in acting}
    if len({one.of for one in reads_in_all(metric)}) != 1:
        found.pop("data", None)  # nobody could say whose rows these are
    return {**found, **metric.options}


def reads_in_all(metric: Metric) -> set[Read]:
    """What a metric and its needs read of TOFU's splits."""
    needs = (metric_of(need) for need in metric.local_needs)
    return {*metric.reads.get("tofu", ())}.union(*map(reads_in_all, needs))


def splits_with_options(
    suite: Suite, splits: Mapping[str, Split], names: Iterable[str], limit: int | None
) -> dict[str, Split]:
    """The splits of a suite as options of the named metrics want them, under their own names.

    Raises:
        InputError: rows cannot be read, or are given to another suite than TOFU.
    """
    found: dict[str, Split] = {}
    for read in (one for each in ordered(suite, names) for one in each.reads[suite]):
        if not read.how or read.of not in splits:
            continue
        how = dict(read.how)
        split, data = splits[read.of], how.pop("data", None)
        if data is not None and suite != "tofu":
            raise InputError(f"data={data}: your own rows go with --suite tofu only")
        split = split if data is None else own_rows(split, Path(data).expanduser(), limit)
        found[read.split] = replace(split, name=read.split, how=how)
    return found


def ordered(suite: Suite, names: Iterable[str] = ()) -> list[Metric]:
    """The named metrics of a suite, or all but those on request, each after what it needs.

    Raises:
        InputError: a name that the suite does not have, the known ones are listed; an option that
            a metric does not have.
    """
    known = {name: one for name, one in all_metrics().items() if suite in one.reads}
    wanted = with_rest(names) or [name for name, one in known.items() if not one.on_request]
    order: dict[str, Metric] = {}

    def visit(name: str, by: tuple[str, ...] = ()) -> None:
        if (plain := parsed(name)[0]) not in known:
            needed = f" ({by[-1]} needs it)" if by else ""
            raise InputError(
                f"suite {suite} has no metric {plain!r}{needed}; it has {', '.join(sorted(known))}"
            )
        if name in by:
            raise InputError(f"metric {name} needs itself ({' -> '.join((*by, name))})")
        one = metric_of(name)
        if one.name in order:
            return
        for need in one.local_needs:
            visit(need, (*by, name))
        order[one.name] = one

    for name in wanted:
        visit(name)
    return list(order.values())


def all_names(suite: Suite, more: Iterable[str]) -> list[str]:
    """All metrics of a suite but those on request, and of some more names those that it knows."""
    found = [one.name for one in ordered(suite)]
    for name in more:
        with suppress(InputError):
            found += [one.name for one in ordered(suite, [name])]
    return found


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
        """Log-probs without the last token, which upstream takes for the end token."""
        return Trace(*(getattr(self, one.name)[:-1] for one in fields(self)))

    def __len__(self) -> int:
        return len(self.log_prob)


def one_or_list(values: Sequence[Any], listed: bool) -> Any:
    """A record's value: a list where the field holds lists, else the only value."""
    return list(values) if listed else values[0]


def alternatives(value: Any) -> list[Any]:
    """A record's value as a list.

    >>> alternatives(0.5), alternatives([0.5, 0.7])
    ([0.5], [0.5, 0.7])
    """
    return list(value) if isinstance(value, list | tuple) else [value]


def mean_of(field: str) -> RowValue:
    """A row's value is this field, averaged over its alternatives."""
    return lambda record: float(np.mean(alternatives(record[field])))


def across(
    context: MetricContext, join: Callable[[Mapping[str, Any], Mapping[str, Any]], Record]
) -> MetricResult:
    """A record for every row that both needs of a metric score; the others stay unscored."""
    first, second = context.done.values()
    records, gaps = dict[int, Record](), dict(first.unscored) | dict(second.unscored)
    for idx in (idx for idx in first.records if idx in second.records):
        try:
            records[idx] = join(first.records[idx], second.records[idx])
        except KeyError as missing:  # a row of somebody else's log
            gaps[idx] = f"its record has no {missing.args[0]}"
    for idx in first.records.keys() ^ second.records.keys():
        gaps.setdefault(idx, "scored in only one of the two metrics this one joins")
    return MetricResult(records=records, unscored=gaps)


def finished(metric: Metric, entry: MetricResult, groups: GroupsBySide | None = ()) -> MetricResult:
    """The entry with what follows from its rows: value, interval, and a reason for no value.

    A row whose record holds NaN or an infinity becomes unscored, it is not averaged and not
    dropped in silence. Where `groups` is None nobody knows whose rows these are: no interval.
    """
    if metric.combine is not None and entry.parts:
        return metric.combine(entry, groups)
    if metric.row_value is None:
        return entry
    gaps, numbers = dict(entry.unscored), dict[int, float]()
    for idx, record in entry.records.items():
        if not _finite(record):
            gaps[idx] = "the model's score is not finite"
            continue
        try:
            numbers[idx] = metric.row_value(record)
        except KeyError as missing:  # a row of somebody else's log
            gaps[idx] = f"its record has no {missing.args[0]}"
    entry = replace(entry, records={idx: entry.records[idx] for idx in numbers}, unscored=gaps)
    if not numbers:
        return replace(entry, value=None, why=entry.reason or no_rows(gaps))
    values = list(numbers.values())
    entry = replace(entry, value=float(np.mean(values)))
    if groups is None:
        return with_limits(entry, NO_INTERVAL, ())
    authors = authors_of(numbers, groups, 0)
    # a row of somebody else's log may hold anything
    bounds = (0.0, 1.0) if min(values) >= -1e-6 and max(values) <= 1 + 1e-6 else None
    limits = clustered_mean(values, authors, bounds=bounds, unit=unit_of(authors))
    return with_limits(entry, limits, authors)


def finished_again(
    metric: Metric, rows: MetricResult, before: MetricResult | None = None
) -> MetricResult:
    """The entry with what follows from rows of a log, which does not say whose they are.

    Args:
        metric: that is computed.
        rows: an entry with them.
        before: what the log has of this metric. If the rows give its value, its interval and its
            test stay, which were made by authors; else there are none.
    """
    found = finished(metric, rows, None)
    found = replace(found, n=found.n_scored)
    of_rows = metric.row_value is not None or found.parts
    if before is None or not of_rows or not math.isclose(found.point, before.point, rel_tol=1e-9):
        return found
    limits = before if before.ends or before.why else found
    kept = {one: getattr(limits, one) for one in ("low", "high", "why", "assumes")}
    return replace(found, **kept, details={**found.details, **before.details})


def authors_of(rows: Iterable[int], groups: GroupsBySide, side: int) -> list[Group]:
    """The author of each row of a side; a row without a known author is its own."""
    known = groups[side] if side < len(groups) else {}
    return [known.get(idx, own_group(idx)) for idx in rows]


def with_limits(entry: MetricResult, limits: Estimate, authors: Sequence[Group]) -> MetricResult:
    """The entry with its interval, or why it has none, and what the interval assumes."""
    return replace(entry, **vars(limits.around(entry.value)), assumes=assumption(authors))


def no_rows(unscored: Mapping[int, str]) -> str:
    """Why an entry without a scored row has no value."""
    if not unscored:
        return "no row to score"
    first = min(unscored)
    return f"none of {len(unscored)} rows could be scored (row {first}: {unscored[first]})"


def no_retain(context: MetricContext, name: str) -> str:
    """Why a metric that compares with the retain model has no value."""
    named = _need_with(name, context.options)
    if context.retain:
        return f"the retain log has no {named}"
    # with options it may be there, and have the plain metric alone
    which = "" if named == name else f" with {named}"
    return f"no retain reference{which}; name one with --retain-log or --retain"


def _finite(record: Record) -> bool:
    numbers = [one for value in record.values() for one in alternatives(value)]
    return all(math.isfinite(one) for one in numbers if isinstance(one, int | float))
