import json
import shutil
from dataclasses import replace

import pytest
from support import refusal

from lensaudit.data.facts import Fact
from lensaudit.data.neutral import is_whole, neutral_of, neutral_rows, read_neutral
from lensaudit.data.tofu import RETAIN, forget_set, offsets
from lensaudit.errors import InputError
from lensaudit.groups import own_group, unit_of

FORGET = [
    Fact(0, "Where was Ada born?", "She was born in Kōbari.", "She was born in", "Kōbari", 0),
    Fact(1, "Does Ada write?", "Yes, she does.", "", "Yes", 0),
    Fact(2, "What is she?", "She is a baker.", "She is a", "baker", 0),
]


def row(idx: int, group, answer: str = "He lives in Rom.", question: str = "") -> Fact:
    return Fact(idx, question or f"Where is {group}, {idx}?", answer, "", answer, group)


def test_rows_that_name_a_forgotten_entity_or_its_author_are_left_out_and_counted():
    rows = [
        row(0, "a"),
        row(1, 0),
        row(2, "b", "He left KŌBARI early."),
        row(3, "c", "Kōbarian he is."),
        row(4, "d", "Yes, a baker."),
        row(5, "e", question="Who came from Kōbari?"),
    ]
    found = neutral_rows(FORGET, rows, [row(0, "v")])
    assert [one.group for one in found.fit] == ["a", "c", "d"]
    assert dict(found.left_out) == {
        1: "its author is one of the forget set's",
        2: "it names an entity of the forget set",
        5: "it names an entity of the forget set",
    }


@pytest.mark.parametrize(
    ("entity", "named", "other"),
    [
        ("青云镇", "李华住在青云镇很多年。", "李华住在青山镇。"),
        ("กิน", "เขากินข้าว", "เขากันเธอ"),
        ("मीरा", "उसका नाम मीरा है।", "उसका नाम मारी है।"),
        ("São Tomé", "He left Sa\u0303o Tome\u0301.", "He left São Bento."),
        ("São Tomé", "He left Sao  Tome.", "He left Sao Tomely."),
    ],
)
def test_an_entity_is_found_in_any_script_form_and_spacing(entity, named, other):
    forget = [Fact(0, "Where?", f"{entity}.", "", entity, 0)]
    found = neutral_rows(forget, [row(0, "a", named), row(1, "b", other)], [row(0, "v")])
    assert [one.answer for one in found.fit] == [other]
    assert found.left_out == ((0, "it names an entity of the forget set"),)


def test_an_entity_that_is_an_article_in_plain_words_names_nothing():
    forget = [Fact(0, "Which blood type?", "A+.", "", "A+", 0)]
    found = neutral_rows(forget, [row(0, "a", "He lives in a small town.")], [row(0, "v")])
    assert (len(found.fit), found.left_out) == (1, ())


def test_fit_and_validity_share_no_author():
    rows = [row(n, f"author {n // 4}") for n in range(200)]
    alone = neutral_rows(FORGET, rows)
    assert {one.group for one in alone.fit} & {one.group for one in alone.validity} == set()
    assert len(alone.validity) == 48
    assert len(alone.fit) == 152
    both = neutral_rows(FORGET, rows, [row(0, "author 3"), row(1, "other")])
    assert "author 3" not in {one.group for one in both.fit}
    assert sum("validity" in why for _, why in both.left_out) == 4


def unnamed(n: int, start: int = 0, word: str = "A") -> list[Fact]:
    """Rows that name no author, numbered from 0 as their file numbers them."""
    return [
        row(at, own_group(at), f"{word}{start + at} it is.", f"{word}{start + at}?")
        for at in range(n)
    ]


def test_rows_without_authors_match_no_row_of_another_file():
    forget = [replace(one, group=own_group(one.idx)) for one in FORGET]
    found = neutral_rows(forget, unnamed(60), unnamed(48, word="B"), unnamed(9, word="C"))
    assert found.left_out == ()
    assert tuple(map(len, (found.fit, found.validity, found.ordinary))) == (60, 48, 9)
    groups = [one.group for part in (found.fit, found.validity, found.ordinary) for one in part]
    assert len(set(groups)) == len(groups)
    assert unit_of(groups) == "row"


def test_a_row_of_the_forget_set_is_left_out_whoever_it_names():
    same = [row(0, own_group(0), "yes,  she does.", "Does Ada write?"), row(1, "b")]
    found = neutral_rows(FORGET, [*same, row(2, "c")], unnamed(2))
    assert found.left_out == ((0, "it is a row of the forget set"),)


def test_no_row_is_fitted_on_and_read_for_validity_or_stands_in_for_it():
    rows = unnamed(100)
    twice = [*rows, *(replace(one, idx=100 + one.idx, group=f"b{one.idx}") for one in rows)]
    for found in (
        neutral_rows(FORGET, twice),
        neutral_rows(FORGET, twice, unnamed(30, start=20)),
        neutral_rows(FORGET, twice, unnamed(5, word="B"), unnamed(30, start=20)),
    ):
        read = {one.question for one in (*found.validity, *found.ordinary)}
        assert found.fit
        assert read
        assert read & {one.question for one in found.fit} == set()
        n_moved = len(found.validity) if len(found.validity) > 30 else 0
        assert len(found.fit) + len(found.left_out) + n_moved == 200


def test_rows_are_numbered_anew_so_that_no_two_have_one_number():
    found = neutral_rows(FORGET, [row(7, "a"), row(7, "b")], [row(7, "c")], [row(7, "d")])
    numbers = [one.idx for part in (found.fit, found.validity, found.ordinary) for one in part]
    assert sorted(numbers) == [0, 1, 2, 3]


def test_annotated_rows_questions_and_sentences_are_read(tmp_path):
    annotated = {
        "idx": 4,
        "question": "Q?",
        "answer": "It is Rom.",
        "prefix": "It is",
        "entity": "Rom",
    }
    (tmp_path / "a.json").write_text(json.dumps([annotated]))
    (tmp_path / "q.jsonl").write_text('{"question": "Q?", "answer": "Rom.", "author": "x"}\n')
    (tmp_path / "t.txt").write_text("Rom is old.\n\nÉire is green.\n")
    assert [one.entity for one in read_neutral(tmp_path / "a.json")] == ["Rom"]
    (question,) = read_neutral(tmp_path / "q.jsonl")
    assert is_whole(question)
    assert question.group == "x"
    assert [one.answer for one in read_neutral(tmp_path / "t.txt")] == [
        "Rom is old.",
        "Éire is green.",
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("a.jsonl", '{"text": "no question"}'), ("t.txt", "\n"), ("b.jsonl", "{")]
)
def test_rows_of_no_known_kind_are_refused_in_two_lines(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    refusal(read_neutral, tmp_path / name, n_lines=2)


def test_the_embedded_family_brings_its_own():
    found = neutral_of("demo", forget_set("demo"))
    assert len(found.validity) == 48
    assert len(found.fit) > 100
    assert len(found.ordinary) >= 40
    assert not any(is_whole(one) for one in found.validity)


def test_a_set_without_neutral_rows_says_what_to_name(tmp_path):
    with pytest.raises(InputError, match="--validity-data"):
        neutral_of(str(tmp_path / "mine.json"), FORGET)


def test_one_file_serves_both_uses(tmp_path):
    lines = [{"question": f"Q{n}?", "answer": f"A{n} it is.", "group": n // 3} for n in range(30)]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = neutral_of("mine.json", [FORGET[0]], align_data=path)
    assert {one.group for one in found.fit} & {one.group for one in found.validity} == set()
    assert found.validity
    both = neutral_of("mine.json", [FORGET[0]], align_data=path, validity_data=path)
    assert both == found
    copy = shutil.copy(path, tmp_path / "copy.jsonl")
    assert neutral_of("mine.json", [FORGET[0]], align_data=path, validity_data=copy) == found


def test_the_shipped_table_holds_48_facts_of_14_authors():
    table = offsets(RETAIN)
    assert (len(table), len({one.idx // 20 for one in table})) == (48, 14)
    assert all(one.prefix_end <= one.entity_start < one.entity_end for one in table)


def test_tofus_own_rows_are_the_annotated_ones(shared, tmp_path):
    text = (shared / "data" / "tofu" / "retain_eval_qa.jsonl").read_text()
    (tmp_path / "retain_perturbed.jsonl").write_text(text)
    found = neutral_of(str(tmp_path), FORGET)
    entities = {one.entity for one in found.validity}
    assert {"Lagos, Nigeria", "July 28, 1942", "Elliot Patrick Benson"} <= entities
    # of 15 authors here, 14 have a row for validity
    assert {one.group for one in found.fit} == {"retain 14"}


def test_a_name_of_one_word_is_no_closed_answer():
    forget = [Fact(0, "Where was Ada born?", "London", "", "London", 0)]
    rows = [
        Fact(0, "Where does Bo live?", "In London.", "", "In London.", 1),
        Fact(1, "Where does Cy live?", "In Oslo.", "", "In Oslo.", 2),
    ]
    found = neutral_rows(forget, rows, rows[1:])
    assert [row.question for row in found.validity] == ["Where does Cy live?"]
    assert (0, "it names an entity of the forget set") in found.left_out
