"""What an audit found, read from its folder where it is finished; no model library is imported."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lensaudit.auditing.patch_result import PatchResult, Shown, read_patched
from lensaudit.auditing.reuse import anchored, asked
from lensaudit.auditing.settings import AuditSettings
from lensaudit.data.suites import DEMO_DATA, load_suite
from lensaudit.data.tofu import DEMO, FORGET10
from lensaudit.errors import Failure, InputError
from lensaudit.files import digest, slug
from lensaudit.models.hashing import looking
from lensaudit.models.registry import default_anchor, family_of
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, unheard
from lensaudit.results.keyed import answered
from lensaudit.results.reading import json_object
from lensaudit.results.records import MANIFEST, folders_for
from lensaudit.settings import PatchGroups, plain, results_folder, several, shared
from lensaudit.verdict.collect import Verdicts, verdicts
from lensaudit.verdict.decide import Verdict
from lensaudit.verdict.keeps import Keeps

if TYPE_CHECKING:
    from lensaudit.auditing.evaluate import EvaluationResult

PATCH, EVAL, KNOW = "patch", "eval", "know"
"""Of an audit's folder: depth, what each model says, and which values it binds to whom."""
LOG = "TOFU_EVAL.json"
AUDIT_MANIFEST = f"audit_{MANIFEST}"
"""Beside the page: what the whole run asked, and every file of its parts."""


@dataclass(frozen=True)
class AuditResult(Shown):
    """What an audit found of one model, and where it is."""

    source: str
    folder: Path
    """Of the whole audit."""
    patch: PatchResult
    evaluated: Callable[[], "EvaluationResult | None"]
    """Reads what it says: that takes a model library."""
    failures: tuple[Failure, ...]
    """Steps of this model, or of the retain model it is compared with, that failed."""
    verdict: Verdict
    """What may be said of the model after all that lies in the folder, and what decided it."""
    keeps: tuple[Keeps, ...] = ()
    """What it keeps beside `full`; none where no rows to keep were given."""
    association: Mapping[str, Any] | None = None
    """Who has what, as `know` writes summary.json; None where it was not asked."""

    @cached_property
    def evaluation(self) -> "EvaluationResult | None":
        """What it says; None where that was not asked, or failed: see `failures`."""
        return self.evaluated()

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
    failures: tuple[Failure, ...]
    folders: tuple[Path, ...]
    """With results: for a page."""
    verdicts: Verdicts
    """What may be said after all that lies in the folder."""
    again: bool = False
    """Read from the files of a finished run."""


def audit_folder(sources: Sequence[str], folder: Path | None = None) -> Path:
    """Where the results of an audit go."""
    first, *others = dict.fromkeys(sources)
    more = f"-and-{len(others)}-more" if others else ""
    return folder or results_folder() / f"audit-{slug(first)}{more}"


def own_data(data: str | None) -> tuple[str | None, Path | None]:
    """The suite's data and own forget rows: a known set, a folder of TOFU's files, or rows."""
    if data in (None, FORGET10):
        return None, None
    if data == DEMO:
        return DEMO_DATA, None
    path = Path(data or "").expanduser()
    return (str(path), None) if path.is_dir() else (None, path)


def anchor_and_models(
    names: Sequence[str], settings: AuditSettings
) -> tuple[str | None, tuple[str, ...]]:
    """The retain model, if there is one, and every model that is evaluated, that one first.

    Where own rows to keep are given, `full` is the last: what others keep stands beside it.
    """
    anchor = None
    if not settings.without_retain:
        anchor, *_ = several(settings.retain) or (default_anchor("retain", names),)
    if settings.suite != "tofu":
        return anchor, ()
    full = settings.full or default_anchor("full", names)
    wanted = (anchor, *names, full if settings.retain_set else None)
    return anchor, tuple(dict.fromkeys(filter(None, wanted)))


def asked_of_audit(sources: Sequence[str], settings: AuditSettings) -> str:
    """Content hash of all that decides what an audit says; 32 hex digits.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    names = tuple(dict.fromkeys(sources))
    depth = asked(names, PatchSettings(**shared(settings, PatchGroups)))
    return digest([depth, plain(settings, without=("fresh",)), _suite(names, settings)])


def _suite(names: Sequence[str], settings: AuditSettings) -> dict[str, str]:
    """Rows of each split by content; what is demo is made by this code."""
    if settings.suite == "none":
        return {}
    data, forget = own_data(settings.data)
    given = {"forget": forget, "holdout": settings.holdout, "retain": settings.retain_set}
    own = {name: Path(path) for name, path in given.items() if path is not None}
    data = data or (DEMO_DATA if family_of(names[0]) else None)
    if data == DEMO_DATA and not own:
        return {}
    return {name: one.digest for name, one in load_suite("tofu", data, own=own).items()}


def finished_audit(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
) -> Audited | None:
    """What a finished audit found that asked the same; None where there is none, or any doubt."""
    names, out = tuple(dict.fromkeys(sources)), audit_folder(sources, folder)
    try:
        settings = anchored(names, settings)
    except InputError:
        return None
    if settings.fresh or not (out / AUDIT_MANIFEST).exists():
        return None
    with looking():
        told = answered([(out, AUDIT_MANIFEST)], lambda: asked_of_audit(names, settings))
    if told is None:
        return None
    try:
        found = _read_audit(names, settings, out)
    except InputError:
        return None
    for line in told:
        notice(line)
    return found


def _read_audit(names: Sequence[str], settings: AuditSettings, out: Path) -> Audited:
    judged = verdicts([out])
    _, models = anchor_and_models(names, settings)
    evals = {name: out / EVAL / one.name for name, one in folders_for(models, None).items()}
    known = {
        name: place
        for name, place in folders_for(names, out / KNOW).items()
        if settings.association != "none" and (place / "summary.json").exists()
    }
    results = tuple(
        AuditResult(
            one.source,
            out,
            one,
            partial(_evaluation, one.source, evals.get(one.source)),
            (),
            judged.of_model(one.folder, one.source) or one.verdict,
            judged.keeps(one.folder),
            json_object(known[one.source] / "summary.json") if one.source in known else None,
        )
        for one in read_patched(folders_for(names, out / PATCH)).results
    )
    folders = (out / PATCH, *evals.values(), *known.values())
    return Audited(out, results, (), folders, judged, again=True)


def _evaluation(model: str, folder: Path | None) -> "EvaluationResult | None":
    if folder is None:
        return None
    from lensaudit.auditing.evaluate import read_evaluation  # seconds to import

    return read_evaluation(model, folder)
