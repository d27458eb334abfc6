"""What may be chosen of an attack: relearning and rounding."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.settings import Anchors, Caches, Names, Option, Precision, Processor, Section, Seed
from lensaudit.unlearn.settings import (
    BATCH_SIZE,
    N_ACCUMULATE,
    SAVE_EVERY,
    Accumulate,
    Autocast,
    Checkpoint,
    ForgetRows,
    Lora,
    MaxGradNorm,
    Rows,
    SaveEvery,
    Stored,
    WeightDecay,
    Written,
)

RoundingMethod = Literal["nf4", "int8"]


@dataclass(frozen=True, kw_only=True)
class RelearnSettings(Caches, Precision, Anchors):
    """A run of `relearn`; the defaults are the attack of the UDS meta-evaluation."""

    section: ClassVar[Section] = "Training"
    model: Annotated[
        str,
        Option("Model to attack: unlearned, or retain.", flag="--source", is_a="model"),
    ]
    data: ForgetRows = None
    out: Annotated[Path | None, Option("Checkpoint folder.")] = None
    audit: Annotated[
        bool,
        Option("Score the model and retain before and after; without --out no checkpoint is kept."),
    ] = False
    epochs: Annotated[float, Option("Passes over the rows.")] = 1.0
    lr: Annotated[
        float | None,
        Option("Peak. [default: 2e-5; 1e-3 for demo/… models; ten times that with --lora]"),
    ] = None
    batch_size: Rows = BATCH_SIZE
    accumulate: Accumulate = N_ACCUMULATE
    weight_decay: WeightDecay = 0.0
    max_grad_norm: MaxGradNorm = 1.0
    formats: Written = None
    lora: Lora = None
    autocast: Autocast = False
    seed: Seed = 42
    """Of the order of rows; the default of transformers' Trainer."""
    save_every: SaveEvery = SAVE_EVERY
    store: Stored = "same"


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Processor, Names):
    """A run of `quantize`."""

    model: Annotated[
        str,
        Option("Model to quantise.", flag="--source", is_a="model"),
    ]
    method: Annotated[RoundingMethod, Option()] = "nf4"
    out: Checkpoint
    engine: Annotated[
        Literal["auto", "torch", "bitsandbytes"],
        Option("What rounds; the numbers are the same.", expert=True),
    ] = "auto"
    store: Stored = "same"
