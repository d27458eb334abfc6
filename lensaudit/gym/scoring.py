"""What does every auditor say of every planted model? Scored once, kept line by line."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import alone
from lensaudit.gym.auditors import Auditor, AuditorScore, Case, SeedModels, auditors_named
from lensaudit.gym.make import PlantedModel, models_in
from lensaudit.gym.registry import load_own, named
from lensaudit.gym.settings import ScoreSettings, gym_folder
from lensaudit.gym.table import ANCHOR, ledger_of, seal
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.progress import Notice
from lensaudit.settings import path_of

AT_ONCE = 8
"""Models that are judged between two lines of the ledger: what a kill loses."""


@dataclass(frozen=True)
class JudgedModel:
    """A model or an anchor: what it is, and where."""

    key: str
    mechanism: str
    truth: str
    strength: float
    seed: int
    held_out: bool
    knows: tuple[int, ...] | None
    case: Case

    def row(self, one: Auditor, found: AuditorScore, seconds: float) -> dict[str, Any]:
        """A line of the ledger."""
        facts = found.facts and {str(idx): value for idx, value in found.facts.items()}
        return {
            "auditor": one.name,
            "version": one.version,
            "reads": one.reads,
            "high_means": one.high_means,
            "model": self.key,
            "mechanism": self.mechanism,
            "truth": self.truth,
            "strength": self.strength,
            "seed": self.seed,
            "held_out": self.held_out,
            "knows": None if self.knows is None else list(self.knows),
            "score": found.score,
            "ci95": None if found.ci95 is None else list(found.ci95),
            "facts": facts or None,
            "control": found.control,
            "why": found.why,
            "seconds": round(seconds, 3),
            **({"evidence": found.evidence} if found.evidence else {}),
        }


@dataclass(frozen=True)
class ScoringRun:
    """What a run did."""

    path: Path
    """The ledger."""
    n_new: int
    n_left: int
    """Still to do: time was up."""


def score(settings: ScoreSettings, *, notice: Notice = lambda _: None) -> ScoringRun:
    """Judge what is not judged yet; a kill loses at most a few models of one auditor.

    Raises:
        InputError: no planted models, or an unknown auditor or mechanism.
        TryAgainError: another process judges the models of this folder.
    """
    for path in settings.own:
        load_own(path)
    judges = auditors_named(settings.auditor)
    if not gym_folder(settings.gym).is_dir():
        raise _no_models(settings)
    with alone(gym_folder(settings.gym)):
        return _score(settings, judges, notice)


def _score(settings: ScoreSettings, judges: Sequence[Auditor], notice: Notice) -> ScoringRun:
    ledger = ledger_of(gym_folder(settings.gym), settings.limit, notice=notice)
    done = {(row["auditor"], row["version"], row["model"]) for row in ledger.rows}
    started, n_new, n_left = time.monotonic(), 0, 0
    for bench_models in _by_seed(settings, notice):
        for judge in judges:
            todo = [m for m in bench_models if (judge.name, judge.version, m.key) not in done]
            for start in range(0, len(todo), AT_ONCE):
                chosen = todo[start : start + AT_ONCE]
                minutes = (time.monotonic() - started) / 60
                if settings.minutes is not None and minutes > settings.minutes:
                    n_left += len(chosen)
                    continue
                notice(f"{judge.name}: {chosen[0].mechanism}, seed {chosen[0].seed} …")
                ledger.append(_rows(judge, chosen))
                seal(ledger, started)
                n_new += len(chosen)
    seal(ledger, started)
    return ScoringRun(ledger.path, n_new, n_left)


def _rows(judge: Auditor, chosen: Sequence[JudgedModel]) -> list[dict[str, Any]]:
    """A line for each; one that breaks is unscored, with the reason, and alone."""
    started = time.monotonic()
    try:
        found = judge.judge([one.case for one in chosen])
    except LensAuditError as error:
        if len(chosen) > 1:
            return [row for one in chosen for row in _rows(judge, [one])]
        found = [AuditorScore(None, why=str(error).splitlines()[0])]
    seconds = (time.monotonic() - started) / len(chosen)
    return [one.row(judge, what, seconds) for one, what in zip(chosen, found, strict=True)]


def _by_seed(settings: ScoreSettings, notice: Notice) -> Iterator[list[JudgedModel]]:
    """The anchors and the models of each seed."""
    wanted, gym = {one.name for one in named(settings.mechanism)}, gym_folder(settings.gym)
    seeds = range(settings.first_seed, settings.first_seed + (settings.seeds or 10**9))
    models = [
        one
        for one in models_in(gym, notice=notice)
        if one.mechanism in wanted and one.seed in seeds
    ]
    if not models:
        raise _no_models(settings)
    for seed, group in groupby(sorted(models, key=lambda one: one.seed), lambda one: one.seed):
        yield list(_judged(list(group), seed, settings))


def _no_models(settings: ScoreSettings) -> InputError:
    place = gym_folder(settings.gym)
    return InputError(f"{place}: no certified models of these mechanisms and seeds")


def _judged(
    models: Sequence[PlantedModel], seed: int, settings: ScoreSettings
) -> Iterator[JudgedModel]:
    first = models[0]
    bench = SeedModels(
        first.anchors["full"],
        first.anchors["retain"],
        first.data,
        first.retain_data,
        gym_folder(settings.gym) / "work" / f"seed-{seed}",
        settings.limit,
        path_of(settings.registry),
    )
    for role in ("full", "retain"):
        name = first.anchors[role]
        key = f"{open_checkpoint(bench.spec(name)).weights} {seed}"
        yield JudgedModel(key, role, ANCHOR, 1.0, seed, False, None, Case(name, bench))
    for one in models:
        yield JudgedModel(
            one.key,
            one.mechanism,
            one.truth,
            one.strength,
            seed,
            one.held_out,
            one.certificate.knows,
            Case(str(one.folder), bench),
        )
