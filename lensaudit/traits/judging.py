"""What is an answer worth? Every answer is judged once, and what was judged is kept."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lensaudit.files import digest
from lensaudit.judge.programmatic import Judge, JudgeRequest, JudgeVerdict, Status
from lensaudit.judge.prompts import COHERENCE
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.progress import Notice, Tick
from lensaudit.results.ledger import Ledger
from lensaudit.results.schema import Flag, Number
from lensaudit.traits.trait import Trait

JUDGED_AT_ONCE = 64
"""Requests handed to a judge before its verdicts are written down."""
PASSING = ("api_error", "budget", "no_logprobs")
"""Not verdicts: asked again in the next run."""


@dataclass(frozen=True)
class Judging:
    """Who judges a trait, who judges coherence, and where it is written down."""

    trait: Trait
    judge: Judge
    coherence: Judge
    log: Path
    notice: Notice | None = None
    """Told which lines of the log do not count."""

    def roles(self) -> tuple[tuple[Judge, str], tuple[Judge, str]]:
        """Each judge and its prompt."""
        return (self.judge, self.trait.eval_prompt), (self.coherence, COHERENCE)


def judged(
    judging: Judging,
    requests: Sequence[JudgeRequest],
    progress: Tick | None = None,
) -> list[tuple[JudgeVerdict, JudgeVerdict]]:
    """Trait and coherence of each request, in order; asked only where the log lacks it."""
    ledger = Ledger(
        judging.log, "judgements", {}, unsigned="keep", record=_Line, notice=judging.notice
    )
    first, second = (
        _verdicts(judge, [replace(one, prompt=prompt) for one in requests], ledger, progress)
        for judge, prompt in judging.roles()
    )
    return list(zip(first, second, strict=True))


def _verdicts(
    judge: Judge,
    requests: Sequence[JudgeRequest],
    ledger: Ledger,
    progress: Tick | None,
) -> list[JudgeVerdict]:
    keys = [_key(judge, request) for request in requests]
    known = {row["key"]: _verdict(row) for row in ledger.rows}
    missing = {
        key: request for key, request in zip(keys, requests, strict=True) if key not in known
    }
    items = list(missing.items())
    for start in range(0, len(items), JUDGED_AT_ONCE):
        some = items[start : start + JUDGED_AT_ONCE]
        found = judge.score([request for _, request in some])
        rows = []
        for (key, _), verdict in zip(some, found, strict=True):
            known[key] = verdict
            if verdict.status not in PASSING:
                rows.append({"key": key, "judge": judge.name, **vars(verdict)})
        ledger.append(rows)
        if progress:
            progress(
                f"judging by {judge.name}", min(start + JUDGED_AT_ONCE, len(items)), len(items)
            )
    return [known[key] for key in keys]


def identity_of(judge: Judge) -> dict[str, str]:
    """What a verdict depends on beside the request; scores of two identities do not mix."""
    found = {"name": judge.name}
    if isinstance(judge, ScalarJudge):
        found |= {"host": judge.client.endpoint.host, "mode": judge.capability.mode}
    return found


@dataclass(frozen=True)
class _Line:
    """What a line of the ledger must hold."""

    key: str
    score: Number | None
    reason: str
    status: Status
    cut: Flag = False

    def __post_init__(self) -> None:
        JudgeVerdict(self.score, self.reason, self.status, self.cut)


def _key(judge: Judge, request: JudgeRequest) -> str:
    return digest(
        [identity_of(judge), request.prompt, request.question, request.answer, request.entity]
    )


def _verdict(row: dict[str, object]) -> JudgeVerdict:
    cut = row.get("cut", False)
    return JudgeVerdict(row["score"], row["reason"], row["status"], cut)  # pyright: ignore
