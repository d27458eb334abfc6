"""From names and results to judgements: read what is there, measure the rest, write the files."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lensaudit.attacks.relearn import relearning_for
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import InputError, PartialError
from lensaudit.meta.aggregate import EPOCHS, aggregated
from lensaudit.meta.catalogue import FLUENCY, UTILITY_PARTS, JudgedMetric, judged
from lensaudit.meta.documents import (
    Lines,
    faithfulness_document,
    faithfulness_table,
    read_thresholds,
    robustness_document,
    robustness_table,
    write_document,
)
from lensaudit.meta.faithfulness import check_pools, faithfulness
from lensaudit.meta.reading import PUBLISHED, THRESHOLDS, attack_aucs, read_values, with_s_mia
from lensaudit.meta.robustness import stability, usable
from lensaudit.meta.scoring import (
    Attacking,
    MetaSubject,
    Scoring,
    identity_of,
    measured,
    named,
    plan_lines,
    suite_names,
)
from lensaudit.meta.settings import FaithfulnessSettings, Measuring, RobustnessSettings
from lensaudit.meta.values import Values, merged, short_name
from lensaudit.models.registry import (
    DEMO,
    Registry,
    Role,
    default_anchor,
    is_demo,
    load_registry,
    resolve,
)
from lensaudit.progress import Notice
from lensaudit.settings import AnswerGroups, shared

ROLES: Mapping[str, Role] = {"knows": "pool_knows", "forgot": "pool_forgot"}
RESULTS = "results"
"""As --source: every model of the results but the anchors."""


@dataclass(frozen=True)
class MetaRun:
    """Models that are judged on, and how: every name is known, nothing is loaded."""

    names: tuple[str, ...]
    out: Path
    metrics: tuple[JudgedMetric, ...]
    measuring: Measuring
    full: str
    retain: str
    evaluation: EvaluateSettings | None
    """How models are measured; None: values come from results alone."""
    notice: Notice

    @cached_property
    def registry(self) -> Registry:
        """The names that models may have."""
        return load_registry(self.measuring.registry)

    def plan(self) -> list[str]:
        """What would be measured; nothing is loaded or written."""
        if self.evaluation is None:
            return [f"{len(self.names)} models, values from results; nothing is measured"]
        metrics = suite_names(self.metrics)
        return plan_lines(self.names, Scoring(self.evaluation, metrics, self.out / "before"))

    def completed(
        self,
        known: Values,
        names: Iterable[str],
        folder: str,
        subjects: Callable[[list[str]], list[MetaSubject]],
        extra: Iterable[str] = (),
    ) -> Values:
        """Known values, and those of the named models that lack one, measured now."""
        keys = [one.usable_as or one.key for one in self.metrics] + [*extra]
        lacking = [n for n in names if any(k not in known.by_model.get(n, {}) for k in keys)]
        if self.evaluation is None or not lacking:
            return known
        metrics = suite_names(self.metrics, extra)
        scoring = Scoring(self.evaluation, metrics, self.out / folder, self.notice)
        left, reasons = (
            {model: row for model, row in rows.items() if model not in lacking}
            for rows in (known.by_model, known.reasons)
        )
        kept = replace(known, by_model=left, reasons=reasons)
        return merged([kept, measured(subjects(lacking), scoring)])

    def before(
        self, results: Sequence[Path], side: str | None = None, extra: Iterable[str] = ()
    ) -> Values:
        """Values of the models, and of the retain model where a metric compares with its own."""
        compared = any(one.usable_as for one in self.metrics)
        names = dict.fromkeys((*self.names, self.retain) if compared else self.names)
        known = read_values(results, attack=side) if results else Values()

        def subjects(lacking: list[str]) -> list[MetaSubject]:
            return [named(name, self.registry) for name in lacking]

        found = self.completed(known, names, "before", subjects, extra)
        return with_s_mia(found, attack_aucs(found, self.retain))

    def write(
        self,
        name: str,
        document: Mapping[str, Any],
        table: Lines,
        options: Mapping[str, Any],
        started: float,
        *,
        fluency: bool = True,
        **inputs: Any,
    ) -> Path:
        """Write a judgement, its table and its manifest; where the judgement is."""
        own = {"metrics": [one.key for one in self.metrics], "full": self.full}
        return write_document(
            self.out,
            name,
            document,
            table,
            options={**options, **own, "retain": self.retain, "fluency": fluency},
            inputs={"results": [], "weights": {}} | inputs,
            started=started,
            device=self.evaluation.device if self.evaluation else "none",
        )


@dataclass(frozen=True)
class MetaJudgement:
    """What a run found, and where it is."""

    path: Path
    results: tuple[Any, ...]
    """`Faithfulness` or `Stability`, one per metric."""
    to_do: Mapping[str, str] = field(default_factory=dict)
    """Models that could not be measured -> why."""


def pool(names: Sequence[str], side: str, registry: Registry) -> list[str]:
    """The models of a pool; `published` stands for the 30 of the UDS meta-evaluation.

    >>> len(pool(["published"], "knows", load_registry()))
    30
    """
    listed = [spec.name for spec in registry.listed(ROLES[side])]
    found: list[str] = []
    for name in (part for text in names for part in text.split(",") if part):
        found += listed if name == PUBLISHED else [short_name(name)]
    return found


def prepare_faithfulness(settings: FaithfulnessSettings, notice: Notice) -> MetaRun:
    """Both pools, the one that knows first."""
    registry = load_registry(settings.measuring.registry)
    names = [*pool(settings.knows, "knows", registry), *pool(settings.forgot, "forgot", registry)]
    wanted = settings.measuring.run or not settings.results
    return _prepared(names, settings, notice, measuring=wanted)


def run_faithfulness(settings: FaithfulnessSettings, how: MetaRun) -> MetaJudgement:
    """Faithfulness of every metric; writes faithfulness.json, .csv and a manifest.

    Raises:
        InputError: the pools are empty or overlap, or results cannot be read.
    """
    started, n = time.monotonic(), len(pool(settings.knows, "knows", how.registry))
    knows, forgot = how.names[:n], how.names[n:]
    here = {} if how.evaluation is None else {m: identity_of(m, how.registry) for m in how.names}
    weights = {name: one["weights"] for name, one in here.items() if "weights" in one}
    check_pools(knows, forgot, Values(weights=weights))
    values = how.before(settings.results)
    check_pools(knows, forgot, values)
    found = [faithfulness(one, knows, forgot, values) for one in how.metrics]
    document = faithfulness_document(found, knows, forgot, values)
    path = how.write(
        "faithfulness",
        document,
        faithfulness_table(document),
        {"knows": list(knows), "forgot": list(forgot)},
        started,
        results=[str(one) for one in settings.results],
        weights=dict(values.weights),
    )
    to_do = {model: why for one in found for model, why in one.to_do.items()}
    return MetaJudgement(path, tuple(found), to_do)


def prepare_robustness(settings: RobustnessSettings, notice: Notice) -> MetaRun:
    """The models that are attacked.

    Raises:
        InputError: names, results or thresholds are wrong or missing.
    """
    wanted = settings.measuring.run or not (settings.before and settings.after)
    _thresholds(settings)
    return _prepared(_candidates(settings), settings, notice, measuring=wanted)


def attacking_of(settings: RobustnessSettings, how: MetaRun) -> Attacking:
    """The attack that the settings describe."""
    given = settings.measuring
    demo = (given.data or _default_data(how.names, given)) == DEMO_DATA
    default = relearning_for(demo=demo)
    return Attacking(
        settings.attack,
        how.registry,
        how.out / "attacked" / settings.attack,
        data=settings.relearn_data or str(given.forget or (DEMO_DATA if demo else "forget10")),
        device=given.device,
        relearning=replace(default, lr=settings.relearn_lr or default.lr),
        keep=settings.keep,
        notice=how.notice,
    )


def run_robustness(settings: RobustnessSettings, how: MetaRun) -> MetaJudgement:
    """Robustness of every metric to one attack; writes robustness-<attack>.json, .csv, a manifest.

    Only models that some metric can use are attacked.

    Raises:
        InputError: no models, or results cannot be read.
    """
    started, models, attack, by = time.monotonic(), how.names, settings.attack, settings.by
    if not models:
        raise InputError("no model to judge robustness on; name some with --source")
    thresholds, fluency = _thresholds(settings), not settings.no_fluency
    extra = (*UTILITY_PARTS, *((FLUENCY,) if fluency else ()))
    everyone = replace(how, names=(*models, how.full, how.retain))
    values = everyone.before(settings.before, "before", extra if by != "none" else ())
    rows = aggregated(values, full=how.full, fluency=fluency)
    utility = {row.model: row.utility_rel for row in rows}
    chosen = [
        usable(
            one,
            models,
            values,
            utility_rel=utility,
            by=by,
            threshold=thresholds.get(one.usable_as or one.key, float("nan")),
        )
        for one in how.metrics
    ]
    wanted = dict.fromkeys(model for one in chosen for model in one.models)
    wanted |= {how.retain: None} if attack == "relearn" else {}
    known = read_values(settings.after, attack=attack) if settings.after else Values()
    subjects = attacking_of(settings, how).subjects
    after = how.completed(known, wanted, f"after-{attack}", subjects)
    after = with_s_mia(after, attack_aucs(values, how.retain))
    found = [
        stability(one, attack, theirs, values, after, retain=how.retain, form=settings.form)
        for one, theirs in zip(how.metrics, chosen, strict=True)
    ]
    conditions = {"filter": by, "retain": how.retain}
    document = robustness_document(
        found, models=models, thresholds=thresholds, conditions=conditions
    )
    path = how.write(
        f"robustness-{attack}",
        document,
        robustness_table(document),
        {"attack": attack, "form": settings.form, "models": list(models), **conditions},
        started,
        fluency=fluency,
    )
    to_do = {how.full: values.to_do[how.full]} if by != "none" and how.full in values.to_do else {}
    to_do |= {model: why for one in found for model, why in one.to_do.items()}
    return MetaJudgement(path, tuple(found), to_do)


def unfinished(found: MetaJudgement) -> PartialError | None:
    """The error that names what is to do."""
    if not found.to_do:
        return None
    first = list(found.to_do.items())[:3]
    names = ", ".join(f"{name} ({why.removeprefix('to do: ')})" for name, why in first)
    more = f" and {len(found.to_do) - 3} more" if len(found.to_do) > 3 else ""
    return PartialError(
        f"to do: {names}{more}; results so far are in {found.path.parent}, "
        "run the same command again"
    )


def _prepared(
    names: Sequence[str],
    settings: FaithfulnessSettings | RobustnessSettings,
    notice: Notice,
    *,
    measuring: bool,
) -> MetaRun:
    """The settings of a run; every name is checked before anything is loaded."""
    given = settings.measuring
    full = given.full or default_anchor("full", names)
    retain = given.retain or default_anchor("retain", names)
    evaluation = None
    if measuring:
        registry = load_registry(given.registry)
        for name in (*names, full, retain):
            resolve(name, registry)
        data = given.data or _default_data(names, given)
        chosen = shared(given, AnswerGroups, full=full, retain=retain, data=data)
        evaluation = EvaluateSettings(**chosen)
    metrics = tuple(judged(settings.metrics))
    return MetaRun(tuple(names), settings.out, metrics, given, full, retain, evaluation, notice)


def _default_data(names: Sequence[str], given: Measuring) -> str | None:
    """The embedded data where any model is of the embedded family: attacked ones are folders."""
    return DEMO_DATA if given.forget is None and any(map(is_demo, names)) else None


def _candidates(settings: RobustnessSettings) -> list[str]:
    """The named models; `results` stands for all in the results but the anchors."""
    found: list[str] = []
    for name in (part for text in settings.models for part in text.split(",") if part):
        if name != RESULTS:
            found.append(short_name(name))
            continue
        if not settings.before:
            raise InputError("--source results: needs --before, the results to take them from")
        anchors = {settings.measuring.full or "full", settings.measuring.retain or "retain"}
        anchors |= {f"{one}_{epoch}" for one in anchors for epoch in EPOCHS}
        anchors |= {f"{DEMO}full", f"{DEMO}retain"}
        listed = read_values(settings.before, attack="before").models
        found += [model for model in listed if model not in anchors]
    return list(dict.fromkeys(found))


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
