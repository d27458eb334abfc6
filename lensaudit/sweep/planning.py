"""From what a user names to a plan: everything that can be wrong is found here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from lensaudit.attacks.relearn import Relearning, relearning_for
from lensaudit.data.suites import DEMO_DATA, load_suite
from lensaudit.data.tofu import DEMO, forget_set
from lensaudit.errors import InputError
from lensaudit.evaluation.passes import PASS_VERSION
from lensaudit.evaluation.patched import annotated_set
from lensaudit.files import digest
from lensaudit.metrics.registry import ANNOTATED, ordered
from lensaudit.models.checkpoint import check_same_shape, open_checkpoint
from lensaudit.models.quantize import BLOCK
from lensaudit.models.registry import DEMO as DEMO_NAMES
from lensaudit.models.registry import ModelSpec, Registry, default_anchor, load_registry, resolve
from lensaudit.progress import Notice
from lensaudit.sweep.plan import VARIANTS, Conditions, Plan, Target, Variant, make_plan, target_of
from lensaudit.sweep.select import listed, select
from lensaudit.sweep.settings import PlanSettings, WatchSettings, named


def plan_of(settings: PlanSettings, notice: Notice | None = None) -> Plan:
    """The plan that the settings describe.

    Raises:
        InputError: a name, a variant, a metric or the data is wrong; nothing was fetched.
    """
    return plan_sweep(
        [*settings.models, *(name for file in settings.files for name in listed(file))],
        variants=named(settings.variants),
        conditions=conditions_of(settings),
        registry=load_registry(settings.registry),
        full=settings.full,
        retain=settings.retain,
        notice=notice,
    )


def conditions_of(settings: PlanSettings | WatchSettings) -> Conditions:
    """What is measured and how: the fields that conditions share with the settings."""
    own = {one.name for one in fields(settings)}
    given = {one.name: getattr(settings, one.name) for one in fields(Conditions) if one.name in own}
    plain: dict[str, Any] = {
        key: str(value) if isinstance(value, Path) else value for key, value in given.items()
    }
    return Conditions(**{**plain, "metrics": named(settings.metrics)})


def plan_sweep(
    names: Sequence[str],
    *,
    variants: Sequence[str],
    conditions: Conditions,
    registry: Registry,
    full: str | None = None,
    retain: str | None = None,
    notice: Notice | None = None,
) -> Plan:
    """A plan for the named checkpoints.

    Raises:
        InputError: a name, a variant, a metric or the data is wrong; nothing was fetched.
    """
    chosen = checked_variants(variants)
    specs = select(names, registry)
    if not specs:
        raise InputError("the plan is empty: name a model, a pattern, a role or a list")
    named = [spec.name for spec in specs]
    anchors = {
        "retain": resolve(retain or default_anchor("retain", named), registry),
        "full": resolve(full or default_anchor("full", named), registry),
    }
    conditions = with_data(conditions, named)
    ordered(conditions.suite, conditions.metrics)
    check_shapes([*anchors.values(), *specs], notice)
    return make_plan(
        [planned(spec) for spec in specs],
        anchors={role: planned(spec) for role, spec in anchors.items()},
        variants=chosen,
        conditions=conditions,
        data=data_digest(conditions),
        attacks=attacks_of(conditions, chosen),
    )


def checked_variants(variants: Sequence[str]) -> tuple[Variant, ...]:
    """The variants in the order they are done.

    Raises:
        InputError: none, or an unknown one.
    """
    if unknown := [one for one in variants if one not in VARIANTS]:
        raise InputError(f"variant {unknown[0]!r}: wanted {', '.join(VARIANTS)}")
    chosen: tuple[Variant, ...] = tuple(one for one in VARIANTS if one in variants)
    if not chosen:
        raise InputError(f"no variant; wanted some of {', '.join(VARIANTS)}")
    return chosen


def with_data(conditions: Conditions, names: Sequence[str]) -> Conditions:
    """The conditions with absolute paths, and the embedded data for the embedded family."""
    changes: dict[str, Any] = {}
    if conditions.data is None and all(name.startswith(DEMO_NAMES) for name in names):
        changes["data"] = DEMO_DATA
    for key in ("forget", "holdout", "retain_set", "data", "relearn_on"):
        value = changes.get(key, getattr(conditions, key))
        if value is not None and os.path.exists(value):
            changes[key] = os.path.abspath(value)
    return replace(conditions, **changes)


def planned(spec: ModelSpec) -> Target:
    """A checkpoint of the plan; a folder's is opened and hashed, the Hub is not asked."""
    local = spec.local is not None and (spec.adapter is None or spec.adapter.local is not None)
    return target_of(spec, open_checkpoint(spec).weights if local else None)


def check_shapes(specs: Sequence[ModelSpec], notice: Notice | None) -> None:
    """Refuse folders that cannot be patched into each other, before anything is planned."""
    here = [open_checkpoint(spec) for spec in specs if spec.local is not None]
    if len(here) > 1:
        check_same_shape(*here, notice=notice)


def patched_data(conditions: Conditions) -> str | None:
    """The annotated forget set of the patched scores; None where none is wanted.

    Raises:
        InputError: patched scores are wanted by name and the data has no annotated set.
    """
    metrics = ordered(conditions.suite, conditions.metrics)
    reads = [read for one in metrics for read in one.reads[conditions.suite]]
    if not any(read.split == ANNOTATED for read in reads):
        return None
    try:
        return annotated_set(
            "",
            suite=conditions.suite,
            data=conditions.data,
            forget_split=conditions.forget_split,
            own=own_files(conditions),
        )
    except InputError:
        if conditions.metrics:
            raise
        return None


def own_files(conditions: Conditions) -> dict[str, Path]:
    """The user's own rows by split."""
    given = {
        "forget": conditions.forget,
        "holdout": conditions.holdout,
        "retain": conditions.retain_set,
    }
    return {name: Path(path) for name, path in given.items() if path is not None}


def data_digest(conditions: Conditions) -> str:
    """Content hash of every question and answer that a unit asks."""
    splits = load_suite(
        conditions.suite,
        conditions.data,
        forget_split=conditions.forget_split,
        question_key=conditions.question_key,
        own=own_files(conditions),
        limit=conditions.limit,
    )
    annotated = patched_data(conditions)
    examples = forget_set(annotated, limit=conditions.limit) if annotated else []
    parts: list[Any] = [{name: split.digest for name, split in sorted(splits.items())}]
    parts += [[one.asked for one in examples], PASS_VERSION]
    return digest(parts)


def attacks_of(conditions: Conditions, variants: Sequence[Variant]) -> Mapping[str, Any]:
    """The settings that make each variant, the relearned rows' content included."""
    found: dict[str, Any] = {}
    if "nf4" in variants:
        found["nf4"] = {"method": "nf4", "block": BLOCK}
    if "int8" in variants:
        found["int8"] = {"method": "int8"}
    if "relearn-1ep" in variants:
        from lensaudit.unlearn.rows import load_rows

        rows = load_rows(relearned_rows(conditions), part="forget")
        settings = asdict(relearning_of(conditions))
        found["relearn-1ep"] = settings | {
            "formats": list(settings["formats"]),
            "rows": rows.digest,
        }
    return found


def relearning_of(conditions: Conditions) -> Relearning:
    """The published attack, or that of the embedded family where its data is asked."""
    return relearning_for(demo=conditions.data == DEMO_DATA)


def relearned_rows(conditions: Conditions) -> str:
    """What `lensaudit relearn --data` would be given."""
    if conditions.relearn_on:
        return conditions.relearn_on
    if conditions.forget:
        return conditions.forget
    if conditions.data == DEMO_DATA:
        return DEMO
    if conditions.data is not None and Path(conditions.data).is_dir():
        for suffix in ("", "_perturbed"):
            file = Path(conditions.data) / f"{conditions.forget_split}{suffix}.jsonl"
            if file.is_file():
                return str(file)
    return conditions.forget_split
