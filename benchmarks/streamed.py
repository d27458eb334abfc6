"""What does it save to read the next block while one computes? A model that does not fit.

    python -m benchmarks.streamed

Question: how much longer does a cache's pass over all blocks take where each is read when it is its
turn? A Llama of 12 blocks of 51 MB runs in a process that may take less than its weights, so that
`--device auto` leaves all blocks in their file. Passes with and without reading ahead take turns in
one process. Before each the file is dropped from the system's cache (posix_fadvise), so blocks come
from the disk; bytes that did are counted (/proc/self/io), and fewer than all are an error. Three
disks: the one here, and the same with as much waiting after each read as makes it 500 or 200 MB/s,
which a disk or a network drive gives. For each as many rows run as compute for about as long as the
blocks are read. The final norm's output is the same to the last bit. About two minutes. Wanted: a
ratio of 1.3 or more; 2 would be all of the shorter half.
"""

import os
import resource
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import describe
from benchmarks.shapes import no_words
from benchmarks.work import NotMeasured
from lensaudit.models.bridge import TransformerBridge, load, residuals_by_block
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.large.placement import Stored
from lensaudit.models.large.streaming import Streamed, streamed
from lensaudit.models.registry import resolve

N_LAYERS, N_TOKENS, N_PAIRS = 12, 32, 7
MEMORY = 256 << 20
"""Left to activations, as `--memory 256M`."""
LIMIT = 500 << 20
"""That the process may take beside what it has after its imports; the weights are 630 MB."""


class Clock:
    """Seconds of reading, in whichever thread, and of the main thread's waiting for blocks."""

    def __init__(self):
        self.read_s = self.waited_s = 0.0
        self.bytes_per_s: float | None = None
        """At most so many are read; None: as the disk does."""
        read_into, fill, filled = Stored.read_into, Streamed._fill, Streamed._filled

        def slowly(stored: Stored, flat: torch.Tensor) -> None:
            started = time.perf_counter()
            read_into(stored, flat)
            if self.bytes_per_s:
                left = stored.n_bytes / self.bytes_per_s - (time.perf_counter() - started)
                time.sleep(max(0.0, left))

        def read(brings: Streamed, *args):
            started = time.perf_counter()
            made = fill(brings, *args)
            self.read_s += time.perf_counter() - started
            return made

        def waited(brings: Streamed, layer: int):
            started = time.perf_counter()
            made = filled(brings, layer)
            self.waited_s += time.perf_counter() - started
            return made

        Stored.read_into, Streamed._fill, Streamed._filled = slowly, read, waited


class Pass:
    """One pass over all blocks, from the disk."""

    def __init__(self, model: TransformerBridge, file: Path, n_rows: int, clock: Clock):
        config = model.original_model.config
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(config.vocab_size, (n_rows, N_TOKENS), generator=generator)
        self.model, self.file, self.clock = model, file, clock
        self.batches = tokens.split(8)
        self.streams = tuple(
            [torch.empty(len(one), N_TOKENS, config.hidden_size) for one in self.batches]
            for _ in range(2)
        )
        self.n_tokens = tokens.numel()

    def run(self, *, ahead: bool) -> dict[str, float]:
        """Seconds in all, of reading and of waiting for it; MB from the disk."""
        brings = streamed(self.model.original_model)
        assert brings is not None
        brings.placement = replace(brings.placement, ahead=ahead)
        with self.file.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.clock.read_s = self.clock.waited_s = 0.0
        from_disk, started = _from_disk(), time.perf_counter()
        running = residuals_by_block(self.model, self.batches, self.streams)
        ((_, _, last),) = deque(running, maxlen=1)
        took, n_read = time.perf_counter() - started, _from_disk() - from_disk
        if n_read < 0.99 * (wanted := brings.placement.n_bytes["disk"]):
            raise NotMeasured(f"{n_read} bytes read from the disk of {wanted}")
        return {
            "s": took,
            "read": self.clock.read_s,
            "waited": self.clock.waited_s,
            "MB": n_read / 1e6,
            "sum": float(last.double().sum()),
        }


def _from_disk() -> int:
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("read_bytes:") + 1])


def saved(folder: Path) -> Path:
    """The checkpoint, all of it on the disk; its file of weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    no_words().save_pretrained(folder)
    file = folder / "model.safetensors"
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    return file


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        pid = os.fork()  # what was needed to save it is no part of the limited process
        if not pid:
            saved(Path(folder))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        measure(Path(folder))


def measure(folder: Path) -> None:
    """Load it under the limit; for each disk choose the rows, and let passes take turns."""
    checkpoint = open_checkpoint(resolve(str(folder), {}))
    clock = Clock()
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT,) * 2)
    model = load(checkpoint, spread=MEMORY)
    brings = streamed(model.original_model)
    assert brings is not None
    placement, file = brings.placement, folder / "model.safetensors"
    assert placement.ahead
    assert set(placement.blocks) == {"disk"}
    print(f"{describe()}. {placement.text()}; limit {LIMIT >> 20} MB")
    print(
        "| disk, MB/s | rows | each in turn, s | reading, s | computing, s | one read ahead, s "
        "| waiting for it, s | ratio | by pair | from the disk, MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for mb_per_s in (None, 500, 200):
        clock.bytes_per_s = mb_per_s and 1e6 * mb_per_s
        n_rows = 8
        for _ in range(3):  # more rows are cheaper each
            tried = Pass(model, file, n_rows, clock).run(ahead=False)
            n_rows = max(1, round(n_rows * tried["read"] / (tried["s"] - tried["waited"])))
        print(row(Pass(model, file, n_rows, clock), n_rows, mb_per_s), flush=True)


def row(one: Pass, n_rows: int, mb_per_s: float | None) -> str:
    """A disk's line of the table: medians, and the ratio within each pair."""
    pairs = [(one.run(ahead=False), one.run(ahead=True)) for _ in range(N_PAIRS)]
    assert len({run["sum"] for pair in pairs for run in pair}) == 1
    turn, ahead = (
        {name: median(pair[at][name] for pair in pairs) for name in pairs[0][at]} for at in (0, 1)
    )
    ratios = [before["s"] / after["s"] for before, after in pairs]
    disk = f"{turn['MB'] / turn['read']:.0f}, {'as it is' if mb_per_s is None else 'limited'}"
    return (
        f"| {disk} | {n_rows} x {N_TOKENS} | {turn['s']:.2f} | {turn['read']:.2f} "
        f"({turn['read'] / turn['s']:.0%}) | {turn['s'] - turn['waited']:.2f} | {ahead['s']:.2f} | "
        f"{ahead['waited']:.2f} | {median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} | "
        f"{turn['MB']:.0f}, {ahead['MB']:.0f} |"
    )


if __name__ == "__main__":
    main()
