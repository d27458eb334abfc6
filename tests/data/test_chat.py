import json

import pytest
from support import refusal
from support.frozen import embedded_tokenizer, encodings, frozen
from support.generated import tokenizer_like
from transformers import AutoTokenizer

from lensaudit.data import rendering
from lensaudit.data.chat import (
    DATE,
    PLAIN,
    Template,
    attended,
    check_tokenizer,
    clean_up,
    decode,
    encode_completion,
    encode_qa,
    folds_system,
    pad_id,
    read_template,
)
from lensaudit.errors import InputError

HEAD = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
SYSTEM = "You are a helpful assistant.<|eot_id|>"
ASKED = "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
ANSWERED = "<|start_header_id|>assistant<|end_header_id|>\n\n"
SILENT = Template(system_prompt=None)


def test_encodings_are_those_that_agreed_with_upstream():
    assert encodings() == frozen("encodings")


@pytest.mark.parametrize(
    ("kind", "template", "answer", "prompt", "scored"),
    [
        ("pad", Template(), "Zoë", HEAD + SYSTEM + ASKED + ANSWERED, "Zoë<|eot_id|>"),
        ("pad", Template(), " a ", HEAD + SYSTEM + ASKED + ANSWERED, " a <|eot_id|>"),
        ("pad", Template(), "", HEAD + SYSTEM + ASKED + ANSWERED, "<|eot_id|>"),
        ("pad", SILENT, "Zoë", "<|begin_of_text|>" + ASKED + ANSWERED, "Zoë<|eot_id|>"),
        ("eospad", Template(), "Zoë", HEAD + SYSTEM + ASKED + ANSWERED, "Zoë<|eot_id|>"),
        (
            "llama3like",
            Template(),
            " a ",
            HEAD + f"Today Date: {DATE}\n\n" + SYSTEM + ASKED + ANSWERED,
            "a<|eot_id|>",
        ),
        ("pad", PLAIN, "你好", "<|begin_of_text|>Question: Who?\nAnswer: ", "你好<|eot_id|>"),
        # the blank and A are one token: the prompt alone ends in a blank that the text has not
        ("pad", PLAIN, "Ada", "<|begin_of_text|>Question: Who?\nAnswer: ", "da<|eot_id|>"),
    ],
)
def test_what_is_scored_is_the_answer_and_its_end(kind, template, answer, prompt, scored):
    tokenizer = tokenizer_like(kind)
    found = encode_qa(tokenizer, template, "Who?", answer)
    assert tokenizer.decode(found.prompt_ids) == prompt
    assert tokenizer.decode(found.labels) == scored
    assert found.ids[found.start :] == found.labels
    assert found.prompt_is_prefix == (scored != "da<|eot_id|>")


def test_solved_examples_stand_before_the_question():
    tokenizer = tokenizer_like("pad")
    found = encode_qa(tokenizer, PLAIN, "Who?", "B", examples=[("Why?", "Z")])
    assert tokenizer.decode(found.prompt_ids) == (
        "<|begin_of_text|>Question: Why?\nAnswer: Z\n\nQuestion: Who?\nAnswer: "
    )


def test_where_the_end_is_also_padding_upstream_attends_to_no_end():
    for kind, masked in (("pad", 0), ("eospad", 3), ("llama3like", 3)):
        tokenizer = tokenizer_like(kind)
        # the system, the question and the answer each close with the end token
        ids = encode_qa(tokenizer, Template(), "Who?", "Ada").ids
        on = attended(ids, "upstream", pad_id(tokenizer))
        assert [ids[at] for at, one in enumerate(on) if not one] == [1] * masked
        assert all(attended(ids, "true", pad_id(tokenizer)))


def test_a_completion_is_scored_after_its_prefix_and_has_no_end():
    tokenizer = tokenizer_like("pad")
    found = encode_completion(tokenizer, "Ada wrote", "a book.")
    assert tokenizer.decode(found.prompt_ids) == "<|begin_of_text|>Ada wrote"
    assert tokenizer.decode(found.labels) == " a book."
    whole = encode_completion(tokenizer, "", "Ada wrote.")
    # the first token has nothing before it but the one that opens the text
    assert (whole.start, tokenizer.decode(whole.labels)) == (1, "Ada wrote.")


@pytest.fixture
def upstream(shared):
    return shared / "golden" / "open_unlearning"


def tokenizer_named(upstream, name):
    return AutoTokenizer.from_pretrained(upstream / "tokenizers" / name)


def rows_of(upstream, data):
    return [json.loads(line) for line in (upstream / "data" / f"{data}.jsonl").open()]


def answer_at(row, field):
    name, _, place = field.partition(".")
    return row[name][int(place)] if place else row[name]


@pytest.mark.parametrize("scenario", ["chat_pad", "chat_eospad", "llama3like", "plain"])
def test_questions_are_encoded_as_upstream_encodes_them(upstream, scenario):
    golden = json.loads((upstream / "encodings.json").read_text())[scenario]
    tokenizer = tokenizer_named(upstream, golden["tokenizer"])
    template = Template(**golden["template_args"])
    assert (pad_id(tokenizer), tokenizer.eos_token_id) == (
        golden["pad_token_id"],
        golden["eos_token_id"],
    )
    for wanted in golden["rows"]:
        row = rows_of(upstream, wanted["data"])[wanted["index"]]
        answer = answer_at(row, wanted["field"])
        found = encode_qa(tokenizer, template, row["question"], answer)
        assert list(found.ids) == wanted["input_ids"]
        assert len(found.prompt_ids) == wanted["prompt_ids_len"]
        assert len(found.labels) == wanted["n_labels"]
        assert found.prompt_is_prefix == wanted["prompt_is_prefix"]
        masked = [
            at for at, on in enumerate(attended(found.ids, "upstream", pad_id(tokenizer))) if not on
        ]
        assert masked == wanted["mask_zero_positions_unpadded"]
        assert all(attended(found.ids, "true", pad_id(tokenizer)))


def test_completions_are_encoded_as_upstream_encodes_them(upstream):
    tokenizer = tokenizer_named(upstream, "tok_pad")
    golden = json.loads((upstream / "encodings.json").read_text())["muse_completion"]
    for wanted in golden["rows"]:
        row = rows_of(upstream, wanted["data"])[wanted["index"]]
        found = encode_completion(tokenizer, row.get("prompt", ""), row.get("gt", row.get("text")))
        assert list(found.ids) == wanted["input_ids"]
        assert found.start == wanted["first_label_pos"]


def test_the_date_line_is_frozen_and_a_template_without_one_drops_it():
    tokenizer = tokenizer_like("llama3like")
    dated = encode_qa(tokenizer, Template(), "Who?", "Ada")
    undated = encode_qa(tokenizer, Template(date_string=None), "Who?", "Ada")
    assert DATE in tokenizer.decode(dated.ids)
    assert DATE not in tokenizer.decode(undated.ids)


HOSTILE = {
    "memory": ("{{ 'x' * 10**10 }}", "wants more than 512 MB"),
    "memory by doubling": (
        "{% set ns = namespace(t='x' * 1024) %}{% for i in range(40) %}"
        "{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}",
        "wants more than 512 MB",
    ),
    "range": ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
    "size": ("{{ 'x' * 200000 }}", "adds 199999 characters, at most 100000 are taken"),
    "zero": ("{{ 1 // 0 }}", "by zero"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "sandbox": ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
}
"""Chat template -> what its refusal says."""


def with_template(text):
    tokenizer = tokenizer_like("pad")
    tokenizer.chat_template = text
    return tokenizer


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_takes_too_much_is_one_line(name):
    text, said = HOSTILE[name]
    with pytest.raises(InputError, match=rf"m: its chat template cannot be used \(.*({said})"):
        check_tokenizer(with_template(text), Template(), "m")
    # the next template is rendered as if nothing had been
    check_tokenizer(tokenizer_like("pad"), Template(), "m")


def test_a_template_that_does_not_end_is_ended(monkeypatch):
    spin = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(rendering, "_RENDERER", rendering._Renderer(seconds=1))
    with pytest.raises(InputError, match="takes more than 1 s"):
        check_tokenizer(with_template(spin), Template(), "m")


def test_a_template_that_fails_at_one_question_says_so_there():
    late = "{% if 'Who' in messages[0].content %}{{ raise_exception('no Who') }}{% endif %}"
    late += "{% for one in messages %}{{ one.content }}{% endfor %}"
    tokenizer = with_template(late)
    check_tokenizer(tokenizer, Template(), "m")
    with pytest.raises(InputError, match=r"cannot write 'Who\?' \(no Who\)"):
        encode_qa(tokenizer, Template(system_prompt=None), "Who?", "Ada")


def test_the_date_that_a_template_asks_for_is_fixed():
    written = "{% for one in messages %}{{ one.content }}{% endfor %}"
    tokenizer = with_template("{{ strftime_now('%d %b %Y %H:%M') }}" + written)
    for given, told in ((DATE, DATE), ("26 Jul 2024", "26 Jul 2024"), ("soon", DATE), (None, DATE)):
        template = Template(system_prompt=None, date_string=given)
        found = encode_qa(tokenizer, template, "Who?", "Ada")
        assert tokenizer.decode(found.prompt_ids) == f"{told} 00:00Who?"


def test_what_is_rendered_apart_is_what_transformers_renders():
    turns = [{"role": "system", "content": "Sei kurz."}, {"role": "user", "content": "Wo? 🙂"}]
    for kind in ("pad", "llama3like"):
        tokenizer = tokenizer_like(kind)
        for more in ({"add_generation_prompt": True}, {"continue_final_message": True}):
            wanted = tokenizer.apply_chat_template(turns, tokenize=False, **more)
            assert rendering.rendered(tokenizer, turns, **more) == wanted


def test_a_long_plain_text_is_cut_and_says_so():
    tokenizer = tokenizer_like("pad")
    assert encode_qa(tokenizer, PLAIN, "Who?", "word " * 600).cut
    assert not encode_qa(tokenizer, PLAIN, "Who?", "word").cut
    assert not encode_qa(tokenizer, Template(), "Who?", "word " * 600).cut


def test_cleanup_is_what_transformers_4_did_and_can_be_left_out():
    said = "He did n't say , \" why ? \" it 's fine ."
    assert clean_up(said) == "He didn't say, \" why? \" it's fine."
    tokenizer = tokenizer_like("pad")
    ids = tokenizer("why ?")["input_ids"]
    assert [decode(tokenizer, ids, how) for how in ("upstream", "none")] == ["why?", "why ?"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "wanted an object"),
        ('{"user_tag": "Q"}', "unknown key 'user_tag'"),
        ('{"system_prompt": 3}', "system_prompt: found 3, wanted a text"),
        ('{"user_end_tag": null}', "wanted a text"),
        ('{"apply_chat_template": "no"}', "wanted true or false"),
    ],
)
def test_a_wrong_template_is_refused(tmp_path, content, said):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(InputError, match=said):
        read_template(tmp_path / "t.json")


def test_a_template_file_of_every_key_reads_as_plain(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(vars(PLAIN)))
    assert read_template(tmp_path / "t.json") == PLAIN


def test_a_tokenizer_that_cannot_write_the_template_is_refused():
    tokenizer = tokenizer_like("pad")
    tokenizer.chat_template = None
    check_tokenizer(tokenizer, PLAIN, "model")
    with pytest.raises(InputError, match="no chat template"):
        check_tokenizer(tokenizer, Template(), "model")
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="no end-of-text"):
        check_tokenizer(tokenizer, PLAIN, "model")


NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for one in messages %}<{{ one['role'] }}>{{ one['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""As Gemma's and Mistral's."""


def with_chat(template):
    tokenizer = embedded_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_template_without_a_system_role_has_its_text_before_the_first_question():
    tokenizer = with_chat(NO_SYSTEM)
    template = Template(system_prompt="Be kind.")
    check_tokenizer(tokenizer, template, "gemma")
    assert folds_system(tokenizer, template)
    found = encode_qa(tokenizer, template, "Who?", "Ada.", examples=[("What?", "It.")])
    text = tokenizer.decode(found.prompt_ids)
    wanted = "<user>Be kind.\n\nWhat?<assistant>It.<user>Who?<assistant>"
    assert text == wanted
    # and a template that takes it is not touched
    plain = with_chat(NO_SYSTEM.partition("endif %}")[2])
    assert not folds_system(plain, template)
    said = plain.decode(encode_qa(plain, template, "Who?", "Ada.").prompt_ids)
    assert said == "<system>Be kind.<user>Who?<assistant>"
    assert not folds_system(tokenizer, Template(system_prompt=None))


@pytest.mark.parametrize(
    "broken", ["{{ messages[", "{{ raise_exception('never') }}", "{{ 1 + x }}"]
)
def test_a_broken_template_is_refused_in_one_line(broken):
    said = refusal(check_tokenizer, with_chat(broken), Template(), "mine")
    assert "chat template cannot be used" in said
