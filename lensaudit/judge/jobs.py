"""Judging a log, from settings to files: what can be wrong is found before work starts."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import alone, canonical_json, slug
from lensaudit.judge.budget import expected_usage
from lensaudit.judge.calls import Usage
from lensaudit.judge.client import JudgeClient, open_client
from lensaudit.judge.findings import FILES, Findings, Grader, deposit, findings_of
from lensaudit.judge.items import Items, read_items
from lensaudit.judge.programmatic import PROGRAMMATIC
from lensaudit.judge.prompts import BUILT_IN, read_template
from lensaudit.judge.rubric import RubricGrader
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import WORDS, LogSettings
from lensaudit.progress import Tick
from lensaudit.results.records import Run, claim, folder_of, manifest
from lensaudit.settings import results_folder


@dataclass(frozen=True)
class JudgePlan:
    """What a run would ask."""

    items: int
    gaps: int
    calls: int = 0
    cached: int = 0
    tokens_in_at_most: int = 0
    """Of the calls that are not in the cache."""
    tokens_out_at_most: int = 0
    cost_at_most: float = 0.0
    mode: str = "words"
    max_tokens_of_a_reply: int | None = None
    """None where nobody is asked."""
    probed: bool = True
    """Is it known how the model can be asked? If not, mode and tokens are those of a model that
    can do everything and does not think."""


@dataclass(frozen=True)
class JudgeJob:
    """A log and its judge, opened."""

    settings: LogSettings
    items: Items
    grader: Grader
    client: JudgeClient | None
    """None: nobody is asked."""
    started: float

    def findings(self) -> Findings:
        """Judge every item; what fails has its reason."""
        pending = self.grader.pending(self.items.items)
        found = self.client.settle(pending) if self.client else {}
        return findings_of(self.grader, self.items, found, self.client)

    @contextlib.contextmanager
    def folder(self, tell: Callable[[str], None] = lambda line: None) -> Iterator[Path]:
        """A folder in which no other run's result is, and into which nobody else judges.

        Where the default folder holds another run's result, this one gets a folder of its own;
        `tell` is told.

        Raises:
            InputError: the folder was named, and holds one.
            TryAgainError: another process judges into the same folder.
        """
        wanted, named = folder_named(self.settings), bool(self.settings.out)
        run = _run_in({"command": "judge", "inputs": self._inputs})
        folder = folder_of(wanted, run, _run_in, named=named, tell=tell)
        with alone(folder):
            claim(folder, "judge", FILES)
            yield folder

    def written(self, folder: Path, findings: Findings) -> Findings:
        """The findings, after their files and the manifest are written."""
        deposit(folder, findings, self._calibrations())
        made = manifest(
            "judge",
            options=self._options(),
            inputs=self._inputs,
            device="none",
            started=self.started,
        )
        made.write(folder, FILES)
        return replace(findings, folder=folder)

    @property
    def _inputs(self) -> dict[str, Any]:
        """What was judged, and by whom."""
        return {
            "log": str(self.items.source),
            "items": self.items.digest,
            "judge": json.loads(canonical_json(dict(self.grader.identity))),
        }

    def _options(self) -> dict[str, Any]:
        settings, client = self.settings, self.client
        options: dict[str, Any] = {
            "by": settings.by,
            "contexts": list(settings.contexts),
            "limit": settings.limit,
            "max_tokens": settings.max_tokens,
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

    def _calibrations(self) -> dict[str, Any]:
        """How far this judge agreed with labels under the prompts in use, where it was tried."""
        if self.client is None:
            return {}
        cache, endpoint = self.client.cache, self.client.endpoint
        found = {
            name: cache.fact(f"calibration:{prompt}", endpoint.host, endpoint.model)
            for name, prompt in self.grader.identity["prompts"].items()
        }
        return {name: one for name, one in found.items() if one is not None}


def folder_named(settings: LogSettings) -> Path:
    """Where results go unless another run's are there."""
    if settings.out is not None:
        return settings.out
    log = settings.log if settings.log.is_dir() else settings.log.parent
    return results_folder() / f"{slug(log.resolve().name)}-judge-{slug(name_of(settings.by))}"


def name_of(by: str) -> str:
    """What the scores are called."""
    return Path(by).stem if _is_file(by) else by.removeprefix(WORDS)


@contextlib.contextmanager
def open_job(
    settings: LogSettings,
    progress: Tick = lambda what, done, total: None,
    *,
    asks: bool = True,
) -> Iterator[JudgeJob]:
    """Read the log and open its judge, while the block lasts; a model is probed if need be.

    Args:
        settings: what is judged, how and by whom.
        progress: told after each call.
        asks: whether the server may be; if not, a model that was never probed counts as one that
            can do everything.

    Raises:
        InputError: before anything is asked.
    """
    started = time.monotonic()
    items = read_items(settings.log, contexts=settings.contexts, limit=settings.limit)
    template = _template_of(settings.by)
    if settings.by.startswith(WORDS):
        grader: Grader = PROGRAMMATIC[name_of(settings.by)]
        yield JudgeJob(settings, items, grader, None, started)
        return
    offline = settings.offline or not asks
    with open_client(
        settings,
        settings.model,
        offline=offline,
        fresh=settings.fresh and asks,
        progress=progress,
    ) as client:
        if not asks and client.known_capability is None:
            client.access = replace(settings, mode=settings.mode or "int100")
        capability = client.capability()
        if settings.by == "rubric":
            grader = RubricGrader(client, capability, settings.max_tokens)
        else:
            name = name_of(settings.by)
            grader = ScalarJudge(client, capability, template, name, settings.max_tokens)
        yield JudgeJob(settings, items, grader, client, started)


def run_job(
    settings: LogSettings,
    progress: Tick = lambda what, done, total: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Judge a log and write the results, also where they are partial.

    Raises:
        InputError: before anything is asked.
        TryAgainError: another process judges into the same folder.
    """
    with open_job(settings, progress) as job, job.folder(tell) as folder:
        return job.written(folder, job.findings())


def plan_job(settings: LogSettings) -> JudgePlan:
    """What a run would ask; sends and writes nothing: an unknown model counts as the best one."""
    looked = settings
    if settings.cache is not None and not Path(settings.cache).exists():
        looked = replace(settings, cache=None)
    with open_job(looked, asks=False) as job:
        items, client, grader = job.items, job.client, job.grader
        if client is None:
            return JudgePlan(len(items.items), len(items.gaps))
        calls = {call.key: call for call in grader.pending(items.items)({})}
        usages = [expected_usage(one) for one in calls.values() if client.cache.get(one) is None]
        tokens = Usage(sum(one.tokens_in for one in usages), sum(one.tokens_out for one in usages))
        return JudgePlan(
            len(items.items),
            len(items.gaps),
            len(calls),
            len(calls) - len(usages),
            tokens.tokens_in,
            tokens.tokens_out,
            client.budget.cost(tokens),
            str(grader.identity.get("mode") or grader.identity.get("format")),
            grader.limit,
            probed=client.known_capability is not None,
        )


def _run_in(manifest: Mapping[str, Any]) -> Run:
    """What tells a run from others."""
    inputs = manifest["inputs"]
    return {
        "command": manifest["command"],
        "log": str(Path(inputs["log"]).resolve()),
        "texts": inputs["items"],
        **{f"judge's {name}": value for name, value in inputs["judge"].items()},
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
    if by in BUILT_IN:
        return BUILT_IN[by]
    if not _is_file(by):
        known = ", ".join(["rubric", *BUILT_IN, *words])
        raise InputError(f"--by {by}: no such judge or file; known are {known}")
    return read_template(Path(by))


def _is_file(by: str) -> bool:
    return Path(by).suffix in (".txt", ".md", ".json") or Path(by).is_file()
