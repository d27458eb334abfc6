"""What does the activation store keep when writers are killed, raced, or run out of disk?

Each drill does the damage for real, in child processes and files, and returns counts. The test
suite runs short drills, `benchmarks/store.py` long ones.
"""

import fcntl
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from lensaudit.activations.inventory import verify
from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.shard import check_shard
from lensaudit.activations.spec import Fingerprint, Shard
from lensaudit.activations.store import CacheWriter, ExampleActivations
from lensaudit.errors import LensAuditError

FORK = multiprocessing.get_context("fork")
N_EXAMPLES = 400
FINGERPRINT = Fingerprint(
    weights="0" * 32,
    tokenizer="1" * 32,
    examples="2" * 32,
    template="qa",
    hook="resid_post",
    layers=8,
    d_model=256,
    positions="all",
    dtype="bfloat16",
    attention="eager",
    device_class="cpu",
    batch_policy="right-padded-16",
)


def example(idx: int, fingerprint: Fingerprint = FINGERPRINT) -> ExampleActivations:
    """A ragged example whose numbers follow from its idx: 36 to 66 rows, mean 51."""
    n_rows = 36 + idx * 7 % 31
    shape = (fingerprint.layers + 1, n_rows, fingerprint.d_model)
    numbers = torch.arange(shape[0] * shape[1] * shape[2]).remainder(509).sub(254)
    rows = (numbers * (idx + 1) / 64).reshape(shape).to(getattr(torch, fingerprint.dtype))
    positions = torch.arange(n_rows)
    return ExampleActivations(
        idx=idx,
        token_ids=positions + idx,
        positions=positions,
        resid=rows[:-1],
        final_norm=rows[-1],
    )


def open_writer(root: Path) -> CacheWriter:
    """A writer of the drills' cache."""
    store = ActivationStore(root, reserve_bytes=0)
    return store.writer(
        FINGERPRINT, name="drill", idx=range(N_EXAMPLES), provenance={"model": "drill"}
    )


def fill(root: Path, acknowledge: Callable[[int], None] = lambda number: None) -> None:
    """Fill and seal the cache; `acknowledge` is told each shard once it is published."""
    with open_writer(root) as writer:
        for shard in writer.claims():
            writer.publish(shard, [example(idx) for idx in shard.idx])
            acknowledge(shard.number)
        writer.seal()


def is_right(root: Path) -> bool:
    """Is the cache complete, verified, and of the right numbers?"""
    with ActivationStore(root).open(FINGERPRINT) as cache:
        right = all(_same(found, example(found.idx)) for found in cache.examples())
        return right and len(cache) == N_EXAMPLES and not verify(cache.folder).problems


def _same(found: ExampleActivations, wanted: ExampleActivations) -> bool:
    pairs = ((vars(found)[name], vars(wanted)[name]) for name in vars(wanted) if name != "idx")
    return all(torch.equal(a, b) for a, b in pairs)


@dataclass(frozen=True)
class Kills:
    """Writers killed at random moments."""

    n_kills: int
    n_mid_write: int
    """Kills that left a temporary file behind: they hit a shard being written."""
    n_unreadable: int
    """Shards that exist and cannot be read."""
    n_acknowledged: int
    n_lost: int
    """Examples that were acknowledged and are not there or not right."""
    n_leftovers: int
    """Temporary files after the last run; each run sweeps those of the killed ones."""
    is_right: bool


def kill_writers(root: Path, *, n_kills: int, seed: int = 0) -> Kills:
    """Kill filling writers one after the other, then let one finish."""
    chance = random.Random(seed)
    n_done = n_mid_write = n_unreadable = n_acknowledged = n_lost = 0
    acknowledged: set[int] = set()
    while n_done < n_kills:
        if (root / "done").exists():
            shutil.rmtree(root)
            acknowledged = set()
        with _child(_fill_and_tell, root) as (child, told):
            if chance.random() < 0.8:  # else some are killed before their first shard
                told.poll(60)
            child.join(timeout=chance.uniform(0.0, 0.3))
            if child.is_alive():
                n_done += 1
                os.kill(child.pid, signal.SIGKILL)
                child.join()
                n_mid_write += bool(list(root.rglob("*.h5.*.partial")))
            else:
                (root / "done").touch()
            acknowledged |= set(_received(told))
        unreadable, lost = _damage(root, acknowledged)
        n_unreadable += unreadable
        n_lost += lost
        n_acknowledged += sum(len(shard.idx) for shard in _shards(root, acknowledged))
    (root / "done").unlink(missing_ok=True)
    fill(root)
    leftovers = len(list(root.rglob("*.partial")))
    return Kills(
        n_kills, n_mid_write, n_unreadable, n_acknowledged, n_lost, leftovers, is_right(root)
    )


@contextmanager
def _child(work: Callable[..., None], *arguments: object) -> Iterator[tuple]:
    told, tell = FORK.Pipe(duplex=False)
    child = FORK.Process(target=work, args=(*arguments, tell))
    child.start()
    tell.close()
    try:
        yield child, told
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        told.close()


def _fill_and_tell(root: Path, tell: Connection) -> None:
    fill(root, tell.send)


def _received(told: Connection) -> Iterator[int]:
    with suppress(EOFError, OSError):
        while told.poll():
            yield told.recv()


def _shards(root: Path, numbers: set[int]) -> list[Shard]:
    if not numbers:
        return []
    with open_writer(root) as writer:
        return [shard for shard in writer.spec.shards() if shard.number in numbers]


def _damage(root: Path, acknowledged: set[int]) -> tuple[int, int]:
    """Shards that exist and are unreadable; acknowledged examples that are not right."""
    if not list(root.glob("*/spec.json")):
        return 0, 0
    n_unreadable = n_lost = 0
    with open_writer(root) as writer:
        for shard in writer.spec.shards():
            path = writer.path(shard)
            try:
                if path.exists():
                    check_shard(path, writer.spec, shard)
                elif shard.number in acknowledged:
                    n_lost += len(shard.idx)
            except LensAuditError:
                n_unreadable += 1
                n_lost += len(shard.idx) if shard.number in acknowledged else 0
    return n_unreadable, n_lost


@dataclass(frozen=True)
class Race:
    """Several writers on one cache."""

    n_writers: int
    n_killed: int
    n_shards: int
    n_computed: int
    """Shards computed by anybody: above `n_shards` some work was done twice."""
    is_right: bool


def race_writers(root: Path, *, n_writers: int, n_killed: int, locks: bool = True) -> Race:
    """Start writers together, kill some, let the others finish; without `locks`, flock lies."""
    gate = FORK.Barrier(n_writers + 1)
    pipes = [FORK.Pipe(duplex=False) for _ in range(n_writers)]
    children = [FORK.Process(target=_race, args=(root, gate, locks, tell)) for _, tell in pipes]
    for child in children:
        child.start()
    for _, tell in pipes:
        tell.close()
    gate.wait(timeout=60)
    time.sleep(0.1)
    for child in children[:n_killed]:
        os.kill(child.pid, signal.SIGKILL)
    for child in children:
        child.join()
    computed = [number for told, _ in pipes for number in _received(told)]
    failed = [child.exitcode for child in children[n_killed:] if child.exitcode]
    n_shards = len(list(root.glob("*/shard-*.h5")))
    return Race(n_writers, n_killed, n_shards, len(computed), not failed and is_right(root))


def _race(root: Path, gate: object, locks: bool, tell: Connection) -> None:
    if not locks:
        fcntl.flock = lambda *arguments: None
    gate.wait(timeout=60)
    with open_writer(root) as writer:
        for shard in writer.claims():
            tell.send(shard.number)
            writer.publish(shard, [example(idx) for idx in shard.idx])
        writer.seal()


@dataclass(frozen=True)
class Rot:
    """Damage to a finished shard, one piece at a time."""

    n_flips: int
    n_flips_found: int
    n_zeroed: int
    n_zeroed_found: int
    n_truncations: int
    n_truncations_found: int


def rot(root: Path, *, n_flips: int, n_zeroed: int, n_truncations: int, seed: int = 0) -> Rot:
    """Flip bits, zero 4 KiB pages and truncate, each on its own; was it noticed?"""
    fill(root)
    with open_writer(root) as writer:
        spec, shard = writer.spec, writer.spec.shards()[1]
        path = writer.path(shard)
    good, chance = path.read_bytes(), random.Random(seed)

    def found(damaged: bytes) -> bool:
        assert damaged != good
        path.write_bytes(damaged)
        try:
            check_shard(path, spec, shard)
        except LensAuditError:
            return True
        return False

    def flipped() -> bytes:
        damaged = bytearray(good)
        damaged[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        return bytes(damaged)

    def zeroed() -> bytes:
        start = 4096 * chance.randrange(len(good) // 4096)
        return good[:start] + bytes(4096) + good[start + 4096 :]

    flips = sum(found(flipped()) for _ in range(n_flips))
    zeros = sum(found(zeroed()) for _ in range(n_zeroed))
    cuts = sum(found(good[: chance.randrange(len(good))]) for _ in range(n_truncations))
    path.write_bytes(good)
    assert is_right(root)
    return Rot(n_flips, flips, n_zeroed, zeros, n_truncations, cuts)


@dataclass(frozen=True)
class FullDisk:
    """A writer on a disk that fills up."""

    exit_code: int
    """Of the process: the error's, so 75; a crash is negative."""
    n_published: int
    n_unreadable: int
    n_leftovers: int
    resumed: bool
    """Did the next run, with room, complete the cache?"""


def fill_disk(disk: Path, *, preflight: bool) -> FullDisk:
    """Fill a cache on the small file system `disk`, then move it to where there is room."""
    root = disk / "store"
    child = FORK.Process(target=_fill_and_exit, args=(root, preflight))
    child.start()
    child.join()
    n_unreadable, _ = _damage(root, set())
    published, leftovers = list(root.rglob("*.h5")), list(root.rglob("*.partial"))
    room = disk.parent / "room"
    shutil.copytree(root, room)
    fill(room)
    resumed = is_right(room)
    shutil.rmtree(room)
    return FullDisk(child.exitcode, len(published), n_unreadable, len(leftovers), resumed)


def _fill_and_exit(root: Path, preflight: bool) -> None:
    if not preflight:
        from lensaudit.activations import store as writer

        writer.check_space = lambda *arguments, **options: None
    try:
        fill(root)
    except LensAuditError as error:
        raise SystemExit(error.exit_code) from error


@contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[Path]:
    """A file system of `n_bytes` in memory; needs root.

    Raises:
        PermissionError: it cannot be mounted here.
    """
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes},mode=700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        raise PermissionError("mounting a tmpfs needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
