"""What do the controls of one more model cost? Ratios for Llama-3.2-1B's shape, random weights.

    python -m benchmarks.validity

Everything that `patch` runs for a model whose `full`, S1 and rows were run before: the source's
cache and its sweep at KE layers; validity, the same on rows of other authors, and what the source
says of them; alignment, the neutral rows cached, the maps fitted, the carried streams swept. Each
part is timed on a share of TOFU's rows, or on a few layers, and scaled to the whole. Seconds are
processor time of all threads: other work on the machine does not count.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import LlamaConfig

from benchmarks.machine import describe
from benchmarks.shapes import Shape, checkpoint_of, random_examples, random_model, shape_named
from benchmarks.sweep import KE_FROM, Asked, Bench, bench_of
from lensaudit.activations.store import Activations
from lensaudit.data.neutral import VALIDITY_ROWS
from lensaudit.data.spans import Encoded, buckets, by_length, make_batch
from lensaudit.models.bridge import residuals
from lensaudit.patching.alignment import ALIGN_TOKENS_PER_DIM, fit_alignment, rows_to_fit
from lensaudit.patching.session import ANSWER_BATCH, own_answers
from lensaudit.scores.alignment import LinearMap, Moments, fitted, shared_directions

N_FORGET = 367
"""Annotated rows of TOFU's forget10."""
N_AUTHORS = 20
SWEPT_ROWS = 12
ALIGN_LAYERS = 2
"""Of the model whose alignment is timed: layers cost the same."""
MEMORY = "2G"


def seconds(run: Callable[[], object]) -> float:
    """Processor time of all threads."""
    started = time.process_time()
    run()
    return time.process_time() - started


def ran(bench: Bench) -> None:
    """What a model says, by running it."""
    for bucket in buckets(bench.encoded, ANSWER_BATCH):
        own_answers(bench.model, bucket)


def read(bench: Bench) -> None:
    """The same, read out of its cached last stream."""
    with bench.cache(bench.source(), "span") as cache:
        for bucket in buckets(bench.encoded, ANSWER_BATCH):
            own_answers(bench.model, bucket, cache)


@dataclass(frozen=True)
class Patching:
    """Seconds of one more model on all rows."""

    patch: float
    outputs: float
    """What it says of the forget rows, for the verdict."""
    outputs_run: float
    """The same by another forward pass."""
    swept: float
    """Rows for validity cached, and swept at KE layers."""
    says: float
    """What it says of them."""
    says_run: float
    """The same by another forward pass."""


def patching(shape: Shape, share: float) -> Patching:
    """The source's cache and sweep, and what stands beside it."""
    n_validity = round(VALIDITY_ROWS * share)
    with bench_of(
        shape, random_model(shape.config), round(N_FORGET * share), Asked(memory=MEMORY)
    ) as forget:
        rows = random_examples(n_validity, shape.config.vocab_size, seed=1)
        validity = replace(forget, encoded=rows, root=forget.root / "validity")
        ke = range(KE_FROM, forget.n_layers)
        for one in (forget, validity):
            one.source_run([0])  # caches full, and pays what the first call pays
        found = Patching(
            patch=seconds(lambda: forget.source_run(ke)),
            outputs=seconds(lambda: read(forget)),
            outputs_run=seconds(lambda: ran(forget)),
            swept=seconds(lambda: validity.source_run(ke)),
            says=seconds(lambda: read(validity)),
            says_run=seconds(lambda: ran(validity)),
        )
    return Patching(*(one / share for one in vars(found).values()))


def swept_again(shape: Shape, n_rows: int) -> float:
    """One more stream that is at hand, swept at every layer; scaled to all rows."""
    with bench_of(shape, random_model(shape.config), n_rows, Asked(memory=MEMORY)) as bench:
        bench.source_run([0])
        return seconds(lambda: bench.sweep(range(bench.n_layers))) * N_FORGET / n_rows


@dataclass(frozen=True)
class Aligning:
    """Seconds of one more model on all neutral tokens and layers."""

    n_tokens: int
    forward: float
    """The neutral rows through the model."""
    cached: float
    """The same, with every stream written."""
    fit: float
    """All that fitting does: reading, sums, solves, the shuffled control."""
    solves: float
    """Sums of products and the solves of one map a layer, in memory."""
    carried: float
    """Streams of the forget rows through a map."""
    shared: float
    """Of every author and layer the direction that the other authors share."""


def aligning(shape: Shape, share: float) -> Aligning:
    """Maps of a model of a few layers, scaled to all of them."""
    layers = shape.config.num_hidden_layers
    few = replace(shape, config=_with_layers(shape.config, ALIGN_LAYERS))
    n_tokens = round(ALIGN_TOKENS_PER_DIM * shape.config.hidden_size * share)
    span_tokens = 6 * N_FORGET
    with bench_of(few, random_model(few.config), 2, Asked(memory=MEMORY)) as made:
        rows = rows_to_fit(random_examples(n_tokens // 20, shape.config.vocab_size), n_tokens)
        bench = replace(made, encoded=rows)
        bench.cache(checkpoint_of(few, "full", "float32"), "all").close()
        forward = seconds(lambda: _forward(bench))
        cached = seconds(lambda: bench.cache(bench.source(), "all").close())
        full, source = (
            bench.cache(one, "all")
            for one in (checkpoint_of(few, "full", "float32"), bench.source())
        )
        with full, source, tempfile.TemporaryDirectory() as folder:
            fit = seconds(
                lambda: fit_alignment(
                    source,
                    full,
                    rows,
                    "procrustes",
                    n_tokens=n_tokens,
                    memory_bytes=bench.settings.memory_bytes,
                    root=Path(folder),
                )
            )
            x, y = (_streams(one, rows) for one in (source, full))
            sums = seconds(lambda: Moments.of(x, y))
            moments = Moments.of(x, y)
            solve = seconds(lambda: fitted(moments, "procrustes"))
            carried = seconds(lambda: _map(moments)(x[:1024])) / 1024
    fold = span_tokens // N_AUTHORS
    x, y = torch.randn(2, N_AUTHORS, fold, shape.config.hidden_size)
    parts = layers / ALIGN_LAYERS
    return Aligning(
        n_tokens=round(n_tokens / share),
        forward=parts * forward / share,
        cached=parts * cached / share,
        # the solves of a layer, of its map and of the shuffled one, do not grow with the tokens
        fit=parts * ((fit - 2 * ALIGN_LAYERS * solve) / share) + 2 * layers * solve,
        solves=layers * (sums / share + solve),
        carried=layers * span_tokens * carried,
        shared=layers * seconds(lambda: shared_directions(list(x), list(y))),
    )


def _with_layers(config: LlamaConfig, n_layers: int) -> LlamaConfig:
    settings = config.to_dict() | {"num_hidden_layers": n_layers, "layer_types": None}
    return LlamaConfig(**settings)


def _map(moments: Moments) -> LinearMap:
    return LinearMap(moments.mean_x, moments.mean_y, moments.xy)


def _streams(cache: Activations, rows: Sequence[Encoded]) -> torch.Tensor:
    return torch.cat([cache.example(e.idx).resid[0, 1:].float() for e in rows])


def _forward(bench: Bench) -> None:
    for bucket in buckets(by_length(bench.encoded), bench.settings.cache_batch):
        residuals(bench.model, make_batch(bucket).tokens)


def report(share: float) -> list[str]:
    """Markdown lines."""
    shape = shape_named("llama-1b")
    one, maps = patching(shape, share), aligning(shape, share)
    validity = one.says + one.swept
    alignment = maps.cached + maps.fit
    allowed = maps.forward + maps.solves
    rows = [
        ("patch: the source cached, swept at KE layers", one.patch),
        ("outputs: what it says of the forget rows, read out of its cache", one.outputs),
        ("outputs: by a forward pass of its own, as before", one.outputs_run),
        ("validity: 48 rows cached, swept at KE layers", one.swept),
        ("validity: what it says of them, read out of its cache", one.says),
        ("validity: by a forward pass of its own, as before", one.says_run),
        (f"alignment: one forward pass over {maps.n_tokens} neutral tokens", maps.forward),
        ("alignment: the same, with every stream written", maps.cached),
        ("alignment: sums and solves of one map a layer, in memory", maps.solves),
        ("alignment: all of the fit, with reading and the shuffled control", maps.fit),
        ("alignment: the forget rows' streams through a map", maps.carried),
    ]
    lines = ["| one more model | processor s | of patch |", "|---|---|---|"]
    lines += [f"| {name} | {s:.0f} | {s / one.patch:.2f} |" for name, s in rows]
    return [
        *lines,
        "",
        f"- validity / patch: {validity / one.patch:.1%} (wanted at most 15 %); with a forward "
        f"pass of its own {(one.says_run + one.swept) / one.patch:.1%}",
        f"- alignment / (one forward pass + solves): {alignment / allowed:.2f} with the solves of "
        f"one map, {alignment / (allowed + maps.solves):.2f} with those of the shuffled control "
        "too (wanted at most 1)",
        f"- {share:.0%} of the rows and tokens run, alignment on {ALIGN_LAYERS} layers; scaled",
    ]


def shared_report(share: float) -> list[str]:
    """Markdown lines: what the shared direction adds to the aligned depth of one more model."""
    shape = shape_named("llama-1b")
    maps, sweep = aligning(shape, share), swept_again(shape, SWEPT_ROWS)
    # the source and the control with shuffled pairs are swept, and the rows for validity
    n_swept = 2 + VALIDITY_ROWS / N_FORGET
    aligned = maps.cached + maps.fit + n_swept * (maps.carried + sweep)
    # streams are carried once for the directions and once for the sweep
    shared = maps.shared + 2 * maps.carried + sweep
    rows = [
        ("aligned: neutral tokens cached, maps fitted", maps.cached + maps.fit),
        ("aligned: a carried stream swept at every layer", maps.carried + sweep),
        (f"aligned: all of it ({n_swept:.2f} sweeps)", aligned),
        (f"shared: directions for each of {N_AUTHORS} authors at every layer", maps.shared),
        ("shared: streams carried twice and swept", 2 * maps.carried + sweep),
    ]
    return [
        "| one more model | processor s |",
        "|---|---|",
        *(f"| {name} | {s:.0f} |" for name, s in rows),
        "",
        f"- (aligned + shared) / aligned: {1 + shared / aligned:.2f} (wanted at most 1.3)",
        f"- {share:.0%} of the neutral tokens on {ALIGN_LAYERS} layers, {SWEPT_ROWS} rows swept at "
        "all layers; scaled",
    ]


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--share", type=float, default=0.25, help="of TOFU's rows that are run")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--shared", action="store_true", help="the shared direction alone")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"{describe()}\n")
    for line in (shared_report if chosen.shared else report)(chosen.share):
        print(line, flush=True)


if __name__ == "__main__":
    main()
