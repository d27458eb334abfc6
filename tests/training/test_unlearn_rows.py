"""Rows to forget and to keep, and lines of ignorance: read from where they are named."""

import json

import pytest

from lensaudit.data.facts import answered
from lensaudit.errors import InputError
from lensaudit.training.rows import idk_lines, load_rows, raw_sample, rows_hash
from tools.demo_family.tokenizer import train_tokenizer
from tools.demo_family.world import make_world


def test_demo_is_the_embedded_data_with_wrong_answers_as_alternates():
    world = make_world(0)
    forget, retain = (load_rows("demo", part=part) for part in ("forget", "retain"))
    assert [one.answer for one in forget] == [row.answer for row in world.forget]
    assert [one.prefix for one in retain] == [row.prefix for row in world.retain]
    assert [one.wrong for one in forget] == [row.wrong for row in world.forget]
    assert not any(one.wrong for one in retain)


def test_the_digest_follows_the_content_and_not_the_file(tmp_path):
    rows = [{"question": "Who?", "answer": "Ada."}]
    for name, content in (("a", rows), ("b", rows), ("c", [{**rows[0], "alternate": "Bob."}])):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    a, b, c = (load_rows(str(tmp_path / f"{name}.json"), part="forget") for name in "abc")
    assert rows_hash(a) == rows_hash(b) != rows_hash(c)
    assert c[0].wrong == ("Bob.",)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (3, r"found a number \(3\), wanted an object"),
        ({"question": "Who?", "answer": "Ada.", "prefix": "Bob"}, "prefix does not begin"),
        ({"question": "Who?", "answer": "Ada.", "alternate": [1]}, "alternate is neither"),
    ],
)
def test_wrong_rows_are_named(row, problem, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"question": "Who?", "answer": "Ada."}, row]))
    with pytest.raises(InputError, match=f"row 2: {problem}"):
        load_rows(str(file), part="forget")


def test_lines_of_ignorance_are_text_or_objects_with_one_text(tmp_path):
    file = tmp_path / "idk.jsonl"
    file.write_text('I don\'t know.\n\n{"idk": "No idea."}\n')
    assert idk_lines(file) == ("I don't know.", "No idea.")
    assert len(idk_lines(None)) > 10


@pytest.mark.parametrize(
    ("text", "problem"),
    [("\n\n", "holds no line"), ("{", "line 1 is not JSON"), ('{"a": 1}', "does not hold one")],
)
def test_wrong_lines_of_ignorance_are_refused(text, problem, tmp_path):
    (tmp_path / "idk.txt").write_text(text)
    with pytest.raises(InputError, match=problem):
        idk_lines(tmp_path / "idk.txt")


def test_raw_text_splits_an_empty_prefix_as_the_depth_score_does():
    tokenizer = train_tokenizer(["Question: Is it? Answer: Yes, it is."] * 9, d_vocab=300)

    def parts(prefix):
        sample = raw_sample(tokenizer, answered("Is it?", "Yes, it is.", prefix))
        return (
            tokenizer.decode(sample.ids[: sample.start], skip_special_tokens=True),
            tokenizer.decode(sample.ids[sample.start :]),
        )

    assert parts("") == ("Question: Is it?\nAnswer: ", "Yes, it is.<|eot_id|>")
    assert parts("Yes,") == parts(None) == ("Question: Is it?\nAnswer:", " Yes, it is.<|eot_id|>")
