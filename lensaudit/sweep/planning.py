"""From what a user names to a plan, and what it will cost: all that can be wrong is found here."""

import fnmatch
import glob
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

from rich.filesize import decimal as size

from lensaudit.attacks.quantize import BLOCK
from lensaudit.auditing.question import (
    annotated_set,
    check_asked,
    own_data,
    splits_of,
    validity_rows,
)
from lensaudit.choices import in_commas
from lensaudit.data.facts import Fact
from lensaudit.data.neutral import Neutral, kept_facts, neutral_beside
from lensaudit.data.tofu import DEMO, TOFU_PAIRS, forget_set
from lensaudit.errors import InputError, shortened
from lensaudit.evaluation.passes import PASS_VERSION, rows_lack
from lensaudit.files import read_text
from lensaudit.groups import grouped
from lensaudit.metrics.registry import ANNOTATED, ordered
from lensaudit.models.checkpoint import open_checkpoint, place_of
from lensaudit.models.device import resolve_device
from lensaudit.models.likeness import check_same_shape
from lensaudit.models.registry import (
    ModelSpec,
    Registry,
    Role,
    anchors_of,
    data_of,
    family_of,
    load_registry,
    resolve,
)
from lensaudit.models.sizes import BYTES, sizes_on_disk
from lensaudit.patching.alignment import ALIGN_TOKENS_PER_DIM, HELD_OUT
from lensaudit.patching.options import parse_memory
from lensaudit.progress import Notice, unheard
from lensaudit.results.brought import without_ends
from lensaudit.results.owner import check_free
from lensaudit.results.roles import ModelRole, check_roles
from lensaudit.settings import NO_RETAIN_MODEL, Place
from lensaudit.sweep.attempts import states_of
from lensaudit.sweep.plan import (
    ANCHORS,
    COMMAND,
    VARIANTS,
    Sweep,
    Target,
    UnitConditions,
    Variant,
    make_plan,
    names_in,
    planned,
    planned_or_why,
    rater_files,
    relearned_rows,
    relearning_of,
)
from lensaudit.sweep.settings import RELEARNED, ROLE, PlanSettings, WatchSettings, is_pattern
from lensaudit.sweep.weights import bytes_to_fetch
from lensaudit.text import digest

SPAN_TOKENS = 16
"""Scored tokens of an entity, generously; a cache keeps the residuals at these."""
FACT_TOKENS = 48
"""All tokens of a question and its answer, about; of `full` a cache keeps these."""
_PLACES = (
    "forget",
    "holdout",
    "retain_set",
    "data",
    "relearn_on",
    "align_data",
    "validity_data",
    "classifier",
)
"""Conditions that may name a file or a folder."""


def plan_of(settings: PlanSettings, notice: Notice | None = None) -> Sweep:
    """The plan that the settings describe.

    Raises:
        InputError: a name, a variant, a metric or the data is wrong; nothing was fetched.
    """
    check_free(settings.out, COMMAND)
    registry, variants = load_registry(settings.registry), in_commas(settings.variants)
    chosen: tuple[Variant, ...] = tuple(one for one in VARIANTS if one in variants)
    if not chosen or len(chosen) < len({*variants}):
        raise InputError(f"--variants {settings.variants!r}: wanted some of {', '.join(VARIANTS)}")
    names = [*settings.models, *(name for file in settings.files for name in listed(file))]
    specs = select(names, registry)
    if not specs:
        raise InputError("the plan is empty: name a model, a pattern, a role or a list")
    models = [spec.name for spec in specs]
    full, (retain, *_) = anchors_of(models, settings.full, settings.retain, registry, without=True)
    if retain == NO_RETAIN_MODEL:
        raise InputError(
            "--retain: a sweep compares every model with one that never saw the facts; name it "
            "(`lensaudit patch --retain none` and `lensaudit know` do without)"
        )
    chosen_anchors = {"retain": retain, "full": full}
    anchors: Mapping[ModelRole, ModelSpec] = {
        role: resolve(chosen_anchors[role], registry) for role in ANCHORS
    }
    targets = {one: planned_or_why(one) for one in specs}
    # one of thirty costs itself: its units fail, and say so
    damaged = {one: why for one, (_, why) in targets.items() if why}
    if len(damaged) == len(specs):
        raise InputError(next(iter(damaged.values())))
    for one, why in damaged.items():
        (notice or unheard)(f"{one.name}: planned, and will fail: {why}")
    sound = [one for one in specs if one not in damaged]
    specs = _sources(settings.models, sound, anchors, registry, notice or unheard)
    for one in models:
        check_asked(one, settings, settings.registry)
    conditions = with_data(conditions_of(settings), data_of(models, registry))
    check_data(conditions)
    # what cannot be patched into each other is refused before anything is planned
    here = [open_checkpoint(one) for one in (*anchors.values(), *specs) if one.local is not None]
    if len(here) > 1:
        check_same_shape(*here, notice=notice)
    ends = {role: planned(spec) for role, spec in anchors.items()}
    asked = {one: targets[one][0] for one in (*specs, *damaged)}
    made = make_plan(
        settings.out,
        [*asked.values()],
        anchors=ends,
        variants=chosen,
        conditions=conditions,
        data=data_digest(conditions),
        attacks=attacks_of(conditions, chosen, ends["full"]),
        names=names_in(settings.out),
    )
    _tell_copies(asked, made, notice or unheard)
    return made


def _tell_copies(asked: Mapping[ModelSpec, Target], made: Sweep, notice: Notice) -> None:
    """Say which checkpoints have the weights of another one: both are one unit."""
    called = {tuple(one.identity): one.name for one in made.targets}
    same = grouped((tuple(target.identity), spec.name) for spec, target in asked.items())
    for identity, (first, *copies) in same.items():
        if copies:
            has = "has" if len(copies) == 1 else "have"
            notice(
                f"{', '.join(copies)} {has} the weights of {first}: measured once, as "
                f"{called[identity]}"
            )


def _sources(
    named: Sequence[str],
    specs: Sequence[ModelSpec],
    anchors: Mapping[ModelRole, ModelSpec],
    registry: Registry,
    notice: Notice,
) -> list[ModelSpec]:
    """The models of the plan without its anchors, which are units anyway.

    Raises:
        InputError: an anchor is named by itself; or nothing else is named.
    """
    ends = [place_of(role, spec) for role, spec in anchors.items()]
    by_name = {one: place_of("source", one) for one in specs}
    alone = {*select([one for one in named if not is_pattern(one)], registry)}
    check_roles([*(by_name[one] for one in specs if one in alone), *ends])
    kept, told = without_ends([by_name[one] for one in specs if one not in alone], ends)
    if told:
        notice(told)
    found = [one for one in specs if one in alone or by_name[one] in kept]
    if not found:
        raise InputError(f"the plan is empty: {told}")
    return found


def conditions_of(settings: PlanSettings | WatchSettings) -> UnitConditions:
    """What is measured and how: the fields that conditions share with the settings.

    Raises:
        InputError: no such device or budget; a GPU may be on the machine that runs the plan.
    """
    parse_memory(settings.memory)
    if not settings.device.startswith("cuda"):
        resolve_device(settings.device)
    metrics, names = in_commas(settings.metrics), {one.name for one in fields(UnitConditions)}
    given = {key: value for key, value in vars(settings).items() if key in names}
    given["association"] = settings.association or ("none" if metrics else "quick")
    return UnitConditions(**{**given, "metrics": metrics})


def with_data(conditions: UnitConditions, usual: str | None = None) -> UnitConditions:
    """The conditions with absolute paths, and the data of the models where none are named."""
    if conditions.data is None:
        conditions = replace(conditions, data=own_data(usual)[0])
    given = {key: getattr(conditions, key) for key in _PLACES}
    # a folder that has a set's name is `./demo`
    words = (None, DEMO, *TOFU_PAIRS)
    places = {key: one for key, one in given.items() if one not in words and os.path.exists(one)}
    return replace(conditions, **{key: os.path.abspath(one) for key, one in places.items()})


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
        return annotated_set(None, conditions)
    except InputError:
        if conditions.metrics:
            raise
        return None


def data_digest(conditions: UnitConditions) -> str:
    """Content hash of every question and answer that a unit asks, and of who rates its texts."""
    splits = {name: split.digest for name, split in sorted(splits_of(None, conditions).items())}
    found, named = _neutral(conditions), validity_data(conditions) or conditions.align_data
    # those of a known set come with it
    beside = [[one.asked for one in rows] for rows in (found.fit, found.validity) if named]
    patched = [one.asked for one in _patched(conditions)]
    rater = rater_files(conditions.classifier)
    return digest([splits, patched, PASS_VERSION, *beside, *([rater] if rater else [])])


def validity_data(conditions: UnitConditions) -> Place | None:
    """Rows that show whether `full` can read a checkpoint, as in an audit."""
    return validity_rows(conditions, patched_data(conditions), conditions.retain_set)


def _neutral(conditions: UnitConditions) -> Neutral:
    """Rows for validity and maps, or why there are none."""
    if (data := patched_data(conditions)) is None:
        return Neutral((), (), why="no annotated rows are patched")
    asked = replace(conditions, validity_data=validity_data(conditions))
    return neutral_beside(asked, data, _patched(conditions))


def without_rows(conditions: UnitConditions) -> dict[str, str]:
    """Metric -> why it has no value: what the data lacks that it, or what it needs, reads."""
    splits, found = splits_of(None, conditions), dict[str, str]()
    patched = None if patched_data(conditions) else "the data has no annotated rows"
    for one in ordered(conditions.suite, conditions.metrics):
        reads = one.reads[conditions.suite]
        whys = (patched if r.split == ANNOTATED else rows_lack(r, splits) for r in reads)
        needed = (found.get(need) for need in one.local_needs)
        if why := next(filter(None, (*whys, *needed)), None):
            found[one.name] = why
    return found


def check_data(conditions: UnitConditions) -> None:
    """Refuse data of which no unit could be made.

    Raises:
        InputError: a metric is unknown, none has rows to read, or kept rows are not to be had.
    """
    metrics, lacking = ordered(conditions.suite, conditions.metrics), without_rows(conditions)
    if len(lacking) == len(metrics):
        first = metrics[0].name
        raise InputError(f"no metric has rows to read; {first}: {lacking[first]}")
    data = patched_data(conditions)
    for one in conditions.also if data and Path(data).is_file() else ():
        kept_facts(one, data or "")


def missing_lines(conditions: UnitConditions) -> list[str]:
    """What no unit will have for want of rows, in lines."""
    by_why = grouped((why, name) for name, why in without_rows(conditions).items())
    lines = [f"{why}: no value of {shortened(names, 6, ', ')}" for why, names in by_why.items()]
    found = _neutral(conditions)
    if not found.validity:
        lines.append(f"no verdict can be erased: {found.why or 'no rows are left to keep'}")
    return lines


def _patched(conditions: UnitConditions) -> Sequence[Fact]:
    """The annotated rows that patched scores are made of; none where none is wanted."""
    annotated = patched_data(conditions)
    cut = {"exclude": conditions.exclude, "limit": conditions.limit}
    return forget_set(annotated, **cut) if annotated else ()


def attacks_of(
    conditions: UnitConditions, variants: Sequence[Variant], full: Target
) -> Mapping[str, Any]:
    """The settings that make each variant, the relearned rows' content included."""
    found: dict[str, Any] = {"nf4": {"method": "nf4", "block": BLOCK}, "int8": {"method": "int8"}}
    if RELEARNED in variants:
        from lensaudit.training.rows import load_rows, rows_hash

        how = relearning_of(conditions, full)
        rows = load_rows(relearned_rows(conditions, conditions.relearn_on), part="forget")
        found[RELEARNED] = asdict(how) | {"formats": list(how.formats), "rows": rows_hash(rows)}
    return {one: found[one] for one in variants if one in found}


def select(names: Sequence[str], registry: Registry) -> list[ModelSpec]:
    """The checkpoints that names and patterns stand for, in their order, each once.

    Args:
        names: registry names, folders and Hub ids; `idknll_*_ep10` (names of the registry, or
            folders); `role:unlearned`.
        registry: the known names.

    Raises:
        InputError: a name is unknown or a pattern matches nothing.
    """
    return list(dict.fromkeys(spec for name in names for spec in _matching(name, registry)))


def listed(path: Path) -> list[str]:
    """The names in a text file, one per line; `#` begins a comment.

    Raises:
        InputError: it cannot be read or holds no name.
    """
    lines = (line.partition("#")[0].strip() for line in read_text(path).splitlines())
    names = [*filter(None, lines)]
    if not names:
        raise InputError(f"{path}: holds no model name; wanted one per line")
    return names


def _matching(name: str, registry: Registry) -> Iterable[ModelSpec]:
    if not is_pattern(name):
        return [resolve(name, registry)]
    own = [spec for spec in registry.values() if spec.alias_of is None]
    if name.startswith(ROLE):
        role, roles = name.removeprefix(ROLE), get_args(Role)
        found = [one for one in own if one.role == role and not family_of(one)]
        if not found:
            raise InputError(f"{name}: no model has this role; roles are {', '.join(roles)}")
        return found
    folders = filter(os.path.isdir, sorted(glob.glob(os.path.expanduser(name))))
    matches = [spec for spec in own if fnmatch.fnmatchcase(spec.name, name)]
    matches += [resolve(path, registry) for path in folders]
    if not matches:
        raise InputError(
            f"pattern {name!r} matches no model; `lensaudit models` lists all names, and a "
            "pattern of folders needs folders that exist"
        )
    return matches


def forecast_of(sweep: Sweep) -> dict[str, Any]:
    """Everything a person asks before a long run, as plain JSON. Unknown numbers are null."""
    states = states_of(sweep)
    names = [one.name for one in states]
    left = [one.unit for one in states if one.name == "to do"]
    work, sizes = work_of(sweep.conditions), None
    # shape of the models, from one that is on this disk
    if local := next((target for target in sweep.targets if target.is_folder), None):
        dtype = sweep.conditions.dtype
        checkpoint = open_checkpoint(resolve(local.repo, {}))
        sizes = sizes_on_disk(checkpoint, dtype if dtype in BYTES else "float32")
    n_patched = work["patched_examples"] * len(left)
    return {
        "plan": sweep.hash,
        "n_units": len(states),
        "n_checkpoints": len(sweep.targets),
        "done": names.count("done"),
        "failed": names.count("failed"),
        "to_do": len(left),
        "units_left": [unit.label for unit in left],
        "checkpoints_to_fetch": bytes_to_fetch(sweep, dict.fromkeys(unit.target for unit in left)),
        "per_unit": work,
        "texts_left": {key: count * len(left) for key, count in work.items()},
        "missing": missing_lines(sweep.conditions),
        "layers": sizes and sizes.n_layers,
        "patched_forwards_left": sizes and n_patched * sizes.n_layers,
        "caches_bytes": sizes
        and sizes.residual_bytes(_cached_tokens(sweep.conditions, len(left), sizes.d_model)),
    }


def _cached_tokens(conditions: UnitConditions, n_units: int, d_model: int) -> int:
    """Tokens whose streams are cached, about: of facts, of rows for validity and for maps.

    Of each unit the spans; of `full` every token, once for all units, and alone of rows for maps.
    """
    if not n_units:
        return 0
    neutral = _neutral(conditions)
    n_facts = len(_patched(conditions)) + len(neutral.validity)
    n_fitted = conditions.align_tokens or ALIGN_TOKENS_PER_DIM * d_model
    most = 0 if conditions.align == "none" else len(neutral.fit) * FACT_TOKENS
    for_maps = min(n_fitted * HELD_OUT // (HELD_OUT - 1), most)
    return n_facts * (n_units * SPAN_TOKENS + FACT_TOKENS) + for_maps


def work_of(conditions: UnitConditions) -> dict[str, int]:
    """Texts scored, differentiated and generated by one unit, and examples patched."""
    splits = splits_of(None, conditions)
    metrics = ordered(conditions.suite, conditions.metrics)
    reads = {read for one in metrics for read in one.reads[conditions.suite]}
    counted: Counter[str] = Counter()
    for read in (one for one in reads if one.split in splits):
        answers = (row.answers.get(read.field, ()) for row in splits[read.split].rows)
        counted[read.kind] += sum(1 if isinstance(one, str) else len(one) for one in answers)
    # one generation a question, whatever field is compared
    kinds = {"text": "text", "jailbreak": "jailbreak"}
    kinds |= {"fluency": "text"} if conditions.classifier else {}
    asked = {(kinds[r.kind], r.split) for r in reads if r.kind in kinds and r.split in splits}
    return {
        "scored": counted["trace"],
        "differentiated": counted["gradient"],
        "generated": sum(len(splits[split].rows) for _, split in asked),
        "patched_examples": len(_patched(conditions)),
    }


def lines_of(forecast: Mapping[str, Any]) -> list[str]:
    """Costs of a sweep as lines for a person."""
    per_unit, fetch = forecast["per_unit"], forecast["checkpoints_to_fetch"].values()
    known = [one for one in fetch if one is not None]
    fetched = f"{len(fetch)} checkpoints, {size(sum(known))}" if fetch else "nothing"
    if unknown := len(fetch) - len(known):
        fetched += f" and {unknown} of unknown size (the Hub cannot be asked)"
    lines = [
        f"plan {forecast['plan'][:12]}: {forecast['n_units']} units of "
        f"{forecast['n_checkpoints']} checkpoints, {forecast['done']} done, "
        f"{forecast['failed']} failed, {forecast['to_do']} to do",
        f"to do: {shortened(forecast['units_left'], 12, ', ') or 'nothing'}",
        f"each: {per_unit['scored']} texts scored, {per_unit['differentiated']} differentiated, "
        f"{per_unit['generated']} generated, {per_unit['patched_examples']} examples patched",
        f"to fetch: {fetched}",
    ]
    if forecast["patched_forwards_left"] is not None:
        lines.append(
            f"patched forward passes: {forecast['patched_forwards_left']} (by example and layer); "
            f"caches: {size(forecast['caches_bytes'])}"
        )
    return [*lines, *forecast["missing"]]
