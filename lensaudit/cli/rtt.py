"""`lensaudit rtt`: retrain on some facts, measure others: what was only hidden comes back."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lensaudit.attacks.rtt.settings import StudySettings, SummarySettings, ValidationSettings
from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import (
    ProgressBar,
    emit,
    interval,
    name,
    notice,
    number,
    row,
    say,
    show,
    table,
    written,
)
from lensaudit.errors import VerificationError

if TYPE_CHECKING:
    from rich.table import Table

    from lensaudit.attacks.rtt.runs import Validated
    from lensaudit.attacks.rtt.summaries import Summarized
    from lensaudit.attacks.rtt.summary import Summary

EXAMPLES = 2


@click.group()
def rtt() -> None:
    """Retraining on T (RTT): fine-tune on some forgotten facts, measure the others.

    T and V are facts that do not tell about each other, all unlearned. What training on T brings
    back on V was hidden. A model that never saw the facts, retrained alike, is the floor.
    """


@rtt.command()
@options(StudySettings)
@shared("json", "dry_run")
def run(settings: StudySettings, as_json: bool, dry_run: bool) -> None:
    """Measure, retrain and summarise; run the same command again to resume.

    Writes jobs.jsonl (append-only), summary.csv, summary.json and manifest.json.
    """
    from lensaudit.attacks.rtt.runs import plan_lines, prepare, run_studies

    prepared = prepare(settings, notice)
    if dry_run:
        for study in prepared.studies:
            say("\n".join(plan_lines(study, prepared.log)))
        return
    with ProgressBar() as progress:
        found = run_studies(prepared, progress)
    print_summaries(found, as_json=as_json)
    notice(f"{found.n_added} jobs done, {found.n_known} were in the log")
    if found.failure:
        raise found.failure


@rtt.command()
@click.argument("log", type=click.Path(path_type=Path))
@options(SummarySettings)
@shared("json")
def summarize(settings: SummarySettings, as_json: bool) -> None:
    """Summarise a LOG (jobs.jsonl, or its folder) again; nothing is trained.

    Writes summary.csv and summary.json beside the log.
    """
    from lensaudit.attacks.rtt.summaries import summarize_log

    found = summarize_log(settings, notice)
    print_summaries(found, as_json=as_json)
    if found.failure:
        raise found.failure


@rtt.command()
@click.argument("data")
@options(ValidationSettings)
@shared("json")
def validate(settings: ValidationSettings, as_json: bool) -> None:
    """Load DATA and list what is wrong with it; exit code 4 if a run would refuse it.

    DATA is a folder of splits, a forget set's name, or a file, as for `rtt run --data`.
    """
    from lensaudit.attacks.rtt.runs import validate as look

    seen = look(settings)
    if as_json:
        emit(inspection(seen))
    else:
        print_inspection(seen)
    if seen.written:
        say(f"written: {seen.written}", err=as_json)
    if seen.found.blocking:
        raise VerificationError(
            f"{seen.data.name}: defects that `lensaudit rtt run` refuses: "
            f"{len(seen.found.blocking)}; mend them, or run with --defects drop or keep"
        )


def print_summaries(found: "Summarized", *, as_json: bool) -> None:
    """Every study, and where the files are."""
    if as_json:
        from lensaudit.attacks.rtt.table import as_json as document

        shown = [document(one) for one in found.summaries]
        emit(shown[0] if len(shown) == 1 else shown)
        return
    for one in found.summaries:
        print_summary(one)
    written(found.folder)


def print_summary(summary: "Summary") -> None:
    """Accuracies, recovery, other selections, remarks."""
    study = summary.study
    show(_accuracies(summary))
    if summary.verdict.passed:
        show(_recovery(summary))
        say(summary.reading)
    for note in summary.notes:
        say(f"- {note}")
    say(
        f"chance {1 / study.n_choices:.0%}; held out: {', '.join(study.held_out)}; loss on "
        f"{study.sweep['loss_on']}; read by {summary.readout}"
    )


def _accuracies(summary: "Summary") -> "Table":
    from lensaudit.attacks.rtt.readings import MEANINGS

    made = table(
        f"{summary.study.models['unlearned']} on {summary.study.data}",
        ("", "model", "accuracy", "95 % interval", "items"),
        left=("", "model", "95 % interval"),
    )
    accuracies = {**summary.as_they_are, **summary.main.accuracies}
    for condition, meaning in MEANINGS.items():
        one = accuracies.get(condition)
        if one is None:
            row(made, condition, meaning, "–", "", "")
            continue
        ends = one.interval and (one.interval.low, one.interval.high)
        shown = interval(ends, one.interval_why or "–")
        row(made, condition, meaning, number(one.value), shown, str(one.n))
    return made


def _recovery(summary: "Summary") -> "Table":
    made = table(
        "recovery, by how learning rate and epoch are selected",
        ("selection", "epochs", "(B-N)/(C-N)", "95 % interval", "B/C", "(B-A)/(C-A)"),
        left=("selection", "epochs"),
    )
    for one in (summary.main, *summary.others):
        ends = one.adjusted.interval
        row(
            made,
            one.selection,
            one.rule,
            number(one.adjusted.value),
            interval((ends.low, ends.high)) if ends else one.adjusted.interval_why or "",
            number(one.recovery.value),
            number(one.gap_closed.value),
        )
    if reason := summary.main.adjusted.reason:
        made.caption = name(reason)
    return made


def print_inspection(seen: "Validated") -> None:
    """Sizes, the prior of the letters, and defects with examples."""
    from lensaudit.attacks.rtt.defects import MEANINGS
    from lensaudit.attacks.rtt.items import LETTERS

    data, found = seen.data, seen.found
    sizes = ", ".join(f"{split.name} {len(split.items)}" for split in data.splits)
    say(f"{data.name}: {found.n_items} items of {data.n_choices} choices: {sizes}")
    places = zip(LETTERS, found.n_answers, strict=False)
    say("right answers: " + ", ".join(f"{letter} {n}" for letter, n in places))
    for where, reason in list(data.left_out.items())[:EXAMPLES]:
        say(f"left out: {where}: {reason} ({len(data.left_out)} in all)")
    for kind, n in found.counts.items():
        defects = found.of(next(one.kind for one in found.defects if one.kind == kind))
        mark = "refused" if defects[0].blocks else "noted"
        say(f"{kind} ({mark}): {n} x {MEANINGS[defects[0].kind]}")
        for one in defects[:EXAMPLES]:
            say(f"    {one.detail}")
    if not found.defects:
        say("no defects found")


def inspection(seen: "Validated") -> dict[str, Any]:
    """The document of `rtt validate --json`."""
    from lensaudit.attacks.rtt.defects import MEANINGS
    from lensaudit.attacks.rtt.items import LETTERS

    data, found = seen.data, seen.found
    return {
        "data": data.name,
        "digest": data.digest,
        "n_items": found.n_items,
        "splits": {split.name: len(split.items) for split in data.splits},
        "n_choices": data.n_choices,
        "answers": dict(zip(LETTERS, found.n_answers, strict=False)),
        "left_out": dict(data.left_out),
        "defects": [
            {
                "kind": one.kind,
                "meaning": MEANINGS[one.kind],
                "blocks": one.blocks,
                "items": list(one.idx),
                "detail": one.detail,
            }
            for one in found.defects
        ],
    }
