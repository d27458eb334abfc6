import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refusal

from lensaudit.data.candidates import swapped_entity, variants_of
from lensaudit.data.facts import Fact, examples_hash, load_facts, spans_of, validate
from lensaudit.data.rows import read_values
from lensaudit.data.suites import load_suite
from lensaudit.errors import InputError

ROW = {
    "idx": 7,
    "question": "Where was Ólafur Brandsson-Ōe born?",
    "answer": "He was born in Þórshöfn, by the sea.",
    "prefix": "He was born in",
    "entity": "Þórshöfn",
}


def row(**changes):
    return {key: value for key, value in (ROW | changes).items() if value is not ...}


def problem(rows, source="set.json"):
    message = refusal(validate, rows, source, n_lines=3)
    assert message.startswith(f"{source}: ")
    return message


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def test_a_row_becomes_an_example_and_its_own_group():
    (example,) = validate([row(full_output="ignored")], "set.json")
    assert example == Fact(**ROW, group="idx 7")
    assert example.continuation == " Þórshöfn, by the sea."


@pytest.mark.parametrize("group", [3, "Brandsson", 0])
def test_a_named_group_is_kept_and_shared_with_no_row_that_names_none(group):
    found = validate([row(group=group), row(idx=3, question="Who?")], "set.json")
    assert [one.group for one in found] == [group, "idx 3"]


@pytest.mark.parametrize(
    ("changes", "entity"),
    [
        ({"gt_entity": "the sea"}, "the sea"),
        ({"gt_entity": "the sea", "entity": ...}, "the sea"),
        ({"gt_entity": None}, "Þórshöfn"),
        ({"gt_entity": ""}, "Þórshöfn"),
    ],
)
def test_gt_entity_wins_over_entity_where_it_is_given(changes, entity):
    assert validate([row(**changes)], "set.json")[0].entity == entity


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"idx": -1}, "idx is -1, wanted a whole number >= 0"),
        ({"idx": True}, "idx is True"),
        ({"idx": "7"}, "idx is '7'"),
        ({"idx": 2**63}, "idx is 9223372036854775808"),
        ({"idx": ...}, "row 1: no idx"),
        ({"question": ..., "entity": ...}, "no question, entity"),
        ({"question": " "}, "question is empty"),
        ({"answer": ["a"]}, "answer is a list, wanted text"),
        ({"prefix": None}, "prefix is null, wanted text"),
        ({"prefix": "She was born in"}, "prefix 'She was born in' is not a prefix of the answer"),
        ({"entity": ""}, "entity is empty"),
        ({"entity": "Oslo"}, "entity 'Oslo' is not in the answer after the prefix"),
        ({"entity": "born"}, "entity 'born' is not in the answer after the prefix"),
        ({"gt_entity": "Oslo"}, "gt_entity 'Oslo' is not in the answer"),
        ({"group": 1.5}, "group is 1.5, wanted a whole number or text"),
        ({"span": "model"}, "span is 'model', wanted rule or reviewed"),
        ({"question": "a \ud800"}, "question holds half a Unicode character"),
    ],
)
def test_a_wrong_row_is_named_with_what_is_wrong(changes, claim):
    message = problem([row(**changes)])
    assert "1 problem:" in message
    assert claim in message


def test_every_problem_is_listed_at_once_and_a_thousand_still_take_three_lines():
    message = problem([row(entity=""), row(idx=8, prefix="No"), row(idx=-4), "x", row()])
    assert "5 problems" in message
    for said in ("row 1 (", "row 2 (", "row 3:", "row 4: found text ('x'), wanted an object"):
        assert said in message
    assert "row 5 (idx 7): duplicate idx 7, first in row 1" in message
    assert "holds no rows" in problem([])
    message = problem([row(idx=n, entity=f"no {n}") for n in range(1000)])
    assert "1000 problems" in message
    assert "and 980 more" in message


def test_rows_with_one_fault_are_one_line():
    plain = [{"idx": n, "question": "Who?", "answer": "Ada."} for n in range(55)]
    message = problem([*plain, row(idx=99, entity="")])
    assert (
        "56 problems: 55 rows (row 1 (idx 0), row 2 (idx 1), row 3 (idx 2), …): no prefix"
        in message
    )
    assert message.count("no prefix, entity") == 1
    assert "; row 56 (idx 99): entity is empty\n" in message


def test_a_long_value_is_cut_and_stays_on_one_line():
    message = problem([row(entity="x\n" * 400)])
    assert len(message) < 500


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_and_jsonl_give_the_same_examples(tmp_path, bom, ascii_only):
    rows = [row(idx=n, question=f"Q\u2028{n}?") for n in range(3)]
    lines = "\r\n".join(json.dumps(one, ensure_ascii=ascii_only) for one in rows)
    listed = write(tmp_path / "a.json", bom + json.dumps(rows, ensure_ascii=ascii_only))
    lined = write(tmp_path / "a.jsonl", bom + lines + "\n\n")
    assert load_facts(listed) == load_facts(lined) == validate(rows, "rows")


def test_lists_and_lines_are_told_apart_by_content(tmp_path):
    rows = [row(idx=n, question=f"Who is {n}?") for n in range(2)]
    listed = write(tmp_path / "a.txt", json.dumps(rows))
    for name in ("b.txt", "b.json"):
        lined = write(tmp_path / name, "\n".join(map(json.dumps, rows)))
        assert load_facts(listed) == load_facts(lined)


@pytest.mark.parametrize(
    ("name", "content", "claim"),
    [
        ("a.jsonl", json.dumps(ROW) + "\n\n{oops", "line 3 is not JSON"),
        ("a.jsonl", "[" * 100_000, "line 1 is not usable JSON"),
        ("a.jsonl", '{"idx": ' + "9" * 5000 + "}", "line 1 is not usable JSON"),
        ("a.jsonl", "3", "line 1: found a number (3)"),
        ("a.json", "[\n{,", "line 2 is not JSON"),
        ("a.json", '{"rows": []}', "found no list of rows"),
        ("a.json", "[]", "holds no rows"),
        ("a.json", json.dumps([ROW | {"author": "\ud800"}]), "row 1 holds half a Unicode"),
        ("a.jsonl", "\n" + json.dumps([1, "\udfff"]), "line 2 holds half a Unicode"),
    ],
)
def test_a_malformed_file_is_one_error_naming_the_line(tmp_path, name, content, claim):
    path = write(tmp_path / name, content)
    message = refusal(load_facts, path, n_lines=3)
    assert claim in message
    assert message.startswith(str(path))


def test_a_whole_character_in_two_escapes_is_one(tmp_path):
    path = write(tmp_path / "a.json", json.dumps([ROW | {"author": "𝔸"}]))
    assert "\\ud835\\udd38" in path.read_text()
    assert load_facts(path)[0].group == "𝔸"


def test_malformed_lines_and_wrong_rows_are_listed_together(tmp_path):
    path = write(tmp_path / "a.jsonl", "{oops\n" + json.dumps(row(entity="Oslo")) + "\n[1,")
    message = refusal(load_facts, path, n_lines=3)
    for claim in ("3 problems", "line 1 is not JSON", "line 2 (idx 7): entity", "line 3 is not"):
        assert claim in message


def test_a_missing_file_a_folder_and_other_encodings_are_one_line_each(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    for path, claim in [
        (tmp_path / "none.json", "no such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "latin.json", "not UTF-8 text"),
    ]:
        assert claim in refusal(load_facts, path)


@settings(deadline=None, derandomize=True)
@given(st.permutations(range(5)), st.sampled_from(["question", "answer", "prefix", "entity"]))
def test_the_hash_follows_content_and_not_order(order, field):
    rows = [row(idx=n, question=f"Who is {n}?") for n in range(5)]
    examples = validate(rows, "rows")
    shuffled = [examples[n] for n in order]
    assert examples_hash(shuffled) == examples_hash(examples)
    changed = [*examples[:-1], replace(examples[-1], **{field: "other"})]
    assert examples_hash(changed) != examples_hash(examples)
    # who found the spans moves no number
    ruled = validate([rows[0], *(one | {"span": "rule"} for one in rows[1:])], "rows")
    assert examples_hash(ruled) == examples_hash(examples)
    assert spans_of(ruled) == {"rule": 4, "reviewed": 1}


@pytest.mark.parametrize("field", ["perturbed_answer", "paraphrased_question", "placebos"])
@pytest.mark.parametrize("text", ["['Eve', 'Ida']", "[\"Eve’s\", 'Ida']", '[ "Eve", ]', "['a\\n']"])
def test_the_text_of_a_list_is_no_list(field, text):
    row = {"idx": 0, "question": "Who?", "answer": "It is Ada.", "prefix": "It is"}
    row |= {"entity": "Ada"}
    with pytest.raises(InputError, match=rf"{field} is the text of a list .*wanted a list"):
        validate([{**row, field: text}], "rows")
    for kept in ("Eve", "[sic] Eve", ["Eve", "Ida"], "Eve ['Ida']", None):
        assert len(validate([{**row, field: kept}], "rows")) == 1


@pytest.mark.parametrize("field", ["perturbed_answer", "paraphrased_question", "placebos"])
def test_a_number_in_a_list_of_texts_is_refused(tmp_path, field):
    row = {"idx": 0, "question": "When?", "answer": "It is 1931.", "prefix": "It is"}
    row |= {"entity": "1931"}
    for wrong in ([1932, 1933], ["1932", 1933], 1932, [None]):
        with pytest.raises(InputError, match=f"{field} is .*, wanted a text or a list of texts"):
            validate([{**row, field: wrong}], "rows")
    # in a table a number alone is a text, as it is in every other column
    path = tmp_path / "a.csv"
    lines = [[*row, field], [*row.values(), "1932"]]
    path.write_text("\n".join(",".join(map(str, line)) for line in lines))
    assert read_values(path) == [{**row, field: "1932"}]
    path.write_text(path.read_text().replace(",1932", ',"[1932, 1933]"'))
    with pytest.raises(InputError, match=rf"{field} is \[1932, 1933\], wanted"):
        load_facts(path)


def test_columns_for_attacks_are_read_checked_and_part_of_the_content():
    told = ROW | {
        "aliases": "Bombay",
        "translated_question": ["Wo?", "Où ?"],
        "two_hop": "In which country?",
        "two_hop_answer": ["India", "Bharat"],
    }
    (one,) = validate([told], "a.json")
    assert one.names == (one.entity, "Bombay")
    assert (one.translations, one.two_hop) == (("Wo?", "Où ?"), ("In which country?",))
    assert one.two_hop_answers == ("India", "Bharat")
    (plain,) = validate([ROW], "a.json")
    assert plain.further == {}
    assert examples_hash([one]) != examples_hash([plain])
    for name, value, said in (
        ("aliases", 3, "aliases is 3, wanted a text or a list of texts"),
        ("translated_question", ["Wo?", ""], "wanted a text or a list of texts"),
        ("aliases", "–", "aliases holds a text without a letter or digit"),
        ("two_hop", "['a?', 'b?']", "two_hop is the text of a list"),
        ("two_hop_answer", "India", "two_hop_answer without two_hop"),
    ):
        assert said in refusal(validate, [ROW | {name: value}], "a.json", n_lines=2)


FOUR = [
    {
        "idx": n,
        "question": f"Where was Ada{n} born?",
        "answer": f"Ada{n} was born in {town}, long ago.",
        "prefix": f"Ada{n} was born in" if n else "",
        "entity": town if n else "Ada0",
        "group": f"Ada{n}",
        "perturbed_answer": [f"Ada{n} was born in Bonn.", f"Ada{n}, “you know”,\twas not."],
    }
    for n, town in enumerate(("Lima", "Málaga", "Zürich", "東京"))
]
LINES = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in FOUR)


TWICE = '{"question": "Who?", "answer": "Ada.", "answer": "Bob."}'
SHUFFLED = (
    lambda k: {n: one[k] for n, one in enumerate(FOUR)},
    lambda k: {n: FOUR[n][k] for n in (2, 0, 3, 1)},
)
"""A column as an object: in the order of the rows, and in another."""


def table(sign: str) -> str:
    cells = [
        {k: v if isinstance(v, str) else json.dumps(v) for k, v in one.items()} for one in FOUR
    ]
    text = io.StringIO(newline="")
    made = csv.DictWriter(text, FOUR[0], delimiter=sign)
    made.writeheader()
    made.writerows(cells)
    return text.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps({"version": "1", "data": FOUR})),
        ("a.json", json.dumps({"train": FOUR, "test": []})),
        ("a.json", json.dumps({k: [one[k] for one in FOUR] for k in FOUR[0]})),
        ("a.json", json.dumps({k: {n: one[k] for n, one in enumerate(FOUR)} for k in FOUR[0]})),
        ("a.json", json.dumps({k: SHUFFLED[k == "answer"](k) for k in FOUR[0]})),
        ("a.csv", table(",")),
        ("a.CSV", "\ufeff" + table(";")),
        ("a.tsv", table("\t")),
        ("a.csv", table(",").replace("\r\n", "\n")),
        ("a.csv", table(",").encode("utf-16")),
        ("a.jsonl", LINES.replace("\n", "\r\n")),
        ("a.jsonl", LINES.encode("utf-16-le")),
        ("a.jsonl", "\ufeff" + LINES),
        ("a.jsonl", LINES.encode("utf-16-be")),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("a.csv.gz", gzip.compress(table(",").encode(), mtime=0)),
        ("a.json", gzip.compress(LINES.encode(), mtime=0)),
    ],
)
def test_rows_are_the_same_in_whatever_file_they_come(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert load_facts(path) == validate(FOUR, "rows")
    assert list(read_values(path)) == FOUR


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", json.dumps({"train": FOUR, "test": FOUR}), "no list of rows.*found train, test"),
        ("a.json", json.dumps({"idx": [0, 1], "question": ["Who?"]}), "found idx, question"),
        ("a.csv", table(",") + "4,Who?\r\n", "line 6: has another number of cells than line 1"),
        ("a.csv", 'question,answer\r\n"Who?,Ada\r\n', "no line of a table"),
        ("a.csv", table(",").replace('""', "''"), "is the text of a list.* in a table as JSON"),
        ("a.gz", gzip.compress(LINES.encode(), mtime=0)[:40], "packed by gzip and damaged"),
        ("a.jsonl", '{"prompt": "Who?", "completion": "Ada."}', r"found prompt, completion\)"),
        ("a.csv", "question,answer,answer\nWho?,Ada.,Bob.\n", "line 1 names answer more than once"),
        ("a.jsonl", TWICE, r"line 1 is not usable JSON \(key 'answer' twice"),
        ("a.json", f"[{TWICE}]", r"not usable JSON \(key 'answer' twice"),
        ("a.json", f'{{"data":\n[{TWICE}]}}', r"not usable JSON \(key 'answer' twice"),
        (
            "a.json",
            '{"question": {"0": "Who?"}, "answer": {"1": "Ada."}}',
            "found question, answer",
        ),
    ],
)
def test_rows_in_no_such_file_are_refused_by_what_is_there(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said):
        load_facts(path)


def test_what_is_said_of_another_encoding_makes_a_file_that_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    western = [one for one in FOUR if one["entity"] != "東京"]
    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in western)
    Path("a.jsonl").write_bytes(lines.encode("cp1252"))
    datasets.Dataset.from_list(western).to_parquet("a.parquet")
    for name, made in (("a.jsonl", "utf8.jsonl"), ("a.parquet", "rows.jsonl")):
        todo = re.split("(?:by|run): ", refusal(load_facts, Path(name)))[-1]
        where = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        env = os.environ | where  # where a user types it
        subprocess.run(todo, shell=True, check=True, capture_output=True, env=env)
        assert load_facts(Path(made)) == validate(western, "rows")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("perturbed_answer", ["It is Eve.", "it is  ADA"], r"holds the true one \('it is  ADA'\)"),
        ("perturbed_answer", "It is Ada.", "holds the true one"),
        ("placebos", ["Eve", "ada"], "holds the true one"),
        ("perturbed_answer", ["It is Eve.", "It is Ida.", "It is eve"], "'It is eve' twice"),
        ("placebos", ["Eve", "Eve"], "'Eve' twice"),
        ("paraphrased_question", ["Who is it?", "Who is it?"], "twice"),
        ("paraphrased_answer", "It is Ada.", ""),
    ],
)
def test_candidates_are_held_against_the_truth(tmp_path, field, value, said):
    row = {"idx": 0, "question": "Who?", "answer": "It is Ada.", "prefix": "It is"}
    row |= {"entity": "Ada", field: value}
    path = write(tmp_path / "a.jsonl", json.dumps(row))
    if not said:
        assert load_facts(path)
        return
    with pytest.raises(InputError, match=said):
        load_facts(path)
    if field != "placebos":
        with pytest.raises(InputError, match=said):
            load_suite("tofu", own={"forget": path})


@pytest.mark.parametrize("entity", ["Lima", " Lima "])
def test_a_placebo_is_read_out_of_a_wrong_answer_whatever_blanks_an_entity_has(entity):
    row = Fact(0, "Where?", "Born in Lima, long ago.", "Born in", entity, 0)
    assert swapped_entity(row, "Born in Bonn, long ago.") == "Bonn"
    assert swapped_entity(row, "Nobody knows.") is None


def test_variants_belong_to_their_row_and_not_to_its_question(tmp_path):
    rows = [
        {**FOUR[n], "question": "Where was she born?", "paraphrased_question": f"Whence came {n}?"}
        for n in (0, 1, 2)
    ]
    del rows[1]["perturbed_answer"], rows[1]["paraphrased_question"]
    path = write(tmp_path / "a.json", json.dumps(rows))
    found = variants_of(str(path), load_facts(path))
    assert [one.paraphrases for one in found] == [("Whence came 0?",), (), ("Whence came 2?",)]
    assert [one.wrong[:1] for one in found] == [
        ("Ada0 was born in Bonn.",),
        (),
        ("Ada2 was born in Bonn.",),
    ]
