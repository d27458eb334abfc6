"""The stub on a port: HTTP by the standard library alone."""

import email
import email.policy
import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from lensaudit.errors import InputError
from lensaudit.judge.settings import StubSettings
from lensaudit.judge.stub.completions import FAULTS, Abilities, Answer, complete, error
from lensaudit.judge.stub.filing import BatchEnd, Filing

MODEL = "stub-judge"
_PREFIX = "/v1"
_RETRY_MS = "20"
_LARGEST_BODY = 200 * 2**20


@dataclass
class JudgeStub:
    """A server on 127.0.0.1 while the `with` block lasts."""

    port: int = 0
    """0: any free one."""
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

    @classmethod
    def of(cls, settings: StubSettings) -> "JudgeStub":
        """A server with the faults that were asked for.

        Raises:
            InputError: an unknown fault.
        """
        asked = (*settings.faults, settings.always or "ok")
        if unknown := [name for name in asked if name not in (*FAULTS, "ok")]:
            raise InputError(f"no fault {unknown[0]!r}; known are ok, {', '.join(FAULTS)}")
        return cls(
            settings.port,
            tuple("" if name == "ok" else name for name in settings.faults),
            "" if settings.always in (None, "ok") else settings.always,
            Abilities(tokens=settings.tokens),
            batch_end=settings.batch_end,
            batches=not settings.no_batches,
        )

    @property
    def url(self) -> str:
        """The base URL, ending in /v1."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{_PREFIX}"

    def __enter__(self) -> "JudgeStub":
        handler = type("Handler", (_Handler,), {"stub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
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

    def wait(self) -> None:
        """Serve until interrupted."""
        while not self._stop.wait(1.0):
            pass

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
