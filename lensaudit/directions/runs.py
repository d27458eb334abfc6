"""From settings to a directions audit and its files: the whole of `steer audit`."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.directions.audit import Audit, prepare, retain_examples, run
from lensaudit.directions.bench import ROLES, Role, Runs
from lensaudit.directions.finding import KINDS
from lensaudit.directions.restore import Search
from lensaudit.errors import InputError, WorkError
from lensaudit.files import slug
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import (
    ModelSpec,
    default_anchor,
    default_data,
    load_registry,
    resolve,
)
from lensaudit.patching.options import parse_layers, parse_memory
from lensaudit.patching.prepare import examples_for
from lensaudit.progress import Notice, Tick
from lensaudit.results.records import manifest
from lensaudit.settings import plain, results_folder
from lensaudit.steer.generate import format_of
from lensaudit.steer.settings import DirectionSettings
from lensaudit.unlearn.rows import TOFU_PAIRS


@dataclass(frozen=True)
class Audited:
    """What an audit of directions found, and where it is."""

    summary: dict[str, Any]
    folder: Path
    failure: WorkError | None
    """No experiment could be scored; the files say why."""


def open_audit(
    settings: DirectionSettings,
    progress: Tick | None = None,
    notice: Notice | None = None,
) -> Audit:
    """The audit that the settings describe; nothing is loaded.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    names: dict[Role, str] = {
        "full": settings.full or default_anchor("full", [settings.name]),
        "unlearned": settings.name,
        "retain": settings.retain or default_anchor("retain", [settings.name]),
    }
    registry = load_registry(settings.registry)
    specs: dict[Role, ModelSpec] = {role: resolve(names[role], registry) for role in ROLES}
    data = settings.data or default_data(settings.name)
    forget = examples_for(data, exclude=settings.exclude, limit=settings.limit)
    kept = retain_examples(retain_name(settings.retain_data, data), settings.n_retain)
    checkpoints: dict[Role, Checkpoint] = {role: open_checkpoint(specs[role]) for role in ROLES}
    device = resolve_device(settings.device)
    search = Search(
        layers=parse_layers(settings.layers, checkpoints["full"].n_layers),
        strengths=strengths_of(settings.strengths),
        score=settings.score,
        n_random=settings.n_random,
        seed=settings.seed,
        kl_cap=settings.kl_cap,
        where=settings.where,
        max_new_tokens=settings.max_new_tokens,
    )
    return prepare(
        checkpoints,
        forget,
        kept,
        search=search,
        notice=notice,
        kinds=tuple(kind for kind in KINDS if kind in settings.kinds) or KINDS,
        n_folds=settings.n_folds,
        at=settings.at,
        form=format_of(load_tokenizer(checkpoints["full"]), settings.form),
        runs=Runs(
            resolve_dtype(settings.dtype, device),
            device,
            parse_memory(settings.memory),
            Path(settings.activations),
            progress,
        ),
    )


def plan_of(audit: Audit) -> str:
    """What a run would do."""
    names = ", ".join(f"{role} {audit.checkpoints[role].spec.name}" for role in ROLES)
    groups = {e.group for e in audit.encoded["forget"]}
    grid = len(audit.search.layers) * len(audit.search.strengths)
    return (
        f"{names}\n{len(audit.encoded['forget'])} forget examples of {len(groups)} authors in "
        f"{len(audit.folds())} folds, {len(audit.encoded['retain'])} retain examples\n"
        f"{', '.join(audit.kinds)}; ADD tries {grid} settings on the dev authors of each fold; "
        "three models in memory"
    )


def run_audit(
    audit: Audit,
    settings: DirectionSettings,
    progress: Tick,
    notice: Notice | None = None,
) -> Audited:
    """The three experiments on one unlearned model, with their files."""
    started = time.monotonic()
    folder = settings.out or results_folder() / "steering" / slug(settings.name) / "audit"
    summary = run(audit, folder, progress, notice)
    inputs: dict[str, Any] = {
        role: {"name": one.spec.name, "weights": one.weights}
        for role, one in audit.checkpoints.items()
    }
    manifest(
        "steer audit",
        options=plain(settings, without=("name", "full", "retain", "out")),
        inputs={**inputs, "examples": len(audit.encoded["forget"])},
        device=audit.runs.device,
        started=started,
    ).write(folder, ["summary.json"])
    reasons = {one["unscored"] for one in summary["experiments"].values()}
    failure = None
    if all(reasons):
        said = "; ".join(sorted(reasons))
        failure = WorkError(f"{settings.name}: nothing could be scored ({said})")
    return Audited(summary, folder, failure)


def retain_name(named: str | None, data: str) -> str:
    """What --retain-data stands for; the complement of a named forget set by default.

    Raises:
        InputError: the forget set is a file, so its complement must be named.
    """
    known = {**TOFU_PAIRS, "demo": "demo"}
    if named is None and data not in known:
        raise InputError(
            f"--data {data}: name --retain-data too: rows with question and answer that should be "
            "kept; what a direction costs is measured on them"
        )
    return named or known[data]


def strengths_of(text: str) -> tuple[float, ...]:
    """Distinct factors, ascending.

    Raises:
        InputError: not numbers, or 0, which adds nothing.
    """
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError as error:
        raise InputError(f"--strengths {text}: wanted numbers, like 0.5,1,2") from error
    if not found or any(one == 0 or not math.isfinite(one) for one in found):
        raise InputError(f"--strengths {text}: wanted finite numbers other than 0")
    return tuple(found)
