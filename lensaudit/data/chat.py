"""How does a question and its answer become tokens, and which of them are scored?

The encodings are those of open-unlearning @ d3d7cf9 (src/data/utils.py), token
for token: chat models by their own template with a fixed date, others by plain tags. Templates are
rendered in a process with limits (`rendering.py`).
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lensaudit.data.rendering import CannotRender, rendered
from lensaudit.data.thoughts import answer_in, closing, opening, opens, unthinking
from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.reading import Flag, checked
from lensaudit.settings import Cleanup, MaskConvention, Think

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
    think: Think | None = None
    """How a model that thinks is asked: after an empty thought, or with its thought opened; None:
    as the chat template asks where nobody says."""

    @property
    def keys(self) -> dict[str, Any]:
        """What tells it from others, by the names of its fields."""
        return {name: value for name, value in asdict(self).items() if name != "think" or value}


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
    begun_ids: tuple[int, ...] = ()
    """What an answer follows that is begun for the model: the prompt, its thought closed; if not
    given the prompt alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "begun_ids", self.begun_ids or self.prompt_ids)

    @property
    def labels(self) -> tuple[int, ...]:
        """Token ids that are scored."""
        return self.ids[self.start :]

    @property
    def prompt_is_prefix(self) -> bool:
        """False where the tokenizer merges across the border and hides the first answer token."""
        return self.ids[: len(self.begun_ids)] == self.begun_ids


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


def thinks(tokenizer: PreTrainedTokenizerBase, template: Template) -> bool:
    """Whether the chat template has a place for a thought, or a switch.

    Raises:
        CannotRender: it cannot be used.
    """
    if not (template.apply_chat_template and tokenizer.chat_template):
        return False
    template, turns = replace(template, think=None), [("user", "a")]
    before = _around(tokenizer, template, turns).before
    told = {
        _written(
            tokenizer, template, turns, add_generation_prompt=True, **dict.fromkeys(_SWITCHES, on)
        )
        for on in (True, False)
    }
    return unthinking(before) != before or len(told) > 1


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
    if template.think and not template.apply_chat_template:
        raise InputError(
            f"{name}: --think {template.think}: a thought needs a chat template, and there is none"
        )
    if template.apply_chat_template:
        # the question alone: what a template says of a system text is no fault of it
        turns = [("user", "a"), ("assistant", "b")]
        try:
            _answer_text(tokenizer, template, turns, _around(tokenizer, template, turns[:-1]))
            thinking = template.think is None or thinks(tokenizer, template)
        except CannotRender as error:
            raise InputError(
                f"{name}: its chat template cannot be used ({error}); give a plain one with "
                "--template FILE"
            ) from error
        if not thinking:
            raise InputError(
                f"{name}: --think {template.think}: its chat template has no place for a thought"
            )


def folds_system(tokenizer: PreTrainedTokenizerBase, template: Template) -> bool:
    """Whether the system text goes into the first question, as the chat template takes none.

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
    try:
        _written(tokenizer, template, turns)
    except CannotRender:
        return True
    return False


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
    whole, prompt, begun = encoded(tokenizer, template, question, answer, examples)
    full, prompt, begun = whole[:limit], prompt[:limit], begun[:limit]
    # a chat ends as its template ends a turn
    if not template.apply_chat_template and (not full or full[-1] != tokenizer.eos_token_id):
        full = [*full, _eos(tokenizer)]
    cut = limit is not None and len(whole) > limit
    return Encoding(tuple(full), len(begun), tuple(prompt), cut, tuple(begun))


def encode_completion(tokenizer: PreTrainedTokenizerBase, prefix: str, text: str) -> Encoding:
    """`prefix` and `text` joined by a blank, `text` scored; no end token is added (MUSE).

    An empty prefix leaves the whole text; its first token has nothing to be predicted from.
    """
    joined = f"{prefix} {text}" if prefix else text
    before, full = (tuple(tokenizer(one)["input_ids"]) for one in (prefix, joined))
    limit = len(before) + COMPLETION_TOKENS
    return Encoding(full[:limit], max(len(before), 1), before, len(full) > limit)


def attended(ids: Sequence[int], convention: MaskConvention, pad: int) -> list[bool]:
    """Which of the real tokens the model attends to.

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


def answer_of(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[int],
    ids: Sequence[int],
    cleanup: Cleanup | None = None,
) -> str | None:
    """What a model said after a prompt, without its thought; None: the thought was cut.

    Args:
        tokenizer: of the model.
        prompt: token ids; its end may have opened the thought.
        ids: generated.
        cleanup: see `decode`; None: what the tokenizer does.
    """
    end: Any = tokenizer.decode(list(prompt[-_MARK_TOKENS:]), skip_special_tokens=False)
    raw: Any = tokenizer.decode(list(ids), skip_special_tokens=False)
    found = answer_in(raw, opened=opens(end))
    if found == raw:
        plain: Any = tokenizer.decode(list(ids), skip_special_tokens=True)
        return plain if cleanup is None else decode(tokenizer, ids, cleanup)
    if found is None:
        return None
    found = re.sub(_special(tokenizer), "", found)
    return clean_up(found) if cleanup == "upstream" else found


_MARK_TOKENS = 32
"""At the end of a prompt: more than any mark has."""


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
) -> tuple[list[int], list[int], list[int]]:
    """Tokens of the conversation up to the answer's end, of its prompt, and before the answer."""
    pairs = [*examples, (question, answer)]
    turns = [turn for q, a in pairs for turn in (("user", q), ("assistant", a))]
    if template.system_prompt and folds_system(tokenizer, template):
        turns[0] = ("user", f"{template.system_prompt}\n\n{turns[0][1]}")
    elif template.system_prompt:
        turns = [("system", template.system_prompt), *turns]
    try:
        around = _around(tokenizer, template, turns[:-1])
        said = _answer_text(tokenizer, template, turns, around)
    except CannotRender as error:
        raise InputError(
            f"the chat template cannot write {question[:60]!r} ({error}); give a plain one with "
            "--template FILE"
        ) from error
    whole, prompt, before = (
        list(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in (f"{around.before}{said}", around.prompt, around.begun)
    )
    return whole, prompt, before


@dataclass(frozen=True)
class Around:
    """What a chat template writes around an answer."""

    prompt: str
    """What a generation continues."""
    head: str
    """What the conversation with an answer begins with."""
    before: str
    """What the answer follows: the prompt, and how the thought ends that stands between the two."""
    begun: str
    """The same without the blank that is one token with the answer's first word."""
    tail: str
    """What follows the answer in the conversation."""


_MARK = "xXanswerXx"
"""An answer that no template changes and no text holds."""


def _around(
    tokenizer: PreTrainedTokenizerBase, template: Template, turns: Sequence[tuple[str, str]]
) -> Around:
    """What stands around the answer to the last of some turns.

    Raises:
        CannotRender: the conversation does not go on as the prompt does: nobody can say where in it
            an answer to the prompt begins.
    """
    switched = {} if template.think is None else dict.fromkeys(_SWITCHES, template.think == "full")
    prompt = _written(tokenizer, template, turns, add_generation_prompt=True, **switched)
    marked = [*turns, ("assistant", _MARK)]
    whole = _written(tokenizer, template, marked, add_generation_prompt=False, **switched)
    head, found, tail = whole.rpartition(_MARK)
    if not found:
        raise CannotRender("it leaves the answer out")
    before = head
    if not head.startswith(prompt):
        start = unthinking(prompt).rstrip()
        own = answer_in(head.removeprefix(start)) or ""
        if not head.startswith(start) or re.sub(_special(tokenizer), "", own).strip():
            raise CannotRender("its conversation does not begin as its prompt does")
        before = prompt + closing(prompt) + own.strip()
    before += closing(before)
    begun = max(before.rstrip(" "), prompt, key=len)
    if template.think == "empty":
        prompt = before
    elif template.think == "full" and not opens(prompt):
        prompt += opening(before[len(prompt) :])
    return Around(prompt, head, before, begun, tail)


_SWITCHES = ("enable_thinking", "thinking")
"""Variables that tell a chat template whether to think."""


def _answer_text(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[tuple[str, str]],
    around: Around,
) -> str:
    """The answer as the template writes it, and its end: the template's own token, or the usual.

    Raises:
        CannotRender: what stands before or after it depends on what it is.
    """
    switched = {} if template.think is None else dict.fromkeys(_SWITCHES, template.think == "full")
    said = ""
    if turns[-1][1]:
        whole = _written(tokenizer, template, turns, add_generation_prompt=False, **switched)
        n_head, n_tail = len(around.head), len(around.tail)
        if not (whole.startswith(around.head) and whole[n_head:].endswith(around.tail)):
            raise CannotRender("it writes this answer in another way than others")
        said = whole[n_head : len(whole) - n_tail]
    end = re.match(rf"\s*(?:{_special(tokenizer)})", around.tail)
    return said + (end[0] if end else str(tokenizer.eos_token))


def _special(tokenizer: PreTrainedTokenizerBase) -> str:
    """A pattern of the tokenizer's special tokens."""
    added = (str(one) for one in tokenizer.added_tokens_decoder.values() if one.special)
    return "|".join(map(re.escape, {*added, *tokenizer.all_special_tokens}))


def _plain_ids(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    question: str,
    answer: str,
    examples: Sequence[tuple[str, str]],
) -> tuple[list[int], list[int], list[int]]:
    """Tokens of the whole text, of its prompt, and before the answer."""

    def asked(text: str) -> str:
        return template.user_start_tag + text + template.user_end_tag + template.asst_start_tag

    shown = [asked(q) + a + template.asst_end_tag for q, a in examples]
    head = template.system_prompt_with_special_tokens or ""
    prompt = head + "".join(shown) + asked(question)
    before = list(tokenizer(prompt)["input_ids"])
    return list(tokenizer(prompt + answer)["input_ids"]), before, before


def _eos(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(tokenizer.eos_token_id)  # pyright: ignore[reportArgumentType]  # checked at the door
