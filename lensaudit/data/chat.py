"""How does a question and its answer become tokens, and which of them are scored?

The encodings are those of open-unlearning @ d3d7cf9 (src/data/utils.py), token
for token: chat models by their own template with a fixed date, others by plain tags. Templates are
rendered in a process with limits (`template_process.py`).
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.reading import Flag, checked
from lensaudit.settings import Cleanup, MaskConvention

SYSTEM_PROMPT = "You are a helpful assistant."
"""open-unlearning's Llama-3.2 model configuration."""
DATE = "10 Apr 2025"
"""Freezes the "Today Date" line of Llama-3 templates; open-unlearning's model configurations."""
QA_TOKENS = 512
COMPLETION_TOKENS = 2048
"""Longest plain encodings of open-unlearning; a chat template's output is never cut."""
_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
"""What transformers 4 replaced after decoding, in its order."""


@dataclass(frozen=True)
class Template:
    """How a conversation is written; the keys of a `--template` file."""

    apply_chat_template: Flag = True
    """Use the tokenizer's own template; else the plain tags below."""
    system_prompt: str | None = SYSTEM_PROMPT
    date_string: str | None = DATE
    system_prompt_with_special_tokens: str | None = None
    """Plain text set before everything; read only without a chat template."""
    user_start_tag: str = "Question: "
    user_end_tag: str = "\n"
    asst_start_tag: str = "Answer: "
    asst_end_tag: str = "\n\n"


PLAIN = Template(apply_chat_template=False, system_prompt=None, date_string=None)
"""open-unlearning's template of Llama-2-7b, the default of MUSE."""


@dataclass(frozen=True)
class Encoding:
    """One text to score, not padded."""

    ids: tuple[int, ...]
    start: int
    """First scored position; everything after it is scored, the closing token included."""
    prompt_ids: tuple[int, ...] = ()
    """What a generation continues."""
    cut: bool = False
    """The text was longer than the limit of its kind."""

    @property
    def labels(self) -> tuple[int, ...]:
        """Token ids that are scored."""
        return self.ids[self.start :]

    @property
    def prompt_is_prefix(self) -> bool:
        """False where the tokenizer merges across the border and hides the first answer token."""
        return self.ids[: len(self.prompt_ids)] == self.prompt_ids


def read_template(path: Path) -> Template:
    """A template from a JSON file with the keys of `Template`.

    Raises:
        InputError: not an object, an unknown key, or a value of the wrong type.
    """
    given = read_json(path)
    known = {field.name for field in fields(Template)}
    if not isinstance(given, dict):
        raise InputError(f"{path}: wanted an object with keys of {sorted(known)}")
    if unknown := sorted(set(given) - known):
        raise InputError(
            f"{path}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
    # a key left out of a file is left out of the prompt: the defaults are those of no file
    return checked(Template, {"system_prompt": None, "date_string": None, **given}, path)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, template: Template, name: str) -> None:
    """Refuse, before any work, a tokenizer that cannot write the template.

    Raises:
        InputError: no end-of-text token, or a chat template wanted and absent or broken.
    """
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"{name}: its tokenizer has no end-of-text token; name another --tokenizer"
        )
    if template.apply_chat_template and not tokenizer.chat_template:
        raise InputError(
            f"{name}: its tokenizer has no chat template; give a plain one with --template FILE"
        )
    if template.apply_chat_template:
        # the question alone: what a template says of a system text is no fault of it
        broken = _refusal(tokenizer, template, [("user", "a"), ("assistant", "b")])
        if broken is not None:
            raise InputError(
                f"{name}: its chat template cannot be used ({broken}); give a plain one with "
                "--template FILE"
            )


def folds_system(tokenizer: PreTrainedTokenizerBase, template: Template) -> bool:
    """Whether the system text stands in the first question: the chat template takes no such role.

    As users of Gemma and Mistral write it: system text, an empty line, the question.
    """
    if not (template.apply_chat_template and template.system_prompt):
        return False
    return _refuses_system(tokenizer, repr(tokenizer.chat_template), template)


@lru_cache(maxsize=8)
def _refuses_system(
    tokenizer: PreTrainedTokenizerBase, chat_template: str, template: Template
) -> bool:
    """Tried once for a tokenizer and what its template is now."""
    turns = [("system", template.system_prompt or ""), ("user", "a"), ("assistant", "b")]
    return _refusal(tokenizer, template, turns) is not None


def _refusal(
    tokenizer: PreTrainedTokenizerBase, template: Template, turns: Sequence[tuple[str, str]]
) -> str | None:
    """What a chat template says against some turns; None where it writes them."""
    try:
        _written(tokenizer, template, turns)
    except CannotRender as error:
        return str(error)
    return None


def _written(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[tuple[str, str]],
    **variables: Any,
) -> str:
    """Turns as the tokenizer's chat template writes them, with the date of `template`."""
    if template.date_string:
        variables["date_string"] = template.date_string
    messages = [{"role": role, "content": text} for role, text in turns]
    return rendered(tokenizer, messages, **variables)


def encode_qa(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    question: str,
    answer: str,
    *,
    examples: Sequence[tuple[str, str]] = (),
) -> Encoding:
    """A question and its answer after some solved `examples`; the answer and its end are scored."""
    encoded, limit = (_chat_ids, None) if template.apply_chat_template else (_plain_ids, QA_TOKENS)
    whole, prompt = encoded(tokenizer, template, question, answer, examples)
    full, prompt = whole[:limit], prompt[:limit]
    if not full or full[-1] != tokenizer.eos_token_id:
        full = [*full, _eos(tokenizer)]
    cut = limit is not None and len(whole) > limit
    return Encoding(tuple(full), len(prompt), tuple(prompt), cut)


def encode_completion(tokenizer: PreTrainedTokenizerBase, prefix: str, text: str) -> Encoding:
    """`prefix` and `text` joined by a blank, `text` scored; no end token is added (MUSE).

    An empty prefix leaves the whole text; its first token has nothing to be predicted from.
    """
    joined = f"{prefix} {text}" if prefix else text
    before, full = (tuple(tokenizer(one)["input_ids"]) for one in (prefix, joined))
    limit = len(before) + COMPLETION_TOKENS
    return Encoding(full[:limit], max(len(before), 1), before, len(full) > limit)


def attended(ids: Sequence[int], convention: MaskConvention, pad: int) -> list[bool]:
    """Which of the real tokens are attended to.

    >>> attended([0, 7, 1, 8, 1], "upstream", 1)
    [True, True, False, True, False]
    """
    return [convention == "true" or token != pad for token in ids]


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The padding token; the end-of-text token where there is none, as upstream."""
    pad: Any = tokenizer.pad_token_id
    return _eos(tokenizer) if pad is None else int(pad)


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], cleanup: Cleanup) -> str:
    """Text without special tokens; see `clean_up` for what `upstream` does to it.

    A tokenizer that says `clean_up_tokenization_spaces: false` was never cleaned up.
    """
    text: Any = tokenizer.decode(
        list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    refused = tokenizer.init_kwargs.get("clean_up_tokenization_spaces") is False
    return clean_up(text) if cleanup == "upstream" and not refused else text


def clean_up(text: str) -> str:
    """The blanks that transformers 4 removed when decoding, and transformers 5 leaves for BPE.

    >>> clean_up("He did n't say , why ?")
    "He didn't say, why?"
    """
    for found, replacement in _CLEANUP:
        text = text.replace(found, replacement)
    return text


def _chat_ids(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    question: str,
    answer: str,
    examples: Sequence[tuple[str, str]],
) -> tuple[list[int], list[int]]:
    """Tokens of the whole conversation, and of its prompt."""
    pairs = [*examples, (question, answer)]
    turns = [turn for q, a in pairs for turn in (("user", q), ("assistant", a))]
    if template.system_prompt and folds_system(tokenizer, template):
        turns[0] = ("user", f"{template.system_prompt}\n\n{turns[0][1]}")
    elif template.system_prompt:
        turns = [("system", template.system_prompt), *turns]
    try:
        whole = _written(tokenizer, template, turns, add_generation_prompt=False)
        prompt = _written(tokenizer, template, turns[:-1], add_generation_prompt=True)
    except CannotRender as error:
        raise InputError(
            f"the chat template cannot write {question[:60]!r} ({error}); give a plain one with "
            "--template FILE"
        ) from error
    whole, prompt = (
        list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (whole, prompt)
    )
    return whole, prompt


def _plain_ids(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    question: str,
    answer: str,
    examples: Sequence[tuple[str, str]],
) -> tuple[list[int], list[int]]:
    """Tokens of the whole text, and of its prompt."""

    def asked(text: str) -> str:
        return template.user_start_tag + text + template.user_end_tag + template.asst_start_tag

    shown = [asked(q) + a + template.asst_end_tag for q, a in examples]
    head = template.system_prompt_with_special_tokens or ""
    prompt = head + "".join(shown) + asked(question)
    return list(tokenizer(prompt + answer)["input_ids"]), list(tokenizer(prompt)["input_ids"])


def _eos(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(tokenizer.eos_token_id)  # pyright: ignore[reportArgumentType]  # checked at the door


TODAY = "2025-04-10"
"""What `strftime_now` tells where no `date_string` is given: open-unlearning's date."""
RENDER_SECONDS = 10
"""For one text; stock templates take less than a millisecond."""
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
        late = process.returncode == -getattr(signal, "SIGALRM", 0)
        code = f"its process ended with {process.returncode}"
        return {"error": f"takes more than {self._seconds} s" if late else code}


_RENDERER = _Renderer()
if hasattr(os, "register_at_fork"):  # a fork must not read its parent's answers
    os.register_at_fork(after_in_child=_RENDERER.__init__)
