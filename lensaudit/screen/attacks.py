"""What attacks bring out: worst cases, samples, relearning, recovery effort, retraining on T."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lensaudit.attacks.rtt.data import LETTERS, Inspection
from lensaudit.attacks.rtt.data import MEANINGS as DEFECTS
from lensaudit.attacks.rtt.log import MEANINGS as CONDITIONS
from lensaudit.results.attacks import Shift
from lensaudit.screen.cells import brief, interval, name, number, profile
from lensaudit.screen.tables import Part, row, table


def of_worst(summary: Mapping[str, Any]) -> Iterator[Part]:
    """The attack table, the headline and the remarks."""
    made = table(
        f"{summary['source']}: hit rates of attacks, list {summary['attack_list'][:12]}",
        ("attack", "full", "source", "retain", "only", "gain", "seconds"),
        left=("attack",),
    )
    for one in summary["attacks"]:
        rates = (number(one[name]) for name in ("control", "source", "retain"))
        only = str(one["only"]) if one["counts"] else "no control"
        row(made, one["name"], *rates, only, number(one["gain"]), f"{one['seconds']:.1f}")
    yield made
    yield summary["headline"]
    ends = interval(summary["ci95"], missing=summary["no_interval"] or "–")
    yield f"  excess {number(summary['excess'])} ({ends}; {summary['authors']} authors)"
    if n := len(summary["unscored"]):
        yield f"  {n} of {summary['n']} facts unscored; reasons in facts.csv"
    if summary["bound"]["rate"] is not None:
        yield (
            f"  a fact that {summary['bound']['draws']} samples did not hit comes out of at most "
            f"{100 * summary['bound']['rate']:.1f} % of samples, for all facts at once"
        )


def of_sample(summary: Mapping[str, Any]) -> Iterator[Part]:
    """One row per setting and k."""
    made = table(
        f"{summary['source']}: leak@k from {summary['samples']} samples a fact",
        ("T", "top-p", "k", "source", "retain", "excess", "95 % interval", "corrected", "false"),
    )
    for one in summary["leak"]:
        rates = (number(one[name]) for name in ("source", "retain", "excess"))
        ends = interval([one["low"], one["high"]], missing=one["reason"] or "–")
        sampler = (f"{one['temperature']:g}", f"{one['top_p']:g}", str(one["k"]))
        row(made, *sampler, *rates, ends, number(one["corrected"]), number(one["false_leak"]))
    yield made
    yield "  false: what the matcher's false hits alone would make of leak@k"
    if n := len(summary["unscored"]):
        yield f"  {n} of {summary['n']} facts unscored; reasons in summary.json"
    yield (
        f"  a fact that no sample hit comes out of at most "
        f"{100 * summary['never_hit_bound']:.1f} % of samples, for all facts at once"
    )


def of_effort(source: str, summary: Mapping[str, Any]) -> Iterator[Part]:
    """A line an arm, and what should be known of the numbers."""
    steps = summary["steps"]
    made = table(
        f"{name(source)}: steps until the facts are back, by {summary['by']}",
        ("arm", "E50", "tokens", "E80", "tokens ", "FLOP", "lr", f"rho at 0 to {steps[-1]}"),
        left=("arm", f"rho at 0 to {steps[-1]}"),
    )
    for arm, found in summary["arms"].items():
        cells = (_steps(found, "e50"), _cost(found, "e50", "tokens"))
        cells += (_steps(found, "e80"), _cost(found, "e80", "tokens"))
        cells += (_cost(found, "e80", "flop"), f"{found['lr']:g}")
        row(made, arm, *cells, profile([at["rho"] for at in found["curve"]], 1.0))
    yield made
    for said in summary["notes"]:
        yield f"- {said}"


def _steps(arm: Mapping[str, Any], key: str) -> str:
    """E_x; `> 256` where no attack was long enough."""
    if arm[key] is None:
        return number(None)
    return f"> {arm[key]}" if arm["censored"][key] else str(arm[key])


def _cost(arm: Mapping[str, Any], key: str, unit: str) -> str:
    cost = arm["cost"][key]
    if cost is None:
        return number(None)
    shown = brief(float(cost[unit]))
    return f"> {shown}" if arm["censored"][key] else shown


def of_recovery(shifts: Sequence[Shift]) -> Iterator[Part]:
    """Table of recovery, a line a model."""
    names = list(shifts[0].before)
    title = "before -> after relearning; uds: 1 forgotten, the others: high knows"
    made = table(title, ["model", *names], left=("model",))
    for one in shifts:
        cells = (f"{number(one.before[name])} -> {number(one.after[name])}" for name in names)
        row(made, one.model, *cells)
    yield made


if TYPE_CHECKING:
    from lensaudit.attacks.rtt.summary import Summary

EXAMPLES = 2
"""Of each kind of defect."""


def of_summary(summary: "Summary") -> Iterator[Part]:
    """Accuracies, recovery, other selections, remarks."""
    study = summary.study
    yield _accuracies(summary)
    if not summary.failure:
        yield _recovery(summary)
        yield summary.reading
    for note in summary.notes:
        yield f"- {note}"
    yield (
        f"chance {1 / study.n_choices:.0%}; held out: {', '.join(study.held_out)}; loss on "
        f"{study.sweep['loss_on']}; read by {summary.readout}"
    )


def _accuracies(summary: "Summary") -> Table:
    made = table(
        f"{summary.study.models['unlearned']} on {summary.study.data}",
        ("", "model", "accuracy", "95 % interval", "items"),
        left=("", "model", "95 % interval"),
    )
    accuracies = {**summary.as_they_are, **summary.main.accuracies}
    for condition, meaning in CONDITIONS.items():
        one = accuracies.get(condition)
        if one is None:
            row(made, condition, meaning, "–", "", "")
            continue
        shown = interval(one.ends, one.why or "–")
        row(made, condition, meaning, number(one.value), shown, str(one.n))
    return made


def _recovery(summary: "Summary") -> Table:
    made = table(
        "recovery, by how learning rate and epoch are selected",
        ("selection", "epochs", "(B-N)/(C-N)", "95 % interval", "B/C", "(B-A)/(C-A)"),
        left=("selection", "epochs"),
    )
    for one in (summary.main, *summary.others):
        adjusted = one.adjusted
        row(
            made,
            one.selection,
            one.rule,
            number(adjusted.value),
            interval(adjusted.ends, adjusted.why or "" if adjusted.value is not None else ""),
            number(one.recovery.value),
            number(one.gap_closed.value),
        )
    if summary.main.adjusted.value is None:
        made.caption = name(summary.main.adjusted.why)
    return made


def of_data(found: Inspection) -> Iterator[str]:
    """Sizes, the prior of the letters, and defects with examples."""
    data = found.data
    sizes = ", ".join(f"{split.name} {len(split.items)}" for split in data.splits)
    yield f"{data.name}: {len(data.items)} items of {data.n_choices} choices: {sizes}"
    places = zip(LETTERS, found.n_answers, strict=False)
    yield "right answers: " + ", ".join(f"{letter} {n}" for letter, n in places)
    for where, reason in list(data.left_out.items())[:EXAMPLES]:
        yield f"left out: {where}: {reason} ({len(data.left_out)} in all)"
    for kind, n in found.counts.items():
        defects = found.of(next(one.kind for one in found.defects if one.kind == kind))
        mark = "refused" if defects[0].blocks else "noted"
        yield f"{kind} ({mark}): {n} x {DEFECTS[defects[0].kind]}"
        for one in defects[:EXAMPLES]:
            yield f"    {one.detail}"
    if not found.defects:
        yield "no defects found"
