"""Did unlearning work at all? Without a drop there is nothing to recover."""

import math
from dataclasses import dataclass

import numpy as np

from lensaudit.attacks.rtt.curves import measured
from lensaudit.attacks.rtt.log import Log, Opened
from lensaudit.attacks.rtt.select import Marks


@dataclass(frozen=True)
class GateVerdict:
    """What the gates say."""

    passed: bool
    reason: str = ""
    """Why not."""


def gate_of(study: Opened, log: Log, readout: str | None = None) -> GateVerdict:
    """Both gates, on the items that are held out, with the readout that is reported.

    The original must answer at least `min_baseline` rightly. Unlearning must have lowered that by
    `min_drop` standard errors of the difference of two proportions (`rtt.md` section 9), and at
    all: a model that recovers what it never lost scores 100 %.

    Args:
        study: what was run.
        log: holds its measurements.
        readout: the one that is reported; the study's first by default.
    """
    readout = readout or study.readouts[0]
    known = measured(study, log, "0", readout, study.held_out)
    left = measured(study, log, "A", readout, study.held_out)
    if known is None or left is None:
        return GateVerdict(False, "original and unlearned model are not measured yet")
    baseline, unlearned = mean_of(known), mean_of(left)
    if baseline < study.gate["min_baseline"]:
        return GateVerdict(
            False,
            f"the original {study.models['original']} answers {baseline:.1%} rightly (readout "
            f"{readout}), wanted {study.gate['min_baseline']:.0%}: it does not know these "
            "facts, or this readout does not show it",
        )
    wanted = study.gate["min_drop"] * _standard_error(known, left)
    drop = baseline - unlearned
    if study.gate["min_drop"] > 0 and (drop <= 0 or drop < wanted):
        return GateVerdict(
            False,
            f"unlearning changed the accuracy from {baseline:.1%} to {unlearned:.1%}, wanted a "
            f"drop of {wanted:.1%} ({study.gate['min_drop']:g} standard errors): nothing is "
            "unlearned",
        )
    return GateVerdict(True)


def mean_of(marks: tuple[Marks, ...]) -> float:
    """Accuracy per split, averaged over splits."""
    return float(np.mean([one.mean() for one in marks]))


def _standard_error(a: tuple[Marks, ...], b: tuple[Marks, ...]) -> float:
    joined = (np.concatenate(a), np.concatenate(b))
    return math.sqrt(sum(one.mean() * (1 - one.mean()) / len(one) for one in joined))
