"""What does every auditor say of every planted model? Scored once, kept line by line."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import alone
from lensaudit.groups import batched
from lensaudit.gym.auditors import Auditor, AuditorScore, Case, SeedModels, auditors_named
from lensaudit.gym.make import PlantedModel, models_in
from lensaudit.gym.registry import load_own, mechanisms
from lensaudit.gym.settings import ScoreSettings, gym_folder
from lensaudit.gym.table import ANCHOR, ScoreRow, ledger_of, seal
from lensaudit.progress import Notice
from lensaudit.settings import path_of

AT_ONCE = 8
"""Models that are judged between two lines of the ledger: what a kill loses."""
_NO_MODELS = "{}: no certified models of these mechanisms and seeds"


@dataclass(frozen=True)
class JudgedModel:
    """A model or an anchor: what it is, and where."""

    model: str
    """Its key."""
    about: Mapping[str, Any]
    """What a line of scores says of it."""
    case: Case

    def row(self, one: Auditor, found: AuditorScore, seconds: float) -> dict[str, Any]:
        """The score as a line of the ledger."""
        facts = {str(idx): value for idx, value in (found.facts or {}).items()}
        line = ScoreRow(
            auditor=one.name,
            version=one.version,
            reads=one.reads,
            high_means=one.high_means,
            model=self.model,
            **self.about,
            score=found.score,
            ci95=found.ci95,
            facts=facts or None,
            control=found.control,
            why=found.why,
            seconds=round(seconds, 3),
            evidence=found.evidence,
        )
        return {name: value for name, value in asdict(line).items() if name != "evidence" or value}


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
    gym = gym_folder(settings.gym)
    if not gym.is_dir():
        raise InputError(_NO_MODELS.format(gym))
    with alone(gym):
        return _score(settings, judges, notice)


def _score(settings: ScoreSettings, judges: Sequence[Auditor], notice: Notice) -> ScoringRun:
    ledger = ledger_of(gym_folder(settings.gym), settings.limit, notice=notice)
    done = {(row["auditor"], row["version"], row["model"]) for row in ledger.rows}
    started, n_new, n_left = time.monotonic(), 0, 0
    for bench_models in _by_seed(settings, notice):
        for judge in judges:
            todo = [m for m in bench_models if (judge.name, judge.version, m.model) not in done]
            for chosen in batched(todo, AT_ONCE):
                minutes = (time.monotonic() - started) / 60
                if settings.minutes is not None and minutes > settings.minutes:
                    n_left += len(chosen)
                    continue
                notice("{}: {mechanism}, seed {seed} …".format(judge.name, **chosen[0].about))
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
    gym, wanted = gym_folder(settings.gym), {one.name for one in mechanisms(settings.mechanism)}
    seeds = range(settings.first_seed, settings.first_seed + (settings.seeds or 10**9))
    models = [
        one
        for one in models_in(gym, notice=notice)
        if one.mechanism in wanted and one.seed in seeds
    ]
    if not models:
        raise InputError(_NO_MODELS.format(gym))
    for seed, group in groupby(sorted(models, key=lambda one: one.seed), lambda one: one.seed):
        yield list(_judged(list(group), seed, settings))


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
    anchor = {"truth": ANCHOR, "strength": 1.0, "seed": seed, "held_out": False, "knows": None}
    for role in ("full", "retain"):
        name = first.anchors[role]
        key = f"{bench.opened(name).weights} {seed}"
        yield JudgedModel(key, {"mechanism": role, **anchor}, Case(name, bench))
    for one in models:
        names = ("mechanism", "truth", "strength", "seed", "held_out")
        about = {name: getattr(one, name) for name in names} | {"knows": one.certificate.knows}
        yield JudgedModel(one.key, about, Case(str(one.folder), bench))
