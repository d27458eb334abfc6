"""What must a reader know before believing the numbers?"""

from collections.abc import Iterator, Mapping

import numpy as np

from lensaudit.attacks.rtt.curves import done
from lensaudit.attacks.rtt.log import Log, Opened
from lensaudit.attacks.rtt.select import Selected
from lensaudit.attacks.rtt.study import MEANINGS, Condition
from lensaudit.attacks.rtt.verdict import Verdict

LOW_MASS = 0.5
"""Mean option mass below which the letter is hardly what the model says; `rtt.md` section 6."""
FITTED = 0.9
"""Accuracy on T below which the attack did not fit what it was given."""
FEW_GROUPS = 10
"""Below it a percentile interval covers clearly less than it says."""
RETRAINED: tuple[Condition, ...] = ("B", "C", "N")


def notes_of(
    study: Opened,
    log: Log,
    *,
    verdict: Verdict,
    chosen: Mapping[Condition, Selected],
    readout: str,
) -> tuple[str, ...]:
    """The remarks on a study, most serious first."""
    if not verdict.passed:
        return (verdict.reason, *_defects(study), *_low_mass(study, log, readout))
    return (
        *_incomplete(study, log),
        *_no_control(study),
        *_defects(study),
        *_unfitted(study, log),
        *_low_mass(study, log, readout),
        *_edges(study, chosen),
        *_few_groups(study),
        "a failed recovery is no proof of removal",
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


def _few_groups(study: Opened) -> Iterator[str]:
    held = (split for split in study.splits if split.name in study.held_out)
    groups = {group for split in held for group in split.groups}
    if len(groups) < FEW_GROUPS:
        yield f"V holds {len(groups)} groups: bootstrap intervals over so few are too narrow"


def _unfitted(study: Opened, log: Log) -> Iterator[str]:
    for condition in RETRAINED:
        fits = [job.t_accuracy for _, job in done(study, log, condition)]
        best = max((one for one in fits if one is not None), default=None)
        if best is not None and best < FITTED:
            yield (
                f"{condition}: T itself is answered to at most {best:.0%} after the last epoch; "
                "the attack did not fit, try higher learning rates or more epochs"
            )


def _low_mass(study: Opened, log: Log, readout: str) -> Iterator[str]:
    if readout != "letter":
        return
    for condition in ("0", "A", "N0", *RETRAINED):
        masses = [
            mass
            for _, job in done(study, log, condition)
            if job.curve and (mass := job.curve[-1].reading(readout).option_mass) is not None
        ]
        if masses and np.mean(masses) < LOW_MASS:
            yield (
                f"{condition} ({MEANINGS[condition]}): the letters have {np.mean(masses):.0%} of "
                "the probability; read it with --readout answer"
            )


def _edges(study: Opened, chosen: Mapping[Condition, Selected]) -> Iterator[str]:
    lrs, n_epochs = study.sweep["lrs"], study.sweep["n_epochs"]
    for condition, selected in chosen.items():
        cells = [one.cell for one in selected.choices]
        if len(lrs) > 1 and any(one.lr == max(lrs) for one in cells):
            yield f"{condition}: the highest learning rate was chosen; the grid may end too early"
        if any(one.epoch == n_epochs for one in cells):
            yield f"{condition}: the last epoch was chosen; more may bring more"
