"""From names and results to judgements: read what is there, measure the rest, write the files."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_csv, write_json
from lensaudit.meta.aggregate import aggregated
from lensaudit.meta.attacked import Attacking
from lensaudit.meta.catalogue import FLUENCY, UTILITY_PARTS, Judged
from lensaudit.meta.documents import faithfulness_document, robustness_document
from lensaudit.meta.faithfulness import Faithfulness, check_pools, faithfulness
from lensaudit.meta.published import PUBLISHED
from lensaudit.meta.reading import attack_aucs, read_values, with_s_mia
from lensaudit.meta.robustness import Attack, Filter, Form, Stability, stability, usable
from lensaudit.meta.scoring import Scoring, identity_of, measured, named, suite_names
from lensaudit.meta.table import null
from lensaudit.meta.values import Values, merged, short_name
from lensaudit.models.registry import Registry, Role, load_registry
from lensaudit.progress import Notice
from lensaudit.results.records import MANIFEST, MANIFESTS, claim, manifest

ROLES: Mapping[str, Role] = {"knows": "pool_knows", "forgot": "pool_forgot"}


@dataclass(frozen=True)
class Settings:
    """What both judgements need."""

    metrics: tuple[Judged, ...]
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
class Judgement:
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
) -> Judgement:
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
    return Judgement(path, tuple(found), _to_do(found))


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
) -> Judgement:
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
) -> Judgement:
    document = robustness_document(
        found, models=models, thresholds=thresholds, conditions=conditions
    )
    attack = found[0].attack
    _claim(settings, f"robustness-{attack}")
    write_csv(settings.out / f"robustness-{attack}.csv", *_robustness_csv(document))
    options = {"attack": attack, "form": found[0].form, "models": list(models), **conditions}
    path = write_json(settings.out / f"robustness-{attack}.json", document)
    _manifest(f"robustness-{attack}", settings, options, (), None, started)
    return Judgement(path, tuple(found), _to_do(found))


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
