"""What does sharing passes save? The teacher-forced TOFU suite at once against metric by metric.

    MALLOC_ARENA_MAX=1 python -m benchmarks.metrics

Question: how many forward passes, how many seconds and how much memory does the suite take, and
does memory grow with the rows? Hardware: CPU, one thread. About 4 minutes. Both sides use the
same engine and batch size; "separately" runs each metric with its own needs and keeps nothing
between metrics, as a run per metric does. Expected: at least 4 times fewer passes, at least 3
times faster. Writes benchmarks/metrics.md.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import describe, timed
from benchmarks.work import NotMeasured
from lensaudit.data.chat import Template
from lensaudit.data.suites import Split, load_suite
from lensaudit.evaluation import forward
from lensaudit.evaluation.forward import Tokenization
from lensaudit.evaluation.passes import ModelPasses, Subject
from lensaudit.evaluation.suite import evaluate
from lensaudit.files import write_bytes
from lensaudit.metrics.registry import Metric, all_metrics, ordered
from lensaudit.models.conditions import Conditions
from lensaudit.models.linear import with_fast_layers
from tools.demo_family.corpus import corpus_text
from tools.demo_family.tokenizer import train_tokenizer
from tools.demo_family.world import make_world

BATCH = 32
ROWS = (48, 144)
MEMORY_ROWS = (96, 384, 1536)
D_VOCAB = 8_000
"""Of the model; the head is as large a part of the work as in a small Llama."""


def model() -> LlamaForCausalLM:
    """A random Llama of 4 layers and width 128."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=D_VOCAB,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    return with_fast_layers(LlamaForCausalLM(config).eval())


def cut_or_repeated(split: Split, n_rows: int) -> Split:
    """The split with exactly `n_rows` rows."""
    rows = tuple(replace(split.rows[n % len(split.rows)], idx=n) for n in range(n_rows))
    return replace(split, rows=rows)


def passes_over(n_rows: int) -> ModelPasses:
    """TOFU's splits of generated authors: `n_rows` in forget, retain and holdout."""
    world = make_world()
    tokenizer = train_tokenizer(corpus_text([*world.forget, *world.retain]), d_vocab=2048)
    sizes = {
        "forget": n_rows,
        "retain": n_rows,
        "holdout": n_rows,
        "ra": n_rows // 4,
        "wf": n_rows // 4,
    }
    splits = {
        name: cut_or_repeated(split, sizes[name])
        for name, split in load_suite("tofu", "demo").items()
    }
    conditions = Conditions("random", "-", "float32", "cpu", "eager", "right-padded")
    return ModelPasses(
        Subject("random", conditions, model),
        splits,
        Tokenization(tokenizer, Template(), "true"),
        batch_size=BATCH,
    )


def teacher_forced() -> list[str]:
    """Metrics that need forward passes of the audited model and nothing else."""
    known = all_metrics()

    def reads(one: Metric) -> set[str]:
        needed = (reads(known[name]) for name in one.local_needs)
        return {read.kind for read in one.reads.get("tofu", ())}.union(*needed)

    return [one.name for one in ordered("tofu") if reads(one) == {"trace"}]


@dataclass(frozen=True)
class Cost:
    """What some evaluations took."""

    cpu_s: float
    """Processor seconds of one thread: other work on the machine does not count."""
    n_forward: int
    peak_mib: float
    """Above the weights and the process before."""


def measured(n_rows: int, groups: list[list[str]]) -> Cost:
    """One evaluation per group of metrics, one after another."""
    made = [passes_over(n_rows) for _ in groups]
    weights = model()
    for passes in made:
        passes.subject.open = lambda: weights

    def run() -> None:
        for passes, names in zip(made, groups, strict=True):
            evaluate(passes, "tofu", names)

    started = time.process_time()
    with mock.patch.object(forward, "token_traces", wraps=forward.token_traces) as batches:
        peak_bytes = timed(run, n_runs=1).peak_bytes
    cpu_s = time.process_time() - started
    if batches.call_count < len(groups) * -(-n_rows // BATCH):
        raise NotMeasured(f"{batches.call_count} passes for {len(groups)} evaluations")
    return Cost(cpu_s, batches.call_count, peak_bytes / 2**20)


def speed_rows() -> list[str]:
    """The suite at once and metric by metric."""
    names = teacher_forced()
    lines = [
        "| rows per split | forward passes together | separately | ratio "
        "| CPU seconds together | separately | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for n_rows in ROWS:
        one = measured(n_rows, [names])
        each = measured(n_rows, [[name] for name in names])
        lines.append(
            f"| {n_rows} | {one.n_forward} | {each.n_forward} "
            f"| {each.n_forward / one.n_forward:.1f} "
            f"| {one.cpu_s:.1f} | {each.cpu_s:.1f} | {each.cpu_s / one.cpu_s:.1f} |"
        )
    return lines


def memory_rows() -> list[str]:
    """Peak memory over growing numbers of rows."""
    lines = ["| rows per split (mia_loss) | forward passes | peak memory above weights |"]
    lines += ["|---|---|---|"]
    for n_rows in MEMORY_ROWS:
        cost = measured(n_rows, [["mia_loss"]])
        lines.append(f"| {n_rows} | {cost.n_forward} | {cost.peak_mib:.0f} MiB |")
    return lines


def table() -> str:
    """Both tables; memory first, where no other run has left holes in the heap."""
    head = (
        f"`MALLOC_ARENA_MAX=1 python -m benchmarks.metrics`: {len(teacher_forced())} "
        f"teacher-forced metrics of the TOFU suite, batch {BATCH}, random 4-layer Llama, "
        f"vocabulary {D_VOCAB}. {describe()}."
    )
    memory, speed = memory_rows(), speed_rows()
    return "\n".join(["# The shared pass", "", head, "", *speed, "", *memory, ""])


def main() -> None:
    """Measure, write the table beside this file, print it."""
    torch.set_num_threads(1)
    text = table()
    write_bytes(Path(__file__).with_suffix(".md"), text.encode())
    print(text)


if __name__ == "__main__":
    main()
