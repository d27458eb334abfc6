"""Batches: half the price, a day's time, and a state file tied to what was sent.

Calls go out as lines of a file, and answers come back as lines.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lensaudit.errors import InputError, WorkError
from lensaudit.files import read_json, read_text, write_bytes, write_json
from lensaudit.judge.calls import (
    Call,
    CallFailure,
    CallOutcome,
    Found,
    Pending,
    Reply,
    Spent,
    checked,
)
from lensaudit.judge.client import JudgeClient, expected_usage, open_client
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.jobs import JudgeJob, open_job
from lensaudit.judge.settings import WORDS, BatchSettings, JudgeSettings, LogSettings
from lensaudit.judge.transport import ENDED, EndpointError, SentBatch, Transport
from lensaudit.progress import Notice, unheard
from lensaudit.results.reading import checked_as, part
from lensaudit.text import canonical_json, digest, parse_json, slug

LONGEST_POLL_S = 300.0
MAX_LINES, MAX_BYTES = 50_000, 100 * 2**20
"""What OpenAI takes in one file (limits are 50 000 lines and 200 MB)."""
STATE = "batch_state.json"


@dataclass(frozen=True)
class BatchState:
    """What a folder knows about its batches."""

    host: str
    model: str
    plan: str
    """Hash of the calls that the log, the prompts and the model ask for."""
    sent: tuple[SentBatch, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """Call -> why the server gave no answer."""
    spent: Spent = field(default_factory=Spent)
    """Of all calls so far, whichever process made them, but for batches that are open."""
    schema: Literal["judge-batch/1"] = "judge-batch/1"

    @property
    def open(self) -> list[SentBatch]:
        """Batches that are not over, or whose answers are not here."""
        return [one for one in self.sent if not one.collected]

    def write(self, folder: Path) -> None:
        """Write `batch_state.json`."""
        write_json(folder / STATE, asdict(self))


def advance(job: JudgeJob, *, resubmit: bool = False) -> tuple[Found, list[SentBatch], int]:
    """Collect what is done, send what was never sent; run it again until nothing is open.

    With `resubmit`, what failed, expired or was cancelled is sent once more.

    Returns:
        Outcomes so far, of every call once nothing is open; what is open; and how many requests
        were sent off just now.

    Raises:
        InputError: the folder holds batches of other requests, or a cap would be passed.
        EndpointError: the server refuses.
    """
    state = _collected(_state(job), job)
    found = _asked(job)[0].known(job.pending)
    if state.open:
        return found, state.open, 0
    old: dict[str, CallOutcome] = {
        key: CallFailure("api_error", state.failed.get(key, _lost(state)))
        for key in _sent_keys(state, job)
        if key not in found and not resubmit
    }
    asked = job.pending({**old, **found})
    # two rows with the same texts are one call
    calls = list({call.key: call for call in asked if call.key not in old}.values())
    if not calls:
        return {**old, **found}, [], 0
    return found, _submitted(state, job, calls), len(calls)


def _asked(job: JudgeJob) -> tuple[JudgeClient, Transport]:
    """Whom the job asks, and its server: words and `--offline` are refused before."""
    assert job.client is not None
    assert job.client.transport is not None
    return job.client, job.client.transport


def _state(job: JudgeJob) -> BatchState:
    """The state of a job's folder; of an earlier version, every batch is to be collected anew.

    Raises:
        InputError: it is about other requests.
    """
    endpoint, calls = _asked(job)[0].endpoint, job.pending({})
    plan = digest(sorted(call.key for call in calls))
    fresh = BatchState(endpoint.host, endpoint.model, plan)
    state = read_state(job.folder) or fresh
    earlier = digest(sorted(_earlier(call, endpoint) for call in calls))
    if (state.host, state.plan) == (endpoint.netloc, earlier) != (fresh.host, plan):
        # that version kept answers by its own names, too
        sent = tuple(replace(one, collected=False) for one in state.sent)
        state = replace(fresh, sent=sent)
    if (state.host, state.model, state.plan) != (fresh.host, fresh.model, fresh.plan):
        raise InputError(
            f"{job.folder / STATE}: is about other requests ({state.model} at {state.host}, "
            f"{state.plan[:8]}; wanted {fresh.model} at {fresh.host}, {plan[:8]}); "
            "use the same options, or another --out"
        )
    return state


def _earlier(call: Call, endpoint: Endpoint) -> str:
    """The `custom_id` of a call in a version that left the path of an address out."""
    return replace(call, host=endpoint.netloc).key


def _collected(state: BatchState, job: JudgeJob) -> BatchState:
    """The state after a look at every open batch; what is over is downloaded."""
    for old in state.open:
        one = _asked(job)[1].looked_at(old)
        one = replace(one, collected=one.status in ENDED)
        failed = _downloaded(one, job) if one.collected else {}
        sent = tuple(one if every is old else every for every in state.sent)
        spent = _asked(job)[0].budget.spent
        state = replace(state, sent=sent, failed={**state.failed, **failed}, spent=spent)
        state.write(job.folder)
    return state


def _downloaded(one: SentBatch, job: JudgeJob) -> dict[str, str]:
    """Keep the answers of a batch; why calls have none."""
    client, server = _asked(job)
    failed: dict[str, str] = {}
    answers: dict[str, Mapping[str, Any]] = {}
    own = str(one.batch_id)
    files = {"output": one.output_file, "errors": one.error_file}
    for kind, file_id in files.items():
        if file_id is None:
            continue
        text = server.download(file_id)
        # kept before it is read: a crash in between costs nothing
        path = job.folder / f"batch-{slug(own)}-{digest(own)[:8]}-{kind}.jsonl"
        write_bytes(path, text.encode("utf-8", "backslashreplace"))
        try:
            failed |= ingest(text, job.pending, client)
        except InputError as error:
            raise WorkError(f"{path}: {error}; this is a fault of the server") from error
        answers |= dict(result_rows(text))
    for own, call in _requests(one, job).items():
        client.budget.add(_used(answers.get(own, {}), call, client.endpoint))
    return failed


def _used(row: Mapping[str, Any], call: Call, endpoint: Endpoint) -> Spent:
    """What a call of a batch used; the server bills none of which it has no answer."""
    reply = _outcome(row, call, endpoint)
    if isinstance(reply, Reply):
        return reply.usage or replace(expected_usage(call), n_estimated=1)
    if part(row, "response").get("status_code") == 200:
        return replace(expected_usage(call), n_estimated=1, n_failed=1)
    return Spent(1, n_failed=1)


def _sent_keys(state: BatchState, job: JudgeJob) -> set[str]:
    return {call.key for one in state.sent for call in _requests(one, job).values()}


def _requests(one: SentBatch, job: JudgeJob) -> dict[str, Call]:
    """Calls of a batch by their `custom_id`, from the file that was sent.

    Raises:
        WorkError: the file was changed since.
    """
    path, host = job.folder / one.requests, _asked(job)[0].endpoint.host
    content = read_text(path)
    if hashlib.sha256(content.encode()).hexdigest() != one.sha256:
        raise WorkError(f"{path}: is not the file that was sent; use another --out")
    return {own: Call(host, part(request, "body")) for own, request in result_rows(content)}


def _submitted(state: BatchState, job: JudgeJob, calls: Sequence[Call]) -> list[SentBatch]:
    """Send calls off; what is open then."""
    client, server = _asked(job)
    for at, call in enumerate(calls, 1):
        if problem := client.budget.reserve(call):
            raise InputError(
                f"nothing was sent: {problem} at request {at} of {len(calls)}; "
                "use --limit, or raise the cap"
            )
    for call in calls:  # what they use is counted when they are collected
        client.budget.settle(call, Spent())
    again = {one.key for one in calls}
    failed = {key: why for key, why in state.failed.items() if key not in again}
    state = replace(state, failed=failed, spent=client.budget.spent)
    for content in shards(request_lines(calls)):
        name = f"batch-requests-{len(state.sent) + 1}.jsonl"
        write_bytes(job.folder / name, content)
        one = SentBatch(
            name,
            hashlib.sha256(content).hexdigest(),
            content.count(b"\n"),
            server.upload(content),
            submitted=round(time.time(), 1),
        )
        # written before the batch is created: a kill in between cannot send it twice
        before = state.sent
        state = replace(state, sent=(*before, one))
        state.write(job.folder)
        one = server.create_batch(one)
        if one.batch_id in {earlier.batch_id for earlier in before}:
            host = client.endpoint.host
            raise EndpointError(f"{host}: gives two batches the id {one.batch_id!r}")
        state = replace(state, sent=(*before, one))
        state.write(job.folder)
    return state.open


def _lost(state: BatchState) -> str:
    last = state.sent[-1]
    why = f" ({last.problem})" if last.problem else ""
    return f"its batch is {last.status}{why} without an answer; run again with --resubmit"


def read_state(folder: Path) -> BatchState | None:
    """The state of a folder, or None.

    Raises:
        InputError: a file that is no such state.
    """
    path = folder / STATE
    if not path.exists():
        return None
    return checked_as(BatchState, read_json(path), path, remedy="use another --out")


def request_lines(calls: Iterable[Call]) -> Iterator[bytes]:
    """Lines of a batch file, in the order of their ids."""
    for call in sorted(calls, key=lambda one: one.key):
        line = {
            "custom_id": call.key,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": dict(call.body),
        }
        yield canonical_json(line).encode() + b"\n"


def shards(lines: Iterable[bytes]) -> list[bytes]:
    """Files within what a server takes."""
    out: list[list[bytes]] = [[]]
    size = 0
    for line in lines:
        if len(out[-1]) >= MAX_LINES or (out[-1] and size + len(line) > MAX_BYTES):
            out.append([])
            size = 0
        out[-1].append(line)
        size += len(line)
    return [b"".join(part) for part in out if part]


def ingest(text: str, pending: Pending, client: JudgeClient) -> dict[str, str]:
    """Keep the answers in the lines of an output or error file; why calls have none.

    Raises:
        InputError: two lines answer one call; nothing is kept of the file.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    for key, row in result_rows(text):
        if key in rows:
            raise InputError(f"custom_id {key[:16]} occurs twice: two lines answer one request")
        rows[key] = row
    failed: dict[str, str] = {}
    # an answer may ask for another one
    while known := {
        own: call
        for call in pending(client.known(pending))
        for own in (call.key, _earlier(call, client.endpoint))
        if own in rows
    }:
        for own, call in known.items():
            outcome = _outcome(rows.pop(own), call, client.endpoint)
            if isinstance(outcome, Reply):
                client.cache.put(call, outcome)
            else:
                failed[call.key] = outcome.reason
    return failed


def result_rows(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a batch file by their `custom_id`; other lines are passed over."""
    # not splitlines(): U+2028 and its like may stand inside a JSON string
    for line in text.split("\n"):
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("custom_id"), str):
            yield row["custom_id"], row


def _outcome(row: Mapping[str, Any], call: Call, endpoint: Endpoint) -> CallOutcome:
    response = part(row, "response")
    if response.get("status_code") == 200:
        return checked(response.get("body"), call, endpoint)
    text = endpoint.redacted(json.dumps(row.get("error") or response.get("body")))
    return CallFailure("api_error", f"the batch gives an error: {text[:160]}")


def batch_job(
    settings: LogSettings,
    *,
    how: BatchSettings | None = None,
    tell: Notice = unheard,
) -> tuple[JudgeJob | None, list[str], int]:
    """Send a log as batches, or collect them; the same call again goes on.

    Returns:
        The job with all that was found, once all is over; a line for each batch that is not; how
        many requests were sent off just now.

    Raises:
        InputError: before anything is sent.
        EndpointError: the server refuses.
    """
    how = how or BatchSettings()
    resubmit, poll_s, submitted = how.resubmit, how.poll_s, 0
    if settings.fresh or settings.offline:
        raise InputError("batches know no --fresh and no --offline; use another --cache or --out")
    if settings.by.startswith(WORDS):
        raise InputError(f"--by {settings.by} asks nobody; use `lensaudit judge run`")
    with open_job(settings) as opened, opened.alone(tell) as job:
        if known := read_state(job.folder):
            _asked(job)[0].budget.add(known.spent)
        while True:
            found, running, n_sent = advance(job, resubmit=resubmit)
            # what failed again after being sent again is not sent a third time
            resubmit, submitted = False, submitted + n_sent
            lines = [f"{one} ({one.done}/{one.total})" for one in running]
            if not running:
                return job.graded(found).written(), lines, submitted
            if not how.wait:
                return None, lines, submitted
            tell("; ".join(lines))
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, LONGEST_POLL_S)


def cancel_job(settings: JudgeSettings, folder: Path) -> tuple[str, ...]:
    """Stop every batch of a folder that is not over; a line for each.

    Raises:
        InputError: the folder has no batches.
    """
    with open_client(settings, settings.model) as client:
        state = read_state(folder)
        if state is None:
            raise InputError(f"{folder}: has no {STATE}; nothing was sent from here")
        assert client.transport is not None
        return tuple(str(client.transport.cancel(one)) for one in state.open if one.batch_id)
