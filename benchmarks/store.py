"""How fast is the activation store, and what does it keep when things go wrong?

    python -m benchmarks.store [--folder DIR] [--no-model]

Question: MB/s published with checksums, fsync and read-back; GB/s of a cold read; milliseconds for
one example; what caching adds to the forward passes; and what is lost when writers are killed,
raced, or run out of disk. Hardware: CPU, one thread, the disk under DIR. About 10 minutes, of
which the model takes 8; 6 GB of memory and 3 GB of disk. The cache is bfloat16, 400 examples of 51
rows on average, 16 layers of 2048; the disk's own rate is one plain write and fsync of as many
bytes, measured before each shard. Writes benchmarks/store.md.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch

from benchmarks import store_faults
from benchmarks.machine import describe
from benchmarks.store_cost import overhead, overhead_line
from lensaudit.activations import store as module
from lensaudit.activations.inventory import verify
from lensaudit.activations.layers import ActivationStore, LayeredActivations
from lensaudit.activations.store import ExampleActivations
from lensaudit.files import write_bytes

N_EXAMPLES = 400
FINGERPRINT = replace(store_faults.FINGERPRINT, layers=16, d_model=2048)


@dataclass(frozen=True)
class Speed:
    """Figures of the store on one machine."""

    publish_mb_s: float
    """All steps of publishing: hashing, building, writing, fsync, read-back, naming."""
    disk_mb_s: float
    """A plain write and fsync of the same number of bytes, interleaved."""
    seal_s: float
    cold_gb_s: float
    disk_cold_gb_s: float
    """Plain reading of the same files, their pages dropped."""
    warm_gb_s: float
    example_ms: float
    """Median, all 16 layers, after the first read of its shard."""
    example_first_ms: float
    """Median of the first example of a shard: hashes the whole file."""
    layer_gb_s: float
    verify_gb_s: float
    n_bytes: int


def example(idx: int, values: torch.Tensor) -> ExampleActivations:
    """36 to 66 rows, mean 51, of values that were drawn once."""
    n_rows = 36 + idx * 7 % 31
    rows = values[:, idx : idx + n_rows].clone()
    positions = torch.arange(n_rows)
    return ExampleActivations(
        idx=idx, token_ids=positions, positions=positions, resid=rows[:-1], final_norm=rows[-1]
    )


def drop_pages(folder: Path) -> None:
    """Make the next read of these files come from the disk."""
    os.sync()
    for path in folder.glob("*.h5"):
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def plain_write(folder: Path, content: bytes) -> float:
    """Seconds to write and fsync some bytes with nothing of ours."""

    def write() -> None:
        with path.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

    path = folder / "plain"
    try:
        return seconds(write)
    finally:
        path.unlink()


def plain_read(folder: Path) -> None:
    """Read every shard once, front to end."""
    block = bytearray(1 << 20)
    for path in sorted(folder.glob("*.h5")):
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(block):
                pass


def speed(root: Path) -> Speed:
    """Publish, read and verify a cache of a 1B model's shape."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(17, 512, 2048, generator=generator).to(torch.bfloat16)
    published, plain, n_bytes = [], [], 0
    store = ActivationStore(root / "store", reserve_bytes=0)
    with store.writer(FINGERPRINT, name="speed", idx=range(N_EXAMPLES), provenance={}) as writer:
        for shard in writer.missing():
            examples = [example(idx, values) for idx in shard.idx]
            size = sum(e.resid.nbytes + e.final_norm.nbytes for e in examples)
            plain.append(plain_write(root, bytes(size)))
            published.append(seconds(lambda s=shard, e=examples: writer.publish(s, e)))
            n_bytes += size
        seal_s = seconds(writer.seal)
        folder = writer.folder
    cold_s, disk_cold_s = cold_reads(store, folder)
    with opened(store) as cache:
        warm_s = seconds(lambda: read_all(store))
        layer_s = seconds(lambda: cache.layer(7).rows())
    first_ms, later_ms = example_times(folder)
    verify_s = seconds(lambda: verify(folder))
    return Speed(
        publish_mb_s=n_bytes / 1e6 / sum(published),
        disk_mb_s=n_bytes / 1e6 / sum(plain),
        seal_s=seal_s,
        cold_gb_s=n_bytes / 1e9 / cold_s,
        disk_cold_gb_s=n_bytes / 1e9 / disk_cold_s,
        warm_gb_s=n_bytes / 1e9 / warm_s,
        example_ms=later_ms,
        example_first_ms=first_ms,
        layer_gb_s=n_bytes / 17e9 / layer_s,
        verify_gb_s=n_bytes / 1e9 / verify_s,
        n_bytes=n_bytes,
    )


def cold_reads(store: ActivationStore, folder: Path) -> tuple[float, float]:
    """Median seconds of three cold reads, ours and plain, in turn."""
    ours, plain = [], []
    for _ in range(3):
        drop_pages(folder)
        module._whole.clear()
        ours.append(seconds(lambda: read_all(store)))
        drop_pages(folder)
        plain.append(seconds(lambda: plain_read(folder)))
    return median(ours), median(plain)


@contextmanager
def opened(store: ActivationStore) -> Iterator[LayeredActivations]:
    cache = store.open(FINGERPRINT)
    assert cache is not None
    with cache:
        yield cache


def read_all(store: ActivationStore) -> None:
    """Every example at every layer."""
    with opened(store) as cache:
        for _ in cache.examples():
            pass


def example_times(folder: Path) -> tuple[float, float]:
    """Milliseconds of a shard's first example and of later ones, all layers, pages in memory."""
    module._whole.clear()
    first, later = [], []
    with opened(ActivationStore(folder.parent)) as cache:
        for shard in cache.spec.shards():
            first.append(seconds(lambda s=shard: cache.example(s.idx[0])))
            later += [seconds(lambda i=idx: cache.example(i)) for idx in shard.idx[1:]]
    return 1e3 * median(first), 1e3 * median(later)


def drills(root: Path) -> Iterator[tuple[str, str]]:
    """Long runs of every fault drill, each with its counts in words."""
    kills = store_faults.kill_writers(root / "kills", n_kills=30)
    yield "30 kills of a filling writer", _counts(kills)
    race = store_faults.race_writers(root / "race", n_writers=4, n_killed=2)
    yield "4 racing writers, 2 killed", _counts(race)
    lying = store_faults.race_writers(root / "lying", n_writers=4, n_killed=0, locks=False)
    yield "4 racing writers, flock does nothing", _counts(lying)
    rot = store_faults.rot(root / "rot", n_flips=200, n_zeroed=100, n_truncations=50)
    yield "200 bit flips, 100 zeroed pages, 50 truncations", _counts(rot)
    for preflight in (True, False):
        folder = root / f"disk-{preflight}"
        folder.mkdir()
        checked = "checked" if preflight else "not checked"
        try:
            with store_faults.small_disk(folder, 20 << 20) as disk:
                found = _counts(store_faults.fill_disk(disk, preflight=preflight))
        except PermissionError as error:
            found = f"not run: {error}"
        yield f"disk of 20 MiB, free space {checked} beforehand", found


def _counts(found: object) -> str:
    return ", ".join(f"{name.removeprefix('n_')} {value}" for name, value in asdict(found).items())


def speed_table(found: Speed) -> str:
    """The figures beside what is wanted."""
    ratio = found.publish_mb_s / found.disk_mb_s
    rows = [
        (
            "publish",
            f"{found.publish_mb_s:.0f} MB/s",
            "≥ 250 MB/s",
            f"plain write + fsync, same moment: {found.disk_mb_s:.0f} MB/s; ratio {ratio:.2f}",
        ),
        ("seal (checks every byte again)", f"{found.seal_s:.2f} s", "", ""),
        (
            "cold read, every slab checked",
            f"{found.cold_gb_s:.2f} GB/s",
            "≥ 1 GB/s",
            f"plain cold read: {found.disk_cold_gb_s:.2f} GB/s",
        ),
        ("warm read, every slab checked", f"{found.warm_gb_s:.2f} GB/s", "", ""),
        (
            "one example x 16 layers",
            f"{found.example_ms:.2f} ms",
            "≤ 10 ms",
            f"first of its shard, whole file hashed: {found.example_first_ms:.1f} ms",
        ),
        ("one layer of all examples", f"{found.layer_gb_s:.2f} GB/s", "", ""),
        ("verify", f"{found.verify_gb_s:.2f} GB/s", "", ""),
    ]
    lines = ["| what | measured | wanted | beside it |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def main() -> None:
    """Measure, write the tables beside this file, print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--no-model", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = describe()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder)
        found = speed(root)
        shutil.rmtree(root / "store")
        parts = [
            "# The activation store",
            f"`python -m benchmarks.store`: {found.n_bytes / 1e9:.2f} GB of bfloat16, "
            f"{N_EXAMPLES} examples, 16 layers of 2048, 51 rows on average. {machine}.",
            speed_table(found),
        ]
        if not options.no_model:
            parts.append(overhead_line(overhead(root)))
        rows = [f"| {name} | {counts} |" for name, counts in drills(root)]
        parts.append("\n".join(["| drill | found |", "|---|---|", *rows]))
    text = "\n\n".join(parts) + "\n"
    write_bytes(Path(__file__).with_suffix(".md"), text.encode())
    print(text)


if __name__ == "__main__":
    main()
