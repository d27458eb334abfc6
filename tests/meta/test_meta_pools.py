"""The published pools: AUC, means and threshold from the values of all 60 models.

Values: gnueaj/unlearning-depth-score, runs/meta_eval/faithfulness/results.json at 44b0919, six
digits, in the order of the file.
"""

import json

import pytest

from lensaudit.cli.main import run
from lensaudit.meta.judging import faithfulness
from lensaudit.meta.reading import CATALOGUE, THRESHOLDS, values_of
from lensaudit.models.registry import load_registry

KNOWS = {
    "uds": [
        0.601108,
        0.767958,
        0.667768,
        0.576843,
        0.769191,
        0.655120,
        0.221673,
        0.781435,
        0.545610,
        0.178136,
        0.814163,
        0.576516,
        0.048608,
        0.747015,
        0.523878,
        0.038816,
        0.768043,
        0.580454,
        0.034653,
        0.650063,
        0.530414,
        0.018648,
        0.637959,
        0.556700,
        0.027697,
        0.583953,
        0.519164,
        0.013978,
        0.575458,
        0.558668,
    ],
    "em": [
        0.683491,
        0.619136,
        0.644660,
        0.697474,
        0.616386,
        0.646129,
        0.890310,
        0.613421,
        0.668209,
        0.957052,
        0.591766,
        0.649631,
        0.982585,
        0.628832,
        0.669914,
        0.999763,
        0.630439,
        0.658453,
        0.992313,
        0.658824,
        0.674668,
        0.999936,
        0.673818,
        0.673712,
        0.993224,
        0.684132,
        0.674018,
        1.000000,
        0.704513,
        0.675656,
    ],
}
FORGOT = {
    "uds": [
        0.775626,
        0.734007,
        0.781024,
        0.781343,
        0.735050,
        0.785495,
        0.881287,
        0.749087,
        0.874989,
        0.920935,
        0.797226,
        0.913807,
        0.934493,
        0.807451,
        0.922277,
        0.926620,
        0.833621,
        0.940867,
        0.896718,
        0.824447,
        0.904064,
        0.907746,
        0.829089,
        0.907657,
        0.876902,
        0.815682,
        0.883929,
        0.888822,
        0.837129,
        0.893927,
    ],
    "em": [
        0.613396,
        0.635056,
        0.613696,
        0.610037,
        0.634667,
        0.609471,
        0.592388,
        0.667126,
        0.595355,
        0.566734,
        0.664535,
        0.571786,
        0.588859,
        0.690621,
        0.590648,
        0.582080,
        0.690576,
        0.578080,
        0.589993,
        0.696867,
        0.587743,
        0.589883,
        0.700021,
        0.586769,
        0.592108,
        0.698526,
        0.589269,
        0.589770,
        0.703798,
        0.591656,
    ],
}
PRINTED = {"uds": (0.971, 0.486, 0.852, 0.9167), "em": (0.817, 0.742, 0.620, 0.8)}
"""AUC, mean of the pool that knows, of the one that forgot, accuracy at the threshold."""


@pytest.mark.parametrize("key", PRINTED)
def test_the_published_auc_means_and_threshold_come_out(key):
    registry = load_registry()
    knows = [spec.name for spec in registry.listed("pool_knows")]
    forgot = [spec.name for spec in registry.listed("pool_forgot")]
    rows = dict(zip((*knows, *forgot), (*KNOWS[key], *FORGOT[key]), strict=True))
    values = values_of({name: {key: value} for name, value in rows.items()})
    found = faithfulness(CATALOGUE[key], knows, forgot, values)
    area, p_mean, n_mean, accuracy = PRINTED[key]
    assert found.auc == pytest.approx(area, abs=5e-4)
    assert (found.knows_mean, found.forgot_mean) == pytest.approx((p_mean, n_mean), abs=5e-4)
    assert found.raw_threshold == pytest.approx(THRESHOLDS[key], abs=6e-5)
    assert found.threshold.accuracy == pytest.approx(accuracy, abs=5e-5)
    assert (found.n_knows, found.n_forgot) == (30, 30)
    assert found.interval.low < found.auc < found.interval.high
    if key == "uds":
        assert found.auc == pytest.approx(0.9711, abs=5e-5)
        assert found.interval.low == pytest.approx(0.8829, abs=1e-4)


def test_the_authors_file_of_the_pools_is_judged_by_name(tmp_path, capsys):
    registry = load_registry()
    content = {}
    for side, role in ((KNOWS, "pool_knows"), (FORGOT, "pool_forgot")):
        for spec, uds, em in zip(registry.listed(role), side["uds"], side["em"], strict=True):
            content[spec.repo] = {"metrics": {"uds": uds, "em": em}, "pool": role}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content))
    arguments = [
        "meta",
        "faithfulness",
        "--pool-knows",
        "published",
        "--pool-forgot",
        "published",
        "--metric",
        "uds",
        "--metric",
        "em",
        "--results",
        str(path),
        "--out",
        str(tmp_path / "o"),
    ]
    assert run(arguments) == 0
    uds, em = json.loads((tmp_path / "o" / "faithfulness.json").read_text())["metrics"]
    assert uds["auc"] == pytest.approx(0.9711, abs=5e-5)
    assert uds["threshold"] == pytest.approx(0.7724, abs=6e-5)
    assert em["auc"] == pytest.approx(0.817, abs=5e-4)
    capsys.readouterr()
    # one model gone: no AUC without it
    del content[registry.listed("pool_knows")[3].repo]
    path.write_text(json.dumps(content))
    assert run(arguments) == 3
    uds, _ = json.loads((tmp_path / "o" / "faithfulness.json").read_text())["metrics"]
    assert uds["auc"] is None
    assert uds["n_knows"] == 29
    assert uds["reason"] == "1 to do: pos_full_lr2e5_wd001_ep10"
