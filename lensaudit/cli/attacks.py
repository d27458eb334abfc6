"""Attacks: `worst`, `sample`, `relearn`, `effort`, `rtt`, `quantize`; and `unlearn`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lensaudit.attacks.settings import (
    EffortSettings,
    RelearnSettings,
    RoundSettings,
    SampleSettings,
    StudySettings,
    SummarySettings,
    ValidationSettings,
    WorstSettings,
)
from lensaudit.cli import library
from lensaudit.cli.options import PlaceName, options, result_folder, shared
from lensaudit.cli.terminal import (
    LOOKING,
    answer,
    during,
    looked_up,
    notice,
    one_or_all,
    say,
)
from lensaudit.errors import InputError, VerificationError
from lensaudit.training.settings import UnlearnSettings


@click.command()
@shared("source")
@options(WorstSettings)
@result_folder("experiments/out/worst-<source>")
@shared("json", "dry_run")
def worst(
    source: str, settings: WorstSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Attack every fact in many ways; count what comes out in excess of models that never knew.

    Writes facts.csv, matrix.csv, attacks.csv, evidence.jsonl, summary.json and manifest.json. The
    same list of attacks is run on --full, which knows (the positive control), and on every
    --retain, which never knew (the control arm).
    """
    if dry_run:
        with library.attacks_calls.entered(settings):
            say(library.attacks_worst.plan_worst(source, settings, out, notice=notice))
        return
    found = looked_up(lambda: library.attacks_calls.attacked, source, settings, out)
    document = {"out": str(found.folder), **found.summary}
    answer(document, library.screen_attacks.of_worst(found.record), found.folder, as_json=as_json)


@click.command()
@shared("source")
@options(SampleSettings)
@result_folder("experiments/out/sample-<source>")
@shared("json", "dry_run")
def sample(
    source: str, settings: SampleSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Sample answers to every question; leak@k in excess of models that never knew.

    Writes leak.csv, facts.csv, samples.jsonl, summary.json and manifest.json. Each row draws the
    same random numbers for every model, in every batch and after a restart.
    """
    if dry_run:
        say(library.attacks_sampling.plan_sample(source, settings, out, notice=notice))
        return
    found = looked_up(lambda: library.attacks_calls.sampled, source, settings, out)
    document = {"out": str(found.folder), **found.summary}
    answer(document, library.screen_attacks.of_sample(found.record), found.folder, as_json=as_json)


@click.command()
@shared("sources")
@options(EffortSettings)
@result_folder("experiments/out/<source>-effort")
@shared("json", "dry_run")
def effort(
    sources: tuple[str, ...],
    settings: EffortSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Retrain on rows that do not contain the facts; read the facts after 1, 2, 4 … steps.

    The same attacks on full and on every retain model give rho: 0 is what the attack teaches
    anyway, 1 all that full knows. E50 and E80 are the steps until rho is .5 and .8. Writes
    summary.json, manifest.json and attacks.jsonl; run the same command again to resume.
    """
    if dry_run:
        ready = library.effort_runs.prepare(sources, settings, out, notice)
        say("\n".join(library.effort_runs.plan_lines(ready)))
        return
    found = looked_up(lambda: library.attacks_calls.brought_back, sources, settings, out, many=True)
    parts = (
        part
        for one in found
        for part in (*library.screen_attacks.of_effort(one.record), f"written: {one.folder}")
    )
    answer(one_or_all([dict(one.summary) for one in found]), parts, as_json=as_json)


@click.command()
@options(RelearnSettings)
@shared("json", "dry_run")
def relearn(settings: RelearnSettings, as_json: bool, dry_run: bool) -> None:
    """Fine-tune a model on the forget answers; float32, resumable.

    One pass, as in the UDS meta-evaluation. With --audit: UDS, probability, exact memorisation and
    extraction strength before and after, of the model and of retain, which had nothing to recover.
    """
    if settings.out is None and not settings.audit:
        raise click.UsageError("give --out DIR for the checkpoint, or --audit for the scores alone")

    if dry_run:
        say(library.attacks_relearn.planned(settings, notice=notice))
        return
    if not settings.audit:
        made = looked_up(lambda: library.attacks_calls.relearned, settings)
        print_trained(made, {}, as_json=as_json)
        if (nothing := library.attacks_result.taught_nothing(made.out)) is not None:
            notice(nothing)
        return
    shifts, folder = looked_up(lambda: library.attacks_calls.relearned_and_scored, settings)
    for one in shifts:
        if one.remark is not None:
            notice(f"{one.model}: {one.remark}")
    shown = library.screen_attacks.of_recovery(shifts)
    answer(list(map(asdict, shifts)), shown, folder, as_json=as_json)


@click.command()
@options(RoundSettings)
@shared("json", "dry_run")
def quantize(settings: RoundSettings, as_json: bool, dry_run: bool) -> None:
    """Round a model's linear layers to 4 or 8 bits and back; saves an ordinary checkpoint.

    nf4: blocks of 64 scaled by their absolute maximum, without double quantisation; int8: rows.
    Embeddings, norms and the output layer stay. Every other command reads the folder.
    """
    if dry_run:
        say(
            library.attacks_rounding.prepare(settings).planned(
                settings.out, force=settings.force, tell=notice
            )
        )
        return
    with during(LOOKING):
        made = library.attacks_calls.quantized(settings, notice=notice)
    if not made.new:
        notice(made.there())
        if not as_json:
            return
    found = library.attacks_result.rounded(settings.method, made.out)
    if found["share"] < library.attacks_result.MOST:
        notice(
            f"{made.out}: {found['share']:.0%} of the weights in blocks were rounded; those of "
            "experts are no linear layers, and stayed as they were"
        )
    worst = found["worst"]
    line = (
        f"{made.out}: {made.what}, {found['matrices']} matrices, relative weight error "
        f"{found['relative_error']:.4f} (worst {worst['relative_error']:.4f}, {worst['matrix']})"
    )
    answer(found, [line], as_json=as_json)


@click.group()
def rtt() -> None:
    """Retraining on T (RTT): fine-tune on some forgotten facts, measure the others.

    T and V are unlearned facts that reveal nothing about each other. What training on T brings
    back on V was hidden. A model that never saw the facts, retrained alike, is the floor.
    """


@rtt.command()
@options(StudySettings)
@shared("json", "dry_run")
def run(settings: StudySettings, as_json: bool, dry_run: bool) -> None:
    """Measure, retrain and summarise; run the same command again to resume.

    Writes jobs.jsonl (append-only), summary.csv, summary.json and manifest.json.
    """
    if dry_run:
        studies, log = library.rtt_execution.prepare(settings, notice)
        for study in studies:
            say("\n".join(library.rtt_execution.plan_lines(study, log)))
        return
    found = looked_up(lambda: library.attacks_calls.studied, settings)
    print_summaries(found, as_json=as_json)


@rtt.command()
@click.argument("log", type=PlaceName(), required=False)
@options(SummarySettings)
@shared("json")
def summarize(settings: SummarySettings, as_json: bool) -> None:
    """Summarise a LOG (jobs.jsonl, or its folder) again; nothing is trained.

    Writes summary.csv and summary.json beside the log, and every run as CSV under evals/pipeline
    there. With --from-csv it reads such files of the upstream fork, and writes nothing.
    """
    if (settings.log is None) == (settings.from_csv is None):
        raise InputError("rtt summarize: wanted a LOG, or --from-csv FOLDER; name one of them")
    if settings.from_csv:
        found = library.rtt_fork.read_csvs(settings)
        documents = [library.results_reading.document(one) for one in found]
        parts = (part for one in found for part in library.screen_attacks.of_csvs(one))
        answer(one_or_all(documents), parts, as_json=as_json)
        return
    print_summaries(library.rtt_summary.summarize_log(settings), as_json=as_json)


@rtt.command()
@click.argument("data")
@options(ValidationSettings)
@shared("json")
def validate(settings: ValidationSettings, as_json: bool) -> None:
    """Load DATA and list what is wrong with it; exit code 4 if a run would refuse it.

    DATA is a folder of splits, a forget set's name, or a file, as for `rtt run --data`.
    """
    seen = library.rtt_execution.validate(settings)
    answer(seen.document(), library.screen_attacks.of_data(seen), as_json=as_json)
    if settings.write:
        say(f"written: {settings.write}", err=as_json)
    if seen.blocking:
        raise VerificationError(
            f"{seen.name}: defects that `lensaudit rtt run` refuses: "
            f"{len(seen.blocking)}; mend them, or run with --defects drop or keep"
        )


def print_summaries(found: "library.rtt_summary.Summarized", *, as_json: bool) -> None:
    """Every study, and where the files are; a gate that failed, or runs that did, as the error."""
    parts = (part for one in found.summaries for part in library.screen_attacks.of_summary(one))
    documents = one_or_all(
        [
            library.results_reading.document(library.rtt_summary.record_of(one))
            for one in found.summaries
        ]
    )
    answer(documents, parts, found.folder, as_json=as_json)
    if found.n_added is not None:
        notice(f"{found.n_added} jobs done, {found.n_known} were in the log")
    if found.failure:
        raise found.failure


@click.command()
@options(UnlearnSettings)
@shared("json", "dry_run")
def unlearn(settings: UnlearnSettings, as_json: bool, dry_run: bool) -> None:
    """Unlearn a forget set by one of thirteen methods; float32 throughout, resumable.

    Defaults are open-unlearning's for TOFU, but norms and biases decay too, the first step has a
    rate, and steps are rounded up. Run the same command again to resume.
    """
    if dry_run:
        say(
            library.unlearn_job.prepare(settings).planned(
                settings.out, force=settings.force, tell=notice
            )
        )
        return
    made = looked_up(lambda: library.attacks_calls.unlearned, settings)
    method = library.attacks_calls.method_of(made.out)
    print_trained(made, {"method": method}, as_json=as_json)


def print_trained(
    made: "library.attacks_calls.Trained", more: dict[str, Any], *, as_json: bool
) -> None:
    """What a training run came to; of a folder that was there already only JSON tells more."""
    if not made.new:
        notice(made.there())
        if not as_json:
            return
    losses = library.training_record.kept_losses(made.out).steps
    first, last = losses[0], losses[-1]
    known = {"out": str(made.out), "steps": len(losses), "first_loss": first, "last_loss": last}
    line = f"{made.out}: {made.what}, loss {first:.4f} -> {last:.4f}"
    answer(known | more, [line], as_json=as_json)
