import subprocess
import sys
from dataclasses import replace
from functools import reduce
from operator import add

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wavefront_helpers import examples

from lensaudit.errors import InputError
from lensaudit.models.sizes import Sizes
from lensaudit.patching.budget import MAX_BATCH, MemoryBudget, MiB
from lensaudit.patching.options import ResolvedSettings

LLAMA_1B = Sizes(16, 2048, 8192, 128_256, 32, 8, 64, 64, 4)
SMALL = Sizes(16, 64, 176, 2048, 4, 2, 16, 16, 4)


def budget(sizes=LLAMA_1B, memory=2 << 30, **options):
    layers = tuple(range(sizes.n_layers))
    return MemoryBudget(
        sizes, ResolvedSettings(at_layers=layers, memory_bytes=memory, **options), sweeps=True
    )


def sixteen(example):
    return 16


def many(n, step=7):
    """Lengths and spans that repeat out of step."""
    return examples(
        [
            (9 + step * i % 50, 8 + step * i % 50, 9 + step * i % 50 + i % 11, 30 + step * i % 60)
            for i in range(n)
        ]
    )


def total(where, batch):
    return reduce(add, (where.cost(e, 16) for e in batch))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    n=st.integers(1, 60),
    gib=st.floats(0.3, 4),
    n_sources=st.integers(1, 3),
    size=st.none() | st.integers(1, 70),
    sweeps=st.booleans(),
)
def test_batches_hold_every_example_once_and_stay_within_the_plan(n, gib, n_sources, size, sweeps):
    where = replace(budget(memory=int(gib * 2**30), batch_size=size), sweeps=sweeps)
    encoded = many(n)
    batches = where.batches(encoded, sixteen, n_sources=n_sources)
    assert sorted(e.idx for batch in batches for e in batch) == list(range(n))
    assert all(len(batch) <= (size or MAX_BATCH) for batch in batches)
    for batch in batches:
        fits = where.bytes_of(total(where, batch), n_sources=n_sources) <= where.planned
        assert fits or len(batch) == 1


def test_strips_alike_in_span_pad_less_than_one_order_of_length():
    encoded = many(300)
    where = budget(SMALL)
    batches = where.batches(encoded, sixteen, n_sources=1)
    costs = [(e, where.cost(e, 16)) for e in sorted(encoded, key=lambda e: e.end)]

    def cells(found):
        return sum(total(where, batch).cells for batch in found)

    assert cells(batches) < 0.8 * cells(batch for batch, _ in where._cut(costs, 1))


def test_a_budget_that_holds_no_example_names_one_that_does():
    encoded = many(5)
    with pytest.raises(InputError, match=r"one example .* takes \d+M .* use --memory (\d+)M") as no:
        budget(memory=64 * MiB).check(encoded, n_sources=1)
    enough = int(str(no.value).rpartition("--memory ")[2].rstrip("M"))
    budget(memory=enough * MiB).check(encoded, n_sources=1)
    with pytest.raises(InputError):
        budget(memory=(enough - 2) * MiB).check(encoded, n_sources=1)


MEASURE = """
import sys
import torch
from benchmarks.machine import timed
from benchmarks.shapes import Shape, random_model
from benchmarks.sweep import Asked, bench_of
from transformers import LlamaConfig
torch.set_grad_enabled(False)
config = LlamaConfig(
    vocab_size=100_000, hidden_size=512, intermediate_size=2048, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True,
)
shape, model = Shape("", "", config, 1, 1, 1), random_model(config)
with bench_of(shape, model, 64, Asked(sys.argv[1])) as bench:
    bench.source_run([5])
    print(timed(lambda: bench.source_run(range(6)), n_runs=1).peak_bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is read from /proc")
def test_the_measured_peak_is_within_the_budget(pytestconfig):
    def peak(memory):
        # what one run frees the next one has for nothing
        answer = subprocess.run(
            [sys.executable, "-c", MEASURE, memory],
            cwd=pytestconfig.rootpath,
            check=True,
            capture_output=True,
            text=True,
        )
        return int(answer.stdout.splitlines()[-1])

    assert peak("256M") <= 256 * MiB
    # and it would not be without one
    assert peak("2G") > 256 * MiB
