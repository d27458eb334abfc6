"""From names and results to judgements: read what is there, measure the rest, write the files.

What is to be measured is a plan of a sweep in `sweep/`: a unit for each model, attacked or not, run
here one after another. A model whose unit failed stays to do: it is named with the reason, and the
next run tries it again. The folder holds the plan of the last run and the units of all: what one of
the same conditions found, whatever other metrics it was asked, is not measured again. Settings of
the attacks are those of `docs/meta_fields.md`: NF4 without double quantisation; one epoch of
relearning, of the model and of retain.
"""

import hashlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lensaudit.auditing.question import EVAL, LOG, check_asked, splits_of
from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import InputError, PartialError, shortened
from lensaudit.files import alone, digest, read_bytes
from lensaudit.meta.aggregate import aggregated
from lensaudit.meta.documents import (
    COMMAND,
    Lines,
    faithfulness_document,
    faithfulness_table,
    read_thresholds,
    robustness_document,
    robustness_table,
    write_judged,
)
from lensaudit.meta.judging import check_pools, faithfulness, left, stability, usable
from lensaudit.meta.reading import (
    EPOCHS,
    FLUENCY,
    PUBLISHED,
    SUITE_NAMES,
    SWEEP,
    THRESHOLDS,
    UTILITY_PARTS,
    VARIANTS,
    JudgedMetric,
    Values,
    attack_aucs,
    judged,
    merged,
    read_unit,
    read_values,
    short_name,
    with_s_mia,
)
from lensaudit.meta.records import FaithfulnessRecord, RobustnessRecord
from lensaudit.meta.settings import FaithfulnessSettings, RobustnessSettings
from lensaudit.metrics.registry import ordered, retain_names
from lensaudit.models.registry import (
    DEMO,
    Registry,
    default_anchor,
    family_of,
    load_registry,
    resolve,
)
from lensaudit.progress import Notice
from lensaudit.results.integrity import is_whole
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.owner import check_free
from lensaudit.results.reading import json_object
from lensaudit.results.roles import InRole, ModelRole, check_roles
from lensaudit.settings import MEMORY, ROWS, AnswerGroups, Machine, Questions, shared
from lensaudit.sweep.attempts import why_missing
from lensaudit.sweep.engines import run_here
from lensaudit.sweep.plan import (
    ANCHORS,
    Sweep,
    Target,
    Unit,
    UnitConditions,
    make_plan,
    planned,
    relearned_rows,
    relearning_of,
    replace_plan,
    target_of,
)
from lensaudit.sweep.settings import RELEARNED
from lensaudit.sweep.upkeep import retry

_PLACES = ("data", "forget", "holdout", "retain_set", "classifier")
"""Conditions that may name a file or folder; another's text is no place, whatever lies here."""


def _content(value: Any) -> Any:
    """A place as JSON; of files and folders of rows, what is in them."""
    # as the suite reads it: the embedded data, also where a folder has that name
    path = None if value in (None, DEMO_DATA) else Path(value)
    if path is None or not path.exists():
        return value if path is None else str(value)
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    return [hashlib.sha256(read_bytes(one)).hexdigest() for one in files]


def _target(name: str, registry: Registry) -> Target:
    """A model as a plan names it: a folder by content, one on the Hub by name and revision."""
    spec = resolve(name, registry)
    try:
        return planned(spec)
    except InputError:  # measuring it will say what is wrong
        return target_of(spec, None)


RESULTS = "results"
"""As --source: every model of the results but the anchors."""


@dataclass(frozen=True)
class MetaRun:
    """Models that are judged on, and how: every name is known, nothing is loaded."""

    names: tuple[str, ...]
    out: Path
    metrics: tuple[JudgedMetric, ...]
    registry: Registry
    full: str
    retain: str
    measuring: AnswerGroups | None
    """How models are measured; None: values come from results alone."""
    notice: Notice

    @property
    def keys(self) -> list[str]:
        """What is measured: s_MIA follows from the attack itself and retain's."""
        return [one.usable_as or one.key for one in self.metrics]

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """The models and the anchors as a plan names them."""
        names = dict.fromkeys((*self.names, self.full, self.retain))
        return {name: _target(name, self.registry) for name in names}

    def conditions(
        self, metrics: Iterable[str] = (), attack: RobustnessSettings | None = None
    ) -> UnitConditions:
        """How a unit is measured: evaluated alone, and relearned as it was asked."""
        assert self.measuring is not None
        return UnitConditions(
            **shared(self.measuring, Questions, Machine),
            metrics=tuple(sorted(metrics)),
            association="none",
            patch=False,
            relearn_on=attack.relearn_data if attack else None,
            relearn_lr=attack.relearn_lr if attack else None,
            keep=attack is not None and attack.keep,
            activations=self.measuring.activations,
        )

    def planned(
        self, names: Sequence[str], metrics: Iterable[str], attack: RobustnessSettings | None = None
    ) -> tuple[Sweep, Mapping[str, Unit]]:
        """The plan of models under some metrics, and the unit of each: as it is, or attacked."""
        conditions, how = self.conditions(metrics, attack), dict[str, Any]()
        variant = VARIANTS[attack.attack] if attack else "base"
        if variant == RELEARNED:
            rows = _content(relearned_rows(conditions, conditions.relearn_on))
            how = asdict(relearning_of(conditions)) | {"rows": rows}
        sweep = make_plan(
            self.out / SWEEP,
            [self.targets[name] for name in names],
            anchors={role: self.targets[getattr(self, role)] for role in ANCHORS},
            variants=(variant,),
            conditions=conditions,
            data=digest([_content(getattr(conditions, one)) for one in _PLACES]),
            attacks={variant: how} if attack else {},
        )
        called = {tuple(one.identity): one.name for one in sweep.targets}
        units = {unit.target: unit for unit in sweep.units if unit.variant == variant}
        return sweep, {one: units[called[tuple(self.targets[one].identity)]] for one in names}

    def held(self, names: Sequence[str], attack: RobustnessSettings | None = None) -> Values:
        """What units under these conditions found of the models, whatever metrics they were asked.

        Of one that failed too: the metrics of the passes that did not break.
        """
        below = sorted((self.out / SWEEP).glob(f"*/*/{EVAL}/{MANIFEST}"), reverse=True)
        logs = {one.parts[-3]: one.parent for one in below if is_whole(one.parent)}
        asked = {tuple(json_object(one / MANIFEST)["options"]["metrics"]) for one in logs.values()}
        return merged(
            read_unit(logs[unit.id] / LOG, name, metrics)
            for metrics in sorted(asked)
            for name, unit in self.planned(names, metrics, attack)[1].items()
            if unit.id in logs
        )

    def lacking(
        self, names: Iterable[str], keys: Sequence[str], found: Values
    ) -> Mapping[tuple[str, ...], Sequence[str]]:
        """Metrics of the suite -> models that no unit answered about them."""
        left: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            row = found.rows.get(name, {})
            lack = [key for key in keys if key not in row or found.is_to_do(name, key)]
            left.setdefault(tuple(SUITE_NAMES.get(key, key) for key in lack), []).append(name)
        return {metrics: some for metrics, some in left.items() if metrics}

    def plan(self) -> list[str]:
        """What would be measured; nothing is loaded or written."""
        if self.measuring is None:
            return [f"{len(self.names)} models, values from results; nothing is measured"]
        n, keys = len(self.names), [*dict.fromkeys(self.keys)]
        n_left = sum(map(len, self.lacking(self.names, keys, self.held(self.names)).values()))
        return [f"{self.out / SWEEP}: {n} models x {len(keys)} metrics, {n - n_left} finished"]

    def completed(
        self,
        known: Values,
        names: Iterable[str],
        extra: Sequence[str] = (),
        attack: RobustnessSettings | None = None,
    ) -> Values:
        """Known values, and those of the named models that lack one, measured now.

        Raises:
            InputError: not one model could be measured; the first reason is given.
            TryAgainError: another process measures into the same folder.
        """
        keys = [*dict.fromkeys((*self.keys, *extra))]
        wanted = [n for n in names if any(math.isnan(known.value(n, key)) for key in keys)]
        if self.measuring is None or not wanted:
            return known
        failed: dict[str, str] = {}
        with alone(self.out / SWEEP):
            left = self.lacking(wanted, keys, self.held(wanted, attack))
            for metrics, some in left.items():
                failed |= self._measured(some, metrics, attack)
            found = self.held(wanted, attack)
        # of a model that failed now, what was found before stays
        lacks = {m: {*keys} - found.rows[m].keys() for m in failed if m in found.rows}
        why = {model: dict.fromkeys(lack, failed[model]) for model, lack in lacks.items()}
        found = merged([found, Values(why, to_do=failed, broken=lacks)])
        if all(found.is_to_do(name, key) for name in wanted for key in keys):
            first, reason = wanted[0], found.why_not(wanted[0], keys[0]).removeprefix("to do: ")
            raise InputError(f"none of {len(wanted)} models could be measured; {first}: {reason}")
        rest = {model: row for model, row in known.rows.items() if model not in wanted}
        return merged([replace(known, rows=rest), found])

    def _measured(
        self, names: Sequence[str], metrics: Sequence[str], attack: RobustnessSettings | None
    ) -> dict[str, str]:
        """Run the units of some models; why units failed, by model."""
        sweep, units = self.planned(names, metrics, attack)
        replace_plan(sweep)
        retry(sweep)
        # a result of which nothing could be read was damaged
        retry(sweep, [one.id for one in units.values()], redo=True)
        compared = retain_names(ordered(sweep.conditions.suite, metrics))
        states = run_here(sweep, sweep.anchor_units()[:1] if compared else [], self.notice)
        if all(one.result for one in states):  # others wait for its log
            states = run_here(sweep, [*units.values()], self.notice)
        else:
            states *= len(names)
        failed = {
            name: one.failure.reason if one.failure else why_missing(one)
            for name, one in zip(names, states, strict=True)
            if one.result is None
        }
        for name, why in failed.items():
            self.notice(f"to do: {name}: {why}")
        return failed

    def before(
        self, results: Sequence[Path], side: str | None = None, extra: Sequence[str] = ()
    ) -> Values:
        """Values of the models, and of the retain model where a metric compares with its own."""
        compared = any(one.usable_as for one in self.metrics)
        names = dict.fromkeys((*self.names, self.retain) if compared else self.names)
        known = read_values(results, attack=side) if results else Values()
        found = self.completed(known, names, extra)
        return with_s_mia(found, attack_aucs(found, self.retain))

    def write(
        self,
        name: str,
        record: Any,
        table: Lines,
        options: Mapping[str, Any],
        started: float,
        *,
        fluency: bool = True,
        **inputs: Any,
    ) -> Path:
        """Write a judgement, its table and its manifest; where the judgement is."""
        own = {"metrics": [one.key for one in self.metrics], "full": self.full}
        return write_judged(
            self.out,
            name,
            record,
            table,
            options={**options, **own, "retain": self.retain, "fluency": fluency},
            inputs={"results": [], "weights": {}} | inputs,
            started=started,
            device=self.measuring.device if self.measuring else "none",
        )


def pool(names: Sequence[str], side: str, registry: Registry) -> list[str]:
    """The models of a pool; `published` stands for the 30 of the UDS meta-evaluation.

    >>> len(pool(["published"], "knows", load_registry()))
    30
    """
    listed = [spec.name for spec in registry.values() if spec.role == f"pool_{side}"]
    parts = [part for text in names for part in text.split(",") if part]
    many = (listed if part == PUBLISHED else [short_name(part)] for part in parts)
    return [*itertools.chain.from_iterable(many)]


def prepare_faithfulness(settings: FaithfulnessSettings, notice: Notice) -> MetaRun:
    """Models of both pools, the one that knows first, with every name and every result checked.

    Raises:
        InputError: the pools are empty or overlap, or results cannot be read.
    """
    registry = load_registry(settings.measuring.registry)
    pools: dict[ModelRole, list[str]] = {
        "knows": pool(settings.knows, "knows", registry),
        "forgot": pool(settings.forgot, "forgot", registry),
    }
    how = _prepared(pools, settings, notice, measuring=settings.run or not settings.results)
    here = {} if how.measuring is None else how.targets
    weights = {name: one.weights for name, one in here.items() if one.weights}
    known = read_values(settings.results) if settings.results else Values()
    for values in (Values(weights=weights), known):
        check_pools(pools["knows"], pools["forgot"], values)
    return how


def run_faithfulness(settings: FaithfulnessSettings, how: MetaRun) -> FaithfulnessRecord:
    """Faithfulness of every metric: faithfulness.json, written with its .csv and a manifest.

    Raises:
        InputError: the pools are empty or overlap, or results cannot be read.
    """
    started, n = time.monotonic(), len(pool(settings.knows, "knows", how.registry))
    knows, forgot = how.names[:n], how.names[n:]
    values = how.before(settings.results)
    check_pools(knows, forgot, values)
    found = [faithfulness(one, knows, forgot, values) for one in how.metrics]
    record = faithfulness_document(found, knows, forgot, values)
    how.write(
        "faithfulness",
        record,
        faithfulness_table(record),
        {"knows": list(knows), "forgot": list(forgot)},
        started,
        results=[str(one) for one in settings.results],
        weights=dict(values.weights),
    )
    return record


def prepare_robustness(settings: RobustnessSettings, notice: Notice) -> MetaRun:
    """Models that are attacked, with every name checked.

    Raises:
        InputError: names, results or thresholds are wrong or missing.
    """
    wanted = settings.run or not (settings.before and settings.after)
    _thresholds(settings)
    if settings.relearn_data is not None:
        from lensaudit.training.rows import load_rows  # seconds to import

        load_rows(settings.relearn_data, part="forget")
    models = _candidates(settings)
    if not models:
        raise InputError("no model to judge robustness on; name some with --source")
    for results, side in ((settings.before, "before"), (settings.after, settings.attack)):
        if results:
            read_values(results, attack=side)
    return _prepared({"source": models}, settings, notice, measuring=wanted)


def run_robustness(settings: RobustnessSettings, how: MetaRun) -> RobustnessRecord:
    """Robustness of every metric to one attack: robustness-<attack>.json, with .csv and manifest.

    Only models that some metric can use are attacked.

    Raises:
        InputError: no models, or results cannot be read.
    """
    started, models, attack, by = time.monotonic(), how.names, settings.attack, settings.by
    thresholds, fluency = _thresholds(settings), not settings.no_fluency
    known = read_values(settings.after, attack=attack) if settings.after else Values()
    extra = (*UTILITY_PARTS, *((FLUENCY,) if fluency else ()))
    everyone = replace(how, names=(*models, how.full, how.retain))
    values = everyone.before(settings.before, "before", extra if by != "none" else ())
    rows = aggregated(values, full=how.full, fluency=fluency)
    utility = {row.model: row.utility_rel for row in rows if row.utility_rel is not None}
    chosen = [
        usable(
            one,
            models,
            values,
            utility_rel=utility,
            by=by,
            threshold=thresholds.get(one.usable_as or one.key, math.nan),
        )
        for one in how.metrics
    ]
    if by != "none" and how.full in values.to_do:
        waits = {how.full: values.why_not(how.full, "")}
        chosen = [replace(one, to_do={**one.to_do, **waits}) for one in chosen]
    wanted = dict.fromkeys(model for one in chosen for model in left(models, one))
    wanted |= {how.retain: None} if attack == "relearn" else {}
    after = how.completed(known, wanted, attack=settings)
    after = with_s_mia(after, attack_aucs(values, how.retain))
    found = [
        stability(one, attack, models, row, values, after, retain=how.retain, form=settings.form)
        for one, row in zip(how.metrics, chosen, strict=True)
    ]
    conditions = {"filter": by, "retain": how.retain}
    record = robustness_document(
        found,
        attack,
        form=settings.form,
        models=models,
        thresholds=thresholds,
        conditions=conditions,
    )
    how.write(
        f"robustness-{attack}",
        record,
        robustness_table(record),
        {"attack": attack, "form": settings.form, "models": list(models), **conditions},
        started,
        fluency=fluency,
    )
    return record


def unfinished(record: FaithfulnessRecord | RobustnessRecord, folder: Path) -> PartialError | None:
    """The error that names what is to do."""
    to_do = {model: why for one in record.metrics for model, why in one.to_do.items()}
    if not to_do:
        return None
    lines = [f"{name} ({why.removeprefix('to do: ')})" for name, why in to_do.items()]
    return PartialError(
        f"to do: {shortened(lines, 3, ', ')}; results so far are in {folder}, run the same command "
        "again"
    )


def _prepared(
    asked: Mapping[ModelRole, Sequence[str]],
    settings: FaithfulnessSettings | RobustnessSettings,
    notice: Notice,
    *,
    measuring: bool,
) -> MetaRun:
    """The settings of a run; every name is checked before anything is loaded."""
    check_free(settings.out, COMMAND)
    given, names = settings.measuring, [*itertools.chain.from_iterable(asked.values())]
    full = given.full or default_anchor("full", names)
    retain = given.retain or default_anchor("retain", names)
    measured, registry = None, load_registry(given.registry)
    if measuring:
        _check_machine(given)
        for name in (*names, full, retain):
            resolve(name, registry)
        # the embedded data where any model comes along with it: attacked ones are folders
        own = given.forget is None and any(map(family_of, names))
        for name in names:
            check_asked(name, given, given.registry)
        data = given.data or (DEMO_DATA if own else None)
        measured = replace(given, full=full, retain=retain, data=data)
        _check_rows(full, measured)
    metrics = tuple(judged(settings.metrics))
    how = MetaRun(tuple(names), settings.out, metrics, registry, full, retain, measured, notice)
    roles: Mapping[ModelRole, Sequence[str]] = {**asked, "full": [full], "retain": [retain]}
    check_roles(
        InRole(role, name, digest(how.targets[name].identity) if measuring else name)
        for role, some in roles.items()
        for name in some
    )
    return how


def _check_machine(given: AnswerGroups) -> None:
    """Refuse a device that is not there, and a budget that is none; the usual ones are.

    Raises:
        InputError: which it is.
    """
    if given.device not in ("auto", "cpu"):
        from lensaudit.models.device import resolve_device  # seconds to import

        resolve_device(given.device)
    if given.memory != MEMORY:
        from lensaudit.patching.options import parse_memory  # seconds to import

        parse_memory(given.memory)


def _check_rows(full: str, asked: AnswerGroups) -> None:
    """Refuse rows on this machine that the suite cannot ask; the Hub is asked by the run alone.

    Raises:
        InputError: the files lack what the suite reads, or cannot be read.
    """
    data, own = asked.data, (asked.forget, asked.holdout, asked.retain_set)
    named = data is not None and (data.endswith(ROWS) or Path(data).exists())
    if any(own) or data == DEMO_DATA or named:
        splits_of(full, asked)


def _candidates(settings: RobustnessSettings) -> list[str]:
    """The named models; `results` stands for all in the results but the anchors."""
    named = [part for text in settings.models for part in text.split(",") if part]
    found: list[str] = []
    if RESULTS in named:
        if not settings.before:
            raise InputError("--source results: needs --before, the results to take them from")
        anchors = {settings.measuring.full or "full", settings.measuring.retain or "retain"}
        anchors |= {f"{one}_{epoch}" for one in anchors for epoch in EPOCHS}
        anchors |= {f"{DEMO}full", f"{DEMO}retain"}
        listed = read_values(settings.before, attack="before").models
        found = [model for model in listed if model not in anchors]
    return list(dict.fromkeys([*found, *(short_name(one) for one in named if one != RESULTS)]))


def _thresholds(settings: RobustnessSettings) -> Mapping[str, float]:
    if settings.by != "both":
        return {}
    if settings.thresholds is None:
        raise InputError(
            "--filter both needs the pools' thresholds: name a faithfulness.json (or published) "
            "with --faithfulness, or filter by utility alone"
        )
    if settings.thresholds == PUBLISHED:
        return THRESHOLDS
    return read_thresholds(Path(settings.thresholds))
