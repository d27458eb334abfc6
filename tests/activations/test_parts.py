"""Components of every layer lie beside the residual stream, each under a key of its own."""

import dataclasses
import inspect
import json

import numpy as np
import pytest
import torch
from support.store_cases import BASE, fill, flip, forge, make_example, same

from lensaudit.activations.inventory import verify
from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.opening import open_activations
from lensaudit.activations.spec import HOOKS, _signed, parse_spec
from lensaudit.activations.upkeep import repair
from lensaudit.cli.main import run
from lensaudit.errors import InputError, VerificationError

PARTS = {part: dataclasses.replace(BASE, hook=hook) for part, hook in HOOKS.items()}
HEADS = dataclasses.replace(PARTS["heads"], d_model=12)
"""Heads end to end are wider than the stream here."""


@pytest.fixture
def root(tmp_path):
    """The stream, what attention adds, and heads, of one model and the same examples."""
    for fingerprint in (BASE, PARTS["attn"], HEADS):
        fill(tmp_path, fingerprint, n=40)
    return tmp_path


def test_every_part_has_a_key_of_its_own_and_the_streams_is_as_before():
    assert len({one.key() for one in PARTS.values()}) == len(PARTS)
    assert BASE.document()["hook"] == "resid_post"


@pytest.mark.parametrize(
    "change",
    [
        {"hook": "checksums"},
        {"dtype": "int8"},
        {"layers": "3"},
        {"layers": True},
        {"schema": 99},
        {"format": "other"},
        {"extra": 1},
    ],
)
def test_an_odd_identity_document_is_refused_though_its_digest_is_right(full, change):
    document = json.loads((full / "spec.json").read_text())
    del document["digest"], document["format"]
    parse_spec(_signed(**document), source="x")
    with pytest.raises(InputError, match=r"x: "):
        parse_spec(
            _signed(**document | {"fingerprint": document["fingerprint"] | change}), source="x"
        )


def test_what_was_written_is_read_to_the_last_bit(root):
    store = ActivationStore(root)
    for fingerprint in (BASE, PARTS["attn"], HEADS):
        with store.open(fingerprint) as cache:
            assert all(
                same(cache.example(idx), make_example(idx, fingerprint)) for idx in range(40)
            )
            rows = cache.layer(1).rows([3, 4])
            assert torch.equal(rows.example(4), cache.example(4).resid[1])
            some = cache.example(4).at(torch.tensor([4, 6]))
            assert some.resid.shape == (3, 2, fingerprint.d_model)
            assert len(some.final_norm) == (2 if cache.part == "resid" else 0)


def test_a_name_means_the_stream_and_a_component_is_asked_for(root, tmp_path_factory):
    alone = tmp_path_factory.mktemp("alone")
    fill(alone, PARTS["mlp"], n=1)
    with pytest.raises(InputError, match="no cache of 'full'"):
        open_activations("full", root=alone)
    assert open_activations("full", root=root).part == "resid"
    found = open_activations("full", root=root, component="heads")
    assert (found.part, found.d_model) == ("heads", 12)
    assert "full heads" in repr(found)
    key = PARTS["attn"].key()
    for text in (key, key[:8], found.folder.parent / f"full--{key}"):
        assert open_activations(text, root=root).part == "attn"
    with pytest.raises(
        InputError, match=r"no cache of 'full' with component=mlp; there are .*attn"
    ):
        open_activations("full", root=root, component="mlp")
    with pytest.raises(
        InputError, match=r"--component head:3: wanted resid, .*one cache holds all"
    ):
        inspect.unwrap(open_activations)("full", root=root, component="head:3")


def test_a_component_with_a_final_norm_is_no_shard_of_ours(root):
    folder = root / f"full--{HEADS.key()}"

    def with_norm(file):
        shape = (file["z"].shape[1], 12)
        del file["final_norm"]
        file.create_dataset("final_norm", data=np.zeros(shape, "u2"))

    path = folder / "shard-000000.h5"
    (folder / "SEAL.json").unlink()
    forge(path, with_norm)
    with pytest.raises(VerificationError, match="final_norm has shape"):
        open_activations(folder, allow_partial=True).example(4)


def test_damage_is_found_and_the_command_that_fills_names_the_component(root, capsys):
    folder = root / f"full--{PARTS['attn'].key()}"
    assert verify(folder).problems == ()
    flip(folder / "shard-000001.h5", 5000)
    assert len(verify(folder).problems) == 1
    assert "--component attn " in repair(folder).command
    assert "--component" not in repair(root / f"full--{BASE.key()}").how_to_fill
    assert run(["activations", "ls", "--activations", str(root)]) == 0
    table = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()[1:4]}
    assert {"attn", "heads", "resid"} <= {word for row in table.values() for word in row.split()}
