import json

import pandas as pd
import pytest
from support.report_cases import seal

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.files import write_csv, write_json, write_jsonl
from lensaudit.results.manifest import manifest

SUMMARY = {
    "score": "uds",
    "uds": 0.25,
    "ci95": [0.1, 0.4],
    "n": 3,
    "n_scored": 2,
    "layers": [0, 1],
    "calibration": {"full": 0.0, "retain": 1.0},
    "per_layer": [],
    "tau": 0.05,
    "scope": "span",
    "component": "resid",
    "last_layer": "resid_post",
    "engine": "sweep",
}
ROWS = [
    {
        "idx": 0,
        "group": 0,
        "question": "Who?",
        "entity": "Ada",
        "baseline": -0.5,
        "s1": [1.0, 2.0],
        "s2": [0.0, 1.0],
        "ke": [0, 1],
        "uds": 0.33,
        "unscored": None,
    },
    {
        "idx": 1,
        "group": 1,
        "question": "Who?",
        "entity": "Eve",
        "baseline": -0.25,
        "s1": [3.0, 4.0],
        "s2": [0.0, 0.0],
        "ke": [0, 1],
        "uds": 0.0,
        "unscored": None,
    },
    {"idx": 2, "baseline": None, "s1": None, "s2": None, "ke": [], "uds": None, "unscored": "lost"},
]
LAYERS = [
    (0, 0, 0, 1.0, 0.0, 1, 0.0),
    (0, 0, 1, 2.0, 1.0, 1, 0.5),
    (1, 1, 0, 3.0, 0.0, 1, 0.0),
    (1, 1, 1, 4.0, 0.0, 0, ""),
]


def write_run(folder, source="a", **changes):
    folder.mkdir(parents=True)
    summary = {"source": source} | SUMMARY | changes
    write_json(folder / "summary.json", summary)
    models = {role: {"name": role, "weights": role} for role in ("full", "retain")}
    inputs = models | {"source": {"name": source, "weights": source}, "examples": {"hash": "x"}}
    first = min(1.0, 2 * summary["uds"])  # the mean of both is the summary's
    scores = (first, 2 * summary["uds"] - first, None)
    rows = [row | {"uds": score} for row, score in zip(ROWS, scores, strict=True)]
    write_jsonl(folder / "results.jsonl", rows)
    header = ("idx", "group", "layer", "s1", "s2", "ke", "erasure")
    write_csv(folder / "layers.csv", header, LAYERS)
    made = manifest("patch", options={}, inputs=inputs, device="cpu", started=0.0)
    made.write(folder, ("summary.json", "results.jsonl", "layers.csv"))
    return folder


@pytest.fixture
def two(tmp_path):
    write_run(tmp_path / "a", "a")
    write_run(tmp_path / "b", "$b", uds=0.75, ci95=None)
    return tmp_path


@pytest.fixture
def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_a_summary_frame_has_a_row_per_run_with_its_interval(two):
    frame = la.frames.summaries(two).set_index("source")
    assert list(frame.loc["a", ["value", "low", "high", "n", "n_scored"]]) == [0.25, 0.1, 0.4, 3, 2]
    assert frame["low"].isna().to_dict() == {"a": False, "$b": True}
    assert list(frame["retain"]) == [1.0, 1.0]


def test_an_example_frame_keeps_unscored_rows_and_their_reason(two):
    frame = la.frames.examples(two / "a")
    assert list(frame["idx"]) == [0, 1, 2]
    assert list(frame["value"].dropna()) == [0.5, 0.0]
    assert list(frame["unscored"].dropna()) == ["lost"]
    assert list(frame["entity"][:2]) == ["Ada", "Eve"]


def test_layers_that_encode_a_fact_are_counted_of_exact_match_too(tmp_path):
    folder = write_run(tmp_path / "a")
    assert list(la.frames.examples(folder)["n_ke"]) == [2, 2, 0]
    lines = (folder / "results.jsonl").read_text()
    (folder / "results.jsonl").write_text(lines.replace('"ke"', '"ft"').replace('"uds"', '"udr"'))
    write_json(folder / "summary.json", {"source": "a"} | SUMMARY | {"score": "em", "udr": 0.25})
    seal(folder)
    assert list(la.frames.examples(folder)["n_ke"]) == [2, 2, 0]


def test_runs_of_one_name_differ_in_folder_weights_or_tau(two):
    again = write_run(two / "again", "a", tau=3.0)
    made = json.loads((again / "manifest.json").read_text())
    made["inputs"]["source"]["weights"] = "sha256:2afdfd2973b1"
    seal(again, inputs=made["inputs"])
    for frame in (la.frames.summaries(two), la.frames.examples(two), la.frames.layers(two)):
        own = frame[frame["source"] == "a"].groupby(["folder", "weights", "tau"])
        assert [*own.groups] == [(str(two / "a"), "a", 0.05), (str(again), "2afdfd29", 3.0)]


def test_a_layer_frame_is_layers_csv_with_its_source(two):
    frame = la.frames.layers(two / "a")
    assert len(frame) == len(LAYERS)
    assert [tuple(row) for row in frame[["idx", "layer", "s1", "s2"]].to_numpy()] == [
        (row[0], row[2], row[3], row[4]) for row in LAYERS
    ]
    assert frame["erasure"].isna().sum() == 1


def test_frames_of_a_real_evaluation_say_what_high_means(tmp_path, capsys):
    out = str(tmp_path / "out")
    command = ["eval", "--model", "demo/npo", "--metric", "forget_Q_A_Prob", "--limit", "2"]
    assert run([*command, "--out", out]) == 0
    frame = la.frames.metrics(out).set_index("metric")
    made = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert f"sha256:{frame['weights'].iloc[0]}" == made["inputs"]["model"]["weights"][:15]
    assert [*frame["folder"]] == [out]
    assert frame.loc["forget_Q_A_Prob", "high_means"] == "knows"
    assert 0 < frame.loc["forget_Q_A_Prob", "value"] < 1
    log = json.loads((tmp_path / "out" / "TOFU_EVAL.json").read_text())
    assert frame.loc["forget_Q_A_Prob", "value"] == log["forget_Q_A_Prob"]["agg_value"]


def test_nothing_there_is_an_error_and_something_unreadable_a_warning(two, tmp_path):
    with pytest.raises(InputError, match="no result of `lensaudit eval`"):
        la.frames.metrics(two)
    with pytest.raises(InputError, match="no such file"):
        la.frames.layers(tmp_path / "none")
    unfinished = tmp_path / "c"
    unfinished.mkdir()
    (unfinished / "results.jsonl").write_text("{}")
    with pytest.warns(UserWarning, match="unfinished"):
        assert len(la.frames.summaries(tmp_path)) == 2


def test_the_layer_profile_draws_the_means(two, pyplot):
    ax = la.plot.layer_profile(two)
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines) == ["S1 (retain)", "S2 (a)", r"S2 (\$b)"]
    assert list(lines["S1 (retain)"].get_ydata()) == [2.0, 3.0]
    assert list(lines["S2 (a)"].get_ydata()) == [0.0, 0.5]
    ax.figure.canvas.draw()


def test_where_s2_was_computed_at_ke_layers_only_s1_is_of_the_same_facts(two, pyplot):
    frame = la.frames.layers(two)
    whole = la.plot.layer_profile(frame)
    assert whole.get_xlabel() == "layer"
    # fact 1 is not encoded at layer 1: 4 leaves the mean of S1 there
    ax = la.plot.layer_profile(frame.assign(s2=frame["s2"].where(frame["ke"] == 1)))
    assert ax.get_xlabel() == "layer, means over the facts encoded there"
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [[2.0, 2.0], *[[0.0, 1.0]] * 2]
    unfit = la.plot.layer_profile(frame.assign(s2=frame["s2"].where(frame["source"] == "a")))
    assert [list(line.get_ydata()) for line in unfit.get_lines()] == [[2.0, 3.0], [0.0, 0.5], []]


def test_the_heat_map_shows_each_erasure_once_and_gaps_as_gaps(two, pyplot):
    import numpy as np

    ax = la.plot.heatmap(two, source="a")
    shown = ax.get_images()[0].get_array()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "0"]
    assert np.ma.filled(shown.astype(float), -1.0).tolist() == [[0.0, -1.0], [0.0, 0.5]]
    with pytest.raises(InputError, match="wanted one of"):
        la.plot.heatmap(two)
    ax.figure.canvas.draw()


def test_the_depth_plot_sorts_by_score(two, pyplot):
    ax = la.plot.depth(two)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", r"\$b"]
    assert list(ax.get_lines()[0].get_xdata()) == [0.25, 0.75]
    mine = pyplot.figure().subplots()
    assert la.plot.depth(la.frames.summaries(two), ax=mine) is mine


def test_the_depth_plot_draws_one_score_and_says_which(two, pyplot):
    frame = la.frames.summaries(two)
    lens = frame.assign(score="lens")
    ax = la.plot.depth(pd.concat([lens, frame]))
    assert (len(ax.lines[0].get_xdata()), ax.get_xlabel()[:10]) == (2, "unlearning")
    assert la.plot.depth(lens).get_xlabel().startswith("depth by the Logit Lens")
    with pytest.raises(InputError, match=r"wanted the frame of frames\.summaries"):
        la.plot.depth(la.frames.layers(two))


def test_two_runs_of_one_source_are_not_averaged(two, pyplot):
    write_run(two / "again", "a")
    with pytest.raises(InputError, match="several runs of a"):
        la.plot.layer_profile(two)
