import json

import pytest

from lensaudit.errors import InputError
from lensaudit.judge.items import read_items


def record(**texts):
    return {"rougeL_recall": 0.5} | {
        "input": texts.get("input", "Q?"),
        "ground_truth": texts.get("truth", "T."),
        "generation": texts.get("said", "S."),
    }


def metric(*records):
    return {"agg_value": 0.5, "value_by_index": {str(at): one for at, one in enumerate(records)}}


@pytest.fixture
def written(tmp_path):
    """A factory of files."""

    def write(name, content):
        path = tmp_path / name
        if isinstance(content, list):
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            path.write_text(json.dumps(content))
        return path

    return write


def test_a_log_of_open_unlearning_gives_its_default_contexts(written):
    log = {
        "forget_Q_A_ROUGE": metric(record(said="S0"), record(said="S1", truth="T1")),
        "forget_Q_A_ROUGE_f1": metric(record()),
        "wf_Q_A_ROUGE": metric(record(input="W?")),
        "forget_quality": {"agg_value": 0.1},
    }
    found = read_items(written("TOFU_EVAL.json", log))
    assert found.contexts == ("forget_Q_A_ROUGE", "wf_Q_A_ROUGE")
    second = found.items[1]
    assert (second.idx, second.answer, second.truth) == (1, "S1", "T1")
    assert found.items[2].question == "W?"
    named = read_items(written("TOFU_EVAL.json", log), contexts=("forget_Q_A_ROUGE_f1",))
    assert [one.context for one in named.items] == ["forget_Q_A_ROUGE_f1"]


def test_a_row_without_a_generation_is_a_gap_and_not_dropped(written):
    log = {"forget_Q_A_ROUGE": metric(record(), {"rougeL_recall": None})}
    found = read_items(written("TOFU_EVAL.json", log))
    assert [(gap.idx, gap.gap) for gap in found.gaps] == [(1, "the log holds no generation")]


def test_rows_of_eval_are_split_by_split(written):
    rows = [
        {"split": "forget", "idx": 0, "question": "Q", "answer": ["A", "B"], "generation": "S"},
        {"split": "holdout", "idx": 0, "question": "Q", "answer": "A"},
        {"split": "forget", "idx": 1, "question": "Q", "answer": "A"},
    ]
    found = read_items(written("results.jsonl", rows))
    # nothing of holdout was generated; of forget one row was not
    assert found.contexts == ("forget",)
    assert found.items[0].truth == "A"
    assert [(gap.context, gap.idx) for gap in found.gaps] == [("forget", 1)]


def test_rows_of_an_exact_match_audit_give_what_the_source_says(written):
    rows = [
        {
            "idx": 7,
            "group": 3,
            "question": "Q",
            "answer": "A",
            "entity": "E",
            "texts": {"full": "F", "retain": "R", "source": "S"},
        }
    ]
    item = read_items(written("results.jsonl", rows)).items[0]
    assert (item.context, item.idx, item.group) == ("forget", 7, 3)
    assert (item.answer, item.entity) == ("S", "E")


def test_a_folder_means_the_log_in_it(written, tmp_path):
    written("TOFU_EVAL.json", {"forget_Q_A_ROUGE": metric(record())})
    assert read_items(tmp_path).items[0].context == "forget_Q_A_ROUGE"
    row = {"split": "forget", "idx": 0, "question": "Q", "answer": "A", "generation": "S"}
    written("results.jsonl", [row])
    assert read_items(tmp_path).items[0].context == "forget"


def test_a_limit_is_per_context_and_in_the_order_of_the_log(written):
    rows = [
        {"context": context, "idx": idx, "question": "Q", "answer": "A", "generation": "S"}
        for idx in (5, 3, 9)
        for context in ("forget", "retain")
    ]
    found = read_items(written("results.jsonl", rows), limit=2)
    assert [(one.context, one.idx) for one in found.items] == [
        ("forget", 5),
        ("retain", 5),
        ("forget", 3),
        ("retain", 3),
    ]


def test_the_hash_follows_what_is_judged(written):
    row = {"idx": 0, "question": "Q", "answer": "A", "generation": "S"}
    first = read_items(written("a.jsonl", [row])).digest
    assert read_items(written("b.jsonl", [row | {"more": 1}])).digest == first
    assert read_items(written("c.jsonl", [row | {"generation": "T"}])).digest != first


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", {"forget_quality": {"agg_value": 1}}, "holds no generation to judge"),
        ("x.jsonl", [{"idx": 0, "uds": 0.5}], "holds no generation to judge"),
        ("x.jsonl", [{"question": "Q"}], "row 1: has no 'idx'"),
        ("x.jsonl", [[1]], r"row 1: found \[1\], wanted an object"),
    ],
)
def test_files_without_generations_are_one_line(written, name, content, said):
    with pytest.raises(InputError, match=said) as error:
        read_items(written(name, content))
    assert len(str(error.value).splitlines()) == 1


def test_an_empty_folder_and_a_missing_file_are_one_line(tmp_path):
    with pytest.raises(InputError, match=r"has no results\.jsonl"):
        read_items(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_items(tmp_path / "none.jsonl")
