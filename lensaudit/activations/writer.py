"""Filling a cache: any number of processes, in any order, each shard whole or not there."""

import math
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import numpy as np

from lensaudit.activations.presence import RESERVE_BYTES, Mark, check_space, claim, publish
from lensaudit.activations.shard import Slabs, build, check_positions, check_shard
from lensaudit.activations.spec import SEAL, SPEC, Seal, Shard, Spec, sha256
from lensaudit.activations.tensors import TORCH, ExampleActivations, extremes, to_bits
from lensaudit.errors import WorkError
from lensaudit.files import write_bytes

PATIENCE_S = 1800.0
"""A shard of 32 examples takes seconds to minutes; one held for longer counts as free."""
POLL_S = 0.2


class CacheWriter(AbstractContextManager):
    """One process's hand in filling one cache folder.

    `with store.writer(...) as writer:` then, for each `shard` of `writer.claims()`, compute and
    `writer.publish(shard, examples)`; `writer.seal()` at the end.
    """

    def __init__(self, folder: Path, spec: Spec, *, reserve_bytes: int = RESERVE_BYTES):
        self.folder, self.spec, self.reserve_bytes = folder, spec, reserve_bytes
        self._mark = Mark(folder)
        weakref.finalize(self, self._mark.remove)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the folder; what is published stays."""
        self._mark.remove()

    def missing(self) -> list[Shard]:
        """Shards that nobody has published yet."""
        return [shard for shard in self.spec.shards() if not self.path(shard).exists()]

    def n_free(self) -> int:
        """Missing shards that nobody works on now."""
        n = 0
        for shard in self.missing():
            with claim(self.folder, shard.file_name, patience_s=math.inf) as free:
                n += free
        return n

    def claims(self, *, patience_s: float = PATIENCE_S) -> Iterator[Shard]:
        """Missing shards, each held until it is published; ends when nothing is left to do.

        Shards that other processes work on are left to them, and waited for; a shard held for
        longer than `patience_s`, or by a process that died, is handed out as well. Publishing may
        lag behind, in another thread.
        """
        handed: set[int] = set()
        with ExitStack() as every:
            held: dict[int, ExitStack] = {}
            while missing := [shard for shard in self.missing() if shard.number not in handed]:
                before = len(handed)
                for shard in missing:
                    self._release_published(held)
                    hold = every.enter_context(ExitStack())
                    ours = hold.enter_context(
                        claim(self.folder, shard.file_name, patience_s=patience_s)
                    )
                    if not ours or self.path(shard).exists():
                        hold.close()
                        continue
                    held[shard.number] = hold
                    handed.add(shard.number)
                    yield shard
                if len(handed) == before:
                    time.sleep(POLL_S)

    def _release_published(self, held: dict[int, ExitStack]) -> None:
        for shard in self.spec.shards():
            if shard.number in held and self.path(shard).exists():
                held.pop(shard.number).close()

    def path(self, shard: Shard) -> Path:
        """Where a shard is, or will be."""
        return self.folder / shard.file_name

    def publish(self, shard: Shard, examples: Sequence[ExampleActivations]) -> None:
        """Write one shard, read it back and give it its name; a no-op if it is there and whole.

        Raises:
            ValueError: the examples are not those of the shard, or of another type or shape.
            WorkError: a value is NaN or infinite, or the disk returned other bytes than written.
            TryAgainError: the disk is full; nothing changed.
        """
        if tuple(example.idx for example in examples) != shard.idx:
            raise ValueError(f"shard {shard.number} wants examples {shard.idx}")
        checked = [self._slabs(example) for example in examples]
        n_bytes = sum(slabs.resid.nbytes + slabs.final_norm.nbytes for slabs, _ in checked)
        check_space(self.folder, n_bytes, reserve_bytes=self.reserve_bytes)
        n_large = sum(count for _, count in checked)
        self._mark.renew()
        parts = build(self.spec, shard, [slabs for slabs, _ in checked], n_large=n_large)
        if not publish(self.path(shard), parts):
            check_shard(self.path(shard), self.spec, shard)  # somebody was first: theirs counts

    def _slabs(self, example: ExampleActivations) -> tuple[Slabs, int]:
        fingerprint = self.spec.fingerprint
        wanted = (fingerprint.layers, len(example.positions), fingerprint.d_model)
        dtypes = {example.resid.dtype, example.final_norm.dtype}
        if tuple(example.resid.shape) != wanted or dtypes != {TORCH[fingerprint.dtype]}:
            raise ValueError(
                f"example idx {example.idx}: {tuple(example.resid.shape)} {dtypes}, "
                f"wanted {wanted} {fingerprint.dtype}"
            )
        check_positions(example.positions.cpu().numpy(), len(example.token_ids))
        found = [extremes(rows) for rows in (example.resid, example.final_norm)]
        bad = found[0][0] | found[1][0]
        if bad:
            position = int(example.positions[min(bad)])
            raise WorkError(
                f"example idx {example.idx}: NaN or infinity at token position {position} "
                f"({len(bad)} of {len(example.positions)} rows) in {fingerprint.dtype}; "
                "nothing was written for its shard: cache it again with a wider --dtype"
            )
        slabs = Slabs(
            idx=example.idx,
            token_ids=example.token_ids.cpu().numpy().astype(np.int64),
            positions=example.positions.cpu().numpy().astype(np.int64),
            resid=to_bits(example.resid),
            final_norm=to_bits(example.final_norm),
        )
        return slabs, found[0][1] + found[1][1]

    def seal(self) -> None:
        """Write `SEAL.json`, from the bytes on disk, when every shard is there and whole.

        Raises:
            WorkError: shards are missing.
            VerificationError: a shard is damaged.
        """
        if missing := self.missing():
            raise WorkError(
                f"{self.folder}: {len(missing)} of {len(self.spec.shards())} shards are missing "
                f"(first {missing[0].file_name}); run the same `lensaudit cache` command again"
            )
        shards = self.spec.shards()
        seal = Seal(
            key=self.spec.fingerprint.key(),
            spec_sha256=sha256((self.folder / SPEC).read_bytes()),
            shards=tuple(check_shard(self.path(shard), self.spec, shard) for shard in shards),
        )
        write_bytes(self.folder / SEAL, seal.content())
