"""Did the attack fit T, and did the models speak in letters at all? Per condition."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lensaudit.attacks.rtt.curves import done
from lensaudit.attacks.rtt.log import Log, Opened
from lensaudit.attacks.rtt.readings import CONDITIONS, Condition, Reading
from lensaudit.attacks.rtt.select import Selected


@dataclass(frozen=True)
class Check:
    """What a condition's numbers rest on."""

    t_accuracy: float | None
    """The best run's accuracy on a sample of T after its last epoch; None without training, and
    for a readout that is not the study's first, which alone reads T."""
    option_mass: float | None
    """Mean probability of all letters, over held-out splits; None for other readouts."""
    calibrated: float | None
    """Mean accuracy after each letter's mean score is taken off; None for other readouts."""


def checks_of(
    study: Opened, log: Log, chosen: Mapping[Condition, Selected], readout: str
) -> dict[Condition, Check]:
    """The checks of every condition that has numbers; retrained ones at the chosen epochs."""
    found: dict[Condition, Check] = {}
    for before, after in CONDITIONS.values():
        for condition in (before, after):
            readings = list(_spoken(study, log, condition, chosen.get(condition), readout))
            if readings:
                found[condition] = Check(
                    _best_fit(study, log, condition) if readout == study.readouts[0] else None,
                    _mean([one.option_mass for one in readings]),
                    _mean([one.calibrated for one in readings]),
                )
    return found


def _spoken(
    study: Opened, log: Log, condition: Condition, selected: Selected | None, readout: str
) -> Iterator[Reading]:
    """The readings that speak for a condition."""
    cells = {(one.split, one.cell) for one in selected.choices} if selected else set()
    wanted = {(split, cell.lr, cell.epoch) for split, cell in cells}
    wanted |= {(split, None, 0) for split in study.held_out}
    for place, job in done(study, log, condition):
        for point in job.curve:
            if (place.split, place.lr, point.epoch) in wanted:
                yield point.reading(readout)


def _best_fit(study: Opened, log: Log, condition: Condition) -> float | None:
    fits = [job.t_accuracy for _, job in done(study, log, condition)]
    return max((one for one in fits if one is not None), default=None)


def _mean(values: list[float | None]) -> float | None:
    given = [one for one in values if one is not None]
    return float(np.mean(given)) if given else None
