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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import linregress

from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.files import make_folder, write_json
from lensaudit.groups import batched
from lensaudit.judge.items import Judge, JudgeRequest
from lensaudit.judge.programmatic import ENTITY
from lensaudit.kinds.steering import (
    ChosenSetting,
    CoefficientSweep,
    LayerScore,
    LayerSweep,
    SteeredScore,
)
from lensaudit.progress import Notice, Tell
from lensaudit.results import recorded
from lensaudit.results.ledger import Ledger
from lensaudit.results.reading import document
from lensaudit.results.run_folder import LogFolder
from lensaudit.results.run_log import tell_replaced
from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.means import mean_known
from lensaudit.scores.ranks import spearman
from lensaudit.settings import Where
from lensaudit.steer.asking import Ask, TraitModel, said_in
from lensaudit.steer.correlations import pearson, varied
from lensaudit.steer.estimators import LAYER_CONVENTION, SteeringVector, load_vector
from lensaudit.steer.generate import Edits, adding
from lensaudit.steer.judging import (
    PASSING,
    JudgedAnswer,
    chosen_judges,
    identity_of,
    judges_when_asked,
)
from lensaudit.steer.settings import AskSettings, EvalSettings, LayerSettings
from lensaudit.steer.trait import (
    COMMAND,
    Trait,
    check_disjoint,
    files_of,
    load_trait,
    options_of,
)
from lensaudit.text import digest
from lensaudit.turns import alone

SCHEMA = "steer-results/1"


SCALE = (0.0, 100.0)
"""Of a judge's scores."""
COHERENT_FROM = 50.0
"""Mean coherence below this flags a setting; the seed's threshold."""


@dataclass(frozen=True)
class Level:
    """A row of the evaluation: what is added where, and all answers under it."""

    name: str
    """Of its file of answers."""
    vector: SteeringVector
    coefficient: float
    answers: tuple[JudgedAnswer, ...] = ()
    dev: frozenset[int] = frozenset()
    """Questions of the vector's own trait that the setting was chosen on."""

    def edits(self, where: Where) -> Edits:
        """A coefficient of 0 goes through the same hook as the others."""
        edit = adding(self.vector.vector, self.coefficient)
        return Edits({("resid", self.vector.layer): edit}, where)

    @property
    def scores(self) -> list[float]:
        """Scores of the answers that have one."""
        return [one.trait.score for one in self.answers if one.trait.score is not None]

    @property
    def mean(self) -> float | None:
        """Mean trait score of the valid answers."""
        return mean_known(self.scores)

    @property
    def coherence(self) -> float | None:
        """Mean coherence of the answers that have one."""
        return mean_known(one.coherence.score for one in self.answers)

    @property
    def coherent(self) -> bool:
        """Whether the answers of the level hold together."""
        return self.coherence is not None and self.coherence >= COHERENT_FROM

    def only(self, questions: frozenset[int]) -> "Level":
        """The answers to some of the questions."""
        chosen = tuple(one for one in self.answers if one.question in questions)
        return replace(self, answers=chosen)

    def judged(self, baseline: float | None) -> SteeredScore:
        """The scores of the level; `baseline` stands for those that are missing, in one of them."""
        scores, n_total = self.scores, len(self.answers)
        groups = [one.question for one in self.answers if one.trait.score is not None]
        bound = None
        if baseline is not None and n_total:
            bound = (math.fsum(scores) + (n_total - len(scores)) * baseline) / n_total
        limits = clustered_mean(scores, groups, bounds=SCALE, unit="question")
        return SteeredScore(
            mean=self.mean,
            std=float(np.std(scores)) if scores else None,
            n=len(scores),
            n_total=n_total,
            n_invalid=n_total - len(scores),
            ci95=limits.ends,
            ci95_why=None if limits.ends else limits.why,
            mean_invalid_as_baseline=bound,
            ratio=self.vector.ratio(self.coefficient),
        )


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
    return pearson([*points], [*points.values()])


def rank_correlation(points: Mapping[float, float]) -> float | None:
    """Spearman's rho of score and coefficient; None where `correlation` is None."""
    columns = [*points], [*points.values()]
    return spearman(*columns) if varied(*columns) else None


def slope(points: Mapping[float, float]) -> float | None:
    """Score points per unit of coefficient, least squares; None for a single coefficient."""
    if len(points) < 2:
        return None
    fit: Any = linregress(list(points), list(points.values()))
    return float(fit.slope)


def strongest(levels: Mapping[Any, Level], polarity: int) -> Any:
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
) -> ChosenSetting | None:
    """The coherent setting that is strongest on one half of the questions, reported on the other.

    The baseline where none is stronger. `delta` is paired: per question, against the baseline; its
    interval is by questions.
    """
    dev, test = halves(questions, seed)
    # first: of equal ones the baseline, which leaves the model as it is
    order = {0.0: levels[0.0], **levels}
    best = strongest(coherent_only({k: v.only(dev) for k, v in order.items()}), polarity)
    if best is None:
        return None
    report, base = levels[best].only(test), levels[0.0].only(test)
    gaps = paired_gaps(report, base)
    limits = clustered_mean(
        list(gaps.values()), list(gaps), bounds=(-SCALE[1], SCALE[1]), unit="question"
    )
    return ChosenSetting(
        setting=best,
        dev_questions=sorted(dev),
        test_questions=sorted(test),
        dev_mean=levels[best].only(dev).mean,
        test_mean=report.mean,
        test_baseline=base.mean,
        test_delta=mean_known(gaps.values()),
        test_delta_ci95=limits.ends,
        test_delta_ci95_why=None if limits.ends else limits.why,
        test_coherence=report.coherence,
    )


def paired_gaps(level: Level, base: Level) -> dict[int, float]:
    """Mean score minus the baseline's, by question; questions without scores are left out."""
    questions = [frozenset({one}) for one in sorted({one.question for one in level.answers})]
    means = ((own, level.only(own).mean, base.only(own).mean) for own in questions)
    return {min(own): a - b for own, a, b in means if a is not None and b is not None}


def summary_of(
    levels: Mapping[float, Level],
    questions: Sequence[str],
    *,
    polarity: int,
    seed: int,
    trait: str = "",
) -> CoefficientSweep:
    """The numbers of `results.json`; `levels` holds coefficient 0.

    `max_delta` is the strongest setting minus the baseline in the direction of the polarity; the
    grid holds 0, so it is at least 0 for polarity 1 and at most 0 for -1.
    """
    baseline = levels[0.0].mean
    points = {key: level.mean for key, level in levels.items() if level.mean is not None}
    return CoefficientSweep(
        schema=SCHEMA,
        trait=trait,
        coefficients={key_of(key): level.judged(baseline) for key, level in levels.items()},
        coherence={
            key_of(key): {
                "mean": level.coherence,
                "n": sum(one.coherence.score is not None for one in level.answers),
            }
            for key, level in levels.items()
        },
        coherence_warnings=[key_of(k) for k, level in levels.items() if not level.coherent],
        baseline=baseline,
        max_delta=_delta(levels, baseline, polarity),
        max_delta_coherent=_delta(coherent_only(levels), baseline, polarity),
        controllability=correlation(points),
        spearman=rank_correlation(points),
        slope=slope(points),
        chosen=chosen_on_dev(levels, questions, polarity=polarity, seed=seed),
        polarity=polarity,
        seed=seed,
    )


def _delta(levels: Mapping[float, Level], baseline: float | None, polarity: int) -> float | None:
    best = strongest(levels, polarity)
    if baseline is None or best is None:
        return None
    mean = levels[best].mean
    return None if mean is None else mean - baseline


@dataclass(frozen=True)
class Steering(TraitModel):
    """Steered answers that may be asked for."""

    rows: tuple[Level, ...] = ()

    @classmethod
    def of(cls, settings: AskSettings, notice: Notice) -> "Steering":
        """Over coefficients, or over layers."""
        if isinstance(settings, EvalSettings):
            made = cls.over_coefficients(settings, notice)
        else:
            assert isinstance(settings, LayerSettings)
            made = cls.over_layers(settings, notice)
        if (told := made.trait.remark(settings.judge)) is not None:
            notice(told)
        where, (_, record) = made.folder, made.files
        tell_replaced(where, made.recorded, {"key": made.key}, notice, record)
        return made

    @classmethod
    def over_coefficients(cls, settings: EvalSettings, notice: Notice) -> "Steering":
        """One vector under several coefficients."""
        made = cls.opened(settings, asked_trait(settings), notice)
        vector = made.loaded(settings.vector)
        grid = grid_of(settings.coefficients, vector, as_ratio=settings.as_ratio)
        if vector.weights and vector.weights != made.checkpoint.weights:
            notice(
                f"{settings.vector}: was extracted from {vector.model}, not from {settings.name}"
            )
        return made.under([Level(f"coef_{key_of(one)}", vector, one) for one in grid])

    @classmethod
    def over_layers(cls, settings: LayerSettings, notice: Notice) -> "Steering":
        """The vectors of one method with one strength, after the baseline.

        Raises:
            InputError: there are none, one that was named is missing, or one is damaged.
        """
        made = cls.opened(settings, asked_trait(settings), notice)
        folder, method = settings.vectors or made.folder / "vectors", settings.method
        paths = {layer: folder / f"{method}_layer{layer}.safetensors" for layer in made.layers}
        missing = [layer for layer, path in paths.items() if not path.exists()]
        if len(missing) == len(paths) or (settings.layers != "all" and missing):
            raise InputError(
                f"{folder}: holds no {method} vector of layer {missing[0]}; run `lensaudit steer "
                "extract` or name another --vectors folder"
            )
        found = [made.loaded(path) for layer, path in paths.items() if layer not in missing]
        given, ratio = settings.coefficient, settings.ratio
        rows = [
            Level(f"layer_{one.layer}", one, one.strength(ratio) if given is None else given)
            for one in found
        ]
        return made.under([Level("baseline", found[0], 0.0), *rows])

    def loaded(self, path: Path) -> SteeringVector:
        """A vector for the model."""
        one = self.checkpoint
        return load_vector(path, d_model=one.d_model, n_layers=one.n_layers, name=one.spec.name)

    def under(self, rows: Sequence[Level]) -> "Steering":
        """The same asked under these settings.

        Raises:
            InputError: a question of the trait is among those that a vector was estimated from.
        """
        for vector in (one.vector for one in rows):
            where = f"vector {vector.file_name}, trait {self.trait.name}"
            check_disjoint(self.trait.questions, vector.asked, where)
        return replace(self, rows=tuple(rows))

    def asks(self, level: Level) -> dict[str, Ask]:
        """What is asked under a setting, by question and rollout: all draw the same numbers."""
        added = [level.vector.hash(), level.coefficient] if level.coefficient else []
        # what determines the answers
        identity = digest([self.conditions(), self.sampling, self.settings.where, added])
        told = {"coefficient": level.coefficient, "layer": level.vector.layer}
        pairs = product(enumerate(self.trait.questions), range(self.settings.n_rollouts))
        return {
            digest([text, n]): Ask(
                text, {"identity": identity, "question": at, "rollout": n, **told, "asked": text}
            )
            for (at, text), n in pairs
        }

    def log_of(self, level: Level) -> Path:
        """File of the answers under a setting."""
        return self.folder / "responses" / f"{level.name}.jsonl"

    @property
    def files(self) -> tuple[str, str]:
        """Names of the results and of their manifest."""
        return files_of(self.settings)

    @cached_property
    def key(self) -> str:
        """Content hash of all that the results depend on.

        Raises:
            InputError: a judge has no address.
        """
        settings = self.settings
        names = ("where", "n_rollouts", "coefficient", "ratio")
        chosen = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        judge, second = settings.judge, settings.coherence_judge
        return digest(
            {
                **self.conditions(),
                **self.sampling,
                **chosen,
                "trait": asdict(self.trait),
                "judges": chosen_judges(judge, second, settings, offline=True),
                "rows": [[one.name, one.vector.document(), one.coefficient] for one in self.rows],
            }
        )

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that the manifest has."""
        own = ("vectors", "method", "layers", "ratio", "coefficient")
        if isinstance(self.settings, EvalSettings):
            own = ("vector", "coefficients", "as_ratio")
        return options_of(self.settings, *own)

    @cached_property
    def results(self) -> LogFolder:
        """The folder, and whether it holds this very run."""
        file, name = self.files
        hashes = list(dict.fromkeys(one.vector.hash() for one in self.rows))
        of_layers = isinstance(self.settings, LayerSettings)
        vectors = {"vectors": hashes} if of_layers else {"vector": hashes[0]}
        return LogFolder(
            usual=self.folder,
            command=COMMAND,
            key=self.key,
            asked={"options": self.recorded, "inputs": {**self.inputs(), **vectors}},
            files=[file],
            manifest=name,
        )

    def plan(self) -> str:
        """What a run would do, in one line; of a finished run nothing.

        Raises:
            InputError: files of nobody we know lie in the folder, or a judge cannot be asked.
        """
        return recorded.planned(self.results, self._plan)

    def _plan(self) -> str:
        settings, n_questions = self.settings, len(self.trait.questions)
        chosen_judges(settings.judge, settings.coherence_judge, settings, offline=False)
        n_answers = len(self.rows) * n_questions * settings.n_rollouts
        return (
            f"{settings.name}: {len(self.rows)} settings x {n_questions} questions "
            f"of {self.trait.name} x {settings.n_rollouts} rollouts = {n_answers} answers of at "
            f"most {settings.max_new_tokens} tokens, {2 * n_answers} judgements by "
            f"{settings.judge}{kept_by(self)}"
        )

    def run(self, progress: Tell) -> tuple[CoefficientSweep | LayerSweep, Path]:
        """Ask, judge and write, or read what a finished run wrote; the results and their file.

        Raises:
            PartialError: some answers could not be judged; the rest is written.
        """
        file, _ = self.files
        of_layers = isinstance(self.settings, LayerSettings)
        with judges_when_asked(self.settings, progress, self.notice) as by:
            found = recorded.in_folder(
                self.results,
                LayerSweep if of_layers else CoefficientSweep,
                lambda: replace(self, progress=progress).judged_by(by()),
                device=self.device,
                files=[file],
                file=file,
                kind="steering",
                ready=by,
                notice=self.notice,
            )
        return found, self.folder / file

    def judged_by(self, by: tuple[Judge, Judge]) -> CoefficientSweep | LayerSweep:
        """What it says, written also where some verdicts are missing.

        Raises:
            PartialError: some answers could not be judged.
        """
        job, settings = replace(self, rows=levels_of(self, by)), self.settings
        made = {
            "judge": dict(zip(("trait", "coherence"), map(identity_of, by), strict=True)),
            "generation": {
                **self.sampling,
                "rollouts": settings.n_rollouts,
                **self.conditions(),
            },
            "questions": digest(list(self.trait.questions)),
        }
        found = (sweep if isinstance(settings, LayerSettings) else evaluate)(job, made)
        write_json(self.folder / self.files[0], document(found))
        check_judged(job.rows, self.folder)
        return found


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


def numbers_of(text: str, option: str) -> list[float]:
    """The numbers of a comma list; `option` names it in errors.

    Raises:
        InputError: not numbers, or not finite.
    """
    try:
        found = list(map(float, text.split(",")))
    except ValueError as error:
        raise InputError(f"{option} {text}: wanted numbers, like 0.5,1,2") from error
    if not all(map(math.isfinite, found)):
        raise InputError(f"{option} {text}: wanted finite numbers, like 0.5,1,2")
    return found


def grid_of(text: str, vector: SteeringVector, *, as_ratio: bool) -> tuple[float, ...]:
    """Coefficients from a comma list, ascending and distinct.

    Raises:
        InputError: not finite numbers, no baseline, or ratios of a stream of unknown length.
    """
    numbers = numbers_of(text, "--coefficients")
    if as_ratio:
        numbers = list(map(vector.strength, numbers))
    found = tuple(sorted({one + 0.0 for one in numbers}))
    if 0.0 not in found:
        raise InputError(
            f"--coefficients {','.join(map(key_of, found))}: has no 0; every effect is measured "
            "from the baseline, so add it"
        )
    return found


def evaluate(job: Steering, made: Mapping[str, Any]) -> CoefficientSweep:
    """What the coefficients of one vector say."""
    vector, trait = job.rows[0].vector, job.trait
    found = summary_of(
        {one.coefficient: one for one in job.rows},
        trait.questions,
        polarity=trait.polarity,
        seed=job.settings.seed,
        trait=trait.name,
    )
    return replace(
        found,
        layer=vector.layer,
        layer_convention=LAYER_CONVENTION,
        method=vector.method,
        positions=job.settings.where,
        vector=vector.document(),
        **made,
    )


def sweep(job: Steering, made: Mapping[str, Any]) -> LayerSweep:
    """What the layers say; the best ones, and what was chosen on one half of the questions."""
    (base, *rows), settings, polarity = job.rows, job.settings, job.trait.polarity
    found = {level.vector.layer: level for level in rows}
    best = strongest(found, polarity)
    score = None if best is None else found[best].mean
    # 0 is the baseline's key there, so layers are counted from 1
    keyed = {0.0: base} | {layer + 1.0: level for layer, level in found.items()}
    chosen = chosen_on_dev(keyed, job.trait.questions, polarity=polarity, seed=settings.seed)
    layer = -1 if chosen is None or chosen.setting is None else int(chosen.setting) - 1
    return LayerSweep(
        schema="steer-sweep/1",
        trait=job.trait.name,
        method=base.vector.method,
        layer_convention=LAYER_CONVENTION,
        positions=settings.where,
        coefficient=settings.coefficient,
        ratio=None if settings.coefficient is not None else settings.ratio,
        n_questions=len(job.trait.questions),
        rollouts=settings.n_rollouts,
        baseline_mean=base.mean,
        baseline_coherence=base.coherence,
        layers={
            str(layer): LayerScore(
                **vars(level.judged(base.mean)),
                layer=layer,
                coefficient=level.coefficient,
                coherence_mean=level.coherence,
            )
            for layer, level in found.items()
        },
        best_layer=best,
        best_score=score,
        delta_from_baseline=None if score is None or base.mean is None else score - base.mean,
        coherence_warnings=[layer for layer, level in found.items() if not level.coherent],
        coherence_threshold=COHERENT_FROM,
        best_layer_coherent=strongest(
            {layer: level for layer, level in found.items() if level.coherent}, polarity
        ),
        chosen=replace(chosen, setting=None, layer=layer) if chosen and layer >= 0 else None,
        polarity=polarity,
        seed=settings.seed,
        **made,
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
    )


ANSWERS = "answers"
"""Kind of the ledgers of answers."""
ASIDE = ("coefficient", "layer")
"""Left out of what an answer depends on: the baseline adds nothing and is one for all vectors."""


def kept_by(*jobs: Steering) -> str:
    """How many answers are there already, as a plan says it; nothing where none is."""
    n = sum(
        len(said_in(Ledger(job.log_of(one), ANSWERS, {}), job.asks(one), ASIDE))
        for job in jobs
        for one in job.rows
    )
    return f"; {n} answers kept from before" if n else ""


def levels_of(job: Steering, by: tuple[Judge, Judge]) -> tuple[Level, ...]:
    """Every setting with its answers and verdicts; those on disk are read.

    Raises:
        TryAgainError: another process asks models into the folder.
    """
    entities = job.trait.entities or ("",) * len(job.trait.questions)
    requests: list[JudgeRequest] = []
    with alone(make_folder(job.folder / "responses")):
        for one in job.rows:
            asks = job.asks(one)
            said = job.answers(
                job.log_of(one),
                ANSWERS,
                asks,
                "answering",
                one.edits(job.settings.where),
                ASIDE,
                before=len(requests),
                of=len(job.rows) * len(asks),
            )
            for key, ask in asks.items():
                at = ask.line["question"]
                requests.append(JudgeRequest(at, ask.question, said[key], entity=entities[at]))
    answers = job.judged(by, requests)
    each = batched(answers, len(answers) // len(job.rows))
    return tuple(
        replace(one, answers=tuple(some)) for one, some in zip(job.rows, each, strict=True)
    )


def check_judged(levels: Iterable[Level], out: Path) -> None:
    """Say so where a judge could not be asked; what there is has been written.

    Raises:
        PartialError: answers wait for their verdict.
        WorkError: none has one.
    """
    every = [one for level in levels for one in level.answers]
    verdicts = [verdict for one in every for verdict in one.verdicts]
    reasons = [f"{one.status}: {one.reason}" for one in verdicts if one.status in PASSING]
    if reasons:
        raise PartialError(
            f"{len(reasons)} verdicts on trait or coherence are missing ({reasons[0]}); {out} "
            "holds the others, run the same command again to go on"
        )
    if all(one.trait.score is None for one in every):
        said = every[0].trait
        raise WorkError(f"none of {len(every)} answers has a score; {said.status}: {said.reason}")
