"""From names of models to effort curves in folders: how many steps bring the facts back?

    rho(c) = (R_M(c) - R_R(c)) / (R_F(c) - R_R(c))

with R the share of held-out facts answered rightly after the same attack of c steps on the audited
model M, on `retain` R and on `full` F: see `scores.recovery`. Comparing at equal c takes off what
the rows teach by themselves, and what an attack breaks.

    E_x = smallest c at which rho(c) >= x

See `curve.py`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lensaudit.attacks.effort.arms import HeldOut, held_out
from lensaudit.attacks.effort.curve import (
    Marks,
    chosen,
    effort_at,
    judged_by,
    last_read,
    readings,
)
from lensaudit.attacks.effort.job import BATCHES, FILE, EffortJob, fill, grid
from lensaudit.attacks.result import EffortResult, effort_folders
from lensaudit.attacks.rtt.log import Log, read_log
from lensaudit.attacks.rtt.selection import halves
from lensaudit.attacks.rtt.study import LRS
from lensaudit.attacks.settings import ARMS, Arm, EffortSettings
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.kinds.effort import EffortArm, EffortRecord, TrainingRate
from lensaudit.models.checkpoint import Checkpoint, config_of, load_tokenizer
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.family import open_family
from lensaudit.models.likeness import check_same_shape
from lensaudit.models.registry import default_data
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.plans.work import flop_of_blocks
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.manifest import manifest
from lensaudit.results.owner import check_beside, check_free, claim
from lensaudit.results.reading import SUMMARY, document
from lensaudit.results.run_log import tell_replaced
from lensaudit.scores.intervals import typical_size
from lensaudit.scores.recovery import Arms
from lensaudit.settings import plain
from lensaudit.training.embedded import of_embedded_family
from lensaudit.training.rows import check_lengths, in_epochs
from lensaudit.training.trainee import (
    check_memory,
    check_rank,
    rate_of,
)
from lensaudit.turns import alone

DEMO_LRS = (3e-4, 1e-3)
"""Of `rtt`'s for the embedded family; 3e-3 breaks `full` before it brings anything back."""
COMMAND = "effort"
FILES = (SUMMARY,)
SHARES = {"e50": 0.5, "e80": 0.8}


def tokens_at(attack: EffortJob) -> tuple[int, ...]:
    """Tokens trained on by each step of the grid; padding is none."""
    samples, how = attack.fold.samples, attack.settings
    rows = in_epochs(len(samples), batch_size=how.rows, seed=how.seed)
    steps = (sum(len(samples[one].ids) for one in rows(step)) for step in range(how.steps))
    total = (0, *accumulate(steps))
    return tuple(total[one] for one in grid(how.steps))


def flop_per_token(model: Checkpoint, *, frozen: bool) -> int:
    """Arithmetic of training on one token; attention's scores and the adapter are not counted."""
    sizes = sizes_on_disk(model, "float32")
    forward = flop_of_blocks(sizes) + 2 * sizes.d_model * sizes.d_vocab
    return forward * (BATCHES - 1 if frozen else BATCHES)


@dataclass(frozen=True)
class PreparedEffort:
    """Models, rows and attacks, opened and checked; nothing is loaded."""

    models: Mapping[str, Arms[Checkpoint]]
    """By source, with what it is compared with: the same models for all."""
    held: HeldOut
    rates: tuple[TrainingRate, ...]
    settings: EffortSettings
    device: str
    dtype: str
    folders: Mapping[str, Path]
    log: Log

    @property
    def anchors(self) -> tuple[Checkpoint, ...]:
        """`full`, and the models that never knew."""
        first = next(iter(self.models.values()))
        return (first.full, *first.never)

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps after which each reading is taken."""
        return grid(self.settings.steps)

    @property
    def groups(self) -> tuple[int | str, ...]:
        """Author of each fact, in order."""
        return tuple(one.group for one in self.held.data.items)

    @property
    def half(self) -> NDArray[np.bool_]:
        """The facts of half of the authors, drawn by the seed."""
        return halves(self.groups, f"effort-{self.settings.seed}")

    def attacks(self, model: Checkpoint, arm: Arm, rate: TrainingRate) -> list[EffortJob]:
        """The runs of an arm at one rate, one for each fold."""
        return [
            EffortJob(model, one, self.held.readout, rate, self.settings, self.dtype, self.device)
            for one in self.held.folds[arm]
        ]

    def tried(self, model: Checkpoint) -> list[EffortJob]:
        """Attacks on a source: every arm, rate and fold."""
        pairs = product(self.settings.arms, self.rates)
        return [one for arm, rate in pairs for one in self.attacks(model, arm, rate)]

    def inputs(self, name: str) -> dict[str, Any]:
        """What was read of a source, its anchors and the rows, for the manifest."""
        arms, data = self.models[name], self.held.data
        return {
            "source": {**arms.source.named, "name": name},
            "full": arms.full.named,
            **{f"retain {n}": one.named for n, one in enumerate(arms.never, 1)},
            "data": data.name,
            "data_digest": self.held.digest,
            "rows": {one.question: one.choices[one.answer] for one in data.items},
        }

    def marks(self, model: Checkpoint, arm: Arm, rate: TrainingRate) -> Marks:
        """Reading by fact, over all folds; from the log."""
        found = np.full((len(self.steps), len(self.held.data.items)), math.nan)
        for attack in self.attacks(model, arm, rate):
            for point in self.log.finished[attack.job_id].curve:
                row = np.zeros(len(attack.fold.items))
                row[list(point.readings[0].correct)] = 1.0
                found[self.steps.index(point.at), list(attack.fold.places)] = row
        return found

    def speaking(self, model: Checkpoint, arm: Arm) -> tuple[TrainingRate, TrainingRate]:
        """The rates that speak for one half of the facts and the other: each chosen on the other's.

        First that of `half`.
        """
        runs = {rate: self.marks(model, arm, rate) for rate in self.rates}
        return chosen(runs, ~self.half), chosen(runs, self.half)

    def is_tied(self, model: Checkpoint, arm: Arm) -> bool:
        """Whether there are several rates, and it makes no difference which one is tried."""
        first, *others = (self.marks(model, arm, rate) for rate in self.rates)
        return bool(others) and all(np.array_equal(first, one) for one in others)


Spoken = Mapping[tuple[str, Arm], tuple[TrainingRate, TrainingRate]]
"""By source and arm, the rates that speak."""


def prepare(
    sources: Sequence[str], settings: EffortSettings, out: Path | None, notice: Notice = unheard
) -> PreparedEffort:
    """Open and check models, rows and rates.

    Raises:
        InputError: whatever is wrong with names, files or numbers; no work was done.
    """
    names = list(dict.fromkeys(sources))
    if not names:
        raise InputError("no --source: name the model to attack, or several")
    folders = effort_folders(names, out)
    first = next(iter(folders.values()))
    home = first if len(names) == 1 else first.parent
    check_beside(home, COMMAND, len(names))
    for place in folders.values():
        check_free(place, COMMAND, FILES)
    settings = replace(settings, arms=tuple(dict.fromkeys(settings.arms)) or ("T", "neutral"))
    full, opened, never = open_family(
        names, settings.full, settings.retain or None, settings.registry
    )
    check_same_shape(full, *never.values(), *opened.values(), notice=notice)
    rates = _rates(settings, full)
    check_rank(full, max(one.rank for one in rates))
    device = resolve_device(settings.device)
    dtype = _dtype(settings, device, notice)
    check_memory(full, copies=2 if device == "cpu" else 1, device=device)
    held = held_out(
        settings, settings.data or default_data(names[0], settings.registry), load_tokenizer(full)
    )
    sequences = (fold.sequences for several in held.folds.values() for fold in several)
    check_lengths(chain(*sequences), config_of(full), full.spec.name)
    ready = PreparedEffort(
        models={name: Arms(one, full, tuple(never.values())) for name, one in opened.items()},
        held=held,
        rates=rates,
        settings=settings,
        device=device,
        dtype=dtype,
        folders=folders,
        log=read_log(home / FILE, notice=notice),
    )
    for name, place in folders.items():
        tell_replaced(place, plain(settings), ready.inputs(name), notice)
    return ready


def _rates(settings: EffortSettings, full: Checkpoint) -> tuple[TrainingRate, ...]:
    """What the attacker tries: every learning rate with every rank, 0 for all weights.

    Raises:
        InputError: ranks that are none, or beside all weights.
    """
    ranks = [0]
    if settings.lora is not None:
        if settings.weights is not None:
            raise InputError("--lora and --weights full exclude each other")
        parts = settings.lora.split(",")
        if not all(one.strip().isdecimal() and int(one) > 0 for one in parts):
            raise InputError(f"--lora {settings.lora}: wanted whole numbers above 0, like 4,16")
        ranks = sorted({int(one) for one in parts})
    lrs = DEMO_LRS if of_embedded_family(full) else LRS
    usual = [rate_of(one, settings.lora) for one in lrs]
    return tuple(TrainingRate(*one) for one in product(sorted({*settings.lrs} or usual), ranks))


def _dtype(settings: EffortSettings, device: str, notice: Notice) -> str:
    """Type of the weights that the attack starts from."""
    if settings.lora:
        return resolve_dtype(settings.dtype, device)
    if settings.dtype not in ("auto", "float32"):
        notice(
            f"{settings.dtype} is not taken: weights that are trained are float32, as small steps "
            "would be rounded away; with --lora the base is"
        )
    return "float32"


def run(
    ready: PreparedEffort,
    *,
    workers: int = 1,
    progress: Tell = unheard,
) -> list[EffortResult]:
    """Attack the models and their anchors, and write a folder for each source.

    Attacks that are in the log are not done again, and those of the anchors serve all sources.

    Raises:
        TryAgainError: another process attacks models into the folder.
    """
    path, started = ready.log.path, time.monotonic()
    assert path is not None

    with alone(path.parent):
        # what another process did since the log was read is not done again
        ready = replace(ready, log=read_log(path))
        for folder in ready.folders.values():
            claim(folder, COMMAND, FILES)
        own = [one for arms in ready.models.values() for one in ready.tried(arms.source)]
        fill(ready.log, own, workers=workers, report=progress)
        spoken: Spoken = {
            (name, arm): ready.speaking(arms.source, arm)
            for name, arms in ready.models.items()
            for arm in ready.settings.arms
        }
        rates: set[tuple[Arm, TrainingRate]] = {
            (arm, rate) for (_, arm), both in spoken.items() for rate in both
        }
        anchors = [
            one
            for model in ready.anchors
            for arm, rate in sorted(rates)
            for one in ready.attacks(model, arm, rate)
        ]
        fill(ready.log, anchors, workers=workers, report=progress)
        return [_deposit(ready, name, spoken, started) for name in ready.models]


def _deposit(
    ready: PreparedEffort,
    name: str,
    spoken: Spoken,
    started: float,
) -> EffortResult:
    arms = ready.models[name]
    record = EffortRecord(
        model=name,
        full=arms.full.spec.name,
        retain=[one.spec.name for one in arms.never],
        data=ready.held.data.name,
        readout=ready.held.readout,
        n_facts=len(ready.held.data.items),
        n_authors=len(set(ready.groups)),
        per_author=typical_size(ready.groups),
        n_choices=ready.held.data.n_choices,
        n_left_out=len(ready.held.data.left_out),
        rows_left_out=ready.held.left_out,
        steps=list(ready.steps),
        by=judged_by(ready.groups),
        rates=list(ready.rates),
        arms={arm: _arm(ready, arms, arm, spoken[name, arm]) for arm in ready.settings.arms},
        notes=[],
    )
    record = replace(record, notes=_notes(ready, arms.source, record))
    folder = ready.folders[name]
    write_json(folder / SUMMARY, document(record))
    manifest(
        COMMAND,
        kind="effort",
        options=plain(ready.settings),
        inputs=ready.inputs(name),
        device=ready.device,
        started=started,
    ).write(folder, FILES)
    return EffortResult(name, folder, record)


def _arm(
    ready: PreparedEffort,
    arms: Arms[Checkpoint],
    arm: Arm,
    spoken: tuple[TrainingRate, TrainingRate],
) -> EffortArm:
    """The curve of one arm, and what follows from it."""
    costs = _costs(ready, arm)
    marks = arms.each(
        lambda model: np.where(ready.half, *(ready.marks(model, arm, rate) for rate in spoken))
    )
    curve = readings(costs, marks, ready.groups)
    by = judged_by(ready.groups)
    efforts = {key: effort_at(curve, share, by) for key, share in SHARES.items()}
    is_open = any(step is None or censored for step, censored in efforts.values())
    lost = [one.reason for one in curve if one.c > last_read(curve)]
    runs = {rate: ready.marks(arms.source, arm, rate) for rate in sorted(set(spoken))}
    best = chosen(runs, np.ones_like(ready.half))
    return EffortArm(
        **{key: step for key, (step, _) in efforts.items()},
        censored={key: censored for key, (_, censored) in efforts.items()},
        by=by,
        lr=best.lr,
        rank=best.rank or None,
        rates=list(spoken),
        cost={key: None if step is None else costs[step] for key, (step, _) in efforts.items()},
        reason=lost[0] if is_open and lost else "",
        trained_on=ARMS[arm],
        n_rows=ready.held.n_rows(arm),
        likeness=ready.held.likeness.get(arm),
        curve=curve,
    )


def _costs(ready: PreparedEffort, arm: Arm) -> dict[int, dict[str, int]]:
    """Step -> tokens and FLOP of an attack so long; a mean over folds."""
    full = ready.anchors[0]
    tokens = np.mean([tokens_at(one) for one in ready.attacks(full, arm, ready.rates[0])], axis=0)
    per_token = flop_per_token(full, frozen=ready.rates[0].rank > 0)
    return {
        step: {"steps": step, "tokens": round(n), "flop": round(n) * per_token}
        for step, n in zip(ready.steps, tokens, strict=True)
    }


def _notes(ready: PreparedEffort, source: Checkpoint, record: EffortRecord) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    highest = max(one.lr for one in ready.rates)
    for arm, one in record.arms.items():
        if one.reason:
            last = last_read(one.curve)
            after = f"after more than {last} steps" if last else "under any attack"
            found.append(f"arm {arm}: no rho {after} ({one.reason})")
        if len({rate.lr for rate in ready.rates}) > 1 and one.lr == highest:
            found.append(f"arm {arm}: the highest rate was chosen; a higher one may be faster")
    found += [
        f"arm {arm}: all rates gave the same readings; the lowest is named"
        for arm in ready.settings.arms
        if ready.is_tied(source, arm)
    ]
    diverged = {
        (arm, rate.lr)
        for arm, rate in product(ready.settings.arms, ready.rates)
        for one in ready.attacks(source, arm, rate)
        if ready.log.finished[one.job_id].status == "diverged"
    }
    if diverged:
        listed = ", ".join(f"{arm} at {lr:g}" for arm, lr in sorted(diverged))
        found.append(f"attacks diverged ({listed}); what they lack counts as wrong in the choice")
    if record.by == "estimate":
        found.append(
            f"{record.n_authors} authors are too few for intervals: E is read from estimates"
        )
    if any(one.censored["e50"] for one in record.arms.values()):
        found.append("a failed recovery is no proof of removal")
    return found


def plan_lines(ready: PreparedEffort) -> list[str]:
    """What would be done, and what it costs."""
    held, how = ready.held, ready.settings
    full, *never = ready.anchors
    lines = [
        f"{', '.join(ready.models)}; full {full.spec.name}; retain "
        f"{', '.join(one.spec.name for one in never)}; {ready.dtype} on {ready.device}",
        f"{held.data.name}: {len(held.data.items)} facts of {len(set(ready.groups))} authors are "
        f"read ({held.readout}) after {', '.join(map(str, ready.steps))} steps of {how.rows} rows",
        "rates: "
        + ", ".join(
            f"{one.lr:g}" + (f" rank {one.rank}" if one.rank else "") for one in ready.rates
        ),
    ]
    n_most, flop = 0, 0
    for arm in how.arms:
        costs = _costs(ready, arm)[how.steps]
        n_folds = len(held.folds[arm])
        # the anchors run at the two rates that were chosen, which may be one
        n_anchor = min(2, len(ready.rates)) * len(ready.anchors)
        n_arm = n_folds * (len(ready.models) * (len(ready.rates) + n_anchor))
        n_most, flop = n_most + n_arm, flop + n_arm * costs["flop"]
        lines.append(
            f"arm {arm}: {held.n_rows(arm)} rows ({ARMS[arm]}); an attack of {how.steps} steps is "
            f"{costs['tokens']:,} tokens, {costs['flop']:.2e} FLOP"
        )
    tried = {one.job_id for arms in ready.models.values() for one in ready.tried(arms.source)}
    n_known = sum(one in ready.log.finished for one in tried)
    return [
        *lines,
        f"at most {n_most} attacks, {flop:.2e} FLOP of training; {n_known} of the "
        f"{len(tried)} on the sources are in the log",
    ]
