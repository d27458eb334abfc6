"""Does the trait follow the coefficient? Coefficients x questions x rollouts, resumable.

Every answer is written down when it is said, every verdict when it is given; the same command
continues where the last one ended.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.files import alone, digest, make_folder, write_json
from lensaudit.judge.programmatic import Judge, JudgeRequest
from lensaudit.patching.interventions import Where
from lensaudit.progress import Notice, Tick
from lensaudit.results.ledger import Ledger
from lensaudit.results.schema import Whole
from lensaudit.steer.edits import Edits, adding
from lensaudit.steer.outcome import Judged, Level, key_of, summary_of
from lensaudit.steer.vector import LAYER_CONVENTION, SteeringVector
from lensaudit.traits.judging import PASSING, Judging, identity_of, judged
from lensaudit.traits.speaker import Ask, Sampling, Speaker
from lensaudit.traits.trait import Trait, question_hash

SCHEMA = "steer-results/1"
JUDGEMENTS = "judgements.jsonl"


@dataclass(frozen=True)
class Setting:
    """One row of the evaluation: what is added where, and what its file is called."""

    name: str
    vector: SteeringVector
    coefficient: float

    def edits(self, where: Where) -> Edits:
        """A coefficient of 0 goes through the same hook as the others."""
        edit = adding(self.vector.vector, self.coefficient)
        return Edits({("resid", self.vector.layer): edit}, where)


@dataclass(frozen=True)
class Evaluation:
    """What is asked, how often, of whom, and who judges."""

    trait: Trait
    n_rollouts: int
    where: Where
    sampling: Sampling
    conditions: Mapping[str, Any]
    """Weights, tokenizer, format and dtype: what determines an answer beside the question."""
    load: Callable[[], Speaker]
    """Called only if an answer is missing."""
    judge: Judge
    coherence: Judge
    out: Path
    progress: Tick | None = None
    notice: Notice | None = None
    """Told which lines of a log do not count."""

    @property
    def questions(self) -> tuple[str, ...]:
        """Asked in this order."""
        return self.trait.questions

    def identity(self, setting: Setting) -> str:
        """Content hash of what determines the answers under a setting."""
        added = [setting.vector.hash(), setting.coefficient] if setting.coefficient else []
        return digest([dict(self.conditions), vars(self.sampling), self.where, added])


def checked_coefficients(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Ascending and distinct.

    Raises:
        InputError: none, one that is not a number, or no baseline.
    """
    found = sorted({float(one) + 0.0 for one in coefficients})
    if any(one != one or abs(one) == float("inf") for one in found) or not found:
        raise InputError("--coefficients: wanted finite numbers, like 0,0.5,1")
    if 0.0 not in found:
        raise InputError(
            f"--coefficients {','.join(map(key_of, found))}: has no 0; every effect is measured "
            "from the baseline, so add it"
        )
    return tuple(found)


def evaluate(
    job: Evaluation, vector: SteeringVector, coefficients: Sequence[float]
) -> dict[str, Any]:
    """Steer by every coefficient, judge, and write `results.json` into `job.out`.

    Raises:
        InputError: no baseline among the coefficients.
        PartialError: some answers could not be judged; the rest is written.
    """
    grid = checked_coefficients(coefficients)
    check_asked(job.trait, vector)
    settings = [Setting(f"coef_{key_of(one)}", vector, one) for one in grid]
    levels = dict(zip(grid, levels_of(job, settings), strict=True))
    numbers = summary_of(
        levels,
        job.questions,
        polarity=job.trait.polarity,
        seed=job.sampling.seed,
        ratios={one: vector.ratio(one) for one in grid},
    )
    results = {
        "schema": SCHEMA,
        "trait": job.trait.name,
        "layer": vector.layer,
        "layer_convention": LAYER_CONVENTION,
        "method": vector.method,
        "positions": job.where,
        **numbers,
        **described(job),
        "vector": vector.document(),
    }
    write_json(job.out / "results.json", results)
    check_judged(levels.values(), job)
    return results


def check_asked(trait: Trait, vector: SteeringVector) -> None:
    """Refuse to see a direction's effect on the questions it was estimated from.

    Raises:
        InputError: a question of the trait is among them.
    """
    known = frozenset(vector.asked)
    if common := [one for one in trait.questions if question_hash(one) in known]:
        raise InputError(
            f"vector {vector.file_name}: was extracted from {len(common)} of the questions of "
            f"trait {trait.name} (first {common[0][:60]!r}); evaluate on others"
        )


def described(job: Evaluation) -> dict[str, Any]:
    """What a results file says of how it was made."""
    return {
        "polarity": job.trait.polarity,
        "std_ddof": 0,
        "judge": {
            "trait": identity_of(job.judge),
            "coherence": identity_of(job.coherence),
        },
        "generation": {**asdict(job.sampling), "rollouts": job.n_rollouts, **job.conditions},
        "questions": digest(list(job.questions)),
        "seed": job.sampling.seed,
    }


def levels_of(job: Evaluation, settings: Sequence[Setting]) -> list[Level]:
    """Answers and verdicts of every setting; what is on disk is not made again.

    Raises:
        TryAgainError: another process asks models into the folder.
    """
    with alone(make_folder(job.out / "responses")):
        said = answers(job, settings)
    entities = job.trait.entities or ("",) * len(job.questions)
    requests = [
        JudgeRequest(question, job.questions[question], text, entity=entities[question])
        for texts in said
        for (question, _), text in texts.items()
    ]
    judging = Judging(job.trait, job.judge, job.coherence, job.out / JUDGEMENTS, job.notice)
    verdicts = iter(judged(judging, requests, job.progress))
    levels = []
    for texts in said:
        found = []
        for (question, rollout), text in texts.items():
            trait, sound = next(verdicts)
            why = [f"{one.status}: {one.reason}" if one.reason else "" for one in (trait, sound)]
            found.append(Judged(question, rollout, text, trait.score, sound.score, *why))
        levels.append(Level(tuple(found)))
    return levels


def answers(job: Evaluation, settings: Sequence[Setting]) -> list[dict[tuple[int, int], str]]:
    """What is said under each setting, by question and rollout, generated where missing."""
    wanted = [(q, r) for q in range(len(job.questions)) for r in range(job.n_rollouts)]
    logs = [job.out / "responses" / f"{setting.name}.jsonl" for setting in settings]
    ledgers = [
        Ledger(log, "answers", {}, unsigned="keep", record=_Line, notice=job.notice) for log in logs
    ]
    known = [_known(job, log, one) for log, one in zip(ledgers, settings, strict=True)]
    n_total = len(wanted) * len(settings)
    speaker: Speaker | None = None
    for setting, log, found in zip(settings, ledgers, known, strict=True):
        missing = [at for at in wanted if at not in found]
        if not missing:
            continue
        speaker = speaker or job.load()
        identity = job.identity(setting)
        asks = {ask.key: at for ask, at in ((_ask(job, *at), at) for at in missing)}
        batches = speaker.answers([_ask(job, *at) for at in missing], setting.edits(job.where))
        for batch in batches:
            rows = [
                {
                    "identity": identity,
                    "question": asks[ask.key][0],
                    "rollout": asks[ask.key][1],
                    "coefficient": setting.coefficient,
                    "layer": setting.vector.layer,
                    "asked": ask.question,
                    "text": text,
                }
                for ask, text in batch
            ]
            log.append(rows)
            found |= {(row["question"], row["rollout"]): row["text"] for row in rows}
            if job.progress:
                done = sum(len(one.keys() & set(wanted)) for one in known)
                job.progress("answering", done, n_total)
    return [{at: found[at] for at in wanted} for found in known]


def _ask(job: Evaluation, question: int, rollout: int) -> Ask:
    # the same numbers under every setting: they belong to the question and the rollout
    return Ask(digest([job.questions[question], rollout]), job.questions[question])


@dataclass(frozen=True)
class _Line:
    """What a line of answers must hold."""

    identity: str
    question: Whole
    rollout: Whole
    asked: str
    text: str


def _known(job: Evaluation, log: Ledger, setting: Setting) -> dict[tuple[int, int], str]:
    """Answers of an earlier run under the same conditions; others are passed over."""
    identity = job.identity(setting)
    return {
        (row["question"], row["rollout"]): row["text"]
        for row in log.rows
        if row["identity"] == identity
        and row["question"] >= 0
        and job.questions[row["question"] : row["question"] + 1] == (row["asked"],)
    }


def check_judged(levels: Iterable[Level], job: Evaluation) -> None:
    """Say so where a judge could not be asked; what there is has been written.

    Raises:
        PartialError: answers wait for their verdict.
        WorkError: none has one.
    """
    levels = list(levels)
    waiting = [
        reason
        for level in levels
        for one in level.answers
        for reason in (one.reason, one.coherence_reason)
        if reason.split(":")[0] in PASSING
    ]
    if waiting:
        raise PartialError(
            f"{len(waiting)} verdicts on trait or coherence are missing ({waiting[0]}); {job.out} "
            "holds the others, run the same command again to go on"
        )
    every = [one for level in levels for one in level.answers]
    if all(one.trait is None for one in every):
        raise WorkError(f"none of {len(every)} answers has a score; {every[0].reason}")
