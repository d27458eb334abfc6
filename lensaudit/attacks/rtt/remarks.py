"""What must be known of a study before its numbers are believed, most serious first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from lensaudit.attacks.rtt.log import (
    CONDITIONS,
    Condition,
    Log,
    StudyRecord,
)
from lensaudit.attacks.rtt.marks import done
from lensaudit.attacks.rtt.selection import Selected
from lensaudit.groups import assumption, unit_of
from lensaudit.results.sentences import rows_only
from lensaudit.scores.intervals import FEWEST_GROUPS
from lensaudit.scores.means import mean_known


@dataclass(frozen=True)
class ConditionCheck:
    """What a condition's numbers rest on."""

    t_accuracy: float | None
    """The best run's accuracy on a sample of T after its last epoch; None without training, and
    for a readout that is not the study's first, which alone reads T."""
    option_mass: float | None
    """Mean probability of all letters, over held-out splits; None for other readouts."""
    calibrated: float | None
    """Mean accuracy after each letter's mean score is taken off; None for other readouts."""


def checks_of(
    study: StudyRecord, log: Log, chosen: Mapping[Condition, Selected], readout: str
) -> dict[Condition, ConditionCheck]:
    """The checks of every condition that has numbers; retrained ones at the chosen epochs."""
    found: dict[Condition, ConditionCheck] = {}
    as_they_are = {(split, None, 0) for split in study.held_out}
    for condition in chain(*CONDITIONS.values()):
        jobs = done(study, log, condition)
        choices = chosen[condition].choices if condition in chosen else ()
        spoken = {(split, cell.lr, cell.epoch) for split, cell in choices} | as_they_are
        readings = [
            point.reading(readout)
            for place, job in jobs
            for point in job.curve
            if (place.split, place.lr, point.at) in spoken
        ]
        if readings:
            own = jobs if readout == study.readouts[0] else ()
            fits = [job.t_accuracy for _, job in own if job.t_accuracy is not None]
            found[condition] = ConditionCheck(
                max(fits, default=None),
                mean_known(one.option_mass for one in readings),
                mean_known(one.calibrated for one in readings),
            )
    return found


LOW_MASS = 0.5
"""Mean option mass below which the letter is hardly what the model says; `rtt.md` section 6."""
FITTED = 0.9
"""Accuracy on T below which the attack did not fit what it was given."""
RETRAINED: tuple[Condition, ...] = ("B", "C", "N")


def notes_of(
    study: StudyRecord,
    log: Log,
    *,
    failure: str,
    chosen: Mapping[Condition, Selected],
    checks: Mapping[Condition, ConditionCheck],
) -> tuple[str, ...]:
    """The remarks on a study, most serious first."""
    masses = _least(
        {name: one.option_mass for name, one in checks.items()},
        "probability of the letters",
        LOW_MASS,
        "below half a model says something else, take --readout answer",
    )
    if failure:
        return (failure, *_defects(study), *masses)
    uncontrolled = ["no negative control: B may hold what T taught, and selection noise"]
    return (
        *_incomplete(study, log),
        *([] if "control" in study.models else uncontrolled),
        *_defects(study),
        *_least(
            {name: one.t_accuracy for name, one in checks.items()},
            "T itself is answered rightly, at best",
            FITTED,
            "the attack did not fit, try higher learning rates or more epochs",
        ),
        *masses,
        *_edges(study, chosen),
        *_intervals(study),
    )


def _incomplete(study: StudyRecord, log: Log) -> Iterator[str]:
    wanted = len(study.places)
    found = sum(place.job_id in log.finished for place in study.places)
    if found < wanted:
        yield f"{wanted - found} of {wanted} jobs are not done; run the same command to resume"
    for condition in RETRAINED:
        lost = [place for place, job in done(study, log, condition) if job.status == "diverged"]
        if lost:
            rates = ", ".join(sorted({f"{one.lr:g}" for one in lost}))
            yield (
                f"{condition}: {len(lost)} runs diverged (lr {rates}); only their earlier epochs "
                "count, so its maximum is over fewer models"
            )


def _defects(study: StudyRecord) -> Iterator[str]:
    if study.defects:
        counts = ", ".join(f"{kind} {n}" for kind, n in study.defects.items())
        yield f"the data have defects: {counts}"
    if not {"leak", "shared_group"} & set(study.defects):
        yield "T and V share no question and no group"
    if study.n_left_out:
        yield f"{study.n_left_out} rows of the data were left out"


def _intervals(study: StudyRecord) -> Iterator[str]:
    held = (split for split in study.splits if split.name in study.held_out)
    groups = [group for split in held for group in split.groups]
    if (n := len(set(groups))) < FEWEST_GROUPS:
        yield rows_only(f"V holds {n} {unit_of(groups)}{'' if n == 1 else 's'}: no interval")
    if assumed := assumption(groups):
        yield assumed


def _least(
    shares: Mapping[Condition, float | None], what: str, wanted: float, advice: str
) -> Iterator[str]:
    """The shares that there are, and what to do where one is less than wanted."""
    known = {name: share for name, share in shares.items() if share is not None}
    if known:
        listed = ", ".join(f"{name} {share:.0%}" for name, share in known.items())
        yield f"{what}: {listed}" + (f"; {advice}" if min(known.values()) < wanted else "")


def _edges(study: StudyRecord, chosen: Mapping[Condition, Selected]) -> Iterator[str]:
    lrs, n_epochs = study.sweep["lrs"], study.sweep["n_epochs"]
    for condition, selected in chosen.items():
        cells = [cell for _, cell in selected.choices]
        if len(lrs) > 1 and any(one.lr == max(lrs) for one in cells):
            yield f"{condition}: the highest learning rate was chosen; the grid may end too early"
        if any(one.epoch == n_epochs for one in cells):
            yield f"{condition}: the last epoch was chosen; more may bring more"
