"""The tables that hold classification scores against steering, on vectors written by the writer."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import pearsonr, t

from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.kinds.steering import LayerScore, LayerSweep
from lensaudit.results.manifest import manifest
from lensaudit.results.reading import document
from lensaudit.steer.estimators import SteeringVector, save_vector, separation
from lensaudit.steer.profile import layer_report

SCORES = {
    4: {"accuracy": 0.60, "auc": 0.65, "effect_size": 0.5, "overlap": 0.80, "p": 0.3, "drop": 0.30},
    5: {"accuracy": 0.90, "auc": 0.95, "effect_size": 2.5, "overlap": 0.21, "p": 0.01, "drop": 0.1},
    6: {"accuracy": 0.75, "auc": 0.85, "effect_size": 3.0, "overlap": 0.13, "p": 0.02, "drop": 0.0},
}
STEERED = {4: 30.0, 5: 20.0, 6: 55.0}


def vector_at(layer, numbers=1.0, **more):
    vector = torch.full((4,), numbers)
    return SteeringVector(vector=vector, layer=layer, position="prompt_last", **more)


def vectors(folder, scores, method="probe", trait="calm", numbers=1.0):
    """Vectors of a trait, as `steer extract` writes them."""
    for layer, one in scores.items():
        made = vector_at(layer, numbers, method=method, trait=trait)
        save_vector(replace(made, resid_norm=1.0, scores=one), folder / "vectors")


def swept(folder, means, *, polarity=1, coherence=90.0, base=10.0):
    """A sweep with these judged means by layer."""
    folder.mkdir(parents=True, exist_ok=True)
    record = LayerSweep(
        trait=folder.name,
        method="probe",
        polarity=polarity,
        baseline_mean=base,
        coherence_threshold=50.0,
        layers={
            str(at): LayerScore(layer=at, mean=mean, coherence_mean=coherence)
            for at, mean in means.items()
        },
    )
    write_json(folder / "layer_sweep.json", document(record))
    inputs = {"vectors": [vector_at(layer, method="probe").hash() for layer in means]}
    made = manifest("steer", kind="steering", options={}, inputs=inputs, device="cpu", started=0.0)
    made.write(folder, ["layer_sweep.json"], "layer_sweep_manifest.json")


def test_layers_by_scores_and_by_steering_stand_side_by_side(tmp_path):
    folder = tmp_path / "calm"
    vectors(folder, SCORES)
    vectors(folder, {4: {"accuracy": 0.5, "auc": 0.5, "drop": -0.1}}, method="random")
    swept(folder, STEERED)
    report = layer_report(folder)

    (one,) = report.profiles
    assert (one.by_proxy, one.by_steering, one.shape) == (5, 6, "peaked")
    assert one.proxy_peak == pytest.approx(90 - (60 + 90 + 75) / 3)
    assert one.steering_peak == pytest.approx(45 - (20 + 10 + 45) / 3)
    # (0.90 + 2.5/3)/2 = .867 against (0.75 + 1)/2 = .875; with 1-Drop .878 against .917
    assert one.best_by == {"accuracy and effect": 6, "AUC": 5, "with 1-Drop": 6}

    known = {(one.first, one.second): one for one in (*report.proxies, *report.steering)}
    column = {name: [one[name] for one in SCORES.values()] for name in SCORES[4]}
    for pair in (("accuracy", "auc"), ("accuracy", "overlap"), ("effect_size", "p")):
        assert known[pair].r == pytest.approx(pearsonr(*(column[name] for name in pair)).statistic)
    moved = [20.0, 10.0, 45.0]
    assert known["auc", "steering"].r == pytest.approx(pearsonr(column["auc"], moved).statistic)
    assert known["auc", "steering"].n == 3

    drops = {one.method: one for one in report.drops}
    assert drops["random"].mean == pytest.approx(110)
    assert drops["random"].above == 1.0
    assert drops["probe"].mean == pytest.approx(100 - 40 / 3)
    assert drops["probe"].above == 0.0


def test_traits_beside_it_are_in_the_report_and_a_damaged_one_is_named(tmp_path):
    vectors(tmp_path / "calm", SCORES)
    vectors(tmp_path / "angry", SCORES, trait="angry")
    vectors(tmp_path / "bad", SCORES, trait="bad")
    place = tmp_path / "bad" / "vectors" / "probe_layer4.json"
    place.write_text(place.read_text().replace("0.65", "0.99"))
    report = layer_report(tmp_path / "calm")
    assert [one.trait for one in report.profiles] == ["calm", "angry"]
    assert "probe_layer4.json" in report.left_out[0]
    # nothing was swept: nobody says what steering chooses
    assert report.profiles[0].by_steering is None
    assert all(one.r is None for one in report.steering)


def test_what_is_to_fall_is_best_where_it_falls_most_and_what_falls_apart_is_not(tmp_path):
    folder = tmp_path / "calm"
    vectors(folder, SCORES)
    swept(folder, {4: 5.0, 5: 1.0, 6: 9.0}, polarity=-1)
    assert layer_report(folder).profiles[0].by_steering == 5
    swept(folder, STEERED, coherence=20.0)
    assert layer_report(folder).profiles[0].by_steering is None
    swept(folder, dict.fromkeys(STEERED, 10.0))
    assert layer_report(folder).profiles[0].by_steering is None


def test_what_a_sweep_did_by_other_vectors_is_not_paired_with_the_scores_of_these(tmp_path):
    folder = tmp_path / "calm"
    vectors(folder, SCORES)
    swept(folder, STEERED)
    assert layer_report(folder).profiles[0].by_steering == 6
    vectors(folder, {6: SCORES[6]}, numbers=2.0)
    report = layer_report(folder)
    assert report.profiles[0].by_steering == 4
    assert {one.n for one in report.steering} == {2}
    assert report.left_out == [
        "calm, probe: what `steer sweep` found, by other vectors than these; run it again"
    ]


def test_edited_or_missing_files_are_one_line(tmp_path):
    folder = tmp_path / "calm"
    with pytest.raises(InputError, match="no vector has held-out scores"):
        layer_report(folder)
    vectors(folder, SCORES)
    swept(folder, STEERED)
    path = folder / "layer_sweep.json"
    path.write_text(path.read_text().replace("55.0", "95.0"))
    with pytest.raises(InputError, match=r"layer_sweep\.json"):
        layer_report(folder)


def test_p_is_welchs_and_is_missing_where_nothing_varies():
    found = separation([2.0, 4.0, 6.0], [0.0, 2.0], threshold=2.0)
    # of variances 4 and 2: t = (4 - 1) / sqrt(4/3 + 2/2), df = (7/3)^2 / ((4/3)^2 / 2 + 1)
    assert found.p == pytest.approx(2 * t.sf(3 / (7 / 3) ** 0.5, (49 / 9) / (8 / 9 + 1)))
    assert math.isnan(separation([1.0, 1.0], [0.0, 0.0], threshold=0.5).p)
