"""An archive is imported whole and verified, or not at all, whatever it was made to do."""

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from support.store_cases import BASE, copy, fill, forge

from lensaudit.activations.archive import export, import_archive
from lensaudit.activations.naming import cache_folders
from lensaudit.activations.opening import open_activations
from lensaudit.activations.shard import HEADER_BYTES, check_bytes
from lensaudit.activations.spec import checked_seal, read_spec, seal_content
from lensaudit.errors import InputError, LensAuditError, VerificationError


def packed(members, form=tarfile.GNU_FORMAT, **headers):
    """A tar of members: name, content, and of what type each is; PAX headers are the last one's."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for name, content, *kind in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if kind:
                info.type, info.linkname = kind[0], "/etc/passwd"
            info.pax_headers = headers if name == members[-1][0] else {}
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def link(name, kind, content=b""):
    return name, content, kind


def members(folder):
    names = ["spec.json", "SEAL.json", *sorted(path.name for path in folder.glob("*.h5"))]
    return [(f"{folder.name}/{name}", (folder / name).read_bytes()) for name in names]


def test_an_exported_cache_is_imported_unchanged(full, tmp_path):
    tar = export(full, tmp_path / "full.tar")
    imported = import_archive(tar, tmp_path / "other", reserve_bytes=0)
    assert imported["new"]
    for path in [*full.glob("*.h5"), *full.glob("*.json")]:
        assert (tmp_path / "other" / full.name / path.name).read_bytes() == path.read_bytes()
    # a key is imported once, whatever its name
    fill(tmp_path / "store", BASE, name="another")
    again = import_archive(tar, tmp_path / "store", reserve_bytes=0)
    assert not again["new"]
    assert [Path(again["folder"])] == cache_folders(tmp_path / "store")
    assert len(cache_folders(tmp_path / "store")) == 1


def _flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


BAD = {
    "empty": lambda good: packed([]),
    "not a tar": lambda good: b"x" * 5000,
    "gzip": lambda good: gzip.compress(packed(good)),
    "traversal": lambda good: packed([("../spec.json", good[0][1]), *good[1:]]),
    "absolute": lambda good: packed([("/etc/spec.json", good[0][1]), *good[1:]]),
    "dots inside": lambda good: packed([("full/../x/spec.json", good[0][1]), *good[1:]]),
    "another folder": lambda good: packed([(f"x{name[1:]}", content) for name, content in good]),
    "another folder later": lambda good: packed([*good[:2], ("x/shard-000000.h5", good[2][1])]),
    "no folder": lambda good: packed([(name.split("/")[1], content) for name, content in good]),
    "symlink": lambda good: packed([*good[:2], link(good[2][0], tarfile.SYMTYPE), *good[3:]]),
    "a link with bytes": lambda good: packed(
        [*good[:2], link(good[2][0], tarfile.SYMTYPE, good[2][1]), *good[3:]]
    ),
    "a byte more than sealed": lambda good: packed([*good[:-1], (good[-1][0], good[-1][1] + b"0")]),
    "hard link": lambda good: packed([*good[:2], link(good[2][0], tarfile.LNKTYPE), *good[3:]]),
    "device": lambda good: packed([*good[:2], link(good[2][0], tarfile.CHRTYPE), *good[3:]]),
    "sparse": lambda good: packed([*good[:2], link(good[2][0], tarfile.GNUTYPE_SPARSE)]),
    "long name": lambda good: packed([*good[:2], ("x" * 300, b""), *good[2:]]),
    "no seal": lambda good: packed([good[0], *good[2:]]),
    "a shard less": lambda good: packed(good[:-1]),
    "a shard twice": lambda good: packed([*good[:3], *good[2:]]),
    "a file more": lambda good: packed([*good, ("full/run.sh", b"#!/bin/sh")]),
    "two caches": lambda good: packed([*good, *good]),
    "cut": lambda good: packed(good)[:-15_000],
    "shards swapped": lambda good: packed(
        [*good[:2], (good[2][0], good[3][1]), (good[3][0], good[2][1]), *good[4:]]
    ),
    "a flipped bit": lambda good: _flipped(packed(good), 20_000),
    "an empty spec": lambda good: packed([(good[0][0], b""), *good[1:]]),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_archive_changes_nothing(full, tmp_path, kind):
    # a member that climbs out would show beside the archive, or above it
    place = tmp_path / "down" / "here"
    place.mkdir(parents=True)
    tar = place / "bad.tar"
    tar.write_bytes(BAD[kind](members(full)))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(LensAuditError, match=r"bad\.tar") as refused:
        import_archive(tar, place / "store", reserve_bytes=0)
    # nothing of it is here to be repaired; what is no archive of ours is not called a damaged one
    assert "repair" not in str(refused.value)
    strange = kind in ("empty", "not a tar", "gzip")
    assert isinstance(refused.value, InputError) or not strange
    # a store that was not there may be there now, and is empty
    after = set(tmp_path.rglob("*"))
    assert before <= after
    assert after - before <= {place / "store"}


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_member_of_more_bytes_than_the_archive_is_not_unpacked(full, tmp_path, is_sparse):
    *good, (name, _) = members(full)
    claims = {"GNU.sparse.realsize": str(1 << 30)}
    if is_sparse:  # one run of 512 bytes at its begin, and a hole
        claims |= {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name}
    content = b"1\n0\n512\n".ljust(1024, b"\0")
    bomb = packed([*good, (name, content)], tarfile.PAX_FORMAT, **claims)
    (tmp_path / "bad.tar").write_bytes(bomb)
    with pytest.raises(InputError, match="holds other files"):
        import_archive(tmp_path / "bad.tar", tmp_path / "store", reserve_bytes=0)
    assert not (tmp_path / "store").exists()


def claim_51_gb(file):
    del file["resid_post"]
    file.create_dataset("resid_post", (3, 1 << 30, 8), "u2")


def test_a_forged_shard_in_an_archive_is_found(full, tmp_path):
    folder = copy(full, tmp_path / "a")
    forge(folder / "shard-000000.h5", claim_51_gb)
    old, new = (check_bytes(one / "shard-000000.h5") for one in (full, folder))
    spec = read_spec(folder / "spec.json")
    sealed = [new if shard == old else shard for shard in checked_seal(folder, spec).values()]
    assert new in sealed
    (folder / "SEAL.json").write_bytes(seal_content(spec, sealed))
    (tmp_path / "bad.tar").write_bytes(packed(members(folder)))
    with pytest.raises(VerificationError, match=r"has shape.*1073741824.*\); nothing was imported"):
        import_archive(tmp_path / "bad.tar", tmp_path / "store", reserve_bytes=0)
    assert cache_folders(tmp_path / "store") == []


def test_an_incomplete_or_damaged_cache_is_not_exported_and_no_file_replaced(full, tmp_path):
    folder = copy(full, tmp_path / "store")
    os.truncate(folder / "shard-000001.h5", HEADER_BYTES + 100)
    with pytest.raises(VerificationError, match="not exported"):
        export(folder, tmp_path / "x.tar")
    (folder / "shard-000001.h5").unlink()
    gone = r"shard-000001.h5: no such file; run `lensaudit activations repair`"
    with pytest.raises(VerificationError, match=f"not exported: .*{gone}"):
        export(folder, tmp_path / "x.tar")
    with open_activations(folder) as cache, pytest.raises(InputError, match=gone):
        [*cache.examples()]
    (folder / "SEAL.json").unlink()
    with pytest.raises(InputError, match="is not complete"):
        export(folder, tmp_path / "x.tar")
    assert not (tmp_path / "x.tar").exists()
    (tmp_path / "x.tar").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        export(full, tmp_path / "x.tar")
    assert (tmp_path / "x.tar").read_text() == "mine"
