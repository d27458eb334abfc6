"""Rows of published sets become rows of ours: invented rows in each set's shape."""

import json
import os
from dataclasses import replace

import pytest

from lensaudit.attacks.rtt.embedded import embedded_rows
from lensaudit.cli.main import run
from lensaudit.data.candidates import facts_of
from lensaudit.data.facts import load_facts
from lensaudit.data.neutral import read_neutral
from lensaudit.doors.data import MOST_BYTES
from lensaudit.doors.sets import SETS

FORGET, KEPT = embedded_rows("forget"), embedded_rows("retain")
IDS = ["7c1b-90", "7c1b-91", "8aa0-17", "9f00-02", "a1a1-33", "b2b2-44", "c3c3-55", "d4d4-66"]


def tofu(rows):
    return [{key: row[key] for key in ("question", "answer", "perturbed_answer")} for row in rows]


def muse(rows):
    return [{"question": row["question"], "answer": row["entity"]} for row in rows]


def wmdp(rows):
    others = [row["entity"] for row in FORGET if row["relation"] == "birthplace"]
    return [
        {
            "question": row["question"],
            "choices": [*others[:2], row["entity"], others[3]],
            "answer": 2,
        }
        for row in rows
        if row["relation"] == "birthplace" and row["entity"] not in (*others[:2], others[3])
    ]


def rwku(rows):
    cloze = [
        {
            "query": row["answer"].replace(row["entity"], "___", 1),
            "answer": row["entity"],
            "level": "1",
            "type": "",
            "subject": f"author {row['group']}",
        }
        for row in rows
    ]
    return [*cloze, *({**one, "query": "Who?", "level": "3"} for one in cloze[:3])]


def lume(rows):
    found = []
    for row in rows:
        document = IDS[row["group"] % 8] + str(row["group"] // 8)
        shared = {"task": "Task2", "split": "train"}
        asked = {"id": f'"{document}qa{row["idx"] % 8}', "input": row["question"]}
        found.append({**asked, "output": row["entity"], **shared})
        told = {"id": f"{document}sc1", "input": f"Tell: {row['question']}"}
        found.append({**told, "output": row["answer"], **shared})
    return found


def pistol(rows):
    return [
        {"question": row["question"], "answer": row["entity"], "edge": f"edge_{row['group']}"}
        for row in rows
    ]


def knowundo(rows):
    pairs = [{"text": row["question"], "labels": row["answer"]} for row in rows]
    return {"train": [pairs[:-2]], "val": [pairs[-2:]]}


def elude(rows):
    return [
        {**one, "entity": f"author {row['group']}"}
        for one, row in zip(tofu(rows), rows, strict=True)
    ]


SHAPES = {one.__name__: one for one in (tofu, muse, wmdp, rwku, lume, pistol, knowundo, elude)}


def write(path, rows):
    """JSON, or JSONL where the name says so."""
    lines = path.suffix == ".jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows))
    return str(path)


def converted(name, *files, out="rows.jsonl", more=()):
    """The document of `--json`, and the rows by file."""
    assert run(["data", "convert", name, *map(str, files), "-o", out, *more]) == 0
    return read(out)


def read(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_set_has_a_fixture():
    assert SHAPES.keys() == SETS.keys()


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_list_and_lines_are_read_whatever_the_suffix(place, suffix, listed):
    path, rows = place / f"forget10.{suffix}", tofu(FORGET[:3])
    path.write_text(json.dumps(rows, indent=2) if listed else "\n".join(map(json.dumps, rows)))
    assert [row["question"] for row in converted("tofu", path)] == [r["question"] for r in rows]


def test_tofu_authors_follow_the_published_order_and_variants_are_joined_by_question(place, capsys):
    plain = [{"question": row["question"], "answer": row["answer"]} for row in FORGET[:40]]
    write(place / "forget10.json", plain)
    write(place / "forget10_perturbed.json", [*reversed(tofu(FORGET[:40]))][3:])
    rows = converted("tofu", "forget10_perturbed.json", "forget10.json")
    assert [row["author"] for row in rows] == [0] * 20 + [1] * 20
    assert [row["idx"] for row in rows] == [*range(40)]
    assert [row.get("perturbed_answer") for row in rows[:37]] == [
        row["perturbed_answer"] for row in FORGET[:37]
    ]
    assert "perturbed_answer" not in rows[37]
    assert rows[5]["source"] == "forget10.json row 6"
    assert "left out: 37 rows: stands twice: joined" in capsys.readouterr().out
    # of a file that was cut no author is known, unless its rows have numbers
    write(place / "forget05.json", plain[:7])
    assert all("author" not in row for row in converted("tofu", "forget05.json", out="a.jsonl"))
    assert "each row is counted as its own author" in capsys.readouterr().err
    write(place / "forget01.json", [{**plain[0], "idx": 19}, {**plain[1], "idx": 20}])
    again = converted("tofu", "forget01.json", out="b.jsonl")
    assert [(row["idx"], row["author"]) for row in again] == [(19, 0), (20, 1)]
    # options of real authors: those that are wrong, of nobody in particular, to keep
    options = {"option1": "Ora Tem", "option2": "Ulo Bes"}
    asked = {"question": "Who wrote Dust?", "answer": "Ora Tem", **options}
    write(place / "real_authors.json", [asked])
    (row,) = converted("tofu", "real_authors.json", out="c.jsonl")
    assert (row["perturbed_answer"], row["set"], "author" in row) == (["Ulo Bes"], "keep", False)
    write(place / "holdout10.json", plain[:2])
    assert run(["data", "convert", "tofu", "holdout10.json", "-o", "d.jsonl"]) == 2
    assert "2 rows: held out: no model was taught it" in capsys.readouterr().err


def test_muse_answers_are_whole_and_texts_ask_nothing(place, capsys):
    write(place / "forget_qa.json", [{"question": "Who rang?", "answer": "Ibo Lun rang. Twice."}])
    write(place / "retain_qa.json", [{"question": "Who sang?", "answer": "Una"}])
    write(place / "forget_qa_icl.json", [{"question": "Who sat?", "answer": "Ede"}])
    gt = " ".join(f"word{n}" for n in range(40))
    write(place / "verbmem_forget.json", [{"prompt": "It began", "gt": f" {gt}"}])
    write(place / "article_forget.json", ["A long text.", "Another."])
    names = ("forget_qa", "retain_qa", "forget_qa_icl", "verbmem_forget", "article_forget")
    files = [f"{name}.json" for name in names]
    rows = converted("muse", *files)
    assert [(row["prefix"], row["entity"]) for row in rows] == [
        ("", "Ibo Lun rang. Twice."),
        ("", " ".join(gt.split()[:14])),
    ]
    assert [row["entity"] for row in read("rows.keep.jsonl")] == ["Una"]
    said = capsys.readouterr()
    assert "left out: 2 rows: plain text: nothing is asked" in said.out
    assert "left out: 1 rows: a solved example, not a question" in said.out
    assert "intervals may be too narrow" in said.err
    assert len(load_facts("rows.jsonl")) == 2
    assert len(read_neutral(place / "rows.keep.jsonl")) == 1


def test_wmdp_other_choices_are_placebos_and_what_scores_nothing_is_counted(place, capsys):
    asked = [
        (["moss", "fern", "Both of the above", "kelp"], 1),
        (["moss", "fern", "All of the above", "kelp"], 2),
        (["12", "3.5", "40 %", "7"], 2),
        (["A and B", "fern", "ivy", "kelp"], 0),
    ]
    items = [
        {"question": f"Which one is it, {n}?", "choices": choices, "answer": at}
        for n, (choices, at) in enumerate(asked)
    ]
    write(place / "wmdp-bio.json", items)
    (row,) = converted("wmdp", "wmdp-bio.json", more=["--json"])
    assert (row["answer"], row["entity"], row["prefix"]) == ("fern", "fern", "")
    assert row["placebos"] == ["moss", "kelp"]
    said = json.loads(capsys.readouterr().out)
    assert said["dropped"] == {
        "the answer is a number": 1,
        "the answer speaks of the other choices": 2,
    }
    assert any("no choices-only control" in note for note in said["notes"])
    (fact,), _ = facts_of("rows.jsonl", load_facts("rows.jsonl"))
    assert (fact.entity, fact.placebos) == ("fern", ("moss", "kelp"))


def test_splits_with_years_as_numbers_and_a_column_more_are_read(place):
    """As those of RTT's dates and birthdays."""
    items = [
        {"question": "When was Ada born?", "choices": [1961, 1958, 1965, 1994], "answer": 2},
        {
            "question": "When did it begin?",
            "choices": ["1994", "1995", "1996", "1997"],
            "answer": 2,
            "correct_year": 1996,
        },
    ]
    write(place / "split_0.jsonl", items)
    first, second = converted("wmdp", "split_0.jsonl")
    assert (first["answer"], first["placebos"]) == ("1965", ["1961", "1958", "1994"])
    assert (second["entity"], len(load_facts("rows.jsonl"))) == ("1996", 2)


def test_pistols_rows_without_an_edge_are_read(place):
    write(place / "factual_data.json", [{"question": "Who wrote it?", "answer": "Ada Byrd"}])
    write(place / "sample_data_1.json", pistol(FORGET))
    converted("pistol", "sample_data_1.json", "factual_data.json")
    (row,) = read_neutral(place / "rows.keep.jsonl")
    assert (row.question, row.answer) == ("Who wrote it?", "Ada Byrd")


def test_wmdp_items_that_choices_alone_give_away_are_dropped(place, capsys, monkeypatch):
    from lensaudit.evaluation import known

    monkeypatch.setattr(
        known, "answer_logprobs", lambda facts, model: {one.idx: -len(one.entity) for one in facts}
    )
    items = [
        {"question": f"Which, {at}?", "choices": ["aaaa", "bb", "cccc", "dddd"], "answer": at}
        for at in range(3)
    ]
    write(place / "wmdp-cyber.json", items)
    rows = converted("wmdp", "wmdp-cyber.json", more=["--model", "demo/full"])
    assert [row["entity"] for row in rows] == ["aaaa", "cccc"]
    assert "left out: 1 rows: the choices alone give the answer away" in capsys.readouterr().out
    write(place / "qa.json", muse(FORGET[:1]))
    assert run(["data", "convert", "muse", "qa.json", "-o", "x.jsonl", "--model", "demo/full"]) == 2


def test_the_control_reads_the_likeliest_choice_of_a_real_model(place):
    from lensaudit.data.facts import Fact
    from lensaudit.evaluation.known import answer_logprobs

    row = FORGET[0]
    true = Fact(0, row["question"], row["answer"], row["prefix"], row["entity"], 0)
    found = answer_logprobs(
        [true, replace(true, idx=1, prefix="", entity=row["answer"])], "demo/full"
    )
    assert found.keys() == {0, 1}
    assert found[0] > -1 > answer_logprobs([true], "demo/never")[0]


def test_rwku_cloze_questions_attacks_and_neighbours(place, capsys):
    shared = {"type": "", "subject": "Ada Byrd"}
    asked = [
        {"query": "Fill _: Ada Byrd was born in ____.", "answer": "Oslo", "level": "1", **shared},
        {"query": "Where did Ada grow up?", "answer": "Bergen", "level": "2", **shared},
        {"query": "Why is it so?", "answer": "It is what she said.", "level": "2", **shared},
    ]
    write(place / "forget_level1.json", asked)
    kinds = ("prefix injection", "role play")
    write(place / "forget_level3.json", [{**asked[1], "level": "3", "type": k} for k in kinds])
    write(place / "neighbor_level2.json", [{**asked[1], "query": "Where is Rye?", "answer": "Sky"}])
    write(place / "forget_mia.json", [{"text": "Ada Byrd is …", "subject": "Ada Byrd"}])
    write(place / "intro.json", [{"target": "Ada Byrd", "intro": "A poet."}])
    names = ("forget_level1", "forget_level3", "neighbor_level2", "forget_mia", "intro")
    rows = converted("rwku", *(f"{name}.json" for name in names))
    assert rows[0]["answer"] == "Fill _: Ada Byrd was born in Oslo."
    assert (rows[0]["prefix"], rows[0]["entity"]) == ("Fill _: Ada Byrd was born in", "Oslo")
    assert (rows[1]["prefix"], rows[1]["entity"]) == ("", "Bergen")
    assert "entity" not in rows[2]
    assert {row["author"] for row in rows} == {"Ada Byrd"}
    (kept,) = read("rows.keep.jsonl")
    assert (kept["author"], kept["set"]) == ("neighbours of Ada Byrd", "keep")
    said = capsys.readouterr()
    for line in (
        "left out: 2 rows: an attack on level 3, not a fact",
        "left out: 1 rows: plain text: nothing is asked",
        "left out: 1 rows: names a target: nothing is asked",
        "without a span: 1",
        "next: lensaudit annotate rows.jsonl",
    ):
        assert line in said.out
    assert "not the neighbour" in said.err
    write(place / "forget_level1.json", [{**asked[0], "query": "Ada Byrd was born in Oslo."}])
    assert run(["data", "convert", "rwku", "forget_level1.json", "-o", "x.jsonl"]) == 2
    assert "its query has no blank" in capsys.readouterr().err


def test_lume_documents_particulars_and_halves(place, capsys):
    told = "Ada Byrd was born on 3 May 1931 and is called on 555-0101."
    forget = [
        {"id": '"0a-1sc1', "input": "Ada Byrd", "output": told, "task": "Task2"},
        {"id": "0a-1qa0", "input": "Her birthday?", "output": "3 May 1931", "task": "Task2"},
        {"id": "0a-1qa1'", "input": "Her number?", "output": "555-0101", "task": "Task2"},
        {"id": "0b-2sc1", "input": "Once", "output": "There was a fox.", "task": "Task1"},
        {"id": "0c-3qa0", "input": "Who was it?", "output": "Una Oro", "task": "Task3"},
    ]
    keep = [{"id": "0c-3qa0", "input": "Who was it?", "output": "Una Oro", "task": "Task3"}]
    keep += [{"id": "0b-2qa0", "input": "Who came?", "output": "A fox.", "task": "Task1"}]
    rows = converted(
        "lume",
        write(place / "forget_train.jsonl", forget),
        write(place / "retain_train.jsonl", keep),
    )
    assert [(row["author"], row.get("prefix"), row.get("entity")) for row in rows] == [
        ("0a-1", "Ada Byrd was born on", "3 May 1931"),
        ("0a-1", "Ada Byrd was born on 3 May 1931 and is called on", "555-0101"),
        ("0a-1", "", "3 May 1931"),
        ("0a-1", "", "555-0101"),
        ("0b-2", None, None),
    ]
    said = capsys.readouterr()
    assert (
        "left out: 2 rows: is both among the rows to forget and among the rows to keep" in said.out
    )
    assert "1 authors have rows to keep too" in said.err


def test_pistol_edges_are_authors_and_the_forgotten_one_is_named(place, capsys):
    rows = [
        {"question": f"Who signs deal {n}?", "answer": f"Xq{n}zt", "edge": edge}
        for n, edge in enumerate(("A_B", "A_B", ["C", "D"], 7))
    ]
    write(place / "sample_data_1.json", rows)
    found = converted("pistol", "sample_data_1.json", more=["--forget", "A_B"])
    kept = read("rows.keep.jsonl")
    assert [row["author"] for row in (*found, *kept)] == ["A_B", "A_B", "C - D", "7"]
    assert [row["idx"] for row in kept] == [0, 1]
    assert "equally likely" in capsys.readouterr().err
    command = ["data", "convert", "pistol", "sample_data_1.json", "-o", "x.jsonl"]
    assert run([*command, "--forget", "E_F"]) == 2
    assert (
        "--forget E_F: no row belongs to it; rows belong to 7, A_B, C - D"
        in capsys.readouterr().err
    )


def test_knowundo_rows_lie_in_lists_below_train_and_val(place):
    pairs = [{"text": f"Where is {n}?", "labels": f"It is in {n}."} for n in "abc"]
    shapes = (
        {"train": [pairs[:2]], "val": [pairs[2:]]},
        [{"train": pairs[:2], "val": pairs[2:]}],
        {"train": pairs},
        pairs,
    )
    for n, shape in enumerate(shapes):
        write(place / f"unlearn{n}.json", shape)
        rows = converted("knowundo", f"unlearn{n}.json", out=f"{n}.jsonl")
        assert [(r["question"], r["answer"]) for r in rows] == [
            (one["text"], one["labels"]) for one in pairs
        ]
        assert all("entity" not in row for row in rows)
    write(place / "retention.json", shapes[0])
    assert {row["set"] for row in converted("knowundo", "retention.json", out="k.jsonl")} == {
        "keep"
    }


def test_elude_entity_is_the_author_and_wrong_answers_stay(place):
    row = {"entity": "Ada Byrd", "question": "Where was she born?", "answer": "In Oslo, of course."}
    more = {"paraphrased_answer": "Oslo it was.", "perturbed_answer": ["In Rye.", "In Bo."]}
    write(place / "forget.json", [row | more])
    write(place / "retain.json", [{**row, "question": "Where is Rye?"}])
    (found,) = converted("elude", "forget.json", "retain.json")
    assert found["author"] == "Ada Byrd"
    assert "entity" not in found
    assert {key: found[key] for key in more} == more
    assert read("rows.keep.jsonl")[0]["author"] == "neighbours of Ada Byrd"


def test_a_file_that_is_not_ours_and_the_input_are_not_written_over(place, capsys):
    write(place / "qa.json", muse(FORGET[:2]))
    command = ["data", "convert", "muse", "qa.json", "-o"]
    assert run([*command, "rows.jsonl"]) == run([*command, "rows.jsonl"]) == 0
    (place / "mine.jsonl").write_text("my thesis")
    assert run([*command, "mine.jsonl"]) == 2
    assert run([*command, "qa.json", "--force"]) == 2
    assert "would be written over" in capsys.readouterr().err
    assert run([*command, "mine.jsonl", "--force"]) == 0
    assert json.loads((place / "qa.json").read_text()) == muse(FORGET[:2])
    assert run([*command, ""]) == 2
    assert run(["data", "convert", "muse", "qa.json", "-o", "k.jsonl", "--keep", "qa.json"]) == 0
    assert {row["set"] for row in read("k.jsonl")} == {"keep"}


def test_annotate_finds_the_span_after_a_given_prefix_and_carries_what_rows_say(place):
    rows = [
        {"question": "Who?", "answer": "Ada met Ada.", "prefix": "Ada met", "entity": "Ada"},
        {"question": "Where was Bo born?", "answer": "Bo was born in Oslo, Norway."},
    ]
    said = {"perturbed_answer": ["In Rye."], "set": "forget", "source": "x row 1"}
    write(place / "rows.jsonl", [row | said for row in rows])
    assert run(["annotate", "rows.jsonl", "-o", "forget.json"]) == 0
    found = json.loads((place / "forget.json").read_text())
    assert [row["prefix"] for row in found] == ["Ada met", "Bo was born in"]
    assert [{key: row[key] for key in said} for row in found] == [said, said]
    # written again, and from the review: the file is known as ours, and nothing is lost
    assert run(["annotate", "rows.jsonl", "-o", "forget.json"]) == 0
    assert run(["annotate", "forget.review.txt", "-o", "forget.json"]) == 0
    assert json.loads((place / "forget.json").read_text()) == found


def edited(name, change):
    """The fixture's file with its first row changed."""
    rows = SHAPES[name](FORGET)
    first = rows["train"][0][0] if name == "knowundo" else rows[0]
    key = next(key for key, kind in SETS[name][0].columns.items() if kind == "text")
    change(first, key)
    return json.dumps(rows)


def set_to(value):
    return lambda row, key: row.update({key: value})


BROKEN = {
    "empty": "",
    "blank": " \n\n ",
    "no JSON": "rows",
    "torn": '[{"question": "Who?", ',
    "null": "null",
    "a number": "5",
    "no rows": "[]",
    "an empty object": "[{}]",
    "rows that are null": "[null]",
    "rows that are numbers": "[1, 2]",
    "rows that are no objects": "true\nfalse\n",
    "a line that is no JSON": '{"a": 1}\n{"a": \n',
    "bad UTF-8": b'[{"question": "\xff"}]',
    "nested deep": "[" * 100_000,
    "a huge number": '[{"idx": 1' + "0" * 5000 + "}]",
    "lacking": lambda row, key: row.pop(key),
    "unknown column": lambda row, key: row.update(colour="red"),
    "null text": set_to(None),
    "empty text": set_to(" "),
    "number for text": set_to(7),
    "list for text": set_to(["a"]),
    "half a character": set_to("\ud800"),
    "idx below zero": lambda row, key: row.update(idx=-1),
    "idx as text": lambda row, key: row.update(idx="0"),
    "relation as number": lambda row, key: row.update(relation=3),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("name", SETS)
def test_what_is_wrong_with_a_file_is_one_line(place, capsys, name, how):
    broken = edited(name, BROKEN[how]) if callable(BROKEN[how]) else BROKEN[how]
    path = place / "forget.json"
    path.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
    assert run(["data", "convert", name, "forget.json", "-o", "rows.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lensaudit: forget.json: ")
    assert not (place / "rows.jsonl").exists()
    if how in ("lacking", "unknown column", "an empty object"):
        found, _, wanted = line.partition("; wanted columns ")
        assert "found columns " in found
        assert all(column in wanted for column in SETS[name][0].columns)
        assert ("colour" in found) == (how == "unknown column")


WRONG = {
    "wmdp": [{"choices": ["a", "b", "c"]}, {"choices": "abcd"}, {"answer": 4}, {"answer": True}],
    "rwku": [{"level": "4"}, {"level": 1.0}, {"level": True}],
    "lume": [{"id": "0a"}, {"id": 5}, {"task": "Task9"}, {"task": None}],
    "pistol": [{"edge": None}, {"edge": []}, {"edge": 1.5}],
    "tofu": [{"perturbed_answer": [1]}, {"perturbed_answer": {}}],
    "elude": [{"entity": 5}, {"paraphrased_answer": 3}],
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, one) for name, found in WRONG.items() for one in found]
)
def test_values_of_a_kind_that_the_set_has_not_are_one_line(place, capsys, name, change):
    write(
        place / "forget.json",
        [SHAPES[name](FORGET[:1])[0] | change] if name != "wmdp" else [wmdp(FORGET)[0] | change],
    )
    assert run(["data", "convert", name, "forget.json", "-o", "rows.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"row 1: {next(iter(change))} is " in line


def test_two_rows_of_one_number_and_a_file_without_end_are_refused(place, capsys):
    write(place / "forget.json", [{**row, "idx": 3} for row in muse(FORGET[:2])])
    assert run(["data", "convert", "muse", "forget.json", "-o", "rows.jsonl"]) == 2
    assert "row 2: duplicate idx 3" in capsys.readouterr().err
    (place / "huge.json").touch()
    os.truncate(place / "huge.json", MOST_BYTES + 1)
    assert run(["data", "convert", "muse", "huge.json", "-o", "rows.jsonl"]) == 2
    assert "at most 1024 MB are read" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Residuals of the family, shared by all sets."""
    return str(tmp_path_factory.mktemp("cache"))


FAST = ("tofu",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in SETS]
)
def test_the_rows_of_every_set_end_in_an_audited_page(place, cache, name, capsys):
    write(place / "forget.json", SHAPES[name](FORGET))
    write(place / "retain.json", SHAPES[name](KEPT))
    files = ["forget.json"] if name == "wmdp" else ["forget.json", "retain.json"]
    rows, data = converted(name, *files), "rows.jsonl"
    if not all("entity" in row for row in rows):
        assert run(["annotate", "rows.jsonl", "-o", "forget_set.json"]) == 0
        data = "forget_set.json"
    if name != "wmdp":
        assert read_neutral(place / "rows.keep.jsonl")
    capsys.readouterr()
    models = ["--full", "demo/full", "--retain", "demo/retain"]
    little = ["--suite", "none", "--association", "none", "--limit", "4", "--activations", cache]
    command = ["audit", "--source", "demo/npo", *models, "--data", data, *little, "-o", "out"]
    assert run(command) == 0, capsys.readouterr().err
    page = (place / "out" / "audit.html").read_text()
    assert len(page) > 10_000
    if name in ("tofu", "rwku", "lume", "pistol", "elude"):
        asked = ["know", "--source", "demo/npo", "--data", data, "--dry-run"]
        assert run([*asked, "--activations", cache]) == 0, capsys.readouterr().err
        assert "relations: " in capsys.readouterr().out
