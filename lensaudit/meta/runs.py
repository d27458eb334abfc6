"""From names and results to judgements: read what is there, measure the rest, write the files."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from lensaudit.attacks.relearn import Relearning, relearning_for
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import InputError, PartialError
from lensaudit.files import make_folder, write_csv, write_json
from lensaudit.meta.aggregate import EPOCHS, aggregated
from lensaudit.meta.catalogue import FLUENCY, UTILITY_PARTS, JudgedMetric, judged
from lensaudit.meta.documents import (
    faithfulness_document,
    null,
    read_thresholds,
    robustness_document,
)
from lensaudit.meta.faithfulness import Faithfulness, check_pools, faithfulness
from lensaudit.meta.reading import PUBLISHED, THRESHOLDS, attack_aucs, read_values, with_s_mia
from lensaudit.meta.robustness import Stability, stability, usable
from lensaudit.meta.scoring import (
    Attacking,
    Scoring,
    identity_of,
    measured,
    named,
    plan_lines,
    suite_names,
)
from lensaudit.meta.settings import (
    Attack,
    FaithfulnessSettings,
    Filter,
    Form,
    Measuring,
    RobustnessSettings,
)
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
from lensaudit.results.records import MANIFEST, MANIFESTS, claim, manifest
from lensaudit.settings import AnswerGroups, path_of, shared

ROLES: Mapping[str, Role] = {"knows": "pool_knows", "forgot": "pool_forgot"}


@dataclass(frozen=True)
class Settings:
    """What both judgements need."""

    metrics: tuple[JudgedMetric, ...]
    out: Path
    evaluation: EvaluateSettings | None = None
    """How models are measured; None: values come from results alone."""
    full: str = "full"
    retain: str = "retain"
    fluency: bool = True
    """False: utility is the model utility alone."""
    registry: Path | None = None
    notice: Notice = lambda line: None

    @property
    def names(self) -> Registry:
        """The names that models may have."""
        return load_registry(self.registry)


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


def judge_faithfulness(
    knows: Sequence[str],
    forgot: Sequence[str],
    settings: Settings,
    *,
    results: Sequence[Path] = (),
) -> MetaJudgement:
    """Faithfulness of every metric; writes faithfulness.json, .csv and a manifest.

    Raises:
        InputError: the pools are empty or overlap, or results cannot be read.
    """
    started = time.monotonic()
    check_pools(knows, forgot, Values(weights=_local_weights([*knows, *forgot], settings)))
    values = _collected([*knows, *forgot], settings, results=results)
    check_pools(knows, forgot, values)
    found = [faithfulness(one, knows, forgot, values) for one in settings.metrics]
    document = faithfulness_document(found, knows, forgot, values)
    _claim(settings, "faithfulness")
    write_csv(settings.out / "faithfulness.csv", *_faithfulness_csv(found))
    options = {"knows": list(knows), "forgot": list(forgot)}
    path = write_json(settings.out / "faithfulness.json", document)
    _manifest("faithfulness", settings, options, results, values, started)
    return MetaJudgement(path, tuple(found), _to_do(found))


def judge_robustness(
    models: Sequence[str],
    attack: Attack,
    settings: Settings,
    *,
    thresholds: Mapping[str, float],
    before: Sequence[Path] = (),
    after: Sequence[Path] = (),
    attacking: Attacking | None = None,
    form: Form = "symmetric",
    by: Filter = "both",
) -> MetaJudgement:
    """Robustness of every metric to one attack; writes robustness-<attack>.json, .csv, a manifest.

    Only models that some metric can use are attacked.

    Args:
        models: the candidates, unlearned models.
        attack: `quantize` or `relearn`.
        settings: metrics, folder, how to measure.
        thresholds: raw values that tell the pools apart; of `faithfulness.json`.
        before: results before the attack.
        after: results after it, under the same model names.
        attacking: makes the attacked models where they are not in `after`.
        form: of Q and R.
        by: which filters pick a metric's models.

    Raises:
        InputError: no models, or results cannot be read.
    """
    started = time.monotonic()
    if not models:
        raise InputError("no model to judge robustness on; name some with --source")
    anchors = [settings.full, settings.retain]
    extra = (*UTILITY_PARTS, *((FLUENCY,) if settings.fluency else ()))
    values = _collected(
        [*models, *anchors],
        settings,
        results=before,
        extra=extra if by != "none" else (),
        side="before",
    )
    rows = aggregated(values, full=settings.full, fluency=settings.fluency)
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
        for one in settings.metrics
    ]
    wanted = list(dict.fromkeys(model for one in chosen for model in one.models))
    wanted += [settings.retain] if attack == "relearn" else []
    attacked = _attacked(wanted, attack, settings, after, attacking, values)
    found = [
        stability(one, attack, models_of, values, attacked, retain=settings.retain, form=form)
        for one, models_of in zip(settings.metrics, chosen, strict=True)
    ]
    judgement = _write_robustness(
        found, models, settings, thresholds, {"filter": by, "retain": settings.retain}, started
    )
    waiting = {settings.full: values.to_do.get(settings.full)} if by != "none" else {}
    to_do = {name: why for name, why in waiting.items() if why is not None}
    return replace(judgement, to_do=to_do | dict(judgement.to_do))


def _local_weights(names: Sequence[str], settings: Settings) -> dict[str, str]:
    """Content hashes of the models on this disk, where models are measured at all."""
    if settings.evaluation is None:
        return {}
    found = {name: identity_of(name, settings.names).get("weights") for name in names}
    return {name: weights for name, weights in found.items() if weights is not None}


def _write_robustness(
    found: Sequence[Stability],
    models: Sequence[str],
    settings: Settings,
    thresholds: Mapping[str, float],
    conditions: dict[str, Any],
    started: float,
) -> MetaJudgement:
    document = robustness_document(
        found, models=models, thresholds=thresholds, conditions=conditions
    )
    attack = found[0].attack
    _claim(settings, f"robustness-{attack}")
    write_csv(settings.out / f"robustness-{attack}.csv", *_robustness_csv(document))
    options = {"attack": attack, "form": found[0].form, "models": list(models), **conditions}
    path = write_json(settings.out / f"robustness-{attack}.json", document)
    _manifest(f"robustness-{attack}", settings, options, (), None, started)
    return MetaJudgement(path, tuple(found), _to_do(found))


def _to_do(found: Sequence[Faithfulness | Stability]) -> dict[str, str]:
    """Models that some metric waits for."""
    return {model: why for one in found for model, why in one.to_do.items()}


def _collected(
    names: Sequence[str],
    settings: Settings,
    *,
    results: Sequence[Path],
    extra: Iterable[str] = (),
    side: str | None = None,
) -> Values:
    """Values of the named models: those in results, else measured now; s_MIA derived."""
    known = read_values(results, attack=side) if results else Values()
    keys = [one.usable_as or one.key for one in settings.metrics] + [*extra]
    if settings.evaluation is not None:
        names = list(dict.fromkeys([*names, *_reference(settings)]))
        lacking = [n for n in names if any(k not in known.by_model.get(n, {}) for k in keys)]
        scoring = Scoring(
            settings.evaluation,
            suite_names(settings.metrics, extra),
            settings.out / "before",
            settings.notice,
        )
        now = measured([named(name, settings.names) for name in lacking], scoring)
        known = merged([_without(known, lacking), now])
    return with_s_mia(known, attack_aucs(known, settings.retain))


def _attacked(
    names: list[str],
    attack: Attack,
    settings: Settings,
    results: Sequence[Path],
    attacking: Attacking | None,
    before: Values,
) -> Values:
    known = read_values(results, attack=attack) if results else Values()
    if settings.evaluation is not None and attacking is not None:
        folder = settings.out / f"after-{attack}"
        metrics = suite_names(settings.metrics)
        scoring = Scoring(settings.evaluation, metrics, folder, settings.notice)
        keys = [one.usable_as or one.key for one in settings.metrics]
        lacking = [n for n in names if any(k not in known.by_model.get(n, {}) for k in keys)]
        if lacking:
            now = measured(attacking.subjects(lacking), scoring)
            known = merged([_without(known, lacking), now])
    return with_s_mia(known, attack_aucs(before, settings.retain))


def _reference(settings: Settings) -> list[str]:
    """The retain model, where a metric compares with its own."""
    return [settings.retain] if any(one.usable_as for one in settings.metrics) else []


def _without(values: Values, models: Sequence[str]) -> Values:
    left = {m: row for m, row in values.by_model.items() if m not in models}
    reasons = {m: row for m, row in values.reasons.items() if m not in models}
    return replace(values, by_model=left, reasons=reasons)


def _claim(settings: Settings, name: str) -> None:
    """Take the folder for the files of `name`."""
    files = (f"{name}.json", f"{name}.csv")
    claim(settings.out, f"meta {name}", files, f"{MANIFESTS}/{name}/{MANIFEST}")


def _manifest(
    name: str,
    settings: Settings,
    options: Mapping[str, Any],
    results: Sequence[Path],
    values: Values | None,
    started: float,
) -> None:
    device = settings.evaluation.device if settings.evaluation else "none"
    record = manifest(
        f"meta {name}",
        options={
            **options,
            "metrics": [one.key for one in settings.metrics],
            "full": settings.full,
            "retain": settings.retain,
            "fluency": settings.fluency,
        },
        inputs={
            "results": [str(path) for path in results],
            "weights": dict(values.weights) if values else {},
        },
        device=device,
        started=started,
    )
    make_folder(settings.out / MANIFESTS / name)
    files = (f"{name}.json", f"{name}.csv")
    record.write(settings.out, files, f"{MANIFESTS}/{name}/{MANIFEST}")


def _faithfulness_csv(found: Sequence[Faithfulness]) -> tuple[list[str], list[list[Any]]]:
    header = [
        "metric",
        "label",
        "category",
        "high_means",
        "auc",
        "low",
        "high",
        "n_knows",
        "n_forgot",
        "knows_mean",
        "forgot_mean",
        "threshold",
        "accuracy",
        "excluded",
        "to_do",
        "reason",
    ]
    rows = [
        [
            one.metric.key,
            one.metric.label,
            one.metric.category,
            one.metric.high_means,
            one.auc,
            one.interval.low,
            one.interval.high,
            one.n_knows,
            one.n_forgot,
            one.knows_mean,
            one.forgot_mean,
            one.raw_threshold,
            one.threshold.accuracy if one.threshold else None,
            " ".join(one.excluded),
            " ".join(one.to_do),
            one.reason,
        ]
        for one in found
    ]
    return header, [["" if null(cell) is None else cell for cell in row] for row in rows]


def _robustness_csv(document: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    header = [
        "metric",
        "label",
        "category",
        "value",
        "n",
        "n_utility",
        "n_candidates",
        "common_value",
        "n_common",
        "threshold",
        "retain_shift",
        "reason",
    ]
    rows = [
        ["" if row[name] is None else row[name] for name in header]
        for row in cast(list[dict[str, Any]], document["metrics"])
    ]
    return header, rows


RESULTS = "results"
"""As --source: every model of the results but the anchors."""


@dataclass(frozen=True)
class PreparedJudgement:
    """Models that may be measured: every name is known, nothing is loaded."""

    names: tuple[str, ...]
    how: Settings

    def plan(self) -> list[str]:
        """What would be measured; nothing is loaded or written."""
        if self.how.evaluation is None:
            return [f"{len(self.names)} models, values from results; nothing is measured"]
        metrics = suite_names(self.how.metrics)
        return plan_lines(
            self.names, Scoring(self.how.evaluation, metrics, self.how.out / "before")
        )


def prepare_faithfulness(settings: FaithfulnessSettings, notice: Notice) -> PreparedJudgement:
    """Both pools, the one that knows first."""
    registry = load_registry(settings.measuring.registry)
    names = [*pool(settings.knows, "knows", registry), *pool(settings.forgot, "forgot", registry)]
    wanted = settings.measuring.run or not settings.results
    return _prepared(names, settings, notice, measuring=wanted)


def run_faithfulness(settings: FaithfulnessSettings, prepared: PreparedJudgement) -> MetaJudgement:
    """Faithfulness of every metric, with its files."""
    n = len(pool(settings.knows, "knows", load_registry(settings.measuring.registry)))
    knows, forgot = prepared.names[:n], prepared.names[n:]
    return judge_faithfulness(knows, forgot, prepared.how, results=settings.results)


def prepare_robustness(settings: RobustnessSettings, notice: Notice) -> PreparedJudgement:
    """The models that are attacked.

    Raises:
        InputError: names, results or thresholds are wrong or missing.
    """
    wanted = settings.measuring.run or not (settings.before and settings.after)
    _thresholds(settings)
    return _prepared(_candidates(settings), settings, notice, measuring=wanted)


def attacking_of(settings: RobustnessSettings, prepared: PreparedJudgement) -> Attacking:
    """The attack that the settings describe."""
    how, names = prepared.how, prepared.names
    demo = (settings.measuring.data or _default_data(names, settings.measuring)) == DEMO_DATA
    forget = settings.measuring.forget
    return Attacking(
        settings.attack,
        how.names,
        how.out / "attacked" / settings.attack,
        data=settings.relearn_data or str(forget or (DEMO_DATA if demo else "forget10")),
        device=settings.measuring.device,
        relearning=_relearning(settings.relearn_lr, demo=demo),
        keep=settings.keep,
        notice=how.notice,
    )


def run_robustness(settings: RobustnessSettings, prepared: PreparedJudgement) -> MetaJudgement:
    """Stability of every metric under one attack, with its files."""
    how, names = prepared.how, prepared.names
    attacking = attacking_of(settings, prepared)
    return judge_robustness(
        names,
        settings.attack,
        how,
        thresholds=_thresholds(settings),
        before=settings.before,
        after=settings.after,
        attacking=attacking if how.evaluation is not None else None,
        form=settings.form,
        by=settings.by,
    )


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
) -> PreparedJudgement:
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
    no_fluency = isinstance(settings, RobustnessSettings) and settings.no_fluency
    how = Settings(
        tuple(judged(settings.metrics)),
        settings.out,
        evaluation,
        full,
        retain,
        fluency=not no_fluency,
        registry=path_of(given.registry),
        notice=notice,
    )
    return PreparedJudgement(tuple(names), how)


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


def _relearning(lr: float | None, *, demo: bool) -> Relearning:
    default = relearning_for(demo=demo)
    return default if lr is None else replace(default, lr=lr)
