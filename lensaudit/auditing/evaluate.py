"""What does a model still say? From its name to a folder with every metric of a suite."""

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lensaudit.auditing.question import (
    depth_inside,
    evaluation_folder,
    log_file,
    splits_of,
)
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.chat import PLAIN, Template, check_tokenizer, read_template
from lensaudit.data.suites import Suite
from lensaudit.errors import InputError
from lensaudit.evaluation.forward import Tokenization, open_classifier
from lensaudit.evaluation.log import read_log, write_log
from lensaudit.evaluation.passes import (
    NO_RETAIN,
    ModelPasses,
    Subject,
    open_subject,
    tokenizer_for,
)
from lensaudit.evaluation.suite import (
    conditions,
    evaluate,
    notes,
    reads_of,
    result_rows,
    retain_reference,
)
from lensaudit.files import make_folder, write_jsonl
from lensaudit.groups import assumption
from lensaudit.metrics.registry import EmptyRow, ordered, retain_names
from lensaudit.models.checkpoint import (
    Checkpoint,
    in_role,
    open_model,
    place_of,
    tell_stored_twice,
)
from lensaudit.models.conditions import batch_policy
from lensaudit.models.device import resolve_device
from lensaudit.models.generation import stop_of
from lensaudit.models.generation_settings import obeyed
from lensaudit.models.registry import Registry, load_registry, resolve
from lensaudit.progress import FolderRemark, Notice, Progress, Tell, unheard
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult, log_name
from lensaudit.results.locate import OF_RETAIN, PASSES
from lensaudit.results.manifest import (
    EVAL,
    MANIFEST,
    as_placed,
    manifest,
    mark_of,
    models_in,
)
from lensaudit.results.owner import Run, check_free, claim, folder_of, known_as
from lensaudit.results.reading import json_object
from lensaudit.results.roles import check_roles
from lensaudit.settings import GENERATED, path_of, plain
from lensaudit.turns import in_turn

if TYPE_CHECKING:
    from lensaudit.patching.session import Session

_NOT_THE_RESULT = (
    *("model", "out", "device", "batch_size", "memory", "activations", "registry", "fresh"),
    *("data", "forget", "holdout", "retain_set", "own"),
)
"""Options that say where and how fast, and paths of rows, whose content counts."""
_PLACES = ("out", "retain_log", "activations", "align_data", "validity_data")
"""Options that name a file or folder, however it is spelled."""
KIND = ("command", "suite")
"""Settings in which two results must agree for one to replace the other in a named folder."""
_ADDED = ("retain", "retain_log", "full", "reference", "classifier", "ref_value")
"""Options that give values to metrics that had none."""
COMMAND = "eval"


def evaluate_into(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    opened: Callable[[ModelPasses], None] = unheard,
) -> EvaluationResult:
    """Compute the metrics; write the log, the rows and the manifest.

    Finished passes are kept in the folder, so an interrupted run goes on where it was, and a metric
    that lacked its retain reference is computed anew once there is one. A result without any value
    is one all the same: see `EvaluationResult.checked`. Where another process evaluates into the
    same folder, this one waits for it.

    Args:
        model: name, Hub id or folder.
        settings: what is computed, and how.
        folder: of the results; None: experiments/out/<model>-<suite>.
        notice: told remarks.
        progress: told each finished pass.
        opened: told what was opened, before any work.

    Raises:
        InputError: before any work.
        WorkError: a batch does not fit.
    """
    started = time.monotonic()
    metrics = ordered(settings.suite, settings.metrics)
    to_do = open_in(model, settings, folder, notice=notice)
    passes, place = to_do.passes, to_do.place
    reference = compared(settings, passes)
    busy = FolderRemark(f"{place}: another process evaluates into this folder; waiting for it")
    with in_turn(make_folder(place), lambda: notice(busy)):
        # since its folder was chosen, another process may have finished a run there
        place = placed_in(model, settings, folder, passes, notice).place
        usual = evaluation_folder(model, settings, folder)
        passes.folders, passes.fresh = _pass_folders(place, usual), settings.fresh
        claim(place, COMMAND, (log_name(settings.suite), "results.jsonl"))
        first = settings.retain if settings.retain_log is None and retain_names(metrics) else None
        if first is not None:
            notice(f"retain model {first}")
        opened(passes)
        if first is not None:
            asked = tuple(retain_names(metrics))
            theirs = replace(settings, metrics=asked, retain=None, classifier=None, reference=None)
            found = evaluate_into(
                first, theirs, place / OF_RETAIN, notice=notice, progress=progress
            )
            reference = found.entries
        n_passes, done = len(counted_in(settings, passes)), itertools.count(1)

        def finished(one: str) -> None:
            progress(
                Progress(f"evaluating {model}", min(next(done), n_passes), n_passes, piece=one)
            )

        passes.finished = finished
        entries = evaluate(
            passes,
            settings.suite,
            settings.metrics,
            retain=reference,
            empty=_empty(settings),
            retain_value=settings.ref_value,
        )
        said = notes(passes, reads_of(metrics, passes, settings.suite))
        log = write_log(place, settings.suite, entries)
        write_jsonl(place / "results.jsonl", result_rows(settings.suite, passes, entries))
        manifest(
            COMMAND,
            kind="eval",
            options=_options(model, settings, folder, passes),
            inputs={
                **inputs_of(passes),
                **reference_of(settings, place),
                "notes": said,
                "metrics": {
                    one.name: {
                        "high_means": one.high_means,
                        "family": one.family,
                        "source": one.source,
                    }
                    for one in ordered(settings.suite, entries)
                },
            },
            device=passes.subject.conditions.device,
            started=started,
        ).write(place, (log.name, f"{settings.suite.upper()}_SUMMARY.json", "results.jsonl"))
        return EvaluationResult(model, log, settings.suite, entries, tuple(said))


@dataclass(frozen=True)
class OpenedEvaluation:
    """An evaluation with all that it reads opened and checked; nothing is loaded or written."""

    settings: EvaluateSettings
    passes: ModelPasses
    place: Path
    """Folder that the result goes to."""


def open_in(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    placed: Notice = unheard,
    rated: bool = True,
) -> OpenedEvaluation:
    """Open an evaluation, and find its folder; a result there that asks for more stays.

    Args:
        model: as of `evaluate_into`, and so are the others.
        settings: what is computed, and how.
        folder: of the results.
        notice: told remarks.
        placed: told what result is replaced, or where it goes instead.
        rated: False leaves out the classifier, which is loaded where it is opened.

    Raises:
        InputError: a name, a file, a setting or the folder is wrong.
    """
    if folder is not None:  # one of another command is refused before anything is opened
        check_free(folder, COMMAND, (log_name(settings.suite), "results.jsonl"))
    opened = settings if rated else replace(settings, classifier=None)
    passes = open_evaluation(model, opened, notice=notice)
    return placed_in(model, settings, folder, passes, placed)


def placed_in(
    model: str,
    settings: EvaluateSettings,
    folder: Path | None,
    passes: ModelPasses,
    placed: Notice = unheard,
) -> OpenedEvaluation:
    """The folder of an evaluation that is open; arguments and refusals are those of `open_in`."""
    place = folder_of(
        evaluation_folder(model, settings, folder),
        run_of(model, settings, folder, passes),
        run_in,
        named=folder is not None,
        tell=placed,
        grew=grew,
        kind=KIND,
    )
    return OpenedEvaluation(settings, passes, place)


def run_of(model: str, settings: EvaluateSettings, folder: Path | None, passes: ModelPasses) -> Run:
    """Command, options and inputs by which one evaluation differs from another."""
    options = as_placed(_options(model, settings, folder, passes))
    return run_in({"command": COMMAND, "options": options, "inputs": inputs_of(passes)})


def run_in(manifest: Mapping[str, Any]) -> Run:
    """The run that a manifest describes: content of the model and rows, and what moves a number."""
    # an option that an earlier version did not know had what is its default now
    options, inputs = plain(EvaluateSettings()) | manifest["options"], manifest["inputs"]
    places = {name: options[name] for name in _PLACES if options.get(name)}
    options |= {name: os.path.realpath(one) for name, one in places.items()}
    return {
        "command": manifest["command"],
        "model": known_as(options["model"]),
        "weights": inputs["model"]["weights"],
        **{f"rows of {name}": value for name, value in inputs["data"].items()},
        **{name: value for name, value in options.items() if name not in _NOT_THE_RESULT},
    }


def grew(name: str, old: Any, new: Any) -> bool:
    """Whether the run asks for what an earlier one did, and more."""
    if name == "metrics":
        return not new or bool(old and set(old) <= set(new))
    return name in _ADDED and old is None


def _pass_folders(place: Path, usual: Path) -> list[Path]:
    """Folders where a pass may lie: its own, the usual one, and those of other results.

    Passes are found by content: a retain model, and in audits `full` as well, is evaluated once.
    """
    top, patterns = place, ()
    if place.name == OF_RETAIN:
        top, patterns = place.parent.parent, ("*", f"*/{OF_RETAIN}")
    elif place.parent.name == EVAL:
        top, patterns = place.parent.parent.parent, (f"*/{EVAL}/{place.name}",)
    theirs = (one for pattern in patterns for one in sorted(top.glob(f"{pattern}/{PASSES}")))
    return [*dict.fromkeys((place / PASSES, usual / PASSES, *theirs))]


def counted_in(settings: EvaluateSettings, passes: ModelPasses) -> dict[str, tuple[int, str]]:
    """Pass -> how much it reads, and of what: texts that are scored, or questions.

    One generation serves every field of a split. Texts are encoded here, before any pass.

    Raises:
        InputError: a text cannot be encoded.
    """
    found: dict[str, tuple[int, str]] = {}
    for read in reads_of(ordered(settings.suite, settings.metrics), passes, settings.suite):
        asks = read.kind in GENERATED
        name = f"{read.kind} {read.split}" if asks else f"{read.kind} {read.split}.{read.field}"
        if asks or read.kind == "patched":
            found[name] = len(passes.all_splits[read.split].rows), "questions"
        else:
            found[name] = sum(map(len, passes.view(read).rows.values())), "texts"
    return found


def compared(settings: EvaluateSettings, passes: ModelPasses) -> Mapping[str, MetricResult]:
    """The log of a retain model that was named; empty where none was.

    Raises:
        InputError: it is none, or of another run.
    """
    if not settings.retain_log:
        return {}
    return retain_reference(
        read_log(Path(settings.retain_log)), passes, settings.suite, _empty(settings)
    )


def reference_of(settings: EvaluateSettings, place: Path) -> dict[str, Any]:
    """The retain model and the content of its log, where one is compared with; None: not made."""
    log = path_of(settings.retain_log)
    if log is None and settings.retain and retain_names(ordered(settings.suite, settings.metrics)):
        log = place / OF_RETAIN
    if log is None:
        return {}
    file = log_file(log, settings)
    if not file.is_file():
        return {"retain_log": None}
    made = file.with_name(MANIFEST)
    retain = models_in(json_object(made)).get("model") if made.exists() else None
    return {"retain_log": mark_of(file)["blake2b"], **({"retain": retain} if retain else {})}


def _options(
    model: str, settings: EvaluateSettings, folder: Path | None, passes: ModelPasses
) -> dict[str, Any]:
    """The settings as a manifest holds them, with what `auto` meant."""
    return {
        "model": model,
        **plain(
            settings,
            without=("fresh", *(one for one in ("benchmark", "own") if not getattr(settings, one))),
        ),
        "out": None if folder is None else str(folder),
        "empty": _empty(settings),
        **passes.subject.conditions.as_run(),
        "template": passes.asked.template.keys,
    }


def inputs_of(passes: ModelPasses) -> dict[str, Any]:
    """What was read, by content."""
    subjects = {"model": passes.subject, "reference": passes.reference}
    inputs: dict[str, Any] = {
        role: {"name": one.name, **one.alias, "weights": one.conditions.weights}
        for role, one in subjects.items()
        if one is not None
    }
    inputs["data"] = {name: split.digest for name, split in passes.splits.items()}
    if (known := passes.patched) is not None:
        for role, one in {"full": known.full, "retain": known.retain}.items():
            inputs[f"patched_{role}"] = {"name": one.spec.name, "weights": one.weights}
        inputs["annotated"] = known.examples_hash
    return inputs | {"conditions": conditions(passes)}


CLASSIFIER_TOKENS: Mapping[Suite, int] = {"tofu": 32, "muse": 512}
"""Where open-unlearning cuts a generation before it rates its fluency."""


def _empty(settings: EvaluateSettings) -> EmptyRow:
    """What `auto` means for rows with nothing to score."""
    if settings.empty != "auto":
        return settings.empty
    return "upstream" if settings.mask == "upstream" else "unscored"


def open_evaluation(
    model: str, settings: EvaluateSettings, *, notice: Notice = unheard
) -> ModelPasses:
    """The passes over a model and its data; no weights are loaded but a classifier's.

    Args:
        model: name, Hub id or folder.
        settings: what is computed of it.
        notice: told remarks.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    from lensaudit.patching.options import parse_memory  # seconds to import

    memory_bytes, registry = parse_memory(settings.memory), load_registry(settings.registry)
    for name in filter(None, (settings.full, settings.retain)):
        resolve(name, registry)
    opening = partial(
        open_subject,
        registry=path_of(settings.registry),
        dtype=settings.dtype,
        device=settings.device,
        attn=settings.attn,
        memory_bytes=memory_bytes,
    )
    subject, checkpoint = opening(model)
    _check_anchors(checkpoint, settings, registry)
    tell_stored_twice(checkpoint, notice=notice)
    folder = path_of(settings.tokenizer)
    tokenizer = tokenizer_for(checkpoint, folder)
    subject.obeyed = obeyed(checkpoint, tokenizer)
    usual = Template() if settings.suite == "tofu" else PLAIN
    template = read_template(Path(settings.template)) if settings.template else usual
    template = replace(template, think=settings.think or template.think)
    check_tokenizer(tokenizer, template, str(folder or model))
    splits = splits_of(model, settings)
    # of those to forget `patch` says it
    for name, file in {"retain": settings.retain_set, "holdout": settings.holdout}.items():
        if file and (alone := assumption(row.group for row in splits[name].rows)):
            notice(f"{file}: {alone}")
    reference = classifier = None
    if settings.reference:
        reference, opened = opening(settings.reference)
        if tokenizer_for(opened, folder).get_vocab() != tokenizer.get_vocab():
            raise InputError(
                f"--reference {settings.reference}: its tokenizer has other tokens than that of "
                f"{model}, whose tokens it reads; wanted a model with the same tokenizer"
            )
    if settings.classifier:
        classifier = open_classifier(
            settings.classifier,
            resolve_device(settings.device),
            max_tokens=CLASSIFIER_TOKENS[settings.suite],
        )
    return ModelPasses(
        subject,
        splits,
        Tokenization(tokenizer, template, settings.mask, subject.context),
        reference=reference,
        opened=partial(_open_inside, model, settings, notice),
        notice=notice,
        batch_size=settings.batch_size,
        memory_bytes=memory_bytes,
        max_new_tokens=settings.max_new_tokens,
        cleanup=settings.cleanup,
        classifier=classifier,
        answered=_answered(subject, checkpoint, tokenizer, settings),
    )


def _check_anchors(model: Checkpoint, settings: EvaluateSettings, registry: Registry) -> None:
    """Refuse what a model would be compared with and is itself; alone any model is evaluated.

    Raises:
        InputError: names both.
    """
    if settings.retain is None:
        return
    retain = open_model(settings.retain, settings.registry, allow_packed=True)
    full = [place_of("full", resolve(settings.full, registry))] if settings.full else []
    check_roles([*in_role("source", model), *full, *in_role("retain", retain)])


def _answered(
    subject: Subject, checkpoint: Checkpoint, tokenizer: Any, settings: EvaluateSettings
) -> Callable[[Sequence[int]], Sequence[int] | None]:
    """What `patch` has heard of a model that was asked the same under the same conditions."""
    if settings.fresh or settings.mask != "true" or subject.obeyed.keys() - {"eos_token_id"}:
        return lambda prompt: None
    from lensaudit.patching.score_cache import AnswerCache, answer_key  # seconds to import

    how = batch_policy("padded", subject.conditions.dtype, settings.batch_size)
    conditions = replace(subject.conditions, batch_policy=how)
    key = answer_key(conditions, stop_of(checkpoint, tokenizer))
    return AnswerCache(Path(settings.activations), key, checkpoint.spec.name).finished


def _open_inside(model: str, settings: EvaluateSettings, notice: Notice) -> "Session":
    asked = depth_inside(model, settings)
    if settings.retain is None:
        raise InputError(NO_RETAIN)
    from lensaudit.patching.prepare import prepare  # seconds to import

    return prepare([model], asked, notice=notice, maps=False)
