"""What do the controls of one more model cost? Ratios for Llama-3.2-1B's shape, random weights.

    python -m benchmarks.validity

Everything that `patch` runs for a model whose `full`, S1 and rows were run before: the source's
cache and its sweep at KE layers; validity, the same on rows of other authors, and what the source
says of them; alignment, the neutral rows cached, the maps fitted, the carried streams swept. Each
part is timed on a share of TOFU's rows, or on a few layers, and scaled to the whole. Seconds are
processor time of all threads: other work on the machine does not count. What each block reads is
counted (`benchmarks.work`); what a model says must be the same by its cache and by a pass of its
own. Writes benchmarks/validity.md.
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
from benchmarks.shapes import (
    Shape,
    cache_batches,
    checkpoint_of,
    lengths_of,
    random_examples,
    random_model,
    shape_named,
)
from benchmarks.sweep import KE_FROM, Asked, Bench, bench_of
from benchmarks.work import NotMeasured, all_read
from lensaudit.activations.store import Activations
from lensaudit.data.neutral import VALIDITY_ROWS
from lensaudit.data.spans import Encoded, buckets, make_batch
from lensaudit.files import write_bytes
from lensaudit.models.bridge import residuals
from lensaudit.patching.alignment import (
    ALIGN_TOKENS_PER_DIM,
    Alignment,
    fit_alignment,
    rows_to_fit,
)
from lensaudit.patching.session import ANSWER_BATCH, own_answers
from lensaudit.scores.alignment import LinearMap, Moments, fitted, shared_directions

N_FORGET = 367
"""Annotated rows of TOFU's forget10."""
N_AUTHORS = 20
ALIGN_LAYERS = 2
"""Of the model whose alignment is timed: layers cost the same."""
MEMORY = "2G"
PAGE = Path(__file__).with_suffix(".md")


def seconds(run: Callable[[], object]) -> float:
    """Processor time of all threads."""
    started = time.process_time()
    run()
    return time.process_time() - started


def ran(bench: Bench) -> list[float]:
    """What the source says, by running it."""
    with bench.as_source() as model:
        asked = (own_answers(model, bucket) for bucket in buckets(bench.encoded, ANSWER_BATCH))
        return [one for logprobs, _ in asked for one in logprobs]


def read(bench: Bench) -> list[float]:
    """The same, read out of its cached last stream."""
    with bench.cache(bench.source(), "span") as cache:
        rows = buckets(bench.encoded, ANSWER_BATCH)
        asked = (own_answers(bench.model, bucket, cache) for bucket in rows)
        return [one for logprobs, _ in asked for one in logprobs]


def both(bench: Bench) -> tuple[float, float]:
    """Seconds of `read` and of `ran`.

    Raises:
        NotMeasured: they differ, so one did not read what the source says.
    """
    lengths, said = lengths_of(bench.encoded), list[list[float]]()
    with all_read(bench.model, [0] * bench.n_layers + [lengths.span], "read out of its cache"):
        of_cache = seconds(lambda: said.append(read(bench)))
    with all_read(bench.model, [lengths.total] * (1 + bench.n_layers), "by a forward pass"):
        of_pass = seconds(lambda: said.append(ran(bench)))
    if not torch.allclose(torch.tensor(said[0]), torch.tensor(said[1]), atol=1e-4):
        raise NotMeasured("what the source says differs by its cache and by a forward pass")
    return of_cache, of_pass


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
    again: float
    """Streams of the forget rows that are at hand, swept at every layer."""


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
        patch, swept = (seconds(lambda b=b: b.source_run(ke)) for b in (forget, validity))
        (outputs, outputs_run), (says, says_run) = both(forget), both(validity)
        again = seconds(lambda: forget.sweep(range(forget.n_layers)))
        found = Patching(patch, outputs, outputs_run, swept, says, says_run, again)
    return Patching(*(one / share for one in vars(found).values()))


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
        drawn = random_examples(n_tokens // 20, shape.config.vocab_size)
        rows, n_used = rows_to_fit(drawn, n_tokens, shape.config.hidden_size)
        bench = replace(made, encoded=rows)
        bench.cache(checkpoint_of(few, "full", "float32"), "all").close()
        wanted = [lengths_of(rows).total] * ALIGN_LAYERS + [0]
        with all_read(bench.model, wanted, "a forward pass over neutral tokens"):
            forward = seconds(lambda: _forward(bench))
        with all_read(bench.model, wanted, "neutral tokens cached"):
            cached = seconds(lambda: bench.cache(bench.source(), "all").close())
        full, source = (
            bench.cache(one, "all")
            for one in (checkpoint_of(few, "full", "float32"), bench.source())
        )
        with full, source, tempfile.TemporaryDirectory() as folder:
            found = list[Alignment]()
            fit = seconds(
                lambda: found.append(
                    fit_alignment(
                        source,
                        full,
                        rows,
                        "procrustes",
                        n_tokens=n_tokens,
                        memory_bytes=bench.settings.memory_bytes,
                        root=Path(folder),
                    )
                )
            )
            if found[0].n_tokens != n_used:
                raise NotMeasured(f"maps of {found[0].n_tokens} tokens of {n_used}")
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
    for bucket in cache_batches(bench.encoded, bench.settings.cache_batch):
        residuals(bench.model, make_batch(bucket).tokens)


def report(one: Patching, maps: Aligning, share: float) -> list[str]:
    """Markdown lines."""
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
        f"- {share:.1%} of the rows and tokens run ({round(N_FORGET * share)} and "
        f"{round(VALIDITY_ROWS * share)} rows), alignment on {ALIGN_LAYERS} layers; scaled",
    ]


def shared_report(maps: Aligning, sweep: float) -> list[str]:
    """Markdown lines: what the shared direction adds to the aligned depth of one more model."""
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
    ]


@torch.no_grad()
def main() -> None:
    """Print the tables and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--share", type=float, default=0.125, help="of TOFU's rows that are run")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--out", type=Path, default=PAGE)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    machine, shape = describe(), shape_named("llama-1b")
    one, maps = patching(shape, chosen.share), aligning(shape, chosen.share)
    lines = [
        "# What the controls of one more model cost",
        "",
        "Llama-3.2-1B's shape, random weights, float32. `full`, S1 and the rows were run before; "
        "one more model is patched and examined. Processor seconds of all threads, scaled to "
        f"TOFU's {N_FORGET} forget rows, {VALIDITY_ROWS} rows for validity and "
        f"{ALIGN_TOKENS_PER_DIM} neutral tokens per dimension. What a model says of its own accord "
        "is read out of the last stream that its cache holds anyway, and not run again: of the "
        "logits of a whole row only the span's are wanted.",
        "",
        f"`python -m benchmarks.validity --share {chosen.share:g}`: {machine}. One run.",
        "",
        *report(one, maps, chosen.share),
        "",
        "## The shared direction",
        "",
        *shared_report(maps, one.again),
        "",
    ]
    text = "\n".join(lines)
    write_bytes(chosen.out, text.encode())
    print(text)


if __name__ == "__main__":
    main()
