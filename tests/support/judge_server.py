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

from lensaudit.data.matching import plain_words
from lensaudit.judge.programmatic import declines, variety

_TAGGED = re.compile(r"<(question|answer|truth)-([0-9a-f]{8})>\n(.*?)\n</\1-\2>", re.DOTALL)
_HEDGES = "may maybe might could perhaps possibly probably seems think guess"
_CASUAL = "gonna wanna yeah hey stuff kinda cool dude ok lol"


@dataclass(frozen=True)
class Opinion:
    """What is said, and the number behind it (0 to 100) where the prompt asks for one."""

    text: str
    value: float | None = None


def opinion(prompt: str) -> Opinion:
    """What the stub says to a prompt."""
    texts = {match[1]: match[3] for match in _TAGGED.finditer(prompt)}
    frame = _TAGGED.sub("", prompt)
    if "KNOWLEDGE_REMOVAL" in frame or "RETENTION_SCORE" in frame:
        return Opinion(json.dumps(_grades(texts, removal="KNOWLEDGE_REMOVAL" in frame)))
    if "answer" not in texts:
        wanted = re.search(r"Reply with the (?:number|letter) (\w+)", prompt)
        return Opinion(wanted[1] if wanted else "I am a stub; I only judge answers.")
    value = _trait(frame.lower(), texts["answer"])
    if "one letter" in frame:
        return Opinion("ABCDE"[round(value / 25)], value)
    return Opinion(str(round(value * 9 / 100 if "0 to 9" in frame else value)), value)


def _trait(frame: str, answer: str) -> float:
    for word, rate in _TRAITS.items():
        if word in frame:
            return min(100.0, max(0.0, rate(answer)))
    # no idea what is asked: a number that only depends on the text
    return hashlib.sha256(answer.encode()).digest()[0] / 255 * 100


def _without(words: str, answer: str) -> float:
    """100 without any of the words, 25 less for each."""
    return 100.0 - 25 * sum(word in words.split() for word in plain_words(answer).split())


_TRAITS: dict[str, Callable[[str], float]] = {
    "coheren": lambda answer: 100 * variety(answer) if answer.strip() else 0.0,
    "declin": lambda answer: 95.0 if declines(answer) else 5.0,
    "refus": lambda answer: 95.0 if declines(answer) else 5.0,
    "confiden": lambda answer: 10.0 if declines(answer) else _without(_HEDGES, answer),
    "formal": lambda answer: (
        _without(_CASUAL, answer) - 20 * len(re.findall(r"\w['’]\w|!", answer))
    ),
}
"""A word of the prompt -> how the answer is rated."""


def _recall(texts: dict[str, str], n: int) -> float:
    """Share of the truth's n-grams that the answer holds."""

    def grams(text: str) -> set[tuple[str, ...]]:
        words = plain_words(text).split()
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    wanted = grams(texts.get("truth", ""))
    return len(wanted & grams(texts["answer"])) / len(wanted) if wanted else 0.0


def _grades(texts: dict[str, str], *, removal: bool) -> dict[str, object]:
    texts = {"answer": "", **texts}
    known = round(10 * _recall(texts, 1))
    fluency = {"FLUENCY": round(10 * variety(texts["answer"])) if texts["answer"].strip() else 0}
    said = {"reasoning": "Words of the reference were counted."}
    if removal:
        gone = {n: round(10 * (1 - _recall(texts, n))) for n in (1, 3)}
        return said | {"KNOWLEDGE_REMOVAL": gone[1], "VERBATIM_REMOVAL": gone[3]} | fluency
    relevance = 0 if declines(texts["answer"]) else known
    return said | {"RETENTION_SCORE": known, "ACCURACY": known, "RELEVANCE": relevance} | fluency


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

    tokens: Literal["whole", "digits", "blank"] = "whole"
    """Is a number one token, one per digit, or does a blank one come first?"""
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

    def refused(self, body: Mapping[str, Any]) -> str:
        """Why the server refuses a parameter, in the words servers use."""
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            return "'messages' is a required property"
        for wrong in {"max_tokens", "max_completion_tokens"} - {self.tokens_field}:
            if wrong in body:
                return f"Unsupported parameter: '{wrong}'. Use '{self.tokens_field}' instead."
        if not self.temperature and body.get("temperature", 1) != 1:
            return "Unsupported value: 'temperature' does not support 0 with this model."
        if body.get("top_logprobs", 0) > self.top_logprobs:
            return f"Invalid value for 'top_logprobs': must be at most {self.top_logprobs}."
        wanted = (body.get("response_format") or {}).get("type")
        if wanted and wanted not in self.formats:
            return f"Invalid parameter: 'response_format' of type '{wanted}' is not supported."
        return ""


def error(status: int, code: str, message: str) -> Answer:
    """An error in OpenAI's layout."""
    inner = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return Answer.of({"error": inner}, status)


def complete(body: Mapping[str, Any], abilities: Abilities, fault: str, key: str) -> Answer:
    """The answer to one request under one fault ("" for none)."""
    if fault in _STATUS:
        status, code, message = _STATUS[fault]
        return error(status, code, message.format(key=key))
    if refused := abilities.refused(body):
        return error(400, "unsupported_parameter", refused)
    if fault == "malformed":
        return Answer(200, b'{"choices": [{"message": {"content": "8')
    if fault == "no-choices":
        return Answer.of({"id": "chatcmpl-stub", "choices": []})
    # asked again after a bad reply, the judge still judges the first message
    said = _spoilt(opinion(str(body["messages"][0]["content"])), fault, key)
    return Answer.of(_completion(body, abilities, said, fault))


def _spoilt(said: Opinion, fault: str, key: str) -> Opinion:
    match fault:
        case "echo":  # a server that repeats what it should keep to itself
            return Opinion(f"{said.text} {key}")
        case "bad-json":
            return Opinion("Sure! Here is what I think: {'KNOWLEDGE_REMOVAL': ten}")
        case "refusal":
            return Opinion("I'm sorry, I can't help with that.")
        case "low-mass":
            return Opinion("The score is high.")
        case _:
            return said


def _completion(
    body: Mapping[str, Any], abilities: Abilities, said: Opinion, fault: str
) -> dict[str, Any]:
    form = body.get("response_format")
    if form and abilities.keeps_format and not fault and not said.text.startswith("{"):
        fields = form.get("json_schema", {}).get("schema", {}).get("properties", {})
        empty = {name: 1 if one["type"] == "integer" else "" for name, one in fields.items()}
        said = Opinion(json.dumps(empty))
    thought = "<think>\nThe words are to be counted, one by one.\n</think>\n"
    tokens = _tokens(f"{thought * abilities.thinks}{said.text}", abilities.tokens)
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
    out = {"id": "chatcmpl-stub", "object": "chat.completion", "created": 0}
    out |= {"model": body["model"], "choices": [choice]}
    return out if fault == "no-usage" else out | {"usage": usage}


def _tokens(text: str, kind: str) -> list[str]:
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
_QUEUED = {"code": "token_limit_exceeded", "message": "too many queued", "line": None}


@dataclass
class Filing:
    """Files and batches in memory, each batch as the server describes it."""

    answer: Callable[[Mapping[str, Any]], Answer]
    """Answers one chat completion."""
    end: BatchEnd = "completed"
    n_errors: int = 0
    """Lines of a batch that end up in its error file."""
    prefix: str = "batch-"
    """What ids of batches begin with."""
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    _shuffle: random.Random = field(default_factory=lambda: random.Random(0))

    def route(self, method: str, parts: list[str], sent: Callable[[], Any]) -> Answer:
        """The answer to a request about files or batches; `sent` reads what came with it."""
        match method, *parts:
            case "POST", "files":
                return self.file(self.add(sent()))
            case "GET", "files", file_id, "content":
                return self.content(file_id)
            case "POST", "batches":
                return self.start(sent())
            case "GET", "batches":
                rows = [self._entry(one) for one in reversed(self.batches.values())]
                return Answer.of({"object": "list", "data": rows, "has_more": False})
            case "GET", "batches", batch_id if batch_id in self.batches:
                return self.poll(self.batches[batch_id])
            case "POST", "batches", batch_id, "cancel" if batch_id in self.batches:
                return self.stop(self.batches[batch_id], "cancelled")
        return error(404, "not_found", f"no {'/'.join(parts)} here")

    def add(self, content: bytes) -> str:
        """Keep a file; its id."""
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = content
        return file_id

    def file(self, file_id: str) -> Answer:
        """A file's entry."""
        more = {"created_at": 0, "filename": "requests.jsonl", "purpose": "batch"}
        size = len(self.files[file_id])
        return Answer.of({"id": file_id, "object": "file", "bytes": size, **more})

    def content(self, file_id: str) -> Answer:
        """A file's bytes."""
        return Answer(200, self.files[file_id])

    def start(self, body: Mapping[str, Any]) -> Answer:
        """A new batch on an uploaded file."""
        batch = {"object": "batch", "created_at": 0, **body, "status": STEPS[0], "errors": None}
        batch |= {"id": f"{self.prefix}{len(self.batches) + 1}"}
        batch |= {"output_file_id": None, "error_file_id": None}
        batch |= {"request_counts": {"completed": 0, "failed": 0, "total": 0}}
        self.batches[batch["id"]] = batch
        return Answer.of(self._entry(batch))

    def poll(self, batch: dict[str, Any]) -> Answer:
        """A batch's entry; each look moves it one step on."""
        if batch["status"] == STEPS[-1]:
            return self.stop(batch, self.end)
        if batch["status"] in STEPS:
            batch["status"] = STEPS[STEPS.index(batch["status"]) + 1]
        return Answer.of(self._entry(batch))

    def stop(self, batch: dict[str, Any], end: BatchEnd) -> Answer:
        """End a batch that is not over; what ends early has done half of its work."""
        if batch["status"] in STEPS:
            batch["status"] = end
            lines = [json.loads(one) for one in self.files[batch["input_file_id"]].splitlines()]
            wrong, fine = lines[: self.n_errors], lines[self.n_errors :]
            if end == "failed":
                batch["errors"] = {"object": "list", "data": [_QUEUED]}
                return Answer.of(self._entry(batch))
            fine = fine if end == "completed" else fine[: len(fine) // 2]
            batch["output_file_id"] = self._keep([self._result(line) for line in fine])
            if wrong:
                refusal = error(400, "context_length_exceeded", "too long")
                batch["error_file_id"] = self._keep([_line(one, refusal) for one in wrong])
            counts = {"completed": len(fine), "failed": len(wrong), "total": len(lines)}
            batch["request_counts"] = counts
        return Answer.of(self._entry(batch))

    def _entry(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch

    def _result(self, line: Mapping[str, Any]) -> dict[str, Any]:
        return _line(line, self.answer(line["body"]))

    def _keep(self, rows: list[dict[str, Any]]) -> str:
        self._shuffle.shuffle(rows)
        return self.add("".join(json.dumps(row) + "\n" for row in rows).encode())


def _line(asked: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """A line of a batch's results."""
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = answer.body.decode("utf-8", "replace")
    response = {"status_code": answer.status, "request_id": "stub", "body": body}
    return {"id": "line", "custom_id": asked["custom_id"], "response": response, "error": None}


@dataclass
class JudgeStub:
    """A server on 127.0.0.1 while the `with` block lasts."""

    always: str = ""
    """The fault of every completion, but of those in `_queue`, which come first."""
    abilities: Abilities = field(default_factory=Abilities)
    key: str = ""
    """The key wanted; "" takes any."""
    hang_s: float = 30.0
    """How long the fault `timeout` waits."""
    delay_s: float = 0.0
    """How long an answer takes."""
    batch_end: BatchEnd = "completed"
    n_batch_errors: int = 0
    spoil: Callable[[dict[str, Any]], Any] | None = None
    """What becomes of every completion that is answered."""
    batches: bool = True
    """Does the server know files and batches? vLLM's does not."""

    def __post_init__(self) -> None:
        self.chats: list[Mapping[str, Any]] = []
        """Bodies of the completions asked for, batches not included."""
        self.paths: list[str] = []
        """`METHOD path` of all requests."""
        self.most_at_once = self._at_once = 0
        self._queue: deque[str] = deque()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.filing = Filing(self._batched, self.batch_end, self.n_batch_errors)

    @property
    def url(self) -> str:
        """The base URL, ending in /v1."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"stub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        # a short poll: stopping waits for it
        run = {"poll_interval": 0.02}
        threading.Thread(target=self._server.serve_forever, kwargs=run, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()

    def _fault(self) -> str:
        return self._queue.popleft() if self._queue else self.always

    def chat(self, body: Mapping[str, Any], key: str) -> Answer | None:
        """The answer to a completion; None: hang up."""
        with self._lock:
            self.chats.append(body)
            fault = self._fault()
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self._stop.wait(self.hang_s if fault == "timeout" else self.delay_s)
            if fault in ("timeout", "drop"):
                return None
            answer = complete(body, self.abilities, fault, key)
            whole = self.spoil is not None and answer.status == 200
            return Answer.of(self.spoil(json.loads(answer.body))) if whole else answer
        finally:
            with self._lock:
                self._at_once -= 1

    def route(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """The answer to anything but a completion."""
        parts = [unquote(one) for one in path.split("?")[0].strip("/").split("/")[1:]]
        if parts[0] in ("files", "batches") and not self.batches:
            return error(404, "not_found", f"no {parts[0]} here")
        if (method, parts) == ("GET", ["models"]):
            return Answer.of({"object": "list", "data": [{"id": "stub-judge", "object": "model"}]})
        kind = headers.get("content-type", "")
        with self._lock:
            read = uploaded if parts == ["files"] else lambda body, kind: json.loads(body)
            return self.filing.route(method, parts, lambda: read(body, kind))

    def _batched(self, body: Mapping[str, Any]) -> Answer:
        return complete(body, self.abilities, self._fault(), self.key)


class _Handler(BaseHTTPRequestHandler):
    stub: JudgeStub
    protocol_version = "HTTP/1.1"
    # headers and body leave in one segment: no wait for the peer's delayed acknowledgement
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: headers hold keys."""

    def _handle(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.stub.paths.append(f"{method} {self.path}")
        sent = self.headers.get("authorization", "").removeprefix("Bearer ")
        if self.stub.key and sent != self.stub.key:
            self._send(error(401, "invalid_api_key", f"Incorrect API key provided: {sent}"))
        elif method == "POST" and self.path.rstrip("/") == "/v1/chat/completions":
            self._send(self.stub.chat(json.loads(body), sent))
        else:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._send(self.stub.route(method, self.path, body, headers))

    def _send(self, answer: Answer | None) -> None:
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer.body)))
        if answer.status == 429:
            self.send_header("retry-after-ms", "20")
        self.end_headers()
        try:
            self.wfile.write(answer.body)
            self.wfile.flush()
        except OSError:  # the client gave up waiting
            self.close_connection = True


def uploaded(body: bytes, content_type: str) -> bytes:
    """The file in a multipart form."""
    head = f"content-type: {content_type}\r\n\r\n".encode()
    form = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    (content,) = (one.get_payload(decode=True) for one in form.iter_parts() if one.get_filename())
    assert isinstance(content, bytes)
    return content
