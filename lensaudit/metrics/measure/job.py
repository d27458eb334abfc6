"""An evaluation from names to files: everything that can be wrong is found before work starts."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.chat import (
    PLAIN,
    Cleanup,
    MaskConvention,
    Template,
    check_tokenizer,
    read_template,
)
from lensaudit.data.suites import DEMO_DATA, Suite, load_suite
from lensaudit.errors import InputError, WorkError
from lensaudit.files import make_folder, slug, write_jsonl
from lensaudit.metrics.measure.generate import open_classifier
from lensaudit.metrics.measure.log import read_log, recomputed, write_log
from lensaudit.metrics.measure.open import open_subject, tokenizer_for
from lensaudit.metrics.measure.passes import ModelPasses
from lensaudit.metrics.measure.patched import Patching, annotated_set
from lensaudit.metrics.measure.retain import conditions, retain_reference
from lensaudit.metrics.measure.rows import result_rows
from lensaudit.metrics.measure.store import PassStore
from lensaudit.metrics.measure.subject import PassOptions
from lensaudit.metrics.measure.suite import evaluate, notes, reads_of
from lensaudit.metrics.measure.view import Asked
from lensaudit.metrics.registry import Conventions, Entry, Metric, ordered, retain_names
from lensaudit.models.registry import DEMO, load_registry, resolve
from lensaudit.results import manifest

CLASSIFIER_TOKENS: Mapping[Suite, int] = {"tofu": 32, "muse": 512}
"""Where open-unlearning cuts a generation before it rates its fluency."""


@dataclass(frozen=True)
class Job:
    """What to evaluate, on what, under which conventions."""

    model: str
    suite: Suite = "tofu"
    metrics: tuple[str, ...] = ()
    """Names; none means all whose needs are met."""
    data: str | None = None
    forget_split: str = "forget10"
    forget: Path | None = None
    holdout: Path | None = None
    retain_set: Path | None = None
    question_key: str = "question"
    limit: int | None = None
    retain_log: Path | None = None
    """Compared with in place of evaluating `retain`, which then is only patched in."""
    retain: str | None = None
    full: str | None = None
    """What retain and the model are patched into; None: the anchor of the model's family."""
    ref_value: float | None = None
    reference: str | None = None
    classifier: str | None = None
    tokenizer: Path | None = None
    template: Path | None = None
    mask: MaskConvention = "true"
    cleanup: Cleanup = "upstream"
    empty: Literal["auto", "unscored", "upstream"] = "auto"
    """`auto`: as upstream under the upstream mask, the switch for exact comparison."""
    batch_size: int | None = None
    max_new_tokens: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    attn: str = "eager"
    registry: Path | None = None
    activations: Path = Path("activations")
    out: Path | None = None

    @property
    def folder(self) -> Path:
        """Where results go."""
        return self.out or Path("experiments/out") / f"{slug(self.model)}-{self.suite}"

    @property
    def conventions(self) -> Conventions:
        """The choices that need no model."""
        like_mask = "upstream" if self.mask == "upstream" else "unscored"
        empty = like_mask if self.empty == "auto" else self.empty
        return Conventions(empty=empty, retain_value=self.ref_value)


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found, and where it is."""

    entries: Mapping[str, Entry]
    metrics: Mapping[str, Metric]
    folder: Path | None
    notes: tuple[str, ...] = ()
    """How texts were encoded, where that needs saying."""


Progress = Callable[[str], None]


def run_job(job: Job, progress: Progress = lambda line: None) -> Evaluated:
    """Evaluate, write the log, the rows and the manifest.

    Finished passes are kept in the result folder, so an interrupted run goes on where it was, and
    a metric that lacked its retain reference is computed anew once there is one.

    Raises:
        InputError: before any work.
        WorkError: no metric could be computed.
    """
    started = time.monotonic()
    metrics = ordered(job.suite, job.metrics)
    passes = prepare(job, progress)
    reference = _retain_entries(job, metrics, passes, progress)
    entries = evaluate(
        passes, job.suite, job.metrics, retain=reference, conventions=job.conventions
    )
    said = notes(passes, reads_of(metrics, passes, job.suite))
    _write(job, passes, entries, said, started)
    if not any(math.isfinite(entry.value) for entry in entries.values()):
        first = next(iter(entries.values()))
        raise WorkError(f"no metric has a value; {first.reason}; see {job.folder}")
    return Evaluated(entries, {one.name: one for one in metrics}, job.folder, tuple(said))


def plan(job: Job) -> list[str]:
    """What a run would do, one line per pass; loads and writes nothing."""
    passes = prepare(replace(job, classifier=None), lambda line: None, dry=True)
    reads = reads_of(ordered(job.suite, job.metrics), passes, job.suite)
    lines: dict[str, str] = {}
    for read in reads:
        asks = read.kind in ("text", "jailbreak", "fluency")
        name = f"{read.kind} {read.split}" if asks else f"{read.kind} {read.split}.{read.field}"
        if asks or read.kind == "patched":
            lines[name] = f"{name}: {len(passes.all_splits[read.split].rows)} questions"
        else:
            n_texts = sum(map(len, passes.view(read).rows.values()))
            lines[name] = f"{name}: {n_texts} texts"
    return list(lines.values())


def prepare(job: Job, progress: Progress, *, dry: bool = False) -> ModelPasses:
    """Open and check everything a job names; no weights are loaded but a classifier's."""
    subject, checkpoint = open_subject(
        job.model, registry=job.registry, dtype=job.dtype, device=job.device, attn=job.attn
    )
    tokenizer = tokenizer_for(checkpoint, job.tokenizer)
    template = _template(job)
    check_tokenizer(tokenizer, template, str(job.tokenizer or job.model))
    splits = load_suite(
        job.suite,
        job.data or (DEMO_DATA if job.model.startswith(DEMO) else None),
        forget_split=job.forget_split,
        question_key=job.question_key,
        own=_own(job),
        limit=job.limit,
    )
    reference = None
    if job.reference:
        reference, opened = open_subject(
            job.reference, registry=job.registry, dtype=job.dtype, device=job.device, attn=job.attn
        )
        tokenizer_for(opened, job.tokenizer)
    if not dry:
        make_folder(job.folder)
    device = subject.conditions["device"]
    options = PassOptions(
        batch_size=job.batch_size,
        max_new_tokens=job.max_new_tokens,
        cleanup=job.cleanup,
        classifier=open_classifier(job.classifier, device) if job.classifier else None,
        classifier_tokens=CLASSIFIER_TOKENS[job.suite],
    )
    asked = Asked(tokenizer, template, job.mask)
    store = PassStore(None if dry else job.folder / "passes")
    return ModelPasses(
        subject, splits, asked, options, store=store, reference=reference,
        patching=_patching(job, progress), progress=progress,
    )  # fmt: skip


def from_log(job: Job, log: Path) -> Evaluated:
    """Recompute the aggregates of a log without a model; written only where `out` says."""
    read = read_log(log)
    retain = read_log(job.retain_log).complete if job.retain_log else {}
    entries = recomputed(read, retain=retain, conventions=job.conventions, names=job.metrics)
    if not entries:
        raise InputError(f"{log}: holds no rows of a metric that is known here")
    if job.out:
        write_log(make_folder(job.out), read.suite, entries)
    return Evaluated(entries, {m.name: m for m in ordered(read.suite)}, job.out)


def _template(job: Job) -> Template:
    if job.template:
        return read_template(job.template)
    return Template() if job.suite == "tofu" else PLAIN


def _patching(job: Job, progress: Progress) -> Patching:
    registry = load_registry(job.registry)
    for name in (job.full, job.retain):
        if name is not None:
            resolve(name, registry)

    def data() -> str:
        return annotated_set(
            job.model, suite=job.suite, data=job.data, forget_split=job.forget_split, own=_own(job)
        )

    return Patching(
        model=job.model, full=job.full, retain=job.retain, data=data, registry=registry,
        settings={"dtype": job.dtype, "device": job.device, "attn": job.attn},
        root=job.activations, limit=job.limit, notice=progress,
    )  # fmt: skip


def _own(job: Job) -> dict[str, Path]:
    given = {"forget": job.forget, "holdout": job.holdout, "retain": job.retain_set}
    own = {name: path for name, path in given.items() if path is not None}
    if own and job.suite != "tofu":
        raise InputError("--forget, --holdout and --retain-set belong to --suite tofu")
    return own


def _retain_entries(
    job: Job, metrics: list[Metric], passes: ModelPasses, progress: Progress
) -> Mapping[str, Entry]:
    """The retain model's metrics, from its log or from running it first under the same job."""
    if job.retain_log:
        return retain_reference(read_log(job.retain_log), passes, job.suite)
    wanted = retain_names(metrics)
    if not job.retain or not wanted:
        return {}
    progress(f"retain model {job.retain}")
    theirs = replace(
        job, model=job.retain, metrics=tuple(wanted), retain=None, classifier=None,
        reference=None, out=job.folder / "retain",
    )  # fmt: skip
    return run_job(theirs, progress).entries


def _write(
    job: Job, passes: ModelPasses, entries: Mapping[str, Entry], said: list[str], started: float
) -> None:
    write_log(job.folder, job.suite, entries)
    write_jsonl(job.folder / "results.jsonl", result_rows(job.suite, passes, entries))
    subjects = {"model": passes.subject, "reference": passes.reference}
    inputs: dict[str, Any] = {
        role: {"name": one.name, "weights": one.weights}
        for role, one in subjects.items()
        if one is not None
    }
    inputs["data"] = {name: split.digest for name, split in passes.splits.items()}
    inputs |= passes.patching.inputs() if passes.patching else {}
    inputs["conditions"] = conditions(passes)
    inputs["notes"] = said
    inputs["metrics"] = {
        one.name: {
            "high_means": one.high_means,
            "family": one.fn.__module__.rpartition(".")[2],
            "source": one.source,
        }
        for one in ordered(job.suite, entries)
    }
    options = {key: str(v) if isinstance(v, Path) else v for key, v in asdict(job).items()}
    options |= {"empty": job.conventions.empty, **passes.subject.conditions}
    options["template"] = asdict(passes.asked.template)
    manifest(
        "eval",
        options=options,
        inputs=inputs,
        device=passes.subject.conditions["device"],
        started=started,
    ).write(job.folder)
