"""The stub's files and batches: uploaded, worked off poll by poll, given back in any order."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lensaudit.judge.stub.completions import Answer, error

BatchEnd = Literal["completed", "failed", "expired", "cancelled"]
STEPS = ("validating", "in_progress", "finalizing")


@dataclass
class Batch:
    """One batch and how far it is."""

    id: str
    input_file: str
    metadata: Mapping[str, Any]
    status: str = "validating"
    polls: int = 0
    output_file: str | None = None
    error_file: str | None = None
    counts: tuple[int, int, int] = (0, 0, 0)
    """Completed, failed, total."""


@dataclass
class Filing:
    """Files and batches in memory."""

    answer: Callable[[Mapping[str, Any]], Answer]
    """Answers one chat completion."""
    end: BatchEnd = "completed"
    n_errors: int = 0
    """Lines of a batch that end up in its error file."""
    prefix: str = "batch-"
    """What ids of batches begin with."""
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    _shuffle: random.Random = field(default_factory=lambda: random.Random(0))

    def add_file(self, content: bytes) -> Answer:
        """Keep an upload."""
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = content
        return self.describe_file(file_id)

    def describe_file(self, file_id: str) -> Answer:
        """A file's entry."""
        if file_id not in self.files:
            return error(404, "not_found", f"no such file: {file_id}")
        return Answer.of(
            {
                "id": file_id,
                "object": "file",
                "bytes": len(self.files[file_id]),
                "created_at": 0,
                "filename": "requests.jsonl",
                "purpose": "batch",
                "status": "processed",
            }
        )

    def content(self, file_id: str) -> Answer:
        """A file's bytes."""
        if file_id not in self.files:
            return error(404, "not_found", f"no such file: {file_id}")
        return Answer(200, self.files[file_id])

    def start(self, body: Mapping[str, Any]) -> Answer:
        """A new batch on an uploaded file."""
        file_id = str(body.get("input_file_id"))
        if file_id not in self.files:
            return error(400, "invalid_file", f"no such file: {file_id}")
        batch = Batch(f"{self.prefix}{len(self.batches) + 1}", file_id, body.get("metadata") or {})
        self.batches[batch.id] = batch
        return self.describe(batch.id)

    def poll(self, batch_id: str) -> Answer:
        """A batch's entry; each look moves it one step on."""
        batch = self.batches.get(batch_id)
        if batch is not None and batch.status in STEPS:
            batch.polls += 1
            if batch.polls < len(STEPS):
                batch.status = STEPS[batch.polls]
            else:
                self._finish(batch, self.end)
        return self.describe(batch_id)

    def cancel(self, batch_id: str) -> Answer:
        """Stop a batch; half of it is done."""
        batch = self.batches.get(batch_id)
        if batch is not None and batch.status in STEPS:
            self._finish(batch, "cancelled")
        return self.describe(batch_id)

    def listed(self) -> Answer:
        """All batches, newest first."""
        rows = [self._entry(batch) for batch in reversed(self.batches.values())]
        return Answer.of({"object": "list", "data": rows, "has_more": False})

    def describe(self, batch_id: str) -> Answer:
        """A batch's entry."""
        if batch_id not in self.batches:
            return error(404, "not_found", f"no such batch: {batch_id}")
        return Answer.of(self._entry(self.batches[batch_id]))

    def _entry(self, batch: Batch) -> dict[str, Any]:
        failed = batch.status == "failed"
        problem = {"code": "token_limit_exceeded", "message": "too many queued", "line": None}
        completed, wrong, total = batch.counts
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "created_at": 0,
            "input_file_id": batch.input_file,
            "status": batch.status,
            "output_file_id": batch.output_file,
            "error_file_id": batch.error_file,
            "metadata": dict(batch.metadata),
            "errors": {"object": "list", "data": [problem]} if failed else None,
            "request_counts": {"completed": completed, "failed": wrong, "total": total},
        }

    def _finish(self, batch: Batch, end: BatchEnd) -> None:
        batch.status = end
        lines = [json.loads(line) for line in self.files[batch.input_file].splitlines()]
        if end == "failed":
            return
        wrong, fine = lines[: self.n_errors], lines[self.n_errors :]
        if end != "completed":  # what ends early has done half of its work
            fine = fine[: len(fine) // 2]
        batch.output_file = self._keep([self._result(line) for line in fine])
        batch.error_file = self._keep([_refused(line) for line in wrong]) if wrong else None
        batch.counts = (len(fine), len(wrong), len(lines))

    def _result(self, line: Mapping[str, Any]) -> dict[str, Any]:
        answer = self.answer(line["body"])
        response = {"status_code": answer.status, "request_id": "stub", "body": _json(answer.body)}
        return {"id": "line", "custom_id": line["custom_id"], "response": response, "error": None}

    def _keep(self, rows: list[dict[str, Any]]) -> str:
        self._shuffle.shuffle(rows)
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = "".join(json.dumps(row) + "\n" for row in rows).encode()
        return file_id


def _refused(line: Mapping[str, Any]) -> dict[str, Any]:
    body = json.loads(error(400, "context_length_exceeded", "too long").body)
    response = {"status_code": 400, "request_id": "stub", "body": body}
    return {"id": "line", "custom_id": line["custom_id"], "response": response, "error": None}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
