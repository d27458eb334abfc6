"""How deep is the knowledge erased? From names of models to scored folders."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lensaudit.auditing.patch_result import Patched, read_patched
from lensaudit.auditing.reuse import Asking, neutral_beside
from lensaudit.auditing.settings import EvaluateSettings, PatchSettings
from lensaudit.data.facts import spans_of
from lensaudit.data.neutral import kept_facts
from lensaudit.data.tofu import FORGET10
from lensaudit.errors import InputError
from lensaudit.files import canonical_json
from lensaudit.models.checkpoint import (
    Checkpoint,
    check_same_shape,
    load_tokenizer,
    open_checkpoint,
)
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.audit import Audit
from lensaudit.patching.bench import Bench
from lensaudit.patching.collateral import Anchored, anchored, collateral_of, family_base
from lensaudit.patching.controls import Controls, Examined, unexamined
from lensaudit.patching.exact_match import (
    EmOptions,
    EmPlan,
    check_em,
    deposit_em,
    em_outcome_of,
    em_plan_of,
    em_summary_of,
    run_em,
)
from lensaudit.patching.lens import lens_options
from lensaudit.patching.outcome import (
    BY_TOKEN,
    FILES,
    Outcome,
    beside,
    clear,
    deposit,
    deposit_comparison,
    summary_of,
    with_texts,
)
from lensaudit.patching.plan import PatchPlan, plan_of
from lensaudit.patching.prepare import prepare
from lensaudit.patching.scoring import (
    Scored,
    comparison_manifest,
    manifest_of,
    score_all,
    score_examined,
    score_lens,
)
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.owners import Run, folder_of, folders_for, known_as
from lensaudit.results.records import claim
from lensaudit.settings import several
from lensaudit.verdict.collect import judge_run
from lensaudit.verdict.decide import Verdict
from lensaudit.verdict.nulls import read_calibration

KIND = ("command", "score")
"""What results that may stand in for each other in a named folder share."""
_NOT_THE_RESULT = ("engine", "device", "batch_size", "memory_bytes", "cache_batch")
"""Options that say how a number is computed."""
NOT_PATCHED = "--score lens: streams are read out, not patched in; --score uds decides"
NOT_A_DEPTH = "--score em: answers are compared, not the drop in nats; --score uds decides"


def open_patch(
    sources: Sequence[str],
    settings: PatchSettings,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Audit:
    """The models of a run, opened and checked; none is loaded and nothing is written.

    Raises:
        InputError: a name, a file, a setting or a pair of models is wrong.
    """
    em = settings.score == "em"
    if not em and em_given(settings):
        raise InputError("--em-form, --em-threshold, --max-new-tokens: need --score em")
    retain, *_ = (*several(settings.retain), None)
    audit = prepare(
        tuple(dict.fromkeys(sources)),
        registry=load_registry(settings.registry),
        full=settings.full,
        retain=retain,
        data=settings.data,
        exclude=settings.exclude,
        limit=settings.limit,
        activations=Path(settings.activations),
        fresh=settings.fresh,
        notice=notice,
        progress=lambda stage, done, of: progress(Progress(stage, done, of)),
        layers=settings.layers,
        tau=settings.tau,
        last_layer=settings.last_layer,
        scope=settings.scope,
        component=settings.component,
        engine=settings.engine,
        profile=settings.profile or ("full" if em else None),
        dtype=settings.dtype,
        device=settings.device,
        batch_size=settings.batch_size,
        memory=settings.memory,
        # what is not patched score by score is not carried either
        align=None if settings.lens or settings.also or settings.score != "uds" else settings.align,
    )
    if em:
        check_em(audit, em_options(settings))
        return audit
    if settings.lens or settings.score == "lens":
        reading = lens_options(audit.options)  # refuses what has no meaning for it
        return replace(audit, options=reading) if settings.score == "lens" else audit
    return audit


def em_given(settings: PatchSettings) -> dict[str, Any]:
    """The settings of exact match that were named."""
    given = {
        "form": settings.em_form,
        "threshold": settings.em_threshold,
        "max_new_tokens": settings.max_new_tokens,
    }
    return {name: value for name, value in given.items() if value is not None}


def em_options(settings: PatchSettings) -> EmOptions:
    """The settings of exact match, with their defaults."""
    return EmOptions(**em_given(settings))


def plan_patch(
    sources: Sequence[str], settings: PatchSettings, *, notice: Notice = unheard
) -> PatchPlan | EmPlan:
    """What a run would compute, with what is there already left out.

    Raises:
        InputError: as `open_patch`.
    """
    audit = open_patch(sources, settings, notice=notice)
    kept_beside(settings, audit)
    if settings.score == "em":
        return em_plan_of(audit, em_options(settings))
    if audit.options.engine == "lens":
        return plan_of(audit)
    controls = controls_of(audit, settings).planned(audit.full.d_model)
    return replace(plan_of(audit), controls=controls)


def patch_into(
    sources: Sequence[str],
    settings: PatchSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Patched:
    """Patch the models into `full`, score them, and write a folder for each.

    A model of which nothing can be scored is a result without a value; its files say why.

    Args:
        sources: names, Hub ids or folders; the same one twice counts once.
        settings: how.
        folder: of the results: that of the only model, or holds one for each; None:
            experiments/out/<source>.
        notice: told remarks.
        progress: told what is done.

    Raises:
        InputError: before any work.
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    started = time.monotonic()
    asking = Asking(sources, settings, notice)
    audit = open_patch(sources, settings, notice=asking.tell, progress=progress)
    controls = controls_of(audit, settings)
    kept = kept_beside(settings, audit)
    asking.opened()
    folders = own_folders(audit, settings, folder, notice=notice)
    for one in folders.values():
        claim(one, "patch", FILES)
        clear(one)
    if settings.score == "em":
        _em_into(folders, audit, em_options(settings), asking, started)
    else:
        _depth_into(
            folders, audit, controls, kept, asking, with_lens=settings.lens, started=started
        )
    return read_patched(folders)


def controls_of(audit: Audit, settings: PatchSettings | EvaluateSettings) -> Controls:
    """What stands beside UDS: neutral rows, the class of maps, and further retain models.

    Raises:
        InputError: a file or a model that was named does not do.
    """
    _, *more = several(settings.retain) or ("",)
    registry = load_registry(settings.registry)
    retains = {name: open_checkpoint(resolve(name, registry)) for name in more}
    check_same_shape(audit.full, *retains.values(), notice=audit.notice)
    anchors = [(one.spec.name, one) for one in (audit.full, audit.retain)]
    _check_distinct([*anchors, *retains.items()])
    data = audit.chosen.data if audit.chosen else ""
    neutral, why = neutral_beside(settings, data, audit.examples)
    for name, one in audit.sources.items():
        if neutral is None and (misfit := audit.misfit(one)) is not None:
            raise InputError(f"{name}: {misfit}, and there is nothing to fit a map on: {why}")
    return Controls(
        neutral,
        why,
        align=settings.align,
        align_tokens=settings.align_tokens,
        retains=retains,
    )


def _check_distinct(models: Sequence[tuple[str, Checkpoint]]) -> None:
    """A second copy of a never-trained model would make a floor without width."""
    known: dict[str, str] = {}
    for name, one in models:
        if one.weights in known:
            raise InputError(
                f"--retain {name}: has the same weights as {known[one.weights]}; a floor needs "
                "models that were made independently"
            )
        known[one.weights] = name


def own_folders(
    audit: Audit, settings: PatchSettings, folder: Path | None, *, notice: Notice = unheard
) -> dict[str, Path]:
    """Where the result of each source goes: no other run's is replaced.

    Raises:
        InputError: a folder that was named holds another run's.
    """
    return {
        name: folder_of(
            place, run_of(audit, name, settings), run_in, named=bool(folder), tell=notice, kind=KIND
        )
        for name, place in folders_for(tuple(audit.sources), folder).items()
    }


def run_of(audit: Audit, source: str, settings: PatchSettings) -> Run:
    """What tells the run on a source from others."""
    options = asdict(audit.options)
    if settings.score == "em":
        options["em"] = asdict(em_options(settings))
    made = manifest_of(audit, source, options, time.monotonic())
    return run_in(json.loads(canonical_json(vars(made))))


def run_in(manifest: Mapping[str, Any]) -> Run:
    """The same of a manifest: content of models and rows, and the options that move a number.

    Weights under two names are two runs: of folders the resolved path counts.
    """
    options, inputs = dict(manifest["options"]), manifest["inputs"]
    score = "lens" if options.get("engine") == "lens" else "em" if "em" in options else "uds"
    source = inputs["source"]
    return {
        "command": manifest["command"],
        "score": score,
        "source": known_as(source["name"]),
        **{f"weights of {role}": inputs[role]["weights"] for role in ("source", "full", "retain")},
        "tokenizer": source["tokenizer"],
        "rows": inputs["examples"]["n"],
        "content of rows": inputs["examples"]["hash"],
        **{name: value for name, value in options.items() if name not in _NOT_THE_RESULT},
    }


def depth_of(audit: Audit) -> Scored:
    """The outcome of every source, and the scores of the two anchors; nothing is written."""
    return score_lens(audit) if audit.options.engine == "lens" else score_all(audit)


def _depth_into(
    folders: Mapping[str, Path],
    audit: Audit,
    controls: Controls,
    kept: Sequence[Anchored],
    asking: Asking,
    *,
    with_lens: bool,
    started: float,
) -> None:
    lens_alone = audit.options.engine == "lens"
    examined: Mapping[str, Examined] = {}
    also: Mapping[str, dict[str, Any]] = {}
    if lens_alone:
        outcomes, calibration = score_lens(audit)
    else:
        with Bench(audit) as bench:
            (outcomes, calibration), examined = score_examined(bench, controls)
            also = with_collateral(bench, kept, outcomes)
    beside_uds = with_lens and not lens_alone
    read = {one.source: one for one in score_lens(audit)[0]} if beside_uds else {}
    asked, nulls = asking.record(), read_calibration()
    for outcome in outcomes:
        name = outcome.source
        summary, rows = _documents(outcome, read.get(name), calibration)
        summary["spans"] = spans_of(audit.examples)
        if lens_alone:
            summary |= unexamined(NOT_PATCHED).document()
        else:
            summary |= {**also[name], **examined[name].document()}
            rows = examined[name].beside(rows)
        summary["verdict"] = judge_run(summary, rows, nulls).document()
        options = asdict(outcome.options)
        made = manifest_of(audit, name, options, started, outcome.computed_by)
        made = replace(made, asked=asked)
        rows = with_texts(with_tokens(rows, audit), audit.examples)
        deposit(folders[name], outcome, summary, made, rows=rows)
    if len(outcomes) > 1:
        parent = next(iter(folders.values())).parent
        made = comparison_manifest(audit, asdict(outcomes[0].options), started)
        deposit_comparison(parent, outcomes, replace(made, asked=asked))


def with_tokens(rows: Sequence[Mapping[str, Any]], audit: Audit) -> list[dict[str, Any]]:
    """Rows that were read by token, with the tokens of their spans as text."""
    if not any(BY_TOKEN in row for row in rows):
        return [dict(row) for row in rows]
    tokenizer = load_tokenizer(audit.full)
    spans = {e.idx: e.token_ids[e.start + 1 : e.end + 1] for e in audit.encoded}
    return [
        {**row, "span_tokens": [tokenizer.decode([one]) for one in spans[row["idx"]]]}
        if BY_TOKEN in row
        else dict(row)
        for row in rows
    ]


def _documents(
    outcome: Outcome, read: Outcome | None, calibration: Mapping[str, float | None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows, with the lens's beside them where it was read."""
    if read is None:
        return summary_of(outcome, calibration), outcome.rows()
    return beside(outcome, read, calibration)


def _em_into(
    folders: Mapping[str, Path], audit: Audit, em: EmOptions, asking: Asking, started: float
) -> None:
    found = run_em(audit, em)
    options = {**asdict(audit.options), "em": asdict(em)}
    asked = asking.record()
    for name, checkpoint in audit.sources.items():
        outcome = em_outcome_of(name, checkpoint.weights, audit, em, found)
        summary = em_summary_of(outcome)
        summary["spans"] = spans_of(audit.examples)
        summary |= unexamined(NOT_A_DEPTH).document()
        summary["verdict"] = Verdict(
            "undecided", f"{name}: undecided: {NOT_A_DEPTH}.", []
        ).document()
        made = replace(manifest_of(audit, name, options, started), asked=asked)
        deposit_em(folders[name], outcome, summary, made)


def kept_beside(settings: PatchSettings, audit: Audit) -> list[Anchored]:
    """The sets that `--also` names, with their anchors; nothing is loaded.

    Raises:
        InputError: a set, a file or the base is wrong, or the score has no such part.
    """
    if not settings.also:
        if settings.base is not None:
            raise InputError("--base: is the anchor of --also; name facts to keep with it")
        return []
    if settings.score != "uds" or settings.component != "resid":
        raise InputError("--also: needs --score uds and --component resid")
    data = audit.chosen.data if audit.chosen else FORGET10
    kept = [kept_facts(one, data, limit=settings.limit) for one in settings.also]
    return anchored(kept, _base(settings, list(audit.sources)), audit.full)


def _base(settings: PatchSettings, sources: Sequence[str]) -> Checkpoint | None:
    """The model before fine-tuning; None where none is known."""
    if settings.base is None:
        return family_base(sources)
    return open_checkpoint(resolve(settings.base, load_registry(settings.registry)))


def with_collateral(
    bench: Bench, sets: Sequence[Anchored], outcomes: Sequence[Outcome]
) -> dict[str, dict[str, Any]]:
    """Source -> the part `collateral` of its summary; empty without `--also`."""
    if not sets:
        return {one.source: {} for one in outcomes}
    found = collateral_of(bench, sets, outcomes)
    return {source: {"collateral": by_set} for source, by_set in found.items()}
