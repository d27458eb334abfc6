"""Does the trait follow the coefficient, and at which layer is a direction strongest? Resumable.

Coefficients or layers x questions x rollouts. Layers get one strength as a share of the stream's
length, not as a coefficient: streams and directions grow from layer to layer.

Every answer is written down when it is said, every verdict when it is given; the same command
continues where the last one ended.

The keys of `results.json` are those of trait-interp's results, with intervals, counts and a split
of the questions added: what is chosen on one half is reported on the other (`steering.md` section
4).
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import linregress, spearmanr

from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.files import alone, digest, make_folder, write_json
from lensaudit.judge.items import JudgeRequest
from lensaudit.judge.programmatic import ENTITY
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.interventions import Where, strength_of
from lensaudit.patching.options import parse_layers
from lensaudit.progress import Notice, Tick
from lensaudit.results.ledger import Ledger
from lensaudit.results.reading import Whole
from lensaudit.results.records import claim, manifest
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.settings import plain
from lensaudit.steer.estimators import LAYER_CONVENTION, SteeringVector, load_vector
from lensaudit.steer.generate import Ask, Edits, Speaker, adding
from lensaudit.steer.settings import AskSettings, EvalSettings, LayerSettings
from lensaudit.steer.trait import (
    PASSING,
    Trait,
    TraitJudges,
    TraitModel,
    identity_of,
    judged,
    judges,
    load_trait,
    question_hash,
)

SCHEMA = "steer-results/1"


SCALE = (0.0, 100.0)
"""Of a judge's scores."""
COHERENT_FROM = 50.0
"""Mean coherence below this flags a setting; the seed's threshold."""
FEWEST_COEFFICIENTS = 3
"""A correlation of two points is 1 or -1 whatever they are."""


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer and its scores, 0 to 100; None where a judge gives none."""

    question: int
    rollout: int
    text: str
    trait: float | None
    coherence: float | None
    reason: str = ""
    """Why there is no trait score."""
    coherence_reason: str = ""
    """Why there is no coherence."""


@dataclass(frozen=True)
class Level:
    """All answers under one setting."""

    answers: tuple[JudgedAnswer, ...]

    @property
    def scores(self) -> list[float]:
        """Of the answers that have one."""
        return [one.trait for one in self.answers if one.trait is not None]

    @property
    def mean(self) -> float | None:
        """Mean trait score of the valid answers."""
        return _mean(self.scores)

    @property
    def coherence(self) -> float | None:
        """Mean coherence of the answers that have one."""
        return _mean([one.coherence for one in self.answers if one.coherence is not None])

    @property
    def coherent(self) -> bool:
        """Whether the answers of the level hold together."""
        return self.coherence is not None and self.coherence >= COHERENT_FROM

    def only(self, questions: frozenset[int]) -> "Level":
        """The answers to some of the questions."""
        return Level(tuple(one for one in self.answers if one.question in questions))

    def interval(self) -> Estimate:
        """95 % interval of the mean by questions, or why there is none."""
        groups = [one.question for one in self.answers if one.trait is not None]
        return clustered_mean(self.scores, groups, bounds=SCALE, unit="question")

    def document(self, *, baseline: float | None, ratio: float | None) -> dict[str, Any]:
        """One entry of `coefficients`; `std` is that of a population (ddof 0)."""
        scores = self.scores
        n_invalid = len(self.answers) - len(scores)
        bound = None
        if baseline is not None and self.answers:
            bound = (math.fsum(scores) + n_invalid * baseline) / len(self.answers)
        return {
            "mean": self.mean,
            "std": float(np.std(scores)) if scores else None,
            "n": len(scores),
            "n_total": len(self.answers),
            "n_invalid": n_invalid,
            **self.interval().limits(),
            "mean_invalid_as_baseline": bound,
            "ratio": ratio,
        }

    @property
    def n_coherence(self) -> int:
        """Number of answers whose coherence is known."""
        return sum(one.coherence is not None for one in self.answers)


def key_of(coefficient: float) -> str:
    """How a coefficient is written everywhere, so that 0 and -0.0 are one key.

    >>> key_of(0.0), key_of(-0.0), key_of(1.5)
    ('0.0', '0.0', '1.5')
    """
    return str(float(coefficient) + 0.0)


def halves(questions: Sequence[str], seed: int) -> tuple[frozenset[int], frozenset[int]]:
    """Question numbers to choose on and to report on: alternately, in a shuffled order.

    A single question is in both.
    """
    order = sorted(range(len(questions)), key=lambda at: digest([seed, questions[at]]))
    if len(order) == 1:
        return frozenset(order), frozenset(order)
    return frozenset(order[::2]), frozenset(order[1::2])


def correlation(points: Mapping[float, float]) -> float | None:
    """Pearson r of score and coefficient: the seed's controllability.

    Free of units, so a small effect can reach 1 and a strong one that saturates cannot; read it
    beside the slope. None below three coefficients, or where all scores are equal.

    >>> correlation({0.0: 10.0, 1.0: 20.0, 2.0: 30.0})
    1.0
    """
    if _flat(points):
        return None
    return round(float(np.corrcoef(list(points), list(points.values()))[0, 1]), 12)


def rank_correlation(points: Mapping[float, float]) -> float | None:
    """Spearman's rho of score and coefficient; None where `correlation` is None."""
    if _flat(points):
        return None
    found: Any = spearmanr(list(points), list(points.values()))
    return float(found.statistic)


def slope(points: Mapping[float, float]) -> float | None:
    """Score points per unit of coefficient, least squares; None for a single coefficient."""
    if len(points) < 2:
        return None
    fit: Any = linregress(list(points), list(points.values()))
    return float(fit.slope)


def _flat(points: Mapping[float, float]) -> bool:
    return len(points) < FEWEST_COEFFICIENTS or len(set(points.values())) == 1


def strongest(levels: Mapping[float, Level], polarity: int) -> float | None:
    """The setting with the most (polarity 1) or least (-1) of the trait; None without scores.

    Of equal ones the first named.
    """
    known = {key: level.mean for key, level in levels.items() if level.mean is not None}
    return max(known, key=lambda key: polarity * (known[key] or 0.0)) if known else None


def coherent_only(levels: Mapping[float, Level]) -> dict[float, Level]:
    """The settings that hold together; the baseline always does."""
    return {key: level for key, level in levels.items() if level.coherent or key == 0}


def chosen_on_dev(
    levels: Mapping[float, Level], questions: Sequence[str], *, polarity: int, seed: int
) -> dict[str, Any] | None:
    """The coherent setting that is strongest on one half of the questions, reported on the other.

    `delta` is paired: per question, against the baseline; its interval is by questions.
    """
    dev, test = halves(questions, seed)
    best = strongest(coherent_only({k: v.only(dev) for k, v in levels.items()}), polarity)
    if best is None:
        return None
    report, base = levels[best].only(test), levels[0.0].only(test)
    gaps = paired_gaps(report, base)
    limits = clustered_mean(
        list(gaps.values()), list(gaps), bounds=(-SCALE[1], SCALE[1]), unit="question"
    )
    return {
        "setting": best,
        "dev_questions": sorted(dev),
        "test_questions": sorted(test),
        "dev_mean": levels[best].only(dev).mean,
        "test_mean": report.mean,
        "test_baseline": base.mean,
        "test_delta": _mean(list(gaps.values())),
        **limits.limits("test_delta_ci95"),
        "test_coherence": report.coherence,
    }


def paired_gaps(level: Level, base: Level) -> dict[int, float]:
    """Mean score minus the baseline's, by question; questions without scores are left out."""
    questions = sorted({one.question for one in level.answers})
    gaps = {}
    for question in questions:
        means = [one.only(frozenset((question,))).mean for one in (level, base)]
        if means[0] is not None and means[1] is not None:
            gaps[question] = means[0] - means[1]
    return gaps


def summary_of(
    levels: Mapping[float, Level],
    questions: Sequence[str],
    *,
    polarity: int,
    seed: int,
    ratios: Mapping[float, float | None],
) -> dict[str, Any]:
    """The numbers of `results.json`; `levels` holds coefficient 0.

    `max_delta` is the strongest setting minus the baseline in the direction of the polarity; the
    grid holds 0, so it is at least 0 for polarity 1 and at most 0 for -1.
    """
    baseline = levels[0.0].mean
    points = {key: level.mean for key, level in levels.items() if level.mean is not None}
    return {
        "coefficients": {
            key_of(key): level.document(baseline=baseline, ratio=ratios[key])
            for key, level in levels.items()
        },
        "coherence": {
            key_of(key): {"mean": level.coherence, "n": level.n_coherence}
            for key, level in levels.items()
        },
        "coherence_warnings": [key_of(k) for k, level in levels.items() if not level.coherent],
        "baseline": baseline,
        "max_delta": _delta(levels, baseline, polarity),
        "max_delta_coherent": _delta(coherent_only(levels), baseline, polarity),
        "controllability": correlation(points),
        "spearman": rank_correlation(points),
        "slope": slope(points),
        "chosen": chosen_on_dev(levels, questions, polarity=polarity, seed=seed),
    }


def _delta(levels: Mapping[float, Level], baseline: float | None, polarity: int) -> float | None:
    best = strongest(levels, polarity)
    if baseline is None or best is None:
        return None
    mean = levels[best].mean
    return None if mean is None else mean - baseline


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


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
class Steering(TraitModel):
    """Steered answers that may be asked for: the model is opened, nothing is loaded."""

    vectors: tuple[SteeringVector, ...] = ()
    grid: tuple[float, ...] = ()
    """Coefficients of the one vector; empty where each layer has its own."""

    @classmethod
    def over_coefficients(cls, settings: EvalSettings, notice: Notice) -> "Steering":
        """One vector under several coefficients."""
        made = cls.opened(settings, asked_trait(settings))
        vector = load_vector(
            settings.vector,
            d_model=made.checkpoint.d_model,
            n_layers=made.checkpoint.n_layers,
            name=settings.name,
        )
        grid = grid_of(settings.coefficients, vector, as_ratio=settings.as_ratio)
        if vector.weights and vector.weights != made.checkpoint.weights:
            notice(
                f"{settings.vector}: was extracted from {vector.model}, not from {settings.name}"
            )
        return replace(made, vectors=(vector,), grid=grid)

    @classmethod
    def over_layers(cls, settings: LayerSettings) -> "Steering":
        """The vectors of one method with one strength."""
        made = cls.opened(settings, asked_trait(settings))
        found = vectors_in(
            settings.vectors or made.folder / "vectors",
            settings.method,
            parse_layers(settings.layers, made.checkpoint.n_layers),
            made.checkpoint,
            explicit=settings.layers != "all",
        )
        return replace(made, vectors=tuple(found))

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """Numbers of question and rollout, in the order they are asked."""
        n_rollouts = self.settings.n_rollouts
        return [(q, r) for q in range(len(self.trait.questions)) for r in range(n_rollouts)]

    def identity(self, setting: Setting) -> str:
        """Content hash of what determines the answers under a setting."""
        added = [setting.vector.hash(), setting.coefficient] if setting.coefficient else []
        return digest([self.conditions(), vars(self.sampling), self.settings.where, added])

    def plan(self) -> str:
        """What a run would do, in one line."""
        settings, n_questions = self.settings, len(self.trait.questions)
        n_settings = len(self.grid) or len(self.vectors) + 1  # the baseline
        n_answers = n_settings * len(self.wanted)
        return (
            f"{settings.name}: {n_settings} settings x {n_questions} questions of "
            f"{self.trait.name} x {settings.n_rollouts} rollouts = {n_answers} answers of at most "
            f"{settings.max_new_tokens} tokens, {2 * n_answers} judgements by {settings.judge}"
        )

    def run(self, progress: Tick, notice: Notice | None = None) -> tuple[dict[str, Any], Path]:
        """Ask, judge and write; the results and their file."""
        started, settings, out = time.monotonic(), self.settings, self.folder
        by_coefficient = isinstance(settings, EvalSettings)
        file, record = "layer_sweep.json", "layer_sweep_manifest.json"
        own = ("name", "vectors", "method", "layers", "ratio", "coefficient")
        if by_coefficient:
            file, record = "results.json", "manifest.json"
            own = ("name", "vector", "coefficients", "as_ratio")
        opened = judges(settings.judge, settings.coherence_judge, settings, progress)
        with opened as (judge, coherence):
            log = out / "judgements.jsonl"
            judging = TraitJudges(self.trait, judge, coherence, log, notice, progress)
            claim(out, "steer", [file], record)
            results = evaluate(self, judging) if by_coefficient else sweep(self, judging)
        hashes = [one.hash() for one in self.vectors]
        inputs = {"vector": hashes[0]} if self.grid else {"vectors": hashes}
        manifest(
            "steer",
            options=plain(settings, without=(*own, "key_file", "key_env")),
            inputs={**self.conditions(), **inputs},
            device=self.device,
            started=started,
        ).write(out, [file], record)
        return results, out / file


def asked_trait(settings: AskSettings) -> Trait:
    """The trait with its first --questions questions.

    Raises:
        InputError: the judge looks for entities that the trait does not name.
    """
    trait = load_trait(settings.trait)
    if ENTITY.name in (settings.judge, settings.coherence_judge) and not trait.entities:
        raise InputError(
            f"--judge entity: trait {trait.name} names no entities; give its file a list "
            "`entities`, one for each of its questions, or use another judge"
        )
    n = settings.n_questions
    return replace(trait, questions=trait.questions[:n], entities=trait.entities[:n])


def grid_of(text: str, vector: SteeringVector, *, as_ratio: bool) -> tuple[float, ...]:
    """Coefficients from a comma list, ascending and distinct.

    Raises:
        InputError: not finite numbers, no baseline, or ratios of a stream of unknown length.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--coefficients {text}: wanted numbers, like 0,0.5,1") from error
    if as_ratio:
        length = vector.resid_norm
        if not length:
            raise InputError(f"--as-ratio: {vector.file_name} does not know the stream's length")
        numbers = [strength_of(one, vector.vector, resid_norm=length) for one in numbers]
    found = tuple(sorted({one + 0.0 for one in numbers}))
    if not all(map(math.isfinite, found)):
        raise InputError("--coefficients: wanted finite numbers, like 0,0.5,1")
    if 0.0 not in found:
        raise InputError(
            f"--coefficients {','.join(map(key_of, found))}: has no 0; every effect is measured "
            "from the baseline, so add it"
        )
    return found


def vectors_in(
    folder: Path, method: str, layers: Sequence[int], checkpoint: Checkpoint, *, explicit: bool
) -> list[SteeringVector]:
    """The vectors of a method at some layers; with `explicit` none may be missing.

    Raises:
        InputError: there are none, one is missing, or one is damaged.
    """
    paths = {layer: folder / f"{method}_layer{layer}.safetensors" for layer in layers}
    missing = [layer for layer, path in paths.items() if not path.exists()]
    if len(missing) == len(paths) or (explicit and missing):
        raise InputError(
            f"{folder}: holds no {method} vector of layer {missing[0]}; run `lensaudit steer "
            "extract` or name another --vectors folder"
        )
    return [
        load_vector(
            path,
            d_model=checkpoint.d_model,
            n_layers=checkpoint.n_layers,
            name=checkpoint.spec.name,
        )
        for layer, path in paths.items()
        if layer not in missing
    ]


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


def evaluate(job: Steering, judging: TraitJudges) -> dict[str, Any]:
    """Steer by every coefficient, judge, and write `results.json`.

    Raises:
        InputError: the vector was estimated from questions of the trait.
        PartialError: some answers could not be judged; the rest is written.
    """
    (vector,), grid = job.vectors, job.grid
    check_asked(job.trait, vector)
    settings = [Setting(f"coef_{key_of(one)}", vector, one) for one in grid]
    levels = dict(zip(grid, levels_of(job, judging, settings), strict=True))
    numbers = summary_of(
        levels,
        job.trait.questions,
        polarity=job.trait.polarity,
        seed=job.settings.seed,
        ratios={one: vector.ratio(one) for one in grid},
    )
    results = {
        "schema": SCHEMA,
        "trait": job.trait.name,
        "layer": vector.layer,
        "layer_convention": LAYER_CONVENTION,
        "method": vector.method,
        "positions": job.settings.where,
        **numbers,
        **described(job, judging),
        "vector": vector.document(),
    }
    write_json(job.folder / "results.json", results)
    check_judged(levels.values(), job.folder)
    return results


def sweep(job: Steering, judging: TraitJudges) -> dict[str, Any]:
    """Steer at every vector's layer, and write `layer_sweep.json`.

    Raises:
        InputError: no vectors, two of one layer, or one without the stream's length.
        PartialError: some answers could not be judged; the rest is written.
    """
    asked: Any = job.settings
    ratio, coefficient = asked.ratio, asked.coefficient
    by_layer = _by_layer(job.vectors)
    for vector in job.vectors:
        check_asked(job.trait, vector)
    at = {
        layer: vector_strength(vector, ratio=ratio, coefficient=coefficient)
        for layer, vector in by_layer.items()
    }
    settings = [Setting("baseline", next(iter(by_layer.values())), 0.0)]
    settings += [Setting(f"layer_{layer}", by_layer[layer], at[layer]) for layer in by_layer]
    base, *levels = levels_of(job, judging, settings)
    found = dict(zip(by_layer, levels, strict=True))
    results = {
        "schema": "steer-sweep/1",
        "trait": job.trait.name,
        "method": next(iter(by_layer.values())).method,
        "layer_convention": LAYER_CONVENTION,
        "positions": asked.where,
        "coefficient": coefficient,
        "ratio": None if coefficient is not None else ratio,
        "n_questions": len(job.trait.questions),
        "rollouts": asked.n_rollouts,
        **_numbers(job, base, found, at, by_layer),
        **described(job, judging),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(job.folder / "layer_sweep.json", results)
    check_judged([base, *levels], job.folder)
    return results


def described(job: Steering, judging: TraitJudges) -> dict[str, Any]:
    """What a results file says of how it was made."""
    settings = job.settings
    return {
        "polarity": job.trait.polarity,
        "std_ddof": 0,
        "judge": {
            "trait": identity_of(judging.judge),
            "coherence": identity_of(judging.coherence),
        },
        "generation": {
            **asdict(job.sampling),
            "rollouts": settings.n_rollouts,
            **job.conditions(),
        },
        "questions": digest(list(job.trait.questions)),
        "seed": settings.seed,
    }


def levels_of(job: Steering, judging: TraitJudges, settings: Sequence[Setting]) -> list[Level]:
    """Answers and verdicts of every setting; what is on disk is not made again.

    Raises:
        TryAgainError: another process asks models into the folder.
    """
    with alone(make_folder(job.folder / "responses")):
        said = answers(job, judging, settings)
    questions = job.trait.questions
    entities = job.trait.entities or ("",) * len(questions)
    requests = [
        JudgeRequest(question, questions[question], text, entity=entities[question])
        for texts in said
        for (question, _), text in texts.items()
    ]
    verdicts = iter(judged(judging, requests))
    levels = []
    for texts in said:
        found = []
        for (question, rollout), text in texts.items():
            trait, sound = next(verdicts)
            why = [f"{one.status}: {one.reason}" if one.reason else "" for one in (trait, sound)]
            found.append(JudgedAnswer(question, rollout, text, trait.score, sound.score, *why))
        levels.append(Level(tuple(found)))
    return levels


def answers(
    job: Steering, judging: TraitJudges, settings: Sequence[Setting]
) -> list[dict[tuple[int, int], str]]:
    """What is said under each setting, by question and rollout, generated where missing."""
    wanted, questions = job.wanted, job.trait.questions
    ledgers = [
        Ledger(
            job.folder / "responses" / f"{setting.name}.jsonl",
            "answers",
            {},
            record=AnswerLine,
            notice=judging.notice,
        )
        for setting in settings
    ]
    known = [_known(job, log, one) for log, one in zip(ledgers, settings, strict=True)]
    speaker: Speaker | None = None
    for setting, log, found in zip(settings, ledgers, known, strict=True):
        missing = [at for at in wanted if at not in found]
        if not missing:
            continue
        speaker = speaker or job.speaker()
        identity = job.identity(setting)
        # the same numbers under every setting: they belong to the question and the rollout
        asks = [Ask(digest([questions[q], rollout]), questions[q]) for q, rollout in missing]
        places = {ask.key: at for ask, at in zip(asks, missing, strict=True)}
        for batch in speaker.answers(asks, setting.edits(job.settings.where)):
            rows = [
                {
                    "identity": identity,
                    "question": places[ask.key][0],
                    "rollout": places[ask.key][1],
                    "coefficient": setting.coefficient,
                    "layer": setting.vector.layer,
                    "asked": ask.question,
                    "text": text,
                }
                for ask, text in batch
            ]
            log.append(rows)
            found |= {(row["question"], row["rollout"]): row["text"] for row in rows}
            if judging.progress:
                done = sum(len(one.keys() & set(wanted)) for one in known)
                judging.progress("answering", done, len(wanted) * len(settings))
    return [{at: found[at] for at in wanted} for found in known]


@dataclass(frozen=True)
class AnswerLine:
    """What a line of answers must hold."""

    identity: str
    question: Whole
    rollout: Whole
    asked: str
    text: str


def _known(job: Steering, log: Ledger, setting: Setting) -> dict[tuple[int, int], str]:
    """Answers of an earlier run under the same conditions; others are passed over."""
    identity, questions = job.identity(setting), job.trait.questions
    return {
        (row["question"], row["rollout"]): row["text"]
        for row in log.rows
        if row["identity"] == identity
        and row["question"] >= 0
        and questions[row["question"] : row["question"] + 1] == (row["asked"],)
    }


def check_judged(levels: Iterable[Level], out: Path) -> None:
    """Say so where a judge could not be asked; what there is has been written.

    Raises:
        PartialError: answers wait for their verdict.
        WorkError: none has one.
    """
    every = [one for level in levels for one in level.answers]
    reasons = [reason for one in every for reason in (one.reason, one.coherence_reason)]
    waiting = [reason for reason in reasons if reason.split(":")[0] in PASSING]
    if waiting:
        raise PartialError(
            f"{len(waiting)} verdicts on trait or coherence are missing ({waiting[0]}); {out} "
            "holds the others, run the same command again to go on"
        )
    if all(one.trait is None for one in every):
        raise WorkError(f"none of {len(every)} answers has a score; {every[0].reason}")


def vector_strength(vector: SteeringVector, *, ratio: float, coefficient: float | None) -> float:
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
    return strength_of(ratio, vector.vector, resid_norm=vector.resid_norm)


def _by_layer(vectors: Sequence[SteeringVector]) -> dict[int, SteeringVector]:
    by_layer = {vector.layer: vector for vector in sorted(vectors, key=lambda v: v.layer)}
    if not vectors or len(by_layer) < len(vectors):
        raise InputError(f"sweep: found {len(vectors)} vectors, wanted one for each of some layers")
    return by_layer


def _numbers(
    job: Steering,
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


def _chosen(job: Steering, base: Level, found: Mapping[int, Level]) -> dict[str, Any] | None:
    """The layer that half of the questions chooses, on the other half; None: the baseline wins."""
    # 0 is the baseline's key there, so layers are counted from 1
    levels = {0.0: base} | {float(layer + 1): level for layer, level in found.items()}
    chosen = chosen_on_dev(
        levels, job.trait.questions, polarity=job.trait.polarity, seed=job.settings.seed
    )
    if chosen is None or chosen["setting"] == 0.0:
        return None
    return {"layer": int(chosen.pop("setting")) - 1, **chosen}
