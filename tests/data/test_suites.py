import json

import pytest
from support import EMBEDDED
from support.generated import save_muse

from lensaudit import hub
from lensaudit.data import tofu
from lensaudit.data.facts import Fact, load_facts
from lensaudit.data.neutral import read_neutral
from lensaudit.data.suites import load_suite
from lensaudit.errors import InputError
from lensaudit.text import digest


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path):
    rows = [
        {
            "question": f"Who wrote book {n}?",
            "paraphrased_question": f"Book {n} is by?",
            "answer": f"Ada {n}",
            "paraphrased_answer": f"It is Ada {n}",
            "perturbed_answer": [f"Bob {n}", f"Cyd {n}"],
        }
        for n in range(3)
    ]
    write(tmp_path / "forget05_perturbed.jsonl", rows)
    write(tmp_path / "holdout05.jsonl", [{"question": "Where?", "answer": "Here"}])
    return tmp_path


def test_a_folder_has_the_splits_whose_files_it_holds(folder, tmp_path_factory):
    splits = load_suite("tofu", str(folder), forget_split="forget05")
    few = load_suite("tofu", str(folder), forget_split="forget05", limit=2)["forget"].rows
    assert few == splits["forget"].rows[:2]
    with pytest.raises(InputError, match=r"forget10_perturbed\.jsonl"):
        load_suite("tofu", str(tmp_path_factory.mktemp("empty")))
    assert list(splits) == ["forget", "holdout"]
    row = splits["forget"].rows[1]
    assert (row.idx, row.question, row.answers["perturbed_answer"]) == (
        1,
        "Who wrote book 1?",
        ("Bob 1", "Cyd 1"),
    )


def test_rows_of_other_authors_are_another_question(folder):
    rows = [{"question": f"Who wrote book {n}?", "answer": f"Ada {n}"} for n in range(3)]

    def asked(*authors):
        named = [row | {"author": one} for row, one in zip(rows, authors, strict=False)]
        path = write(folder / "own.jsonl", named or rows)
        return load_suite("tofu", own={"forget": path})["forget"].digest

    first, without = asked("a", "a", "b"), asked()
    assert len({first, asked("a", "b", "b"), without}) == 3
    assert asked("a", "a", "b") == first
    # a finished run whose rows name nobody is found again
    content = [[n, row["question"], {"answer": row["answer"]}] for n, row in enumerate(rows)]
    assert without == digest(["qa", [], [], content])


def test_the_question_key_switches_the_forget_split_and_leaves_holdout_alone(folder):
    splits = load_suite(
        "tofu", str(folder), forget_split="forget05", question_key="paraphrased_question"
    )
    assert splits["forget"].rows[0].question == "Book 0 is by?"
    assert splits["holdout"].rows[0].question == "Where?"


def test_muse_is_read_with_its_examples_and_stop_words(tmp_path):
    splits = load_suite("muse", str(save_muse(tmp_path)))
    assert list(splits) == ["forget_qa", "retain_qa", "verbmem", "members", "non_members"]
    assert len(splits["forget_qa"].shown) == 2
    assert splits["forget_qa"].stop_words == ("\n\n", "\nQuestion", "Question:")
    assert (splits["forget_qa"].max_new_tokens, splits["verbmem"].max_new_tokens) == (32, 128)
    assert splits["members"].kind == "completion"
    verbatim = splits["verbmem"].rows[1]
    # eight words, halves of four
    assert verbatim.question.endswith("\nAnswer: Ruvimbel Silverthaw was born")
    assert dict(verbatim.answers) == {"gt": "on 27 April 1931."}


def test_the_digest_follows_the_text(folder):
    before = load_suite("tofu", str(folder), forget_split="forget05")["holdout"].digest
    write(folder / "holdout05.jsonl", [{"question": "Where?", "answer": "There"}])
    assert load_suite("tofu", str(folder), forget_split="forget05")["holdout"].digest != before


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"question": "Who?", "answer": "A", "idx": 1}] * 2, r"row 2 \(idx 1\): duplicate idx 1"),
        ([{"answer": "A"}], "no text under 'question'; give the field"),
        ([{"question": "Q", "answer": 3}], "neither text nor a list"),
        (["text"], "wanted an object"),
        ([{"question": "Q", "answer": "A", "perturbed_answer": "['B', 'C']"}], "text of a list"),
    ],
)
def test_wrong_rows_are_refused_with_their_place(tmp_path, rows, said):
    """All else that is wrong with rows is in test_facts.py."""
    own = write(tmp_path / "mine.jsonl", rows)
    with pytest.raises(InputError, match=said):
        load_suite("tofu", own={"forget": own})


def test_the_hub_is_read_by_configuration_and_its_authors_are_known(monkeypatch):
    import datasets

    asked = []

    def load(repo, config, split):
        asked.append((repo, config, split))
        return [{"question": f"Q{n}", "answer": "A"} for n in range(40)]

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    splits = load_suite("tofu", forget_split="forget05")
    assert ("locuslab/TOFU", "forget05_perturbed", "train") in asked
    assert ("locuslab/TOFU", "holdout05", "train") in asked
    assert [splits["forget"].rows[n].group for n in (0, 19, 20)] == [0, 0, 1]
    assert [splits["retain"].rows[n].group for n in (0, 20)] == ["retain 0", "retain 1"]
    assert [splits["holdout"].rows[n].group for n in (19, 20)] == ["holdout05 0", "holdout05 1"]
    assert splits["ra"].rows[0].group == "idx 0"


def asked(idx):
    return {"question": f"Q{idx}?", "answer": f"It is A{idx}."}


def listed(*places):
    """A shipped table that knows these rows."""
    examples = [Fact(idx, **asked(idx), prefix="", entity="It", group=0) for idx in places]
    return tuple(map(tofu.located, examples))


@pytest.fixture
def tables(monkeypatch):
    """Invented rows in place of TOFU's: every second one of forget10, some of the retain rows."""
    known = {"forget10": listed(*range(0, 400, 2)), "retain_perturbed": listed(4, 25)}
    monkeypatch.setattr(tofu, "offsets", known.__getitem__)


@pytest.mark.parametrize(
    ("part", "begins"), [("forget10", 0), ("forget05", 200), ("forget01", 360)]
)
def test_a_folder_of_tofus_files_has_its_authors(tmp_path, tables, part, begins):
    write(tmp_path / f"{part}_perturbed.jsonl", [asked(idx) for idx in range(begins, 400)])
    write(tmp_path / "retain_perturbed.jsonl", [asked(idx) for idx in range(60)])
    splits = load_suite("tofu", str(tmp_path), forget_split=part)
    forget, retain = splits["forget"].rows, splits["retain"].rows
    assert [forget[n].group for n in (0, 19, 20, len(forget) - 1)] == [
        0,
        0,
        1,
        (len(forget) - 1) // 20,
    ]
    assert [retain[n].group for n in (19, 20, 59)] == ["retain 0", "retain 1", "retain 2"]
    few = load_suite("tofu", str(tmp_path), forget_split=part, limit=2)["forget"].rows
    assert [row.idx for row in few] == [0, 20]


def test_patch_and_eval_name_tofus_authors_alike(tmp_path, tables):
    rows = [{**asked(idx), "idx": idx, "prefix": "It is", "entity": f"A{idx}"} for idx in (0, 44)]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(rows))
    patched = {one.idx: one.group for one in tofu.forget_set(path)}
    assert patched == {0: 0, 44: 2}
    assert {
        row.idx: row.group for row in load_suite("tofu", own={"forget": path})["forget"].rows
    } == patched


@pytest.mark.parametrize(
    "changed",
    [
        lambda rows: [row | {"answer": "Else."} if n == 4 else row for n, row in enumerate(rows)],
        lambda rows: rows[1:],  # of which no place is known
        lambda rows: [row | {"author": "ada"} for row in rows],
        lambda rows: [row | {"idx": 400 + n} for n, row in enumerate(rows)],
    ],
)
def test_rows_that_are_not_tofus_or_name_their_authors_stay_as_they_are(tmp_path, tables, changed):
    rows = changed([asked(idx) for idx in range(60)])
    write(tmp_path / "forget10_perturbed.jsonl", rows)
    write(tmp_path / "retain_perturbed.jsonl", rows)
    for split in load_suite("tofu", str(tmp_path)).values():
        assert {row.group for row in split.rows} in ({"ada"}, {f"idx {r.idx}" for r in split.rows})


def test_of_tofus_own_text_every_author_is_known(shared, tmp_path):
    folder = shared / "data" / "tofu"
    own = {"forget": folder / "forget10_qa.jsonl"}
    rows = load_suite("tofu", own=own)["forget"].rows
    assert all(row.group == row.idx // 20 for row in rows)
    own = {"retain": folder / "retain_eval_qa.jsonl"}
    rows = load_suite("tofu", own=own)["retain"].rows
    assert all(row.group == f"retain {row.idx // 20}" for row in rows)


@pytest.mark.parametrize("limit", [None, 12])
def test_eval_and_patch_ask_the_same_rows_of_the_same_authors(limit):
    splits = load_suite("tofu", "demo", limit=limit)
    patched = tofu.forget_set("demo", limit=limit)
    assert [(row.idx, row.group) for row in splits["forget"].rows] == [
        (one.idx, one.group) for one in patched
    ]
    authors = [{row.group for row in splits[name].rows} for name in ("forget", "retain", "holdout")]
    assert authors[1] <= {one.group for one in load_facts(EMBEDDED / "data" / "retain.json")}
    assert [len(one) for one in authors] == ([8, 20, 8] if limit is None else [8, 12, 8])
    assert len(set.union(*authors)) == sum(map(len, authors))
    assert {row.group for row in splits["wf"].rows} == {f"idx {r.idx}" for r in splits["wf"].rows}


def test_which_rows_are_asked_hangs_on_no_order_of_a_file(tmp_path):
    """Of rows of which a limit takes some; of kept rows, whose first are solved questions."""
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    read = (
        lambda path: tofu.forget_set(path, limit=12),
        read_neutral,
        lambda path: list(load_suite("tofu", own={"forget": path}, limit=12)["forget"].rows),
    )
    found = []
    for name, ordered in (("file", rows), ("turned", rows[::-1])):
        path = write(tmp_path / f"{name}.jsonl", ordered)
        found.append([[row.idx for row in one(path)] for one in read])
    assert found[0] == found[1]


def test_a_folder_of_their_name_does_not_hide_the_generated_authors(tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert list(load_suite("tofu", "demo", limit=1)) == ["forget", "retain", "ra", "wf", "holdout"]


def test_annotated_rows_are_the_forget_split(tmp_path):
    """What `patch --data` takes: nothing has to be merged by hand."""
    row = {"idx": 4, "question": "Who?", "answer": "It is Ada.", "prefix": "It is", "entity": "Ada"}
    (tmp_path / "forget.json").write_text(json.dumps([row | {"group": "x"}]))
    found = load_suite("tofu", own={"forget": tmp_path / "forget.json"})
    assert set(found) == {"forget"}
    (only,) = found["forget"].rows
    assert (only.idx, only.question, only.answers) == (4, "Who?", {"answer": "It is Ada."})
    assert only.group == "x"
    with pytest.raises(InputError, match="is a file"):
        load_suite("muse", str(tmp_path / "forget.json"))
