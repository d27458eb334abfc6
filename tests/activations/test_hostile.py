"""A shard made to mislead its reader is refused before it does harm."""

import os
import signal
import tracemalloc

import h5py
import numpy as np
import pytest
from support.store_cases import copy, forge

from lensaudit.activations.inventory import verify
from lensaudit.activations.shard import check_bytes, check_shard
from lensaudit.activations.spec import read_spec
from lensaudit.activations.upkeep import repair
from lensaudit.cli.main import run
from lensaudit.errors import VerificationError


def replace(file, name, **options):
    """The dataset `name` made anew with other creation options."""
    data = file[name][...]
    del file[name]
    return file.create_dataset(name, data=data, **options)


def external_link(file):
    del file["resid_post"]
    file["resid_post"] = h5py.ExternalLink("/etc/passwd", "/x")


def soft_link(file):
    del file["final_norm"]
    file["final_norm"] = h5py.SoftLink("/resid_post")


def external_storage(file):
    shape, dtype = file["token_ids"].shape, file["token_ids"].dtype
    del file["token_ids"]
    file.create_dataset("token_ids", shape, dtype, external=[("/etc/passwd", 0, 10**6)])


def virtual(file):
    shape = file["resid_post"].shape
    layout = h5py.VirtualLayout(shape, "u2")
    layout[:] = h5py.VirtualSource("other.h5", "x", shape)
    del file["resid_post"]
    file.create_virtual_dataset("resid_post", layout)


def unallocated(file):
    del file["resid_post"]
    file.create_dataset("resid_post", (3, 1 << 30, 8), "u2")  # 51 GB in 300 bytes


def unwritten(file):
    shape = file["resid_post"].shape
    del file["resid_post"]
    file.create_dataset("resid_post", shape, "u2")  # HDF5 would return zeros


def unallocated_index(file):
    del file["positions"]
    file.create_dataset("positions", (1 << 36,), "i8")  # 550 GB in 300 bytes


def scalar_of_many(file):
    del file.attrs["key"]
    file.attrs.create("key", np.zeros(5000, "u1"))


def nested(file):
    del file["positions"]
    file.create_group("positions")


def _compact(file):
    data = file["offsets"][...]
    del file["offsets"]
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(data.shape)
    made = h5py.h5d.create(file.id, b"offsets", h5py.h5t.NATIVE_INT64, space, dcpl=create)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, data)


def _retype(file, name, dtype):
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, dtype)


def _set(file, name, where, value):
    file[name][where] = value


HOSTILE = {
    "external link": (external_link, "is missing or a link"),
    "soft link": (soft_link, "is missing or a link"),
    "external storage": (external_storage, "is external"),
    "virtual dataset": (virtual, "is external, virtual"),
    "claims 51 GB": (unallocated, "has shape"),
    "claims 550 GB in its index": (unallocated_index, "claims more than it holds"),
    "never allocated": (unwritten, "claims more than it holds"),
    "compressed": (lambda file: replace(file, "resid_post", compression="gzip"), "or filtered"),
    "another filter": (lambda file: replace(file, "resid_post", scaleoffset=0), "or filtered"),
    "chunked": (lambda file: replace(file, "resid_post", chunks=(1, 1, 8)), "not contiguous"),
    "compact": (_compact, "not contiguous"),
    "a dataset more": (lambda file: file.create_dataset("more", data=[1]), "holds 11 objects"),
    "an attribute more": (lambda file: file.attrs.create("more", 1), "has attributes"),
    "an attribute that is an array": (scalar_of_many, "not a single value"),
    "a group": (nested, "not an array"),
    "another type": (lambda file: _retype(file, "resid_post", "i2"), "of type int16"),
    "variable length": (
        lambda file: _retype(file, "token_ids", h5py.vlen_dtype(np.int64)),
        "of type object",
    ),
    "another key": (lambda file: file.attrs.modify("key", "0" * 32), "its place wants"),
    "another shard": (lambda file: file.attrs.modify("shard", 1), "shard is 1, its place wants 0"),
    "another dtype": (lambda file: file.attrs.modify("logical_dtype", "float16"), "logical_dtype"),
    "other examples": (lambda file: _set(file, "example_ids", 0, 99), "other examples"),
    "offsets past the end": (lambda file: _set(file, "offsets", 3, 10**12), "offsets do not fit"),
    "negative offsets": (lambda file: _set(file, "offsets", 1, -8), "offsets do not fit"),
    "tokens past the end": (
        lambda file: _set(file, "token_offsets", -1, 10**9),
        "offsets do not fit",
    ),
    "positions past the tokens": (lambda file: _set(file, "positions", 0, 10**6), "not ascending"),
    "another number": (
        lambda file: _set(file, "resid_post", (1, 4, 5), 7),
        "idx 3, layer 1",
    ),
    "another checksum": (lambda file: _set(file, "checksums", (0, 4), 1), "example idx 4, layer 0"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_forged_shard_is_refused_though_its_hash_is_right(full, tmp_path, kind):
    folder = copy(full, tmp_path / "store")
    path = folder / "shard-000000.h5"
    spec = read_spec(folder / "spec.json")
    check_shard(path, spec, spec.shards()[0])
    edit, words = HOSTILE[kind]
    forge(path, edit)
    check_bytes(path)
    tracemalloc.start()
    with pytest.raises(VerificationError, match=words):
        check_shard(path, spec, spec.shards()[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize("name", ["SEAL.json", "shard-000000.h5", "spec.json"])
def test_a_pipe_in_place_of_a_file_is_one_line_and_nothing_waits(full, tmp_path, capsys, name):
    folder = copy(full, tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    signal.alarm(60)  # of a pipe that nobody writes to, a read does not end
    try:
        assert run(["verify", str(tmp_path)]) == 4
        assert f"{name}: is a pipe; name an ordinary file" in capsys.readouterr().out
        assert [one.what for one in verify(folder).problems] == [
            f"{folder / name}: is a pipe; name an ordinary file"
        ]
        assert name in repair(folder).quarantined
        assert run(["activations", "repair", str(folder)]) == 0
    finally:
        signal.alarm(0)
    assert not (folder / name).is_fifo()
