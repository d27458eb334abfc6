"""The process in which chat templates are rendered: one JSON request a line, one answer a line.

A template is a program that came with a checkpoint. Here it has a limit of memory, a clock for each
text, one date for all of them, and nothing of ours to spoil.
"""

import json
import signal
import sys
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from transformers.utils import chat_template_utils

MEMORY_BYTES = 512 * 2**20
"""Beyond what the process takes before its first text."""
MOST_ADDED = 100_000
"""Characters of a text beyond those that were given."""


class _Clock(datetime):
    """The date that `strftime_now` of a template tells: that of the request, never today's."""

    today_is = datetime(2000, 1, 1)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The date of the request, at midnight."""
        return cls.today_is


def limit_memory() -> None:
    """Refuse allocations beyond `MEMORY_BYTES` from here on, where the system can."""
    try:
        import resource

        with open("/proc/self/statm") as stream:
            now = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
    except (ImportError, OSError, ValueError):  # macOS and Windows: time and size alone
        pass


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The text of a conversation, or what the template says against it."""
    _Clock.today_is = datetime.fromisoformat(request.pop("today"))
    try:
        text = chat_template_utils.render_jinja_template(**request)[0][0]
    except MemoryError:
        return {"error": f"wants more than {MEMORY_BYTES // 2**20} MB of memory"}
    except (
        *(TemplateError, ArithmeticError, LookupError, RuntimeError),
        *(AttributeError, TypeError, ValueError),
    ) as error:
        return {"error": (str(error).splitlines() or [type(error).__name__])[0][:120]}
    given = sum(len(str(turn.get("content"))) for turn in request["conversations"][0])
    if len(text) > given + MOST_ADDED:
        return {"error": f"adds {len(text) - given} characters, at most {MOST_ADDED} are taken"}
    return {"text": text}


def serve(seconds: int) -> None:
    """Answer requests until there are no more, each within `seconds`."""
    chat_template_utils.datetime = _Clock  # pyright: ignore[reportPrivateImportUsage]
    limit_memory()
    # of the processor's time: on a busy machine a text takes longer; Windows has no such clock
    timer, kind = getattr(signal, "setitimer", lambda *_: None), getattr(signal, "ITIMER_PROF", 0)
    for line in sys.stdin:
        timer(kind, seconds)  # ends the process, also where nobody waits for it any more
        said = json.dumps(answer(json.loads(line)))
        timer(kind, 0)
        print(said, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
