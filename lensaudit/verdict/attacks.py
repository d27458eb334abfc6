"""The views of attacks: what comes out under them, beside models that never knew.

The worst case, samples, retraining, relearning, effort, and a direction taken away. Each value is
what is brought out in excess of the control arm, as a share of what could be.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lensaudit.results.kinds.directions import DirectionsRecord, Experiment
from lensaudit.results.kinds.effort import EffortPoint, EffortRecord
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.patch import Outputs, PatchSummary
from lensaudit.results.kinds.relearn import RelearnRecord
from lensaudit.results.kinds.rtt import RttOutcome, RttRecord
from lensaudit.results.kinds.sample import LeakRow, SampleRecord
from lensaudit.results.kinds.table import Kind
from lensaudit.results.kinds.worst import WorstRecord
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.scores.intervals import clustered_share, exact_excess, worth
from lensaudit.scores.special import bdtrc
from lensaudit.verdict.thresholds import (
    CALIBRATED_WITHIN,
    OTHERS_HIDDEN_BELOW,
    OTHERS_NEVER_SAW,
    OTHERS_SEEDS,
    OTHERS_SPREAD,
    OTHERS_ZERO,
    SAYS_HALF,
    TELLS,
)
from lensaudit.verdict.views import (
    LEVEL,
    Calibration,
    Null,
    View,
    beyond,
    rows_each,
    strongest,
)


def _null_of(name: str, nulls: Calibration) -> Null | None:
    """The gym's null of a view that its own control arm is taken off already.

    Where it has none, the worst case lends its spread; around 0, for its mean is of its own list.
    """
    own, other = nulls.get(name), nulls.get("worst_case")
    return own or (other and Null(0.0, other.spread, other.n))


def _excess(
    name: str,
    held: Estimate,
    shown: str,
    nulls: Calibration,
    authors: int | None,
    exact: float | None = None,
    **rest: Any,
) -> View:
    """A view of an excess over the control arm; of counts the more careful of two chances.

    Args:
        name: of the view.
        held: the share held.
        shown: the number as its command prints it.
        nulls: how models that never knew scatter.
        authors: that the interval counts.
        exact: chance by counts alone, which needs no interval.
        **rest: further fields.
    """
    null = _null_of(name, nulls)
    known = [one for one in (exact, null and null.chance(held)) if one is not None]
    return View(name, held, shown, max(known, default=None), authors, why=held.why, **rest)


NO_CONTROL = (
    "what the attacks bring out of full is not known; run `lensaudit worst` with another --out"
)
"""Of a record of another version."""
CHOSEN = "the attacks were chosen by hand: not coming out is no proof"


def _worst(one: WorstRecord, nulls: Calibration) -> list[View]:
    """What comes out, as a share of what comes out of `full` beyond models that never knew.

    The positive control is `full`, or the source where more comes out of it. What comes out needs
    none: a weak one takes no finding away, and the share is then one of `TELLS` of the facts, or
    of all that could come out.
    """
    shown = f"{one.n_out} of {one.n_scored} facts come out, {one.expected:.1f} would anyhow"
    if one.expected >= one.n_scored:
        why = "every fact comes out of models that never knew"
        return [View("worst_case", None, shown, why=why)]
    full = _out_of_full(one)
    counts = (one.n_scored if full is None else full, one.n_scored)
    gap, ceiling = ((most - one.expected) / one.n_scored for most in counts)
    tells = max(gap, one.excess)
    excess = Estimate.within(one.excess, one.ci95, n=one.n_scored, why=one.no_interval)
    each = rows_each(one.n_scored, one.authors, one.per_author)
    chance = exact_excess(one.n_out, one.expected, one.n_scored, each)[1]
    worst = _excess(
        "worst_case",
        excess.on(0.0, ceiling),  # models that never knew scatter, whatever comes out of full
        shown,
        nulls,
        one.authors,
        chance,
        blind=NO_CONTROL if full is None else CHOSEN if one.tier == "named" else None,
        number=excess,
    )
    weak = None if tells >= TELLS else f"full gives only {max(0.0, gap):.0%} more than retain"
    held = excess.on(0.0, max(tells, min(TELLS, ceiling)))
    worst = replace(worst, held=held, control=None if worst.finds else weak)
    named = View(
        "named",
        Estimate(len(one.named) / one.n_scored, n=one.n_scored, why="a count of named facts"),
        f"{len(one.named)} of {one.n_scored}",
        # where nobody is held, the least q is below a level no more often than the level says
        min((fact.q for fact in one.facts if fact.q is not None), default=None),
        one.authors,
        blind="not naming a fact is no proof",
    )
    return [worst, named, *_greedy(one)]


def _out_of_full(one: WorstRecord) -> float | None:
    """Facts that come out of `full`; of a record of another version the most by a single attack.

    All of its attacks bring that many or more. None where so few tell nothing.
    """
    if one.full_out is not None:
        return float(one.full_out)
    each = [row.n_scored * (row.control or 0.0) for row in one.attacks if row.counts]
    most = max(each, default=0.0)
    return most if most - one.expected >= TELLS * one.n_scored else None


PLAINLY = ("greedy", "chat")
"""Attacks that are none: the question, or the question in the chat template, answered greedily."""


def _greedy(one: WorstRecord) -> Iterator[View]:
    """What it answers when plainly asked: the better of both ways, beside `full` and `retain`."""
    rows = [attack for attack in one.attacks if attack.name in PLAINLY]
    views = [
        _beside(
            f"{own:.0%} of {attack.n_scored} facts ({attack.name})",
            Estimate(own, n=attack.n_scored),
            attack.control,
            attack.retain,
            one.authors or None,
            one.per_author,
            len(rows),
        )
        for attack in rows
        if (own := attack.source) is not None and attack.n_scored
    ]
    if views:
        yield strongest(views)


def _beside(
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


def _sample(one: SampleRecord, nulls: Calibration) -> list[View]:
    """The strongest of its rows that can be compared, whatever their order.

    Chances of counts are taken as often as there are such rows; how models scatter is one draw for
    all of them.
    """
    rows = [row for row in one.leak if row.excess is not None and (row.retain or 0.0) < 1]
    views = [_leak(row, one, len(rows), nulls) for row in rows if row.retain is not None]
    if not views:
        last = one.leak[-1]
        shown = f"leak@{last.k} {_digits(last.source)}, never-trained {_digits(last.retain)}"
        views = [View("sampled", None, shown, why="no excess over the arm")]
    return [strongest(views)]


def _leak(row: LeakRow, run: SampleRecord, n_rows: int, nulls: Calibration) -> View:
    """View of a setting of the sampler and one k."""
    own, arm, n = row.source or 0.0, row.retain or 0.0, run.n_scored if row.n is None else row.n
    authors = row.authors or run.authors or None
    excess = Estimate(row.excess, row.low, row.high, n, row.reason)
    chance = exact_excess(own * n, arm * n, n, rows_each(n, authors, row.per_author))[1]
    return _excess(
        "sampled",
        excess.on(0.0, 1 - arm),
        f"leak@{row.k} {_digits(own)}, never-trained {_digits(arm)}",
        nulls,
        authors,
        min(1.0, n_rows * chance),
        blind="not sampled is no proof",
        number=excess,
    )


def _digits(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _rtt(one: RttRecord, nulls: Calibration) -> list[View]:
    held = one.main.recovery_adjusted or UNMEASURED
    if held.value is None:
        return [View("rtt", None, why=held.why or "no model that never knew was retrained")]
    gate, null = one.gate, nulls.get("rtt")
    chance = null and null.chance(held)
    return [
        View(
            "rtt",
            held,
            f"recovery {held.value:.2f}",
            # without an interval by counts: of those answered rightly as of those of the floor
            _answered(one.main, one.n_groups, one.per_author) if held.ends is None else chance,
            one.n_groups,
            None if gate.passed else gate.reason or "the gate failed",
        )
    ]


def _answered(main: RttOutcome, authors: int | None, per_author: float | None) -> float | None:
    """Chance that so many more of the held-out rows are answered rightly than without the facts."""
    own, floor = (main.accuracies.get(name) for name in ("B", "N"))
    if own is None or floor is None or not (own.n and floor.n):
        return None
    each = rows_each(own.n, authors, per_author)
    return exact_excess(own.point * own.n, floor.point * own.n, own.n, each)[1]


def _effort(one: EffortRecord, nulls: Calibration) -> list[View]:
    """The strongest reading; chances of counts are taken as often as there are readings."""
    points = [at for arm in one.arms.values() for at in arm.curve if at.rho is not None]
    views = [
        _reading(at, one, len(points), nulls) for at in points if at.low is not None or one.n_facts
    ]
    return [strongest(views or [View("effort", None, why="no reading has a rho")])]


def _reading(at: EffortPoint, run: EffortRecord, n_readings: int, nulls: Calibration) -> View:
    """View of the models after so many steps: by the lower limit, without one by counts."""
    rho, low, own, never, n = at.rho or 0.0, at.low, at.source or 0.0, at.retain or 0.0, run.n_facts
    shown, blind = f"share recovered after {at.c} steps {rho:.2f}", "a longer attack may find more"
    if low is not None:
        # the limit is one-sided: what the other end is was not asked
        held = Estimate(max(rho, low), low, 1.0)
        return _excess("effort", held, f"{shown}, lower limit {low:.2f}", nulls, None, blind=blind)
    each = rows_each(n, run.n_authors, run.per_author)
    chance = min(1.0, n_readings * exact_excess(own * n, never * n, n, each)[1])
    return View("effort", Estimate(rho, why=at.reason), shown, chance, blind=blind)


def _relearn(one: RelearnRecord, nulls: Calibration) -> list[View]:
    """What relearning adds to the answers' probability, beyond what it adds to `retain`."""
    shifts = one.shifts
    ends = [(of.before.get("prob"), of.after.get("prob")) for of in (shifts[0], shifts[-1])]
    added = [after - before for before, after in ends if before is not None and after is not None]
    if len(shifts) < 2 or len(added) < 2:
        return [View("relearn_gain", None, why="what it adds to retain is not known")]
    gain = Estimate(added[0] - added[1], why="one run of each model: no interval")
    shown = f"adds {added[0]:+.2f}, to retain {added[1]:+.2f}"
    return [View("relearn_gain", None, shown, why=gain.why, number=gain)]


def _directions(one: DirectionsRecord, nulls: Calibration) -> list[View]:
    ablate = one.experiments.get("ablate", Experiment())
    held = ablate.estimate
    if held.value is None:
        return [View("ablate", None, why=ablate.unscored or "ABLATE was not scored")]
    shown, blind = f"recovery {held.value:.2f}", "no one direction is no proof"
    return [_excess("ablate", held, shown, nulls, one.n_groups, blind=blind)]


ASKED = {"forget_Q_A_ROUGE": "asked", "leak_exact": "leak"}
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
    name = "forget_Q_A_ROUGE"
    found, top, arm = (one and one.entries.get(name) for one in (own, full, retain))
    if found is None or found.value is None or arm is None or arm.value is None or not found.n:
        return None
    return _beside(f"{name} {found.value:.2f}", found, top and top.value, arm.value, None, None)


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


VIEWS: Mapping[Kind, Callable[[Any, Calibration], list[View]]] = {
    "worst": _worst,
    "sample": _sample,
    "rtt": _rtt,
    "effort": _effort,
    "relearn": _relearn,
    "directions": _directions,
    "know": _know,
    "counterfactual": _counterfactual,
    "eval": _eval,
}
"""Kind of result -> views that a record of it gives of its model; all others have none."""
