"""What may be chosen of a worst case, and of sampling."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lensaudit.settings import Models, Option, Place, Precision, Rows, ScoreFiles, Seed

Retains = Annotated[
    tuple[str, ...],
    Option(
        "Model that never saw the forget set: the control arm. Repeatable. [default: retain]",
        flag="--retain",
        is_a="model",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ControlArm(ScoreFiles, Precision, Rows, Models):
    """Models, rows and machine of an attack that is read beside models that never knew."""

    retain: Retains = ()


@dataclass(frozen=True, kw_only=True)
class WorstSettings(ControlArm):
    """How facts are attacked."""

    tier: Annotated[
        Literal["cheap", "full"],
        Option("Seconds to minutes an attack, or relearning and patched probes too."),
    ] = "cheap"
    attack: Annotated[tuple[str, ...], Option("Only this attack. Repeatable.")] = ()


@dataclass(frozen=True, kw_only=True)
class SampleSettings(ControlArm):
    """How answers are sampled."""

    n: Annotated[int, Option("Per fact and setting.", flag="--samples", least=2)] = 64
    k: Annotated[tuple[int, ...], Option("Leak@k. Repeatable. [default: 1, 8, 64]", least=1)] = ()
    temperature: Annotated[tuple[float, ...], Option("Repeatable. [default: 1]", above=0)] = ()
    top_p: Annotated[
        tuple[float, ...],
        Option("Share of the distribution drawn from. Repeatable. [default: 1]", above=0, most=1),
    ] = ()
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
