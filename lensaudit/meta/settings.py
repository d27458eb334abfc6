"""What may be chosen when metrics are judged: models, attack, filter, measurement."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.settings import AnswerGroups, Needs, Option

_INSIDE = Needs("metrics", reads=("patched",))
Attack = Literal["quantize", "relearn"]
Form = Literal["symmetric", "recovery", "as_written"]
Filter = Literal["both", "utility", "none"]

Metrics = Annotated[
    tuple[str, ...],
    Option(
        "Only this metric: uds, es … or a name of lensaudit eval. Repeatable. [default: all 22]",
        flag="--metric",
        metavar="NAME",
    ),
]
NoFluency = Annotated[bool, Option("Utility is model utility alone, where no fluency was rated.")]
Run = Annotated[
    bool, Option("Measure what --results lack. Without results everything is measured.", typed=True)
]
Out = Annotated[Path, Option("Result folder.")]
OUT = Path("experiments/out/meta")
MEASURING = AnswerGroups()
"""Conditions under which models without results are measured."""


@dataclass(frozen=True, kw_only=True)
class FaithfulnessSettings:
    """Two pools, and the values that metrics have on them."""

    needs: ClassVar = {"exclude": (_INSIDE,)}

    knows: Annotated[
        tuple[str, ...],
        Option(
            "Models that know, comma-separated or repeated; published: the 30 of TOFU.",
            flag="--pool-knows",
            metavar="NAMES",
        ),
    ]
    forgot: Annotated[
        tuple[str, ...],
        Option(
            "Models that never knew; published: the 30 of TOFU.",
            flag="--pool-forgot",
            metavar="NAMES",
        ),
    ]
    metrics: Metrics = ()
    results: Annotated[
        tuple[Path, ...],
        Option(
            "Folder or file of values; repeatable. Without: every model is measured.",
            metavar="PATH",
        ),
    ] = ()
    measuring: AnswerGroups = MEASURING
    run: Run = False
    out: Out = OUT

    @property
    def measures(self) -> bool:
        """Whether models are measured; else names are those of the results."""
        return self.run or not self.results


@dataclass(frozen=True, kw_only=True)
class RobustnessSettings:
    """Models, an attack, and which of the models a metric is judged on."""

    needs: ClassVar = {
        "no_fluency": (Needs("by", none_of=("none",)),),
        "exclude": (_INSIDE,),
    }

    models: Annotated[
        tuple[str, ...],
        Option(
            "Unlearned models, comma-separated or repeated; results: all in --before.",
            flag="--source",
            metavar="NAMES",
        ),
    ]
    attack: Annotated[Attack, Option("Attack that metrics should survive.")]
    thresholds: Annotated[
        str | None,
        Option(
            "Thresholds of the model filter: a faithfulness.json, or `published`.",
            flag="--faithfulness",
            metavar="FILE|published",
        ),
    ] = None
    form: Annotated[
        Form, Option("Formula: the paper's; one-sided, before/after; one-sided, after/before.")
    ] = "symmetric"
    by: Annotated[
        Filter,
        Option(
            "Which models are used: those above utility 0.8 and past the threshold.",
            flag="--filter",
        ),
    ] = "both"
    metrics: Metrics = ()
    before: Annotated[
        tuple[Path, ...], Option("Results before the attack. Repeatable.", metavar="PATH")
    ] = ()
    after: Annotated[
        tuple[Path, ...],
        Option("Results after the attack, under the same model names. Repeatable.", metavar="PATH"),
    ] = ()
    measuring: AnswerGroups = MEASURING
    run: Run = False
    no_fluency: NoFluency = False
    relearn_data: Annotated[
        str | None,
        Option(
            "Rows that are relearned. [default: --data, demo or forget10]",
            metavar="NAME|FILE",
            rare="set",
            needs=(Needs("attack", one_of=("relearn",)),),
        ),
    ] = None
    relearn_lr: Annotated[
        float | None,
        Option(
            "Learning rate of relearning. [default: 2e-5; 1e-3 for --data demo]",
            above=0,
            rare="set",
            needs=(Needs("attack", one_of=("relearn",)),),
        ),
    ] = None
    keep: Annotated[bool, Option("Keep attacked checkpoints.")] = False
    out: Out = OUT

    @property
    def measures(self) -> bool:
        """Whether models are measured; else names are those of the results."""
        return self.run or not (self.before and self.after)


@dataclass(frozen=True, kw_only=True)
class AggregateSettings:
    """A run of `meta aggregate`: the results, and the anchors they are compared with."""

    results: tuple[Path, ...]
    full: Annotated[
        str | None, Option("Model whose utility is 1. [default: full, or demo/full]")
    ] = None
    retain: Annotated[
        str | None, Option("Model whose attack AUCs s_MIA is computed with. [default: retain]")
    ] = None
    no_fluency: NoFluency = False
    out: Annotated[Path | None, Option("Folder for aggregate.json and aggregate.csv.")] = None


@dataclass(frozen=True, kw_only=True)
class MetaTableSettings:
    """Judgements that are put into one table."""

    results: tuple[Path, ...]
    out: Annotated[Path | None, Option("Folder for meta_table.json and meta_table.csv.")] = None
