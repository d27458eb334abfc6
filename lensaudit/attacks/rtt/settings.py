"""What may be chosen of a retraining study: models, data, grid, gates, and how it is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.settings import Names, Option, Processor, Section
from lensaudit.unlearn.settings import Rows, Trainable, WeightDecay

LossOn = Literal["all", "letter_answer", "letter", "question_answer", "answer"]
Readout = Literal["letter", "answer"]
Selection = Literal["per_v", "global", "nested"]
"""The best cell of each V, then the mean: the strongest attacker, the most optimistic; the cell
with the best mean over all V, as upstream does; chosen on one half of each V and scored on the
other, both ways: not optimistic."""
EpochRule = Literal["max", "final"]
"""Any epoch, as in the paper; the last one, as in the upstream fork."""
Policy = Literal["refuse", "drop", "keep"]

Selected = Annotated[Selection, Option("Which learning rate and epoch speak for a sweep.")]
Rule = Annotated[
    EpochRule, Option("Any epoch may speak, or the last only.", flag="--epoch-rule", expert=True)
]
DATA = (
    "A folder of multiple-choice splits (split_0.jsonl …); or a forget set, split by author: demo, "
    "forget01, forget05, forget10, or a file of question, answer, perturbed_answer and group."
)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How data become splits."""

    only: Annotated[
        tuple[str, ...],
        Option(
            "Splits of a folder that take part. Repeatable. [default: all]",
            metavar="SPLIT",
            expert=True,
        ),
    ] = ()
    rows_per_author: Annotated[
        int | None, Option("For rows that name no author; TOFU: 20.", least=1, expert=True)
    ] = None
    n_splits: Annotated[
        int, Option("Splits that a forget set is cut into.", flag="--splits", least=2)
    ] = 5
    seed: Annotated[int, Option("Of authors, choices and the data order.", least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class StudySettings(Processor, Names):
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
            "Before unlearning (0, C). [default: full, or demo/full]",
            flag="--full",
            is_a="model",
        ),
    ] = None
    control: Annotated[
        str | None,
        Option(
            "Never saw the facts (N). [default: retain, or demo/retain]",
            flag="--retain",
            is_a="model",
        ),
    ] = None
    no_control: Annotated[bool, Option("Do without the floor.")] = False
    data: Annotated[
        str | None,
        Option(f"{DATA} [default: forget10; demo for demo/… models]", metavar="NAME|PATH"),
    ] = None
    cut: Cut = Cut()
    defects: Annotated[Policy, Option("Ambiguous, repeated or leaking items.", expert=True)] = (
        "refuse"
    )
    v_runs: Annotated[int, Option("Splits held out in turn.", least=1)] = 2
    """Upstream's number of V runs."""
    hold_out: Annotated[
        tuple[str, ...], Option("Name them instead. Repeatable.", metavar="SPLIT", expert=True)
    ] = ()
    eval_seed: Annotated[int, Option("Draws the splits held out.", expert=True)] = 0
    readout: Annotated[
        Readout | None,
        Option(
            "What selects and is reported; the other is logged. [default: letter; answer for "
            "demo/… models]"
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
    epochs: Rows = 6
    batch_size: Rows = 4
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
            "Before retraining put exchanged rows of the readout back, known by the original's.",
            expert=True,
        ),
    ] = False
    min_baseline: Annotated[
        float, Option("Gate: accuracy of the original; 0 is off.", least=0, most=1, expert=True)
    ] = 0.3
    """Below it the facts were never known; upstream fork's default."""
    min_drop: Annotated[
        float, Option("Gate: drop by unlearning, standard errors; 0 is off.", least=0, expert=True)
    ] = 2.0
    selection: Selected = "per_v"
    rule: Rule = "max"
    out: Annotated[
        Path | None,
        Option("Folder of log and summary. [default: experiments/out/rtt]", is_a="folder"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SummarySettings:
    """How a log is summarised again."""

    log: Path
    """`jobs.jsonl`, or its folder."""
    selection: Selected = "per_v"
    rule: Rule = "max"
    readout: Annotated[Readout | None, Option("[default: what the study was run for]")] = None


@dataclass(frozen=True, kw_only=True)
class ValidationSettings(Names):
    """Which data are looked at, and with whose tokenizer."""

    data: str
    cut: Cut = Cut()
    model: Annotated[
        str | None, Option("Check the option letters against its tokenizer.", is_a="model")
    ] = None
    write: Annotated[
        Path | None, Option("Folder to write the splits to.", is_a="folder", typed=True)
    ] = None
