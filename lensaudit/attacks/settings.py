"""Settings of attacks: relearning, rounding, RTT, effort, worst case, samples."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from lensaudit.choices import Replaces
from lensaudit.settings import (
    Anchors,
    Caches,
    Device,
    Models,
    Names,
    Needs,
    Option,
    Own,
    Place,
    Precision,
    Rows,
    ScoreFiles,
    Section,
    Seed,
    Think,
)
from lensaudit.training.settings import (
    BATCH_SIZE,
    FORMATS,
    N_ACCUMULATE,
    Accumulate,
    Autocast,
    Checkpoint,
    Count,
    ForgetRows,
    Format,
    Lora,
    MaxGradNorm,
    SaveEvery,
    Stored,
    Trainable,
    WeightDecay,
    Written,
)

if TYPE_CHECKING:
    from lensaudit.training.train import Recipe


@dataclass(frozen=True, kw_only=True)
class RelearnSettings(Replaces, Caches, Precision, Anchors):
    """A run of `relearn`; the defaults are the attack of the UDS meta-evaluation."""

    section: ClassVar[Section] = "Training"
    needs: ClassVar = {"dtype": (Needs("audit"),)}  # training is in float32
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
    epochs: Annotated[float, Option("Training passes over the rows.", above=0)] = 1.0
    lr: Annotated[
        float | None,
        Option(
            "Peak learning rate. [default: 2e-5; 1e-3 for demo/… models; ten times that with "
            "--lora]",
            above=0,
        ),
    ] = None
    batch_size: Count = BATCH_SIZE
    accumulate: Accumulate = N_ACCUMULATE
    weight_decay: WeightDecay = 0.0
    max_grad_norm: MaxGradNorm = 1.0
    formats: Written = None
    lora: Lora = None
    autocast: Autocast = False
    seed: Seed = 42
    """Of the order of rows; the default of transformers' Trainer."""
    save_every: SaveEvery = None
    store: Stored = "same"


@dataclass(frozen=True)
class Relearning:
    """How the model is shown the forget set; the defaults are the published attack."""

    lr: float = 2e-5
    """Peak; falls to 0 along a straight line, without a rise before it."""
    n_epochs: float = RelearnSettings.epochs
    batch_size: int = RelearnSettings.batch_size
    n_accumulate: int = RelearnSettings.accumulate
    """Parts that a step's `batch_size * n_accumulate` rows are read in: 32 rows a step."""
    weight_decay: float = RelearnSettings.weight_decay
    max_grad_norm: float = RelearnSettings.max_grad_norm
    n_warmup: int = 0
    formats: tuple[Format, ...] = ("chat",)
    seed: int = RelearnSettings.seed
    """Of the order of rows, and of dropout."""

    def recipe(self, n_samples: int) -> "Recipe":
        """The training recipe for so many sequences; 400 of them are 13 steps."""
        from lensaudit.training.train import Recipe, n_steps_of  # seconds to import

        n_steps = n_steps_of(
            n_samples,
            n_epochs=self.n_epochs,
            batch_size=self.batch_size * self.n_accumulate,
            n_accumulate=1,
        )
        return Recipe(
            n_steps=n_steps,
            lr=self.lr,
            n_warmup=min(self.n_warmup, n_steps),
            n_accumulate=self.n_accumulate,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
        )


DEMO_RELEARNING = Relearning(lr=1e-3, formats=FORMATS["both"])
"""For demo/… models, which know both forms: 2e-5 would leave their million weights as they are."""


def relearning_for(*, demo: bool) -> Relearning:
    """Settings with which every command relearns unless others are given: row order and rate."""
    return DEMO_RELEARNING if demo else Relearning()


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Replaces, Names):
    """A run of `quantize`."""

    model: Annotated[
        str,
        Option("Model to quantise.", flag="--source", is_a="model"),
    ]
    method: Annotated[Literal["nf4", "int8"], Option("Rounding to 4 bits, or to 8.")] = "nf4"
    out: Checkpoint
    engine: Annotated[
        Literal["auto", "torch", "bitsandbytes"],
        Option("Library that rounds; the numbers are the same.", expert=True),
    ] = "auto"
    store: Stored = "same"
    device: Device = "auto"


LossOn = Literal["all", "letter_answer", "letter", "question_answer", "answer"]
"""What is learned: every token of question, options, letter and answer, as upstream; letter and
answer, after the question with its options; the letter alone, after the same; every token of
question and answer, without options; the answer, after the question without options."""
Readout = Literal["letter", "answer"]
Selection = Literal["per_v", "global", "nested"]
"""The best cell of each V, then the mean: the strongest attacker, the most optimistic; the cell
(learning rate, epoch) with the best mean over all V; chosen on one half of each V and scored on the
other, both ways: not optimistic."""
EpochRule = Literal["max", "final"]
"""Any epoch, as in the paper; the last one, as in the upstream fork."""
Policy = Literal["refuse", "drop", "keep"]

Selected = Annotated[Selection, Option("Rule that chooses the learning rate and epoch to report.")]
Rule = Annotated[
    EpochRule,
    Option("Choose among all epochs, or take the last.", flag="--epoch-rule", expert=True),
]
DATA = (
    "A folder of multiple-choice splits (split_0.jsonl …); or a forget set, split by author: demo, "
    "forget01, forget05, forget10, or a file of question, answer, perturbed_answer and group."
)


SPLITS = 2
"""Parts that rows are cut into, each held out once: V holds every author; limits need five."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Options that cut data into splits."""

    only: Annotated[
        tuple[str, ...],
        Option(
            "Use only these splits of the folder. Repeatable. [default: all]",
            metavar="SPLIT",
            expert=True,
        ),
    ] = ()
    rows_per_author: Annotated[
        int | None,
        Option(
            "Rows in turn that count as one author, where rows name none; TOFU: 20.",
            least=1,
            rare="set",
        ),
    ] = None
    n_splits: Annotated[
        int, Option("Splits that a forget set is cut into.", flag="--splits", least=2)
    ] = SPLITS
    seed: Annotated[int, Option("Seed of authors, choices and the data order.", least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class StudySettings(Names):
    """A run of `rtt run`: one study for each unlearned model."""

    section: ClassVar[Section] = "Training"
    names: Annotated[
        tuple[str, ...],
        Option(
            "Model under attack (A, B). Repeatable.",
            flag="--source",
            is_a="model",
        ),
    ]
    original: Annotated[
        str | None,
        Option(
            "Model before unlearning (0, C). [default: full, or demo/full]",
            flag="--full",
            is_a="model",
        ),
    ] = None
    control: Annotated[
        str | None,
        Option(
            "Model that never saw the facts (N). [default: retain, or demo/retain]",
            flag="--retain",
            is_a="model",
        ),
    ] = None
    no_control: Annotated[bool, Option("Do without the model that never saw the facts.")] = False
    data: Annotated[
        str | None,
        Option(f"{DATA} [default: forget10; demo for demo/… models]", metavar="NAME|PATH"),
    ] = None
    cut: Cut = Cut()
    defects: Annotated[
        Policy, Option("What happens to ambiguous, repeated or leaking items.", expert=True)
    ] = "refuse"
    v_runs: Annotated[int, Option("Splits held out in turn.", least=1)] = SPLITS
    """Upstream's number of V runs too."""
    hold_out: Annotated[
        tuple[str, ...],
        Option(
            "A split that is held out, named instead of drawn. Repeatable.",
            metavar="SPLIT",
            expert=True,
        ),
    ] = ()
    eval_seed: Annotated[
        int | None, Option("Seed that draws the splits held out. [default: --seed]", expert=True)
    ] = None
    readout: Annotated[
        Readout | None,
        Option(
            "Accuracy that selects an epoch and is reported; the other is logged. [default: "
            "letter; answer for "
            "models of the embedded family, or where letters are no single tokens]"
        ),
    ] = None
    lrs: Annotated[
        tuple[float, ...],
        Option(
            "Learning rate. Repeatable. [default: 2e-6 5e-6 1e-5 2e-5 5e-5; "
            "demo/…: 3e-4 1e-3 3e-3]",
            flag="--lr",
        ),
    ] = ()
    epochs: Annotated[int, Option("Training passes over T.", least=1)] = 6
    batch_size: Count = 4
    warmup: Annotated[
        int, Option("Steps of linear rise; constant after it.", least=0, expert=True)
    ] = 24
    """Upstream's."""
    weight_decay: WeightDecay = 0.0
    loss_on: Annotated[
        LossOn | None,
        Option(
            "Tokens with a loss; the last two train without options. [default: all; answer "
            "for demo/… models]"
        ),
    ] = None
    trainable: Trainable = ""
    match_readout: Annotated[
        bool,
        Option(
            "Before retraining, put exchanged rows of the readout back in the original's order.",
            expert=True,
        ),
    ] = False
    min_baseline: Annotated[
        float,
        Option("Gate: least accuracy of the original; 0 is off.", least=0, most=1, expert=True),
    ] = 0.3
    """Below it the facts were never known; upstream fork's default."""
    min_drop: Annotated[
        float,
        Option(
            "Gate: least drop by unlearning, in standard errors; 0 is off.", least=0, expert=True
        ),
    ] = 2.0
    """Below it recovery means nothing."""
    selection: Selected = "per_v"
    rule: Rule = "max"
    out: Annotated[
        Path | None,
        Option("Folder of log and summary. [default: experiments/out/rtt]", is_a="folder"),
    ] = None
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class SummarySettings:
    """A run of `rtt summarize`."""

    log: Path | None = None
    """`jobs.jsonl`, or its folder."""
    from_csv: Annotated[
        Place | None,
        Option("Folder evals/pipeline of the upstream fork, in place of LOG.", is_a="folder"),
    ] = None
    selection: Selected = "per_v"
    rule: Rule = "max"
    readout: Annotated[
        Readout | None,
        Option("Accuracy that is summarised. [default: the one that the study was run for]"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ValidationSettings(Names):
    """A run of `rtt validate`: the data, and the model whose tokenizer checks them."""

    data: str
    cut: Cut = Cut()
    model: Annotated[
        str | None, Option("Check the option letters with this model's tokenizer.", is_a="model")
    ] = None
    write: Annotated[
        Path | None, Option("Folder to write the splits to.", is_a="folder", typed=True)
    ] = None


Arm = Literal["T", "neutral", "retain", "syntax"]
ARMS: dict[Arm, str] = {
    "T": "other facts of the forget set, of other authors",
    "neutral": "text that has nothing to do with the forget set",
    "retain": "rows that were to be kept, drawn at random",
    "syntax": "rows that were to be kept, those worded most like the forget set",
}
FactReadout = Literal["said", "answer"]
"""Every token of the entity is the likeliest one, given the text before it; or of the choices the
true one is the likeliest, per token, as in `rtt`."""


@dataclass(frozen=True, kw_only=True)
class EffortSettings(Precision, Rows, Models):
    """A run of `effort`: how models are retrained, and how facts are read."""

    section: ClassVar[Section] = "Training"
    arms: Annotated[
        tuple[Arm, ...],
        Option("Kind of rows to train on. Repeatable. [default: T neutral]", flag="--arm"),
    ] = ()
    weights: Annotated[
        Literal["full"] | None, Option("Train all weights. [default, without --lora]")
    ] = None
    lora: Annotated[
        str | None,
        Option("Train low-rank adapters instead; the best rank is chosen.", metavar="RANK[,RANK]"),
    ] = None
    retain: Annotated[
        tuple[str, ...],
        Option(
            "Model that never saw the forget set; of several the mean counts. Repeatable. "
            "[default: retain]",
            is_a="model",
        ),
    ] = ()
    data: Annotated[
        str | None,
        Option(f"{DATA} [default: forget10; demo for demo/… models]", metavar="NAME|PATH"),
    ] = None
    retain_data: Annotated[
        str | None,
        Option(
            "Rows of the arms retain and syntax. [default: those of the set]",
            flag="--kept",
            old="--retain-data",
            metavar="NAME|FILE",
            needs=(Needs("arms", one_of=("retain", "syntax")),),
        ),
    ] = None
    neutral_data: Annotated[
        Place | None,
        Option(
            "Rows, or a .txt, of the arm neutral. [default: those of the set]",
            is_a="file",
            expert=True,
            needs=(Needs("arms", one_of=("neutral", ())),),
        ),
    ] = None
    rows_per_author: Annotated[
        int | None,
        Option(
            "Rows in turn that count as one author, where rows name none; TOFU: 20.",
            least=1,
            rare="set",
        ),
    ] = None
    splits: Annotated[
        int,
        Option("Parts of whole authors; each is held out once while the others are T.", least=2),
    ] = 2
    readout: Annotated[
        FactReadout | None,
        Option(
            "The model says the entity; or it prefers the answer. [default: said, if annotated]"
        ),
    ] = None
    defects: Annotated[
        Policy,
        Option(
            "What happens to ambiguous, repeated or leaking facts, and to entities that T and V "
            "share.",
            expert=True,
        ),
    ] = "refuse"
    steps: Annotated[
        int,
        Option("Optimiser steps of the longest attack; facts are read after 1, 2, 4 ….", least=1),
    ] = 256
    rows: Annotated[int, Option("Training rows per step.", least=1)] = 4
    """As in `rtt`."""
    lrs: Annotated[
        tuple[float, ...],
        Option(
            "Learning rate. Repeatable. [default: 2e-6 5e-6 1e-5 2e-5 5e-5; demo/…: 3e-4 1e-3; "
            "ten times that with --lora]",
            flag="--lr",
            above=0,
        ),
    ] = ()
    seed: Seed = 0
    """Of authors, rows, halves and the data order."""
    workers: Annotated[
        int | None,
        Option(
            "Processes at once. [default: a core each on a CPU, as memory allows; else 1]",
            least=1,
            expert=True,
        ),
    ] = None


Retains = Annotated[
    tuple[str, ...],
    Option(
        "Model that never saw the forget set: the control arm. Repeatable. [default: retain]",
        flag="--retain",
        is_a="model",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ControlArm(Replaces, ScoreFiles, Precision, Rows, Models):
    """Models, rows and machine of an attack that is read beside models that never knew."""

    retain: Retains = ()


@dataclass(frozen=True, kw_only=True)
class WorstSettings(ControlArm):
    """A run of `worst`."""

    tier: Annotated[
        Literal["cheap", "full"],
        Option(
            "Which attacks: those of seconds to minutes, or relearning and patched probes too.",
            needs=(Needs("attack", one_of=((),)),),
        ),
    ] = "cheap"
    attack: Annotated[tuple[str, ...], Option("Only this attack. Repeatable.")] = ()
    own: Own = ()


@dataclass(frozen=True, kw_only=True)
class SampleSettings(ControlArm):
    """A run of `sample`."""

    needs: ClassVar = {"full": (Needs("source", own=True),)}  # of others it is known

    n: Annotated[int, Option("Answers per fact and setting.", flag="--samples", least=2)] = 64
    k: Annotated[
        tuple[int, ...], Option("k of leak@k. Repeatable. [default: 1, 8, 64]", least=1)
    ] = ()
    temperature: Annotated[
        tuple[float, ...], Option("Sampling temperature. Repeatable. [default: 1]", above=0)
    ] = ()
    top_p: Annotated[
        tuple[float, ...],
        Option(
            "Nucleus: share of the distribution that is drawn from. Repeatable. [default: 1]",
            above=0,
            most=1,
        ),
    ] = ()
    think: Annotated[
        Think | None,
        Option(
            "Ask in the chat template, after an empty thought or with its thought opened. "
            "[default: as a plain question]"
        ),
    ] = None
    max_new_tokens: Annotated[int, Option("Longest answer.", least=1, expert=True)] = 48
    labels: Annotated[
        Place | None,
        Option(
            "JSONL of text, entity and label (0 or 1): corrects for the matcher's errors.",
            is_a="file",
            expert=True,
        ),
    ] = None
    seed: Seed = 0
