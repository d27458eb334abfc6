"""What attacks bring out (worst cases, samples, relearning, effort, RTT), and who has what."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from rich.table import Table

from lensaudit.attacks.rtt.data import LETTERS, Dataset
from lensaudit.attacks.rtt.data import MEANINGS as DEFECTS
from lensaudit.attacks.rtt.log import MEANINGS as CONDITIONS
from lensaudit.kinds.effort import EffortArm, EffortRecord
from lensaudit.kinds.relearn import ScoreChange
from lensaudit.kinds.rtt import RttRecord
from lensaudit.kinds.sample import SampleRecord
from lensaudit.kinds.worst import WorstAttack, WorstRecord
from lensaudit.report.sentences import beyond, not_asked, unsaid
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.scores.estimate import Estimate
from lensaudit.screen.cells import brief, interval, name, number, profile
from lensaudit.screen.tables import Part, table


def of_worst(run: WorstRecord) -> Iterator[Part]:
    """The attack table, the headline and the remarks."""
    yield table(
        f"{run.source}: hit rates of attacks, list {run.attack_list[:12]}",
        ("attack", "full", "source", "retain", "only", "gain", "seconds"),
        (
            (
                one.name,
                *map(number, (one.control, one.source, one.retain)),
                _only(one),
                number(one.gain),
                f"{one.seconds:.1f}",
            )
            for one in run.attacks
        ),
        left=("attack",),
    )
    yield run.headline
    ends = interval(run.ci95, missing=run.no_interval or "–")
    yield f"  excess {number(run.excess)} ({ends}; {run.authors} authors)"
    if more := unsaid(run):
        yield f"  {more}"
    if run.people:
        yield f"  {run.people} (persons.csv)"
    if n := len(run.unscored):
        yield f"  {n} of {run.n} facts unscored; reasons in facts.csv"
    if run.bound.get("rate") is not None:
        yield (
            f"  a fact that {run.bound['draws']} samples did not hit comes out of at most "
            f"{run.bound['rate']:.1%} of samples, for all facts at once"
        )


def _only(one: WorstAttack) -> str:
    """Facts that no other attack brings out, or why an attack does not count."""
    return str(one.only) if one.counts else "not compared" if one.control else "no control"


def of_sample(run: SampleRecord) -> Iterator[Part]:
    """Table of leaks: a row per setting and k."""
    yield table(
        f"{run.source}: leak@k from {run.samples} samples a fact",
        ("T", "top-p", "k", "source", "retain", "excess", "95 % interval", "corrected", "false"),
        (
            (
                *(f"{value:g}" for value in (one.temperature, one.top_p, one.k)),
                *map(number, (one.source, one.retain, one.excess)),
                interval([one.low, one.high], missing=one.reason or "–"),
                *map(number, (one.corrected, one.false_leak)),
            )
            for one in run.leak
        ),
    )
    yield "  false: what the matcher's false hits alone would make of leak@k"
    if run.errors is not None:
        yield from (
            f"  T {one.temperature:g}, top-p {one.top_p:g}, k {one.k}: {one.reason}"
            for one in run.leak
            if one.corrected is None and one.reason
        )
    if n := len(run.unscored):
        yield f"  {n} of {run.n} facts unscored; reasons in summary.json"
    if run.never_hit_bound is not None:
        yield (
            f"  a fact that no sample hit comes out of at most "
            f"{run.never_hit_bound:.1%} of samples, for all facts at once"
        )


def of_effort(run: EffortRecord) -> Iterator[Part]:
    """A line an arm, and what should be known of the numbers."""
    curve = f"rho at 0 to {run.steps[-1]}"
    yield table(
        f"{name(run.model)}: steps until the facts are back, by {run.by}",
        ("arm", "E50", "tokens", "E80", "tokens ", "FLOP", "lr", curve),
        (
            (
                arm,
                *(
                    _reached(found, key, what)
                    for key, what in product(("e50", "e80"), ("steps", "tokens"))
                ),
                _reached(found, "e80", "flop"),
                f"{found.lr:g}",
                profile([at.rho for at in found.curve], 1.0),
            )
            for arm, found in run.arms.items()
        ),
        left=("arm", curve),
    )
    yield from (f"- {said}" for said in run.notes)


def _reached(arm: EffortArm, key: str, what: str) -> str:
    """E_x in steps, or what it took; `> 256` where no attack was long enough."""
    found = getattr(arm, key) if what == "steps" else (arm.cost[key] or {}).get(what)
    if found is None:
        return number(None)
    shown = str(found) if what == "steps" else brief(float(found))
    return f"> {shown}" if arm.censored[key] else shown


def of_know(run: KnowRecord) -> Iterator[Part]:
    """The table of relations, the headline, bits, names and controls."""
    yield table(
        f"{run.source}: who has what",
        ("relation", "subjects", "z", "p"),
        ((one.relation, str(one.n), number(one.z, 1), f"{one.p:.2g}") for one in run.relations),
        left=("relation",),
    )
    yield run.headline
    for found, than in ((run.bits, beyond(run)), (run.bits_familiar, "beyond a uniform guess")):
        if found is not None:
            ends = interval(found.ends, found.why or "–", ".2f")
            bits = f"{number(found.value, 2)} of {run.max_bits:.1f} bits a fact"
            yield f"  {bits} ({ends}; {found.n} facts), {than}"
    naming = run.naming
    yield f"  {len(run.named)} facts named" + (f": {naming['why']}" if naming["why"] else "")
    if run.people:
        yield f"  {run.people} (persons.csv)"
    for one in run.controls:
        yield f"  control: {'' if one.passed else 'FAILED: '}{one.said}"
    if lost := not_asked(run):
        yield f"  {lost}; each fact's reason is in facts.csv"


def of_recovery(shifts: Sequence[ScoreChange]) -> Iterator[Part]:
    """Table of recovery, a line a model."""
    names = list(shifts[0].before)
    yield table(
        "before -> after relearning; uds: 1 forgotten, the others: high knows",
        ["model", *names],
        (
            (one.model, *(f"{number(one.before[at])} -> {number(one.after[at])}" for at in names))
            for one in shifts
        ),
        left=("model",),
    )


if TYPE_CHECKING:
    from lensaudit.attacks.rtt.summary import Summary

EXAMPLES = 2
"""Of each kind of defect."""


def of_summary(summary: "Summary") -> Iterator[Part]:
    """Accuracies, recovery, other selections, remarks."""
    study, accuracies = summary.study, {**summary.as_they_are, **summary.main.accuracies}
    yield table(
        f"{study.models['unlearned']} on {study.data}",
        ("", "model", "accuracy", "95 % interval", "items"),
        (
            (condition, meaning, *_accuracy(accuracies.get(condition)))
            for condition, meaning in CONDITIONS.items()
        ),
        left=("", "model", "95 % interval"),
    )
    if not summary.failure:
        yield _recovery(summary)
        yield summary.reading
    yield from (f"- {note}" for note in summary.notes)
    yield (
        f"chance {1 / study.n_choices:.0%}; held out: {', '.join(study.held_out)}; loss on "
        f"{study.sweep['loss_on']}; read by {summary.readout}"
    )


def of_csvs(study: RttRecord) -> Iterator[Part]:
    """What the fork's files come to by either selection, and remarks."""
    conditions = ("A", "B", "C", "N")
    yield table(
        f"{study.source} on {study.data or '?'}, signature {study.rtt_signature}",
        ("selection", "epochs", *conditions, "(B-N)/(C-N)", "B/C", "(B-A)/(C-A)"),
        (
            (
                one.selection,
                one.acc_selection_rule.removesuffix("_epoch"),
                *(number(found.point) if found else "–" for found in accuracies),
                *(number(ratio.point) if ratio else "–" for ratio in ratios),
            )
            for one in (study.main, *study.others)
            for accuracies in [[{**study.as_they_are, **one.accuracies}.get(c) for c in conditions]]
            for ratios in [(one.recovery_adjusted, one.recovery_rate, one.gap_closed)]
        ),
        left=("selection", "epochs"),
    )
    yield from (f"- {note}" for note in study.notes)
    yield f"held out, for A too: {', '.join(study.held_out)}"


def _accuracy(found: Estimate | None) -> tuple[str, ...]:
    if found is None:
        return "–", "", ""
    return number(found.value), interval(found.ends, found.why or "–"), str(found.n)


def _recovery(summary: "Summary") -> Table:
    made = table(
        "recovery, by how learning rate and epoch are selected",
        ("selection", "epochs", "(B-N)/(C-N)", "95 % interval", "B/C", "(B-A)/(C-A)"),
        (
            (
                one.selection,
                one.rule,
                number(one.adjusted.value),
                interval(
                    one.adjusted.ends,
                    one.adjusted.why or "" if one.adjusted.value is not None else "",
                ),
                number(one.ratios["recovery_rate"].value),
                number(one.ratios["gap_closed"].value),
            )
            for one in (summary.main, *summary.others)
        ),
        left=("selection", "epochs"),
    )
    if summary.main.adjusted.value is None:
        made.caption = name(summary.main.adjusted.why)
    return made


def of_data(data: Dataset) -> Iterator[str]:
    """Sizes, the prior of the letters, and defects with examples."""
    sizes = ", ".join(f"{split} {len(items)}" for split, items in data.splits.items())
    yield f"{data.name}: {len(data.items)} items of {data.n_choices} choices: {sizes}"
    places = zip(LETTERS, data.n_answers, strict=False)
    yield "right answers: " + ", ".join(f"{letter} {n}" for letter, n in places)
    for where, reason in list(data.left_out.items())[:EXAMPLES]:
        yield f"left out: {where}: {reason} ({len(data.left_out)} in all)"
    for kind, n in data.counts.items():
        defects = [one for one in data.defects if one.kind == kind]
        mark = "refused" if defects[0].blocks else "noted"
        yield f"{kind} ({mark}): {n} x {DEFECTS[defects[0].kind]}"
        for one in defects[:EXAMPLES]:
            yield f"    {one.detail}"
    if not data.defects:
        yield "no defects found"
