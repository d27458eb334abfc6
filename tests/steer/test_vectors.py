"""Vectors on disk: what comes back, and what is refused."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from lensaudit.errors import InputError
from lensaudit.steer.estimators import SteeringVector, load_vector, save_vector


def vector(**changes):
    found = {"layer": 2, "method": "probe", "position": "response", "trait": "t", "asked": ("0f",)}
    counts = {"n_pos": 3, "n_neg": 4, "resid_norm": 2.0, "scores": {"auc": 1.0}}
    return SteeringVector(vector=torch.arange(1.0, 9.0), **found | counts | changes)


def load(path, *, d_model=8, n_layers=3):
    return load_vector(path, d_model=d_model, n_layers=n_layers, name="m")


def test_a_vector_that_is_there_is_left_as_it_is(tmp_path):
    path = save_vector(vector(), tmp_path)
    files = (path, path.with_suffix(".json"))
    before = [one.stat() for one in files]
    save_vector(vector(), tmp_path)
    assert [one.stat() for one in files] == before
    path.write_bytes(path.read_bytes()[:-1])
    save_vector(vector(), tmp_path)
    assert load(path).document() == vector().document()


def test_a_vector_comes_back_with_its_provenance(tmp_path):
    path = save_vector(vector(), tmp_path)
    assert path.name == "probe_layer2.safetensors"
    found = load(path)
    assert torch.equal(found.vector, vector().vector)
    assert found.document() == vector().document()
    assert found.document()["layer_convention"] == "block_output_0based"
    # 0.5 * sqrt(204) / 2
    assert found.ratio(-0.5) == pytest.approx(0.25 * 204**0.5)
    assert vector(resid_norm=None).ratio(1.0) is None
    path = save_vector(vector(), tmp_path)
    with pytest.raises(InputError, match="8 numbers, m has width 16"):
        load(path, d_model=16)
    with pytest.raises(InputError, match="is for layer 2, m has 0 to 1"):
        load(path, n_layers=2)


def changed(tmp_path, **changes):
    path = save_vector(vector(), tmp_path)
    document = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(document | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_convention": "hidden_states"}, "hidden_states"),
        ({"schema": "other/1"}, "wanted an object of schema"),
        ({"layer": 1}, "describes another vector"),
        ({"layer": "2"}, "layer: found '2', wanted a whole number; extract the vector again"),
        ({"resid_norm": -1.0}, "resid_norm: found -1.0, wanted at least 0"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load(changed(tmp_path, **changes))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.tensor([1.0, torch.nan]), "NaN or infinity"),
        (torch.tensor([1.0, torch.inf]), "NaN or infinity"),
        (torch.zeros(8), "is zero"),
        (torch.ones(2, 4), "one axis"),
        (torch.ones(8, dtype=torch.int64), "one axis"),
    ],
)
def test_numbers_that_cannot_steer_are_refused(tmp_path, tensor, message):
    path = save_vector(vector(), tmp_path)
    save_file({"vector": tensor}, path)
    with pytest.raises(InputError, match=message):
        load(path)


def test_missing_and_damaged_files_are_refused(tmp_path):
    path = save_vector(vector(), tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "other.safetensors")
    path.write_bytes(b"no safetensors")
    with pytest.raises(InputError, match="not a safetensors file"):
        load(path)
    save_file({"other": torch.ones(8)}, path)
    with pytest.raises(InputError, match="one tensor 'vector'"):
        load(path)
    path.unlink()
    with pytest.raises(InputError, match=r"its \.json is there"):
        load(path)


def test_a_bare_tensor_is_read_by_its_name_and_no_pickle_is_run(tmp_path):
    path = tmp_path / "probe_layer1.pt"
    torch.save(torch.ones(8), path)
    assert (load(path).layer, load(path).method) == (1, "probe")
    torch.save(torch.ones(4, 8), path)
    with pytest.raises(InputError, match="row L \\+ 1 is layer L"):
        load(path)
    ran = tmp_path / "ran"

    class Harm:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    path.write_bytes(pickle.dumps(Harm()))
    with pytest.raises(InputError, match="a pickle is not run"):
        load(path)
    assert not ran.exists()
    torch.save(torch.ones(8), tmp_path / "probe.pt")
    with pytest.raises(InputError, match="names no layer"):
        load(tmp_path / "probe.pt")
