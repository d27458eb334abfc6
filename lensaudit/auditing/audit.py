"""Everything about some models: how deep the knowledge is erased, and what they still say."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lensaudit.auditing import evaluate as evaluating
from lensaudit.auditing import patch as patching
from lensaudit.auditing.evaluate import OpenedEvaluation, grew, open_evaluation, placed_in
from lensaudit.auditing.measuring import Steps, measure, who_has_what
from lensaudit.auditing.question import (
    LOG,
    anchor_of,
    anchored,
    asked_of_patch,
    audit_folder,
    controls_of,
    evaluations,
)
from lensaudit.auditing.result import Audited, joined
from lensaudit.auditing.settings import AuditSettings
from lensaudit.auditing.step import Opened, Step, wanted
from lensaudit.data.neutral import Neutral
from lensaudit.errors import Failure, failure_in
from lensaudit.evaluation.passes import ModelPasses
from lensaudit.files import make_folder
from lensaudit.models.bridge import opened_once
from lensaudit.patching.prepare import prepare
from lensaudit.patching.scoring import check_fits
from lensaudit.patching.session import Session
from lensaudit.patching.summary import beside_score
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.integrity import answered_for
from lensaudit.results.manifest import (
    AUDIT_MANIFEST,
    EVAL,
    KNOW,
    MANIFEST,
    NOT_ASKED,
    PATCH,
    manifest,
)
from lensaudit.results.owner import (
    another,
    check_beside,
    check_free,
    claim,
    differences,
    folders_for,
    other_owner,
    place_of,
)
from lensaudit.settings import plain
from lensaudit.text import digest
from lensaudit.turns import in_turn

COMMAND = "audit"
BUSY = "another process audits into this folder; waiting for it"


@dataclass(frozen=True)
class OpenedAudit:
    """An audit with all that it reads opened and checked; nothing is loaded or written."""

    names: tuple[str, ...]
    settings: AuditSettings
    """With the retain models that follow from the names."""
    folder: Path
    """Of all results."""
    depth: Session
    neutral: Neutral | None
    """Rows that controls of the depth are measured on."""
    said: Mapping[str, OpenedEvaluation]
    """By model, the retain model's first: the others are compared with it."""
    associations: Mapping[str, Opened | str]
    """Source -> the questions on who has what, or why none are asked."""

    @property
    def not_asked(self) -> dict[str, str]:
        """The sources that are not asked who has what, and why."""
        return {name: one for name, one in self.associations.items() if isinstance(one, str)}


def open_audit(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    who: Step | None = None,
    notice: Notice = unheard,
) -> OpenedAudit:
    """Open all that an audit reads; loads and writes nothing.

    Args:
        sources: as of `audit_into`, and so are the others.
        settings: what, and how.
        folder: of all results.
        who: asks who has what.
        notice: told remarks.

    Raises:
        InputError: anything that is wrong with the names, the data or the settings.
    """
    names = tuple(dict.fromkeys(sources))
    settings = anchored(names, settings)
    out = audit_folder(names, folder)
    if folder is not None:
        check_free(out, COMMAND)
    patch = asked_of_patch(settings, settings.retain_set)
    depth = prepare(names, patch, notice=notice)
    steps = evaluations(names, settings, out)
    passes = {model: open_evaluation(model, asked) for model, asked, _ in steps}
    if folder is None:
        out = _own_folder(depth, passes, settings, out, notice)
    for name in (PATCH, KNOW):
        check_beside(out / name, name, len(names))
    neutral, _ = beside_score(depth)
    check_fits(depth)
    said = {
        model: placed_in(model, asked, place, passes[model])
        for model, asked, place in evaluations(names, settings, out)
    }
    controls, step = controls_of(names, settings), wanted(who, settings)
    known = {name: who_has_what(step, name, patch, controls) for name in names} if step else {}
    return OpenedAudit(names, settings, out, depth, neutral, said, known)


@opened_once()
def audit_into(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    who: Step | None = None,
    notice: Notice = unheard,
    progress: Tell = unheard,
    opened: Callable[[OpenedAudit], None] = unheard,
    sealed: Callable[[Path], None] = unheard,
    theirs: Callable[[], Audited | None] = lambda: None,
) -> Audited:
    """Do what is missing of an audit.

    An evaluation that fails is a value among the results; the rest is done. Where another process
    audits into the same folder, this one waits for it, and does what that has left. The manifest of
    an earlier audit stays until there is another, or this one has failed in a step.

    Args:
        sources: names, Hub ids or folders; the same one twice counts once.
        settings: what, and how.
        folder: of all results; None: experiments/out/audit-<source>.
        who: asks who has what.
        notice: told remarks.
        progress: told what is done.
        opened: told what was opened, before any work.
        sealed: told the manifest of an audit in which no step failed.
        theirs: asked, where another process was waited for, what it found if it asked the same.

    Raises:
        InputError: before any work.
        VerificationError | WorkError: patching failed.
    """
    started = time.monotonic()
    audit = open_audit(sources, settings, folder, who=who, notice=notice)
    opened(audit)
    with in_turn(make_folder(audit.folder), lambda: notice(f"{audit.folder}: {BUSY}")) as waited:
        if waited and (done := theirs()) is not None:
            return done
        claim(audit.folder, COMMAND, (), AUDIT_MANIFEST)
        found = _audited(audit, started, notice, progress)
        if (audit.folder / AUDIT_MANIFEST).exists():
            sealed(audit.folder / AUDIT_MANIFEST)
    return found


def _audited(audit: OpenedAudit, started: float, notice: Notice, progress: Tell) -> Audited:
    """What is missing, done, and all of it joined."""
    names, settings = audit.names, audit.settings
    failures: list[Failure] = []
    steps = Steps(
        know=audit.associations,
        patch=asked_of_patch(settings, settings.retain_set),
        evaluations=[*evaluations(names, settings, audit.folder)],
    )
    found = measure(
        names,
        steps,
        audit.folder,
        failed=lambda model, step, error: failures.append(failure_in(model, step, error)),
        notice=notice,
        progress=progress,
    )
    said = {one: place for one, _, place in steps.evaluations if (place / LOG).exists()}
    failures += [
        Failure(one.source, "patch", "work", one.reason or "")
        for one in found.depths
        if one.found_nothing
    ]
    if not failures and not any(one.failures for one in found.said.values()):
        # the manifest of the whole: each step's own, and every file that these tell of
        made = [
            one
            for part in (PATCH, EVAL, KNOW)
            for one in (audit.folder / part).rglob(f"*{MANIFEST}")
        ]
        files = {path for one in made for path in (one, *answered_for(one)) if path.exists()}
        options = {"sources": list(names), **plain(settings, without=("fresh",))}
        inputs = {NOT_ASKED: audit.not_asked} if audit.not_asked else {}
        manifest(
            COMMAND,
            kind="audit",
            options=options,
            inputs=inputs,
            device=settings.device,
            started=started,
        ).write(
            audit.folder,
            [one.relative_to(audit.folder).as_posix() for one in files],
            AUDIT_MANIFEST,
        )
    else:
        (audit.folder / AUDIT_MANIFEST).unlink(missing_ok=True)
    anchor = anchor_of(names, settings)
    beside = [one for one in audit.said if one == anchor or one not in names]
    return joined(
        audit.folder,
        found.depths,
        said,
        {name: one.folder for name, one in found.known.items()},
        failures,
        beside,
    )


def _own_folder(
    depth: Session,
    passes: Mapping[str, ModelPasses],
    settings: AuditSettings,
    base: Path,
    notice: Notice,
) -> Path:
    """The usual folder, or one of its own beside it where that holds another run's results."""
    names = tuple(depth.sources)
    patched = {
        place: patching.run_of(depth, name)
        for name, place in folders_for(names, base / PATCH).items()
    }
    said = {
        place: evaluating.run_of(model, asked, place, passes[model])
        for model, asked, place in evaluations(names, settings, base)
    }
    found = [
        *(differences(place, run, patching.run_in) for place, run in patched.items()),
        *(differences(place, run, evaluating.run_in, grew) for place, run in said.items()),
    ]
    why = other_owner(base, COMMAND) or next((line for one in found for line in one.values()), None)
    return place_of(
        base,
        why and another(why, "the results of another run"),
        digest([dict(run) for run in (*patched.values(), *said.values())]),
        named=False,
        tell=notice,
    )
