"""What may be chosen of a recovery-effort curve: models, rows, grid."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from lensaudit.attacks.rtt.settings import DATA, Policy
from lensaudit.settings import Models, Option, Place, Precision, Rows, Section, Seed

Arm = Literal["T", "neutral", "retain", "syntax"]
ARMS: dict[Arm, str] = {
    "T": "other facts of the forget set, of other authors",
    "neutral": "text that has nothing to do with the forget set",
    "retain": "rows that were to be kept, drawn at random",
    "syntax": "rows that were to be kept, those worded most like the forget set",
}
Readout = Literal["said", "answer"]
"""Every token of the entity is the likeliest one, given the text before it; or of the choices the
true one is the likeliest, per token, as in `rtt`."""
DEFAULT_ARMS: tuple[Arm, ...] = ("T", "neutral")


@dataclass(frozen=True, kw_only=True)
class EffortSettings(Precision, Rows, Models):
    """How the attack is mounted, and on what it is read."""

    section: ClassVar[Section] = "Training"
    arms: Annotated[
        tuple[Arm, ...],
        Option("Rows that are trained on. Repeatable. [default: T neutral]", flag="--arm"),
    ] = ()
    weights: Annotated[
        Literal["full"] | None, Option("All weights move. [default, without --lora]")
    ] = None
    lora: Annotated[
        str | None,
        Option("Low-rank adapters move instead; the best rank is chosen.", metavar="RANK[,RANK]"),
    ] = None
    retain: Annotated[
        tuple[str, ...],
        Option(
            "Model that never saw the forget set. Repeatable: their mean. [default: retain]",
            is_a="model",
        ),
    ] = ()
    data: Annotated[
        str | None,
        Option(f"{DATA} [default: forget10; demo for demo/… models]", metavar="NAME|PATH"),
    ] = None
    retain_data: Annotated[
        str | None,
        Option("Rows of arms retain and syntax. [default: those of the set]", metavar="NAME|FILE"),
    ] = None
    neutral_data: Annotated[
        Place | None,
        Option(
            "Rows or a .txt of arm neutral. [default: those of the set]", is_a="file", expert=True
        ),
    ] = None
    rows_per_author: Annotated[
        int | None, Option("For rows that name no author; TOFU: 20.", least=1, expert=True)
    ] = None
    splits: Annotated[
        int, Option("Parts of whole authors; each is held out while T is the others.", least=2)
    ] = 2
    readout: Annotated[
        Readout | None,
        Option(
            "The model says the entity; or it prefers the answer. [default: said, if annotated]"
        ),
    ] = None
    defects: Annotated[
        Policy,
        Option("Ambiguous, repeated or leaking facts, entities shared by T and V.", expert=True),
    ] = "refuse"
    steps: Annotated[
        int, Option("Longest attack, optimiser steps; read after 1, 2, 4 ….", least=1)
    ] = 256
    rows: Annotated[int, Option("Rows per step.", least=1)] = 4
    """As in `rtt`."""
    lrs: Annotated[
        tuple[float, ...],
        Option(
            "Learning rate. Repeatable. [default: 2e-6 5e-6 1e-5 2e-5 5e-5; demo/…: 3e-4 1e-3; "
            "ten times that with --lora]",
            flag="--lr",
        ),
    ] = ()
    seed: Seed = 0
    """Of authors, rows, halves and the data order."""
    workers: Annotated[
        int | None,
        Option(
            "Processes. [default: a core each on a CPU, as memory allows; else 1]",
            least=1,
            expert=True,
        ),
    ] = None
