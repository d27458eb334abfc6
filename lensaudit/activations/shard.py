"""Reading a shard file: the whole file's hash before HDF5 sees it, each slab's hash when read.

Arrays are contiguous and unfiltered, so a small file cannot claim much memory, and each (layer,
example) slab has its own XXH3-64: a read touches and checks exactly the bytes it returns.
"""

from collections.abc import Sequence
from contextlib import closing
from io import RawIOBase
from pathlib import Path

import h5py
import numpy as np
import xxhash

from lensaudit.activations.image import HEADER_BYTES, Slabs, header, slab_hashes
from lensaudit.activations.layout import activation_arrays, read_index
from lensaudit.activations.spec import REPAIR, SealedShard, Shard, Spec
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import check_plain, os_error

HASH_BLOCK_BYTES = 1 << 20
SHARD_ERRORS = (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError)
"""What h5py raises on a damaged file."""


def check_bytes(path: Path, sealed: SealedShard | None = None) -> SealedShard:
    """Hash the whole file and compare with its header, and with the seal if there is one.

    Raises:
        VerificationError: any byte differs from what was written.
        InputError | WorkError: the file is missing, no ordinary one, or cannot be read.
    """
    check_plain(path)
    try:
        with path.open("rb", buffering=0) as stream:
            first = stream.read(HEADER_BYTES)
            found = hash_rest(stream)
            n_bytes = stream.tell()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such shard; {REPAIR}") from error
    except OSError as error:
        raise os_error(error, path) from error
    if first != header(n_bytes, found):
        raise VerificationError(
            f"{path}: {n_bytes} bytes hash to {found}, its header says otherwise: damaged; {REPAIR}"
        )
    number = int(path.stem.rpartition("-")[2])
    checked = SealedShard(number=number, n_bytes=n_bytes, xxh3_128=found)
    if sealed is not None and checked != sealed:
        raise VerificationError(
            f"{path}: holds {n_bytes} bytes {found}, "
            f"the seal says {sealed.n_bytes} bytes {sealed.xxh3_128}; {REPAIR}"
        )
    return checked


def hash_rest(stream: RawIOBase) -> str:
    """XXH3-128 from the stream's position to its end."""
    hasher = xxhash.xxh3_128()
    block = memoryview(bytearray(HASH_BLOCK_BYTES))
    while count := stream.readinto(block):
        hasher.update(block[:count])
    return hasher.hexdigest()


def check_shard(
    path: Path, spec: Spec, shard: Shard, sealed: SealedShard | None = None
) -> SealedShard:
    """Check every byte, the structure, and each slab of a shard; what a seal says about it.

    Raises:
        VerificationError: it is damaged or belongs elsewhere.
    """
    checked = check_bytes(path, sealed)
    with closing(ShardFile(path, spec, shard)) as file:
        for idx in shard.idx:
            file.read(idx, range(spec.fingerprint.layers))
    return checked


class ShardFile:
    """An open shard whose bytes and structure were checked; reads check their slabs again."""

    def __init__(self, path: Path, spec: Spec, shard: Shard):
        """Open after `check_bytes`: the HDF5 library must not see damaged bytes.

        Raises:
            VerificationError: the structure is not that of shard `shard` of `spec`.
        """
        self.path, self.spec, self.shard = path, spec, shard
        try:
            # no lock call: published shards never change, and some network disks refuse locks
            self._file = h5py.File(path, "r", locking=False)
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such shard; {REPAIR}") from error
        except OSError as error:
            raise VerificationError(f"{path}: not HDF5 ({error}); {REPAIR}") from error
        try:
            self.index = read_index(self._file, spec, shard)
            self._resid, self._final_norm = activation_arrays(self._file, spec, self.index)
        except SHARD_ERRORS as error:
            self.close()
            raise VerificationError(f"{path}: not a shard of ours ({error}); {REPAIR}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, idx: int, layers: Sequence[int], *, final_norm: bool = True) -> Slabs:
        """The rows of one example at `layers`, checked against their hashes.

        Raises:
            VerificationError: the bytes read are not the bytes written.
            WorkError: the disk cannot be read.
        """
        slot = self.shard.idx.index(idx)
        start, end = self.index.offsets[slot : slot + 2].tolist()
        first, last = self.index.token_offsets[slot : slot + 2].tolist()
        try:
            resid = self._rows(layers, start, end)
            final = self._final_rows(start, end if final_norm and len(self._final_norm) else start)
        except OSError as error:
            raise os_error(error, self.path) from error
        self._check(idx, layers, resid, final if final_norm else None)
        return Slabs(
            idx=idx,
            token_ids=self.index.token_ids[first:last].copy(),
            positions=self.index.positions[start:end].copy(),
            resid=resid,
            final_norm=final,
        )

    def _rows(self, layers: Sequence[int], start: int, end: int) -> np.ndarray:
        rows = np.empty((len(layers), end - start, self._resid.shape[2]), self._resid.dtype)
        if rows.size == 0:
            return rows
        if list(layers) == list(range(layers[0], layers[-1] + 1)):
            self._resid.read_direct(rows, np.s_[layers[0] : layers[-1] + 1, start:end])
        else:
            for row, layer in enumerate(layers):
                self._resid.read_direct(rows, np.s_[layer, start:end], np.s_[row])
        return rows

    def _final_rows(self, start: int, end: int) -> np.ndarray:
        rows = np.empty((end - start, self._final_norm.shape[1]), self._final_norm.dtype)
        if rows.size:
            self._final_norm.read_direct(rows, np.s_[start:end])
        return rows

    def _check(
        self, idx: int, layers: Sequence[int], resid: np.ndarray, final_norm: np.ndarray | None
    ) -> None:
        column = self.index.checksums[:, self.shard.idx.index(idx)]
        wanted, found = column[list(layers)], slab_hashes(resid)
        places = [f"layer {layer}" for layer in layers]
        if final_norm is not None:
            wanted = np.append(wanted, column[-1])
            found = np.append(found, slab_hashes([final_norm]))
            places.append("final_norm")
        if len(wrong := np.flatnonzero(wanted != found)):
            raise VerificationError(
                f"{self.path}: example idx {idx}, {places[wrong[0]]} is not what was written; "
                f"{REPAIR}"
            )
