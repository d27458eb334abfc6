"""What is made of deltas: rows, means by layer, differences of models, and what is not scored."""

import csv
from dataclasses import replace

import pytest
import torch
from scipy.stats import t as student
from support.wavefront_helpers import examples

from lensaudit.patching.options import ResolvedSettings
from lensaudit.patching.outcome import (
    calibration_of,
    layer_cells,
    outcome_of,
    summary_of,
    write_comparison,
    write_result,
)
from lensaudit.results.integrity import check_whole
from lensaudit.results.manifest import Manifest, manifest
from lensaudit.text import digest
from lensaudit.verdict.collect import judge_run
from lensaudit.verdict.views import read_calibration

ROWS = [replace(e, group=e.idx // 2) for e in examples([(2, 1, 2, 4)] * 12)]
"""Two questions of each of six authors."""


def outcome(source: str, s1, s2, *, lost=None, rows=ROWS):
    options = ResolvedSettings(at_layers=tuple(range(len(s1[0]))))
    s1, s2 = torch.tensor(s1), torch.tensor(s2)
    return outcome_of(source, rows[: len(s1)], lost or {}, options, torch.zeros(len(s1)), s1, s2)


def test_erasure_of_a_layer_is_the_mean_over_the_examples_it_encodes():
    found = outcome(
        "a",
        # 0.01 is no KE layer: tau is 0.05
        [[1.0, 2.0], [1.0, 0.01], [2.0, 0.01]],
        [[0.5, 0.5], [1.0, 0.01], [9.0, 0.00]],
    )
    first, second = found.layer_rows()
    # (0.5 + 1 + clip(4.5)) / 3, and 0.5 / 2 of the one example; none counts as 0
    assert first["erasure"] == pytest.approx(2.5 / 3)
    assert (second["n_ke"], second["erasure"]) == (1, 0.25)
    assert (second["s1_ke"], second["s2_ke"]) == (2.0, 0.5)
    assert second["s1"] == pytest.approx(2.02 / 3)
    (row,) = outcome("a", [[0.01], [0.02]], [[0.5], [0.5]]).layer_rows()
    assert (row["n_ke"], row["erasure"], row["s1_ke"]) == (0, None, None)


def written(folder, uds):
    """A run of these scores; its source is called as the folder."""
    found = outcome(folder.name, [[1.0]] * len(uds), [[x] for x in uds])
    made = manifest("patch", options={}, inputs={}, device="cpu", started=0.0)
    folder.mkdir(exist_ok=True)
    return write_result(folder, found.rows(), layer_cells(found), summary_of(found, {}), made)


def compared(tmp_path, a, b):
    """The line of comparison.csv, of UDS per example."""
    runs = [written(tmp_path / name, uds) for name, uds in (("a", a), ("b", b))]
    made = manifest("patch comparison", options={}, inputs={}, device="cpu", started=0.0)
    write_comparison(runs, made)
    with (tmp_path / "comparison.csv").open() as file:
        (line,) = csv.DictReader(file)
    return line


def test_a_run_replaces_its_own_comparison_and_leaves_that_of_another(tmp_path):
    made = manifest("patch comparison", options={}, inputs={}, device="cpu", started=0.0)
    for names in (("a", "b"), ("a", "b"), ("a-01234567", "b"), ("a-01234567", "b")):
        write_comparison([written(tmp_path / one, [0.5]) for one in names], made)
    tables = sorted(tmp_path.glob("*.csv"))
    assert tables[0].stem == f"comparison-{digest(['a-01234567', 'b'])[:8]}"
    assert [one.name for one in tables[1:]] == ["comparison.csv"]
    check_whole(tmp_path)


def test_a_difference_is_the_first_minus_the_second(tmp_path):
    line = compared(tmp_path, [0.75, 1.0] * 6, [0.25, 0.5] * 6)
    assert (line["a"], line["b"]) == ("a", "b")
    assert float(line["uds_a"]) - float(line["uds_b"]) == 0.5
    assert float(line["difference"]) == 0.5
    assert (line["n"], line["n_groups"]) == ("12", "6")
    # the same gap everywhere: nothing varies
    assert (line["low"], line["high"], line["why"]) == (
        "",
        "",
        "every author has the same mean: no interval",
    )


def test_the_interval_of_a_difference_counts_authors(tmp_path):
    # three authors have a gap of 1, three of 0: means of six authors, sd sqrt(0.3), t of 5 df
    line = compared(tmp_path, [1.0] * 6 + [0.0] * 6, [0.0] * 12)
    half = student.ppf(0.975, 5) * (0.3 / 6) ** 0.5
    assert float(line["low"]) == pytest.approx(max(-1, 0.5 - half))
    assert float(line["high"]) == pytest.approx(min(1, 0.5 + half))
    # each author has a gap of 1 and one of 0
    alike = compared(tmp_path, [1.0, 0.0] * 6, [0.0] * 12)
    assert alike["why"] == "every author has the same mean: no interval"
    few = compared(tmp_path, [1.0, 0.5] * 4, [0.0] * 8)
    assert (few["difference"], few["low"]) == ("0.75", "")
    assert few["why"] == "4 authors: no interval"


def test_a_summary_counts_the_authors_that_its_interval_is_by():
    # the sixth author has two rows and no layer encodes either
    found = summary_of(outcome("a", [[1.0]] * 10 + [[0.01]] * 2, [[0.5]] * 12), {})
    assert (found.n, found.n_scored, found.n_groups) == (12, 10, 5)


def test_a_summary_of_few_authors_says_why_it_has_no_interval():
    ones, half = [[1.0]] * 12, [[0.5], [0.25]] * 6
    few = summary_of(outcome("a", ones[:6], half[:6]), {})
    assert (few.ci95, few.ci95_why) == (None, "3 authors: no interval")
    assert few.uds == 0.375
    enough = summary_of(outcome("a", ones, half), {})
    assert enough.ci95[0] < 0.375 < enough.ci95[1]
    assert (enough.ci95_why, enough.ci95_assumes) == (None, None)
    sentence = judge_run(few, [], read_calibration()).sentence
    assert "3 authors: no interval; this describes these rows only" in sentence
    none = summary_of(outcome("a", [[0.0]], [[0.0]]), {})
    assert (none.ci95, none.ci95_why) == (None, "no row has a score: no interval")


def test_a_lost_span_is_counted_with_its_reason():
    found = outcome("a", [[1.0]], [[0.5]], lost={77: "no token of it"})
    summary = summary_of(found, {})
    assert (summary.n, summary.n_scored) == (2, 1)
    assert summary.unscored == {"77": "no token of it"}
    assert [(row["idx"], row["unscored"]) for row in found.rows()] == [
        (0, None),
        (77, "no token of it"),
    ]


def test_the_table_of_layers_names_what_retain_and_what_the_source_did(tmp_path):
    found = outcome("a", [[1.0, 0.01], [2.0, 0.5]], [[0.25, 0.75], [2.0, 0.125]])
    made = Manifest("patch", {}, {}, "cpu", 0.0, "now", {}, None)
    write_result(tmp_path, found.rows(), layer_cells(found), summary_of(found, {}), made)
    with (tmp_path / "layers.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["idx", "group", "layer", "s1", "s2", "ke", "erasure"]
    numbers = [[float(one) if one else None for one in (row[0], *row[2:])] for row in rows]
    # at 0.01 nothing is encoded, so nothing can be erased
    assert numbers == [
        [0, 0, 1.0, 0.25, 1, 0.25],
        [0, 1, pytest.approx(0.01), 0.75, 0, None],
        [1, 0, 2.0, 2.0, 1, 1.0],
        [1, 1, 0.5, 0.125, 1, 0.25],
    ]


def test_full_reads_0_and_retain_1_where_everything_is_right():
    s1 = torch.tensor([[1.0, 2.0], [0.5, 0.25]])
    options = ResolvedSettings(at_layers=(0, 1))
    nothing = torch.zeros_like(s1)
    found = calibration_of(ROWS[:2], options, s1, nothing)
    assert found == {"full": 0.0, "retain": 1.0}
    # a self-patch that costs 0.25 of each delta is seen at full
    off = calibration_of(ROWS[:2], options, s1, s1 / 4)
    assert off == {"full": pytest.approx(0.25), "retain": 1.0}


def test_an_interval_knows_whose_rows_are_alike():
    # six of twelve rows are erased: they are those of three of six authors, or of nobody
    ones, erased = [[1.0]] * 12, [[1.0]] * 6 + [[0.0]] * 6
    by_author = outcome("a", ones, erased)
    by_row = outcome("a", ones, erased, rows=[replace(e, group=e.idx) for e in ROWS])
    assert by_author.uds == by_row.uds == 0.5
    widths = [one.estimate.high - one.estimate.low for one in (by_author, by_row)]
    assert widths[0] > 1.2 * widths[1]
