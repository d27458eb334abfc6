"""Everything about some models: how deep the knowledge is erased, and what they still say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.auditing import evaluate as evaluating
from lensaudit.auditing import patch as patching
from lensaudit.auditing.evaluate import (
    PASSES,
    EvaluatePlan,
    EvaluationResult,
    evaluate_into,
    grew,
    open_evaluation,
    plan_evaluation,
)
from lensaudit.auditing.patch import open_patch, patch_into, plan_patch
from lensaudit.auditing.patch_result import PatchResult, Shown
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings, PatchSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.data.tofu import DEMO, FORGET10
from lensaudit.errors import Failure, LensAuditError, failure_in
from lensaudit.files import digest, make_folder, slug
from lensaudit.models.registry import default_anchor
from lensaudit.patching.plan import PatchPlan
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.owners import differences, folders_for
from lensaudit.settings import PatchGroups, results_folder, several, shared
from lensaudit.verdict.collect import Verdicts, verdicts
from lensaudit.verdict.decide import Verdict

PATCH, EVAL = "patch", "eval"
"""Of an audit's folder: depth, and what each model says."""
LOG = "TOFU_EVAL.json"


@dataclass(frozen=True)
class AuditResult(Shown):
    """What an audit found of one model, and where it is."""

    source: str
    folder: Path
    """Of the whole audit."""
    patch: PatchResult
    evaluation: EvaluationResult | None
    """None where none was asked for, or it failed: see `failures`."""
    failures: tuple[Failure, ...]
    """Steps of this model, or of the retain model it is compared with, that failed."""
    verdict: Verdict
    """What may be said of the model after all that lies in the folder, and what decided it."""

    @property
    def _run(self) -> tuple[str, Path, Mapping[str, Any]]:
        said = {"verdict": self.verdict.document()}
        return self.source, self.patch.folder, {**self.summary, **said}

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, 0 intact to 1 erased; None where there is none: see `reason`."""
        return self.patch.uds

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `uds` by authors; None where there is none: see `patch.summary`."""
        return self.patch.ci95

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        return self.patch.reason

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json."""
        return self.patch.summary

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Output-level metrics by name; None where one has no value."""
        return self.evaluation.summary if self.evaluation else {}


@dataclass(frozen=True)
class Audited:
    """The results of one run."""

    folder: Path
    results: tuple[AuditResult, ...]
    retain: EvaluationResult | None
    """What the model that never saw the forget set says."""
    failures: tuple[Failure, ...]
    folders: tuple[Path, ...]
    """With results: for a page."""
    verdicts: Verdicts
    """What may be said after all that lies in the folder."""


@dataclass(frozen=True)
class AuditPlan:
    """What an audit would do."""

    patch: PatchPlan
    folder: Path
    """Of all results."""
    evaluations: tuple[EvaluatePlan, ...]
    """The retain model's first: the others are compared with it."""

    def text(self) -> str:
        """A line per step: what is done, what is missing."""
        lines = [f"patch: {line}" for line in self.patch.text().splitlines()]
        return "\n".join([*lines, *map(self._line, self.evaluations)])

    def _line(self, one: EvaluatePlan) -> str:
        kept = 0 if one.done else one.n_kept
        return (
            f"eval {one.model}: {'done' if one.done else 'to do'}; {one.n_texts} texts scored, "
            f"{one.n_answers} answers generated"
            + (f"; {kept} passes kept from before" if kept else "")
        )


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
    return _planned(_own(_steps(sources, settings, folder), settings, folder, notice), notice)


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
    steps = _own(_steps(sources, settings, folder), settings, folder, notice)
    planned(_planned(steps, notice))
    make_folder(steps.folder)
    depth = patch_into(
        steps.names, steps.patch, steps.folder / PATCH, notice=notice, progress=progress
    )
    found: dict[str, EvaluationResult] = {}
    failures: list[Failure] = []
    for step in steps.evaluations:
        inside = step.settings.retain is not None
        made = steps.evaluations[0].folder / PASSES if inside else None
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
    anchor = steps.evaluations[0].model if steps.evaluations else None
    judged = verdicts([steps.folder])
    return Audited(
        steps.folder,
        tuple(
            AuditResult(
                one.source,
                steps.folder,
                one,
                found.get(one.source),
                tuple(f for f in failures if f.model in (one.source, anchor)),
                judged.of_run(one.folder) or one.verdict,
            )
            for one in depth.results
        ),
        found.get(anchor) if anchor else None,
        tuple(failures),
        (
            steps.folder / PATCH,
            *(s.folder for s in steps.evaluations if (s.folder / LOG).exists()),
        ),
        judged,
    )


def folder_of(sources: Sequence[str], folder: Path | None = None) -> Path:
    """Where the results of an audit go."""
    first, *others = dict.fromkeys(sources)
    more = f"-and-{len(others)}-more" if others else ""
    return folder or results_folder() / f"audit-{slug(first)}{more}"


def _steps(sources: Sequence[str], settings: AuditSettings, folder: Path | None) -> _Steps:
    names = tuple(dict.fromkeys(sources))
    anchor, *_ = several(settings.retain) or (default_anchor("retain", names),)
    out = folder_of(names, folder)
    patch = PatchSettings(**shared(settings, PatchGroups))
    models = tuple(dict.fromkeys((anchor, *names))) if settings.suite == "tofu" else ()
    folders = {name: out / EVAL / one.name for name, one in folders_for(models, None).items()}
    evaluations = tuple(
        _Evaluation(name, _evaluation(name, anchor, settings, folders[anchor]), folders[name])
        for name in models
    )
    return _Steps(names, out, patch, evaluations)


def _own(steps: _Steps, settings: AuditSettings, folder: Path | None, notice: Notice) -> _Steps:
    """The steps in a folder that holds no other run's results, unless the folder was named."""
    if folder is not None or not steps.folder.exists():
        return steps
    depth = open_patch(steps.names, steps.patch)
    places = folders_for(tuple(depth.sources), steps.folder / PATCH)
    runs = {place: patching.run_of(depth, name, steps.patch) for name, place in places.items()}
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
    model: str, anchor: str, settings: AuditSettings, reference: Path
) -> EvaluateSettings:
    """What is computed of one model: the retain model comes first, the others read its log."""
    is_anchor = model == anchor
    data, forget = _own_data(settings.data)
    retain = anchor if settings.inside and not is_anchor else None
    return EvaluateSettings(
        **shared(settings, PatchGroups, retain=retain, data=data),
        retain_log=None if settings.inside or is_anchor else reference / LOG,
        forget=forget,
        holdout=settings.holdout,
        retain_set=settings.retain_set,
    )


def _own_data(data: str | None) -> tuple[str | None, Path | None]:
    """The suite's data and own forget rows: a known set, a folder of TOFU's files, or rows."""
    if data in (None, FORGET10):
        return None, None
    if data == DEMO:
        return DEMO_DATA, None
    path = Path(data or "").expanduser()
    return (str(path), None) if path.is_dir() else (None, path)


def _planned(steps: _Steps, notice: Notice) -> AuditPlan:
    depth = plan_patch(steps.names, steps.patch, notice=notice)
    assert isinstance(depth, PatchPlan)  # an audit's score is UDS
    found = [plan_evaluation(one.model, one.settings, one.folder) for one in steps.evaluations]
    if found and not found[0].done:
        # what is compared with the retain model follows from it
        found = [replace(one, done=False) for one in found]
    return AuditPlan(depth, steps.folder, tuple(found))


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
