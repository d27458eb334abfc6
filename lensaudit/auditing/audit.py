"""Everything about some models: how deep the knowledge is erased, and what they still say."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lensaudit.association.opening import Know, open_know
from lensaudit.association.run import KnowResult, answer_into, plan_of
from lensaudit.association.settings import KnowSettings, quick
from lensaudit.auditing import evaluate as evaluating
from lensaudit.auditing import patch as patching
from lensaudit.auditing.audit_result import (
    AUDIT_MANIFEST,
    EVAL,
    KNOW,
    LOG,
    PATCH,
    Audited,
    AuditResult,
    anchor_and_models,
    asked_of_audit,
    audit_folder,
    own_data,
)
from lensaudit.auditing.evaluate import (
    PASSES,
    EvaluatePlan,
    EvaluationResult,
    evaluate_into,
    grew,
    open_evaluation,
    plan_evaluation,
)
from lensaudit.auditing.patch import patch_into, plan_patch
from lensaudit.auditing.reuse import anchored
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.errors import Failure, InputError, LensAuditError, failure_in
from lensaudit.files import digest, make_folder
from lensaudit.models.bridge import opened_once
from lensaudit.patching.scoring import PatchPlan
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.keyed import Question
from lensaudit.results.records import MANIFEST, answered_for, differences, folders_for, manifest
from lensaudit.settings import (
    Caches,
    Names,
    PatchGroups,
    Precision,
    Rows,
    plain,
    several,
    shared,
)
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.keeps import KEPT


@dataclass(frozen=True)
class AuditPlan:
    """What an audit would do."""

    patch: PatchPlan
    folder: Path
    """Of all results."""
    evaluations: tuple[EvaluatePlan, ...]
    """The retain model's first: the others are compared with it."""
    associations: Mapping[str, Know | str]
    """Source -> who is asked what; or why nobody is."""

    def text(self) -> str:
        """A line per step: what is done, what is missing."""
        lines = [f"patch: {line}" for line in self.patch.text().splitlines()]
        lines += [f"know {name}: {_reckoned(one)}" for name, one in self.associations.items()]
        return "\n".join([*lines, *map(self._line, self.evaluations)])

    def _line(self, one: EvaluatePlan) -> str:
        kept = 0 if one.done else one.n_kept
        return (
            f"eval {one.model}: {'done' if one.done else 'to do'}; {one.n_texts} texts scored, "
            f"{one.n_answers} answers generated"
            + (f"; {kept} passes kept from before" if kept else "")
        )


def _reckoned(one: Know | str) -> str:
    return one if isinstance(one, str) else plan_of(one).text().replace("\n", "; ")


@dataclass(frozen=True)
class _Evaluation:
    """One step: a model, what is computed of it, and where."""

    model: str
    settings: EvaluateSettings
    folder: Path


@dataclass(frozen=True)
class _Steps:
    """What an audit consists of; nothing is opened."""

    names: tuple[str, ...]
    folder: Path
    patch: PatchSettings
    evaluations: tuple[_Evaluation, ...]
    anchor: str | None
    """The retain model, evaluated first; None: there is none, or nothing is evaluated."""
    associations: Mapping[str, KnowSettings]
    """By source."""

    @property
    def beside(self) -> tuple[str, ...]:
        """The evaluated models that the sources are compared with."""
        models = (one.model for one in self.evaluations)
        return tuple(one for one in models if one == self.anchor or one not in self.names)


def plan_audit(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
) -> AuditPlan:
    """What an audit would do; loads and writes nothing.

    Raises:
        InputError: anything that is wrong with the names, the data or the settings.
    """
    settings = anchored(sources, settings)
    return _planned(_own(_steps(sources, settings, folder), settings, folder, notice), notice)


@opened_once()
def audit_into(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    planned: Callable[[AuditPlan], None] = unheard,
) -> Audited:
    """Do what is missing of an audit.

    An evaluation that fails is a value among the results; the rest is done.

    Args:
        sources: names, Hub ids or folders; the same one twice counts once.
        settings: what, and how.
        folder: of all results; None: experiments/out/audit-<source>.
        notice: told remarks.
        progress: told what is done.
        planned: told the plan, before any work.

    Raises:
        InputError: before any work.
        VerificationError | WorkError: patching failed.
    """
    started = time.monotonic()
    settings = anchored(sources, settings)
    question = Question(lambda: asked_of_audit(sources, settings), notice)
    steps = _own(_steps(sources, settings, folder), settings, folder, notice)
    plan = _planned(steps, notice)
    planned(plan)
    for name, one in plan.associations.items():
        if isinstance(one, str):
            question.tell(f"{name}: {one}")
    question.opened()
    make_folder(steps.folder)
    known, failures = _who_has_what(plan, progress)
    depth = patch_into(
        steps.names, steps.patch, steps.folder / PATCH, notice=notice, progress=progress
    )
    found: dict[str, EvaluationResult] = {}
    for step in steps.evaluations:
        inside = step.settings.retain is not None
        made = steps.evaluations[0].folder / PASSES if inside and steps.anchor else None
        try:
            result = _evaluated(step, made, notice, progress)
            found[step.model] = result
            result.checked()
        except LensAuditError as error:
            failures.append(failure_in(step.model, "evaluate", error))
    failures += [
        Failure(one.source, "patch", "work", one.reason or "")
        for one in depth.results
        if one.found_nothing
    ]
    if not failures and not any(one.failures for one in found.values()):
        _seal(steps, settings, question, started)
    judged = verdicts([steps.folder])
    return Audited(
        steps.folder,
        tuple(
            AuditResult(
                one.source,
                steps.folder,
                one,
                partial(found.get, one.source),
                tuple(f for f in failures if f.model in (one.source, *steps.beside)),
                judged.of_model(one.folder, one.source) or one.verdict,
                judged.keeps(one.folder),
                known[one.source].summary if one.source in known else None,
            )
            for one in depth.results
        ),
        tuple(failures),
        (
            steps.folder / PATCH,
            *(s.folder for s in steps.evaluations if (s.folder / LOG).exists()),
            *(one.folder for one in known.values()),
        ),
        judged,
    )


def _seal(steps: _Steps, settings: AuditSettings, question: Question, started: float) -> None:
    """Write the manifest of the whole: each step's own, and every file that these tell of."""
    record = question.record()
    if record is None:
        return
    parts = [steps.folder / name for name in (PATCH, EVAL, KNOW)]
    made = [one for part in parts for one in part.rglob(f"*{MANIFEST}")]
    files = {path for one in made for path in (one, *answered_for(one))}
    whole = manifest(
        "audit",
        options={"sources": list(steps.names), **plain(settings, without=("fresh",))},
        inputs={},
        device=settings.device,
        started=started,
    )
    names = [path.relative_to(steps.folder).as_posix() for path in files if path.exists()]
    replace(whole, asked=record).write(steps.folder, names, AUDIT_MANIFEST)


def _steps(sources: Sequence[str], settings: AuditSettings, folder: Path | None) -> _Steps:
    names = tuple(dict.fromkeys(sources))
    anchor, models = anchor_and_models(names, settings)
    out = audit_folder(names, folder)
    patch = PatchSettings(**shared(settings, PatchGroups))
    folders = {name: out / EVAL / one.name for name, one in folders_for(models, None).items()}
    evaluations = tuple(
        _Evaluation(
            name,
            _evaluation(name, anchor, settings, folders.get(anchor or ""))
            if name in (*names, anchor)
            else _kept_rows(name, anchor, settings),
            folders[name],
        )
        for name in models
    )
    asked = (
        {}
        if settings.association == "none"
        else {name: _association(name, anchor, settings) for name in names}
    )
    return _Steps(names, out, patch, evaluations, anchor, asked)


def _association(source: str, anchor: str | None, settings: AuditSettings) -> KnowSettings:
    """Who has what, from what it says and its own head; the retain models are controls."""
    retains = (several(settings.retain) or (anchor,)) if anchor else ()
    shares = shared(settings, Names, Rows, Precision, Caches, retain_data=settings.validity_data)
    return quick(tuple(one for one in retains if one != source), **shares)


def _who_has_what(plan: AuditPlan, progress: Tell) -> tuple[dict[str, KnowResult], list[Failure]]:
    """First of all, as it costs least."""
    found: dict[str, KnowResult] = {}
    failures: list[Failure] = []
    places = folders_for(tuple(plan.associations), plan.folder / KNOW)
    for name, know in plan.associations.items():
        if isinstance(know, str):
            continue
        try:
            found[name] = answer_into(know, places[name], progress=progress)
        except LensAuditError as error:
            failures.append(failure_in(name, "know", error))
    return found, failures


def _own(steps: _Steps, settings: AuditSettings, folder: Path | None, notice: Notice) -> _Steps:
    """The steps in a folder that holds no other run's results, unless the folder was named."""
    if folder is not None or not steps.folder.exists():
        return steps
    depth = patching.prepared(steps.names, steps.patch, unheard)
    places = folders_for(tuple(depth.sources), steps.folder / PATCH)
    runs = {place: patching.run_of(depth, name) for name, place in places.items()}
    found = [differences(place, run, patching.run_in) for place, run in runs.items()]
    for one in steps.evaluations:
        opened = open_evaluation(one.model, one.settings, None)
        run = runs[one.folder] = evaluating.run_of(one.model, one.settings, one.folder, opened)
        found.append(differences(one.folder, run, evaluating.run_in, grew))
    why = next((line for one in found for line in one.values()), None)
    if why is None:
        return steps
    base = steps.folder
    own = base.with_name(f"{base.name}-{digest([dict(run) for run in runs.values()])[:8]}")
    notice(f"{base}: holds the results of another run ({why}); this one goes to {own}")
    return _steps(steps.names, settings, own)


def _evaluation(
    model: str, anchor: str | None, settings: AuditSettings, reference: Path | None
) -> EvaluateSettings:
    """What is computed of one model: the retain model comes first, the others read its log."""
    is_anchor = model == anchor
    data, forget = own_data(settings.data)
    retain = anchor if settings.inside and not is_anchor else None
    return EvaluateSettings(
        **shared(settings, PatchGroups, retain=retain, data=data),
        retain_log=None if settings.inside or is_anchor or not reference else reference / LOG,
        forget=forget,
        holdout=settings.holdout,
        retain_set=settings.retain_set,
    )


def _kept_rows(full: str, anchor: str | None, settings: AuditSettings) -> EvaluateSettings:
    """What `full` says of the rows to keep, and nothing else."""
    asked = _evaluation(full, anchor, settings, None)
    return replace(asked, metrics=tuple(KEPT), retain=None, retain_log=None)


def _planned(steps: _Steps, notice: Notice) -> AuditPlan:
    depth = plan_patch(steps.names, steps.patch, notice=notice)
    assert isinstance(depth, PatchPlan)  # an audit's score is UDS
    found = [plan_evaluation(one.model, one.settings, one.folder) for one in steps.evaluations]
    if found and steps.anchor and not found[0].done:
        # what is compared with the retain model follows from it
        found = [replace(one, done=False) for one in found]
    asked = {name: _opened(name, one) for name, one in steps.associations.items()}
    return AuditPlan(depth, steps.folder, tuple(found), asked)


def _opened(source: str, settings: KnowSettings) -> Know | str:
    try:
        return open_know(source, settings)
    except InputError as error:
        return f"who has what is not asked: {error}"


def _evaluated(
    step: _Evaluation, made: Path | None, notice: Notice, progress: Tell
) -> EvaluationResult:
    settings = step.settings
    if settings.retain_log is not None and not Path(settings.retain_log).exists():
        settings = replace(settings, retain_log=None)  # the retain model's evaluation failed
    return evaluate_into(
        step.model,
        settings,
        step.folder,
        notice=lambda text: notice(f"{step.model}: {text}"),
        progress=progress,
        made=made,
    )
