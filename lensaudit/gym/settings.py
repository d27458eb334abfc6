"""What may be chosen of the gym: which mechanisms, of which pair, scored by whom."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lensaudit.settings import Anchors, Limit, Names, Option, Own, results_folder

Mechanisms = Annotated[
    tuple[str, ...],
    Option(
        "Only this mechanism; `gym ls` lists them. Repeatable. [default: all]", flag="--mechanism"
    ),
]
Gym = Annotated[
    Path | None,
    Option(
        "Folder of the planted models and their scores. [default: experiments/out/gym]",
        is_a="folder",
    ),
]


def gym_folder(place: Path | None) -> Path:
    """Where the models are that nobody named a folder for."""
    return results_folder() / "gym" if place is None else place


@dataclass(frozen=True, kw_only=True)
class PlantingPair(Anchors):
    """The pair that models are planted into, and its rows."""

    data: Annotated[
        str | None,
        Option(
            "Forget set with annotated rows: demo, or a JSON/JSONL file. [default: demo]",
            metavar="NAME|FILE",
        ),
    ] = None
    retain_data: Annotated[
        str | None,
        Option(
            "Rows to keep, question and answer.", flag="--kept", old="--retain-data", metavar="FILE"
        ),
    ] = None
    limit: Limit = None


@dataclass(frozen=True, kw_only=True)
class MakeSettings(PlantingPair):
    """Mechanisms and seeds that are planted."""

    mechanism: Mechanisms = ()
    seeds: Annotated[
        int,
        Option(
            "Number of seeds: both anchors and every mechanism are retrained for each.",
            least=1,
            most=100,
        ),
    ] = 1
    first_seed: Annotated[
        int, Option("First seed; 0 is the pair as it was given.", least=0, rare="set")
    ] = 0
    own: Own = ()
    out: Gym = None


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(Names):
    """Auditors that judge, and the models that are judged."""

    gym: Gym = None
    auditor: Annotated[
        tuple[str, ...], Option("Only this auditor. Repeatable. [default: the cheap ones]")
    ] = ()
    mechanism: Mechanisms = ()
    first_seed: Annotated[int, Option("First seed that is used.", least=0, rare="set")] = 0
    seeds: Annotated[
        int | None, Option("Use only so many seeds. [default: all there are]", least=1)
    ] = None
    own: Own = ()
    limit: Limit = None
    minutes: Annotated[float | None, Option("Stop after this long; run again to go on.")] = None


@dataclass(frozen=True, kw_only=True)
class GymTableSettings:
    """Files that are made of the scores."""

    gym: Gym = None
    limit: Limit = None
    picture: Annotated[
        Path | None,
        Option("Also draw mechanisms by auditors, as SVG or PNG.", is_a="file", typed=True),
    ] = None
    calibration: Annotated[
        Path | None,
        Option("Also write the nulls of the verdict, as JSON.", is_a="file", typed=True),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SubmitSettings(PlantingPair):
    """Against which gym a recipe is tried, and on which pair."""

    gym: Gym = None
    auditor: Annotated[
        tuple[str, ...], Option("Only this auditor. Repeatable. [default: all that the gym has]")
    ] = ()
