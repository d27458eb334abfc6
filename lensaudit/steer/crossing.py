"""What does steering one trait do to the judged score of every other?

Each trait is asked its own questions: as the model is, under the direction of every trait at the
strength that its own evaluation chose, and under random directions of the same length at the same
layer: any push moves something. All answers to a question draw the same random numbers, so
differences are paired by question. What one direction moves beside its own trait is its
contamination. What it moves in its own trait is read from the questions that its strength was not
chosen on, as `steer eval` does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.groups import batched
from lensaudit.judge.items import Judge
from lensaudit.kinds.steering import (
    CROSSED,
    CoefficientSweep,
    CrossedScore,
    LayerSweep,
    SteeredTrait,
    TraitMatrix,
)
from lensaudit.progress import Notice, Progress, Tell
from lensaudit.results import recorded
from lensaudit.results.locate import Found
from lensaudit.results.reading import document
from lensaudit.results.run_folder import LogFolder
from lensaudit.results.run_log import tell_replaced
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.special import stdtrit
from lensaudit.steer.estimators import controls_of
from lensaudit.steer.evaluate import (
    COHERENT_FROM,
    SCALE,
    Level,
    Steering,
    asked_trait,
    check_judged,
    kept_by,
    levels_of,
    paired_gaps,
)
from lensaudit.steer.judging import chosen_judges, identity_of, judges_when_asked
from lensaudit.steer.settings import CrossSettings
from lensaudit.steer.trait import (
    COMMAND,
    VECTORS,
    Trait,
    crossed_folder,
    found_in,
    load_trait,
    options_of,
    swept_by,
    traits_of,
)
from lensaudit.text import digest, slug

SCHEMA = "steer-traits/1"
_GAPS = (-SCALE[1], SCALE[1])
"""Scale of differences of scores."""
OF_DIRECTIONS = 0.99
"""Level of the interval over directions: where any push moves the score, few move it far.

Simulated with random directions as traits (`demo/full`, layer 8, judges idk and variety, `refusal`
and `demo_idk` with 20 and 10 questions at .5 to 2.5 times the direction's length; 120 directions):
by questions alone a star for up to .38 with one control and .41 with five, where text falls apart;
with five and this interval for .076 at .95, and .038 at .99."""


@dataclass(frozen=True)
class Crossing:
    """Traits that may be asked under the directions of each other."""

    settings: CrossSettings
    jobs: tuple[Steering, ...]
    """One for each trait that is asked: the baseline, then each direction and its controls."""
    left_out: Mapping[str, str]
    """Trait by which nothing is steered -> why."""
    folder: Path
    notice: Notice

    @cached_property
    def key(self) -> str:
        """Content hash of all that the results depend on."""
        dev = [sorted(one.dev) for one in self.jobs[0].rows]
        return digest([SCHEMA, sorted(self.left_out.items()), dev, *(one.key for one in self.jobs)])

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that the manifest has."""
        return options_of(self.settings)

    @cached_property
    def results(self) -> LogFolder:
        """The folder, and whether it holds this very run."""
        first = self.jobs[0]
        hashes = [one.vector.hash() for one in first.rows[1 :: 1 + self.settings.n_random]]
        return LogFolder(
            usual=self.folder,
            command=COMMAND,
            key=self.key,
            asked={"options": self.recorded, "inputs": {**first.inputs(), "vectors": hashes}},
            files=[CROSSED],
        )

    def plan(self) -> str:
        """What a run would do, in lines.

        Raises:
            InputError: files of nobody we know lie in the folder, or a judge cannot be asked.
        """
        return recorded.planned(self.results, self._plan)

    def _plan(self) -> str:
        settings, (first, *_) = self.settings, self.jobs
        chosen_judges(settings.judge, settings.coherence_judge, settings, offline=False)
        n_questions = sum(len(one.trait.questions) for one in self.jobs)
        n_answers = len(first.rows) * n_questions * settings.n_rollouts
        n_random = settings.n_random
        n_steered = len(first.rows) // (1 + n_random)
        return (
            f"{settings.name}: {len(self.jobs)} traits asked under {n_steered} directions, "
            f"{n_random} random ones for each and none = {n_answers} answers of at most "
            f"{settings.max_new_tokens} tokens, {2 * n_answers} judgements by {settings.judge}"
            f"{kept_by(*self.jobs)}"
        )

    def run(self, progress: Tell) -> tuple[TraitMatrix, Path]:
        """Ask, judge and write, or read what a finished run wrote; the results and their file.

        Raises:
            PartialError: some answers could not be judged; the rest is written.
        """
        with judges_when_asked(self.settings, progress, self.notice) as by:
            found = recorded.in_folder(
                self.results,
                TraitMatrix,
                lambda: self.judged_by(by(), progress),
                device=self.jobs[0].device,
                files=[CROSSED],
                file=CROSSED,
                kind="traits",
                ready=by,
                notice=self.notice,
            )
        return found, self.folder / CROSSED

    def judged_by(self, by: tuple[Judge, Judge], progress: Tell) -> TraitMatrix:
        """What it says, written also where some verdicts are missing.

        Raises:
            PartialError: some answers could not be judged.
        """
        asked = list(self._asked(by, progress))
        found = matrix_of(asked, self.left_out, self._how(by))
        write_json(self.folder / CROSSED, document(found))
        check_judged([level for one in asked for level in one.rows], self.folder)
        return found

    def _asked(self, by: Any, progress: Tell) -> Iterator[Steering]:
        """Each trait with its answers and verdicts; the model is loaded once."""
        before: Steering | None = None
        for at, job in enumerate(self.jobs):
            progress(Progress(f"asking {job.trait.name}", at, len(self.jobs)))
            one = replace(job, progress=progress)
            if before is not None and "model" in vars(before):
                vars(one)["model"] = before.model
            yield replace(one, rows=levels_of(one, by))
            before = one

    def _how(self, by: Any) -> dict[str, Any]:
        settings, first = self.settings, self.jobs[0]
        return {
            "judge": dict(zip(("trait", "coherence"), map(identity_of, by), strict=True)),
            "coherent_from": COHERENT_FROM,
            "positions": settings.where,
            "rollouts": settings.n_rollouts,
            "randoms": settings.n_random,
            **first.sampling,
            **first.conditions(),
        }


def open_crossing(settings: CrossSettings, notice: Notice) -> Crossing:
    """A run whose traits, directions and judges were looked at; no model is loaded.

    Raises:
        InputError: a trait or what was found for it is missing or wrong, or nothing can be steered.
    """
    folder = crossed_folder(settings)
    asked = [replace(settings, trait=one) for one in traits_of(settings)]
    traits = [asked_trait(one) for one in asked]
    names = [slug(one.name) for one in traits]
    if len({*names}) < len(names):
        raise InputError(f"--trait {settings.trait}: two traits have the same name")
    jobs: list[Steering] = []
    for one, trait in zip(asked, traits, strict=True):
        own = replace(one, out=folder / slug(trait.name))
        jobs.append(Steering.opened(own, trait, notice))
        if (told := trait.remark(settings.judge)) is not None:
            notice(told)
    rows: list[Level] = []
    left_out: dict[str, str] = {}
    for one, trait in zip(asked, traits, strict=True):
        found = chosen_for(settings, load_trait(one.trait), jobs[0])
        if isinstance(found, str):
            left_out[trait.name] = found
            notice(f"{trait.name}: nothing is steered by it ({found})")
        else:
            rows += [found, *_controls(found, settings)]
    if not rows:
        raise InputError(f"nothing to steer by: {'; '.join(left_out.values())}")
    rows = [Level("baseline", rows[0].vector, 0.0), *rows]
    jobs = [one.under(rows) for one in jobs]
    made = Crossing(settings, tuple(jobs), left_out, folder, notice)
    tell_replaced(folder, made.recorded, {"key": made.key}, notice)
    return made


def chosen_for(settings: CrossSettings, trait: Trait, job: Steering) -> Level | str:
    """A trait's direction at the strength that its own evaluation chose; or why there is none.

    `steer eval` chose a coefficient; without it, the layer that `steer sweep` chose. `trait` has
    all questions of its file: it asked these, or the first of them.

    Raises:
        InputError: neither was run, its files were changed, or the vector or the questions are
            others now.
    """
    folder = found_in(settings, trait)
    places = [folder / name for name in ("results.json", "layer_sweep.json")]
    place = next((one for one in places if one.exists()), None)
    if place is None:
        raise InputError(
            f"{folder}: trait {trait.name} was not steered; run `lensaudit steer eval` or "
            "`lensaudit steer sweep` first"
        )
    record: CoefficientSweep | LayerSweep = Found("steering", place).record
    chosen = record.chosen
    if isinstance(record, CoefficientSweep):
        command, hashes = "eval", {record.vector.get("hash")}
        layer, coefficient = record.layer, chosen and chosen.setting
    else:
        command, hashes, layer = "sweep", swept_by(place), chosen and chosen.layer
        at_layer = None if layer is None else record.layers.get(str(layer))
        coefficient = at_layer and at_layer.coefficient
    if chosen is None or layer is None or not coefficient:
        return f"in {place.name} no coherent setting moves it"
    path = folder / VECTORS / f"{record.method}_layer{layer}.safetensors"
    vector = job.loaded(path)
    if vector.hash() not in hashes:
        raise InputError(
            f"{path}: is not the vector of {place}; run `lensaudit steer {command}` again"
        )
    seen = [digest(list(trait.questions[:n])) for n in range(1, len(trait.questions) + 1)]
    if record.questions not in seen:
        raise InputError(
            f"{place}: chose on other questions than trait {trait.name} has now; run "
            f"`lensaudit steer {command}` again"
        )
    if vector.weights and vector.weights != job.checkpoint.weights:
        job.notice(f"{path}: was extracted from {vector.model}, not from {settings.name}")
    dev = frozenset(chosen.dev_questions) - {*chosen.test_questions}  # a single question is both
    return Level(f"by_{slug(trait.name)}", vector, float(coefficient), dev=dev)


def _controls(level: Level, settings: CrossSettings) -> Iterator[Level]:
    """Random directions that move the stream as far, at the same layer."""
    numbers = range(settings.n_random)
    seeds = [int(digest([level.name, settings.seed, n])[:8], 16) for n in numbers]
    for n, (_, drawn) in enumerate(controls_of(level.vector.vector, seeds)):
        vector = replace(level.vector, vector=drawn, method="random", scores=None)
        yield Level(f"random_{n}_{level.name}", vector, level.coefficient)


def matrix_of(
    asked: Sequence[Steering], left_out: Mapping[str, str], how: Mapping[str, Any]
) -> TraitMatrix:
    """The numbers of `traits.json`, of traits that were asked under the same directions."""
    steered: dict[str, SteeredTrait] = {}
    kept = [one.trait.name for one in asked if one.trait.name not in left_out]
    rows = range(1, len(asked[0].rows))
    for name, at in zip(kept, batched(rows, len(rows) // len(kept)), strict=True):
        own = asked[0].rows[at[0]]
        steered[name] = SteeredTrait(
            coefficient=own.coefficient,
            vector=own.vector.document(),
            judged={one.trait.name: _cell(one, name, at) for one in asked},
        )
    return TraitMatrix(
        schema=SCHEMA,
        baseline={one.trait.name: one.rows[0].judged(one.rows[0].mean) for one in asked},
        steered=steered,
        how={**how, "left_out": dict(left_out)},
    )


def _cell(asked: Steering, steered: str, at: Sequence[int]) -> CrossedScore:
    """A trait's score under the first of the rows `at`, the others being its controls.

    Of `steered` itself what no choice saw.
    """
    base, level, *controls = (asked.rows[row] for row in (0, *at))
    dev = level.dev if asked.trait.name == steered else frozenset[int]()
    left = frozenset(range(len(asked.trait.questions))) - dev
    return _crossed(base.only(left), level.only(left), [one.only(left) for one in controls])


def _crossed(base: Level, level: Level, controls: Sequence[Level]) -> CrossedScore:
    delta = _change(paired_gaps(level, base))
    beyond = beyond_random([paired_gaps(level, one) for one in controls])
    return CrossedScore(
        **vars(level.judged(base.mean)),
        coherence_mean=level.coherence,
        delta=delta.value,
        delta_ci95=delta.ends,
        beyond_random=beyond.value,
        beyond_random_ci95=beyond.ends,
    )


def _change(gaps: Mapping[int, float]) -> Estimate:
    """Mean of differences by question, with its interval over questions."""
    return clustered_mean([*gaps.values()], [*gaps], bounds=_GAPS, unit="question")


def beyond_random(gaps: Sequence[Mapping[int, float]]) -> Estimate:
    """Change beyond random directions, with an interval over questions and over directions.

    Half of its width is hypot(q, d): q that of the mean over the directions by question, and d that
    of Student's t for one more of k directions, at `OF_DIRECTIONS`:

        d = t(k - 1) * sd(mean change beyond each) * sqrt(1 + 1 / k)

    Means that happen to be alike are no less apart than one question's step of the mean lets see:
    the sd is at least that of rounding to it, 100 / questions / sqrt(12).

    Args:
        gaps: of each random direction, by question: how much higher the trait's direction scores.

    >>> beyond_random([{0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}]).why
    'one random direction: no interval'
    """
    scored = [one for one in gaps if one]
    asked = sorted({question for one in scored for question in one})
    found = _change({at: fmean(one[at] for one in scored if at in one) for at in asked})
    if found.value is None or found.ends is None:
        return found
    if (n := len(scored)) < 2:
        return Estimate(found.value, n=found.n, why="one random direction: no interval")
    least, most = _GAPS
    apart = max(stdev(fmean(one.values()) for one in scored), most / len(asked) / math.sqrt(12))
    half = float(stdtrit(n - 1, (1 + OF_DIRECTIONS) / 2)) * apart * math.sqrt(1 + 1 / n)
    low, high = (math.hypot(end - found.value, half) for end in found.ends)
    return Estimate(
        found.value, max(found.value - low, least), min(found.value + high, most), found.n
    )
