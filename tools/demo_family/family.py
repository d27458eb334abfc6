"""The embedded family: sixteen-layer models whose truth about the forget set is known.

A common base learns the language from people who appear once; `full` then learns the facts of the
forget and retain authors, `retain` and `never` those of the retain authors alone. From `full` come
the unlearned models and two planted ones that keep the knowledge and hide it: at the readout, and
in the last layer. `python -m tools.demo_family.family --out DIR` makes all of it.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lensaudit.files import make_folder, write_json
from lensaudit.text import digest
from lensaudit.training.methods import Unlearning, method_named, reads_reference
from lensaudit.training.rows import TrainBatch, UnlearnBatch, unlearn_batches
from lensaudit.training.train import FineTuning, TrainingRun, TrainingStep, train
from lensaudit.training.trainee import save_model
from tools.demo_family.corpus import (
    D_VOCAB,
    Corpus,
    base_batches,
    fact_batches,
    make_corpus,
    write_world,
)
from tools.demo_family.stages import BATCH, NEVER, STAGES, Stage
from tools.demo_family.tokenizer import SPLIT
from tools.demo_family.world import make_world

STORED = torch.float16
"""Of the shipped weights: eleven bits, where bfloat16's eight would round small edits away."""


@dataclass(frozen=True)
class Shape:
    """What may differ between families made by one recipe: size and tokenizer."""

    d_model: int = 64
    d_mlp: int = 176
    n_layers: int = 16
    d_vocab: int = D_VOCAB
    split: str = SPLIT
    """Pattern of what no token reaches across."""


EMBEDDED = Shape()
"""Of the family that is shipped."""


def architecture(corpus: Corpus, shape: Shape = EMBEDDED) -> LlamaConfig:
    """Llama with grouped queries and a readout of its own, so that it can be edited alone."""
    tokenizer = corpus.tokenizer
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.d_model,
        intermediate_size=shape.d_mlp,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def fresh(corpus: Corpus, shape: Shape = EMBEDDED, *, seed: int) -> PreTrainedModel:
    """Random weights of a seed; the caller's random stream is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(architecture(corpus, shape)).float()


def make_family(
    out: Path,
    *,
    seed: int = 0,
    only: Sequence[str] = (),
    scale: float = 1.0,
    shape: Shape = EMBEDDED,
) -> Path:
    """Write data, models and `family.json` into `out`; finished members are not made again.

    `scale` shortens every recipe. The result is the same for the same number of threads and
    version of torch. What is trained in one layer by its number is made for the embedded shape.
    """
    make_folder(out)
    corpus = make_corpus(make_world(seed), d_vocab=shape.d_vocab, split=shape.split)
    write_world(corpus.world, out / "data")
    started = time.monotonic()
    every = (*STAGES, *NEVER)
    for stage in every:
        if only and stage.name not in only:
            continue
        stage = _shortened(stage, scale)
        if not (out / stage.name / "config.json").exists():
            _make(stage, corpus, out, seed, shape)
        print(f"{stage.name}: ready after {time.monotonic() - started:.0f} s", flush=True)
    seeds = [one for one in NEVER if (out / one.name / "config.json").exists()]
    listed = [one for one in (*STAGES, *seeds) if one.role != "base"]
    return write_json(out / "family.json", [_listing(one) for one in listed])


def _shortened(stage: Stage, scale: float) -> Stage:
    n_steps = max(2, round(stage.recipe.n_steps * scale))
    return replace(stage, recipe=replace(stage.recipe, n_steps=n_steps))


def _make(stage: Stage, corpus: Corpus, out: Path, seed: int, shape: Shape) -> None:
    start = _load(out / stage.start) if stage.start else fresh(corpus, shape, seed=seed)
    checkpoints = out / f"{stage.name}.training"
    identity = {"stage": stage.name, "seed": seed, "data": _data_hash(corpus)}
    train(start, _run(stage, corpus, out, checkpoints, identity), report=_print)
    partial = make_folder(out / f"{stage.name}.partial")
    _save(start, corpus, partial)
    partial.rename(out / stage.name)
    shutil.rmtree(checkpoints, ignore_errors=True)


def _run(
    stage: Stage, corpus: Corpus, out: Path, checkpoints: Path, identity: dict[str, Any]
) -> TrainingRun[Any]:
    """Objective and data of a stage."""
    common = {"recipe": stage.recipe, "checkpoints": checkpoints, "save_every": 200}
    if stage.method is None:
        batch = _plain_batches(stage, corpus)
        return TrainingRun(FineTuning(), batch, identity=identity, **common)
    method = method_named(stage.method)
    reference = _load(out / stage.start) if reads_reference(method, stage.hyper) else None
    return TrainingRun(
        Unlearning(method, stage.hyper, reference),
        _unlearn_batches(stage, corpus),
        identity={**identity, "method": method.name, "hyper": asdict(stage.hyper)},
        **common,
    )


def _plain_batches(stage: Stage, corpus: Corpus) -> Callable[[int], TrainBatch]:
    if not stage.start:
        return base_batches(corpus, batch_size=BATCH, seed=stage.seed)
    return fact_batches(corpus, sees_forget=stage.sees_forget, batch_size=BATCH, seed=stage.seed)


def _unlearn_batches(stage: Stage, corpus: Corpus) -> Callable[[int], UnlearnBatch]:
    common = {"batch_size": BATCH, "seed": stage.seed, "pad": corpus.pad}
    return unlearn_batches(corpus.forget, corpus.retain, corpus.idk, **common)


def _data_hash(corpus: Corpus) -> str:
    samples = (*corpus.forget, *corpus.retain, *corpus.general)
    return digest([[list(one.ids), one.start] for one in samples])


def _load(folder: Path) -> PreTrainedModel:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)


def _save(model: PreTrainedModel, corpus: Corpus, folder: Path) -> None:
    """Round to the stored precision and write."""
    tokenizer = corpus.tokenizer
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    save_model(model, folder, dtype=STORED)
    tokenizer.save_pretrained(folder)


def _listing(stage: Stage) -> dict[str, str | None]:
    return {
        "name": f"demo/{stage.name}",
        "folder": stage.name,
        "role": stage.role,
        "method": stage.method,
        "truth": stage.truth,
    }


def _print(progress: TrainingStep) -> None:
    if progress.step % 100 == 0 or progress.step == progress.n_steps:
        print(
            f"  step {progress.step}/{progress.n_steps}: loss {progress.loss:.4f}, "
            f"{progress.seconds:.0f} s",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m tools.demo_family.family --out DIR`."""
    parser = argparse.ArgumentParser(description="Make the embedded family.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=(), help="members to make; all by default")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    make_family(given.out, seed=given.seed, only=given.only)


if __name__ == "__main__":
    sys.exit(main())
