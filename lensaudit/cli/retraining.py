"""`rtt` behind the options: data, studies, work, and what is printed."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lensaudit.attacks.rtt.defects import MEANINGS as DEFECTS
from lensaudit.attacks.rtt.defects import Inspection, handled, inspect
from lensaudit.attacks.rtt.encode import letters_of
from lensaudit.attacks.rtt.items import LETTERS, Dataset
from lensaudit.attacks.rtt.log import FILE, Log, read_log
from lensaudit.attacks.rtt.mcq import load_mcq, save_mcq
from lensaudit.attacks.rtt.readout import Readout
from lensaudit.attacks.rtt.retrain import Sweep
from lensaudit.attacks.rtt.study import Gate, Study, from_checkpoint
from lensaudit.attacks.rtt.summary import Summary, summarize
from lensaudit.attacks.rtt.table import as_json as summary_json
from lensaudit.attacks.rtt.table import write_summaries
from lensaudit.attacks.rtt.tofu import load_facts, split_by_author
from lensaudit.attacks.rtt.work import plan_of, run
from lensaudit.cli.show_rtt import print_inspection, print_summary
from lensaudit.errors import InputError, LensAuditError, PartialError, VerificationError
from lensaudit.files import canonical_json, make_folder
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import DEMO as DEMO_NAMES
from lensaudit.models.registry import Registry, load_registry, resolve
from lensaudit.patching.prepare import default_data
from lensaudit.results import manifest
from lensaudit.unlearn.memory import check_memory

DEMO_LRS = (3e-4, 1e-3, 3e-3)
"""A model of a million weights needs steps that a model of a billion would not survive."""
DEMO_READS = "answer"
"""The embedded family knows answers and never saw a letter."""
OUT = Path("experiments/out/rtt")


def run_rtt(
    *,
    names: Sequence[str],
    out: Path | None,
    notice: Callable[[str], None],
    progress: Callable[[str, int, int], None],
    as_json: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run one study per unlearned model into one log; original and control are run once."""
    started = time.monotonic()
    data = handled(_data(_data_name(names[0], options), options), options["defects"])
    studies = _studies(names, data, options)
    folder = OUT if out is None else out
    log = read_log(folder / FILE)
    if dry_run:
        for study in studies:
            click.echo("\n".join(_plan_lines(study, log)))
        return
    n_known = sum(job_id in log.finished for job_id in _job_ids(studies))
    make_folder(folder)
    save_mcq(data, make_folder(folder / "mcq") / f"{data.name}-{data.digest[:8]}")
    errors = []
    for study in studies:
        try:
            run(study, log, defects="keep", report=progress)
        except (VerificationError, PartialError) as error:
            errors.append(error)
    ids = {study.study_id for study in studies}
    ways = {"selection": options["selection"], "rule": options["rule"]}
    summaries = [one for one in summarize(log, **ways) if one.study.study_id in ids]
    _write(summarize(log, **ways), log, folder)
    _record(studies, options, started).write(folder)
    _show(summaries, folder, as_json)
    notice(f"{log.n_added} jobs done, {n_known} were in the log")
    if errors:
        raise _worst(errors)


def summarize_log(
    path: Path, *, selection: Any, rule: Any, readout: str | None, as_json: bool
) -> None:
    """Print and write the summaries of a log."""
    log = read_log(path, must_exist=True)
    summaries = summarize(log, selection=selection, rule=rule, readout=readout)
    if not summaries:
        raise InputError(f"{log.path}: holds no study; `lensaudit rtt run` writes them")
    assert log.path is not None
    _write(summaries, log, log.path.parent)
    _show(summaries, log.path.parent, as_json)
    failed = [one for one in summaries if not one.verdict.passed]
    if failed:
        raise VerificationError(
            f"{failed[0].study.models['unlearned']}: {failed[0].verdict.reason}"
        )


def validate_data(
    data: str,
    *,
    model: str | None,
    write: Path | None,
    registry: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Load, inspect, print; then complain about what a run would refuse."""
    dataset = _data(data, options)
    found = inspect(dataset)
    if model is not None:
        checkpoint = open_checkpoint(resolve(model, load_registry(registry)))
        letters_of(load_tokenizer(checkpoint), dataset.n_choices)
    if as_json:
        click.echo(canonical_json(_inspection(dataset, found)))
    else:
        print_inspection(dataset, found)
    if write is not None:
        click.echo(f"written: {save_mcq(dataset, write)}", err=as_json)
    if found.blocking:
        raise VerificationError(
            f"{dataset.name}: defects that `lensaudit rtt run` refuses: {len(found.blocking)}; "
            "mend them, or run with --defects drop or keep"
        )


def _data_name(model: str, options: Mapping[str, Any]) -> str:
    return options["data"] or default_data(model)


def _data(name: str, options: Mapping[str, Any]) -> Dataset:
    """Splits from a folder, or cut from a forget set."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return load_mcq(folder, only=options["only"])
    if options["only"]:
        raise InputError("--only names splits of a folder; a forget set is cut by --splits")
    set_name, facts = load_facts(name, rows_per_author=options["rows_per_author"])
    n_splits, seed = options["n_splits"], options["seed"]
    return split_by_author(set_name, facts, n_splits=n_splits, seed=seed)


def _studies(names: Sequence[str], data: Dataset, options: Mapping[str, Any]) -> list[Study]:
    """One per unlearned model, checked."""
    registry = load_registry(options["registry"])
    is_demo = names[0].startswith(DEMO_NAMES)
    prefix = DEMO_NAMES if is_demo else ""
    if options["no_control"] and options["control"]:
        raise InputError("--control and --no-control exclude each other")
    original = _opened(options["original"] or f"{prefix}full", registry)
    control = None
    if not options["no_control"]:
        control = _opened(options["control"] or f"{prefix}retain", registry)
    unlearned = [_opened(name, registry) for name in dict.fromkeys(names)]
    device = resolve_device(options["device"])
    _check_models(original, [*unlearned, *([control] if control else [])], device)
    readout: Readout = options["readout"] or (DEMO_READS if is_demo else "letter")
    other: Readout = "answer" if readout == "letter" else "letter"
    made = [
        Study(
            data=data,
            tokenizer=load_tokenizer(original),
            original=from_checkpoint(original, device=device),
            unlearned=from_checkpoint(one, device=device),
            control=from_checkpoint(control, device=device) if control else None,
            sweep=_sweep(options, is_demo),
            readouts=(readout, other),
            eval_splits=tuple(options["hold_out"]),
            n_eval_splits=options["v_runs"],
            eval_seed=options["eval_seed"],
            gate=Gate(options["min_baseline"], options["min_drop"]),
        )
        for one in unlearned
    ]
    for study in made:
        plan_of(study)
    return made


def _opened(name: str, registry: Registry) -> Checkpoint:
    return open_checkpoint(resolve(name, registry))


def _check_models(original: Checkpoint, others: Sequence[Checkpoint], device: str) -> None:
    for one in others:
        if one.tokenizer != original.tokenizer:
            raise InputError(
                f"{one.spec.name} and {original.spec.name} have different tokenizers; wanted "
                "models trained from one base"
            )
    for one in (original, *others):
        # the start weights are kept in main memory
        check_memory(one, copies=2 if device == "cpu" else 1, device=device)


def _sweep(options: Mapping[str, Any], is_demo: bool) -> Sweep:
    lrs = tuple(options["lrs"]) or (DEMO_LRS if is_demo else Sweep().lrs)
    return Sweep(
        lrs=lrs,
        n_epochs=options["epochs"],
        batch_size=options["batch_size"],
        n_warmup=options["warmup"],
        loss_on=options["loss_on"] or (DEMO_READS if is_demo else "all"),
        weight_decay=options["weight_decay"],
        trainable=options["trainable"],
        seed=options["seed"],
    )


def _plan_lines(study: Study, log: Log) -> list[str]:
    """What would be done."""
    plan = plan_of(study)
    pending = plan.pending(log)
    training = [one for one in pending if one.job.lr is not None]
    n_steps = sum(
        study.sweep.n_epochs * study.sweep.n_steps(len(study.trained_on(one.job.split)))
        for one in training
    )
    models = ", ".join(f"{role} {one.name}" for role, one in study.subjects.items())
    held = ", ".join(f"{name} ({len(study.encoded[name].items)})" for name in study.held_out)
    return [
        models,
        f"{study.data.name}: {len(study.data.items)} items in {len(study.data.splits)} splits, "
        f"{len(study.data.left_out)} left out; held out in turn: {held}",
        f"lr {', '.join(f'{lr:g}' for lr in study.sweep.lrs)}; {study.sweep.n_epochs} epochs in "
        f"batches of {study.sweep.batch_size}; loss on {study.sweep.loss_on}",
        f"{len(plan.cells)} jobs, {len(plan.cells) - len(pending)} in the log; {len(training)} "
        f"runs of {n_steps} steps together to do",
    ]


def _write(summaries: Sequence[Summary], log: Log, folder: Path) -> None:
    write_summaries(summaries, log, make_folder(folder))


def _record(studies: Sequence[Study], options: Mapping[str, Any], started: float):
    """The manifest of the folder's last run."""
    inputs = {
        "data": studies[0].data.name,
        "data_digest": studies[0].data.digest,
        "studies": [study.study_id for study in studies],
        "models": {one.name: one.weights for study in studies for one in study.subjects.values()},
    }
    plain = {
        key: str(value) if isinstance(value, Path) else value for key, value in options.items()
    }
    device = resolve_device(options["device"])
    return manifest("rtt run", options=plain, inputs=inputs, device=device, started=started)


def _job_ids(studies: Sequence[Study]) -> set[str]:
    return {one.job.job_id for study in studies for one in plan_of(study).cells}


def _show(summaries: Sequence[Summary], folder: Path, as_json: bool) -> None:
    if as_json:
        shown = [summary_json(one) for one in summaries]
        click.echo(canonical_json(shown[0] if len(shown) == 1 else shown))
        return
    for one in summaries:
        print_summary(one)
    click.echo(f"written: {folder}")


def _worst(errors: Sequence[LensAuditError]) -> LensAuditError:
    """One error for all studies: a failed gate before failed runs."""
    first = sorted(errors, key=lambda one: not isinstance(one, VerificationError))[0]
    more = f" (and {len(errors) - 1} more studies)" if len(errors) > 1 else ""
    return type(first)(f"{first}{more}")


def _inspection(dataset: Dataset, found: Inspection) -> dict[str, Any]:
    return {
        "data": dataset.name,
        "digest": dataset.digest,
        "n_items": found.n_items,
        "splits": {split.name: len(split.items) for split in dataset.splits},
        "n_choices": dataset.n_choices,
        "answers": dict(zip(LETTERS, found.n_answers, strict=False)),
        "left_out": dict(dataset.left_out),
        "defects": [
            {"kind": one.kind, "meaning": DEFECTS[one.kind], "blocks": one.blocks,
             "items": list(one.idx), "detail": one.detail}
            for one in found.defects
        ],
    }  # fmt: skip
