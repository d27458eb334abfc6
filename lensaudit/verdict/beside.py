"""The views of results beside a run of `patch`: what it answers, who has what, the scale of others.

Kinds of rooms above the core bring their own, see `lensaudit.kinds`.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.patch import Outputs, PatchSummary
from lensaudit.results.kinds.table import Kind, entered
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_share, worth
from lensaudit.scores.special import bdtrc
from lensaudit.verdict.thresholds import (
    CALIBRATED_WITHIN,
    OTHERS_HIDDEN_BELOW,
    OTHERS_NEVER_SAW,
    OTHERS_SEEDS,
    OTHERS_SPREAD,
    OTHERS_ZERO,
    SAYS_HALF,
)
from lensaudit.verdict.views import LEVEL, Calibration, Null, View, beyond, rows_each


def asked_view(
    shown: str,
    own: Estimate,
    full: float | None,
    retain: float | None,
    authors: int | None,
    per_author: float | None,
    n_ways: int = 1,
) -> View:
    """Answers when asked, by counts, as a share of what `full` says beyond `retain`.

    Args:
        shown: how much it answers.
        own: the same as a number, of so many facts.
        full: what `full` answers; None: not known, so that it may be all.
        retain: what a model that never saw them does.
        authors: of the facts.
        per_author: facts of the author that a fact is of, where that is known.
        n_ways: of asking, of which this is one.
    """
    if retain is None:
        return View("asked", None, shown, why="what retain answers is not known", number=own)
    said = f"{shown}{'' if full is None else f', full {full:.0%}'}, retain {retain:.0%}"
    blind, n = "not answered is no proof", own.n or 0
    view = View("asked", None, said, n_authors=authors, blind=blind, number=own)
    each = rows_each(n, authors, per_author)
    return beyond(view, own.point * n, 1.0 if full is None else full, retain, each, n_ways)


SAID = "forget_Q_A_ROUGE"
ASKED = {SAID: "asked", "leak_exact": "leak"}
"""Metrics of a suite about what a model answers, and the views they are."""


def _eval(run: EvaluationResult, nulls: Calibration) -> list[View]:
    """Alone they say nothing: see `asked_beside`."""
    return [
        View(view, None, f"{name} {one.value:.2f}", why=ALONE, number=one)
        for name, view in ASKED.items()
        if (one := run.entries.get(name)) is not None and one.value is not None
    ]


ALONE = "what full and retain say on these rows was not evaluated"


def asked_beside(
    own: EvaluationResult, full: EvaluationResult | None, retain: EvaluationResult
) -> View | None:
    """What a model answers when asked, by ROUGE, beside evaluations of its anchors on its rows."""
    found, top, arm = (one and said_in(one) for one in (own, full, retain))
    if found is None or arm is None or not found.n:
        return None
    shown = f"{SAID} {found.point:.2f}"
    return asked_view(shown, found, top and top.value, arm.point, None, None)


def said_in(run: EvaluationResult) -> MetricResult | None:
    """What an evaluation found of what a model answers when asked; None where it has no value."""
    found = run.entries.get(SAID)
    return None if found is None or found.value is None else found


SCALE = {
    "hidden_below": OTHERS_HIDDEN_BELOW,
    "never_saw": list(OTHERS_NEVER_SAW),
}
"""What the counterfactual scale reads of models of known truth, as summary.json holds it."""
HIGH = "a high number means nothing on this scale"
GUESSED = "how many of them a model that never saw them would guess is not known"


def _counterfactual(one: PatchSummary, nulls: Calibration) -> list[View]:
    """View that may show that facts are hidden, or said; never that one is gone."""
    asked = {"said": one.outputs, "told": one.told and one.told.outputs}
    says = [_said_alone(name, found) for name, found in asked.items() if found]
    return [*says, _stands_near(one)]


def _stands_near(one: PatchSummary) -> View:
    """The depth, with a share held only where its upper limit shows that most is."""
    full = one.calibration.get("full")
    number = Estimate.within(one.counterfactual, one.ci95, n=one.n_scored, why=one.ci95_why)
    if number.value is None or full is None:
        return View("counterfactual", None, why="no example could be scored")
    ends = "" if number.ends is None else f" [{number.least:.3f}, {number.most:.3f}]"
    low, high = OTHERS_NEVER_SAW
    shown = f"{number.value:.3f}{ends}, models that never saw the facts {low:.2f} to {high:.2f}"
    off = full > CALIBRATED_WITHIN and f"full as source reads {full:.3f}, not 0"
    if off or number.ends is None or number.most >= OTHERS_HIDDEN_BELOW:
        why = off or (HIGH if number.ends else number.why or "no interval")
        return View("counterfactual", None, shown, n_authors=one.n_groups, why=why, number=number)
    held = number.on(OTHERS_ZERO, 0.0)
    return View("counterfactual", held, shown, _OTHERS.chance(held), one.n_groups, number=number)


def _said_alone(name: str, one: Outputs) -> View:
    """What it says of what `full` says; it answers where that is surely more than half."""
    each, shown = (
        rows_each(one.n, one.n_groups, one.per_author),
        f"{one.source:.0%} of {one.n} facts",
    )
    own = clustered_share(round(one.source * one.n), one.n, each)
    if one.full <= 0:
        return View(name, None, shown, why="full says none of them", number=own)
    rows = worth(one.n, each)
    n_said = math.floor(one.source * rows + 1e-9)
    chance = float(bdtrc(n_said - 1, math.floor(rows), SAYS_HALF * one.full))
    return View(
        name,
        own.on(0.0, one.full),
        f"{shown}, full {one.full:.0%}",
        chance,
        one.n_groups,
        None if chance <= LEVEL else GUESSED,
        number=own,
    )


_OTHERS = Null(0.0, OTHERS_SPREAD, OTHERS_SEEDS)
UNCERTIFIED = "that nothing is bound, no test certifies"


def _know(one: KnowRecord, nulls: Calibration) -> list[View]:
    """P of the assignment test is exact: it needs no null of the gym's, and no interval."""
    refused = one.refused if one.undecided else None
    views = [
        View(
            "assignment",
            None,
            f"p {one.p:.2g}, {one.n_subjects} subjects{f', {one.tilt}' * (one.p <= LEVEL)}",
            one.p,
            one.n_subjects,
            control=refused,
            blind=UNCERTIFIED,
            why=refused or f"nothing found at p {one.p:.2g}; {UNCERTIFIED}",
        )
    ]
    if (bits := one.bits) is not None:
        held, shown = bits.on(0.0, one.max_bits), f"{bits.point:.1f} of {one.max_bits:.1f} bits"
        views.append(View("bits", held, shown, blind=UNCERTIFIED, why=bits.why, number=bits))
    return views


ViewsOf = Callable[[Any, Calibration], list[View]]
_OWN: Mapping[Kind, ViewsOf] = {"know": _know, "counterfactual": _counterfactual, "eval": _eval}


@cache
def speaking() -> Mapping[Kind, ViewsOf]:
    """Kind of result -> views that a record of it gives of its model; all others have none."""
    return {**_OWN, **entered("VIEWS")}
