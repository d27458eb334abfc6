"""HTTP with an end: an attempt takes so long and its answer is so large, whatever a server does."""

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MOST_BYTES = 32 * 2**20
"""Of an answer, unpacked; one of 2,048 tokens with 20 alternatives each has some 3 MB."""
MOST_FILE_BYTES = 512 * 2**20
"""Of a batch's file of results; what is sent off has at most 100 MB."""
FILE_TIMES = 10
"""How many times as long a batch's file may take, up or down."""
TOO_LONG = "too_long"
"""The code of the error that stands for a longer answer."""
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


def bounded_client(sdk: Any, timeout_s: float, **options: Any) -> Any:
    """OpenAI's HTTP client, each of whose attempts ends after `timeout_s`.

    Its own timeouts are for one read each: a server that sends a byte a second is never late.
    """
    base = sdk.DefaultHttpxClient
    # the SDK brings httpx or its successor, and knows the errors of that one alone
    web: Any = sys.modules[base.__mro__[1].__module__.partition(".")[0]]

    class Bounded(base):
        def send(self, request: Any, *, stream: bool = False, **more: Any) -> Any:
            """The whole answer, read."""
            is_file = "/files" in request.url.path
            seconds = timeout_s * (FILE_TIMES if is_file else 1)
            most = MOST_FILE_BYTES if is_file else MOST_BYTES
            send = super().send

            def fetch() -> Any:
                answer = send(request, stream=True, **more)
                try:
                    content = _read(answer, most, time.monotonic() + seconds)
                finally:
                    answer.close()
                if content is None:
                    said = {"code": TOO_LONG, "message": f"more than {most // 2**20} MB"}
                    return web.Response(413, json={"error": said}, request=request)
                kept = [one for one in answer.headers.multi_items() if one[0] not in _OF_THE_WIRE]
                return web.Response(
                    answer.status_code, headers=kept, content=content, request=request
                )

            late = web.ReadTimeout(f"no whole answer within {seconds:g} s", request=request)
            # StreamError is a RuntimeError, InvalidURL an error of its own
            known = (web.HTTPError, web.InvalidURL, OSError, ValueError, RuntimeError)
            return _within(fetch, seconds, late, known)

    return Bounded(timeout=timeout_s, **options)


def _read(answer: Any, most: int, end: float) -> bytes | None:
    """The unpacked body; None where it is too long, or nobody waits for it any more."""
    content = bytearray()
    for chunk in answer.iter_bytes():
        content += chunk
        if len(content) > most or time.monotonic() > end:
            return None
    return bytes(content)


def _within(
    work: Callable[[], Any], seconds: float, late: Exception, known: tuple[type[Exception], ...]
) -> Any:
    """What `work` returns, or raises of the `known` errors; `late` after so long.

    A thread that waits for a server cannot be ended: it is left to itself, and ends with the
    process or with the server's next word.
    """
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((work(), None))
        except known as error:  # raised where it is waited for
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise late from None
    if error is not None:
        raise error
    return found
