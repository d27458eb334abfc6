"""What a run leaves on disk: which column is which, the anchors, and whose rows are resampled."""

import csv
from dataclasses import replace

import pytest
import torch
from wavefront_helpers import examples

from lensaudit.patching.options import ResolvedSettings
from lensaudit.patching.outcome import (
    calibration_of,
    layer_cells,
    outcome_of,
    summary_of,
    write_result,
)
from lensaudit.results.records import Manifest

ROWS = examples([(2, 1, 2, 4)] * 12)


def outcome(s1, s2, encoded=ROWS):
    s1, s2 = torch.tensor(s1), torch.tensor(s2)
    options = ResolvedSettings(at_layers=tuple(range(s1.shape[1])))
    encoded = encoded[: len(s1)]
    return outcome_of("a", encoded, {}, options, torch.full((len(s1),), -0.25), s1, s2)


def test_the_table_of_layers_names_what_retain_and_what_the_source_did(tmp_path):
    found = outcome([[1.0, 0.01], [2.0, 0.5]], [[0.25, 0.75], [2.0, 0.125]])
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
    nothing, baseline = torch.zeros_like(s1), torch.zeros(2)
    found = calibration_of(ROWS[:2], options, baseline, s1, nothing)
    assert found == {"full": 0.0, "retain": 1.0}
    # a self-patch that costs 0.25 of each delta is seen at full
    off = calibration_of(ROWS[:2], options, baseline, s1, s1 / 4)
    assert off == {"full": pytest.approx(0.25), "retain": 1.0}


def test_an_interval_knows_whose_rows_are_alike():
    # six of twelve rows are erased: they are those of three of six authors, or of nobody
    ones, erased = [[1.0]] * 12, [[1.0]] * 6 + [[0.0]] * 6
    by_author = outcome(ones, erased, [replace(e, group=e.idx // 2) for e in ROWS])
    by_row = outcome(ones, erased, [replace(e, group=e.idx) for e in ROWS])
    assert by_author.uds == by_row.uds == 0.5
    widths = [one.estimate.high - one.estimate.low for one in (by_author, by_row)]
    assert widths[0] > 1.2 * widths[1]
