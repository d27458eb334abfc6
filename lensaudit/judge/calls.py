"""A request on the wire, its outcome, and the cache of every answer that was paid for.

Kept at once: the reason a run can be resumed for nothing.
"""

import hashlib
import json
import math
import operator
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.thoughts import answer_in
from lensaudit.errors import InputError, LensAuditError, TryAgainError
from lensaudit.files import make_folder
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.items import Status
from lensaudit.results.reading import part
from lensaudit.text import canonical_json

PATH = "/chat/completions"
TOP_LOGPROBS = 20
"""The most that OpenAI and, by default, vLLM give."""
_TEXTS = ("text", "output_text")
_OTHERS = {
    "reasoning_content": ("thinking", "reasoning", "redacted_thinking", "summary_text"),
    "refusal": ("refusal",),
}
"""Types of the parts of a message: its texts, and by field what else there is."""


@dataclass(frozen=True)
class Call:
    """A completion to ask for, of a chat unless `path` says otherwise."""

    host: str
    body: Mapping[str, Any]
    """The JSON that is sent."""
    replicate: int = 0
    """Tells repeated samples of one request apart."""
    path: str = PATH
    """Below the base URL."""
    weights: str = ""
    """Tells models apart that one server gives one name."""
    check: Callable[[Mapping[str, Any]], str] = field(default=lambda raw: "", compare=False)
    """Why a reply does not belong to what is sent; empty: it does. Others are not kept."""

    @cached_property
    def key(self) -> str:
        """SHA-256 of everything the answer depends on; the `custom_id` of batches, too."""
        content = {"host": self.host, "body": dict(self.body), "replicate": self.replicate}
        content |= {"path": self.path} if self.path != PATH else {}
        content |= {"weights": self.weights} if self.weights else {}
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    @property
    def texts(self) -> list[str]:
        """What is sent to be read: messages, or prompts."""
        prompt = self.body.get("prompt", [])
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        return prompts or [str(message["content"]) for message in self.body["messages"]]

    @property
    def max_tokens(self) -> int:
        """Tokens that may come back, of all answers."""
        body = self.body
        each = int(body.get("max_tokens") or body.get("max_completion_tokens") or 0)
        return each * body.get("n", 1) * (len(self.texts) if "prompt" in body else 1)


@dataclass(frozen=True)
class Spent:
    """What calls used: one, a run's, or those to come."""

    calls: int = 0
    """Sent, those that failed too: `--max-calls` limits what is sent."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    """By `Budget.cost`: prices are a run's."""
    n_estimated: int = 0
    """Calls whose tokens the server did not count; they enter as reserved."""
    n_failed: int = 0
    """Calls without a usable answer. Those that the server refused cost nothing; the others may
    have been billed and enter as reserved."""

    def __add__(self, more: "Spent") -> "Spent":
        return Spent(*map(operator.add, astuple(self), astuple(more)))

    def __sub__(self, less: "Spent") -> "Spent":
        return Spent(*map(operator.sub, astuple(self), astuple(less)))


@dataclass(frozen=True)
class Reply:
    """A server's answer, as it came."""

    raw: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Text of the judge's answer."""
        return _message(self.raw).get("content") or ""

    @property
    def refusal(self) -> str:
        """The judge's refusal, where the server marks one."""
        blocked = self.raw["choices"][0].get("finish_reason") == "content_filter"
        return str(_message(self.raw).get("refusal") or ("content filter" if blocked else ""))

    @property
    def cut(self) -> bool:
        """Did it end because the tokens allowed were used up?"""
        return self.raw["choices"][0].get("finish_reason") == "length"

    @property
    def thought(self) -> bool:
        """Did the model think before it answered, by what the server reports?

        It counts or sends the reasoning, the text begins with it, or all tokens went without text.
        """
        message = _message(self.raw)
        counted = part(self.raw, "usage", "completion_tokens_details").get("reasoning_tokens")
        sent = message.get("reasoning_content") or message.get("reasoning")
        begun = self.text.lstrip().startswith("<think")
        return bool(counted or sent or begun or (self.cut and not self.text.strip()))

    @cached_property
    def first_token(self) -> Mapping[str, float]:
        """Alternatives for the first token and their log-probs, nats; the chosen one stands first.

        Empty where the server sent none; of a token that is listed twice the first place counts.
        """
        steps = objects(part(self.raw["choices"][0], "logprobs").get("content"))
        found: dict[str, float] = {}
        for row in [*steps[:1], *objects(steps[0].get("top_logprobs"))] if steps else ():
            token, nats = row.get("token"), row.get("logprob")
            if isinstance(token, str) and isinstance(nats, int | float) and not math.isnan(nats):
                found.setdefault(token, float(nats))
        return found

    @property
    def usage(self) -> Spent | None:
        """What was counted, if the server says."""
        usage = part(self.raw, "usage")
        counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
        whole = [n for n in counts if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
        return Spent(1, *whole) if len(whole) == 2 else None


Cause = Literal["", "refused", "garbage", "silent"]


@dataclass(frozen=True)
class CallFailure:
    """A call without a usable answer."""

    status: Status
    reason: str
    cause: Cause = ""
    """`refused`: the server does not take the request (4xx); `garbage`: what it sends is no chat
    completion; `silent`: it sends nothing, or that it is in trouble; "": something else."""
    answered: bool = False
    """An answer came, and may be paid for; of it nothing can be used."""


CallOutcome = Reply | CallFailure
Found = Mapping[str, CallOutcome]
"""Outcomes by the key of their call."""
Pending = Callable[[Found], list[Call]]
"""Calls whose answers are still wanted, given what was answered so far; empty once settled."""


def unthought(text: str) -> str:
    """A reply without the thought that a server may leave before it; empty where that was cut."""
    return answer_in(text) or ""


def chat_call(
    endpoint: Endpoint,
    messages: tuple[Mapping[str, str], ...],
    settings: Mapping[str, Any],
    replicate: int = 0,
) -> Call:
    """A call for one answer to `messages`."""
    body = {"model": endpoint.model, "messages": [dict(m) for m in messages], **settings}
    return Call(endpoint.host, body, replicate)


def user(text: str) -> Mapping[str, str]:
    """A message of the user; some chat templates know no system message."""
    return {"role": "user", "content": text}


def checked(raw: Any, call: Call, endpoint: Endpoint) -> CallOutcome:
    """A server's JSON as a reply, without keys, or why it is none.

    A reply without the probabilities that were asked for is a failure: it is not kept, so that it
    is asked again once the server sends them.
    """
    try:
        # NaN and infinities are no JSON, and could not be written
        raw = json.loads(json.dumps(endpoint.cleared(raw)), parse_constant=lambda name: None)
        if isinstance(raw, dict) and "choices" not in raw and "error" in raw:
            return CallFailure(
                "api_error", f"the server's reply is an error: {raw['error']!s:.160}"
            )
        for choice in raw["choices"]:
            _join_parts(choice)
        if call.path != PATH and all([isinstance(one["text"], str) for one in raw["choices"]]):
            return _belongs(raw, call)  # texts, without a message
        message = _message(raw)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return CallFailure("api_error", "the server's reply is no chat completion", "garbage")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        return CallFailure("api_error", "the server's reply holds no text", "garbage")
    reply = Reply(raw)
    if call.body.get("logprobs") and not reply.first_token and not reply.refusal:
        return CallFailure("no_logprobs", "the server sent no log-probabilities")
    return _belongs(raw, call)


def _belongs(raw: Mapping[str, Any], call: Call) -> CallOutcome:
    """A reply, or why it does not belong to its call."""
    why = call.check(raw)
    return CallFailure("api_error", why, "garbage") if why else Reply(raw)


def _message(raw: Any) -> Mapping[str, Any]:
    message = raw["choices"][0]["message"]
    if not isinstance(message, Mapping):
        raise TypeError("message")
    return message


def _join_parts(choice: dict[str, Any]) -> None:
    """Make one text of a message whose content is a list of parts; thoughts stand apart from it."""
    content = part(choice, "message").get("content")
    if not isinstance(content, list):
        return
    parts = [one if isinstance(one, dict) else {"type": "text", "text": one} for one in content]
    texts = [one["text"] for one in parts if one.get("type") in _TEXTS]
    message = {**choice["message"], "content": "".join(texts)}
    others = [one for one in parts if one.get("type") not in _TEXTS]
    for field_name, kinds in _OTHERS.items():
        if found := [one for one in others if one.get("type") in kinds]:
            message.setdefault(field_name, json.dumps(found))
            others = [one for one in others if one not in found]
    if others:
        raise TypeError(f"a part that is no text: {others[0]!s:.40}")
    choice["message"] = message


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list; none where it is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


_BUSY_MS = 30_000
_TABLES = """
CREATE TABLE IF NOT EXISTS judgement (
  key TEXT PRIMARY KEY, created REAL NOT NULL, model TEXT NOT NULL, host TEXT NOT NULL,
  request TEXT NOT NULL, response TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS fact (
  kind TEXT NOT NULL, host TEXT NOT NULL, model TEXT NOT NULL, created REAL NOT NULL,
  content TEXT NOT NULL, PRIMARY KEY (kind, host, model)
);
"""


def _is_closed(path: Path) -> bool:
    """Whether a file is there and may only be read, where SQLite wants to write beside it."""
    return path.exists() and not all(os.access(one, os.W_OK) for one in (path, path.parent))


class ResponseCache(AbstractContextManager["ResponseCache"]):
    """Answers by the hash of their request, in one SQLite file; several processes may share it.

    Without a path they are kept in memory. Where nothing is to be kept, a file that may only be
    read is one too.

    Raises:
        InputError: the file is no such cache.
        TryAgainError: it is locked or the disk is full.
    """

    def __init__(self, path: Path | None, *, keeps: bool = True):
        self.path, place = path or Path(":memory:"), str(path or ":memory:")
        is_closed = path is not None and not keeps and _is_closed(path)
        if path is not None:
            make_folder(path.parent)
        self._lock = threading.Lock()
        try:
            if is_closed:
                place = f"{self.path.resolve().as_uri()}?immutable=1"
            self._base = sqlite3.connect(
                place, uri=is_closed, check_same_thread=False, timeout=_BUSY_MS / 1000
            )
            if not is_closed:
                # FULL: an answer that was paid for survives the machine, not only the process
                self._base.executescript(
                    f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;{_TABLES}"
                )
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def get(self, call: Call, *, since: float = 0.0) -> Reply | None:
        """The answer to a call, unless it is older than `since` (seconds since 1970)."""
        query = "SELECT response FROM judgement WHERE key = ? AND created >= ?"
        row = self._run(query, (call.key, since))
        return Reply(json.loads(row[0])) if row else None

    def put(self, call: Call, reply: Reply) -> None:
        """Keep an answer; on return it is on the disk. The first answer to a call is replaced."""
        row = (
            call.key,
            time.time(),
            str(call.body["model"]),
            call.host,
            canonical_json(dict(call.body)),
            json.dumps(reply.raw),
        )
        self._run("INSERT OR REPLACE INTO judgement VALUES (?, ?, ?, ?, ?, ?)", row)

    def fact(self, kind: str, host: str, model: str) -> Any:
        """What was found out about a model, or None; `kind` says by what."""
        query = "SELECT content FROM fact WHERE kind = ? AND host = ? AND model = ?"
        row = self._run(query, (kind, host, model))
        return json.loads(row[0]) if row else None

    def keep_fact(self, kind: str, host: str, model: str, content: Mapping[str, Any]) -> None:
        """Keep what was found out."""
        row = (kind, host, model, time.time(), canonical_json(dict(content)))
        self._run("INSERT OR REPLACE INTO fact VALUES (?, ?, ?, ?, ?)", row)

    def __exit__(self, *error: object) -> None:
        self._base.close()

    def _run(self, query: str, values: tuple[Any, ...]) -> Any:
        """Ask or write one row, in a transaction of its own."""
        try:
            with self._lock, self._base:
                return self._base.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def _problem(self, error: sqlite3.Error) -> LensAuditError:
        if isinstance(error, sqlite3.OperationalError) and any(
            word in str(error) for word in ("locked", "full", "busy")
        ):
            return TryAgainError(f"{self.path}: {error}; run again later")
        return InputError(f"{self.path}: not usable as a cache of answers ({error})")
