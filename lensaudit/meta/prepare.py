"""From settings to judgements of metrics: the whole of `meta faithfulness` and `robustness`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from lensaudit.attacks.relearn import Relearning, relearning_for
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import InputError, PartialError
from lensaudit.meta.aggregate import EPOCHS
from lensaudit.meta.attacked import Attacking
from lensaudit.meta.catalogue import judged
from lensaudit.meta.documents import (
    read_thresholds,
)
from lensaudit.meta.published import PUBLISHED, THRESHOLDS
from lensaudit.meta.reading import read_values
from lensaudit.meta.runs import Judgement, Settings, judge_faithfulness, judge_robustness, pool
from lensaudit.meta.scoring import Scoring, plan_lines, suite_names
from lensaudit.meta.settings import (
    FaithfulnessSettings,
    Measuring,
    RobustnessSettings,
)
from lensaudit.meta.values import short_name
from lensaudit.models.registry import DEMO, default_anchor, is_demo, load_registry, resolve
from lensaudit.progress import Notice
from lensaudit.settings import path_of

RESULTS = "results"
"""As --source: every model of the results but the anchors."""


@dataclass(frozen=True)
class Prepared:
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


def prepare_faithfulness(settings: FaithfulnessSettings, notice: Notice) -> Prepared:
    """Both pools, the one that knows first."""
    registry = load_registry(settings.measuring.registry)
    names = [*pool(settings.knows, "knows", registry), *pool(settings.forgot, "forgot", registry)]
    wanted = settings.measuring.run or not settings.results
    return _prepared(names, settings, notice, measuring=wanted)


def run_faithfulness(settings: FaithfulnessSettings, prepared: Prepared) -> Judgement:
    """Faithfulness of every metric, with its files."""
    n = len(pool(settings.knows, "knows", load_registry(settings.measuring.registry)))
    knows, forgot = prepared.names[:n], prepared.names[n:]
    return judge_faithfulness(knows, forgot, prepared.how, results=settings.results)


def prepare_robustness(settings: RobustnessSettings, notice: Notice) -> Prepared:
    """The models that are attacked.

    Raises:
        InputError: names, results or thresholds are wrong or missing.
    """
    wanted = settings.measuring.run or not (settings.before and settings.after)
    _thresholds(settings)
    return _prepared(_candidates(settings), settings, notice, measuring=wanted)


def attacking_of(settings: RobustnessSettings, prepared: Prepared) -> Attacking:
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


def run_robustness(settings: RobustnessSettings, prepared: Prepared) -> Judgement:
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


def unfinished(found: Judgement) -> PartialError | None:
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
) -> Prepared:
    """The settings of a run; every name is checked before anything is loaded."""
    given = settings.measuring
    full = given.full or default_anchor("full", names)
    retain = given.retain or default_anchor("retain", names)
    evaluation = None
    if measuring:
        registry = load_registry(given.registry)
        for name in (*names, full, retain):
            resolve(name, registry)
        own = [one.name for one in fields(given) if one.name not in ("full", "retain", "run")]
        chosen = {name: getattr(given, name) for name in own}
        chosen["data"] = given.data or _default_data(names, given)
        evaluation = EvaluateSettings(full=full, retain=retain, **chosen)
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
    return Prepared(tuple(names), how)


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
