"""What would a user write instead? Patching every layer, by four ways, side by side in one run.

    python -m venv peers && peers/bin/pip install -c constraints.txt -e . nnsight
    OMP_NUM_THREADS=1 peers/bin/python -m benchmarks.peers --shape embedded

A loop of TransformerLens' `run_with_hooks`, a loop of Hugging Face forward hooks (the way of the
UDS reference), a loop of nnsight traces, and lensaudit's sweep, its caches written to disk and read
back. Same random weights, same token ids as long as TOFU's, same source: every fact is patched at
every layer, and the source is run once. All must find the same deltas within `TOLERANCE`, else
there is an error and no table. Each loop is given its best batch size. Loading of weights is not
timed. `lines`: of the function here, without its docstring. nnsight is left out where it is not
installed: it is no dependency, and wants an environment of its own.
"""

import argparse
import ast
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.machine import describe, timed
from benchmarks.shapes import Shape, no_words, random_model, shape_named, whole_batches
from benchmarks.sweep import Asked, another_norm, bench_of
from benchmarks.work import NotMeasured
from lensaudit.data.spans import Batch, Encoded, make_batch
from lensaudit.models.bridge import bridge_from
from lensaudit.patching.score_cache import ScoreCache

TOLERANCE = 2e-5
"""Nats per token, of a delta, beside the largest delta: float32 in other orders of summing."""
BATCHES = (1, 8, 32)
Deltas = Tensor
"""By fact and layer, nats per token."""


def score(logits: Tensor, batch: Batch) -> Tensor:
    """Mean log-probability of each row's span, nats per token."""
    said = logits[:, :-1].float().log_softmax(-1)
    label = said.gather(-1, batch.tokens[:, 1:, None])[..., 0]
    read = batch.predict_at[:, :-1]
    return (label * read).sum(1) / read.sum(1)


def transformer_lens(model: Any, batch: Batch, source: Any) -> Deltas:
    """`run_with_cache` of the source, `run_with_hooks` of `full` layer by layer."""
    names = [f"blocks.{layer}.hook_out" for layer in range(model.cfg.n_layers)]
    with source():
        _, cache = model.run_with_cache(batch.tokens, names_filter=names)
    before, at, columns = score(model(batch.tokens), batch), batch.patch_at[..., None], []
    for name in names:

        def patch(resid: Tensor, hook: Any, stream: Tensor = cache[name]) -> Tensor:
            return torch.where(at, stream, resid)

        logits = model.run_with_hooks(batch.tokens, fwd_hooks=[(name, patch)])
        columns.append(before - score(logits, batch))
    return torch.stack(columns, 1)


def hugging_face(model: Any, batch: Batch, source: Any) -> Deltas:
    """`register_forward_hook` of a decoder layer, one pass of `full` a layer."""
    with source():
        streams = model(batch.tokens, output_hidden_states=True).hidden_states[1:-1]
        last: list[Tensor] = []
        read = model.model.layers[-1].register_forward_hook(lambda *a: last.append(a[-1]))
        model(batch.tokens)  # the last of `hidden_states` is behind the final norm
        read.remove()
    before, at, columns = score(model(batch.tokens).logits, batch), batch.patch_at[..., None], []
    for layer, stream in zip(model.model.layers, (*streams, *last), strict=True):
        hook = layer.register_forward_hook(
            lambda module, given, out, stream=stream: torch.where(at, stream, out)
        )
        columns.append(before - score(model(batch.tokens).logits, batch))
        hook.remove()
    return torch.stack(columns, 1)


def nnsight(model: Any, batch: Batch, source: Any) -> Deltas:
    """One trace of the source, one of `full` a layer."""
    from nnsight import save

    layers, columns = model.model.layers, []
    with source(), model.trace(batch.tokens):
        streams = save([layer.output for layer in layers])
    with model.trace(batch.tokens):
        before = model.lm_head.output.save()
    for at, stream in enumerate(streams):
        with model.trace(batch.tokens):
            layers[at].output = torch.where(batch.patch_at[..., None], stream, layers[at].output)
            logits = model.lm_head.output.save()
        columns.append(score(before, batch) - score(logits, batch))
    return torch.stack(columns, 1)


def plain(shape: Shape) -> LlamaForCausalLM:
    """Hugging Face's model, with the weights of `random_model`."""
    torch.manual_seed(0)
    return LlamaForCausalLM(shape.config).eval()


def bridged(shape: Shape) -> Any:
    """TransformerLens' bridge of it, as its own loader leaves it."""
    return bridge_from(plain(shape), no_words())


def traced(shape: Shape) -> Any:
    """The same in a wrapper of nnsight."""
    from nnsight import NNsight

    return NNsight(plain(shape))


@dataclass(frozen=True)
class Way:
    """One way to patch every layer."""

    name: str
    run: Callable[[Any, Batch, Any], Deltas]
    load: Callable[[Shape], Any]
    norm: Callable[[Any], Any]
    """The first norm of the model: the source has another one, so that no second model is held."""

    @property
    def n_lines(self) -> int:
        """Lines of code of its function."""
        source = inspect.getsource(self.run)
        (made,) = ast.parse(source).body
        assert isinstance(made, ast.FunctionDef)
        first = made.body[1].lineno  # behind the docstring
        return sum(bool(line.strip()) for line in source.splitlines()[first - 1 :]) + 1


WAYS = (
    Way("TransformerLens, run_with_hooks", transformer_lens, bridged, lambda m: m.blocks[0].ln1),
    Way(
        "Hugging Face, forward hooks",
        hugging_face,
        plain,
        lambda m: m.model.layers[0].input_layernorm,
    ),
    Way(
        "nnsight, trace",
        nnsight,
        traced,
        lambda m: m._module.model.layers[0].input_layernorm,
    ),
)


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    name: str
    n_lines: int | None
    batch: str
    seconds: float
    """Per fact, all layers."""
    deltas: Deltas


def loop(way: Way, shape: Shape, encoded: Sequence[Encoded]) -> Measured:
    """A loop at its best batch size."""
    model = way.load(shape)
    source, found = partial(another_norm, way.norm(model)), dict[int, tuple[float, Deltas]]()
    kept: dict[int, Deltas] = {}

    def by_idx(size: int) -> None:
        rows = torch.zeros(len(encoded), shape.config.num_hidden_layers)
        for bucket in whole_batches(encoded, size):
            rows[[e.idx for e in bucket]] = way.run(model, make_batch(bucket), source)
        kept[size] = rows

    for size in (one for one in BATCHES if one <= len(encoded)):
        spent = timed(lambda s=size: by_idx(s), n_runs=shape.n_runs, what=way.name)
        found[size] = spent.median / len(encoded), kept[size]
    best = min(found, key=lambda size: found[size][0])
    return Measured(way.name, way.n_lines, str(best), *found[best])


def swept(shape: Shape, encoded_n: int, asked: Asked) -> tuple[Measured, Sequence[Encoded]]:
    """The sweep, with the source run, from and to its files; the cache of `full` is there."""
    with bench_of(shape, random_model(shape.config), encoded_n, asked) as bench:
        layers = range(bench.n_layers)
        bench.source_run([0])
        spent = bench.timed(lambda: bench.source_run(layers), n_runs=shape.n_runs, what="sweep")
        kept = ScoreCache(bench.root, {}, "source")
        entries = [kept.entry(e) for e in bench.encoded]
        rows = [[one.baseline - one.scores[at] for at in layers] for one in entries if one]
        seconds = spent.median / encoded_n
        return Measured("lensaudit, sweep", None, "by memory", seconds, torch.tensor(rows)), (
            bench.encoded
        )


def check_same(rows: Sequence[Measured]) -> float:
    """The largest difference of two ways, nats per token.

    Raises:
        NotMeasured: it is above the tolerance, or nothing was patched.
    """
    first = rows[0].deltas
    size = float(first.abs().max())
    gaps = {one.name: float((one.deltas - first).abs().max()) for one in rows[1:]}
    if size < 0.01:
        raise NotMeasured(f"no delta is above {size:.1g} nats: nothing was patched")
    for name, gap in gaps.items():
        if not gap <= TOLERANCE * max(1.0, size):
            raise NotMeasured(f"{name} differs from {rows[0].name} by {gap:.2g} nats")
    return max(gaps.values(), default=0.0)


def table(shape: Shape, asked: Asked, n: int) -> Iterator[str]:
    """The section of one shape, line by line."""
    ours, encoded = swept(shape, n, asked)
    ways = [way for way in WAYS if way.run is not nnsight or importlib.util.find_spec("nnsight")]
    rows = [*(loop(way, shape, encoded) for way in ways), ours]
    gap = check_same(rows)
    yield f"\n## {shape.name}: {shape.text}, {len(encoded)} facts\n"
    yield f"{describe()}\n"
    yield "| way | lines | batch | s per fact | this / sweep | differs by, nats |"
    yield "|---|---|---|---|---|---|"
    for one in rows:
        apart = float((one.deltas - rows[0].deltas).abs().max())
        lines = one.n_lines or "one command"
        ratio = one.seconds / ours.seconds
        cells = (one.name, lines, one.batch, f"{one.seconds:.3g}", f"{ratio:.1f}", f"{apart:.0e}")
        yield f"| {' | '.join(map(str, cells))} |"
    largest = float(ours.deltas.abs().max())
    yield f"\nLargest difference of two: {gap:.0e} nats; largest delta: {largest:.2f}."


@torch.no_grad()
def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    shapes = ("embedded", "smollm2", "llama-1b")
    parser.add_argument("--shape", action="append", choices=shapes, help="default: embedded")
    parser.add_argument("--facts", type=int, help="default: as many as benchmarks.sweep takes")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    for name in chosen.shape or ["embedded"]:
        shape = shape_named(name)
        for line in table(shape, Asked(), chosen.facts or shape.n_examples):
            print(line, flush=True)


if __name__ == "__main__":
    main()
