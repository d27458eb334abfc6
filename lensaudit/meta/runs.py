"""From names and results to judgements: read what is there, measure the rest, write the files.

What is to be measured is a plan of a sweep in `sweep/`: a unit for each model, attacked or not, run
here one after another. A model whose unit failed stays to do: it is named with the reason, and the
next run tries it again. The folder holds the plan of the last run and the units of all: what one of
the same conditions found, whatever other metrics it was asked, is not measured again. Settings of
the attacks are those of `docs/meta_fields.md`: NF4 without double quantisation; one epoch of
relearning, of the model and of retain.
"""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.auditing.question import LOG, check_asked, own_data, splits_of
from lensaudit.data.tofu import DEMO as DEMO_ROWS
from lensaudit.errors import InputError, PartialError, shortened
from lensaudit.groups import grouped
from lensaudit.meta.aggregate import aggregated
from lensaudit.meta.documents import (
    COMMAND,
    Lines,
    called,
    faithfulness_document,
    faithfulness_table,
    manifest_of,
    read_thresholds,
    robustness_document,
    robustness_table,
    write_judged,
)
from lensaudit.meta.judging import (
    check_attacked,
    check_pools,
    faithfulness,
    left,
    stability,
    usable,
)
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
    check_alike,
    judged,
    merged,
    read_log,
    read_values,
    short_name,
    with_s_mia,
)
from lensaudit.meta.records import FaithfulnessRecord, RobustnessRecord
from lensaudit.meta.settings import FaithfulnessSettings, RobustnessSettings
from lensaudit.metrics.registry import ordered, retain_names
from lensaudit.models.hashing import file_sha256
from lensaudit.models.registry import (
    DEMO,
    Registry,
    anchors_of,
    data_of,
    load_registry,
    resolve,
    usual_anchor,
)
from lensaudit.progress import Notice
from lensaudit.results.integrity import is_whole
from lensaudit.results.manifest import EVAL, MANIFEST, as_placed
from lensaudit.results.owner import check_free
from lensaudit.results.planned import PLAN
from lensaudit.results.reading import json_object
from lensaudit.results.roles import InRole, ModelRole, check_roles
from lensaudit.results.run_log import tell_replaced
from lensaudit.settings import MEMORY, ROWS, AnswerGroups, Machine, Questions, plain, shared
from lensaudit.sweep.attempts import why_missing
from lensaudit.sweep.engines import run_here
from lensaudit.sweep.plan import (
    ANCHORS,
    Sweep,
    Target,
    Unit,
    UnitConditions,
    make_plan,
    planned_or_why,
    rater_files,
    relearned_rows,
    relearning_of,
    replace_plan,
)
from lensaudit.sweep.settings import RELEARNED
from lensaudit.sweep.upkeep import retry
from lensaudit.text import digest
from lensaudit.turns import alone

_PLACES = ("data", "forget", "holdout", "retain_set")
"""Conditions that may name rows on this disk; another's text is no place, whatever lies here."""


def _what_it_is(model: Target) -> str:
    """Weights tell models apart in their roles, or where they come from."""
    return model.weights or digest(model.identity)


def _content(value: Any) -> Any:
    """A place as JSON; of files and folders of rows, what is in them."""
    # as the suite reads it: the embedded data, also where a folder has that name
    path = None if value in (None, DEMO_ROWS) else Path(value)
    if path is None or not path.exists():
        return value if path is None else str(value)
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    return [file_sha256(one) for one in files]


Judging = TypeVar("Judging", FaithfulnessSettings, RobustnessSettings)
RESULTS = "results"
"""As --source: every model of the results but the anchors."""


@dataclass(frozen=True)
class MetaRun:
    """Models that are judged on, and how: every name is known, nothing is loaded."""

    name: str
    """Of the judgement, and its files."""
    names: tuple[str, ...]
    out: Path
    metrics: tuple[JudgedMetric, ...]
    full: str
    retain: str
    measuring: AnswerGroups | None
    """How models are measured; None: values come from results alone."""
    targets: Mapping[str, Target]
    """The models and the anchors as a plan names them; none where nothing is measured."""
    options: Mapping[str, Any]
    """What is asked, for the manifest."""
    inputs: Mapping[str, Any]
    """The results that are read, and the weights of models that lie here; for the manifest."""
    thresholds: Mapping[str, float]
    """Of the filter of models."""
    notice: Notice

    @property
    def keys(self) -> list[str]:
        """What is measured: s_MIA follows from the attack itself and retain's."""
        return [one.usable_as or one.key for one in self.metrics]

    @property
    def compared(self) -> Mapping[str, None]:
        """The models, and retain where a metric compares with its own value."""
        with_retain = any(one.usable_as for one in self.metrics)
        return dict.fromkeys((*self.names, self.retain) if with_retain else self.names)

    def check_alike(self, *tables: Values, more: Iterable[str] = ()) -> None:
        """Refuse values of the models, and of more, that one metric asked of different rows.

        Raises:
            InputError: names two of them.
        """
        models = {**self.compared, **dict.fromkeys(more)}
        # each metric is judged alone, s_MIA with the attack that it is made of
        for one in self.metrics:
            check_alike(models, {one.usable_as or one.key: None, one.key: None}, *tables)

    def planned(
        self, names: Sequence[str], metrics: Iterable[str], attack: RobustnessSettings | None = None
    ) -> tuple[Sweep, Mapping[str, Unit]]:
        """The plan of models under some metrics, and the unit of each: as it is, or attacked.

        A unit is evaluated alone, and relearned as it was asked.
        """
        assert self.measuring is not None
        conditions = UnitConditions(
            **shared(self.measuring, Questions, Machine),
            metrics=tuple(sorted(metrics)),
            association="none",
            patch=False,
            relearn_on=attack.relearn_data if attack else None,
            relearn_lr=attack.relearn_lr if attack else None,
            keep=attack is not None and attack.keep,
            activations=self.measuring.activations,
        )
        variant, how = VARIANTS[attack.attack] if attack else "base", dict[str, Any]()
        if variant == RELEARNED:
            rows = _content(relearned_rows(conditions, conditions.relearn_on))
            how = asdict(relearning_of(conditions, self.targets[self.full])) | {"rows": rows}
        rater = rater_files(conditions.classifier) or conditions.classifier
        sweep = make_plan(
            self.out / SWEEP,
            [self.targets[name] for name in names],
            anchors={role: self.targets[getattr(self, role)] for role in ANCHORS},
            variants=(variant,),
            conditions=conditions,
            data=digest([*(_content(getattr(conditions, one)) for one in _PLACES), rater]),
            attacks={variant: how} if attack else {},
        )
        own = [unit for unit in sweep.units if unit.variant == variant]
        units = {tuple(sweep.by_name[unit.target].identity): unit for unit in own}
        found = {name: units[tuple(self.targets[name].identity)] for name in names}
        return replace(sweep, command=COMMAND), found

    def held(self, names: Sequence[str], attack: RobustnessSettings | None = None) -> Values:
        """What units under these conditions found of the models, whatever metrics they were asked.

        Of one that failed too: the metrics of the passes that did not break.
        """
        # a finished unit counts before what is left of one at work
        below = sorted((self.out / SWEEP).glob(f"*/*/{EVAL}/{MANIFEST}"), reverse=True)
        logs = {one.parts[-3]: one.parent for one in below if is_whole(one.parent)}
        asked = {tuple(json_object(one / MANIFEST)["options"]["metrics"]) for one in logs.values()}
        return merged(
            read_log(json_object(log := logs[unit.id] / LOG), log, name=name, metrics=metrics)
            for metrics in sorted(asked)
            for name, unit in self.planned(names, metrics, attack)[1].items()
            if unit.id in logs
        )

    def lacking(
        self, names: Iterable[str], keys: Sequence[str], found: Values
    ) -> Mapping[tuple[str, ...], Sequence[str]]:
        """Metrics of the suite -> models that no unit answered about them."""
        lack = {
            name: [
                SUITE_NAMES.get(key, key)
                for key in keys
                if key not in found.rows.get(name, ()) or found.is_to_do(name, key)
            ]
            for name in names
        }
        return grouped((tuple(left), name) for name, left in lack.items() if left)

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
            for metrics, some in self.lacking(wanted, keys, self.held(wanted, attack)).items():
                failed |= self._measured(some, metrics, attack)
            found = self.held(wanted, attack)
        # of a model that failed now, what was found before stays
        lacks = {m: {*keys} - found.rows[m].keys() for m in failed if m in found.rows}
        why = {model: dict.fromkeys(lack, failed[model]) for model, lack in lacks.items()}
        found = merged([found, Values(why, to_do=failed, broken=lacks)])
        if all(found.is_to_do(name, key) for name in wanted for key in keys):
            why_not = found.why_not(wanted[0], keys[0]).removeprefix("to do: ")
            raise InputError(
                f"none of {len(wanted)} models could be measured; {wanted[0]}: {why_not}"
            )
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
        # who compares waits for the log of the retain model
        compared = retain_names(ordered(sweep.conditions.suite, metrics))
        states = run_here(sweep, sweep.anchor_units()[:1] if compared else [], self.notice)
        if all(one.result for one in states):
            states = run_here(sweep, [*units.values()], self.notice)
        else:
            states *= len(names)
        return {
            name: one.failure.reason if one.failure else why_missing(one)
            for name, one in zip(names, states, strict=True)
            if one.result is None
        }

    def before(
        self, results: Sequence[Path], side: str | None = None, extra: Sequence[str] = ()
    ) -> Values:
        """Values of the models, and of the retain model where a metric compares with its own."""
        found = self.completed(read_values(results, attack=side), self.compared, extra)
        return with_s_mia(found, attack_aucs(found, self.retain))

    def told(self) -> "MetaRun":
        """Itself, once the user knows which judgement goes: its models stay measured."""
        asked = (as_placed(self.options), self.inputs)
        tell_replaced(self.out, *asked, self.notice, manifest_of(self.name))
        return self

    def write(self, record: Any, table: Lines, values: Values, started: float) -> Path:
        """Write a judgement, its table and its manifest; where the judgement is."""
        return write_judged(
            self.out,
            self.name,
            record,
            table,
            options=self.options,
            inputs={**self.inputs, "weights": {**self.inputs["weights"], **values.weights}},
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
    registry, given = load_registry(settings.measuring.registry), read_values(settings.results)
    pools: dict[ModelRole, list[str]] = {
        "knows": pool(settings.knows, "knows", registry),
        "forgot": pool(settings.forgot, "forgot", registry),
    }
    how = _prepared(
        "faithfulness",
        pools,
        _with_anchors(settings, given),
        notice,
        measuring=settings.measures,
        results=settings.results,
        own={**pools, "fluency": True},
    )
    for values in (Values(weights=how.inputs["weights"]), given):
        check_pools(pools["knows"], pools["forgot"], values)
    how.check_alike(given)
    return how.told()


def run_faithfulness(settings: FaithfulnessSettings, how: MetaRun) -> FaithfulnessRecord:
    """Faithfulness of every metric: faithfulness.json, written with its .csv and a manifest.

    Raises:
        InputError: the pools are empty or overlap, results cannot be read or are of other rows.
    """
    started, knows, forgot = time.monotonic(), how.options["knows"], how.options["forgot"]
    values = how.before(settings.results)
    check_pools(knows, forgot, values)
    how.check_alike(values)
    found = [faithfulness(one, knows, forgot, values) for one in how.metrics]
    record = faithfulness_document(found, knows, forgot, values)
    how.write(record, faithfulness_table(record), values, started)
    return record


def prepare_robustness(settings: RobustnessSettings, notice: Notice) -> MetaRun:
    """Models that are attacked, with every name checked.

    Raises:
        InputError: names, results or thresholds are wrong or missing, candidates are copies, or
            results are of models that were not attacked, or of other rows.
    """
    if settings.relearn_data is not None:
        from lensaudit.training.rows import load_rows  # seconds to import

        load_rows(settings.relearn_data, part="forget")
    before = read_values(settings.before, attack="before")
    settings = _with_anchors(settings, before)
    models = _candidates(settings, before)
    if not models:
        raise InputError("no model to judge robustness on; name some with --source")
    after = read_values(settings.after, attack=settings.attack)
    how = _prepared(
        f"robustness-{settings.attack}",
        {"source": models},
        settings,
        notice,
        measuring=settings.measures,
        results=(*settings.before, *settings.after),
        own={
            "attack": settings.attack,
            "form": settings.form,
            "models": models,
            "filter": settings.by,
            "fluency": not settings.no_fluency,
            "thresholds": settings.thresholds,
            "relearn_data": settings.relearn_data,
            "relearn_lr": settings.relearn_lr,
        },
    )
    anchors = (how.retain,) if settings.attack == "relearn" else ()
    check_attacked(models, anchors, {**how.inputs["weights"], **before.weights}, after)
    _check_rows_of(how, settings, before, after)
    return how.told()


def _utility_parts(settings: RobustnessSettings) -> tuple[str, ...]:
    """What is read of the utility that models are picked by; nothing where they are not."""
    fluency = () if settings.no_fluency else (FLUENCY,)
    return (*UTILITY_PARTS, *fluency) if settings.by != "none" else ()


def _check_rows_of(
    how: MetaRun, settings: RobustnessSettings, before: Values, after: Values
) -> None:
    """Refuse an attack whose sides were asked of different rows, and such utilities."""
    how.check_alike(before, after, more=(how.retain,) if settings.attack == "relearn" else ())
    check_alike((*how.names, how.full), _utility_parts(settings), before)


def run_robustness(settings: RobustnessSettings, how: MetaRun) -> RobustnessRecord:
    """Robustness of every metric to one attack: robustness-<attack>.json, with .csv and manifest.

    Only models that some metric can use are attacked.

    Raises:
        InputError: no models, or results cannot be read or are of other rows.
    """
    started, models, attack, by = time.monotonic(), how.names, settings.attack, settings.by
    everyone = replace(how, names=(*models, how.full, how.retain))
    values = everyone.before(settings.before, "before", _utility_parts(settings))
    rows = aggregated(values, full=how.full, fluency=not settings.no_fluency)
    utility = {row.model: row.utility_rel for row in rows if row.utility_rel is not None}
    chosen = [
        usable(
            one,
            models,
            values,
            utility_rel=utility,
            by=by,
            threshold=how.thresholds.get(one.usable_as or one.key, math.nan),
        )
        for one in how.metrics
    ]
    if by != "none" and how.full in values.to_do:
        waits = {how.full: values.why_not(how.full, "")}
        chosen = [replace(one, to_do={**one.to_do, **waits}) for one in chosen]
    wanted = dict.fromkeys(model for one in chosen for model in left(models, one))
    wanted |= {how.retain: None} if attack == "relearn" else {}
    after = how.completed(read_values(settings.after, attack=attack), wanted, attack=settings)
    after = with_s_mia(after, attack_aucs(values, how.retain))
    _check_rows_of(how, settings, values, after)
    found = [
        stability(one, attack, models, row, values, after, retain=how.retain, form=settings.form)
        for one, row in zip(how.metrics, chosen, strict=True)
    ]
    record = robustness_document(
        found,
        attack,
        form=settings.form,
        models=models,
        thresholds=how.thresholds,
        conditions={"filter": by, "retain": how.retain},
    )
    how.write(record, robustness_table(record), values, started)
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
    name: str,
    asked: Mapping[ModelRole, Sequence[str]],
    settings: FaithfulnessSettings | RobustnessSettings,
    notice: Notice,
    *,
    measuring: bool,
    results: Sequence[Path],
    own: Mapping[str, Any],
) -> MetaRun:
    """The settings of a run; every name is checked before anything is loaded.

    Args:
        name: of the judgement.
        asked: models by role.
        settings: of the run.
        notice: told remarks.
        measuring: models are measured.
        results: that are read.
        own: what the manifest says of the judgement, beside how models are measured.

    Raises:
        InputError: a name, a setting or the rows are wrong, or the folder is another command's.
    """
    check_free(settings.out, COMMAND)
    sweep = settings.out / SWEEP
    if (
        measuring
        and (sweep / PLAN).exists()
        and json_object(sweep / PLAN).get("command") != COMMAND
    ):
        check_free(sweep, COMMAND)
    thresholds = _thresholds(settings) if isinstance(settings, RobustnessSettings) else {}
    given, names = settings.measuring, [*itertools.chain.from_iterable(asked.values())]
    measured, registry, targets = None, load_registry(given.registry), dict[str, Target]()
    # of what is read alone the labels need not be names of models
    known = [one for one in names if measuring or one in registry]
    if not measuring:
        given = _with_unread(settings, known, registry)
    full, (retain, *_) = anchors_of(known, given.full, given.retain, registry)
    if measuring:
        _check_machine(given)
        targets = {one: planned_or_why(resolve(one, registry))[0] for one in (*names, full, retain)}
        for one in names:
            check_asked(one, given, given.registry)
        usual = None if given.forget else own_data(data_of(names, registry))[0]
        data = given.data or usual
        measured = replace(given, full=full, retain=retain, data=data)
        _check_rows(full, measured)
    metrics = tuple(judged(settings.metrics))
    roles: Mapping[ModelRole, Sequence[str]] = {**asked, "full": [full], "retain": [retain]}
    check_roles(
        InRole(role, one, _what_it_is(targets[one]) if measuring else one)
        for role, some in roles.items()
        for one in some
    )
    judged_by = {"metrics": [one.key for one in metrics], "full": full, "retain": retain}
    weights = {one: target.weights for one, target in targets.items() if target.weights}
    return MetaRun(
        name=name,
        names=tuple(names),
        out=settings.out,
        metrics=metrics,
        full=full,
        retain=retain,
        measuring=measured,
        targets=targets,
        options={**(plain(measured) if measured else {}), **own, **judged_by},
        inputs={"results": [str(one) for one in results], "weights": weights},
        thresholds=thresholds,
        notice=notice,
    )


def _check_machine(given: AnswerGroups) -> None:
    """Refuse a device that is not there, and a budget that is none; the usual ones are.

    Raises:
        InputError: which it is.
    """
    if given.device not in ("auto", "cpu") or given.memory != MEMORY:
        from lensaudit.models.device import resolve_device  # seconds to import
        from lensaudit.patching.options import parse_memory

        resolve_device(given.device)
        parse_memory(given.memory)


def _check_rows(full: str, asked: AnswerGroups) -> None:
    """Refuse rows on this machine that the suite cannot ask; the Hub is asked by the run alone.

    Raises:
        InputError: the files lack what the suite reads, or cannot be read.
    """
    data, own = asked.data, (asked.forget, asked.holdout, asked.retain_set)
    named = data is not None and (data.endswith(ROWS) or Path(data).exists())
    if any(own) or data == DEMO_ROWS or named:
        splits_of(full, asked)


def _with_anchors(settings: Judging, values: Values) -> Judging:
    """The settings, with the anchors as results call them; as they are where models are measured.

    Raises:
        InputError: the results lack an anchor that is named, and that is read.
    """
    if settings.measures:
        return settings
    given, read = settings.measuring, _anchors_read(settings)
    full, retain = (
        called(role, getattr(given, role), values, given.registry, read=role in read)
        for role in ("full", "retain")
    )
    return replace(settings, measuring=replace(given, full=full, retain=retain))


def _anchors_read(settings: FaithfulnessSettings | RobustnessSettings) -> Set[str]:
    """The anchors that a number or the choice of models depends on; any name does for others."""
    own = {"retain"} if any(one.usable_as for one in judged(settings.metrics)) else set[str]()
    if isinstance(settings, RobustnessSettings):
        own |= {"retain"} if settings.attack == "relearn" else set()
        own |= {"full"} if _utility_parts(settings) else set()
        # candidates are those that are no anchors
        own |= {*ANCHORS} if RESULTS in _listed(settings) else set()
    return own


def _with_unread(
    settings: FaithfulnessSettings | RobustnessSettings, known: Sequence[str], registry: Registry
) -> AnswerGroups:
    """How models are measured; an anchor that nothing reads need not be named beside own models."""
    given, read = settings.measuring, _anchors_read(settings)
    free = [one for one in ANCHORS if one not in read and getattr(given, one) is None]
    return replace(given, **{one: usual_anchor(one, known, registry) or one for one in free})


def _candidates(settings: RobustnessSettings, before: Values) -> list[str]:
    """The named models; `results` stands for all in the results but the anchors."""
    named, found = _listed(settings), list[str]()
    if RESULTS in named:
        if not settings.before:
            raise InputError("--source results: needs --before, the results to take them from")
        anchors = {settings.measuring.full or "full", settings.measuring.retain or "retain"}
        anchors |= {f"{one}_{epoch}" for one in anchors for epoch in EPOCHS}
        anchors |= {f"{DEMO}full", f"{DEMO}retain"}
        anchors |= {*before.anchors("full"), *before.anchors("retain")}
        found = [model for model in before.models if model not in anchors]
    return list(dict.fromkeys([*found, *(short_name(one) for one in named if one != RESULTS)]))


def _listed(settings: RobustnessSettings) -> list[str]:
    """The words of --source."""
    return [part for text in settings.models for part in text.split(",") if part]


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
