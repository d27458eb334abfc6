"""Answers with and without a trait, asked for by pairs of system prompts, each judged once."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lensaudit.errors import InputError, PartialError
from lensaudit.files import digest
from lensaudit.judge.budget import Budget
from lensaudit.judge.client import open_client
from lensaudit.judge.items import Judge, JudgeRequest, JudgeVerdict, Status
from lensaudit.judge.programmatic import PROGRAMMATIC
from lensaudit.judge.prompts import COHERENCE
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import JudgeAccess
from lensaudit.progress import Notice, Tick
from lensaudit.results.ledger import Ledger
from lensaudit.results.schema import Flag, Number
from lensaudit.steer.generate import Ask, Sampling, Speaker
from lensaudit.steer.trait import ContrastRow, ContrastSample, Elicitation, Trait, whole_pairs

KEPT_FROM = 50.0
"""A pair stays if the positive answer scores at least this and the negative one less, and both
cohere at least so much; arXiv:2507.21509."""


def asked(elicitation: Elicitation, n_rollouts: int) -> list[tuple[Ask, ContrastSample]]:
    """Every question under every system prompt, `n_rollouts` times; pairs share a number.

    Returns:
        What is asked, and the sample that its answer is for.
    """
    found: list[tuple[Ask, ContrastSample]] = []
    pair = 0
    for positive, negative in zip(elicitation.positive, elicitation.negative, strict=True):
        for question in elicitation.questions:
            for rollout in range(n_rollouts):
                for side, system in ((True, positive), (False, negative)):
                    row = ContrastRow(question, "")
                    ask = Ask(digest([question, system, rollout]), question, system)
                    found.append((ask, ContrastSample(len(found), row, side, pair, system)))
                pair += 1
    return found


def elicit(
    trait: Trait,
    *,
    n_rollouts: int,
    identity: str,
    sampling: Sampling,
    load: Callable[[], Speaker],
    log: Path,
    progress: Tick | None = None,
    notice: Notice | None = None,
) -> list[ContrastSample]:
    """The trait's answers, generated where `log` lacks them.

    Args:
        trait: with an elicitation.
        n_rollouts: answers per question and system prompt.
        identity: hash of what determines an answer beside its prompt: weights, format, sampling.
        sampling: how they are drawn.
        load: called only if something is missing.
        log: ledger of what was said; grows batch by batch.
        progress: told how many there are.
        notice: told which lines of the log do not count.

    Raises:
        InputError: the trait has no elicitation.
    """
    if trait.elicitation is None:
        raise InputError(f"trait {trait.name}: no extraction prompts and no contrast rows")
    wanted = asked(trait.elicitation, n_rollouts)
    ledger = Ledger(log, "elicited", {}, record=ElicitedLine, notice=notice)
    known = {row["key"]: row["text"] for row in ledger.rows}
    keys = [digest([identity, vars(sampling), ask.key]) for ask, _ in wanted]
    missing = {
        ask.key: (key, ask) for (ask, _), key in zip(wanted, keys, strict=True) if key not in known
    }
    for batch in load().answers([ask for _, ask in missing.values()]) if missing else ():
        rows = [
            {
                "key": missing[ask.key][0],
                "question": ask.question,
                "system": ask.system,
                "text": text,
            }
            for ask, text in batch
        ]
        ledger.append(rows)
        known |= {row["key"]: row["text"] for row in rows}
        if progress:
            progress("eliciting", sum(key in known for key in keys), len(keys))
    samples = [
        replace(one, row=replace(one.row, answer=known[key]))
        for (_, one), key in zip(wanted, keys, strict=True)
        if known[key]
    ]
    return whole_pairs(samples)


@dataclass(frozen=True)
class ElicitedLine:
    """What a line of what was said must hold."""

    key: str
    text: str


def filtered(samples: Sequence[ContrastSample], judging: "TraitJudges") -> list[ContrastSample]:
    """Pairs in which the answers differ in the trait and both hold together.

    Raises:
        InputError: no pair is left.
        PartialError: the judge could not be asked about some answers; a direction from the others
            would be another one.
    """
    requests = [JudgeRequest(one.idx, one.row.question, one.row.answer) for one in samples]
    verdicts = judged(judging, requests)
    waiting = [one.reason for pair in verdicts for one in pair if one.status in PASSING]
    if waiting:
        raise PartialError(
            f"{len(waiting)} of {2 * len(samples)} judgements of elicited answers are missing "
            f"({waiting[0]}); {judging.log} holds the others, run the same command again to go on"
        )
    good = {
        one.idx
        for one, (score, sound) in zip(samples, verdicts, strict=True)
        if sound.score is not None and sound.score >= KEPT_FROM
        if score.score is not None and (score.score >= KEPT_FROM) == one.positive
    }
    kept = whole_pairs([one for one in samples if one.idx in good])
    if not kept:
        raise InputError(
            f"trait {judging.trait.name}: {judging.judge.name} finds no pair of answers that "
            f"differ in the trait (of {len(samples) // 2}); use another model, another judge or "
            "--filter none"
        )
    return kept


JUDGED_AT_ONCE = 64
"""Requests handed to a judge before its verdicts are written down."""
PASSING = ("api_error", "budget", "no_logprobs")
"""Not verdicts: asked again in the next run."""


@dataclass(frozen=True)
class TraitJudges:
    """Who judges a trait, who judges coherence, and where it is written down."""

    trait: Trait
    judge: Judge
    coherence: Judge
    log: Path
    notice: Notice | None = None
    """Told which lines of the log do not count."""
    progress: Tick | None = None


def judged(
    judging: TraitJudges, requests: Sequence[JudgeRequest]
) -> list[tuple[JudgeVerdict, JudgeVerdict]]:
    """Trait and coherence of each request, in order; asked only where the log lacks it."""
    ledger = Ledger(judging.log, "judgements", {}, record=JudgementLine, notice=judging.notice)
    roles = ((judging.judge, judging.trait.eval_prompt), (judging.coherence, COHERENCE))
    first, second = (
        _verdicts(judge, [replace(one, prompt=prompt) for one in requests], ledger, judging)
        for judge, prompt in roles
    )
    return list(zip(first, second, strict=True))


def _verdicts(
    judge: Judge, requests: Sequence[JudgeRequest], ledger: Ledger, judging: TraitJudges
) -> list[JudgeVerdict]:
    keys = [_key_of(judge, request) for request in requests]
    known = {row["key"]: _verdict(row) for row in ledger.rows}
    missing = {
        key: request for key, request in zip(keys, requests, strict=True) if key not in known
    }
    items = list(missing.items())
    for start in range(0, len(items), JUDGED_AT_ONCE):
        some = items[start : start + JUDGED_AT_ONCE]
        found = judge.score([request for _, request in some])
        verdicts = {key: one for (key, _), one in zip(some, found, strict=True)}
        known |= verdicts
        ledger.append(
            {"key": key, "judge": judge.name, **vars(one)}
            for key, one in verdicts.items()
            if one.status not in PASSING
        )
        if judging.progress:
            done = min(start + JUDGED_AT_ONCE, len(items))
            judging.progress(f"judging by {judge.name}", done, len(items))
    return [known[key] for key in keys]


def identity_of(judge: Judge) -> dict[str, str]:
    """What a verdict depends on beside the request; scores of two identities do not mix."""
    found = {"name": judge.name}
    if isinstance(judge, ScalarJudge):
        found |= {"host": judge.client.endpoint.host, "mode": judge.capability.mode}
    return found


@dataclass(frozen=True)
class JudgementLine:
    """What a line of the ledger must hold."""

    key: str
    score: Number | None
    reason: str
    status: Status
    cut: Flag = False

    def __post_init__(self) -> None:
        JudgeVerdict(self.score, self.reason, self.status, self.cut)


def _key_of(judge: Judge, request: JudgeRequest) -> str:
    return digest(
        [identity_of(judge), request.prompt, request.question, request.answer, request.entity]
    )


def _verdict(row: dict[str, object]) -> JudgeVerdict:
    cut = row.get("cut", False)
    return JudgeVerdict(row["score"], row["reason"], row["status"], cut)  # pyright: ignore


@contextlib.contextmanager
def judges(
    judge: str, coherence: str | None, access: JudgeAccess, progress: Tick
) -> Iterator[tuple[Judge, Judge]]:
    """The judges of trait and coherence while the block lasts; what may be used, both use.

    Raises:
        InputError: no such judge, or an endpoint that cannot be asked.
    """
    second = coherence or ("variety" if judge in PROGRAMMATIC else judge)
    with contextlib.ExitStack() as stack:
        opened: dict[str, Judge] = {}
        budget: Budget | None = None
        for name in dict.fromkeys((judge, second)):
            if name in PROGRAMMATIC:
                opened[name] = PROGRAMMATIC[name]
                continue
            opening = open_client(access, name, progress=progress, budget=budget)
            client = stack.enter_context(opening)
            budget = client.budget
            opened[name] = ScalarJudge(client, client.capability())
        yield opened[judge], opened[second]
