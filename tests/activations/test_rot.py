"""No byte of a cache changes unnoticed."""

import dataclasses
import os
import random

import pytest
import torch
from support.store_cases import BASE, fill, flip, make_example, same

from lensaudit.activations import store as module
from lensaudit.activations.inventory import verify
from lensaudit.activations.opening import open_activations
from lensaudit.activations.shard import check_bytes
from lensaudit.errors import VerificationError


def test_a_flip_in_any_byte_of_a_shard_is_found(tmp_path):
    path, chance = fill(tmp_path, n=3) / "shard-000000.h5", random.Random(0)
    for at in range(path.stat().st_size):
        bit = chance.randrange(8)
        flip(path, at, bit)
        with pytest.raises(VerificationError):
            check_bytes(path)
        flip(path, at, bit)
    check_bytes(path)


@pytest.mark.parametrize("name", ["spec.json", "SEAL.json"])
def test_a_flip_in_any_byte_of_the_spec_or_seal_is_found(folder, name):
    path, chance = folder / name, random.Random(0)
    for at in range(path.stat().st_size):
        bit = chance.randrange(8)
        flip(path, at, bit)
        with pytest.raises(VerificationError):
            open_activations(folder)
        if at % 50 == 0:
            found = verify(folder)
            assert [problem.file for problem in found.problems] == [name]
            assert not found.complete
        flip(path, at, bit)
    assert verify(folder).complete


@pytest.mark.parametrize("name", ["shard-000002.h5", "spec.json", "SEAL.json"])
def test_a_file_cut_or_grown_is_found(folder, name):
    path = folder / name
    content = path.read_bytes()
    for damaged in (b"", content[:-1], content + b"\0", content * 2):
        path.write_bytes(damaged)
        assert verify(folder).problems
    path.write_bytes(content)
    assert verify(folder).complete


@pytest.mark.parametrize(
    ("name", "said"),
    [("shard-000001.h5", "the seal says"), ("SEAL.json", "is the seal of another spec.json")],
)
def test_a_file_of_another_cache_in_its_place_is_found(folder, tmp_path, name, said):
    other = fill(tmp_path / "other", name="another")  # same numbers, other spec: other bytes
    (other / name).replace(folder / name)
    assert said in verify(folder).problems[0].what


def test_reading_a_damaged_shard_says_what_to_do(folder):
    flip(folder / "shard-000000.h5", 9000)
    with open_activations(folder) as cache:
        assert same(cache.example(40), make_example(40))  # in another shard
        with pytest.raises(VerificationError, match="run `lensaudit activations repair"):
            cache.example(1)


def test_damage_after_a_shard_was_opened_is_found_at_the_example(tmp_path):
    wide = dataclasses.replace(BASE, d_model=16384)  # larger than what HDF5 keeps in memory
    folder = fill(tmp_path, wide, n=10)
    path = folder / "shard-000000.h5"
    with open_activations(folder) as cache:
        for idx in range(10):
            assert same(cache.example(idx), make_example(idx, wide))
        content = path.read_bytes()
        slab = make_example(9, wide).resid[1]
        at = content.index(slab.view(torch.int16).numpy().tobytes())
        with path.open("r+b") as stream:  # in place: the open file sees it
            stream.seek(at)
            stream.write(bytes([content[at] ^ 4]))
        with pytest.raises(VerificationError, match="example idx 9, layer 1 is not what was"):
            cache.example(9)
        with pytest.raises(VerificationError, match="example idx 9, layer 1"):
            cache.layer(1).rows()
        assert same(cache.example(8), make_example(8, wide))
        assert torch.equal(cache.example(9, layers=[0]).resid, make_example(9, wide).resid[:1])


def test_a_file_is_hashed_once_while_it_does_not_change(folder, monkeypatch):

    hashed = []

    def counted(path, sealed=None):
        hashed.append(path.name)
        return check_bytes(path, sealed)

    monkeypatch.setattr(module, "check_bytes", counted)
    for _ in range(3):
        with open_activations(folder) as cache:
            cache.example(0)
    assert hashed == ["shard-000000.h5"]
    os.utime(folder / "shard-000000.h5")
    with open_activations(folder) as cache:
        cache.example(0)
    assert len(hashed) == 2
