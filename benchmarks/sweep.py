"""How much faster is the sweep than one hooked pass per layer? `make bench` writes the tables.

    python -m benchmarks.sweep --shape embedded --shape llama-1b [--device cuda --dtype bfloat16]

(a) one hooked pass per layer, S1 known; (b) the sweep with the clean run cached and the source
model run; (c) the sweep with every activation cached; (d), (e) the same two at KE layers only.
Everything a user waits for is timed but the loading of weights: caches are written to disk and
read back, scores are recorded. All rows of a table come from one process. The source differs from
`full` at every token and layer; where a block or the unembedding reads fewer tokens than a row
stands for, or a row runs above the machine's peak, there is an error and no table. Writes
benchmarks/sweep.md.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import Timed, describe, help_ratio, matmul_peak, timed
from benchmarks.shapes import (
    SHAPES,
    Shape,
    checkpoint_of,
    lengths_of,
    random_examples,
    random_model,
    shape_named,
    whole_batches,
)
from benchmarks.work import all_read, share_of_peak
from lensaudit.activations.fill import cache_batch_that_fits, fill, fingerprint_of_run
from lensaudit.activations.spec import SHARD_EXAMPLES
from lensaudit.activations.store import Activations, CacheStore
from lensaudit.data.spans import Encoded, buckets, by_length, make_batch
from lensaudit.errors import InputError
from lensaudit.files import write_bytes
from lensaudit.models.bridge import DTYPES, TransformerBridge, residuals
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.decoder import decoder_of
from lensaudit.models.device import resolve_device
from lensaudit.models.sizes import sizes_of
from lensaudit.patching import oracle
from lensaudit.patching.budget import MemoryBudget
from lensaudit.patching.options import ResolvedSettings, parse_memory
from lensaudit.patching.score_cache import ScoreCache
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.stages import Runner, complete
from lensaudit.plans.work import flop_of_blocks

KE_FROM = 5
"""On the published 1B model about 11 of 16 layers are KE; the early ones are missing."""
ORACLE_BATCHES = {"cpu": (1, 8, 32), "cuda": (8, 32, 128)}
"""Of which the best counts."""
PAGE = Path(__file__).with_suffix(".md")
MiB = 1 << 20


@dataclass(frozen=True)
class Asked:
    """How a table is measured."""

    memory: str = "2G"
    n_runs: int | None = None
    """Of every row; None: the shape says."""
    device: str = "cpu"
    dtype: str = "float32"

    def peak(self) -> float:
        """FLOP/s of matrix products."""
        return matmul_peak(device=self.device, dtype=DTYPES[self.dtype])


@contextmanager
def another_norm(norm: torch.nn.Module) -> Iterator[None]:
    """While the block lasts, the norm weighs the dimensions of the stream otherwise."""
    weight: Any = norm.weight
    own = weight.data
    weight.data = own * torch.linspace(0.5, 1.5, len(own)).to(own)
    try:
        yield
    finally:
        weight.data = own


@dataclass(frozen=True)
class Bench:
    """A model, its examples, and a folder for caches."""

    shape: Shape
    model: TransformerBridge
    encoded: Sequence[Encoded]
    settings: ResolvedSettings
    root: Path

    @property
    def n_layers(self) -> int:
        """Blocks of the model."""
        return self.shape.config.num_hidden_layers

    def cache(self, checkpoint: Checkpoint, positions) -> Activations:
        """The activations of a model, computed and written unless they are there."""
        runs = self.as_source() if checkpoint.weights == "source" else nullcontext(self.model)
        fingerprint = fingerprint_of_run(
            checkpoint,
            self.encoded,
            positions=positions,
            dtype=self.settings.dtype,
            device=self.settings.device,
            batch_size=self.settings.cache_batch,
        )
        with runs as model:
            return fill(
                CacheStore(self.root),
                fingerprint,
                self.encoded,
                name=checkpoint.spec.name,
                load=lambda: model,
                batch_size=self.settings.cache_batch,
            )

    def source(self) -> Checkpoint:
        """The audited model."""
        return checkpoint_of(self.shape, "source", self.settings.dtype)

    @contextmanager
    def as_source(self) -> Iterator[TransformerBridge]:
        """The audited model: the same blocks under another first norm.

        So its stream differs at every token, after every block, and no second model is held.
        """
        norm = decoder_of(self.model).blocks[0].ln1
        assert isinstance(norm, torch.nn.Module)
        with another_norm(norm):
            yield self.model

    def tokens(self, layers: Sequence[int], *, cached: bool) -> list[int]:
        """That each block and the unembedding must read where rows of `layers` are swept."""
        lengths = lengths_of(self.encoded)
        rows = [sum(layer < at for layer in layers) for at in range(self.n_layers)]
        ran = 0 if cached else lengths.read
        # what `full` says unpatched is read once, beside the rows
        return [ran + n * lengths.span for n in rows] + [(1 + len(layers)) * lengths.span]

    def forget(self) -> None:
        """Remove the source's cache and the scores."""
        for folder in (*self.root.glob("source--*"), self.root / "scores"):
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, layers: Sequence[int]) -> None:
        """Score the source at `layers`; its activations are read or made."""
        with (
            self.cache(checkpoint_of(self.shape, "full", self.settings.dtype), "all") as clean,
            self.cache(self.source(), "span") as activations,
        ):
            settings = replace(self.settings, at_layers=tuple(layers))
            budget = MemoryBudget(sizes_of(self.shape.config, settings.dtype), settings, True)
            runner = Runner(
                self.model,
                CachedSource(clean, "resid_post"),
                decoder_of(self.model),
                settings,
                budget,
            )
            shutil.rmtree(self.root / "scores", ignore_errors=True)
            book = ScoreCache(self.root, {}, "source")
            with all_read(self.model, self.tokens(layers, cached=True), "sweep"):
                complete(
                    runner,
                    self.encoded,
                    {"source": CachedSource(activations, "resid_post")},
                    {"source": book},
                    lambda e, source: layers,
                    what="",
                    progress=lambda done: None,
                )

    def source_run(self, layers: Sequence[int]) -> None:
        """Run the source model, then sweep."""
        self.forget()
        with all_read(self.model, self.tokens(layers, cached=False), "source run and sweep"):
            self.sweep(layers)

    def timed(self, run: Callable[[], object], *, n_runs: int, what: str) -> Timed:
        """On this benchmark's device."""
        return timed(run, n_runs=n_runs, what=what, device=self.settings.device)

    def oracle(self, batch_size: int, layers: Sequence[int]) -> None:
        """Run the source model, then `full` once for each of `layers`."""
        n_tokens = lengths_of(self.encoded).total
        blocks = [(1 + len(layers)) * n_tokens] * self.n_layers
        with all_read(self.model, [*blocks, len(layers) * n_tokens], "one pass per layer"):
            for bucket in whole_batches(self.encoded, batch_size):
                batch = make_batch(bucket).to(self.settings.device)
                with self.as_source() as source:
                    stack, _ = residuals(source, batch.tokens)
                if layers:
                    oracle.patched(self.model, stack, batch, layers=layers)


def oracle_runs(bench: Bench, *, n_runs: int, n_layers: int) -> dict[int, Timed]:
    """(a) by batch size; the best size is run `n_runs` times.

    A pass costs the same wherever it is patched, so `n_layers` passes are timed and scaled.
    """
    layers = [at * bench.n_layers // n_layers for at in range(n_layers)]
    scale = bench.n_layers / n_layers

    def measured(size: int, n: int) -> Timed:
        what = f"(a) batch {size}"
        source = bench.timed(
            lambda: bench.oracle(size, []), n_runs=n, what=f"{what}, source"
        ).median
        passes = bench.timed(lambda: bench.oracle(size, layers), n_runs=n, what=what)
        seconds = tuple(source + scale * (one - source) for one in passes.seconds)
        return Timed(seconds, passes.peak_bytes)

    sizes = ORACLE_BATCHES["cuda" if bench.settings.device.startswith("cuda") else "cpu"]
    found = {size: measured(size, 1) for size in sizes if size <= len(bench.encoded)}
    best = min(found, key=lambda size: found[size].median)
    return found if n_runs == 1 else found | {best: measured(best, n_runs)}


def sweep_runs(bench: Bench, *, n_runs: int) -> dict[str, Timed]:
    """(b) to (e)."""
    every, ke = range(bench.n_layers), range(KE_FROM, bench.n_layers)
    bench.source_run([0])  # fills the cache of full, and pays what the first call pays
    return {
        "b": bench.timed(lambda: bench.source_run(every), n_runs=n_runs, what="(b)"),
        "c": bench.timed(lambda: bench.sweep(every), n_runs=n_runs, what="(c)"),
        "d": bench.timed(lambda: bench.source_run(ke), n_runs=n_runs, what="(d)"),
        "e": bench.timed(lambda: bench.sweep(ke), n_runs=n_runs, what="(e)"),
    }


HEAD = (
    "# The sweep against one hooked pass per layer",
    "",
    "(a) one hooked pass per layer at its best batch size, S1 known; (b) the sweep with the clean "
    "run and S1 cached and the source model run; (c) the sweep with all activations cached; (d), "
    "(e) the same two at KE layers only. The source differs from `full` in every row; tokens that "
    "each block and the unembedding read were counted, and none is missing. (a) also computes its "
    "padding, which the sweep's matrix products do not have: so a ratio may lie above what the "
    "arithmetic alone allows, by the padding and by how near to the peak each runs.",
    "",
)
NAMES = {
    "b": "(b) sweep, source model run",
    "c": "(c) sweep, all cached",
    "d": "(d) as (b), KE layers only",
    "e": "(e) as (c), KE layers only",
}


def table(bench: Bench, slow: dict[int, Timed], fast: dict[str, Timed]) -> list[str]:
    """Markdown lines: seconds per example, ratio to (a), and peak memory above the weights."""
    n = len(bench.encoded)
    best = min(slow, key=lambda size: slow[size].median)
    lines = ["| | s per example | (a) / this | peak above weights, MB |", "|---|---|---|---|"]
    rows = [(f"(a) one pass per layer, batch {size}", one) for size, one in slow.items()]
    rows += [(NAMES[key], one) for key, one in fast.items()]
    for name, one in rows:
        ratio = slow[best].median / one.median
        mark = " (best)" if name.endswith(f"batch {best}") else ""
        lines.append(
            f"| {name}{mark} | {one.median / n:.4g} | {ratio:.1f} | {one.peak_bytes / MiB:.0f} |"
        )
    return lines


def facts(bench: Bench, slow: dict[int, Timed], fast: dict[str, Timed], peak: float) -> list[str]:
    """Shares of the matrix-multiply peak, the arithmetic bounds, padding.

    Raises:
        NotMeasured: a share above 1.
    """
    swept, cached = arithmetic(bench, cached=False), arithmetic(bench, cached=True)
    hooked = oracle_arithmetic(bench)
    best = min(one.median for one in slow.values())
    shares = [
        share_of_peak(flop, seconds, peak)
        for flop, seconds in (
            (hooked, best),
            (swept, fast["b"].median),
            (cached, fast["c"].median),
        )
    ]
    padded = sum(
        len(bucket) * max(len(e.token_ids) for e in bucket)
        for bucket in whole_batches(bench.encoded, 8)
    )
    lengths, n = lengths_of(bench.encoded), len(bench.encoded)
    return [
        f"- matrix-multiply peak {peak / 1e9:.0f} GFLOP/s; (a) runs at {shares[0]:.0%} of it, "
        f"(b) at {shares[1]:.0%}, (c) at {shares[2]:.0%} (useful arithmetic only)",
        f"- the arithmetic alone allows (a)/(b) {hooked / swept:.1f}, "
        f"(a)/(c) {hooked / cached:.1f}",
        f"- {n} examples, tokens on average: {lengths.total / n:.1f} in all, "
        f"{lengths.read / n:.1f} up to the last read, {lengths.span / n:.2f} in the span",
        f"- padding: of (a) {1 - lengths.total / padded:.0%} at batch 8, of the source run "
        f"{source_padding(bench):.0%}; the sweep's matrix products none, "
        f"its attention {attention_padding(bench):.0%}",
    ]


def arithmetic(bench: Bench, *, cached: bool) -> float:
    """Floating-point operations of (b), or of (c): no padding, attention's scores left out."""
    sizes, lengths = sizes_of(bench.shape.config, bench.settings.dtype), lengths_of(bench.encoded)
    n = bench.n_layers
    block, head = flop_of_blocks(sizes) / n, 2 * sizes.d_model * sizes.d_vocab
    keys = 4 * sizes.d_model * sizes.n_kv * sizes.d_head * (n - 1) * (lengths.read - lengths.span)
    swept = lengths.span * (block * n * (n - 1) / 2 + head * (n + 1)) + keys
    return swept + (0 if cached else lengths.read * block * n)


def oracle_arithmetic(bench: Bench) -> float:
    """Of (a): the source's blocks, and all of `full` once per layer."""
    sizes, lengths = sizes_of(bench.shape.config, bench.settings.dtype), lengths_of(bench.encoded)
    head = 2 * sizes.d_model * sizes.d_vocab
    passes = bench.n_layers * (flop_of_blocks(sizes) + head)
    return lengths.total * (flop_of_blocks(sizes) + passes)


def source_padding(bench: Bench) -> float:
    """Share of the source run's tokens that are padding."""
    computed = 0
    ordered = by_length(bench.encoded)
    for at in range(0, len(ordered), SHARD_EXAMPLES):
        for bucket in buckets(
            ordered[at : at + SHARD_EXAMPLES],
            bench.settings.cache_batch,
        ):
            computed += len(bucket) * max(e.end for e in bucket)
    return 1 - lengths_of(bench.encoded).read / computed


def attention_padding(bench: Bench) -> float:
    """Share of attention's (query, key) cells that are empty."""
    budget = MemoryBudget(sizes_of(bench.shape.config, bench.settings.dtype), bench.settings, True)
    used = laid = 0
    for batch in budget.batches(bench.encoded, lambda e: bench.n_layers, n_sources=1):
        width, prefix = max(e.n_span for e in batch), max(e.start for e in batch)
        laid += len(batch) * width * (prefix + width)
        used += sum(e.n_span * e.end for e in batch)
    return 1 - used / laid


def doubled(shape: Shape, model: TransformerBridge, asked: Asked) -> str:
    """Cost of (b) on twice the examples."""
    found, n_runs = {}, asked.n_runs or shape.n_runs
    for n in (shape.n_doubled, 2 * shape.n_doubled):
        with bench_of(shape, model, n, asked) as bench:
            bench.source_run([0])
            found[n] = bench.timed(
                lambda b=bench: b.source_run(range(b.n_layers)), n_runs=n_runs, what=f"(b), {n}"
            )
    (n, once), (_, twice) = found.items()
    return (
        f"- (b) on {2 * n} examples instead of {n}: {twice.median / once.median:.2f}x the time, "
        f"peak {twice.peak_bytes / MiB:.0f} MB instead of {once.peak_bytes / MiB:.0f} MB"
    )


@contextmanager
def bench_of(shape: Shape, model: TransformerBridge, n: int, asked: Asked) -> Iterator[Bench]:
    """A benchmark on `n` examples, in a folder that is removed."""
    encoded = random_examples(n, shape.config.vocab_size)
    n_bytes = parse_memory(asked.memory)
    fitting = cache_batch_that_fits(sizes_of(shape.config, asked.dtype), encoded, n_bytes)
    settings = ResolvedSettings(
        at_layers=tuple(range(shape.config.num_hidden_layers)),
        memory_bytes=n_bytes,
        cache_batch=fitting,
        dtype=asked.dtype,
        device=asked.device,
    )
    with tempfile.TemporaryDirectory() as folder:
        yield Bench(shape, model, encoded, settings, Path(folder))


def report(shape: Shape, asked: Asked) -> Iterator[str]:
    """The section of one shape, line by line."""
    n_runs = asked.n_runs or shape.n_runs
    model = random_model(shape.config, dtype=asked.dtype, device=asked.device)
    yield f"\n## {shape.name}: {shape.text}, {asked.dtype}\n"
    yield f"{describe(asked.device)}\n"
    with bench_of(shape, model, shape.n_examples, asked) as bench:
        peak = asked.peak()
        fast = sweep_runs(bench, n_runs=n_runs)
        slow = oracle_runs(bench, n_runs=n_runs, n_layers=shape.n_oracle_layers)
        peak = max(peak, asked.peak())
        yield from table(bench, slow, fast)
        yield ""
        yield f"- budget {asked.memory}; median of {n_runs} runs"
        yield from facts(bench, slow, fast, peak)
    yield doubled(shape, model, asked)
    yield f"- load after it {os.getloadavg()[0]:.1f}, its own {torch.get_num_threads()} threads too"


@torch.no_grad()
def main() -> None:
    """Print the tables and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all, in turn")
    parser.add_argument("--examples", type=int, help="rows of (a) to (e) (default: the shape says)")
    parser.add_argument("--memory", default="2G", help="budget above the weights")
    parser.add_argument("--runs", type=int, help="of every row; the median counts (3, large: 1)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 …")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--out", type=Path, default=PAGE)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    try:
        device = resolve_device(chosen.device)
    except InputError as error:
        parser.error(str(error))
    asked = Asked(chosen.memory, chosen.runs, device, chosen.dtype)
    words = " ".join(sys.argv[1:])
    lines = [*HEAD, f"`{f'python -m benchmarks.sweep {words}'.strip()}`. {help_ratio()}."]
    print("\n".join(lines), flush=True)
    for name in chosen.shape or SHAPES:
        shape = shape_named(name)
        n_examples = chosen.examples or shape.n_examples
        for line in report(replace(shape, n_examples=n_examples), asked):
            print(line, flush=True)
            lines.append(line)
    write_bytes(chosen.out, "\n".join([*lines, ""]).encode())


if __name__ == "__main__":
    main()
