"""Chat templates are programs that come with a checkpoint: they run in a process with limits."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from lensaudit.errors import InputError

TODAY = "2025-04-10"
"""What `strftime_now` tells where no `date_string` is given: open-unlearning's date."""
RENDER_SECONDS = 10
"""Of the processor, for one text; stock templates take less than a millisecond."""
_PROCESS = Path(__file__).with_name("template_process.py")


class CannotRender(InputError, TemplateError):
    """A chat template refuses a conversation, or takes too much to write it.

    Also jinja's error: lm-evaluation-harness then tries again without a system text.
    """


def rendered(
    tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Mapping[str, str]], **variables: Any
) -> str:
    """A conversation as the tokenizer's template writes it.

    Args:
        tokenizer: that brings the template.
        conversation: mappings of role and content.
        variables: what transformers' `apply_chat_template` takes, and what templates read.

    Raises:
        CannotRender: with the template's reason.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several, and none of them is the default
        raise CannotRender(str(error).splitlines()[0][:120]) from error
    request = {
        "conversations": [[dict(turn) for turn in conversation]],
        "chat_template": template,
        "today": _day(variables.get("date_string")),
        **tokenizer.special_tokens_map,
        **variables,
    }
    return _text(json.dumps(request, default=str))


@lru_cache(maxsize=4096)  # 20 MB of a template of 4 kB: all models are asked the same rows
def _text(request: str) -> str:
    """What the process makes of a request; a refusal is not kept."""
    said = _RENDERER.ask(request)
    if "error" in said:
        raise CannotRender(said["error"])
    return said["text"]


def _day(date_string: str | None) -> str:
    """The recorded date of a run, as `strftime_now` tells it too."""
    try:
        return datetime.strptime(date_string or "", "%d %b %Y").date().isoformat()
    except ValueError:  # none, or free text for templates that print it
        return TODAY


class _Renderer:
    """The process and its pipe; started when it is first asked, and again after it ended."""

    def __init__(self, seconds: int = RENDER_SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, request: str) -> dict[str, str]:
        """The answer to a request in JSON."""
        # -P: neither the working folder nor that of the script is searched for modules
        command = [sys.executable, "-P", str(_PROCESS), str(self._seconds)]
        with self._lock:
            process = self._process = self._process or subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                print(request, file=process.stdin, flush=True)
                if line := process.stdout.readline():
                    return json.loads(line)
            self._process = None
            process.communicate()  # what it has not read is lost with it
        late = process.returncode == -getattr(signal, "SIGPROF", 0)
        code = f"its process ended with {process.returncode}"
        return {"error": f"takes more than {self._seconds} s of processor time" if late else code}


_RENDERER = _Renderer()
if hasattr(os, "register_at_fork"):  # a fork must not read its parent's answers
    os.register_at_fork(after_in_child=_RENDERER.__init__)
