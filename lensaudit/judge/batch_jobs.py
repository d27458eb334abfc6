"""Judging a log by batches: sent off, collected, or carried by hand as files."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.files import check_output, check_size, printable, read_text, write_bytes
from lensaudit.judge.batches import Desk
from lensaudit.judge.bounded import MOST_FILE_BYTES
from lensaudit.judge.exchange import cached, ingest, request_lines, result_rows
from lensaudit.judge.findings import Findings, findings_of, judge_items
from lensaudit.judge.items import read_items
from lensaudit.judge.jobs import (
    JudgeJob,
    grader_of,
    locked,
    needed,
    owning,
    template_of_job,
    unsent,
    written,
)
from lensaudit.judge.opening import Bench, JudgeOptions, open_bench
from lensaudit.judge.settings import BatchSettings
from lensaudit.judge.transport import BatchInfo

LONGEST_POLL_S = 300.0


@dataclass(frozen=True)
class BatchOutcome:
    """Results, or what is still going on."""

    findings: Findings | None
    lines: tuple[str, ...]
    """What a person is told about open batches."""
    submitted: int = 0


def batch_job(
    job: JudgeJob,
    *,
    how: BatchSettings | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> BatchOutcome:
    """Send a log as batches, or collect them; the same call again goes on.

    Raises:
        InputError: before anything is sent.
        EndpointError: the server refuses.
    """
    started = time.monotonic()
    options, how = needed(job), how or BatchSettings()
    resubmit, poll_s = how.resubmit, how.poll_s
    if options.fresh or options.offline:
        raise InputError("batches know no --fresh and no --offline; use another --cache or --out")
    items = read_items(job.log, contexts=job.contexts, limit=job.limit)
    template = template_of_job(job)
    with open_bench(options) as bench, ExitStack() as stack:
        grader = grader_of(job, bench, template)
        job = owning(job, grader, items, tell)
        stack.enter_context(locked(job.folder))
        desk = _desk(bench, job.folder)
        assignment, submitted = grader.assignment(items.items), 0
        while True:
            state = desk.advance(assignment, resubmit=resubmit)
            # what failed again after being sent again is not sent a third time
            resubmit, submitted = False, submitted + state.submitted
            lines = tuple(f"{_state(b)} ({b.done}/{b.total})" for b in state.open)
            if not state.open:
                findings = findings_of(grader, items, state.found, bench.asker)
                return BatchOutcome(written(job, findings, started, bench), (), submitted)
            if not how.wait:
                return BatchOutcome(None, lines, submitted)
            tell("; ".join(lines))
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, LONGEST_POLL_S)


def cancel_job(options: JudgeOptions, folder: Path) -> tuple[str, ...]:
    """Stop the batches of a folder; a line for each."""
    with open_bench(options) as bench:
        return tuple(map(_state, _desk(bench, folder).cancel()))


def export_job(job: JudgeJob, target: Path, *, force: bool = False) -> int:
    """Write the calls that are not answered as a batch file; how many they are.

    Raises:
        InputError: `target` is there, no such file, and `force` is not given.
    """
    check_output(target, ours=_is_batch, force=force)
    items = read_items(job.log, contexts=job.contexts, limit=job.limit)
    template = template_of_job(job)
    with unsent(job) as bench:
        assignment = grader_of(job, bench, template).assignment(items.items)
        calls = assignment.pending(cached(assignment, bench.asker.cache))
        write_bytes(target, b"".join(request_lines({c.key: c for c in calls}.values())))
        return len({call.key for call in calls})


def _is_batch(content: bytes) -> bool:
    """Whether a file holds requests."""
    return b'"custom_id"' in content and b'"url"' in content


def import_job(job: JudgeJob, results: Path) -> Findings:
    """Read a batch's result file into the cache and write what follows from it.

    Raises:
        InputError: the file answers none of the job's calls.
    """
    started = time.monotonic()
    items = read_items(job.log, contexts=job.contexts, limit=job.limit)
    template = template_of_job(job)
    check_size(results, MOST_FILE_BYTES)
    text = read_text(results)
    with unsent(job) as bench, ExitStack() as stack:
        grader = grader_of(job, bench, template)
        job = owning(job, grader, items)
        stack.enter_context(locked(job.folder))
        assignment = grader.assignment(items.items)
        ids = {key for key, _ in result_rows(text)}
        before = cached(assignment, bench.asker.cache)
        try:
            n_new, failed = ingest(text, assignment, bench.asker.cache, bench.endpoint)
        except InputError as error:
            raise InputError(f"{results}: {error}") from error
        if not n_new and not failed and not ids & set(before):
            raise InputError(
                f"{results}: answers none of these {len(items.items)} items; same log, --by, "
                "--model, --base-url and --mode as in the export?"
            )
        return written(job, judge_items(grader, items, bench.asker), started, bench)


def _state(batch: BatchInfo) -> str:
    return printable(f"{batch.id}: {batch.status}")


def _desk(bench: Bench, folder: Path) -> Desk:
    asker = bench.asker
    if asker.transport is None:
        raise InputError("batches need the server; leave --offline out")
    return Desk(folder, asker.transport, asker.cache, bench.endpoint, asker.budget)
