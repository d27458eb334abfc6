"""Judging a log, from settings to files: what can be wrong is found before work starts."""

import contextlib
import functools
import json
import math
import operator
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.files import write_csv, write_json, write_jsonl
from lensaudit.groups import unit_of
from lensaudit.judge.calls import Found as Answered
from lensaudit.judge.calls import Pending, Reply, Spent
from lensaudit.judge.client import (
    Capability,
    JudgeClient,
    endpoint_of,
    expected_usage,
    open_client,
)
from lensaudit.judge.items import (
    MOST_VOID,
    UNFINISHED,
    GradedItem,
    JudgeRequest,
    log_in,
    read_items,
)
from lensaudit.judge.programmatic import PROGRAMMATIC, WordJudge
from lensaudit.judge.prompts import BUILT_IN, is_file, named_template
from lensaudit.judge.rubric import Rubric, RubricGrader, rubric_of
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import WORDS, LogSettings
from lensaudit.kinds.judge import GradeSummary, JudgeRecord
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.appended import read_appended
from lensaudit.results.locate import Found
from lensaudit.results.manifest import MANIFEST, manifest, models_in
from lensaudit.results.reading import SUMMARY, document, json_object
from lensaudit.results.run_folder import RunFolder, held, seal, taken_as_it_is
from lensaudit.scores.estimate import NO_ROWS
from lensaudit.scores.intervals import clustered_mean
from lensaudit.settings import results_folder
from lensaudit.text import canonical_json, digest, slug
from lensaudit.turns import alone

Grader = WordJudge | ScalarJudge | RubricGrader
"""What to ask of items, and what the answers mean."""


@dataclass(frozen=True)
class JudgeJob:
    """A log and its judge, opened; and what was found, once it was asked."""

    settings: LogSettings
    source: Path
    """The log's file."""
    requests: Sequence[JudgeRequest]
    """Its rows, in order."""
    grader: Grader
    client: JudgeClient | None
    """None: no model is asked."""
    started: float
    opens: Callable[..., AbstractContextManager[tuple[Grader, JudgeClient | None]]]
    """Opens the judge of the log, which was read once, to look or to ask."""
    folder: Path = Path()
    """Where results are written."""
    found: Answered = field(default_factory=dict)
    """What was answered, by the call."""
    rows: tuple[GradedItem, ...] = ()
    """Every row of the log, graded, context by context; gaps after the rest."""
    record: JudgeRecord | None = None
    """What it came to, once it is written."""

    @cached_property
    def items(self) -> list[JudgeRequest]:
        """Rows with a generation."""
        return [one for one in self.requests if not one.gap]

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        """Contexts of rows with a generation, then of the others."""
        return tuple(dict.fromkeys(one.context for one in (*self.items, *self.requests)))

    @cached_property
    def ordered(self) -> list[JudgeRequest]:
        """All rows, context by context; gaps after the rest."""
        rows = [*self.items, *(one for one in self.requests if one.gap)]
        return sorted(rows, key=lambda one: self.contexts.index(one.context))

    @property
    def digest(self) -> str:
        """Content hash of what is judged, and of what its interval counts."""
        wanted = ("context", "idx", "question", "truth", "answer", "entity", "group")
        return digest(list(map(list, map(operator.attrgetter(*wanted), self.items))))

    @property
    def status(self) -> dict[str, int]:
        """How many rows have which status."""
        return dict(sorted(Counter(row.status for row in self.rows).items()))

    @property
    def n_scored(self) -> int:
        """Number of rows with scores."""
        return self.status.get("ok", 0)

    @property
    def n_cut(self) -> int:
        """Rows with a text of which the judge saw the beginning alone."""
        return sum(row.cut for row in self.rows)

    @cached_property
    def pending(self) -> Pending:
        """Calls that are still to be made."""
        return self.grader.pending(self.items)

    def judged(self) -> "JudgeJob":
        """The job with every item judged; what fails has its reason."""
        return self.graded(self.client.settle(self.pending) if self.client else {})

    def graded(self, found: Answered) -> "JudgeJob":
        """The job with its rows, when all outcomes are known."""
        rows = [
            GradedItem(one, {}, "unscored", one.gap) if one.gap else self.grader.graded(one, found)
            for one in self.ordered
        ]
        return replace(self, found=found, rows=tuple(rows))

    def found_again(self, run: RunFolder) -> "JudgeJob | None":
        """The job with its rows, as a finished run wrote them into its folder.

        None where a row has no score that another run could give it.

        Raises:
            InputError: the folder was named, and holds something else.
        """
        folder = run.path
        if self.settings.fresh or not run.is_done:
            return None
        said: JudgeRecord = Found("judge", folder / SUMMARY).record
        lines = list(read_appended(folder / "results.jsonl"))
        rows = tuple(map(GradedItem.read, self.ordered, lines))
        job = replace(self, folder=folder, rows=rows, record=said)
        told = said.calibration == self.calibrations()
        return job if told and job.n_scored and UNFINISHED.isdisjoint(job.status) else None

    @contextlib.contextmanager
    def asking(self, progress: Tell) -> Iterator["JudgeJob"]:
        """The job with a judge that may be asked, while the block lasts.

        Raises:
            InputError: it has no key.
        """
        with self.opens(progress, asks=True) as (grader, client):
            yield replace(self, grader=grader, client=client)

    @contextlib.contextmanager
    def alone(self, tell: Notice = unheard) -> Iterator["JudgeJob"]:
        """The job with a folder of its own, into which no other process judges.

        Raises:
            InputError: the folder was named, and holds something else.
            TryAgainError: another process judges into the same folder.
        """
        run = self.placed(tell)
        with alone(run.path):
            yield replace(self, folder=run.begin())

    def placed(self, tell: Notice = unheard) -> RunFolder:
        """The folder of the job; `tell` hears where the usual one is another run's."""
        asked = self.settings
        log = (asked.log if asked.log.is_dir() else asked.log.parent).resolve().name
        usual = results_folder() / f"{slug(log)}-judge-{slug(name_of(asked.by))}"
        inputs = {name: one for name, one in self._inputs.items() if name != "log"}
        return RunFolder(
            usual=asked.out or usual,
            command=COMMAND,
            key=self.key,
            asked={"options": {"limit": asked.limit}, "inputs": inputs},
            named=bool(asked.out),
            force=asked.force,
            tell=tell,
        )

    @property
    def key(self) -> str:
        """Content hash of what is judged, and by whom; of models their weights."""
        weights = {role: one["weights"] for role, one in self._models.items()}
        rows = [[one.context, one.idx, one.gap] for one in self.ordered]
        return digest({**self._inputs, **weights, "log": rows})

    def written(self) -> "JudgeJob":
        """Itself, after scores, rows, replies, the summary and, last, the manifest are written."""
        folder, tables = self.folder, columns(self)
        names = list(dict.fromkeys(name for table in tables.values() for name in table))
        write_csv(
            folder / "scores.csv",
            ["context_type", "id", *names, "status", "cut"],
            (
                [
                    *(row.item.context, row.item.idx),
                    *(row.scores.get(name, "") for name in names),
                    *(row.status, int(row.cut)),
                ]
                for row in self.rows
            ),
        )
        fields = ("mean", "median", "std", "min", "max", "n", "n_invalid")
        summed = operator.attrgetter(*fields)
        write_csv(
            folder / "summary.csv",  # upstream's layout, with counts
            ["metric", *fields],
            (
                [f"{context}_{name}", *("" if value is None else value for value in summed(one))]
                for context, table in tables.items()
                for name, one in table.items()
            ),
        )
        write_jsonl(folder / "results.jsonl", (row.document() for row in self.rows))
        raw = {key: one.raw for key, one in self.found.items() if isinstance(one, Reply)}
        used = dict.fromkeys(key for row in self.rows for key in row.keys if key in raw)
        write_jsonl(folder / "raw.jsonl", ({"key": key, "response": raw[key]} for key in used))
        record = record_of(self)
        write_json(folder / SUMMARY, document(record))
        how = {"options": self._options(), "inputs": self._inputs, "device": "none"}
        made = manifest(COMMAND, kind="judge", **how, started=self.started)
        seal(folder, made, key=self.key, files=FILES)
        return replace(self, record=record)

    @property
    def _inputs(self) -> dict[str, Any]:
        """What was judged, and by whom."""
        return {
            **self._models,
            "log": str(self.source),
            "items": self.digest,
            "judge": json.loads(canonical_json(dict(self.grader.identity))),
        }

    @property
    def _models(self) -> dict[str, Any]:
        """Role -> model, of the run whose log is judged."""
        made = self.source.with_name(MANIFEST)
        return models_in(json_object(made)) if made.exists() else {}

    def _options(self) -> dict[str, Any]:
        settings, client = self.settings, self.client
        options: dict[str, Any] = {
            "by": settings.by,
            "contexts": list(settings.contexts),
            "limit": settings.limit,
            "max_tokens": settings.max_tokens,
            **{
                name: str(value) if name == "prompts" else value
                for name in ("prompts", "grades", "temperature", "sample_size", "seed")
                if (value := getattr(settings, name))
            },
        }
        if client is None:
            return options
        return options | {
            "model": client.endpoint.model,
            "base_url": client.endpoint.base_url,
            "mode": settings.mode,
            "caps": {
                "cost": settings.max_cost,
                "calls": settings.max_calls,
                "tokens": settings.max_tokens_total,
            },
            "prices": {
                "per_million_in": settings.price_in,
                "per_million_out": settings.price_out,
            },
            "cache": str(settings.cache),
            "offline": settings.offline,
            "fresh": settings.fresh,
            "sdk": f"openai {metadata.version('openai')}" if client.transport else None,
        }

    def calibrations(self) -> dict[str, Any]:
        """How far this judge agreed with labels under the prompts in use, where it was tried."""
        if self.client is None:
            return {}
        cache, endpoint = self.client.cache, self.client.endpoint
        found = {
            name: cache.fact(f"calibration:{prompt}", endpoint.host, endpoint.model)
            for name, prompt in self.grader.identity["prompts"].items()
        }
        return {name: one for name, one in found.items() if one is not None}


def name_of(by: str) -> str:
    """What the scores are called."""
    return Path(by).stem if is_file(by) else by.removeprefix(WORDS)


@contextlib.contextmanager
def open_job(
    settings: LogSettings,
    progress: Tell = unheard,
    *,
    asks: bool = True,
) -> Iterator[JudgeJob]:
    """Read the log and open its judge, while the block lasts; a model is probed if need be.

    Args:
        settings: what is judged, how and by whom.
        progress: told after each call.
        asks: whether the server may be; if not, a model that was never probed counts as one that
            can do everything, unless nobody ever asks it.

    Raises:
        InputError: before anything is asked.
    """
    started = time.monotonic()
    source = log_in(settings.log)
    rows = read_items(source, contexts=settings.contexts, limit=settings.limit)
    if settings.sample_size is not None:
        rows = drawn(rows, settings.sample_size, settings.seed)
    prompts = _template_of(settings.by), rubric_of(settings.prompts, settings.grades)
    opens = functools.partial(_open_grader, settings, *prompts)
    with opens(progress, asks=asks) as (grader, client):
        yield JudgeJob(settings, source, rows, grader, client, started, opens)


@contextlib.contextmanager
def _open_grader(
    settings: LogSettings, template: str, rubric: Rubric, progress: Tell, *, asks: bool
) -> Iterator[tuple[Grader, JudgeClient | None]]:
    """The judge of a log while the block lasts; who only looks makes no file of answers."""
    if settings.by.startswith(WORDS):
        yield PROGRAMMATIC[name_of(settings.by)], None
        return
    offline = settings.offline or not asks
    is_new = settings.cache is not None and not Path(settings.cache).exists()
    with open_client(
        replace(settings, cache=None) if is_new and not asks else settings,
        settings.model,
        offline=offline,
        fresh=settings.fresh and asks,
        progress=progress,
    ) as client:
        guessed = None if asks or settings.offline else Capability()
        capability = client.capability(unknown=guessed)
        tokens = settings.max_tokens
        if settings.by == "rubric":
            yield RubricGrader(client, capability, tokens, rubric, settings.temperature), client
        else:
            yield ScalarJudge(client, capability, template, name_of(settings.by), tokens), client


def drawn(rows: Sequence[JudgeRequest], n: int, seed: int) -> list[JudgeRequest]:
    """At most `n` rows of each context that have a generation, at random, in their order."""
    chosen: set[int] = set()
    for context in dict.fromkeys(one.context for one in rows):
        own = [at for at, one in enumerate(rows) if one.context == context and not one.gap]
        chosen |= set(Random(f"{seed}-{context}").sample(own, min(n, len(own))))
    return [rows[at] for at in sorted(chosen)]


def run_job(
    settings: LogSettings,
    progress: Tell = unheard,
    tell: Notice = unheard,
) -> JudgeJob:
    """Judge a log and write the results, also where they are partial; read those of a finished run.

    Raises:
        InputError: before anything is asked.
        TryAgainError: another process judges into the same folder.
    """
    with open_job(settings, progress, asks=settings.fresh) as opened:
        if settings.fresh:
            return _run(opened, tell)
        with contextlib.suppress(InputError):
            if (found := opened.found_again(opened.placed())) is not None:
                tell(taken_as_it_is(opened.placed(tell).path))
                return found
    with opened.asking(progress) as asking:
        return _run(asking, tell)


def _run(opened: JudgeJob, tell: Notice) -> JudgeJob:
    with opened.alone(tell) as job:
        if isinstance(job.grader, ScalarJudge) and job.grader.fallback:
            tell(job.grader.fallback)
        return job.judged().written()


def plan_job(settings: LogSettings, tell: Notice = unheard) -> dict[str, Any]:
    """What a run would ask, as a document; sends and writes nothing.

    Of a finished run `nothing_to_do` says where it is.
    A model that was never probed counts as one that can do everything and does not think. With
    `fresh` every answer is asked for, and the model is probed again.

    Raises:
        InputError: as the run would.
    """
    with open_job(settings, asks=False) as job:
        run = job.placed(tell)
        there = job.found_again(run) is not None
        client, identity = job.client, job.grader.identity
        if client is not None and not (there or settings.offline):
            endpoint_of(settings, client.endpoint.model, offline=False)  # it may want a key
        first = {call.key for call in job.pending({})}
        known = client.known(job.pending) if client and not settings.fresh else {}
        asked = {call.key: call for call in job.pending(known)}
        used = sum(map(expected_usage, asked.values()), Spent())
        if isinstance(job.grader, RubricGrader):
            may_fail = [call for key, call in asked.items() if key in first]
            used = sum(map(job.grader.second_usage, may_fail), used)
        return ({"nothing_to_do": held(run.path)} if there else {}) | {
            "items": len(job.items),
            "gaps": len(job.requests) - len(job.items),
            "calls": len(first),
            "cached": len(first - asked.keys()),
            "second_calls_at_most": used.calls - len(first & asked.keys()),
            "tokens_in_at_most": used.tokens_in,
            "tokens_out_at_most": used.tokens_out,
            "cost_at_most": client.budget.cost(used) if client else 0.0,
            "mode": str(identity.get("mode") or identity.get("format") or "words"),
            "max_tokens_of_a_reply": identity.get("max_tokens"),
            "probed": client is None or bool(client.known_capability and not settings.fresh),
        }


def _template_of(by: str) -> str:
    """The scalar prompt; empty for the rubric and for words.

    Raises:
        InputError: an unknown name, or a prompt without its placeholders.
    """
    words = [WORDS + name for name in PROGRAMMATIC]
    if by in ("rubric", *words):
        return ""
    if by.startswith(WORDS):
        raise InputError(f"--by {by}: no such judge; known are {', '.join(words)}")
    known = ", ".join(["rubric", *BUILT_IN, *words])
    return named_template(by, f"--by {by}: no such judge or file; known are {known}")


COMMAND = "judge"
FILES = ("scores.csv", "summary.csv", "results.jsonl", "raw.jsonl", SUMMARY)


def columns(job: JudgeJob) -> dict[str, dict[str, GradeSummary]]:
    """Context -> metric -> its summary over the rows that have it."""
    return {
        context: {
            name: _column([row for row in job.rows if row.item.context == context], name, job)
            for name in job.grader.metrics(context)
        }
        for context in job.contexts
    }


def _column(rows: list[GradedItem], name: str, job: JudgeJob) -> GradeSummary:
    scored = [row for row in rows if name in row.scores]
    values, groups = [row.scores[name] for row in scored], [row.item.group for row in scored]
    scale = job.grader.identity["scale"]  # None: the numbers of a prompt of the user's
    bounds = scale and (float(scale[0]), float(scale[1]))
    mean = NO_ROWS
    if values:
        mean = clustered_mean(values, groups, bounds=bounds, unit=unit_of(groups))
    return GradeSummary(
        mean=math.fsum(values) / len(values) if values else None,
        median=statistics.median(values) if values else None,
        std=statistics.stdev(values) if len(values) > 1 else None,
        min=min(values, default=None),
        max=max(values, default=None),
        n=len(values),
        n_invalid=len(rows) - len(values),
        ci95=mean.ends,
        ci95_why=None if mean.ends else mean.why,
    )


def record_of(job: JudgeJob) -> JudgeRecord:
    """What a judged log came to."""
    spent, calls = None, None
    if job.client is not None:
        spent = asdict(job.client.budget.spent)
        calls = {"asked": spent["calls"], "cached": job.client.n_cached}
        calls |= {"failed": spent["n_failed"]}
    return JudgeRecord(
        judge=dict(job.grader.identity),
        calibration=job.calibrations(),
        log=str(job.source),
        log_digest=job.digest,
        n=len(job.rows),
        n_scored=job.n_scored,
        n_cut=job.n_cut,
        status=job.status,
        contexts=columns(job),
        calls=calls,
        spent=spent,
    )


def _refuse_void(job: JudgeJob, context: str) -> None:
    """Raise if most rows of a context, which has a mean of its own, have no score."""
    status = Counter(row.status for row in job.rows if row.item.context == context)
    n, n_scored = status.total(), status.pop("ok", 0)
    if n - n_scored > MOST_VOID * n:
        of = f" of {context}" if len(job.contexts) > 1 else ""
        void = ", ".join(f"{n} {one}" for one, n in sorted(status.items()))
        raise WorkError(
            f"{n_scored} of {n} judged{of}, {void}: where more than {MOST_VOID:.0%} have no "
            "verdict, the mean of the others says nothing; the results so far are in "
            f"{job.folder}"
        )


def refuse_unfinished(job: JudgeJob) -> None:
    """Raise if there is no score, if most rows have none, or another run could give more.

    Raises:
        WorkError: no row has a score, whatever the reason, or more than half of a context have
            none, or the server refused half-way.
        PartialError: some have none for want of budget or of an answer.
    """
    rows, folder = job.rows, job.folder
    waiting = [row for row in rows if row.status in UNFINISHED]
    if not waiting:
        if not job.n_scored:
            raise WorkError(
                f"none of {len(rows)} judged: {rows[0].reason}; the results so far are in {folder}"
            )
        for context in job.contexts:
            _refuse_void(job, context)
        return
    fatal = job.client.fatal if job.client else ""
    counts = ", ".join(f"{n} {one}" for one, n in job.status.items() if one in UNFINISHED)
    line = (
        f"{job.n_scored} of {len(rows)} judged, {counts}: {fatal or waiting[0].reason}; the "
        f"results so far are in {folder}, and the same command goes on from there"
    )
    raise WorkError(line) if fatal or not job.n_scored else PartialError(line)
