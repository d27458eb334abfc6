"""Judging a log from names to files: everything that can be wrong is found before work starts."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock

from lensaudit.errors import InputError, TryAgainError
from lensaudit.files import canonical_json, make_folder, slug
from lensaudit.judge.budget import expected_usage
from lensaudit.judge.calls import Call, Usage
from lensaudit.judge.capability import known_capability
from lensaudit.judge.findings import FILES, Findings, deposit, judge_items
from lensaudit.judge.grading import (
    Grader,
    ProgrammaticGrader,
    RubricGrader,
    ScalarGrader,
)
from lensaudit.judge.items import Items, read_items
from lensaudit.judge.opening import Bench, JudgeOptions, open_bench
from lensaudit.judge.programmatic import PROGRAMMATIC
from lensaudit.judge.prompts import BUILT_IN, read_template
from lensaudit.judge.settings import WORDS, Allowance, LogSettings, WhoJudges, judge_options
from lensaudit.progress import Tick
from lensaudit.results.owners import Run, folder_of
from lensaudit.results.records import claim, manifest
from lensaudit.settings import results_folder


@dataclass(frozen=True)
class JudgeJob:
    """What to judge, how, by whom, and where results go."""

    log: Path
    by: str = "rubric"
    """`rubric`, a built-in prompt, `words:` and a programmatic judge, or a prompt's file."""
    options: JudgeOptions | None = None
    """None for a judge of words."""
    contexts: tuple[str, ...] = ()
    limit: int | None = None
    max_tokens: int | None = None
    """Of a reply; None: what is asked for takes."""
    out: Path | None = None

    @property
    def folder(self) -> Path:
        """Where results go."""
        if self.out is not None:
            return self.out
        log = self.log if self.log.is_dir() else self.log.parent
        return results_folder() / f"{slug(log.resolve().name)}-judge-{slug(self.name)}"

    @property
    def name(self) -> str:
        """What the scores are called."""
        return Path(self.by).stem if _is_file(self.by) else self.by.removeprefix(WORDS)


@dataclass(frozen=True)
class JudgePlan:
    """What a run would ask."""

    items: Items
    n_calls: int
    n_cached: int
    tokens: Usage
    """At most, of the calls that are not in the cache."""
    cost: float
    mode: str
    max_tokens: int | None
    """Of one reply; None where nobody is asked."""
    probed: bool
    """Is it known how the model can be asked? If not, mode and tokens are those of a model that
    can do everything and does not think."""


def job_of(settings: LogSettings, who: WhoJudges, allowance: Allowance | None = None) -> JudgeJob:
    """The job that the settings describe.

    Raises:
        InputError: a language model is asked, and none is named.
    """
    model = None
    if not settings.by.startswith(WORDS):
        model = judge_options(who, allowance, offline=settings.offline, fresh=settings.fresh)
    return JudgeJob(
        log=settings.log,
        by=settings.by,
        options=model,
        contexts=settings.contexts,
        limit=settings.limit,
        max_tokens=settings.max_tokens,
        out=settings.out,
    )


def run_job(
    job: JudgeJob,
    progress: Tick = lambda what, done, total: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Judge a log and write the results, also where they are partial.

    Where the default folder holds another run's result, this one gets a folder of its own; `tell`
    is told.

    Raises:
        InputError: before anything is asked.
        TryAgainError: another process judges into the same folder.
    """
    started = time.monotonic()
    items = read_items(job.log, contexts=job.contexts, limit=job.limit)
    template = template_of_job(job)
    if job.options is None:
        grader = ProgrammaticGrader(PROGRAMMATIC[job.name])
        job = owning(job, grader, items, tell)
        with locked(job.folder):
            return written(job, judge_items(grader, items, None), started)
    with open_bench(job.options, progress) as bench:
        grader = grader_of(job, bench, template)
        job = owning(job, grader, items, tell)
        with locked(job.folder):
            return written(job, judge_items(grader, items, bench.asker), started, bench)


def owning(
    job: JudgeJob, grader: Grader, items: Items, tell: Callable[[str], None] = lambda line: None
) -> JudgeJob:
    """The job with a folder in which no other run's result is.

    Raises:
        InputError: the folder was named, and holds one.
    """
    run = _run_in({"command": "judge", "inputs": _inputs(grader, items)})
    return replace(job, out=folder_of(job.folder, run, _run_in, named=bool(job.out), tell=tell))


def _inputs(grader: Grader, items: Items) -> dict[str, Any]:
    """What was judged, and by whom."""
    return {
        "log": str(items.source),
        "items": items.digest,
        "judge": json.loads(canonical_json(dict(grader.identity))),
    }


def _run_in(manifest: Mapping[str, Any]) -> Run:
    """What tells a run from others."""
    inputs = manifest["inputs"]
    return {
        "command": manifest["command"],
        "log": str(Path(inputs["log"]).resolve()),
        "texts": inputs["items"],
        **{f"judge's {name}": value for name, value in inputs["judge"].items()},
    }


def plan_job(job: JudgeJob) -> JudgePlan:
    """What a run would ask; sends and writes nothing: an unknown model counts as the best one."""
    items = read_items(job.log, contexts=job.contexts, limit=job.limit)
    template = template_of_job(job)
    if job.options is None:
        return JudgePlan(items, 0, 0, Usage(0, 0), 0.0, "words", None, probed=True)
    known = job.options.cache is not None and job.options.cache.exists()
    looked = job if known else replace(job, options=replace(job.options, cache=None))
    with unsent(looked) as bench:
        grader = grader_of(job, bench, template)
        calls = {call.key: call for call in grader.assignment(items.items).pending({})}
        missing = [c for c in calls.values() if bench.asker.cache.get(c) is None]
        usage = _sum(missing)
        return JudgePlan(
            items,
            len(calls),
            len(calls) - len(missing),
            usage,
            job.options.prices.cost(usage),
            str(grader.identity.get("mode") or grader.identity.get("format")),
            grader.limit,
            probed=is_probed(bench),
        )


def template_of_job(job: JudgeJob) -> str:
    """The scalar prompt; empty for the rubric and for words.

    Raises:
        InputError: an unknown name, or a prompt without its placeholders.
    """
    if job.by.startswith(WORDS):
        if job.name not in PROGRAMMATIC:
            names = ", ".join(WORDS + name for name in PROGRAMMATIC)
            raise InputError(f"--by {job.by}: no such judge; known are {names}")
        return ""
    if job.by == "rubric":
        return ""
    if job.by in BUILT_IN:
        return BUILT_IN[job.by]
    if not _is_file(job.by):
        known = ", ".join(["rubric", *BUILT_IN, *(WORDS + name for name in PROGRAMMATIC)])
        raise InputError(f"--by {job.by}: no such judge or file; known are {known}")
    return read_template(Path(job.by))


def _is_file(by: str) -> bool:
    return Path(by).suffix in (".txt", ".md", ".json") or Path(by).is_file()


def grader_of(job: JudgeJob, bench: Bench, template: str) -> Grader:
    """The grader of a language model; probes it if need be."""
    capability = bench.capability()
    if job.by == "rubric":
        return RubricGrader(bench.endpoint, capability, job.max_tokens)
    return ScalarGrader(bench.endpoint, capability, template, job.name, job.max_tokens)


def needed(job: JudgeJob) -> JudgeOptions:
    """The options of a job that asks a language model.

    Raises:
        InputError: it asks nobody.
    """
    if job.options is None:
        raise InputError(f"--by {job.by} asks nobody; use `lensaudit judge run`")
    return job.options


@contextmanager
def unsent(job: JudgeJob) -> Iterator[Bench]:
    """A bench that cannot send; an unknown model is taken to be able to do everything."""
    options = replace(needed(job), offline=True, fresh=False)
    with open_bench(options) as bench:
        if not is_probed(bench):
            options = replace(options, mode=options.mode or "int100")
        yield Bench(options, bench.endpoint, bench.asker)


def is_probed(bench: Bench) -> bool:
    """Is it known how the model can be asked?"""
    return known_capability(bench.asker, bench.endpoint) is not None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One judge per folder."""
    lock = filelock.FileLock(make_folder(folder) / ".judge.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise TryAgainError(f"{folder}: another process judges into it; run again later") from error
    try:
        claim(folder, "judge", FILES)
        yield
    finally:
        lock.release()


def _sum(calls: list[Call]) -> Usage:
    each = [expected_usage(call) for call in calls]
    return Usage(sum(one.tokens_in for one in each), sum(one.tokens_out for one in each))


def written(
    job: JudgeJob, findings: Findings, started: float, bench: Bench | None = None
) -> Findings:
    """The findings, after their files and the manifest are written."""
    folder = make_folder(job.folder)
    deposit(folder, findings, _calibrations(findings, bench))
    options: dict[str, Any] = {
        "by": job.by,
        "contexts": list(job.contexts),
        "limit": job.limit,
        "max_tokens": job.max_tokens,
    }
    if bench is not None and job.options is not None:
        options |= {
            "model": bench.endpoint.model,
            "base_url": bench.endpoint.base_url,
            "mode": job.options.mode,
            "caps": asdict(job.options.caps),
            "prices": asdict(job.options.prices),
            "cache": str(job.options.cache),
            "offline": job.options.offline,
            "fresh": job.options.fresh,
            "sdk": f"openai {metadata.version('openai')}" if bench.asker.transport else None,
        }
    inputs = _inputs(findings.grader, findings.items)
    made = manifest("judge", options=options, inputs=inputs, device="none", started=started)
    made.write(folder, FILES)
    return replace(findings, folder=folder)


def _calibrations(findings: Findings, bench: Bench | None) -> dict[str, Any]:
    """How far this judge agreed with labels under the prompts in use, where that was tried."""
    if bench is None:
        return {}
    prompts = findings.grader.identity["prompts"]
    endpoint = bench.endpoint
    found = {
        name: bench.asker.cache.fact(f"calibration:{prompt}", endpoint.host, endpoint.model)
        for name, prompt in prompts.items()
    }
    return {name: one for name, one in found.items() if one is not None}
