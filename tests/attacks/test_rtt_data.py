"""Multiple-choice data: what is refused, what is reported, and how forget sets are cut."""

import json
from collections import Counter

import pytest
from support import EMBEDDED
from support.generated import save_birthdays, save_years

from lensaudit.attacks.rtt import McqItem, execution, handled, load_mcq, make_dataset, save_mcq
from lensaudit.attacks.rtt import study as study_room
from lensaudit.attacks.rtt.execution import DEMO_LRS, prepare
from lensaudit.attacks.rtt.splits import load_statements, split_by_author
from lensaudit.attacks.settings import StudySettings
from lensaudit.errors import InputError

GOOD = {"question": "When?", "choices": ["1", "2", "3", "4"], "answer": 1}


def folder_of(tmp_path, *splits):
    for number, rows in enumerate(splits):
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (tmp_path / f"split_{number}.jsonl").write_text("\n".join(lines))
    return tmp_path


def small(*questions, **changes):
    """Two splits of one item each, or one split per question given."""
    drafts = {
        f"split_{n}": [McqItem(q, ("a", "b", "c", "d"), 0, **changes)]
        for n, q in enumerate(questions)
    }
    return make_dataset("small", drafts)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({**GOOD, "question": " "}, "question is missing, empty or not text"),
        ({**GOOD, "choices": ["1"]}, "choices is no list of 2 to 8"),
        ({**GOOD, "choices": ["1", "", "3", "4"]}, "a choice is empty"),
        ({**GOOD, "choices": ["1", True, "3", "4"]}, "neither text nor a number"),
        ({**GOOD, "answer": 4}, "answer is 4, wanted a place from 0 to 3"),
        ({**GOOD, "answer": True}, "answer is True"),
        ({**GOOD, "group": [1]}, "group is [1], wanted a whole number or text"),
    ],
)
def test_a_row_that_is_no_item_is_refused_with_its_place(tmp_path, row, problem):
    with pytest.raises(InputError, match=r"split_0\.jsonl: 1 problem: line 1") as error:
        load_mcq(folder_of(tmp_path, [row], [GOOD]))
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        ([[GOOD]], "found 1 of the files"),
        ([[GOOD], []], "holds no rows"),
        ([[GOOD], [{**GOOD, "choices": ["1", "2"]}]], r"with \[2, 4\] choices per item"),
    ],
)
def test_splits_that_cannot_take_turns_are_refused(tmp_path, splits, problem):
    with pytest.raises(InputError, match=problem):
        load_mcq(folder_of(tmp_path, *splits))


def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(InputError, match="no split 'split_7'; it holds split_0, split_1"):
        load_mcq(folder_of(tmp_path, [GOOD], [GOOD]), only=("split_0", "split_7"))


def test_numbers_become_texts_and_other_files_are_not_read(tmp_path):
    folder = folder_of(
        tmp_path, [{**GOOD, "choices": [1, 2, 3, 4]}], [{**GOOD, "question": "Who?"}]
    )
    (tmp_path / "dev.jsonl").write_text("nonsense")
    (tmp_path / "corpus_split_0.jsonl").write_text("nonsense")
    dataset = load_mcq(folder)
    assert dataset.items[0].choices == ("1", "2", "3", "4")
    assert list(dataset.splits) == ["split_0", "split_1"]
    (tmp_path / "many").mkdir()
    many = folder_of(tmp_path / "many", *([{**GOOD, "question": f"Who {n}?"}] for n in range(11)))
    assert list(load_mcq(many).splits) == [f"split_{n}" for n in range(11)]  # by number


def test_written_splits_are_read_back_equal(tmp_path):
    dataset = split_by_author("demo", load_statements("demo")[1], n_splits=4)
    again = load_mcq(save_mcq(dataset, tmp_path / "mcq"))
    assert again.splits == dataset.splits
    assert again.digest == dataset.digest


def test_birthdays_load_with_their_defects_reported(tmp_path):
    found = load_mcq(save_birthdays(tmp_path / "birthdays"))
    assert len(found.items) == 8
    assert found.n_answers == (2, 2, 2, 2)
    assert found.counts == {
        "ambiguous": 1,
        "repeated": 1,
        "leak": 1,
        "duplicate_choice": 2,
        "future_year": 2,
    }
    where = {kind: [one.idx for one in found.defects if one.kind == kind] for kind in found.counts}
    assert where == {
        "ambiguous": [(2,)],
        "repeated": [(6, 7)],
        "leak": [(0, 5)],
        "duplicate_choice": [(2,), (3,)],
        "future_year": [(4,), (4,)],
    }
    details = {one.kind: one.detail for one in found.defects}
    assert details["leak"].endswith("with different answers")
    assert details["repeated"].endswith("with the same answer")
    assert len(found.left_out) == 0
    years = load_mcq(save_years(tmp_path / "years"), only=("split_0", "split_1"))
    assert years.counts["sorted"] > 0


def test_upstreams_own_data_have_the_counted_defects(shared):
    # counts of rtt.md section 2
    found, years = (
        load_mcq(shared / "data" / "rtt" / name) for name in ("random_bd", "dates_years")
    )
    assert len(found.items) == 1570
    wanted = {"ambiguous": 34, "repeated": 2, "leak": 19, "duplicate_choice": 75}
    assert found.counts == {**wanted, "future_year": 387}
    assert all("different answers" in one.detail for one in found.defects if one.kind == "leak")
    assert (len(years.items), years.n_answers) == (789, (192, 177, 212, 208))
    assert years.counts == {"leak": 1, "sorted": 1}


def test_spellings_of_a_choice_are_one_and_a_wrong_one_twice_does_not_block():
    twice = McqItem("Who?", ("Ada", " ada", "Bob", "Eve"), 0)
    wrong_twice = McqItem("Where?", ("a", "b", "b", "c"), 0)
    found = make_dataset("bad", {"split_0": [twice, wrong_twice], "split_1": [twice]})
    assert found.counts == {"ambiguous": 2, "leak": 1, "duplicate_choice": 3}
    assert not any(one.blocks for one in found.defects if one.kind == "duplicate_choice")
    found = small("When?", "Where?", group="ada")
    assert [one.kind for one in found.blocking] == ["shared_group"]


def test_defects_are_refused_dropped_or_kept():
    clean = [McqItem(f"When {n}?", ("a", "b", "c", "d"), 0) for n in range(4)]
    leak = McqItem("Who?", ("a", "b", "c", "d"), 1)
    alone = {"split_0": [McqItem("Who?", ("y",), 0)], "split_1": [McqItem("When?", ("z",), 0)]}
    with pytest.raises(InputError, match="one number of choices, 2 to 8"):
        make_dataset("alone", alone)
    dataset = make_dataset("bad", {"split_0": [*clean[:2], leak], "split_1": [*clean[2:], leak]})
    with pytest.raises(InputError, match="1 x the same question in several splits"):
        handled(dataset, "refuse")
    assert handled(dataset, "keep") is dataset
    dropped = handled(dataset, "drop")
    assert [item.idx for item in dropped.items] == [0, 1, 3, 4]
    assert set(dropped.left_out) == {"item 2", "item 5"}
    with pytest.raises(InputError, match="leaves a split without items"):
        handled(small("When?", "when?"), "drop")


def authors_of(dataset):
    return [{item.group for item in items} for items in dataset.splits.values()]


def test_authors_are_cut_whole_and_places_are_balanced():
    name, facts = load_statements("demo")
    dataset = split_by_author(name, facts, n_splits=4)
    authors = authors_of(dataset)
    assert [len(one) for one in authors] == [2, 2, 2, 2]
    assert len(set().union(*authors)) == 8
    for items in dataset.splits.values():
        assert set(Counter(item.answer for item in items).values()) == {4}
    assert dataset.defects == ()
    # a seed draws authors and choices; there are no more splits than authors
    assert split_by_author(name, facts, seed=3) == split_by_author(name, facts, seed=3)
    assert split_by_author(name, facts, seed=3).digest != split_by_author(name, facts).digest
    with pytest.raises(InputError, match="9 splits of 8 authors"):
        split_by_author(name, facts, n_splits=9)


def test_choices_are_the_answer_and_three_of_its_perturbed_ones():
    name, facts = load_statements("demo")
    by_question = {fact.question: fact for fact in facts.values()}
    for item in split_by_author(name, facts).items:
        fact = by_question[item.question]
        assert item.right == fact.answer
        assert set(item.choices) - {item.right} <= set(fact.wrong)
        assert len(set(item.choices)) == 4


def test_an_annotated_row_exchanges_its_entity_for_those_of_others_alike_questions(tmp_path):
    born = [("Ada", "Rome"), ("Bob", "Oslo"), ("Eve", "Kyiv"), ("Kim", "Lima")]
    rows = []
    for name, town in born:
        answer = f"{name} is from {town}."
        rows.append({"question": f"Where was {name} born?", "answer": answer, "entity": town})
        # the same author's own town is no wrong answer for him
        rows.append(
            {
                "question": f"Where was {name} raised?",
                "answer": f"In {name}ville.",
                "entity": f"{name}ville",
            }
        )
    rows.append({"question": "What?", "answer": "It is tea.", "entity": "tea"})
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"idx": n, **row}) for n, row in enumerate(rows)))
    name, facts = load_statements(str(path), rows_per_author=2)
    items = {item.question: item for item in split_by_author(name, facts, n_splits=2).items}
    ada = items["Where was Ada born?"]
    assert name == "rows"
    assert set(ada.choices) == {f"Ada is from {town}." for _, town in born}
    assert ada.right == "Ada is from Rome."
    assert ada.group == 0


@pytest.mark.parametrize("key", ["entity", "gt_entity"])
def test_a_wrong_answer_keeps_the_prefix_and_what_follows(tmp_path, key):
    rows = []
    for n, subject in enumerate(("sea", "art", "law", "tea", "sun")):
        prefix, answer = f"A smart author {n} on", f"A smart author {n} on {subject}, no party."
        row = {"question": f"What is {n} on?", "answer": answer, "prefix": prefix, "author": n}
        rows.append({**row, "entity": "party"} | {key: f"{subject} "})
    rows[4][key] = rows[4]["entity"] = "A"  # which stands before the end of the prefix alone
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(InputError, match="nor an entity in its answer after the prefix"):
        load_statements(str(path))
    path.write_text(json.dumps(rows[:4]))
    items = split_by_author(*load_statements(str(path)), n_splits=2).items
    (art,) = (one for one in items if one.question == "What is 1 on?")
    subjects = ("sea", "art", "law", "tea")
    assert {*art.choices} == {f"A smart author 1 on {one}, no party." for one in subjects}


def test_a_row_with_too_few_wrong_answers_is_left_out_with_the_reason(tmp_path):
    rows = [
        {"question": f"Q{n}?", "answer": "a", "group": n, "perturbed_answer": ["b", "c", "d"]}
        for n in range(3)
    ]
    rows.append({"question": "Q3?", "answer": "a", "group": 2, "perturbed_answer": ["b", "B", "a"]})
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    dataset = split_by_author(*load_statements(str(path)), n_splits=3)
    assert len(dataset.items) == 3
    assert dataset.left_out == {"line 4": "1 distinct wrong answers, wanted 3"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "Q?", "answer": "a"}, "names no author"),
        ({"question": "Q?", "answer": "a", "group": 1}, "neither perturbed_answer nor an entity"),
        ({"question": "Q?", "answer": "a", "group": ""}, "names no author"),
        (
            {"question": "Q?", "answer": "a", "group": 1, "perturbed_answer": "b"},
            "no list of texts",
        ),
        ({"question": "Q?", "group": 1}, "answer is missing"),
    ],
)
def test_rows_that_cannot_become_items_are_refused(tmp_path, row, problem):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(InputError, match="line 1") as error:
        load_statements(str(path))
    assert problem in str(error.value)


def prepared(out, source="demo/npo", notice=print, **settings):
    """The study of a model of the embedded family; nothing is trained."""
    anchors = {"original": "demo/full", "control": "demo/retain"}
    asked = StudySettings(names=(str(source),), out=out, **anchors, **settings)
    ((study,), _) = prepare(asked, notice)
    return study


def test_rows_that_are_cut_hold_every_author_out_and_a_folder_keeps_its_splits(tmp_path):
    study = prepared(tmp_path / "out", data="demo")
    held = {item.group for name in study.held_out for item in study.data.splits[name]}
    assert [*study.held_out] == [*study.data.splits] == ["split_0", "split_1"]
    assert held == {fact.group for fact in load_statements("demo")[1].values()}
    assert len(held) == 8  # an interval wants five: of five splits, two of them V, it was three
    own = save_mcq(split_by_author(*load_statements("demo"), n_splits=4), tmp_path / "own")
    study = prepared(tmp_path / "out", data=str(own))
    assert (len(study.data.splits), len(study.held_out)) == (4, 2)


def test_a_model_that_is_named_by_its_folder_is_read_as_its_family_needs(tmp_path):
    by_name, by_path = (
        prepared(tmp_path, one, data="demo") for one in ("demo/npo", EMBEDDED / "npo")
    )
    assert by_path.readouts[0] == by_name.readouts[0] == "answer"
    assert by_path.sweep == by_name.sweep
    assert by_path.sweep["lrs"] == list(DEMO_LRS)
    # what a person says wins
    assert prepared(tmp_path, EMBEDDED / "npo", data="demo", lrs=(1e-4,)).sweep["lrs"] == [1e-4]


def test_where_letters_are_no_single_tokens_answers_are_read(tmp_path, monkeypatch):
    def none(*_):
        raise InputError("option letter 'A' is 2 tokens of this tokenizer, wanted 1; take another")

    monkeypatch.setattr(study_room, "letters_of", none)
    monkeypatch.setattr(execution, "of_embedded_family", lambda one: False)
    said = []
    assert prepared(tmp_path, notice=said.append, data="demo").readouts == ("answer",)
    assert said == [
        "--readout answer is taken: option letter 'A' is 2 tokens of this tokenizer, wanted 1"
    ]
    with pytest.raises(InputError, match="2 tokens"):  # who asks for letters is told
        prepared(tmp_path, data="demo", readout="letter")
