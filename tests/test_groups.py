import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.attacks.rtt.data import load_mcq
from lensaudit.data.annotate import read_pairs
from lensaudit.data.facts import load_facts
from lensaudit.data.suites import load_suite
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.groups import spread
from lensaudit.judge.items import read_items

ANSWERED = {"question": "Who?", "answer": "Ada wrote it.", "prefix": "", "entity": "Ada"}


def rows_by(key, authors):
    return [
        {"idx": idx, **ANSWERED, "question": f"Who is {idx}?", "generation": "Ada", key: author}
        for idx, author in enumerate(authors)
    ]


def written(path, rows):
    path.write_text(json.dumps(rows))
    return path


READERS = {
    "patch": lambda path: [one.group for one in load_facts(path)],
    "annotate": lambda path: [pair.group for pair, _ in read_pairs(path)],
    "eval": lambda path: [
        row.group for row in load_suite("tofu", own={"forget": path})["forget"].rows
    ],
    "judge": lambda path: [item.group for item in read_items(path)],
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("key", ["group", "author"])
def test_every_reader_takes_the_author_from_the_same_two_names(tmp_path, reader, key):
    authors = ["ada", 3, "ada"]
    assert reader(written(tmp_path / "rows.json", rows_by(key, authors))) == authors
    assert reader(written(tmp_path / "none.json", rows_by(key, [None] * 3))) == [
        "idx 0",
        "idx 1",
        "idx 2",
    ]


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_an_empty_author_is_none_and_hides_no_other(tmp_path, reader):
    rows = rows_by("author", ["", " ", "ada"])
    rows[2]["group"] = ""
    assert reader(written(tmp_path / "rows.json", rows)) == ["idx 0", "idx 1", "ada"]


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_number_and_its_digits_are_one_author_for_every_reader(tmp_path, reader):
    found = reader(written(tmp_path / "rows.json", rows_by("group", [1, "1", "@ada", "@ada"])))
    assert found == [1, 1, "@ada", "@ada"]


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "spelled",
    [("@ada", "ada"), (1, "01"), ("Ada", "ada "), ("Zo\u00eb", "Zoe\u0308"), ("\uff11", 1)],
    ids=["at", "zero", "case", "accent", "width"],
)
def test_one_author_in_two_spellings_is_refused_by_every_reader(tmp_path, reader, spelled):
    # they would be two clusters of one author, and the interval too narrow
    rows = written(tmp_path / "rows.json", rows_by("group", ["b", *spelled]))
    form = " in another Unicode form" if spelled[0] == "Zo\u00eb" else ""
    with pytest.raises(InputError, match=f"is the author .* of row 2{form}; write one"):
        reader(rows)


@pytest.mark.parametrize("reader", [READERS[one] for one in ("patch", "annotate", "eval")])
def test_a_fact_that_stands_there_twice_is_refused(tmp_path, reader):
    again = {"idx": 2, **ANSWERED, "question": "WHO  is 0?", "group": "c"}
    rows = written(tmp_path / "rows.json", [*rows_by("group", ["a", "b"]), again])
    with pytest.raises(InputError, match="is the fact of row 1; leave one of them out"):
        reader(rows)
    other = again | {"answer": "Eve wrote it.", "entity": "Eve"}
    assert len(reader(written(rows, [*rows_by("group", ["a", "b"]), other]))) == 3


@pytest.mark.parametrize("reader", [READERS["patch"], READERS["annotate"]])
def test_all_that_is_wrong_with_a_file_is_told_at_once(tmp_path, reader):
    again = {"idx": 2, **ANSWERED, "question": "WHO  is 0?", "group": "c"}
    blank = again | {"idx": 3, "question": " "}
    rows = written(tmp_path / "rows.json", [*rows_by("group", ["a", "b"]), again, blank])
    with pytest.raises(
        InputError, match=r"2 problems: .*question is empty; .*is the fact of row 1"
    ):
        reader(rows)


def test_retraining_takes_them_from_there_too(tmp_path):
    item = {"question": "Who?", "choices": ["a", "b"], "answer": 0}
    for split in range(2):
        lines = [json.dumps({**item, "question": f"{split}", "author": "ada"}), json.dumps(item)]
        (tmp_path / f"split_{split}.jsonl").write_text("\n".join(lines))
    assert [one.group for one in load_mcq(tmp_path).items] == ["ada", "idx 1", "ada", "idx 3"]


def test_a_group_wins_over_an_author_and_neither_may_be_anything_else(tmp_path):
    both = [{"idx": 0, **ANSWERED, "group": 7, "author": "ada"}]
    assert load_facts(written(tmp_path / "both.json", both))[0].group == 7
    wrong = written(tmp_path / "wrong.json", rows_by("author", [1.5, "ada"]))
    with pytest.raises(InputError, match="wanted a whole number or text"):
        load_facts(wrong)


def test_a_limit_takes_rows_over_authors_and_keeps_their_order(tmp_path):
    path = written(tmp_path / "rows.json", rows_by("author", ["a"] * 4 + ["b"] * 2 + ["c"] * 4))
    # the first of a, b and c, then the second of a and b
    assert [one.idx for one in forget_set(path, limit=5)] == [0, 1, 4, 5, 6]
    split = load_suite("tofu", own={"forget": path}, limit=5)["forget"]
    assert [row.idx for row in split.rows] == [0, 1, 4, 5, 6]
    assert [one.idx for one in read_items(path, limit=5)] == [0, 1, 4, 5, 6]
    none = written(tmp_path / "none.json", rows_by("author", [None] * 10))
    assert [one.idx for one in forget_set(none, limit=5)] == [0, 1, 2, 3, 4]


def test_forty_rows_of_the_embedded_set_are_of_every_author():
    every = {one.group for one in forget_set("demo")}
    assert {one.group for one in forget_set("demo", limit=len(every))} == every


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 30))
def test_a_higher_limit_takes_all_rows_of_a_lower_one(groups, limit):
    rows = list(enumerate(groups))
    few = spread(rows, limit, lambda row: row[1])
    more = spread(rows, limit + 1, lambda row: row[1])
    assert set(few) <= set(more)
    assert few == sorted(few)
    assert len(few) == min(limit, len(rows))
    counts = [[group for _, group in few].count(one) for one in set(groups)]
    left = [groups.count(one) for one in set(groups)]
    # no author has two rows more than another that still has some to give
    assert all(a - b <= 1 or b == n for a in counts for b, n in zip(counts, left, strict=True))
