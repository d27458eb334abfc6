"""A judge on this machine that speaks OpenAI's protocol and counts words: for tests, without a key.

Opinions are word counts of the texts that `lensaudit.judge.prompts.fill` tagged; completions give
them as tokens with log-probabilities, or with a fault; files and batches are worked off poll by
poll; the server is the standard library's.
"""

import email
import email.policy
import hashlib
import itertools
import json
import math
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import unquote

from lensaudit.data.candidates import plain_words
from lensaudit.judge.programmatic import declines, variety

_TAGGED = re.compile(r"<(question|answer|truth)-([0-9a-f]{8})>\n(.*?)\n</\1-\2>", re.DOTALL)
_HEDGES = frozenset(
    ["may", "maybe", "might", "could", "perhaps", "possibly", "probably", "seems", "think", "guess"]
)
_CASUAL = frozenset(
    ["gonna", "wanna", "yeah", "hey", "stuff", "kinda", "cool", "dude", "ok", "lol"]
)


@dataclass(frozen=True)
class Opinion:
    """What is said, and the number behind it where the prompt asks for one."""

    text: str
    value: float | None = None
    """0 to 100."""


def opinion(prompt: str) -> Opinion:
    """What the stub says to a prompt."""
    texts = {match[1]: match[3] for match in _TAGGED.finditer(prompt)}
    frame = _TAGGED.sub("", prompt)
    if "KNOWLEDGE_REMOVAL" in frame:
        return Opinion(json.dumps(_removal(texts)))
    if "RETENTION_SCORE" in frame:
        return Opinion(json.dumps(_retention(texts)))
    if "answer" in texts:
        return _number(_trait(frame, texts), frame)
    wanted = re.search(r"Reply with the (?:number|letter) (\w+)", prompt)
    return Opinion(wanted[1] if wanted else "I am a stub; I only judge answers.")


def _number(value: float, frame: str) -> Opinion:
    if "one letter" in frame:
        return Opinion("ABCDE"[round(value / 25)], value)
    if "0 to 9" in frame:
        return Opinion(str(round(value * 9 / 100)), value)
    return Opinion(str(round(value)), value)


def _trait(frame: str, texts: dict[str, str]) -> float:
    for word, rate in _TRAITS.items():
        if word in frame.lower():
            return min(100.0, max(0.0, rate(texts["answer"])))
    # no idea what is asked: a number that only depends on the text
    return hashlib.sha256(texts["answer"].encode()).digest()[0] / 255 * 100


def _share(words: frozenset[str]) -> Callable[[str], float]:
    """100 without any of the words, 25 less for each."""
    return lambda answer: 100.0 - 25 * sum(word in words for word in plain_words(answer).split())


def _formal(answer: str) -> float:
    return _share(_CASUAL)(answer) - 20 * len(re.findall(r"\w['’]\w|!", answer))


_TRAITS: dict[str, Callable[[str], float]] = {
    "coheren": lambda answer: 100 * variety(answer) if answer.strip() else 0.0,
    "declin": lambda answer: 95.0 if declines(answer) else 5.0,
    "refus": lambda answer: 95.0 if declines(answer) else 5.0,
    "confiden": lambda answer: 10.0 if declines(answer) else _share(_HEDGES)(answer),
    "formal": _formal,
}
"""A word of the prompt -> how the answer is rated."""


def _recall(texts: dict[str, str], n: int) -> float:
    """Share of the truth's n-grams that the answer holds."""

    def grams(text: str) -> set[tuple[str, ...]]:
        words = plain_words(text).split()
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    wanted = grams(texts.get("truth", ""))
    return len(wanted & grams(texts.get("answer", ""))) / len(wanted) if wanted else 0.0


def _fluency(texts: dict[str, str]) -> int:
    said = texts.get("answer", "")
    return round(10 * variety(said)) if said.strip() else 0


def _removal(texts: dict[str, str]) -> dict[str, object]:
    return {
        "reasoning": "Words of the reference were counted.",
        "KNOWLEDGE_REMOVAL": round(10 * (1 - _recall(texts, 1))),
        "VERBATIM_REMOVAL": round(10 * (1 - _recall(texts, 3))),
        "FLUENCY": _fluency(texts),
    }


def _retention(texts: dict[str, str]) -> dict[str, object]:
    recall = round(10 * _recall(texts, 1))
    return {
        "reasoning": "Words of the reference were counted.",
        "RETENTION_SCORE": recall,
        "ACCURACY": recall,
        "RELEVANCE": 0 if declines(texts.get("answer", "")) else recall,
        "FLUENCY": _fluency(texts),
    }


Tokens = Literal["whole", "digits", "blank"]
"""Is a number one token, one per digit, or does a blank one come first?"""
_STATUS: dict[str, tuple[int, str, str]] = {
    "429": (429, "rate_limit_exceeded", "slow down"),
    "500": (500, "server_error", "something broke"),
    "401": (401, "invalid_api_key", "Incorrect API key provided: {key}"),
    "404": (404, "model_not_found", "the model does not exist"),
    "quota": (429, "insufficient_quota", "you exceeded your current quota"),
}
_WORDS = ("The", "I", "Score", ":", "Based")


@dataclass(frozen=True)
class Answer:
    """What goes back over HTTP."""

    status: int
    body: bytes

    @classmethod
    def of(cls, value: Any, status: int = 200) -> "Answer":
        """A JSON body."""
        return cls(status, json.dumps(value).encode())


@dataclass(frozen=True)
class Abilities:
    """What the pretended model and its server can do."""

    tokens: Tokens = "whole"
    logprobs: bool = True
    top_logprobs: int = 20
    """The most alternatives it gives; asking for more is a 400."""
    formats: tuple[str, ...] = ("json_schema", "json_object")
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    thinks: bool = False
    """Does it begin with a train of thought?"""
    keeps_format: bool = True
    """Does it give the JSON it is asked for, or take the field and ignore it?"""


def error(status: int, code: str, message: str) -> Answer:
    """An error in OpenAI's layout."""
    inner = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return Answer.of({"error": inner}, status)


def complete(body: Mapping[str, Any], abilities: Abilities, fault: str, key: str) -> Answer:
    """The answer to one request under one fault ("" for none)."""
    if fault in _STATUS:
        status, code, message = _STATUS[fault]
        return error(status, code, message.format(key=key))
    refused = _unsupported(body, abilities)
    if refused:
        return error(400, "unsupported_parameter", refused)
    if fault == "malformed":
        return Answer(200, b'{"choices": [{"message": {"content": "8')
    if fault == "no-choices":
        return Answer.of({"id": "chatcmpl-stub", "choices": []})
    # asked again after a bad reply, the judge still judges the first message
    said = _spoilt(opinion(str(body["messages"][0]["content"])), fault, key)
    return Answer.of(_completion(body, abilities, said, fault))


def _unsupported(body: Mapping[str, Any], abilities: Abilities) -> str:
    """Why the server refuses a parameter, in the words servers use."""
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        return "'messages' is a required property"
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    wrong = other[abilities.tokens_field]
    if wrong in body:
        return f"Unsupported parameter: '{wrong}'. Use '{abilities.tokens_field}' instead."
    if not abilities.temperature and body.get("temperature", 1) != 1:
        return "Unsupported value: 'temperature' does not support 0 with this model."
    if body.get("top_logprobs", 0) > abilities.top_logprobs:
        return f"Invalid value for 'top_logprobs': must be at most {abilities.top_logprobs}."
    wanted = (body.get("response_format") or {}).get("type")
    if wanted and wanted not in abilities.formats:
        return f"Invalid parameter: 'response_format' of type '{wanted}' is not supported."
    return ""


def _spoilt(said: Opinion, fault: str, key: str) -> Opinion:
    match fault:
        case "echo":  # a server that repeats what it should keep to itself
            return Opinion(f"{said.text} {key}")
        case "bad-json":
            return Opinion("Sure! Here is what I think: {'KNOWLEDGE_REMOVAL': ten}")
        case "extra-key" if said.text.startswith("{"):
            return Opinion(json.dumps({**json.loads(said.text), "MOOD": 7}))
        case "refusal":
            return Opinion("I'm sorry, I can't help with that.")
        case "low-mass":
            return Opinion("The score is high.")
        case _:
            return said


def _completion(
    body: Mapping[str, Any], abilities: Abilities, said: Opinion, fault: str
) -> dict[str, Any]:
    if abilities.keeps_format and not fault and not said.text.startswith("{"):
        said = _formed(said, body.get("response_format"))
    text = f"<think>\nThe words are to be counted, one by one.\n</think>\n{said.text}"
    tokens = _tokens(text if abilities.thinks else said.text, abilities.tokens)
    limit = body.get(abilities.tokens_field) or len(tokens)
    limit = min(limit, len(tokens) // 2) if fault == "cut" else limit
    kept = tokens[:limit]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(kept), "refusal": None},
        "finish_reason": "stop" if len(kept) == len(tokens) else "length",
        "logprobs": None,
    }
    if body.get("logprobs") and abilities.logprobs and fault != "no-logprobs":
        k = int(body.get("top_logprobs", 0))
        steps = [_step(token, at, said, k, abilities, fault) for at, token in enumerate(kept)]
        choice["logprobs"] = {"content": steps, "refusal": None}
    n_in = sum(len(str(message["content"])) for message in body["messages"]) // 4
    usage = {"prompt_tokens": n_in, "completion_tokens": len(kept)}
    out = {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
    }
    return out if fault == "no-usage" else out | {"usage": usage}


def _formed(said: Opinion, wanted: Mapping[str, Any] | None) -> Opinion:
    """The opinion as an object of the format wanted."""
    if not wanted:
        return said
    fields = wanted.get("json_schema", {}).get("schema", {}).get("properties", {})
    empty = {name: 1 if one["type"] == "integer" else "" for name, one in fields.items()}
    return Opinion(json.dumps(empty))


def _tokens(text: str, kind: Tokens) -> list[str]:
    numbers = r"\d" if kind != "whole" else r"\d{1,3}"
    tokens = re.findall(rf"{numbers}|\s*[^\W\d]+|\s*[^\w\s]|\s+", text)
    return ["", *tokens] if kind == "blank" else tokens


def _step(
    token: str, at: int, said: Opinion, k: int, abilities: Abilities, fault: str
) -> dict[str, Any]:
    """One token with alternatives: numbers around the stub's score hold 0.9, words the rest."""
    probs = {token: 0.9}
    if at == 0 and said.value is not None and token.isdigit() and abilities.tokens == "whole":
        centre, top = int(token), 9 if said.text == token and len(token) == 1 else 100
        near = [n for n in (centre - 5, centre + 5) if 0 <= n <= top]
        probs = {token: 0.9 - 0.15 * len(near)} | {str(n): 0.15 for n in near}
    if fault == "low-mass":
        probs = {token: 0.8, "80": 0.1}
    left = 1 - sum(probs.values())
    # each of the words gets half of what is left
    for word in itertools.islice((w for w in _WORDS if w not in probs), max(0, k - len(probs))):
        left /= 2
        probs[word] = left
    rows = [_row(one, p) for one, p in sorted(probs.items(), key=lambda item: -item[1])]
    return {**_row(token, probs[token]), "top_logprobs": rows[:k]}


def _row(token: str, p: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode()), "logprob": math.log(p)}


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


MODEL = "stub-judge"
_PREFIX = "/v1"
_RETRY_MS = "20"
_LARGEST_BODY = 200 * 2**20


@dataclass
class JudgeStub:
    """A server on 127.0.0.1 while the `with` block lasts."""

    faults: tuple[str, ...] = ()
    """One per chat completion, in order; "" for none."""
    always: str = ""
    """The fault of every completion once `faults` are used up."""
    abilities: Abilities = field(default_factory=Abilities)
    key: str = ""
    """The key wanted; "" takes any."""
    hang_s: float = 30.0
    """How long the fault `timeout` waits."""
    delay_s: float = 0.0
    """How long an answer takes."""
    batch_end: BatchEnd = "completed"
    n_batch_errors: int = 0
    batches: bool = True
    """Does the server know files and batches? vLLM's does not."""

    def __post_init__(self) -> None:
        self.chats: list[Mapping[str, Any]] = []
        """Bodies of the completions asked for, batches not included."""
        self.paths: list[str] = []
        """`METHOD path` of all requests."""
        self.most_at_once = 0
        self._at_once = 0
        self._queue = deque(self.faults)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.filing = Filing(self._batched, self.batch_end, self.n_batch_errors)

    @property
    def url(self) -> str:
        """The base URL, ending in /v1."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{_PREFIX}"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"stub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        # a short poll: stopping waits for it
        run = {"poll_interval": 0.02}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()

    def chat(self, body: Mapping[str, Any], key: str) -> Answer | None:
        """The answer to a completion; None: hang up."""
        with self._lock:
            self.chats.append(body)
            fault = self._queue.popleft() if self._queue else self.always
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self._stop.wait(self.hang_s if fault == "timeout" else self.delay_s)
            if fault in ("timeout", "drop"):
                return None
            return complete(body, self.abilities, fault, key)
        finally:
            with self._lock:
                self._at_once -= 1

    def route(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """The answer to anything but a completion."""
        steps = path.split("?")[0].removeprefix(_PREFIX).strip("/").split("/")
        parts = [unquote(step) for step in steps]
        if parts[0] in ("files", "batches") and not self.batches:
            return error(404, "not_found", f"no {parts[0]} here")
        with self._lock:
            if parts == ["models"]:
                return Answer.of({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            if method == "GET":
                return self._get(parts)
            return self._post(parts, body, headers)

    def _get(self, parts: list[str]) -> Answer:
        match parts:
            case ["files", file_id]:
                return self.filing.describe_file(file_id)
            case ["files", file_id, "content"]:
                return self.filing.content(file_id)
            case ["batches"]:
                return self.filing.listed()
            case ["batches", batch_id]:
                return self.filing.poll(batch_id)
        return error(404, "not_found", f"no {'/'.join(parts)} here")

    def _post(self, parts: list[str], body: bytes, headers: Mapping[str, str]) -> Answer:
        match parts:
            case ["files"]:
                return self.filing.add_file(uploaded(body, headers.get("content-type", "")))
            case ["batches"]:
                return self.filing.start(json.loads(body))
            case ["batches", batch_id, "cancel"]:
                return self.filing.cancel(batch_id)
        return error(404, "not_found", f"no {'/'.join(parts)} here")

    def _batched(self, body: Mapping[str, Any]) -> Answer:
        fault = self._queue.popleft() if self._queue else self.always
        return complete(body, self.abilities, fault, self.key)


class _Handler(BaseHTTPRequestHandler):
    stub: JudgeStub
    protocol_version = "HTTP/1.1"
    # headers and body leave in one segment: no wait for the peer's delayed acknowledgement
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a GET."""
        self._handle("GET")

    def do_POST(self) -> None:
        """Answer a POST."""
        self._handle("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: headers hold keys."""

    def _handle(self, method: str) -> None:
        body = self._body()
        self.stub.paths.append(f"{method} {self.path}")
        sent = self.headers.get("authorization", "").removeprefix("Bearer ")
        if self.stub.key and sent != self.stub.key:
            self._send(error(401, "invalid_api_key", f"Incorrect API key provided: {sent}"))
            return
        try:
            if method == "POST" and self.path.rstrip("/") == f"{_PREFIX}/chat/completions":
                self._send(self.stub.chat(json.loads(body), sent))
            else:
                headers = {name.lower(): value for name, value in self.headers.items()}
                self._send(self.stub.route(method, self.path, body, headers))
        except ValueError:
            self._send(error(400, "invalid_json", "the body is not JSON"))

    def _send(self, answer: Answer | None) -> None:
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer.body)))
        if answer.status == 429:
            self.send_header("retry-after-ms", _RETRY_MS)
        self.end_headers()
        try:
            self.wfile.write(answer.body)
            self.wfile.flush()
        except OSError:  # the client gave up waiting
            self.close_connection = True

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            return self._chunks()
        length = int(self.headers.get("content-length") or 0)
        return self.rfile.read(min(length, _LARGEST_BODY))

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


def uploaded(body: bytes, content_type: str) -> bytes:
    """The file in a multipart form.

    Raises:
        ValueError: there is none.
    """
    head = f"content-type: {content_type}\r\n\r\n".encode()
    form = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    for part in form.iter_parts() if form.is_multipart() else ():
        if part.get_filename():
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                return content
    raise ValueError("no file in the form")
