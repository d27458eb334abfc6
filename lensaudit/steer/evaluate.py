"""Does the trait follow the coefficient, and at which layer is a direction strongest? Resumable.

Coefficients or layers x questions x rollouts. Layers get one strength as a share of the stream's
length, not as a coefficient: streams and directions grow from layer to layer.

Every answer is written down when it is said, every verdict when it is given; the same command
continues where the last one ended.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.files import alone, digest, make_folder, write_json
from lensaudit.judge.programmatic import Judge, JudgeRequest
from lensaudit.patching.interventions import Where, strength_of
from lensaudit.progress import Notice, Tick
from lensaudit.results.ledger import Ledger
from lensaudit.results.schema import Whole
from lensaudit.steer.edits import Edits, adding
from lensaudit.steer.elicit import PASSING, Judging, identity_of, judged
from lensaudit.steer.generate import Ask, Sampling, Speaker
from lensaudit.steer.outcome import (
    COHERENT_FROM,
    JudgedAnswer,
    Level,
    chosen_on_dev,
    key_of,
    strongest,
    summary_of,
)
from lensaudit.steer.settings import LayerSettings
from lensaudit.steer.trait import Trait, question_hash
from lensaudit.steer.vector import LAYER_CONVENTION, SteeringVector

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
            found.append(JudgedAnswer(question, rollout, text, trait.score, sound.score, *why))
        levels.append(Level(tuple(found)))
    return levels


def answers(job: Evaluation, settings: Sequence[Setting]) -> list[dict[tuple[int, int], str]]:
    """What is said under each setting, by question and rollout, generated where missing."""
    wanted = [(q, r) for q in range(len(job.questions)) for r in range(job.n_rollouts)]
    logs = [job.out / "responses" / f"{setting.name}.jsonl" for setting in settings]
    ledgers = [
        Ledger(log, "answers", {}, unsigned="keep", record=AnswerLine, notice=job.notice)
        for log in logs
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
        asks = {ask.key: at for ask, at in ((_ask_of(job, *at), at) for at in missing)}
        batches = speaker.answers([_ask_of(job, *at) for at in missing], setting.edits(job.where))
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


def _ask_of(job: Evaluation, question: int, rollout: int) -> Ask:
    # the same numbers under every setting: they belong to the question and the rollout
    return Ask(digest([job.questions[question], rollout]), job.questions[question])


@dataclass(frozen=True)
class AnswerLine:
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


SWEEP_SCHEMA = "steer-sweep/1"
RATIO = LayerSettings.ratio
BASELINE = "baseline"


def sweep(
    job: Evaluation,
    vectors: Sequence[SteeringVector],
    *,
    ratio: float | None = RATIO,
    coefficient: float | None = None,
) -> dict[str, Any]:
    """Steer at every vector's layer, and write `layer_sweep.json` into `job.out`.

    Args:
        job: what is asked; the baseline has as many rollouts as the layers.
        vectors: one per layer.
        ratio: length of what is added over that of the stream; each layer has its own coefficient.
        coefficient: the same for all layers, in place of a ratio.

    Raises:
        InputError: no vectors, two of one layer, or one without the stream's length.
        PartialError: some answers could not be judged; the rest is written.
    """
    by_layer = _by_layer(vectors)
    for vector in vectors:
        check_asked(job.trait, vector)
    at = {
        layer: vector_strength(vector, ratio=ratio, coefficient=coefficient)
        for layer, vector in by_layer.items()
    }
    settings = [Setting(BASELINE, next(iter(by_layer.values())), 0.0)]
    settings += [Setting(f"layer_{layer}", by_layer[layer], at[layer]) for layer in by_layer]
    base, *levels = levels_of(job, settings)
    found = dict(zip(by_layer, levels, strict=True))
    results = {
        "schema": SWEEP_SCHEMA,
        "trait": job.trait.name,
        "method": next(iter(by_layer.values())).method,
        "layer_convention": LAYER_CONVENTION,
        "positions": job.where,
        "coefficient": coefficient,
        "ratio": None if coefficient is not None else ratio,
        "n_questions": len(job.questions),
        "rollouts": job.n_rollouts,
        **_numbers(job, base, found, at, by_layer),
        **described(job),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(job.out / "layer_sweep.json", results)
    check_judged([base, *levels], job)
    return results


def vector_strength(
    vector: SteeringVector, *, ratio: float | None, coefficient: float | None
) -> float:
    """The coefficient of a layer.

    Raises:
        InputError: a ratio is wanted and the vector's file does not know the stream's length.
    """
    if coefficient is not None:
        return coefficient
    if not vector.resid_norm:
        raise InputError(
            f"vector {vector.file_name}: its file gives no length of the stream; use --coefficient"
        )
    return strength_of(
        RATIO if ratio is None else ratio, vector.vector, resid_norm=vector.resid_norm
    )


def _by_layer(vectors: Sequence[SteeringVector]) -> dict[int, SteeringVector]:
    by_layer = {vector.layer: vector for vector in sorted(vectors, key=lambda v: v.layer)}
    if not vectors or len(by_layer) < len(vectors):
        raise InputError(f"sweep: found {len(vectors)} vectors, wanted one for each of some layers")
    return by_layer


def _numbers(
    job: Evaluation,
    base: Level,
    found: Mapping[int, Level],
    at: Mapping[int, float],
    by_layer: Mapping[int, SteeringVector],
) -> dict[str, Any]:
    """What the layers say; the best ones, and what was chosen on one half of the questions."""
    polarity, baseline = job.trait.polarity, base.mean
    layers = {
        str(layer): {
            "layer": layer,
            "coefficient": at[layer],
            "trait_mean": level.mean,
            "trait_std": level.document(baseline=None, ratio=None)["std"],
            "coherence_mean": level.coherence,
            **level.document(baseline=baseline, ratio=by_layer[layer].ratio(at[layer])),
        }
        for layer, level in found.items()
    }
    best = strongest({float(layer): level for layer, level in found.items()}, polarity)
    sound = {float(layer): level for layer, level in found.items() if level.coherent}
    best_sound = strongest(sound, polarity)
    score = None if best is None else found[int(best)].mean
    return {
        "baseline_mean": baseline,
        "baseline_coherence": base.coherence,
        "layers": layers,
        "best_layer": None if best is None else int(best),
        "best_score": score,
        "delta_from_baseline": None if score is None or baseline is None else score - baseline,
        "coherence_warnings": [layer for layer, level in found.items() if not level.coherent],
        "coherence_threshold": COHERENT_FROM,
        "best_layer_coherent": None if best_sound is None else int(best_sound),
        "chosen": _chosen(job, base, found),
    }


def _chosen(job: Evaluation, base: Level, found: Mapping[int, Level]) -> dict[str, Any] | None:
    """The layer that half of the questions chooses, on the other half; None: the baseline wins."""
    # 0 is the baseline's key there, so layers are counted from 1
    levels = {0.0: base} | {float(layer + 1): level for layer, level in found.items()}
    chosen = chosen_on_dev(
        levels, job.questions, polarity=job.trait.polarity, seed=job.sampling.seed
    )
    if chosen is None or chosen["setting"] == 0.0:
        return None
    return {"layer": int(chosen.pop("setting")) - 1, **chosen}
