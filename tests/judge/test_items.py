import json
from contextlib import nullcontext

import pytest

from lensaudit.errors import InputError
from lensaudit.judge.items import log_in, read_items
from lensaudit.judge.jobs import JudgeJob
from lensaudit.judge.programmatic import IDK
from lensaudit.judge.settings import LogSettings
from lensaudit.results.manifest import manifest

ROW = {"idx": 0, "question": "Q", "answer": "A", "generation": "S"}


def record(question="Q?", truth="T.", said="S."):
    return {"rougeL_recall": 0.5, "input": question, "ground_truth": truth, "generation": said}


def metric(*records):
    return {"agg_value": 0.5, "value_by_index": {str(at): one for at, one in enumerate(records)}}


@pytest.fixture
def read(tmp_path):
    """A function that writes a file and reads its items."""

    def write_and_read(name, content, **chosen):
        text = json.dumps(content)
        if isinstance(content, list):
            text = "".join(json.dumps(row) + "\n" for row in content)
        (tmp_path / name).write_text(text)
        return read_items(log_in(tmp_path / name), **chosen)

    return write_and_read


def test_a_log_of_open_unlearning_gives_its_default_contexts(read):
    log = {
        "forget_Q_A_ROUGE": metric(record(said="S0"), record(said="S1", truth="T1")),
        "forget_Q_A_ROUGE_f1": metric(record()),
        "wf_Q_A_ROUGE": metric(record("W?"), {"rougeL_recall": None}),
        "forget_quality": {"agg_value": 0.1},
    }
    first, second, third, gap = read("TOFU_EVAL.json", log)
    assert (first.context, second.idx) == ("forget_Q_A_ROUGE", 1)
    assert (second.answer, second.truth) == ("S1", "T1")
    assert (third.context, third.question) == ("wf_Q_A_ROUGE", "W?")
    # what was not generated is a gap, and not dropped
    assert (gap.idx, gap.gap) == (1, "the log holds no generation")
    odd = {"value_by_index": {"²": record(), "3": record()}}  # a digit that is no number
    assert [one.idx for one in read("TOFU_EVAL.json", {"forget_Q_A_ROUGE": odd})] == [0, 3]
    (named,) = read("TOFU_EVAL.json", log, contexts=("forget_Q_A_ROUGE_f1",))
    assert named.context == "forget_Q_A_ROUGE_f1"


def test_rows_of_eval_are_split_by_split(read):
    rows = [
        ROW | {"split": "forget", "answer": ["A", "B"]},
        {"split": "holdout", "idx": 0, "question": "Q", "answer": "A"},
        {"split": "forget", "idx": 1, "question": "Q", "answer": "A"},
    ]
    # nothing of holdout was generated; of forget one row was not
    item, gap = read("results.jsonl", rows)
    assert (item.context, item.truth, item.gap) == ("forget", "A", "")
    assert (gap.context, gap.idx, bool(gap.gap)) == ("forget", 1, True)


def test_rows_of_an_exact_match_audit_give_what_the_source_says(read):
    texts = {"full": "F", "retain": "R", "source": "S"}
    row = {"idx": 7, "group": 3, "question": "Q", "answer": "A", "entity": "E", "texts": texts}
    (item,) = read("results.jsonl", [row])
    assert (item.context, item.idx, item.group) == ("forget", 7, 3)
    assert (item.answer, item.entity) == ("S", "E")


def test_a_folder_means_the_log_in_it(read, tmp_path):
    read("TOFU_EVAL.json", {"forget_Q_A_ROUGE": metric(record())})
    assert log_in(tmp_path).name == "TOFU_EVAL.json"
    read("results.jsonl", [ROW])
    assert log_in(tmp_path).name == "results.jsonl"


def test_a_limit_is_per_context_and_in_the_order_of_the_log(read):
    rows = [
        ROW | {"context": context, "idx": idx}
        for idx in (5, 3, 9)
        for context in ("forget", "retain")
    ]
    found = [(one.context, one.idx) for one in read("results.jsonl", rows, limit=2)]
    assert found == [("forget", 5), ("retain", 5), ("forget", 3), ("retain", 3)]


def job_of(log, requests):
    settings = LogSettings(log=log, by="words:idk")
    return JudgeJob(settings, log, requests, IDK, None, 0.0, nullcontext)


def test_the_hash_follows_what_is_judged(read, tmp_path):
    def digest(**other):
        requests = read("a.jsonl", [ROW | other])
        return job_of(tmp_path / "a.jsonl", requests).digest

    assert digest(more=1) == digest() != digest(generation="T")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", {"forget_quality": {"agg_value": 1}}, "holds no generation to judge"),
        ("x.jsonl", [{"idx": 0, "uds": 0.5}], "holds no generation to judge"),
        ("x.jsonl", [{"question": "Q"}], "row 1: no idx"),
        ("x.jsonl", [[1]], r"row 1: found .*, wanted an object"),
    ],
)
def test_files_without_generations_are_one_line(read, name, content, said):
    with pytest.raises(InputError, match=said) as error:
        read(name, content)
    assert len(str(error.value).splitlines()) == 1


def test_an_empty_folder_and_a_missing_file_are_one_line(tmp_path):
    with pytest.raises(InputError, match=r"has no results\.jsonl"):
        log_in(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_items(tmp_path / "none.jsonl")


def test_what_is_said_of_a_log_names_the_models_that_the_log_is_of(tmp_path):
    log = tmp_path / "results.jsonl"
    log.write_text(json.dumps(ROW) + "\n")
    model = {"name": "m", "weights": "w"}
    made = manifest("eval", options={}, inputs={"model": model}, device="cpu", started=0.0)
    made.write(tmp_path, [log.name])
    assert job_of(log, read_items(log))._inputs["model"] == model


def test_an_answer_is_judged_without_its_thought_and_a_cut_thought_is_a_gap(read):
    said = ("<think>Lima?</think>Oslo", "[THINK]Lima?")
    first, second = read("o.jsonl", [ROW | {"idx": n, "generation": s} for n, s in enumerate(said)])
    assert (first.answer, first.gap) == ("Oslo", "")
    assert second.gap == "its thought was cut: there is no answer"
