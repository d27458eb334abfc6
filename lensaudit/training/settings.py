"""What may be chosen of a training run: which rows, how long, how fast, by which method."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.choices import Replaces
from lensaudit.settings import Device, Names, Needs, Option, Section, Seed

Formats = Literal["chat", "raw", "both"]
Format = Literal["chat", "raw"]
FORMATS: Mapping[Formats, tuple[Format, ...]] = {
    "chat": ("chat",),
    "raw": ("raw",),
    "both": ("raw", "chat"),
}
Store = Literal["same", "float32", "bfloat16", "float16"]

ForgetRows = Annotated[
    str | None,
    Option(
        "Forget rows: forget01, forget05, forget10, demo, or a file of question and answer. "
        "[default: forget10; demo for demo/… models]",
        metavar="NAME|FILE",
    ),
]
Count = Annotated[int, Option("Rows per batch.", least=1)]
Accumulate = Annotated[int, Option("Batches per optimiser step.", least=1, expert=True)]
WeightDecay = Annotated[float, Option("Weight decay of AdamW.", least=0, rare="set")]
MaxGradNorm = Annotated[
    float, Option("Largest gradient norm; larger ones are clipped to it.", above=0, rare="set")
]
Written = Annotated[
    Formats | None,
    Option("Form of the training rows. [default: chat; both for demo/… models]", flag="--format"),
]
SaveEvery = Annotated[
    int | None,
    Option(
        "Steps between resumable states. [default: one a minute, fewer where writing one takes "
        "more than 3 s]",
        least=1,
        rare="set",
    ),
]
Stored = Annotated[Store, Option("Precision of saved weights.", expert=True)]
Checkpoint = Annotated[Path, Option("Checkpoint folder.")]
Lora = Annotated[
    int | None,
    Option(
        "Train a low-rank adapter, or the one that the model has; it alone is saved, to be named "
        "BASE+OUT.",
        metavar="RANK",
        least=1,
    ),
]
Autocast = Annotated[
    bool,
    Option(
        "Forward passes in bfloat16, for devices that are faster in it; weights stay float32.",
        expert=True,
    ),
]
Trainable = Annotated[
    str, Option("Train only parameters whose names match this pattern.", expert=True)
]

BATCH_SIZE = 8
N_ACCUMULATE = 4
"""8 x 4 rows make a step in open-unlearning's TOFU runs."""


@dataclass(frozen=True, kw_only=True)
class UnlearnSettings(Replaces, Names):
    """A run of `unlearn`; None is the method's published value."""

    section: ClassVar[Section] = "Training"

    def idle(self) -> Mapping[str, str]:
        """Rows and lines that the method does not read -> why; see `ask.acting`."""
        from lensaudit.training.methods import idle  # which reads these settings, and torch

        return idle(self)

    method: Annotated[
        str,
        Option(
            "GradAscent, GradDiff, NPO, SimNPO, IdkNLL, IdkDPO, AltPO, RMU, UNDIAL, CEU, WGA, "
            "SatImp or PDU."
        ),
    ]
    model: Annotated[str, Option("Model to start from.", is_a="model")] = "full"
    data: ForgetRows = None
    retain_data: Annotated[
        str | None,
        Option(
            "Rows to keep. [default: the complement of a named forget set]",
            flag="--kept",
            old="--retain-data",
            metavar="NAME|FILE",
        ),
    ] = None
    idk: Annotated[
        Path | None,
        Option("Lines that admit ignorance. [default: embedded]", is_a="file", rare="set"),
    ] = None
    out: Checkpoint
    epochs: Annotated[
        float | None,
        Option(
            "Passes over the forget rows. [default: the method's]",
            above=0,
            needs=(Needs("steps", one_of=(None,)),),
        ),
    ] = None
    steps: Annotated[int | None, Option("Optimiser steps, instead of --epochs.", least=1)] = None
    lr: Annotated[
        float | None,
        Option(
            "Peak learning rate. [default: the method's; 5e-4 for demo/… models; ten times that "
            "with --lora]",
            above=0,
        ),
    ] = None
    warmup_epochs: Annotated[
        float, Option("Epochs in which the learning rate rises.", least=0, rare="set")
    ] = 1.0
    schedule: Annotated[
        Literal["linear", "constant"],
        Option("After the rise the learning rate falls to 0, or stays.", rare="set"),
    ] = "linear"
    weight_decay: WeightDecay = 0.01
    max_grad_norm: MaxGradNorm = 1.0
    batch_size: Count = BATCH_SIZE
    accumulate: Accumulate = N_ACCUMULATE
    trainable: Trainable = ""
    lora: Lora = None
    autocast: Autocast = False
    gamma: Annotated[float | None, Option("Weight of the forget term.", rare="constant")] = None
    alpha: Annotated[float | None, Option("Weight of the retain term.", rare="constant")] = None
    retain_loss: Annotated[
        Literal["nll", "kl"] | None, Option("The retain term, nll or kl.", rare="constant")
    ] = None
    beta: Annotated[
        float | None,
        Option("Constant beta of NPO, SimNPO, IdkDPO, AltPO, UNDIAL and WGA.", rare="constant"),
    ] = None
    delta: Annotated[float | None, Option("SimNPO: margin, nats per token.", rare="constant")] = (
        None
    )
    beta1: Annotated[float | None, Option("SatImp: its constant beta1.", rare="constant")] = None
    beta2: Annotated[float | None, Option("SatImp: its constant beta2.", rare="constant")] = None
    ignore_first: Annotated[
        int | None, Option("CEU: answer tokens left alone.", least=0, rare="constant")
    ] = None
    layer: Annotated[
        int | None, Option("RMU: layer whose output is steered, from 0.", rare="constant")
    ] = None
    strength: Annotated[
        float | None, Option("RMU: length of the control vector.", rare="constant")
    ] = None
    control_seed: Annotated[
        int | None, Option("RMU: seed of the control vector.", rare="constant")
    ] = None
    epsilon: Annotated[
        float | None, Option("PDU: highest retain loss allowed, nats per token.", rare="constant")
    ] = None
    dual_step: Annotated[
        float | None, Option("PDU: how fast its multiplier moves.", rare="constant")
    ] = None
    dual_warmup: Annotated[
        int | None, Option("PDU: steps before its multiplier moves.", rare="constant")
    ] = None
    formats: Written = None
    seed: Seed = 0
    save_every: SaveEvery = None
    store: Stored = "same"
    device: Device = "auto"
