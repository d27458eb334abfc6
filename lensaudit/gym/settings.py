"""What may be chosen of the gym: which mechanisms, of which pair, scored by whom."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lensaudit.settings import RESULTS, Full, Limit, Option, Registry, Retain

Mechanisms = Annotated[
    tuple[str, ...],
    Option("Only this one; `gym ls` lists them. Repeatable. [default: all]", flag="--mechanism"),
]
Gym = Annotated[Path, Option("Folder of the planted models and their scores.", is_a="folder")]
Own = Annotated[
    tuple[Path, ...],
    Option(
        "Python file with own decorated functions; it is run. Repeatable.",
        flag="--from",
        is_a="file",
    ),
]
GYM = RESULTS / "gym"
SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class MakeSettings:
    """Which models are planted, and into what."""

    full: Full = None
    retain: Retain = None
    data: Annotated[
        str | None,
        Option(
            "Forget set with annotated rows: demo, or a JSON/JSONL file. [default: demo]",
            metavar="NAME|FILE",
        ),
    ] = None
    retain_data: Annotated[
        str | None, Option("Rows to keep, question and answer.", metavar="FILE")
    ] = None
    mechanism: Mechanisms = ()
    seeds: Annotated[int, Option("Retrain both anchors and every mechanism so often.", least=1)] = 1
    first_seed: Annotated[int, Option("0 is the pair as it was given.", least=0)] = 0
    own: Own = ()
    out: Annotated[Path, Option("Folder of the models.")] = GYM
    registry: Registry = None


@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """Who judges which models."""

    gym: Gym = GYM
    auditor: Annotated[
        tuple[str, ...], Option("Only this one. Repeatable. [default: the cheap ones]")
    ] = ()
    mechanism: Mechanisms = ()
    first_seed: Annotated[int, Option(least=0)] = 0
    seeds: Annotated[int | None, Option("So many seeds. [default: all there are]", least=1)] = None
    own: Own = ()
    limit: Limit = None
    minutes: Annotated[float | None, Option("Stop after this long; run again to go on.")] = None
    registry: Registry = None


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What is made of the scores."""

    gym: Gym = GYM
    limit: Limit = None
    picture: Annotated[
        Path | None, Option("Also draw mechanisms by auditors, as SVG or PNG.", is_a="file")
    ] = None
