"""From what a user names to a plan, and what it will cost: all that can be wrong is found here."""

import fnmatch
import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

from rich.filesize import decimal as size

from lensaudit.attacks.relearn import Relearning, relearning_for
from lensaudit.auditing.question import annotated_set, splits_of
from lensaudit.data.suites import DEMO_DATA, Split
from lensaudit.data.tofu import DEMO, forget_set
from lensaudit.errors import InputError, shortened
from lensaudit.evaluation.passes import PASS_VERSION
from lensaudit.files import digest, read_text
from lensaudit.metrics.registry import ANNOTATED, Read, ordered
from lensaudit.models.checkpoint import check_same_shape, open_checkpoint
from lensaudit.models.quantize import BLOCK
from lensaudit.models.registry import DEMO as DEMO_NAMES
from lensaudit.models.registry import (
    ModelSpec,
    Registry,
    Role,
    default_anchor,
    family_of,
    load_registry,
    resolve,
    retains_for,
)
from lensaudit.models.sizes import BYTES, Sizes, sizes_on_disk
from lensaudit.progress import Notice
from lensaudit.settings import Place, Questions
from lensaudit.sweep.attempts import states_of
from lensaudit.sweep.plan import (
    ANCHORS,
    VARIANTS,
    Sweep,
    Target,
    UnitConditions,
    Variant,
    make_plan,
    target_of,
)
from lensaudit.sweep.settings import PlanSettings, WatchSettings, named
from lensaudit.sweep.weights import bytes_to_fetch

ROLE = "role:"
"""`role:pool_knows` selects all of a role."""
SPAN_TOKENS = 16
"""Scored tokens of an entity, generously; a cache keeps the residuals at these."""
_WILD = frozenset("*?[")


def plan_of(settings: PlanSettings, notice: Notice | None = None) -> Sweep:
    """The plan that the settings describe.

    Raises:
        InputError: a name, a variant, a metric or the data is wrong; nothing was fetched.
    """
    registry, chosen = load_registry(settings.registry), checked_variants(named(settings.variants))
    names = [*settings.models, *(name for file in settings.files for name in listed(file))]
    specs = select(names, registry)
    if not specs:
        raise InputError("the plan is empty: name a model, a pattern, a role or a list")
    models = [spec.name for spec in specs]
    anchors = {
        role: resolve(getattr(settings, role) or _anchor(role, models, registry), registry)
        for role in ANCHORS
    }
    conditions = with_data(conditions_of(settings), models)
    ordered(conditions.suite, conditions.metrics)
    # what cannot be patched into each other is refused before anything is planned
    here = [open_checkpoint(one) for one in (*anchors.values(), *specs) if one.local is not None]
    if len(here) > 1:
        check_same_shape(*here, notice=notice)
    return make_plan(
        settings.out,
        [planned(spec) for spec in specs],
        anchors={role: planned(spec) for role, spec in anchors.items()},
        variants=chosen,
        conditions=conditions,
        data=data_digest(conditions),
        attacks=attacks_of(conditions, chosen),
    )


def _anchor(role: str, models: Sequence[str], registry: Registry) -> str:
    if role == "retain":
        return retains_for(models, None, registry)[0]
    return default_anchor(role, models)


def conditions_of(settings: PlanSettings | WatchSettings) -> UnitConditions:
    """What is measured and how: the fields that conditions share with the settings."""
    own = {one.name for one in fields(settings)}
    given = {
        one.name: getattr(settings, one.name) for one in fields(UnitConditions) if one.name in own
    }
    metrics = named(settings.metrics)
    given["association"] = settings.association or ("none" if metrics else "quick")
    return UnitConditions(**{**given, "metrics": metrics})


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


def with_data(conditions: UnitConditions, names: Sequence[str]) -> UnitConditions:
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


def patched_data(conditions: UnitConditions) -> str | None:
    """The annotated forget set of the patched scores; None where none is wanted.

    Raises:
        InputError: patched scores are wanted by name and the data has no annotated set.
    """
    metrics = ordered(conditions.suite, conditions.metrics)
    reads = [read for one in metrics for read in one.reads[conditions.suite]]
    if not any(read.split == ANNOTATED for read in reads):
        return None
    try:
        return annotated_set("", conditions)
    except InputError:
        if conditions.metrics:
            raise
        return None


def data_digest(conditions: UnitConditions) -> str:
    """Content hash of every question and answer that a unit asks."""
    splits = {name: split.digest for name, split in sorted(splits_of("", conditions).items())}
    annotated = patched_data(conditions)
    cut = {"exclude": conditions.exclude, "limit": conditions.limit}
    examples = forget_set(annotated, **cut) if annotated else []
    return digest([splits, [one.asked for one in examples], PASS_VERSION])


def attacks_of(conditions: UnitConditions, variants: Sequence[Variant]) -> Mapping[str, Any]:
    """The settings that make each variant, the relearned rows' content included."""
    found: dict[str, Any] = {
        "nf4": {"method": "nf4", "block": BLOCK},
        "int8": {"method": "int8"},
    }
    if "relearn-1ep" in variants:
        from lensaudit.unlearn.rows import load_rows, rows_hash

        how = relearning_of(conditions)
        rows = load_rows(relearned_rows(conditions, conditions.relearn_on), part="forget")
        found["relearn-1ep"] = asdict(how) | {"formats": list(how.formats), "rows": rows_hash(rows)}
    return {one: found[one] for one in variants if one in found}


def relearning_of(conditions: UnitConditions) -> Relearning:
    """The published attack, or that of the embedded family where its data is asked."""
    return relearning_for(demo=conditions.data == DEMO_DATA)


def relearned_rows(asked: Questions, named: Place | None) -> str:
    """Rows of the relearn variant, as `lensaudit relearn --data` takes them: those named, or asked.

    Args:
        asked: what the model is asked.
        named: other rows, where the user wants them relearned.
    """
    if named or asked.forget:
        return str(named or asked.forget)
    if asked.data == DEMO_DATA:
        return DEMO
    if asked.data is not None and Path(asked.data).is_dir():
        for suffix in ("", "_perturbed"):
            file = Path(asked.data) / f"{asked.forget_split}{suffix}.jsonl"
            if file.is_file():
                return str(file)
    return asked.forget_split


def select(names: Sequence[str], registry: Registry) -> list[ModelSpec]:
    """The checkpoints that names and patterns stand for, in their order, each once.

    Args:
        names: registry names, folders and Hub ids; `idknll_*_ep10` (names of the registry, or
            folders); `role:unlearned`.
        registry: the known names.

    Raises:
        InputError: a name is unknown or a pattern matches nothing.
    """
    found: dict[str, ModelSpec] = {}
    for name in names:
        for spec in _matching(name, registry):
            found.setdefault(_identity(spec), spec)
    return list(found.values())


def listed(path: Path) -> list[str]:
    """The names in a text file, one per line; `#` begins a comment.

    Raises:
        InputError: it cannot be read or holds no name.
    """
    lines = (line.partition("#")[0].strip() for line in read_text(path).splitlines())
    names = [line for line in lines if line]
    if not names:
        raise InputError(f"{path}: holds no model name; wanted one per line")
    return names


def _matching(name: str, registry: Registry) -> Iterable[ModelSpec]:
    if name.startswith(ROLE):
        return _of_role(name.removeprefix(ROLE), registry)
    if not _WILD & set(name):
        return [resolve(name, registry)]
    matches = [
        spec
        for key, spec in registry.items()
        if fnmatch.fnmatchcase(key, name) and spec.alias_of is None
    ]
    folders = sorted(glob.glob(os.path.expanduser(name)))
    matches += [resolve(path, registry) for path in folders if os.path.isdir(path)]
    if not matches:
        raise InputError(
            f"pattern {name!r} matches no model; `lensaudit models` lists all names, and a "
            "pattern of folders needs folders that exist"
        )
    return matches


def _of_role(role: str, registry: Registry) -> list[ModelSpec]:
    if role not in get_args(Role):
        raise InputError(f"{ROLE}{role}: no such role; wanted one of {', '.join(get_args(Role))}")
    specs = [
        spec
        for spec in registry.values()
        if spec.role == role and spec.alias_of is None and not family_of(spec.name)
    ]
    if not specs:
        raise InputError(f"{ROLE}{role}: no model has this role")
    return specs


def _identity(spec: ModelSpec) -> str:
    """What is the same checkpoint under two names."""
    adapter = _identity(spec.adapter) if spec.adapter else ""
    return f"{spec.local or spec.repo}@{spec.revision}+{adapter}"


def forecast_of(sweep: Sweep) -> dict[str, Any]:
    """Everything a person asks before a long run, as plain JSON. Unknown numbers are null."""
    states = states_of(sweep)
    left = [one.unit for one in states if one.name == "to do"]
    waiting = list(dict.fromkeys(unit.target for unit in left))
    to_fetch = bytes_to_fetch(sweep, waiting)
    work = work_of(sweep.conditions)
    sizes = _sizes(sweep)
    examples = work["patched_examples"]
    caches = None
    if sizes is not None:
        caches = len(left) * sizes.residual_bytes(examples * SPAN_TOKENS)
    return {
        "plan": sweep.hash,
        "n_units": len(states),
        "n_checkpoints": len(sweep.targets),
        "done": sum(one.name == "done" for one in states),
        "failed": sum(one.name == "failed" for one in states),
        "to_do": len(left),
        "units_left": [unit.label for unit in left],
        "checkpoints_to_fetch": to_fetch,
        "per_unit": work,
        "texts_left": {key: count * len(left) for key, count in work.items()},
        "layers": sizes.n_layers if sizes else None,
        "patched_forwards_left": examples * sizes.n_layers * len(left) if sizes else None,
        "caches_bytes": caches,
    }


def work_of(conditions: UnitConditions) -> dict[str, int]:
    """Texts scored, differentiated and generated by one unit, and examples patched."""
    splits = splits_of("", conditions)
    metrics = ordered(conditions.suite, conditions.metrics)
    reads = {read for one in metrics for read in one.reads[conditions.suite]}
    asked = _asked(reads, conditions)
    annotated = patched_data(conditions)
    n_annotated = len(forget_set(annotated, limit=conditions.limit)) if annotated else 0
    return {
        "scored": sum(_n_texts(read, splits) for read in reads if read.kind == "trace"),
        "differentiated": sum(_n_texts(r, splits) for r in reads if r.kind == "gradient"),
        "generated": sum(len(splits[split].rows) for _, split in asked if split in splits),
        "patched_examples": n_annotated,
    }


def _asked(reads: set[Read], conditions: UnitConditions) -> set[tuple[str, str]]:
    """Generations that are needed: one per question, whatever field is compared."""
    kinds = ("text", "jailbreak", *(("fluency",) if conditions.classifier else ()))
    return {("text" if r.kind == "fluency" else r.kind, r.split) for r in reads if r.kind in kinds}


def _n_texts(read: Read, splits: Mapping[str, Split]) -> int:
    if read.split not in splits:
        return 0
    answers = [
        row.answers[read.field] for row in splits[read.split].rows if read.field in row.answers
    ]
    return sum(1 if isinstance(one, str) else len(one) for one in answers)


def _sizes(sweep: Sweep) -> Sizes | None:
    """Shape of the models, from one that is on this disk."""
    local = [target for target in sweep.targets if target.is_folder]
    if not local:
        return None
    checkpoint = open_checkpoint(resolve(local[0].repo, {}))
    dtype = sweep.conditions.dtype
    return sizes_on_disk(checkpoint, dtype if dtype in BYTES else "float32")


def lines_of(forecast: Mapping[str, Any]) -> list[str]:
    """Costs of a sweep as lines for a person."""
    per_unit, fetch = forecast["per_unit"], forecast["checkpoints_to_fetch"]
    lines = [
        f"plan {forecast['plan'][:12]}: {forecast['n_units']} units of "
        f"{forecast['n_checkpoints']} checkpoints, {forecast['done']} done, "
        f"{forecast['failed']} failed, {forecast['to_do']} to do",
        f"to do: {shortened(forecast['units_left'], 12, ', ') or 'nothing'}",
        f"each: {per_unit['scored']} texts scored, {per_unit['differentiated']} differentiated, "
        f"{per_unit['generated']} generated, {per_unit['patched_examples']} examples patched",
        f"to fetch: {_fetched(fetch)}",
    ]
    if forecast["patched_forwards_left"] is not None:
        lines.append(
            f"patched forward passes: {forecast['patched_forwards_left']} (by example and layer); "
            f"caches: {size(forecast['caches_bytes'])}"
        )
    return lines


def _fetched(sizes: Mapping[str, int | None]) -> str:
    if not sizes:
        return "nothing"
    known = [one for one in sizes.values() if one is not None]
    unknown = len(sizes) - len(known)
    said = f"{len(sizes)} checkpoints, {size(sum(known))}"
    return said + (f" and {unknown} of unknown size (the Hub cannot be asked)" if unknown else "")
