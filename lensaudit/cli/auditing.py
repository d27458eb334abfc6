"""`audit` behind the options: the steps, what of them is done, and what they found."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from lensaudit.activations.fill import Progress
from lensaudit.cli.audits import patch_audit
from lensaudit.cli.options import is_quiet
from lensaudit.cli.show import print_audit
from lensaudit.data.suites import DEMO_DATA
from lensaudit.data.tofu import DEMO, FORGET10
from lensaudit.errors import InputError, LensAuditError, PartialError
from lensaudit.files import canonical_json, make_folder, read_json, slug, write_bytes
from lensaudit.metrics.measure.job import Job, plan, run_job
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.deposit import folders_for
from lensaudit.patching.plan import plan_of
from lensaudit.patching.prepare import default_anchor, prepare
from lensaudit.report.render import write_report

Notice = Callable[[str], None]
PAGE = "audit.html"
LOG = "TOFU_EVAL.json"


@dataclass(frozen=True)
class Steps:
    """What an audit consists of; nothing is loaded yet."""

    sources: tuple[str, ...]
    out: Path
    patch: dict[str, Any]
    """Options of the patching step."""
    jobs: tuple[Job, ...]
    """Evaluations; the retain model's comes first, the others read its log."""


def run_audit(
    sources: Sequence[str],
    *,
    notice: Notice,
    progress: Progress,
    as_json: bool,
    dry_run: bool,
    fresh: bool,
    **options: Any,
) -> None:
    """Do what is missing of an audit, and write its page.

    Raises:
        InputError: anything that is wrong with the names, the data or the options.
        PartialError: some evaluations failed, or a source could not be scored; the page is there.
    """
    steps = steps_of(sources, **options)
    lines = planned(steps, notice=notice, fresh=fresh)
    if dry_run:
        click.echo("\n".join(lines))
        return
    if not is_quiet():
        click.echo("\n".join(lines), err=True)
    make_folder(steps.out)
    summaries = patch_audit(
        steps.sources, score="uds", notice=notice, progress=progress, as_json=False,
        dry_run=False, quiet=True, fresh=fresh, **steps.patch,
    )  # fmt: skip
    failed = _evaluated(steps, notice, progress, fresh=fresh)
    failed |= {s["source"]: "no example could be scored" for s in summaries if s["uds"] is None}
    page = steps.out / PAGE
    for one in write_report([steps.out / "patch", *_logs(steps)], page):
        notice(f"not in the report: {one.path}: {one.reason}")
    _say(summaries, page, as_json=as_json)
    if failed:
        listed = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise PartialError(f"{len(failed)} steps failed, the rest is in {page}: {listed}")


def steps_of(
    sources: Sequence[str],
    *,
    suite: str,
    inside: bool,
    out: Path | None,
    full: str | None,
    retain: str | None,
    data: str | None,
    holdout: Path | None,
    retain_set: Path | None,
    **shared: Any,
) -> Steps:
    """The steps that options ask for."""
    names = tuple(dict.fromkeys(sources))
    anchor = retain or default_anchor("retain", names)
    first, *others = names
    more = f"-and-{len(others)}-more" if others else ""
    out = out or Path("experiments/out") / f"audit-{slug(first)}{more}"
    patch = {**shared, "full": full, "retain": retain, "data": data, "out": out / "patch"}
    models = dict.fromkeys((anchor, *names)) if suite == "tofu" else ()
    same = {key: shared[key] for key in _SAME}
    own = _own_data(data, holdout, retain_set)
    logs = {n: out / "eval" / folder.name for n, folder in folders_for(tuple(models), None).items()}
    jobs = (
        Job(
            model=name, full=full, out=logs[name], **same, **own,
            retain=anchor if inside and name != anchor else None,
            retain_log=None if inside or name == anchor else logs[anchor] / LOG,
        )
        for name in models
    )  # fmt: skip
    return Steps(names, out, patch, tuple(jobs))


_SAME = ("limit", "registry", "dtype", "device", "attn", "batch_size", "activations")
"""Options that patching and evaluation share."""


def _own_data(data: str | None, holdout: Path | None, retain_set: Path | None) -> dict[str, Any]:
    """What `--data` means for the evaluation: a known set, a folder of TOFU's files, or rows."""
    own: dict[str, Any] = {"holdout": holdout, "retain_set": retain_set}
    if data in (None, FORGET10):
        return own
    if data == DEMO:
        return own | {"data": DEMO_DATA}
    path = Path(data or "").expanduser()
    return own | ({"data": str(path)} if path.is_dir() else {"forget": path})


def planned(steps: Steps, *, notice: Notice, fresh: bool) -> list[str]:
    """The plan, a line per step: what is done, what is missing, passes and bytes."""
    options = {key: value for key, value in steps.patch.items() if key not in ("out", "registry")}
    audit = prepare(
        steps.sources, registry=load_registry(steps.patch["registry"]), notice=notice,
        fresh=fresh, **options,
    )  # fmt: skip
    lines = [f"patch: {line}" for line in plan_of(audit).text().splitlines()]
    for job in steps.jobs:
        texts = _texts_of(job)
        state = "done" if not fresh and is_done(job) else "to do"
        kept = "" if fresh or state == "done" else _kept(job)
        lines.append(f"eval {job.model}: {state}; {texts}{kept}")
    return [*lines, f"report: {steps.out / PAGE}"]


def _texts_of(job: Job) -> str:
    """How much an evaluation reads and writes: found without its retain log, which may not be."""
    reads = plan(_alone(job))
    texts = [int(line.split(": ")[1].split()[0]) for line in reads if line.endswith("texts")]
    asked = [int(line.split(": ")[1].split()[0]) for line in reads if line.endswith("questions")]
    return f"{sum(texts)} texts scored, {sum(asked)} answers generated"


def _alone(job: Job) -> Job:
    return Job(**{**vars(job), "retain_log": None})


def _kept(job: Job) -> str:
    kept = len(list((job.folder / "passes").glob("*.npz")))
    return f"; {kept} passes kept from before" if kept else ""


def is_done(job: Job) -> bool:
    """Whether the folder holds this evaluation, finished, of these weights."""
    try:
        made = read_json(job.folder / "manifest.json")
    except InputError:
        return False
    weights = open_checkpoint(resolve(job.model, load_registry(job.registry))).weights
    wanted = {key: str(v) if isinstance(v, Path) else v for key, v in asdict(job).items()}
    resolved = ("dtype", "device", "attn", "empty", "template")
    return made["inputs"]["model"]["weights"] == weights and all(
        made["options"].get(key) == (list(value) if isinstance(value, tuple) else value)
        for key, value in wanted.items()
        if key not in resolved
    )


def _evaluated(steps: Steps, notice: Notice, progress: Progress, *, fresh: bool) -> dict[str, str]:
    """Run every evaluation; the reasons of those that failed, by model."""
    failed: dict[str, str] = {}
    for job in steps.jobs:
        if fresh:
            for kept in (job.folder / "passes").glob("*.npz"):
                kept.unlink()
        if job.retain is not None:
            _share_passes(steps.jobs[0].folder / "passes", job.folder / "retain" / "passes")
        lacks_log = job.retain_log is not None and not job.retain_log.exists()
        said = _PassCount(job.model, len(plan(_alone(job))), notice, progress)
        try:
            run_job(_alone(job) if lacks_log else job, said)
        except LensAuditError as error:
            failed[job.model] = str(error).splitlines()[0]
    return failed


def _share_passes(made: Path, wanted: Path) -> None:
    """Passes are found by content: those of the retain model serve every source."""
    for one in made.glob("*.npz"):
        if not (wanted / one.name).exists():
            write_bytes(make_folder(wanted) / one.name, one.read_bytes())


@dataclass
class _PassCount:
    """Lines of an evaluation: a finished pass moves the progress, anything else is a remark."""

    model: str
    n_passes: int
    notice: Notice
    progress: Progress
    n_done: int = 0

    def __call__(self, line: str) -> None:
        if not line.endswith((" texts", " (kept from before)")):
            self.notice(f"{self.model}: {line}")
            return
        self.n_done += 1
        self.progress(f"evaluating {self.model}", min(self.n_done, self.n_passes), self.n_passes)


def _logs(steps: Steps) -> list[Path]:
    """Folders of the evaluations that left a log."""
    return [job.folder for job in steps.jobs if (job.folder / LOG).exists()]


def _say(summaries: list[dict[str, Any]], page: Path, *, as_json: bool) -> None:
    if not as_json:
        print_audit(summaries)
        click.echo(f"report: {page}")
        return
    found = [
        {key: one[key] for key in ("source", "uds", "ci95", "n", "n_scored", "calibration")}
        for one in summaries
    ]
    click.echo(canonical_json({"report": str(page), "sources": found}))
