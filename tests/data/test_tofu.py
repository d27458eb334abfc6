import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import datasets
import httpx2
import pytest
import support

from lensaudit import hub
from lensaudit.data import tofu
from lensaudit.data.facts import Fact, load_facts
from lensaudit.data.tofu import (
    FORGET10,
    OLDER,
    WITHOUT_SPAN,
    filters,
    forget_set,
    load_forget10,
    located,
    offsets,
    without_span,
)

REPO = Path(__file__).parents[2]
SCRIPT = REPO / "tools" / "tofu_offsets.py"

TEXTS = [
    ("Who wrote “The Lighthouse”?", "It was “ Ōe Brandsson, of Oslo.", "It was “", "Ōe Brandsson"),
    ("Is she a poet?", "Yes, Yes she is.", "", "Yes"),
    ("Where?", "In Oslo, not in Oslo.", "In Oslo, not in", "Oslo"),
]
EXAMPLES = [
    Fact(n * 19, *text, group=n * 19 // 20, seam="reference") for n, text in enumerate(TEXTS)
]
ROWS = [{"idx": one.idx, "question": one.question, "answer": one.answer} for one in EXAMPLES]


@pytest.fixture
def table(monkeypatch):
    """Three invented rows in place of TOFU's 367."""
    monkeypatch.setattr(tofu, "offsets", lambda config: tuple(located(one) for one in EXAMPLES))


refusal = partial(support.refusal, n_lines=3)


@pytest.fixture
def real(shared):
    """The folder of TOFU's own text."""
    return shared / "data" / "tofu"


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_and_table_give_back_the_annotated_examples(table):
    assert load_forget10(ROWS) == EXAMPLES


def test_the_entity_lies_after_the_prefix_even_if_the_prefix_names_it():
    # "In Oslo, not in" has 15 characters, then a blank, then "Oslo"
    place = located(EXAMPLES[2])
    assert (place.prefix_end, place.entity_start, place.entity_end) == (15, 16, 20)


def test_rows_without_idx_are_numbered_by_place(table):
    rows = [{"question": "-", "answer": "-"} for _ in range(39)]
    for row in ROWS:
        rows[row["idx"]] = {key: row[key] for key in ("question", "answer")}
    assert load_forget10(rows) == EXAMPLES


@pytest.mark.parametrize("key", ["question", "answer"])
def test_a_changed_text_and_missing_rows_are_named_by_their_idx(table, key):
    rows = [ROWS[0], ROWS[1] | {key: ROWS[1][key] + " "}, ROWS[2]]
    assert "1 rows hold another question or answer" in refusal(load_forget10, rows)
    assert "idx 19;" in refusal(load_forget10, rows)
    assert "2 of the 3 annotated rows are missing: idx 19, 38" in refusal(load_forget10, ROWS[:1])


def test_the_table_holds_numbers_and_hashes_only():
    shipped = json.loads((REPO / "tofu_data" / "forget10_offsets.json").read_text())
    assert len(shipped["rows"]) == 367
    for idx, prefix_end, start, end, *hashes in shipped["rows"]:
        assert 0 <= idx < 400
        assert 0 <= prefix_end <= start < end
        assert all(len(one) == 16 and int(one, 16) >= 0 for one in hashes)


def test_the_filters_have_their_published_sizes():
    sizes = {name: len(idx) for name, idx in filters().items()}
    assert sizes == {
        "v2": 47,
        "v2_full_wrong": 30,
        "v2_general_knowledge": 17,
        "v4_full_wrong": 76,
        "excluded": 33,
    }
    assert filters()["v2"] == filters()["v2_full_wrong"] | filters()["v2_general_knowledge"]
    assert {row.idx for row in offsets()} == set(range(400)) - filters()["excluded"]


def test_what_earlier_versions_leave_of_400_rows_has_a_span_or_is_named():
    older = {row.idx for row in offsets(OLDER)}
    assert older | {*WITHOUT_SPAN} == filters()["excluded"]
    for version, n in (("v2", 353), ("v4_full_wrong", 324), ("v2_full_wrong", 370)):
        left = set(range(400)) - filters()[version]
        spans = {row.idx for row in (*offsets(), *offsets(OLDER))} & left
        assert sorted(left - spans) == without_span("forget10", (version,))
        assert len(left) == n
    assert without_span("forget10", ("v2",)) == [320, 343, 344, 378]
    assert without_span("forget10", ("excluded",)) == without_span("forget10", ()) == []
    assert without_span("rows.json", ("v2",)) == []


def test_an_older_version_has_rows_that_the_published_annotation_lacks(tmp_path, monkeypatch):
    """Of three rows one is published, one is older, and the filter names the third."""
    older, left_out, published = map(located, EXAMPLES)
    tables = {FORGET10: (published,), OLDER: (older, left_out)}
    monkeypatch.setattr(tofu, "offsets", lambda config=FORGET10: tables[config])
    monkeypatch.setattr(tofu, "filters", lambda: {"v2": frozenset({left_out.idx})})
    (tmp_path / "forget10.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert [one.idx for one in forget_set(tmp_path)] == [38]
    assert [one.idx for one in forget_set(tmp_path, exclude=["v2"])] == [0, 38]


def test_a_filter_of_forget10_takes_nothing_out_of_other_rows(table, tmp_path):
    path = tmp_path / "own.json"
    rows = [{**row, "prefix": "", "entity": row["answer"]} for row in ROWS]
    path.write_text(json.dumps(rows))
    assert len(forget_set(path, exclude=["v2"])) == 3 - len({*filters()["v2"]} & {0, 19, 38})
    for changed in ({"answer": "Yes, Yes."}, {"question": "Is he?"}):
        other = {**rows[1], **changed} | {"entity": "Yes"}
        path.write_text(json.dumps([rows[0], other, rows[2]]))
        wanted = f"filter 'v2' lists rows of TOFU forget10, not of {path}"
        assert support.refusal(forget_set, path, exclude=["v2"]) == wanted
        assert len(forget_set(path)) == 3


def test_version_2_is_cut_from_all_rows_and_the_published_set_stays(real, tmp_path):
    (tmp_path / "forget10.jsonl").write_bytes((real / "forget10_qa.jsonl").read_bytes())
    left = forget_set(tmp_path, exclude=["v2"])
    assert len(left) == 353 - 4
    assert [one.idx for one in left] == sorted({one.idx for one in left})
    spans = {row.idx: row for row in offsets(OLDER)}
    added = [located(one) == spans[one.idx] for one in left if one.idx in spans]
    assert (len(added), all(added)) == (23, True)
    assert len(forget_set(tmp_path)) == len(forget_set(tmp_path, exclude=["excluded"])) == 367


def test_all_367_annotated_rows_round_trip(real):
    annotated = load_facts(real / "forget10_filtered.json")
    joined = load_forget10(rows_of(real / "forget10_qa.jsonl"))
    shipped = {"seam": "reference"}
    assert joined == [replace(one, group=one.idx // 20, **shipped) for one in annotated]
    assert len({one.group for one in joined}) == 20


def test_the_annotated_file_is_grouped_by_author_under_any_name(real, tmp_path):
    path = tmp_path / "copy.json"
    path.write_bytes((real / "forget10_filtered.json").read_bytes())
    assert forget_set(path) == load_forget10(rows_of(real / "forget10_qa.jsonl"))
    assert len(forget_set(path, exclude=["v2"])) == 367 - len(
        filters()["v2"] - filters()["excluded"]
    )


def test_the_script_writes_places_and_hashes_in_order_of_idx(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([vars(one) for one in reversed(EXAMPLES)]))
    out = tmp_path / "offsets.json"
    subprocess.run([sys.executable, SCRIPT, tmp_path / "a.json", "-o", out], check=True)
    written = json.loads(out.read_text())
    assert written["columns"][:4] == ["idx", "prefix_end", "entity_start", "entity_end"]
    # 'It was “' has 8 characters, then a blank, then twelve of 'Ōe Brandsson'
    places = [[0, 8, 9, 21], [19, 0, 0, 3], [38, 15, 16, 20]]
    assert [row[:4] for row in written["rows"]] == places
    for one, row in zip(EXAMPLES, written["rows"], strict=True):
        texts = (one.question, one.answer)
        assert row[4:] == [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]


def test_the_script_makes_the_shipped_table(real, tmp_path):
    out = tmp_path / "offsets.json"
    subprocess.run([sys.executable, SCRIPT, real / "forget10_filtered.json", "-o", out], check=True)
    assert out.read_bytes() == (REPO / "tofu_data" / "forget10_offsets.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "lines"), [("forget10.jsonl", True), ("forget10.json", True), ("forget10.json", False)]
)
def test_a_folder_of_tofu_files_will_do(table, tmp_path, name, lines):
    text = "\n".join(json.dumps(row) for row in ROWS) if lines else json.dumps(ROWS)
    (tmp_path / name).write_text(text)
    assert forget_set(str(tmp_path)) == EXAMPLES


@pytest.mark.parametrize("saved", ["set", "splits", "stream", "feather"])
def test_what_arrow_holds_is_told_how_to_become_rows(tmp_path, monkeypatch, saved):
    rows = datasets.Dataset.from_list([{"question": "Who?", "entity": "Ada"}])
    place = given = tmp_path / "it"
    if saved == "feather":
        rows.to_pandas().to_feather(place)
    else:
        whole = datasets.DatasetDict(train=rows) if saved == "splits" else rows
        whole.save_to_disk(place)
        given = place / "data-00000-of-00001.arrow" if saved == "stream" else place
    command = refusal(forget_set, given).partition('python -c "')[2].rstrip('"')
    monkeypatch.chdir(tmp_path)
    exec(command.replace(str(place), str(place / "train")) if saved == "splits" else command)
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == rows[0]


def test_a_folder_without_them_a_broken_file_and_no_file_are_refused(table, tmp_path):
    assert "no such file; wanted forget10, demo or" in refusal(forget_set, "forget05")
    assert "holds no forget10.jsonl" in refusal(forget_set, tmp_path)
    (tmp_path / "forget10.jsonl").write_text(json.dumps(ROWS[0]) + "\n{oops")
    assert "forget10.jsonl: line 2 is not JSON" in refusal(forget_set, tmp_path)


def annotated(path, **changes):
    rows = [{**vars(one), "group": None} | changes for one in EXAMPLES]
    path.write_text(json.dumps(rows))
    return path


def test_rows_of_forget10_are_grouped_by_author_and_others_alone(table, tmp_path):
    groups = [one.group for one in forget_set(annotated(tmp_path / "a.json"))]
    assert groups == [0, 0, 1]
    groups = [one.group for one in forget_set(annotated(tmp_path / "b.json", question="Else?"))]
    assert groups == ["idx 0", "idx 19", "idx 38"]
    groups = [one.group for one in forget_set(annotated(tmp_path / "c.json", group="one"))]
    assert groups == ["one"] * 3


def test_filters_drop_their_rows(table, tmp_path, monkeypatch):
    monkeypatch.setattr(tofu, "filters", lambda: {"excluded": {5}, "a": {0, 7}, "b": {19, 38}})
    path = annotated(tmp_path / "a.json")
    assert [one.idx for one in forget_set(path, exclude=["a"])] == [19, 38]
    assert "leaves no row" in refusal(forget_set, path, exclude=["a", "b"])
    assert "no filter 'c'; wanted one of excluded, a, b" in refusal(forget_set, path, exclude=["c"])
    assert "not of demo" in refusal(forget_set, "demo", exclude=["a"])


def test_forget10_comes_from_the_hub(table, monkeypatch):
    asked = []

    def deliver(*names, **options):
        asked.append((*names, options["split"]))
        return ROWS

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", deliver)
    assert forget_set("forget10") == EXAMPLES
    assert asked == [("locuslab/TOFU", "forget10", "train")]


@pytest.mark.parametrize("error", [ConnectionError, httpx2.ConnectError, ValueError])
def test_without_a_network_the_line_says_what_to_give(monkeypatch, tmp_path, error):
    def fail(*names, **options):
        raise error("hf_secret")

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", fail)
    message = refusal(forget_set, "forget10")
    assert "locuslab/TOFU forget10: cannot be fetched" in message
    assert "name a folder that holds forget10.jsonl" in message
    assert "hf_secret" not in message


def test_a_cached_data_set_needs_no_network(table, monkeypatch, tmp_path):
    (tmp_path / "locuslab___tofu" / "forget10").mkdir(parents=True)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("asked"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: ROWS)
    assert forget_set("forget10") == EXAMPLES


@pytest.mark.network
def test_the_hub_holds_the_annotated_text():
    assert len(forget_set("forget10")) == 367
