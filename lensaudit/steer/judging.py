"""What judges say of answers about a trait; each answer is judged once, and the verdict kept."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lensaudit.groups import batched
from lensaudit.judge.client import Budget, endpoint_of, open_client
from lensaudit.judge.items import Judge, JudgeRequest, JudgeVerdict
from lensaudit.judge.programmatic import PROGRAMMATIC
from lensaudit.judge.prompts import COHERENCE
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import JudgeAccess
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.ledger import Ledger
from lensaudit.steer.settings import AskSettings
from lensaudit.text import digest

JUDGEMENTS = "judgements.jsonl"
JUDGED_AT_ONCE = 64
"""Requests handed to a judge before its verdicts are written down."""
KEPT = ("score", "reason", "status", "cut")
"""What is written of a verdict."""
PASSING = ("api_error", "budget", "no_logprobs")
"""Not verdicts: asked again in the next run."""


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer and what its judges say of it."""

    question: int
    trait: JudgeVerdict
    coherence: JudgeVerdict

    @property
    def verdicts(self) -> tuple[JudgeVerdict, JudgeVerdict]:
        """Verdicts on the trait, and on coherence."""
        return self.trait, self.coherence


def judged(
    by: tuple[Judge, Judge],
    eval_prompt: str,
    requests: Sequence[JudgeRequest],
    folder: Path,
    *,
    notice: Notice,
    progress: Tell,
) -> list[JudgedAnswer]:
    """Each answer with its trait and coherence, in order; asked only where the log lacks it.

    Args:
        by: the judges of trait and coherence.
        eval_prompt: of the trait.
        requests: the answers.
        folder: of the log.
        notice: told which lines of the log do not count.
        progress: told how many are judged.
    """
    ledger = Ledger(folder / JUDGEMENTS, "judgements", {}, notice=notice)
    known = {row["key"]: JudgeVerdict(**{name: row[name] for name in KEPT}) for row in ledger.rows}

    def verdicts(judge: Judge, prompt: str) -> Iterator[JudgeVerdict]:
        who, own = identity_of(judge), [replace(one, prompt=prompt) for one in requests]
        keys = [digest([who, prompt, one.question, one.answer, one.entity]) for one in own]
        missing = {key: one for key, one in zip(keys, own, strict=True) if key not in known}
        for some in batched(list(missing), JUDGED_AT_ONCE):
            known.update(zip(some, judge.score([missing[key] for key in some]), strict=True))
            ledger.append(
                {"key": key, "judge": judge.name}
                | {name: getattr(known[key], name) for name in KEPT}
                for key in some
                if known[key].status not in PASSING
            )
            done = sum(key in known for key in missing)
            progress(Progress(f"judging by {judge.name}", done, len(missing)))
        return (known[key] for key in keys)

    prompts = (eval_prompt, COHERENCE)
    both = (verdicts(*pair) for pair in zip(by, prompts, strict=True))
    return list(map(JudgedAnswer, (one.idx for one in requests), *both))


def identity_of(judge: Judge) -> dict[str, str]:
    """What a verdict depends on beside the request; scores of two identities do not mix."""
    found = {"name": judge.name}
    if isinstance(judge, ScalarJudge):
        found |= {"host": judge.client.endpoint.host, "mode": judge.capability.mode}
    return found


@contextlib.contextmanager
def judges(
    judge: str,
    coherence: str | None,
    access: JudgeAccess,
    progress: Tell,
    notice: Notice = unheard,
) -> Iterator[tuple[Judge, Judge]]:
    """The judges of trait and coherence while the block lasts; what may be used, both use.

    Raises:
        InputError: no such judge, or an endpoint that cannot be asked.
    """
    first, second = judge_names(judge, coherence)
    with contextlib.ExitStack() as stack:
        opened: dict[str, Judge] = {}
        budget: Budget | None = None
        for name in dict.fromkeys((first, second)):
            if name in PROGRAMMATIC:
                opened[name] = PROGRAMMATIC[name]
                continue
            opening = open_client(access, name, progress=progress, budget=budget)
            client = stack.enter_context(opening)
            budget = client.budget
            opened[name] = scalar = ScalarJudge(client, client.capability())
            if scalar.fallback:
                notice(scalar.fallback)
        yield opened[first], opened[second]


def judge_names(judge: str, coherence: str | None) -> tuple[str, str]:
    """Names of the judge of the trait, and of the judge of coherence."""
    return judge, coherence or ("variety" if judge in PROGRAMMATIC else judge)


@contextlib.contextmanager
def judges_when_asked(
    access: AskSettings, progress: Tell, notice: Notice
) -> Iterator[Callable[[], tuple[Judge, Judge]]]:
    """`judges` of a run, which are opened when they are first called for."""
    with contextlib.ExitStack() as stack:
        opening = judges(access.judge, access.coherence_judge, access, progress, notice)
        yield cache(lambda: stack.enter_context(opening))


def chosen_judges(
    judge: str, coherence: str | None, access: JudgeAccess, *, offline: bool
) -> list[dict[str, Any]]:
    """What verdicts depend on, as far as it is known before a judge is asked.

    Args:
        judge: of the trait.
        coherence: None: the usual one.
        access: where language models are reached.
        offline: whether a key may be missing.

    Raises:
        InputError: a language model has no address, or no key.
    """
    return [
        {"name": name}
        if name in PROGRAMMATIC
        else {
            "name": name,
            "host": endpoint_of(access, name, offline=offline).host,
            "mode": access.mode,
        }
        for name in judge_names(judge, coherence)
    ]
