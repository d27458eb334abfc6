"""General capability: lm-evaluation-harness on a model as it is, quantised or steered.

The harness (EleutherAI/lm-evaluation-harness, package `lm-eval`) is optional and imported when it
is called; it is given the model in memory and every argument. What of open-unlearning's wrapper
is done otherwise, and why, is in docs/evidence/lm-eval.md.
"""

import contextlib
import copy
import importlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lensaudit.attacks.quantize import quantise_in_place
from lensaudit.choices import in_commas
from lensaudit.data.rendering import TODAY, rendered
from lensaudit.doors.harness import COMMAND, SUMMARY, harness_folder
from lensaudit.doors.task_files import Task, is_file, rows_below, rows_of, task_name, tasks_named
from lensaudit.errors import InputError, WorkError, need, told_by
from lensaudit.evaluation.settings import HarnessSettings
from lensaudit.files import make_folder, write_json, write_jsonl
from lensaudit.models.bridge import bridge_from, intervening
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.models.conditions import Conditions, conditions_of
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.generation_settings import obeyed
from lensaudit.models.hashing import file_sha256
from lensaudit.plans.plan import Plan
from lensaudit.progress import Notice, unheard
from lensaudit.results.keyed import keyed_document, write_keyed
from lensaudit.results.manifest import manifest, signed_object
from lensaudit.results.owner import claim
from lensaudit.results.reading import null
from lensaudit.results.run import RunResult
from lensaudit.results.run_log import tell_replaced
from lensaudit.settings import plain
from lensaudit.steer.estimators import SteeringVector, load_vector
from lensaudit.steer.interventions import add, project_out
from lensaudit.text import digest, slug

SCHEMA = "lm-eval/1"
_KEPT = ("configs", "versions", "n-shot", "n-samples", "higher_is_better", "group_subtasks")
"""Parts of the harness's answer that say how a number was made."""


ARGUMENTS = (
    *("num_fewshot", "limit", "batch_size", "apply_chat_template", "fewshot_as_multiturn"),
    *("system_instruction", "gen_kwargs", "max_length", "seed"),
)
"""Settings that decide a task's numbers; the batch size does so in half precision."""


@dataclass(frozen=True)
class OpenedHarness:
    """A run of `lm-eval` whose model, vector and tasks were looked at; nothing is loaded."""

    settings: HarnessSettings
    folder: Path
    checkpoint: Checkpoint
    conditions: Conditions
    vector: SteeringVector | None
    tasks: tuple[Task, ...]
    manager: Any
    """The harness's own list of tasks: to read all of its files takes it seconds."""

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells this model from others: weights, edits, dtype."""
        settings, vector = self.settings, self.vector
        way = "ablate" if settings.ablate else settings.coefficient
        own = obeyed(self.checkpoint, load_tokenizer(self.checkpoint))
        return {
            **({"generation": own} if own else {}),
            "weights": self.checkpoint.weights,
            "tokenizer": self.checkpoint.tokenizer,
            **self.conditions.as_run(),
            "quantize": settings.quantize,
            "steer": None if vector is None else [vector.hash(), way],
        }

    @property
    def made_of(self) -> dict[str, Any]:
        """What the manifest says of the model."""
        weights = {"name": self.settings.model, "weights": self.checkpoint.weights}
        return {"model": weights, **self.identity}

    def plan(self) -> Plan:
        """The tasks that would run; nothing is loaded or written."""
        kept = {
            task_name(task): _kept(
                self.folder, task, _key(task, self.identity, self.settings), self.settings
            )
            for task in self.tasks
        }
        model = f"{self.checkpoint.spec.name}, {self.conditions.dtype} on {self.conditions.device}"
        lines = [
            f"{name}: {'runs' if it is None else 'kept from before'}" for name, it in kept.items()
        ]
        n_kept = len(kept) - list(kept.values()).count(None)
        return Plan((f"{model}: {self.folder}", *lines), n_kept=n_kept, done=n_kept == len(kept))

    def run(self, notice: Notice) -> RunResult:
        """Run the tasks; write their results and a manifest.

        Raises:
            InputError: the harness refuses a task.
            WorkError: a task has no number.
        """
        started, settings = time.monotonic(), self.settings
        claim(self.folder, COMMAND, [SUMMARY])
        how = {"identity": self.identity, "settings": settings, "report": notice}
        with edited(self.checkpoint, settings, self.vector, self.conditions) as (model, tokenizer):
            found = _results(model, tokenizer, self.tasks, self.folder, self.manager, **how)
        asked = {"tasks": settings.tasks, "include": plain(settings)["include"]}
        listed = {one: file_sha256(Path(one)) for one in in_commas(settings.tasks) if is_file(one)}
        summed = _summed(settings.model, self.folder, found)
        manifest(
            COMMAND,
            kind="lm-eval",
            options={**_arguments(settings), **asked},
            inputs={**self.made_of, **({"listed": listed} if listed else {})},
            device=self.conditions.device,
            started=started,
        ).write(self.folder, [SUMMARY, *(file for name in found for file in _files(name))])
        return summed


def open_harness(settings: HarnessSettings, *, notice: Notice = unheard) -> OpenedHarness:
    """A run whose every name was looked at.

    Args:
        settings: what is run.
        notice: told which keys of a task file are not read.

    Raises:
        InputError: an unknown name or task, or the harness is not installed.
    """
    folder = harness_folder(settings)
    checkpoint = open_model(settings.model, settings.registry)
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    tasks = tasks_named(settings.tasks, notice)
    opened = OpenedHarness(
        settings=settings,
        folder=folder,
        checkpoint=checkpoint,
        conditions=conditions_of(checkpoint, dtype=dtype, device=device, attention=settings.attn),
        vector=vector_of(checkpoint, settings),
        tasks=tasks,
        manager=_manager(tasks, settings),
    )
    # other tasks go beside those that are there
    tell_replaced(folder, _arguments(settings), opened.made_of, notice)
    return opened


def _manager(tasks: Sequence[Task], settings: HarnessSettings) -> Any:
    """The harness's own list of tasks, with those of a folder; every name is in it.

    Raises:
        InputError: one is not, or the harness is not installed.
    """
    need("lm_eval", called="lm-evaluation-harness", extra="lmeval")
    named = [(task_name(task), task) for task in tasks]
    _check_each_once(named)
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    folder = settings.include
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: no such folder; --include wants one with task YAML files")
    manager = TaskManager(include_path=None if folder is None else str(folder))
    _check_names(named, manager, folder)
    return manager


def vector_of(checkpoint: Checkpoint, settings: HarnessSettings) -> SteeringVector | None:
    """Steering vector of `--steer`; None without one.

    Raises:
        InputError: settings contradict each other, or the vector is of another model.
    """
    if settings.steer is None:
        if settings.ablate:
            raise InputError("--ablate removes a direction; name its vector with --steer")
        if settings.coefficient != HarnessSettings.coefficient:
            raise InputError("--coefficient scales a vector; name it with --steer")
        return None
    return load_vector(
        settings.steer,
        d_model=checkpoint.d_model,
        n_layers=checkpoint.n_layers,
        name=checkpoint.spec.name,
    )


@contextlib.contextmanager
def edited(
    checkpoint: Checkpoint,
    settings: HarnessSettings,
    vector: SteeringVector | None,
    conditions: Conditions,
) -> Iterator[tuple[Any, Any]]:
    """The Hugging Face model in memory, quantised or steered, and its own tokenizer."""
    dtype, device = getattr(torch, conditions.dtype), resolve_device(settings.device)
    model = load_causal(checkpoint, dtype=dtype, device=device, attn=settings.attn)
    tokenizer = load_tokenizer(checkpoint)
    if settings.quantize is not None:
        quantise_in_place(model, settings.quantize)
    if vector is None:
        yield model, tokenizer
        return
    bridge = bridge_from(model, tokenizer)
    steer = add(vector.vector, strength=settings.coefficient)
    change = project_out(vector.vector) if settings.ablate else steer
    with intervening(bridge, {vector.layer: change}):
        # its modules are the bridge's: hooks act however it is called
        yield bridge.original_model, tokenizer


def run_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[Task],
    out: Path,
    *,
    identity: Mapping[str, Any],
    settings: HarnessSettings,
    report: Notice = unheard,
) -> RunResult:
    """Run each task and write `<task>.json`, `<task>.samples.jsonl` and `LMEval_SUMMARY.json`.

    A task whose file was made from the same model, arguments and task files is not run again; the
    summary has the values of all such tasks in the folder, also of those that are not asked.

    Args:
        model: a causal transformers model, hooked or not, in eval mode.
        tokenizer: its tokenizer; the harness never looks for another one.
        tasks: names, or dictionaries, which stay as they are.
        out: folder of the results.
        identity: what tells this model from others: weights, edits, dtype.
        settings: the arguments, and the folder of task files beside those of the harness.
        report: told which task runs.

    Raises:
        InputError: an unknown task, or the harness is not installed.
        WorkError: a task has no number.
    """
    how = {"identity": identity, "settings": settings, "report": report}
    found = _results(model, tokenizer, tasks, out, _manager(tasks, settings), **how)
    return _summed(settings.model, out, found)


def _results(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[Task],
    out: Path,
    manager: Any,
    *,
    identity: Mapping[str, Any],
    settings: HarnessSettings,
    report: Notice,
) -> dict[str, Any]:
    """By name the results of all tasks of a folder, those run or kept that are asked last.

    Arguments and errors are those of `run_tasks`; `manager` knows the tasks.
    """
    named = [(task_name(task), task) for task in tasks]
    make_folder(out)
    every = _beside(out, [name for name, _ in named], identity, settings)
    for name, task in named:
        path, samples = (out / file for file in _files(name))
        key = _key(task, identity, settings)
        found = _kept(out, task, key, settings)
        report(f"{name}: {'runs' if found is None else 'kept from before'}")
        if found is None:
            found = _run(model, tokenizer, task, settings, manager)
            write_jsonl(samples, found.pop("samples"))
            asked = _plain(task if isinstance(task, str) else dict(task))
            write_keyed(path, {"schema": SCHEMA, "key": key, "task": name, "asked": asked, **found})
        every[name] = found["results"]
    return every


def _summed(model: str, out: Path, found: Mapping[str, Any]) -> RunResult:
    """Write the values of all tasks of a folder."""
    values = {key: one for results in found.values() for key, one in values_of(results).items()}
    write_json(out / SUMMARY, values)
    return RunResult(model, out, values)


def _files(task: str) -> tuple[str, str]:
    """What is written of a task: its numbers, and each document."""
    stem = slug(task, 80)
    stem += "" if stem == task else f"-{digest(task)[:8]}"
    return f"{stem}.json", f"{stem}.samples.jsonl"


def _beside(
    out: Path, names: Sequence[str], identity: Mapping[str, Any], settings: HarnessSettings
) -> dict[str, Any]:
    """By name the results of tasks in a folder that are not asked, and would not run again."""
    found: dict[str, Any] = {}
    for path in sorted(out.glob("*.json")):
        with contextlib.suppress(InputError):
            said = signed_object(path)
            task: Task = said.get("asked") or str(said.get("task"))
            name = task_name(task)
            is_same = said.get("key") == _key(task, identity, settings)
            whole = all((out / file).is_file() for file in _files(name))
            if name not in names and is_same and whole:
                found[name] = said["results"]
    return found


def values_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Every number of every task, subtask and group, the filter kept in the name.

    >>> values_of({"t": {"alias": "t", "acc,none": 0.5, "acc_stderr,none": "N/A"}})
    {'t/acc,none': 0.5, 't/acc_stderr,none': None}
    """
    return {
        f"{task}/{key}": _number(value)
        for task, row in results.items()
        for key, value in row.items()
        if "," in key
    }


def _number(value: Any) -> float | None:
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if real else None


def _check_each_once(named: Sequence[tuple[str, Task]]) -> None:
    if not named:
        raise InputError("no task; name one with --tasks")
    names = [name for name, _ in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"task {twice[0]} is named twice")


def _check_names(named: Sequence[tuple[str, Task]], manager: Any, include: Path | None) -> None:
    for name, task in named:
        known = bool(manager.match_tasks([name]))
        if not isinstance(task, str):
            _check_whole(name, task, known)
        elif not known:
            where = f" and {include}" if include else "; --include adds a folder of task files"
            raise InputError(
                f"unknown task {name!r}; `lm-eval ls tasks` lists the known ones{where}"
            )


def _check_whole(name: str, task: Mapping[str, Any], known: bool) -> None:
    """Refuse a mapping of some of a task's fields: the harness fills up none from its own task."""
    # without an output type a task generates, whatever the harness's own task of this name does
    wanted = ("dataset_path", "output_type") if known else ("dataset_path",)
    lacks = [one for one in wanted if one not in task]
    if lacks and not {"include", "class"} & set(task):
        raise InputError(
            f"task {name}: no {' and no '.join(lacks)}; a mapping is a whole task, and the harness "
            f"merges nothing into it: say all of it, or {name} alone"
        )


def _arguments(settings: HarnessSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ARGUMENTS}


def _kept(out: Path, task: Task, key: str, settings: HarnessSettings) -> dict[str, Any] | None:
    """What an earlier run found; None where it was asked something else, or is not to count."""
    return None if settings.fresh else keyed_document(out / _files(task_name(task))[0], key)


def _key(task: Task, identity: Mapping[str, Any], settings: HarnessSettings) -> str:
    """What decides a task's numbers."""
    files = sorted(settings.include.rglob("*")) if settings.include else ()
    own = {
        path.relative_to(settings.include).as_posix(): file_sha256(path)
        for path in files
        if settings.include and path.is_file() and "__pycache__" not in path.parts
    } | {str(one): file_sha256(one) for one in (*rows_of(task), *rows_below(settings.include))}
    return digest(
        {
            "task": task if isinstance(task, str) else repr(sorted(task.items())),
            "identity": dict(identity),
            "arguments": _arguments(settings),
            "files": own,
            "lm_eval": metadata.version("lm_eval"),
            **({"strftime_now": TODAY} if settings.apply_chat_template else {}),
        }
    )


_REFUSALS = (OSError, ValueError, KeyError, IndexError, TypeError, ImportError)
"""What the harness raises where a task, its template or its data is wrong, beside errors of its own
libraries."""


def _run(
    model: Any, tokenizer: Any, task: Task, settings: HarnessSettings, manager: Any
) -> dict[str, Any]:
    """Run one task through the harness; returns its samples and how its numbers were made."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from datasets.exceptions import DatasetsError
    from jinja2 import TemplateError

    # optional, and its decorators hide the parameters from a type checker
    harness: Any = importlib.import_module("lm_eval")
    HFLM: Any = importlib.import_module("lm_eval.models.huggingface").HFLM

    # it warns of what is meant: a model in memory, a metric without an aggregation of its own
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    tokenizer = copy.copy(tokenizer)
    tokenizer.apply_chat_template = lambda turns, tokenize=False, **more: rendered(
        tokenizer, turns, **more
    )
    wrapped = HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        backend="causal",
        batch_size=settings.batch_size,
        max_length=settings.max_length,
        device=str(model.device),
    )
    own = ("batch_size", "max_length", "seed")
    arguments = {key: one for key, one in _arguments(settings).items() if key not in own}
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    arguments |= dict.fromkeys(seeds, settings.seed)
    try:
        found: Any = harness.simple_evaluate(
            model=wrapped,
            # the harness takes the name out of a dictionary it is given
            tasks=[copy.deepcopy(dict(task)) if not isinstance(task, str) else task],
            task_manager=manager,
            log_samples=True,
            **arguments,
        )
    except (*_REFUSALS, DatasetsError, TemplateError) as error:
        reason = told_by(error.__cause__ or error)
        raise InputError(f"task {task_name(task)}: the harness refuses it ({reason})") from error
    if not found or not any(v is not None for v in values_of(found["results"]).values()):
        raise WorkError(f"task {task_name(task)}: the harness found no number")
    samples = [
        {"task": name, **_plain(row)} for name, rows in found["samples"].items() for row in rows
    ]
    return {
        "results": _plain(found["results"]),
        "samples": samples,
        **{key: _plain(found.get(key)) for key in _KEPT},
        "lm_eval": metadata.version("lm_eval"),
        "date": found.get("date"),
        "strftime_now": TODAY,
    }


def _plain(value: Any) -> Any:
    """Strict JSON: numbers of NumPy as Python's, functions and arrays by their text, no NaN."""
    text = json.dumps(value, default=lambda one: one.item() if hasattr(one, "item") else str(one))
    return null(json.loads(text))
