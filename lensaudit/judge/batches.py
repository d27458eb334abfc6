"""Batches: half the price, a day's time, and a state file tied to what was sent."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lensaudit.errors import InputError, WorkError
from lensaudit.files import digest, read_json, read_text, slug, write_bytes, write_json
from lensaudit.judge.asking import Assignment
from lensaudit.judge.budget import Budget
from lensaudit.judge.cache import AnswerCache
from lensaudit.judge.calls import Call, Failure, Outcome
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.exchange import cached, ingest, request_lines, result_rows, shards
from lensaudit.judge.transport import BatchInfo, EndpointError, Transport

SCHEMA = "judge-batch/1"
STATE = "batch_state.json"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""`validating`, `in_progress`, `finalizing` and `cancelling` are not over."""


@dataclass(frozen=True)
class Sent:
    """One batch that was sent off."""

    requests: str
    """Name of the request file beside the state."""
    sha256: str
    """Of that file."""
    n: int
    file_id: str
    batch_id: str | None = None
    status: str = "uploaded"
    problem: str = ""
    collected: bool = False
    submitted: float = 0.0


@dataclass(frozen=True)
class State:
    """What a folder knows about its batches."""

    host: str
    model: str
    plan: str
    """Hash of the calls that the log, the prompts and the model ask for."""
    sent: tuple[Sent, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """Call -> why the server gave no answer."""
    schema: str = SCHEMA

    def write(self, folder: Path) -> None:
        """Write `batch_state.json`."""
        write_json(folder / STATE, asdict(self))


@dataclass(frozen=True)
class Standing:
    """Where a folder's batches stand."""

    found: Mapping[str, Outcome]
    """Outcomes so far; of every call once nothing is open."""
    open: tuple[BatchInfo, ...]
    submitted: int
    """Requests sent off just now."""


@dataclass(frozen=True)
class Desk:
    """Sends and collects the batches of one folder."""

    folder: Path
    transport: Transport
    cache: AnswerCache
    endpoint: Endpoint
    budget: Budget

    def advance(self, assignment: Assignment, *, resubmit: bool = False) -> Standing:
        """Collect what is done, send what was never sent; run it again until nothing is open.

        With `resubmit`, what failed, expired or was cancelled is sent once more.

        Raises:
            InputError: the folder holds batches of other requests, or a cap would be passed.
            EndpointError: the server refuses.
        """
        state = self._state(assignment)
        state, running = self._collect(state, assignment)
        found = cached(assignment, self.cache)
        if running:
            return Standing(found, tuple(running), 0)
        sent = self._sent_keys(state)
        old = {
            key: Failure("api_error", state.failed.get(key, _lost(state)))
            for key in sent
            if key not in found and not resubmit
        }
        asked = assignment.pending({**old, **found})
        # two rows with the same texts are one call
        calls = list({call.key: call for call in asked if call.key not in old}.values())
        if not calls:
            return Standing({**old, **found}, (), 0)
        running = self._submit(state, calls)
        return Standing(found, tuple(running), len(calls))

    def cancel(self) -> tuple[BatchInfo, ...]:
        """Stop every batch that is not over.

        Raises:
            InputError: the folder has no batches.
        """
        state = read_state(self.folder)
        if state is None:
            raise InputError(f"{self.folder}: has no {STATE}; nothing was sent from here")
        ids = [one.batch_id for one in state.sent if one.batch_id and not one.collected]
        return tuple(self.transport.cancel(batch_id) for batch_id in ids)

    def _state(self, assignment: Assignment) -> State:
        plan = digest(sorted(call.key for call in assignment.pending({})))
        state = read_state(self.folder)
        fresh = State(self.endpoint.host, self.endpoint.model, plan)
        if state is None:
            return fresh
        if (state.host, state.model, state.plan) != (fresh.host, fresh.model, fresh.plan):
            raise InputError(
                f"{self.folder / STATE}: is about other requests ({state.model} at {state.host}, "
                f"{state.plan[:8]}; wanted {fresh.model} at {fresh.host}, {plan[:8]}); "
                "use the same options, or another --out"
            )
        return state

    def _collect(self, state: State, assignment: Assignment) -> tuple[State, list[BatchInfo]]:
        running = []
        for at, one in enumerate(state.sent):
            if one.collected:
                continue
            info = self._info(one)
            done = replace(one, batch_id=info.id, status=info.status, problem=info.problem)
            failed = dict(state.failed)
            if info.status in ENDED:
                failed |= self._download(info, assignment)
                done = replace(done, collected=True)
            else:
                running.append(info)
            sent = (*state.sent[:at], done, *state.sent[at + 1 :])
            state = replace(state, sent=sent, failed=failed)
            state.write(self.folder)
        return state, running

    def _info(self, one: Sent) -> BatchInfo:
        """How a batch is doing; one whose id was lost by a kill is found by its file."""
        if one.batch_id is not None:
            return self.transport.batch(one.batch_id)
        known = self.transport.batch_of(one.file_id)
        return known or self.transport.create_batch(one.file_id, one.sha256[:16])

    def _download(self, info: BatchInfo, assignment: Assignment) -> dict[str, str]:
        failed: dict[str, str] = {}
        for kind, file_id in (("output", info.output_file), ("errors", info.error_file)):
            if file_id is None:
                continue
            text = self.transport.download(file_id)
            # kept before it is read: a crash in between costs nothing
            name = f"batch-{slug(info.id)}-{digest(info.id)[:8]}-{kind}.jsonl"
            write_bytes(self.folder / name, text.encode("utf-8", "backslashreplace"))
            try:
                failed |= ingest(text, assignment, self.cache, self.endpoint)[1]
            except InputError as error:
                raise WorkError(f"{self.folder / name}: {error}; the server's fault") from error
        return failed

    def _sent_keys(self, state: State) -> set[str]:
        keys: set[str] = set()
        for one in state.sent:
            path = self.folder / one.requests
            content = read_text(path)
            if hashlib.sha256(content.encode()).hexdigest() != one.sha256:
                raise WorkError(f"{path}: is not the file that was sent; use another --out")
            keys |= {key for key, _ in result_rows(content)}
        return keys

    def _submit(self, state: State, calls: Sequence[Call]) -> list[BatchInfo]:
        for at, call in enumerate(calls):
            problem = self.budget.reserve(call)
            if problem:
                raise InputError(
                    f"nothing was sent: {problem} at request {at + 1} of {len(calls)}; "
                    "use --limit, or raise the cap"
                )
        failed = {
            key: why for key, why in state.failed.items() if key not in {c.key for c in calls}
        }
        state, running = replace(state, failed=failed), []
        for content in shards(request_lines(calls)):
            name = f"batch-requests-{len(state.sent) + 1}.jsonl"
            write_bytes(self.folder / name, content)
            one = Sent(
                name,
                hashlib.sha256(content).hexdigest(),
                content.count(b"\n"),
                self.transport.upload(content),
                submitted=round(time.time(), 1),
            )
            # written before the batch is created: a kill in between cannot send it twice
            state = replace(state, sent=(*state.sent, one))
            state.write(self.folder)
            info = self.transport.create_batch(one.file_id, one.sha256[:16])
            if info.id in {earlier.batch_id for earlier in state.sent}:
                raise EndpointError(f"{self.endpoint.host}: gives two batches the id {info.id!r}")
            one = replace(one, batch_id=info.id, status=info.status)
            state = replace(state, sent=(*state.sent[:-1], one))
            state.write(self.folder)
            running.append(info)
        return running


def _lost(state: State) -> str:
    last = state.sent[-1]
    why = f" ({last.problem})" if last.problem else ""
    return f"its batch is {last.status}{why} without an answer; run again with --resubmit"


def read_state(folder: Path) -> State | None:
    """The state of a folder, or None.

    Raises:
        InputError: a file that is no such state.
    """
    path = folder / STATE
    if not path.exists():
        return None
    content = read_json(path)
    try:
        if content["schema"] != SCHEMA:
            raise KeyError("schema")
        return State(**{**content, "sent": tuple(Sent(**one) for one in content["sent"])})
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: is no {SCHEMA} ({error}); use another --out") from error
