"""What does a model still say? From its name to a folder with every metric of a suite."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lensaudit.auditing.audit_result import EVAL
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.chat import PLAIN, Template, check_tokenizer, read_template
from lensaudit.data.suites import DEMO_DATA, Suite, load_suite
from lensaudit.errors import Failure, InputError, WorkError
from lensaudit.evaluation.generate import open_classifier
from lensaudit.evaluation.log import read_log, recomputed, write_log
from lensaudit.evaluation.passes import ModelPasses
from lensaudit.evaluation.patching import NO_RETAIN, Patching, annotated_set
from lensaudit.evaluation.retain import conditions, retain_reference
from lensaudit.evaluation.store import PassStore
from lensaudit.evaluation.subject import PassOptions, open_subject, tokenizer_for
from lensaudit.evaluation.suite import evaluate, notes, reads_of, result_rows
from lensaudit.evaluation.texts import Tokenization
from lensaudit.files import canonical_json, make_folder, read_json, slug, write_bytes, write_jsonl
from lensaudit.metrics.registry import (
    Conventions,
    Metric,
    MetricResult,
    Read,
    ordered,
    retain_names,
)
from lensaudit.models.checkpoint import config_of, tell_stored_twice
from lensaudit.models.registry import family_of, load_registry, resolve
from lensaudit.models.sizes import context_of
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.records import (
    MANIFEST,
    Run,
    claim,
    folder_of,
    known_as,
    manifest,
    mark_of,
    misfits,
    renew,
)
from lensaudit.settings import (
    Machine,
    Models,
    NeutralRows,
    ScoreFiles,
    path_of,
    plain,
    results_folder,
    shared,
)

_NOT_THE_RESULT = (
    *("model", "out", "device", "batch_size", "memory", "activations", "registry", "fresh"),
    *("data", "forget", "holdout", "retain_set"),
)
"""Options that say where and how fast, and paths of rows, whose content counts."""
_PLACES = ("out", "retain_log", "activations", "align_data", "validity_data")
"""Options that name a file or folder, however it is spelled."""
KIND = ("command", "suite")
"""What results that may stand in for each other in a named folder share."""
_ADDED = ("retain", "retain_log", "full", "reference", "classifier", "ref_value")
"""Options that give values to metrics that had none."""
PASSES = "passes"
"""Of a result folder: finished passes, found again by content."""
RETAIN = "retain"
"""Of a result folder: that of the retain model, where it was evaluated first."""


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation found of one model, and where it is."""

    source: str
    folder: Path | None
    """Holds <SUITE>_EVAL.json, results.jsonl and manifest.json; None: nothing was written."""
    entries: Mapping[str, MetricResult]
    """Metric -> what was found of it; NaN with a reason where that is nothing."""
    metrics: Mapping[str, Metric]
    notes: tuple[str, ...] = ()
    """How texts were encoded, where that needs saying."""
    failures: tuple[Failure, ...] = ()
    """Patched scores that broke; the other metrics are there."""

    @property
    def summary(self) -> Mapping[str, float | None]:
        """Metric -> value; None where it has none: see `why_not`."""
        return {
            name: entry.value if math.isfinite(entry.value) else None
            for name, entry in self.entries.items()
        }

    def why_not(self, metric: str) -> str | None:
        """Why a metric has no value; None where it has one."""
        return self.entries[metric].reason

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, where a retain model was named; else None: see `reason`."""
        return self.summary.get("uds")

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `uds` by authors; None where there is none."""
        entry = self.entries.get("uds")
        if self.uds is None or entry is None:
            return None
        return entry.interval.ends

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        if self.uds is not None:
            return None
        return self.why_not("uds") if "uds" in self.entries else "UDS was not asked for"

    def checked(self) -> "EvaluationResult":
        """Itself, if any metric has a value.

        Raises:
            WorkError: none has; the first reason is named.
        """
        if any(math.isfinite(entry.value) for entry in self.entries.values()):
            return self
        first = next(iter(self.entries.values()))
        raise WorkError(f"no metric has a value; {first.reason}; see {self.folder}")


@dataclass(frozen=True)
class PlannedPass:
    """A pass over one split."""

    name: str
    n: int
    """Texts that are scored, or questions that are asked."""
    what: Literal["texts", "questions"]


@dataclass(frozen=True)
class EvaluatePlan:
    """What an evaluation would do."""

    model: str
    passes: tuple[PlannedPass, ...]
    done: bool
    """The folder holds this very evaluation, finished."""
    n_kept: int
    """Finished passes that the folder holds."""

    @property
    def n_texts(self) -> int:
        """Number of texts that are scored."""
        return sum(one.n for one in self.passes if one.what == "texts")

    @property
    def n_answers(self) -> int:
        """Answers that are generated."""
        return sum(one.n for one in self.passes if one.what == "questions")

    def text(self) -> str:
        """The plan, a line per pass."""
        return "\n".join(f"{one.name}: {one.n} {one.what}" for one in self.passes)


def folder_for(model: str, settings: EvaluateSettings, folder: Path | None) -> Path:
    """Where the results of an evaluation go."""
    return folder or results_folder() / f"{slug(model)}-{settings.suite}"


def evaluate_into(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    made: Path | None = None,
) -> EvaluationResult:
    """Compute the metrics; write the log, the rows and the manifest.

    Finished passes are kept in the folder, so an interrupted run goes on where it was, and a metric
    that lacked its retain reference is computed anew once there is one. A result without any value
    is one all the same: see `EvaluationResult.checked`.

    Args:
        model: name, Hub id or folder.
        settings: what is computed, and how.
        folder: of the results; None: experiments/out/<model>-<suite>.
        notice: told remarks.
        progress: told each finished pass.
        made: passes that this run made already, of the retain model where that is named.

    Raises:
        InputError: before any work.
        WorkError: the retain model has no value to compare with, or a batch does not fit.
    """
    started = time.monotonic()
    metrics = ordered(settings.suite, settings.metrics)
    bar = _Bar(f"evaluating {model}", progress)
    passes = open_evaluation(model, settings, None, notice=notice, finished=bar.finished)
    place = own_folder(model, settings, folder, passes, notice=notice)
    claim(place, "eval", (f"{settings.suite.upper()}_EVAL.json", "results.jsonl"))
    _share(folder_for(model, settings, folder), place, settings, made)
    passes.store = PassStore(
        place / PASSES, (lambda name: ()) if settings.fresh else _of_siblings(place)
    )
    reference = _retain_entries(settings, metrics, passes, place, notice, progress, made)
    reads = reads_of(metrics, passes, settings.suite)
    bar.n_passes = len(_planned(passes, reads))
    entries = evaluate(
        passes,
        settings.suite,
        settings.metrics,
        retain=reference,
        conventions=conventions_of(settings),
    )
    said = notes(passes, reads_of(metrics, passes, settings.suite))
    _write(model, settings, folder, place, passes, entries, said, started)
    return EvaluationResult(
        model,
        place,
        entries,
        {one.name: one for one in metrics},
        tuple(said),
        tuple(passes.patching.failed.values()) if passes.patching else (),
    )


def own_folder(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None,
    passes: ModelPasses,
    *,
    notice: Notice = unheard,
) -> Path:
    """Where the result goes: no other run's is replaced, but by one that asks for more.

    Raises:
        InputError: a folder that was named holds another run's.
    """
    wanted = folder_for(model, settings, folder)
    run = run_of(model, settings, folder, passes)
    named = folder is not None
    return folder_of(wanted, run, run_in, named=named, tell=notice, grew=grew, kind=KIND)


def run_of(model: str, settings: EvaluateSettings, folder: Path | None, passes: ModelPasses) -> Run:
    """What tells an evaluation from others."""
    options, inputs = _options(model, settings, folder, passes), _inputs(passes)
    return run_in(
        json.loads(canonical_json({"command": "eval", "options": options, "inputs": inputs}))
    )


def run_in(manifest: Mapping[str, Any]) -> Run:
    """The same of a manifest: content of the model and the rows, and what moves a number."""
    # an option that an earlier version did not know had what is its default now
    options = _placed(plain(EvaluateSettings()) | manifest["options"])
    inputs = manifest["inputs"]
    return {
        "command": manifest["command"],
        "model": known_as(options["model"]),
        "weights": inputs["model"]["weights"],
        **{f"rows of {name}": value for name, value in inputs["data"].items()},
        **{name: value for name, value in options.items() if name not in _NOT_THE_RESULT},
    }


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their places in one spelling."""
    places = {name: options[name] for name in _PLACES if options.get(name)}
    return {**options, **{name: os.path.realpath(one) for name, one in places.items()}}


def grew(name: str, old: Any, new: Any) -> bool:
    """Does the run ask for what an earlier one did, and more?"""
    if name == "metrics":
        return not new or bool(old and set(old) <= set(new))
    return name in _ADDED and old is None


def _share(base: Path, place: Path, settings: EvaluateSettings, made: Path | None) -> None:
    """Passes are found by content: those of one folder serve another, but earlier ones no fresh."""
    kept = place / PASSES
    for one in kept.glob("*.npz") if settings.fresh else ():
        one.unlink()
    sources = [] if settings.fresh else [base / PASSES]
    sources += [made] if made is not None and settings.retain is None else []
    for one in (path for source in sources if source != kept for path in source.glob("*.npz")):
        if not (kept / one.name).exists():
            write_bytes(make_folder(kept) / one.name, one.read_bytes())


def _of_siblings(place: Path) -> Callable[[str], Iterable[Path]]:
    """Where a pass of a model that serves many may lie already: beside the others' results.

    A retain model, and in audits `full` as well, is evaluated once.
    """
    own = place.parent if place.name == RETAIN else place.parent.parent
    if place.name != RETAIN and place.parent.name != EVAL:
        return lambda name: ()
    below = place.relative_to(own)
    return lambda name: sorted(own.parent.glob(f"*/{below.as_posix()}/{PASSES}/{name}"))


def plan_evaluation(
    model: str, settings: EvaluateSettings, folder: Path | None = None
) -> EvaluatePlan:
    """What a run would do, pass by pass; loads and writes nothing.

    Raises:
        InputError: as `evaluate_into`.
    """
    # a classifier is loaded where it is opened, and rates what is generated anyway
    passes = open_evaluation(model, replace(settings, classifier=None), None)
    place = own_folder(model, settings, folder, passes)
    reads = reads_of(ordered(settings.suite, settings.metrics), passes, settings.suite)
    return EvaluatePlan(
        model,
        _planned(passes, reads),
        done=not settings.fresh and _is_done(model, settings, folder, place, passes),
        n_kept=0 if settings.fresh else len(list((place / PASSES).glob("*.npz"))),
    )


def aggregate_log(
    log: Path, settings: EvaluateSettings, folder: Path | None = None
) -> EvaluationResult:
    """Recompute the aggregates of a log without a model; written only into a named folder.

    Raises:
        InputError: not a log, or one without rows.
    """
    read = read_log(log)
    retain: Mapping[str, MetricResult] = (
        read_log(Path(settings.retain_log)).complete if settings.retain_log else {}
    )
    entries = recomputed(
        read, retain=retain, conventions=conventions_of(settings), names=settings.metrics
    )
    if not entries:
        raise InputError(f"{log}: holds no rows of a metric that is known here")
    if folder:
        log = write_log(make_folder(folder), read.suite, entries)
        renew(folder, [log.name, f"{read.suite.upper()}_SUMMARY.json"])
    return EvaluationResult(str(log), folder, entries, {m.name: m for m in ordered(read.suite)})


def read_evaluation(model: str, folder: Path) -> EvaluationResult:
    """The result of a finished evaluation, from its files.

    Raises:
        InputError: they hold no log.
    """
    read = read_log(folder)
    metrics = {one.name: one for one in ordered(read.suite, read.entries)}
    return EvaluationResult(model, folder, read.entries, metrics)


@dataclass
class _Bar:
    """Counts finished passes."""

    stage: str
    progress: Tell
    n_passes: int = 0
    n_done: int = 0

    def finished(self, one: str) -> None:
        self.n_done += 1
        n_done = min(self.n_done, self.n_passes)
        self.progress(Progress(self.stage, n_done, self.n_passes, piece=one))


def _planned(passes: ModelPasses, reads: Sequence[Read]) -> tuple[PlannedPass, ...]:
    found: dict[str, PlannedPass] = {}
    for read in reads:
        asks = read.kind in ("text", "jailbreak", "fluency")
        name = f"{read.kind} {read.split}" if asks else f"{read.kind} {read.split}.{read.field}"
        if asks or read.kind == "patched":
            n = len(passes.all_splits[read.split].rows)
            found[name] = PlannedPass(name, n, "questions")
        else:
            n = sum(map(len, passes.view(read).rows.values()))
            found[name] = PlannedPass(name, n, "texts")
    return tuple(found.values())


def _is_done(
    model: str, settings: EvaluateSettings, folder: Path | None, place: Path, passes: ModelPasses
) -> bool:
    """Whether the folder holds this evaluation: these weights, this data, each setting alike."""
    log = place / f"{settings.suite.upper()}_EVAL.json"
    try:
        made = read_json(place / MANIFEST)
        made["options"] = _placed(made["options"])
        wanted = {
            "options": _placed(_options(model, settings, folder, passes)),
            "inputs": _inputs(passes) | _reference(settings, place),
        }
        same = all(
            made[part].get(key) == json.loads(canonical_json(value))
            for part, values in wanted.items()
            for key, value in values.items()
        )
        return same and log.exists() and not misfits(place)
    except (InputError, KeyError, TypeError, AttributeError):
        return False


def _reference(settings: EvaluateSettings, place: Path) -> dict[str, str | None]:
    """Content of the retain model's log, where one is compared with; None: it is not made yet."""
    log = path_of(settings.retain_log)
    if log is None and settings.retain and retain_names(ordered(settings.suite, settings.metrics)):
        log = place / RETAIN
    if log is None:
        return {}
    file = log / f"{settings.suite.upper()}_EVAL.json" if log.is_dir() else log
    return {"retain_log": mark_of(file).blake2b if file.is_file() else None}


def _retain_entries(
    settings: EvaluateSettings,
    metrics: list[Metric],
    passes: ModelPasses,
    place: Path,
    notice: Notice,
    progress: Tell,
    made: Path | None,
) -> Mapping[str, MetricResult]:
    """The retain model's metrics, from its log or from running it first under the same settings."""
    if settings.retain_log:
        log = read_log(Path(settings.retain_log))
        return retain_reference(log, passes, settings.suite)
    wanted = retain_names(metrics)
    if not settings.retain or not wanted:
        return {}
    notice(f"retain model {settings.retain}")
    theirs = replace(settings, metrics=tuple(wanted), retain=None, classifier=None, reference=None)
    own = place / RETAIN
    found = evaluate_into(settings.retain, theirs, own, notice=notice, progress=progress, made=made)
    return found.checked().entries


def _options(
    model: str, settings: EvaluateSettings, folder: Path | None, passes: ModelPasses
) -> dict[str, Any]:
    """The settings as a manifest holds them, with what `auto` meant."""
    return {
        "model": model,
        **plain(settings, without=("fresh",)),
        "out": None if folder is None else str(folder),
        "empty": conventions_of(settings).empty,
        **passes.subject.conditions.as_run(),
        "template": asdict(passes.asked.template),
    }


def _inputs(passes: ModelPasses) -> dict[str, Any]:
    """What was read, by content."""
    subjects = {"model": passes.subject, "reference": passes.reference}
    inputs: dict[str, Any] = {
        role: {"name": one.name, "weights": one.weights}
        for role, one in subjects.items()
        if one is not None
    }
    inputs["data"] = {name: split.digest for name, split in passes.splits.items()}
    inputs |= passes.patching.inputs() if passes.patching else {}
    return inputs | {"conditions": conditions(passes)}


def _write(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None,
    place: Path,
    passes: ModelPasses,
    entries: Mapping[str, MetricResult],
    said: list[str],
    started: float,
) -> None:
    log = write_log(place, settings.suite, entries)
    write_jsonl(place / "results.jsonl", result_rows(settings.suite, passes, entries))
    inputs = _inputs(passes) | _reference(settings, place)
    inputs["notes"] = said
    inputs["metrics"] = {
        one.name: {
            "high_means": one.high_means,
            "family": one.fn.__module__.rpartition(".")[2],
            "source": one.source,
        }
        for one in ordered(settings.suite, entries)
    }
    manifest(
        "eval",
        options=_options(model, settings, folder, passes),
        inputs=inputs,
        device=passes.subject.conditions.device,
        started=started,
    ).write(place, (log.name, f"{settings.suite.upper()}_SUMMARY.json", "results.jsonl"))


if TYPE_CHECKING:
    from lensaudit.patching.session import Session

CLASSIFIER_TOKENS: Mapping[Suite, int] = {"tofu": 32, "muse": 512}
"""Where open-unlearning cuts a generation before it rates its fluency."""


def conventions_of(settings: EvaluateSettings) -> Conventions:
    """The choices that need no model."""
    like_mask = "upstream" if settings.mask == "upstream" else "unscored"
    empty = like_mask if settings.empty == "auto" else settings.empty
    return Conventions(empty=empty, retain_value=settings.ref_value)


def open_evaluation(
    model: str,
    settings: EvaluateSettings,
    kept: Path | None,
    *,
    notice: Notice = unheard,
    finished: Notice = unheard,
) -> ModelPasses:
    """The passes over a model and its data; no weights are loaded but a classifier's.

    Args:
        model: name, Hub id or folder.
        settings: what is computed of it.
        kept: folder of finished passes; None keeps none.
        notice: told remarks.
        finished: told each pass.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    from lensaudit.patching.options import parse_memory  # seconds to import

    memory_bytes = parse_memory(settings.memory)
    subject, checkpoint = open_subject(
        model,
        registry=path_of(settings.registry),
        dtype=settings.dtype,
        device=settings.device,
        attn=settings.attn,
        memory_bytes=memory_bytes,
    )
    tell_stored_twice(checkpoint, notice=notice)
    folder = path_of(settings.tokenizer)
    tokenizer = tokenizer_for(checkpoint, folder)
    template = _template(settings)
    check_tokenizer(tokenizer, template, str(folder or model))
    splits = load_suite(
        settings.suite,
        settings.data or (DEMO_DATA if family_of(model) else None),
        forget_split=settings.forget_split,
        question_key=settings.question_key,
        own=_own(settings),
        limit=settings.limit,
    )
    reference = None
    if settings.reference:
        reference, opened = open_subject(
            settings.reference,
            registry=path_of(settings.registry),
            dtype=settings.dtype,
            device=settings.device,
            attn=settings.attn,
            memory_bytes=memory_bytes,
        )
        tokenizer_for(opened, folder)
    device = subject.conditions.device
    classifier = settings.classifier
    return ModelPasses(
        subject,
        splits,
        Tokenization(tokenizer, template, settings.mask, context_of(config_of(checkpoint))),
        PassOptions(
            batch_size=settings.batch_size,
            memory_bytes=memory_bytes,
            max_new_tokens=settings.max_new_tokens,
            cleanup=settings.cleanup,
            classifier=open_classifier(classifier, device) if classifier else None,
            classifier_tokens=CLASSIFIER_TOKENS[settings.suite],
        ),
        store=PassStore(kept),
        reference=reference,
        patching=_patching(model, settings, notice),
        finished=finished,
    )


def _template(settings: EvaluateSettings) -> Template:
    if settings.template:
        return read_template(Path(settings.template))
    return Template() if settings.suite == "tofu" else PLAIN


def _patching(model: str, settings: EvaluateSettings, notice: Notice) -> Patching:
    registry = load_registry(settings.registry)
    for name in (settings.full, settings.retain):
        if name is not None:
            resolve(name, registry)

    def opened() -> "Session":
        data = annotated_set(
            model,
            suite=settings.suite,
            data=settings.data,
            forget_split=settings.forget_split,
            own=_own(settings),
        )
        if settings.retain is None:
            raise InputError(NO_RETAIN)
        from lensaudit.patching.prepare import prepare  # seconds to import

        groups = shared(settings, Models, NeutralRows, Machine, ScoreFiles, data=data)
        asked = PatchSettings(**groups, exclude=settings.exclude, limit=settings.limit)
        return prepare([model], asked, notice=notice, maps=False)

    return Patching(model, opened, notice)


def _own(settings: EvaluateSettings) -> dict[str, Path]:
    given = {
        "forget": settings.forget,
        "holdout": settings.holdout,
        "retain": settings.retain_set,
    }
    own = {name: Path(place) for name, place in given.items() if place is not None}
    if own and settings.suite != "tofu":
        raise InputError("--forget, --holdout and --retain-data belong to --suite tofu")
    return own
