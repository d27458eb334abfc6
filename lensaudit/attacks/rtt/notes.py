"""What must a reader know before believing the numbers?"""

from collections.abc import Iterator, Mapping

from lensaudit.attacks.rtt.checks import Check
from lensaudit.attacks.rtt.curves import done
from lensaudit.attacks.rtt.log import Log, Opened
from lensaudit.attacks.rtt.readings import Condition
from lensaudit.attacks.rtt.select import Selected
from lensaudit.attacks.rtt.verdict import GateVerdict
from lensaudit.groups import assumption, unit_of
from lensaudit.results.sentences import rows_only
from lensaudit.scores.intervals import FEWEST_GROUPS

LOW_MASS = 0.5
"""Mean option mass below which the letter is hardly what the model says; `rtt.md` section 6."""
FITTED = 0.9
"""Accuracy on T below which the attack did not fit what it was given."""
RETRAINED: tuple[Condition, ...] = ("B", "C", "N")


def notes_of(
    study: Opened,
    log: Log,
    *,
    verdict: GateVerdict,
    chosen: Mapping[Condition, Selected],
    checks: Mapping[Condition, Check],
) -> tuple[str, ...]:
    """The remarks on a study, most serious first."""
    if not verdict.passed:
        return (verdict.reason, *_defects(study), *_masses(checks))
    return (
        *_incomplete(study, log),
        *_no_control(study),
        *_defects(study),
        *_fits(checks),
        *_masses(checks),
        *_edges(study, chosen),
        *_groups(study),
    )


def _incomplete(study: Opened, log: Log) -> Iterator[str]:
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


def _no_control(study: Opened) -> Iterator[str]:
    if "control" not in study.models:
        yield "no negative control: B may hold what T taught, and selection noise"


def _defects(study: Opened) -> Iterator[str]:
    if study.defects:
        counts = ", ".join(f"{kind} {n}" for kind, n in study.defects.items())
        yield f"the data have defects: {counts}"
    if not {"leak", "shared_group"} & set(study.defects):
        yield "T and V share no question and no group"
    if study.n_left_out:
        yield f"{study.n_left_out} rows of the data were left out"


def _groups(study: Opened) -> Iterator[str]:
    held = (split for split in study.splits if split.name in study.held_out)
    groups = [group for split in held for group in split.groups]
    if (n := len(set(groups))) < FEWEST_GROUPS:
        yield rows_only(f"V holds {n} {unit_of(groups)}{'' if n == 1 else 's'}: no interval")
    if assumed := assumption(groups):
        yield assumed


def _fits(checks: Mapping[Condition, Check]) -> Iterator[str]:
    fits = {name: one.t_accuracy for name, one in checks.items() if one.t_accuracy is not None}
    if not fits:
        return
    listed = ", ".join(f"{name} {fit:.0%}" for name, fit in fits.items())
    weak = min(fits.values()) < FITTED
    advice = "; the attack did not fit, try higher learning rates or more epochs" if weak else ""
    yield f"T itself is answered rightly, at best: {listed}{advice}"


def _masses(checks: Mapping[Condition, Check]) -> Iterator[str]:
    masses = {name: one.option_mass for name, one in checks.items() if one.option_mass is not None}
    if not masses:
        return
    listed = ", ".join(f"{name} {mass:.0%}" for name, mass in masses.items())
    low = min(masses.values()) < LOW_MASS
    advice = "; below half a model says something else, take --readout answer" if low else ""
    yield f"probability of the letters: {listed}{advice}"


def _edges(study: Opened, chosen: Mapping[Condition, Selected]) -> Iterator[str]:
    lrs, n_epochs = study.sweep["lrs"], study.sweep["n_epochs"]
    for condition, selected in chosen.items():
        cells = [one.cell for one in selected.choices]
        if len(lrs) > 1 and any(one.lr == max(lrs) for one in cells):
            yield f"{condition}: the highest learning rate was chosen; the grid may end too early"
        if any(one.epoch == n_epochs for one in cells):
            yield f"{condition}: the last epoch was chosen; more may bring more"
