import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

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
    pad_id,
    read_template,
)
from lensaudit.errors import InputError

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "open_unlearning"
pytestmark = pytest.mark.skipif(
    not GOLDEN.exists(), reason="needs ../shared/golden/open_unlearning"
)


def tokenizer_named(name):
    return AutoTokenizer.from_pretrained(GOLDEN / "tokenizers" / name)


def rows_of(data):
    return [json.loads(line) for line in (GOLDEN / "data" / f"{data}.jsonl").open()]


def answer_at(row, field):
    name, _, place = field.partition(".")
    return row[name][int(place)] if place else row[name]


@pytest.mark.parametrize("scenario", ["chat_pad", "chat_eospad", "llama3like", "plain"])
def test_questions_are_encoded_as_upstream_encodes_them(scenario):
    golden = json.loads((GOLDEN / "encodings.json").read_text())[scenario]
    tokenizer = tokenizer_named(golden["tokenizer"])
    template = Template(**golden["template_args"])
    assert (pad_id(tokenizer), tokenizer.eos_token_id) == (
        golden["pad_token_id"],
        golden["eos_token_id"],
    )
    for wanted in golden["rows"]:
        row = rows_of(wanted["data"])[wanted["index"]]
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


def test_completions_are_encoded_as_upstream_encodes_them():
    tokenizer = tokenizer_named("tok_pad")
    golden = json.loads((GOLDEN / "encodings.json").read_text())["muse_completion"]
    for wanted in golden["rows"]:
        row = rows_of(wanted["data"])[wanted["index"]]
        found = encode_completion(tokenizer, row.get("prompt", ""), row.get("gt", row.get("text")))
        assert list(found.ids) == wanted["input_ids"]
        assert found.start == wanted["first_label_pos"]


def test_the_date_line_is_frozen_and_a_template_without_one_drops_it():
    tokenizer = tokenizer_named("tok_llama3like")
    dated = encode_qa(tokenizer, Template(), "Who?", "Ada")
    undated = encode_qa(tokenizer, Template(date_string=None), "Who?", "Ada")
    assert DATE in tokenizer.decode(dated.ids)
    assert DATE not in tokenizer.decode(undated.ids)


def test_a_long_plain_text_is_cut_and_says_so():
    tokenizer = tokenizer_named("tok_pad")
    assert encode_qa(tokenizer, PLAIN, "Who?", "word " * 600).cut
    assert not encode_qa(tokenizer, PLAIN, "Who?", "word").cut
    assert not encode_qa(tokenizer, Template(), "Who?", "word " * 600).cut


def test_cleanup_is_what_transformers_4_did():
    assert (
        clean_up("He did n't say , \" why ? \" it 's fine .")
        == "He didn't say, \" why? \" it's fine."
    )


def test_cleanup_can_be_left_out():
    tokenizer = tokenizer_named("tok_pad")
    ids = tokenizer("why ?")["input_ids"]
    assert decode(tokenizer, ids, "upstream") == "why?"
    assert decode(tokenizer, ids, "none") == "why ?"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "wanted an object"),
        ('{"user_tag": "Q"}', "unknown key 'user_tag'"),
        ('{"system_prompt": 3}', "system_prompt is not text"),
        ('{"user_end_tag": null}', "not text"),
        ('{"apply_chat_template": "no"}', "not true or false"),
    ],
)
def test_a_wrong_template_is_refused(tmp_path, content, said):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(InputError, match=said):
        read_template(tmp_path / "t.json")


def test_the_plain_template_file_reads_as_plain():
    assert read_template(GOLDEN / "plain_template.json") == PLAIN


def test_a_tokenizer_that_cannot_write_the_template_is_refused():
    tokenizer = tokenizer_named("tok_pad")
    tokenizer.chat_template = None
    check_tokenizer(tokenizer, PLAIN, "model")
    with pytest.raises(InputError, match="no chat template"):
        check_tokenizer(tokenizer, Template(), "model")
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="no end-of-text"):
        check_tokenizer(tokenizer, PLAIN, "model")
