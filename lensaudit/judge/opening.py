"""A judge from its options: key, cache, connection and probe, closed again afterwards."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lensaudit.judge.asking import CONCURRENCY, Asker
from lensaudit.judge.budget import Budget, Caps, Prices
from lensaudit.judge.cache import AnswerCache
from lensaudit.judge.capability import Capability, capability_of
from lensaudit.judge.endpoint import Endpoint, open_endpoint
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.scale import Mode
from lensaudit.judge.transport import RETRIES, TIMEOUT_S, Transport
from lensaudit.progress import Tick

DEFAULT_CACHE = Path("experiments/out/judge.sqlite")


@dataclass(frozen=True)
class JudgeOptions:
    """Which language model judges, and what it may use."""

    model: str
    base_url: str | None = None
    key_env: str | None = None
    key_file: Path | None = None
    cache: Path | None = DEFAULT_CACHE
    """None keeps answers in memory, for the run alone."""
    mode: Mode | None = None
    """None: what the probe finds best."""
    caps: Caps = field(default_factory=Caps)
    prices: Prices = field(default_factory=Prices)
    concurrency: int = CONCURRENCY
    timeout_s: float = TIMEOUT_S
    retries: int = RETRIES
    offline: bool = False
    """Answers from the cache alone."""
    fresh: bool = False
    """Ask again what is in the cache."""


@dataclass(frozen=True)
class Bench:
    """An opened endpoint with its cache and budget."""

    options: JudgeOptions
    endpoint: Endpoint
    asker: Asker

    def capability(self) -> Capability:
        """How the model is asked; probes it if that is not known."""
        options = self.options
        return capability_of(self.asker, self.endpoint, mode=options.mode, fresh=options.fresh)

    def judge(self, template: str = "") -> ScalarJudge:
        """The model as judge; `template` is for requests that bring no prompt."""
        return ScalarJudge(self.asker, self.endpoint, self.capability(), template)


@contextmanager
def open_bench(
    options: JudgeOptions,
    progress: Tick = lambda what, done, total: None,
    budget: Budget | None = None,
) -> Iterator[Bench]:
    """Everything a judge needs, while the block lasts; a `budget` may be shared with another.

    Raises:
        InputError: no key, a bad address, no SDK; before anything is sent.
    """
    endpoint = open_endpoint(
        options.model,
        options.base_url,
        key_env=options.key_env,
        key_file=options.key_file,
        offline=options.offline,
    )
    budget = budget or Budget(options.caps, options.prices)
    transport = None
    if not options.offline:
        transport = Transport(endpoint, timeout_s=options.timeout_s, retries=options.retries)
    try:
        with AnswerCache(options.cache) as cache:
            yield Bench(
                options,
                endpoint,
                Asker(
                    cache,
                    transport,
                    budget,
                    concurrency=options.concurrency,
                    since=time.time() if options.fresh else 0.0,
                    progress=progress,
                ),
            )
    finally:
        if transport is not None:
            transport.close()
