"""A cache of release 0.1.0 is read by this release, and by anybody with HDF5 and no code of ours.

Made once by `python tests/activations/test_golden.py FOLDER`; a new layout gets a new golden cache
beside this one, and this one must then be read or refused by name.
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xxhash
from support.store_cases import BASE, same

from lensaudit.activations.inventory import verify
from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.opening import open_activations
from lensaudit.activations.store import ExampleActivations

GOLDEN = Path(__file__).parent / "golden" / "release-0.1.0"
NAMES = {"weights": "5e77" * 8, "tokenizer": "91c0" * 8, "examples": "0fa1" * 8}
FINGERPRINT = dataclasses.replace(BASE, **NAMES, layers=2, d_model=4)
IDX, POSITIONS = (7, 3, 5), ((2, 3), (), (1, 4, 6))
BITS = (0x0000, 0x8000, 0x0001, 0x807F, 0x7F7F, 0x3F80, 0xC2F7, 0x0080)
"""0, -0, the smallest and largest denormals, the largest number, 1, -123.5, the smallest normal."""


def golden_examples():
    """Three ragged examples, one without rows; bits in rotation."""
    for idx, positions in zip(IDX, POSITIONS, strict=True):
        n_values = 3 * len(positions) * 4
        rotation = [BITS[(idx + n) % len(BITS)] for n in range(n_values)]
        signed = torch.from_numpy(np.array(rotation, np.uint16).view(np.int16))
        rows = signed.view(torch.bfloat16).reshape(3, len(positions), 4)
        tokens, at = torch.arange(8) * idx, torch.tensor(positions, dtype=torch.int64)
        yield ExampleActivations(idx, tokens, at, rows[:-1], rows[-1])


@pytest.fixture
def golden(tmp_path):
    """A private copy, as a user's store is."""
    folder = next(GOLDEN.iterdir())
    tmp_path.chmod(0o700)
    target = shutil.copytree(folder, tmp_path / folder.name)
    target.chmod(0o700)
    return target


def test_the_golden_cache_is_whole_and_its_key_is_as_it_was(golden):
    assert golden.name == "golden--b739cd43ec50b361c75c87c1a47b6ed4"
    assert FINGERPRINT.key() == golden.name.rpartition("--")[2]
    found = verify(golden)
    assert found.complete
    assert not found.problems


def test_the_golden_cache_is_read_to_the_last_bit(golden):
    with open_activations("golden", root=golden.parent) as cache:
        assert cache.fingerprint == FINGERPRINT
        assert cache.idx == IDX
        for found, wanted in zip(cache.examples(), golden_examples(), strict=True):
            assert same(found, wanted)


def test_a_shard_alone_tells_everything_to_plain_h5py(golden):
    content = (golden / "shard-000000.h5").read_bytes()
    lines = content[:512].decode().split("\n")
    assert lines[0] == "lensaudit-activations shard"
    assert lines[1] == f"bytes {len(content)}"
    assert lines[2] == f"xxh3_128 {xxhash.xxh3_128_hexdigest(content[512:])}"
    with h5py.File(golden / "shard-000000.h5", "r") as file:
        assert file.attrs["logical_dtype"] == "bfloat16"
        assert "rows" in file.attrs["about"].lower()
        spec = json.loads(file["spec"][:].tobytes())
        assert spec["fingerprint"]["weights"] == "5e77" * 8
        assert spec["provenance"]["model"] == "golden"
        assert file["example_ids"][:].tolist() == [7, 3, 5]
        assert file["offsets"][:].tolist() == [0, 2, 2, 5]
        assert file["token_ids"][:].tolist() == [idx * n for idx in IDX for n in range(8)]
        assert file["positions"][:].tolist() == [2, 3, 1, 4, 6]
        # bfloat16 is the upper half of float32
        resid = (file["resid_post"][:].astype("u4") << 16).view("f4")
        final_norm = (file["final_norm"][:].astype("u4") << 16).view("f4")
    for slot, wanted in enumerate(golden_examples()):
        rows = slice((0, 2, 2)[slot], (2, 2, 5)[slot])
        assert np.array_equal(resid[:, rows], wanted.resid.float().numpy())
        assert np.array_equal(final_norm[rows], wanted.final_norm.float().numpy())


def make(root):
    """Write the golden cache into `root`."""
    store = ActivationStore(root, reserve_bytes=0)
    with store.writer(
        FINGERPRINT, name="golden", idx=IDX, provenance={"model": "golden", "release": "0.1.0"}
    ) as writer:
        writer.publish(writer.missing()[0], list(golden_examples()))
        writer.seal()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
