"""How much of a model's knowledge does relearning bring back, beyond what it teaches `retain`?"""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lensaudit.attacks.relearn import RelearnJob, Report, check, make, prepare, taught_nothing
from lensaudit.attacks.settings import RelearnSettings
from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.patch import depth_of
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.data.tofu import DEMO
from lensaudit.errors import InputError
from lensaudit.files import digest, make_folder, slug
from lensaudit.models.device import resolve_device
from lensaudit.models.registry import default_anchor, default_data
from lensaudit.patching.prepare import prepare as open_session
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.keyed import begin, check_own, finished, keyed_document, write_keyed
from lensaudit.results.records import claim, manifest
from lensaudit.settings import (
    FORGET_SPLIT,
    Anchors,
    Caches,
    Precision,
    Rows,
    results_folder,
    shared,
)
from lensaudit.unlearn.rows import TOFU_PAIRS

AUDIT = "audit.json"


OUTPUT_SCORES = {
    "prob": "forget_Q_A_Prob",
    "em": "exact_memorization",
    "es": "extraction_strength",
}
"""What a table calls the output-level metrics, and their names in the suite."""


Scores = Mapping[str, float]
"""Score -> value; NaN where nothing could be scored. `uds`: high means forgotten; others: knows."""


@dataclass(frozen=True, kw_only=True)
class Auditing(Caches, Precision, Rows, Anchors):
    """The models and data that before and after are measured with; all of them are named."""

    notice: Notice = field(default=unheard, compare=False)
    progress: Tell = field(default=unheard, compare=False)

    @property
    def patching(self) -> PatchSettings:
        """The depth, of several models at once."""
        return PatchSettings(**shared(self, Anchors, Rows, Precision, Caches))

    @property
    def evaluation(self) -> EvaluateSettings:
        """The output-level part, of one model."""
        data = str(self.data)
        named = data in (DEMO, *TOFU_PAIRS)
        given = shared(
            self,
            *(Rows, Precision, Caches),
            data=DEMO_DATA if data == DEMO else None,
            forget_split=data if data in TOFU_PAIRS else FORGET_SPLIT,
            forget=None if named else Path(data),
            registry=self.registry,
        )
        return EvaluateSettings(metrics=tuple(OUTPUT_SCORES.values()), **given)

    def audit(self, sources: Sequence[str]) -> Session:
        """A patching audit of the sources, opened and checked."""
        return open_session(sources, self.patching, notice=self.notice, progress=self.progress)


@dataclass(frozen=True)
class Shift:
    """The scores of one model before and after an attack."""

    model: str
    before: Scores
    after: Scores
    remark: str | None = None
    """That the attack did next to nothing; None where it did something."""

    def as_json(self) -> dict[str, Any]:
        """As strict JSON: null where nothing could be scored."""
        scores = {"before": self.before, "after": self.after}
        return {"model": self.model, "remark": self.remark} | {
            when: {name: value if math.isfinite(value) else None for name, value in found.items()}
            for when, found in scores.items()
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Shift":
        """The record in a document of `as_json`."""
        before, after = (
            {name: math.nan if value is None else value for name, value in content[when].items()}
            for when in ("before", "after")
        )
        return cls(content["model"], before, after, content.get("remark"))


@dataclass(frozen=True)
class Recovered:
    """The scores before and after, and where they are."""

    shifts: tuple[Shift, ...]
    """The model, then `retain`, which had nothing to recover."""
    folder: Path


def attack(settings: RelearnSettings, *, notice: Notice, progress: Tell) -> Recovered:
    """Relearn the model and `retain` as the settings say, and score both before and after."""
    if settings.lora is not None:
        raise InputError(
            "--lora with --audit: an adapter is audited by its name; make it with --out DIR, then "
            "`lensaudit audit --source BASE+DIR`"
        )
    family = [settings.model]
    retain = settings.retain or default_anchor("retain", family)
    given = shared(
        settings,
        *(Anchors, Precision, Caches),
        full=settings.full or default_anchor("full", family),
        retain=retain,
        device=resolve_device(settings.device),
        data=settings.data or default_data(settings.model),
    )
    auditing = Auditing(notice=notice, progress=progress, **given)
    out = settings.out
    work = out / "audit" if out else results_folder() / f"{slug(settings.model)}-relearn"
    names = dict.fromkeys((settings.model, retain))
    found = recovery(
        {name: prepare(settings, name) for name in names},
        auditing,
        work,
        keep=out,
        report=lambda at: progress(Progress("step", at.step, at.n_steps)),
    )
    return Recovered(found, work)


def recovery(
    jobs: Mapping[str, RelearnJob],
    auditing: Auditing,
    work: Path,
    *,
    keep: Path | None,
    report: Report,
) -> tuple[Shift, ...]:
    """Relearn every model, score all before and after, and write `audit.json` into `work`.

    An audit of the same settings that is there already is read. Data and models are checked before
    the first step of training.

    Args:
        jobs: by the name of the model; the first is the one that is audited.
        auditing: what before and after are measured with.
        work: results of the suite; also the attacked checkpoints, until they are scored.
        keep: where the first attacked checkpoint stays; None keeps none.
        report: after each step.
    """
    started = time.monotonic()
    audit = auditing.audit(list(jobs))
    for job in jobs.values():
        check(job)
    key = digest({"jobs": [job.key for job in jobs.values()], "audit": _identity(audit, auditing)})
    known = _known(work / AUDIT, key)
    if known is not None:
        return known
    first = next(iter(jobs))
    if keep is not None and not finished(keep, jobs[first].key):
        # first of all: the audit's folder may lie in it, and it would be somebody else's then
        check_own(keep, jobs[first].key)
        begin(keep, jobs[first].key)
    claim(work, "relearn --audit", [AUDIT])
    folders = {
        name: keep if keep is not None and name == first else work / "attacked" / slug(name)
        for name in jobs
    }
    for name, job in jobs.items():
        make(job, folders[name], report=report)
    remarks = {name: taught_nothing(folder) for name, folder in folders.items()}
    found = tuple(
        replace(one, remark=remarks[one.model])
        for one in shifts(folders, auditing, make_folder(work))
    )
    record = {"key": key, "shifts": [one.as_json() for one in found]}
    write_keyed(work / AUDIT, record)
    manifest(
        "relearn --audit",
        options={name: asdict(job.settings) for name, job in jobs.items()},
        inputs={"key": key, **_identity(audit, auditing)},
        device=auditing.device,
        started=started,
    ).write(work, [AUDIT])
    shutil.rmtree(work / "attacked", ignore_errors=True)
    return found


def _identity(audit: Any, auditing: Auditing) -> dict[str, Any]:
    return {
        "full": audit.full.weights,
        "retain": audit.retain.weights,
        "examples": audit.examples_hash,
        "dtype": audit.options.dtype,
        "limit": auditing.limit,
    }


def _known(path: Path, key: str) -> tuple[Shift, ...] | None:
    """The shifts in a file of this very audit."""
    content = keyed_document(path, key)
    return None if content is None else tuple(Shift.from_json(one) for one in content["shifts"])


def shifts(pairs: Mapping[str, Path], auditing: Auditing, work: Path) -> tuple[Shift, ...]:
    """Score every model and what the attack made of it; results of the suite go to `work`.

    Args:
        pairs: name of a model -> folder of the attacked one.
        auditing: what both are measured with.
        work: a folder.
    """
    sources = [name for pair in pairs.items() for name in map(str, pair)]
    outcomes, _ = depth_of(auditing.audit(sources))
    depth = {one.source: math.nan if one.uds is None else one.uds for one in outcomes}

    def scores(source: str, out: Path) -> Scores:
        return {"uds": depth[source], **_said(source, auditing.evaluation, out)}

    return tuple(
        Shift(
            name,
            before=scores(name, work / "before" / slug(name)),
            after=scores(str(folder), work / "after" / slug(name)),
        )
        for name, folder in pairs.items()
    )


def _said(model: str, settings: EvaluateSettings, out: Path) -> dict[str, float]:
    entries = evaluate_into(model, settings, out).checked().entries
    return {short: entries[name].value for short, name in OUTPUT_SCORES.items()}
