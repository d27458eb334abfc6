"""OpenAI's SDK behind a few calls, its errors as ours, and HTTP with an end.

An attempt takes so long and its answer is so large, whatever a server does.
"""

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any

from lensaudit.errors import InputError, WorkError
from lensaudit.judge.calls import Call, CallFailure, CallOutcome, Cause, checked, objects
from lensaudit.judge.endpoint import OPENAI_URL, Endpoint, is_local
from lensaudit.results.reading import part
from lensaudit.text import printable

if TYPE_CHECKING:
    import openai

MOST_BYTES = 32 * 2**20
"""Of an answer, unpacked; one of 2,048 tokens with 20 alternatives each has some 3 MB."""
MOST_FILE_BYTES = 512 * 2**20
"""Of a batch's file of results; what is sent off has at most 100 MB."""
FILE_TIMES = 10
"""How many times as long a batch's file may take, up or down."""
TOO_LONG = "too_long"
"""The code of the error that stands for a longer answer."""
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")
_REDIRECTS = {301, 302, 303, 307, 308}
_FATAL = {*_REDIRECTS, 401, 403, 404}
_NOT_TAKEN = {400, 413, 415, 422}
"""The request is refused for what it holds; nothing was computed."""
_PASSING = {408, 409, 429}
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
BATCH_STATES = ENDED | {"validating", "in_progress", "finalizing", "cancelling"}
_MOST_BATCHES = 10_000
"""Looked through for one whose id was lost."""
_SHOWN = 160


class EndpointError(WorkError):
    """The server refuses every call: asking on is of no use.

    Args:
        message: one line.
        missing: it knows no such path, or no such model (404).
    """

    def __init__(self, message: str, *, missing: bool = False):
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True)
class SentBatch:
    """A batch that was sent off: its requests, and how the server describes it."""

    requests: str
    """Name of the request file beside the state."""
    sha256: str
    """Of that file."""
    n: int
    """Its requests."""
    file_id: str
    batch_id: str | None = None
    status: str = "uploaded"
    problem: str = ""
    """Why it failed, if it did."""
    collected: bool = False
    """Is it over, and its files are here?"""
    submitted: float = 0.0
    """Seconds since 1970."""
    output_file: str | None = None
    error_file: str | None = None
    done: int = 0
    """Requests that have an answer or failed, of `total`."""
    total: int = 0

    def __str__(self) -> str:
        return printable(f"{self.batch_id}: {self.status}")


class Transport:
    """One connection pool to an endpoint; safe to call from several threads.

    Raises:
        InputError: the SDK is not installed.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, retries: int):
        try:
            import openai
        except ImportError as error:
            raise InputError(
                "a model behind an address needs OpenAI's SDK; run: pip install 'lensaudit[judge]'"
            ) from error
        self.endpoint = endpoint
        self._sdk = openai
        local = is_local(endpoint.base_url)
        self._client = openai.OpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.key,
            timeout=timeout_s,
            max_retries=retries,
            # a redirect would carry texts to another server; HTTP_PROXY captures loopback, too
            http_client=bounded_client(
                openai,
                timeout_s,
                follow_redirects=False,
                trust_env=not local,
                # reading certificates takes longer than most answers of a server on this machine
                verify=not (local and endpoint.base_url.startswith("http:")),
            ),
        )
        # the SDK reads these from the environment; headers may hold a key, even of another server
        self._client._custom_headers = {}
        if endpoint.base_url != OPENAI_URL:
            self._client.organization = self._client.project = None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def chat(self, call: Call) -> CallOutcome:
        """One answer, after the SDK's retries; or why there is none.

        Raises:
            EndpointError: no call can succeed: the key, the model or the address is wrong.
        """
        try:
            raw = self._client.post(call.path, cast_to=object, body=dict(call.body))
        except self._sdk.OpenAIError as error:
            if self._fatal(error):
                missing = isinstance(error, self._sdk.NotFoundError)
                raise EndpointError(self._line(error), missing=missing) from error
            return CallFailure("api_error", self._line(error), self._cause(error))
        except ValueError:
            return CallFailure("api_error", "the server's reply is not JSON", "garbage", True)
        outcome = checked(raw, call, self.endpoint)
        if isinstance(outcome, CallFailure) and outcome.status == "api_error":
            return replace(outcome, answered=True)
        return outcome

    def models(self) -> list[Mapping[str, Any]]:
        """What the server says of each of its models; empty where it gives no list of them.

        Raises:
            EndpointError: it cannot be reached, or refuses the key.
        """
        once = self._client.with_options(max_retries=0)
        try:
            raw = self.endpoint.cleared(once.get("/models", cast_to=object))
        except self._sdk.OpenAIError as error:
            answered = isinstance(error, self._sdk.APIStatusError)
            if not answered or (self._fatal(error) and error.status_code != HTTPStatus.NOT_FOUND):
                raise EndpointError(self._line(error)) from error
            return []
        except ValueError:  # no JSON
            return []
        return [one for one in objects(part(raw).get("data")) if isinstance(one.get("id"), str)]

    def upload(self, content: bytes) -> str:
        """Send a file of batch requests; its id."""
        file = ("requests.jsonl", io.BytesIO(content))
        create = self._client.files.create
        return self._guarded(lambda: self.endpoint.redacted(create(file=file, purpose="batch").id))

    def create_batch(self, sent: SentBatch) -> SentBatch:
        """Start the batch of an uploaded file; this is what costs money."""
        return self._described(
            sent,
            lambda batches: batches.create(
                input_file_id=sent.file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"lensaudit": sent.sha256[:16]},
            ),
        )

    def looked_at(self, sent: SentBatch) -> SentBatch:
        """A batch as it is now; one whose id was lost by a kill is found by its file, or made."""
        if sent.batch_id is not None:
            return self._described(sent, lambda batches: batches.retrieve(sent.batch_id))

        def found_again() -> SentBatch | None:
            listed = islice(self._client.batches.list(limit=100), _MOST_BATCHES)
            own = (
                one for one in listed if self.endpoint.cleared(one.input_file_id) == sent.file_id
            )
            return next((self._info(sent, one) for one in own), None)

        return self._guarded(found_again) or self.create_batch(sent)

    def cancel(self, sent: SentBatch) -> SentBatch:
        """Stop a batch; what is done by then is paid for and can be collected."""
        return self._described(sent, lambda batches: batches.cancel(sent.batch_id))

    def download(self, file_id: str) -> str:
        """The text of a file, without keys; a line of JSON is redacted by value, and stays JSON."""
        text = self._guarded(lambda: self._client.files.content(file_id).text)

        def cleared(line: str) -> str:
            try:
                value = json.loads(line)
                found = self.endpoint.cleared(value)
            except (ValueError, RecursionError):
                return self.endpoint.redacted(line)
            return line if found == value else json.dumps(found)

        return "\n".join(map(cleared, text.split("\n")))

    def _guarded(self, action: Callable[[], Any]) -> Any:
        host = self.endpoint.host
        try:
            return action()
        except self._sdk.NotFoundError as error:
            raise EndpointError(
                f"{host} has no such batch or file, or no batches at all (404); "
                "use `lensaudit judge run`"
            ) from error
        except self._sdk.OpenAIError as error:
            raise EndpointError(self._line(error)) from error
        except (AttributeError, TypeError, ValueError) as error:  # the SDK checks no types
            raise EndpointError(
                f"{host}: what the server sends describes no batch and no file; check that "
                "--base-url is a server with batches, or use `lensaudit judge run`"
            ) from error

    def _described(self, sent: SentBatch, ask: Callable[[Any], Any]) -> SentBatch:
        return self._guarded(lambda: self._info(sent, ask(self._client.batches)))

    def _info(self, sent: SentBatch, batch: Any) -> SentBatch:
        counts = batch.request_counts
        errors = batch.errors.data if batch.errors and batch.errors.data else []
        told = (batch.id, batch.input_file_id, batch.status)
        if not all(isinstance(one, str) for one in told) or not batch.id:
            raise TypeError("a batch without an id, a file or a state")
        if batch.status not in BATCH_STATES:
            said = self._text(batch.status)
            raise EndpointError(
                f"{self.endpoint.host}: the state of a batch is {said!r}, which is not a known one"
            )
        cleared = self.endpoint.cleared
        return replace(
            sent,
            batch_id=cleared(batch.id),
            status=batch.status,
            problem=self._text("; ".join(f"{one.code}: {one.message}" for one in errors[:2])),
            output_file=cleared(batch.output_file_id),
            error_file=cleared(batch.error_file_id),
            done=(counts.completed + counts.failed) if counts else 0,
            total=counts.total if counts else 0,
        )

    def _cause(self, error: "openai.OpenAIError") -> Cause:
        if not isinstance(error, self._sdk.APIStatusError):
            return "silent" if isinstance(error, self._sdk.APIConnectionError) else "garbage"
        if error.code == TOO_LONG:
            return "garbage"
        if error.status_code in _NOT_TAKEN:
            return "refused"
        return "silent" if error.status_code >= 500 or error.status_code in _PASSING else ""

    def _fatal(self, error: "openai.OpenAIError") -> bool:
        status = getattr(error, "status_code", None)
        return status in _FATAL or getattr(error, "code", None) == "insufficient_quota"

    def _line(self, error: "openai.OpenAIError") -> str:
        """An error as a line for the user, without the key."""
        host, option = self.endpoint.host, self.endpoint.option
        if isinstance(error, self._sdk.APITimeoutError):
            return f"{host} did not answer in time, after retries"
        if isinstance(error, self._sdk.APIConnectionError):
            return f"{host} cannot be reached ({self._text(str(error.__cause__ or error))})"
        if not isinstance(error, self._sdk.APIStatusError):
            return self._text(str(error))
        said, status = self._text(_said(error.body) or "no reason given"), error.status_code
        if error.code == TOO_LONG:
            return f"{host} sends {said} in one answer; nothing of it is kept"
        key = "; check --key-env or --key-file"
        todo = dict.fromkeys(_REDIRECTS, f"; it redirects: give the final address as {option}") | {
            401: key,
            403: key,
            404: f"; check the model's name, and that {option} ends as the server wants it (/v1)",
        }
        return f"{host} refuses ({status}: {said}){todo.get(status, '')}"

    def _text(self, text: str) -> str:
        return " ".join(self.endpoint.redacted(text).split())[:_SHOWN]


def _said(body: Any) -> str:
    """The message in an error's body, in any of the usual layouts."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, Mapping) else inner
        return str(message) if message else json.dumps(dict(body))
    return str(body or "")


def bounded_client(sdk: Any, timeout_s: float, **options: Any) -> Any:
    """OpenAI's HTTP client, each of whose attempts ends after `timeout_s`.

    Its own timeouts are for one read each: a server that sends a byte a second is never late.
    """
    base = sdk.DefaultHttpxClient
    # the SDK brings httpx or its successor, and knows the errors of that one alone
    web: Any = sys.modules[base.__mro__[1].__module__.partition(".")[0]]

    class Bounded(base):
        def send(self, request: Any, *, stream: bool = False, **more: Any) -> Any:
            """Answer of the server, read to its end."""
            is_file = "/files" in request.url.path
            seconds = timeout_s * (FILE_TIMES if is_file else 1)
            most = MOST_FILE_BYTES if is_file else MOST_BYTES
            send = super().send
            late = web.ReadTimeout(f"no whole answer within {seconds:g} s", request=request)

            def fetch() -> Any:
                answer = send(request, stream=True, **more)
                try:
                    content = _read(answer, most, time.monotonic() + seconds, late)
                finally:
                    answer.close()
                if content is None:
                    said = {"code": TOO_LONG, "message": f"more than {most // 2**20} MB"}
                    return web.Response(413, json={"error": said}, request=request)
                kept = [one for one in answer.headers.multi_items() if one[0] not in _OF_THE_WIRE]
                return web.Response(
                    answer.status_code, headers=kept, content=content, request=request
                )

            # StreamError is a RuntimeError, InvalidURL an error of its own
            known = (web.HTTPError, web.InvalidURL, OSError, ValueError, RuntimeError)
            return _within(fetch, seconds, late, known)

    return Bounded(timeout=timeout_s, **options)


def _read(answer: Any, most: int, end: float, late: Exception) -> bytes | None:
    """The unpacked body; None where it is too long, and `late` where the call has timed out."""
    content = bytearray()
    for chunk in answer.iter_bytes():
        content += chunk
        if time.monotonic() > end:
            raise late
        if len(content) > most:
            return None
    return bytes(content)


def _within(
    work: Callable[[], Any], seconds: float, late: Exception, known: tuple[type[Exception], ...]
) -> Any:
    """What `work` returns, or raises of the `known` errors; `late` after so long.

    A thread that waits for a server cannot be ended: it is left to itself, and ends with the
    process or with the server's next word.
    """
    answer = Future[Any]()

    def run() -> None:
        try:
            answer.set_result(work())
        except known as error:  # raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except TimeoutError:
        raise late from None
