"""Scratch files of a model that runs block by block, until its cache is complete.

Beside the shards lie a file of numbers (what is kept of every layer; every batch's stream before a
block and after it) and a document that is written after each block: the key of all that decides the
numbers, and a hash of each layer and of the streams. A run that was killed goes on from there where
both fit. What a loss of power took, the hashes tell.
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from torch import Tensor

from lensaudit.activations.presence import check_space, claim
from lensaudit.errors import InputError
from lensaudit.files import appear, os_errors
from lensaudit.progress import Notice
from lensaudit.results.keyed import write_keyed
from lensaudit.results.manifest import signed_object
from lensaudit.types import Resid

NUMBERS, DONE = "unfinished-blocks.bin", "unfinished-blocks.json"


def blocks_done(folder: Path) -> Mapping[str, Any]:
    """The identity of an unfinished cache's numbers, from its document; empty where there is none.

    The `key` of all that decides them and where each lies, the `shards` that they are for, by
    number, an XXH3-128 of what is kept of each of the `layers` so far, and of the `streams` after
    the last of them.
    """
    try:
        return signed_object(folder / DONE)
    except InputError:
        return {}


def forget_blocks(folder: Path) -> None:
    """Remove what blocks left: first what speaks of it.

    Raises:
        LensAuditError: the system refuses.
    """
    with os_errors(folder):
        (folder / DONE).unlink(missing_ok=True)
        (folder / NUMBERS).unlink(missing_ok=True)


class Scratch(AbstractContextManager):
    """Room for what is kept of every layer, and for the streams between two blocks.

    Where another process has the file of this cache, or locks do nothing, it has no name, and
    nothing is left of it.

    Args:
        folder: of the cache.
        key: of all that decides the numbers, and where each lies.
        shards: that run, by number.
        shapes: of what is kept of all layers, of the final norm's output, of each batch's stream.
        dtype: of all of it.
        reserve_bytes: that stay free on the disk.
        notice: told where it goes on, or that it cannot.

    Raises:
        TryAgainError: the disk has no room.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        shards: Sequence[int],
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype,
        *,
        reserve_bytes: int,
        notice: Notice,
    ):
        self._folder = folder
        self._said: dict[str, Any] = {"key": key, "shards": [*shards], "layers": [], "streams": ""}
        each = [math.prod(shape) for shape in shapes[2:]]
        sizes = [math.prod(shapes[0]), math.prod(shapes[1]), sum(each), sum(each)]
        with ExitStack() as held:
            self._named = held.enter_context(
                claim(folder, NUMBERS, patience_s=math.inf, unlocked=False)
            )
            numbers = None
            if self._named and (folder / DONE).exists():
                numbers = self._found(sizes, shapes[0][0], dtype)
                notice(
                    f"{folder}: this run goes on after block {self.n_done} of {shapes[0][0]}"
                    if numbers is not None
                    else f"{folder}: what an interrupted run left is damaged or belongs to another "
                    "run; this run starts anew"
                )
            if numbers is None:
                numbers = _mapped(folder, sum(sizes), dtype, reserve_bytes, named=self._named)
            self._held = held.pop_all()
        resid, norm, *self._rooms = numbers.split(sizes)
        self.resid, self.final_norm = resid.view(*shapes[0]), norm.view(*shapes[1])
        before, after = (
            [one.view(*shape) for one, shape in zip(room.split(each), shapes[2:], strict=True)]
            for room in self._rooms
        )
        self.streams: tuple[list[Resid], list[Resid]] = before, after
        """Of every batch, before a block and after it in turn."""

    @property
    def n_done(self) -> int:
        """Blocks that all examples went through."""
        return len(self._said["layers"])

    def __exit__(self, *error: object) -> None:
        if self._named and not self.n_done:
            forget_blocks(self._folder)
        self._held.close()

    def keep(self) -> None:
        """Another block is done: say so on disk."""
        self._said["layers"] += [_hash(self.resid[self.n_done])]
        self._said["streams"] = _hash(self._rooms[self.n_done % 2])
        if self._named:
            write_keyed(self._folder / DONE, self._said)

    def _found(self, sizes: Sequence[int], n_layers: int, dtype: torch.dtype) -> Tensor | None:
        """The numbers of an interrupted run, where they are this one's and as written."""
        said, path = blocks_done(self._folder), self._folder / NUMBERS
        if (
            any(said.get(name) != self._said[name] for name in ("key", "shards"))
            or not os.access(path, os.R_OK | os.W_OK)
            or path.stat().st_size != sum(sizes) * dtype.itemsize
        ):
            return None
        numbers = torch.from_file(str(path), shared=True, size=sum(sizes), dtype=dtype)
        resid, _, *rooms = numbers.split([*sizes])
        layers = [_hash(one) for one in resid.view(n_layers, -1)[: len(said["layers"])]]
        if layers != said["layers"] or _hash(rooms[len(layers) % 2]) != said["streams"]:
            return None
        self._said = dict(said)
        return numbers


def _hash(numbers: Tensor) -> str:
    return xxhash.xxh3_128(numbers.flatten().view(torch.uint8).numpy().data).hexdigest()


def _mapped(folder: Path, n: int, dtype: torch.dtype, reserve_bytes: int, *, named: bool) -> Tensor:
    """Room for `n` numbers in a file, in the place of what an interrupted run left."""
    n_bytes = n * dtype.itemsize
    if named:
        forget_blocks(folder)
    check_space(folder, n_bytes, reserve_bytes=reserve_bytes)

    def reserve(file: BinaryIO) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)  # a full disk is told here

    def mapped(partial: Path, path: Path) -> Tensor:
        numbers = torch.from_file(str(partial), shared=True, size=n, dtype=dtype)
        if named:
            partial.replace(path)
        return numbers

    return appear(folder / NUMBERS, reserve, mapped)
