"""How is a question put to a model: in its chat template, or as raw text?"""

from typing import Any, Literal

from lensaudit.data.chat import DATE, PLAIN, SYSTEM_PROMPT, Template, encode_qa
from lensaudit.errors import InputError

Format = Literal["chat", "raw"]


def format_of(tokenizer: Any, wanted: str) -> Format:
    """`auto` is the tokenizer's chat template where it has one.

    Raises:
        InputError: chat is wanted and there is no template.
    """
    if wanted == "chat" and not tokenizer.chat_template:
        raise InputError("--format chat: this tokenizer has no chat template; use --format raw")
    if wanted in ("chat", "raw"):
        return "chat" if wanted == "chat" else "raw"
    return "chat" if tokenizer.chat_template else "raw"


def prompt_ids(tokenizer: Any, form: Format, question: str, system: str | None) -> tuple[int, ...]:
    """What a generation continues; a raw prompt has the system text in front."""
    if form == "chat":
        template = Template(system_prompt=system or SYSTEM_PROMPT, date_string=DATE)
        return encode_qa(tokenizer, template, question, "").prompt_ids
    head = f"{system}\n\n" if system else ""
    text = f"{head}{PLAIN.user_start_tag}{question}{PLAIN.user_end_tag}{PLAIN.asst_start_tag}"
    return tuple(tokenizer(text.rstrip())["input_ids"])
