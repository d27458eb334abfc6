import pytest
from support import refusal
from support.generated import tokenizer_like

from lensaudit.data.chat import PLAIN, Template, answer_of, check_tokenizer, encode_qa
from lensaudit.data.thoughts import answer_in
from lensaudit.errors import InputError


def conversation(assistant, prompt):
    """A chat template with an assistant's turn, and a prompt for one, in special tokens we have."""
    return (
        "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set c = m.content %}"
        + assistant
        + "{%- else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>' + m.content }}"
        + "{{ '<|eot_id|>' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
        + prompt
        + "{%- endif %}"
    )


HEAD = "{{ '<|start_header_id|>assistant<|end_header_id|>' }}"
END = "{{ '<|eot_id|>' }}"
EMPTY = "<think>\\n\\n</think>\\n\\n"
LAST = "{%- set c = c.split('</think>')[-1] %}"
TEMPLATES = {
    # the conversation has an empty thought before its last answer, the prompt has none
    "qwen3": conversation(
        HEAD + "{%- if loop.last %}{{ '" + EMPTY + "' }}{%- endif %}{{ c }}{{ '<|eot_id|>\\n' }}",
        HEAD
        + "{%- if enable_thinking is defined and not enable_thinking %}{{ '"
        + EMPTY
        + "' }}{%- endif %}",
    ),
    # the prompt opens a thought, the conversation has none and strips those it is given
    "deepseek-r1": conversation(LAST + HEAD + "{{ c }}" + END, HEAD + "{{ '<think>\\n' }}"),
    # the prompt opens it, the conversation closes it
    "qwen3-thinking": conversation(
        HEAD + "{{ '" + EMPTY + "' }}{{ c }}" + END, HEAD + "{{ '<think>\\n' }}"
    ),
    # channels: the conversation has the last one alone, the prompt none
    "gpt-oss": conversation(HEAD + "{{ '<|channel|>final<|message|>' }}{{ c }}" + END, HEAD),
    # channels, and the prompt opens the one of thoughts
    "channels-opened": conversation(
        HEAD + "{{ '<|channel|>final<|message|>' }}{{ c }}" + END,
        HEAD + "{{ '<|channel|>analysis<|message|>' }}",
    ),
    # no end of turn, a thought on one line
    "glm": conversation(
        HEAD + "{{ '\\n<think></think>\\n' }}{{ c }}",
        HEAD + "{%- if enable_thinking is defined and not enable_thinking %}"
        "{{ '\\n<think></think>' }}{%- endif %}",
    ),
    # the prompt has an empty thought, the conversation none
    "gemma4": conversation(
        HEAD + "{{ '\\n' + c }}" + END,
        HEAD + "{{ '\\n' }}{%- if not enable_thinking | default(false) %}"
        "{{ '<|channel>thought\\n<channel|>' }}{%- endif %}",
    ),
    # told to think the prompt opens a thought; else both close one that nobody opened
    "deepseek-v3": conversation(
        HEAD + "{{ '</think>' + c }}" + END,
        HEAD + "{{ '<think>' if thinking is defined and thinking else '</think>' }}",
    ),
    # prompt and conversation open it, and nobody closes it
    "nemotron": conversation(
        HEAD + "{{ '<think>\\n\\n' + c }}" + END, HEAD + "{{ '<think>\\n\\n' }}"
    ),
    # the thought is asked for in the system text alone
    "magistral": "{{ '[SYSTEM]First think [THINK]Hm.[/THINK][/SYSTEM]' }}"
    + conversation("{{ c }}" + END, ""),
}
"""Chat templates that write thoughts where public ones do, in own words and short."""
EMPTIED = {
    "qwen3": "<think>\n\n</think>\n\n",
    "deepseek-r1": "<think>\n\n</think>\n\n",
    "qwen3-thinking": "<think>\n\n</think>\n\n",
    "gpt-oss": "<|channel|>final<|message|>",
    "channels-opened": "<|channel|>analysis<|message|><|end|><|start|>assistant"
    "<|channel|>final<|message|>",
    "glm": "\n<think></think>\n",
    "gemma4": "\n<|channel>thought\n<channel|>",
    "deepseek-v3": "</think>",
    "nemotron": "<think>\n\n\n</think>\n\n",
    "magistral": "",
}
"""What stands between the assistant's mark and an answer that is scored."""
OPENED = {
    "qwen3": "<think>\n",
    "deepseek-r1": "<think>\n",
    "qwen3-thinking": "<think>\n",
    "gpt-oss": "<|channel|>analysis<|message|>",
    "channels-opened": "<|channel|>analysis<|message|>",
    "glm": "\n<think>",
    "deepseek-v3": "<think>",
    "nemotron": "<think>\n\n",
}
"""How a prompt opens a thought that is to be had."""
AS_ASKED = {"deepseek-r1", "qwen3-thinking", "channels-opened", "nemotron"}
"""Templates whose own prompt opens one."""


def thinking(name):
    tokenizer = tokenizer_like("pad")
    tokenizer.chat_template = TEMPLATES[name]
    return tokenizer


def encoded(name, **how):
    tokenizer = thinking(name)
    found = encode_qa(tokenizer, Template(system_prompt=None, **how), "Who?", "Zoë")
    text = tokenizer.decode(found.ids[: found.start])
    asked = tokenizer.decode(found.prompt_ids)
    _, mark, after = asked.rpartition("assistant<|end_header_id|>")
    return tokenizer, found, text, after if mark else ""


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_scored_is_the_answer_whatever_thought_a_template_writes(name):
    tokenizer, found, before, _ = encoded(name)
    assert tokenizer.decode(found.labels) == "Zoë<|eot_id|>"
    assert (
        before.endswith("Who?<|eot_id|>")
        or before.rpartition("<|end_header_id|>")[2] == (EMPTIED[name])
    )
    assert found.prompt_is_prefix
    check_tokenizer(tokenizer, Template(), "m")


@pytest.mark.parametrize("name", OPENED)
def test_a_thinking_model_can_be_asked_without_a_thought_and_for_one(name):
    asked = {how: encoded(name, think=how)[3] for how in (None, "empty", "full")}
    assert asked["empty"] == EMPTIED[name]
    assert asked["full"] == OPENED[name]
    assert asked[None] == (
        OPENED[name] if name in AS_ASKED else EMPTIED[name] if name == "deepseek-v3" else ""
    )
    # what is scored is the same, however it is asked
    for how in (None, "empty", "full"):
        tokenizer, found, *_ = encoded(name, think=how)
        assert tokenizer.decode(found.labels) == "Zoë<|eot_id|>"


def test_the_case_of_a_thought_between_prompt_and_answer():
    # as ../shared/cases/folders.py writes it: the end of a turn is no token of its own
    tokenizer = tokenizer_like("pad")
    tokenizer.chat_template = (
        "{%- for m in messages %}{{ '[' + m.role + ']\\n' + ('<think>\\n\\n</think>\\n\\n' if "
        "m.role == 'assistant' else '') + m.content + '[end]\\n' }}{%- endfor %}"
        "{{ '[assistant]\\n' if add_generation_prompt }}"
    )
    found = encode_qa(tokenizer, Template(system_prompt=None), "Who?", "Zoë")
    assert tokenizer.decode(found.labels) == "Zoë<|eot_id|>"
    assert tokenizer.decode(found.prompt_ids) == "[user]\nWho?[end]\n[assistant]\n"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (conversation("{{ 'A: ' + c }}", "{{ 'Reply: ' }}"), "does not begin as its prompt does"),
        (conversation("{{ 'A: ' }}", "{{ 'A: ' }}"), "leaves the answer out"),
        (
            conversation("{{ 'A: ' + c }}{{ c | length }}", "{{ 'A: ' }}"),
            "writes this answer in another way than others",
        ),
    ],
)
def test_where_prompt_and_conversation_part_there_is_no_number(template, said):
    tokenizer = tokenizer_like("pad")
    tokenizer.chat_template = template
    assert said in refusal(check_tokenizer, tokenizer, Template(), "mine")
    with pytest.raises(InputError, match=said):
        encode_qa(tokenizer, Template(system_prompt=None), "Who?", "Zoë")


def test_a_template_without_a_thought_is_not_asked_for_one():
    tokenizer = tokenizer_like("pad")
    for template, said in (
        (Template(think="empty"), "its chat template has no place for a thought"),
        (Template(think="full"), "its chat template has no place for a thought"),
        (Template(think="full", apply_chat_template=False), "a thought needs a chat template"),
    ):
        assert f"--think {template.think}: {said}" in refusal(
            check_tokenizer, tokenizer, template, "m"
        )
    check_tokenizer(tokenizer, PLAIN, "m")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>Lima? No.</think>\n\nOslo", "\n\nOslo"),
        ("Lima? No.\n</think>\nOslo", "\nOslo"),  # the prompt has opened it
        ("[THINK]Lima?[/THINK]Oslo", "Oslo"),
        ("<thought>Lima?</thought>Oslo", "Oslo"),
        ("<reasoning>Lima?</reasoning>Oslo", "Oslo"),
        (
            "<|channel|>analysis<|message|>Lima?<|end|><|start|>assistant<|channel|>final"
            "<|message|>Oslo",
            "Oslo",
        ),
        ("<|channel|>final<|message|>Oslo", "Oslo"),
        ("analysisLima?assistantfinalOslo", "Oslo"),  # its marks were left out
        ("Oslo <think>or Lima?</think>it is", "Oslo it is"),
        ("analysis of Oslo", "analysis of Oslo"),
        ("a < b and <b> of Oslo", "a < b and <b> of Oslo"),
    ],
)
def test_an_answer_loses_its_thought(text, answer):
    assert answer_in(text) == answer


def test_a_thought_that_is_never_closed_is_no_answer():
    for text in ("<think>Oslo", "[THINK]Oslo", "<|channel|>analysis<|message|>Oslo"):
        assert answer_in(text) is None
    assert answer_in("Oslo, I think", opened=True) is None


def test_what_was_generated_is_read_after_the_thought_that_its_prompt_opened():
    tokenizer, found, *_ = encoded("deepseek-r1")
    said = tokenizer("Lima? No.</think>Oslo<|eot_id|>", add_special_tokens=False)["input_ids"]
    assert answer_of(tokenizer, found.prompt_ids, said) == "Oslo"
    assert answer_of(tokenizer, found.prompt_ids, said[:4]) is None
    assert answer_of(tokenizer, found.begun_ids, said[:4]) == tokenizer.decode(said[:4])
    assert answer_of(tokenizer, found.begun_ids, said[-3:], "upstream") == "lo"
