"""Batch files: calls as lines, and lines of results as answers in the cache."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import canonical_json, parse_json
from lensaudit.judge.asking import Assignment
from lensaudit.judge.cache import AnswerCache
from lensaudit.judge.calls import Call, Failure, Outcome, Reply, checked
from lensaudit.judge.endpoint import Endpoint

MAX_LINES, MAX_BYTES = 50_000, 100 * 2**20
"""What OpenAI takes in one file (limits are 50 000 lines and 200 MB)."""


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


def cached(assignment: Assignment, cache: AnswerCache) -> dict[str, Outcome]:
    """Outcomes that are in the cache, repairs included."""
    found: dict[str, Outcome] = {}
    while True:
        replies = {call.key: cache.get(call) for call in assignment.pending(found)}
        known = {key: reply for key, reply in replies.items() if reply is not None}
        if not known:
            return found
        found |= known


def ingest(
    text: str, assignment: Assignment, cache: AnswerCache, endpoint: Endpoint
) -> tuple[int, dict[str, str]]:
    """Keep the answers in the lines of an output or error file, in whatever order they come.

    Returns:
        How many answers are new, and why other calls have none.

    Raises:
        InputError: two lines answer one call; nothing is kept of the file.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    for key, row in result_rows(text):
        if key in rows:
            raise InputError(f"custom_id {key[:16]} stands twice; which line answers it?")
        rows[key] = row
    n_new, failed = 0, dict[str, str]()
    while True:
        wanted = {call.key: call for call in assignment.pending(cached(assignment, cache))}
        known = [key for key in wanted if key in rows]
        if not known:
            return n_new, failed
        for key in known:
            outcome = _outcome(rows.pop(key), wanted[key], endpoint)
            if isinstance(outcome, Reply):
                cache.put(wanted[key], outcome)
                n_new += 1
            else:
                failed[key] = outcome.reason


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


def _outcome(row: Mapping[str, Any], call: Call, endpoint: Endpoint) -> Outcome:
    response = row.get("response")
    if isinstance(response, Mapping) and response.get("status_code") == 200:
        return checked(response.get("body"), call, endpoint)
    said = row.get("error") or (response.get("body") if isinstance(response, Mapping) else None)
    text = endpoint.redacted(json.dumps(said))
    return Failure("api_error", f"the batch gives an error: {text[:160]}")
