"""The layer that classification scores choose for a trait, and the one that steering chooses.

Read from what `steer extract` and `steer sweep` left in the folders of traits: held-out scores of
every vector, and what steering at every layer did to the judged score. The tables are those of the
steering evaluation's document: layer profiles (peak minus mean), correlations of the scores, what
1-Drop says of random directions, and the three formulas that join the scores.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from lensaudit.errors import InputError
from lensaudit.groups import grouped
from lensaudit.kinds.steering import SWEPT, LayerScore, LayerSweep
from lensaudit.results.locate import Found
from lensaudit.results.manifest import signed_object
from lensaudit.scores.means import mean_known
from lensaudit.steer.correlations import pearson
from lensaudit.steer.trait import VECTORS, swept_by

Shape = Literal["flat", "between", "peaked"]
FLAT, PEAKED = 3.0, 9.0
"""Points of accuracy in percent: the document calls a peak minus mean up to 3 flat, from 9
peaked."""
PROXIES = ("accuracy", "auc", "effect_size", "overlap", "p")
FORMULAS = ("accuracy and effect", "AUC", "with 1-Drop")


@dataclass(frozen=True)
class LayerProfile:
    """A trait under one method: layers by classification and by steering."""

    trait: str
    method: str
    n_layers: int
    by_proxy: int | None
    """Layer of the highest held-out AUC, the lowest of equal ones; None: any, all are equal."""
    proxy_peak: float | None
    """Highest held-out accuracy minus its mean over layers, percent."""
    shape: Shape | None
    by_steering: int | None
    """Layer of the largest change in the direction of the polarity among coherent ones; None: not
    swept by these vectors, or nothing moved."""
    steering_peak: float | None
    """That change minus its mean over layers, points of 100."""
    best_by: Mapping[str, int | None]
    """Formula -> layer of its highest value."""


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of two columns over vectors."""

    first: str
    second: str
    r: float | None
    """None below three vectors, or where a column does not vary."""
    n: int


@dataclass(frozen=True)
class Drops:
    """1 - (accuracy on the rows a direction was estimated from - on those held out), percent."""

    method: str
    mean: float | None
    above: float | None
    """Share of vectors above 100 %: held-out rows told apart better than those seen."""
    n: int


@dataclass(frozen=True)
class LayerReport:
    """All tables, over the traits that lie side by side."""

    profiles: list[LayerProfile]
    proxies: list[Correlation]
    """Of the scores with each other, over learned vectors."""
    steering: list[Correlation]
    """Of the scores and formulas with what steering did."""
    drops: list[Drops]
    left_out: list[str]
    """Folders that could not be read and sweeps by other vectors, and why."""


@dataclass(frozen=True)
class _Point:
    """A vector: its scores, and what steering by it did."""

    trait: str
    method: str
    layer: int
    scores: Mapping[str, float]
    moved: float | None
    coherent: bool
    is_other: bool
    """Whether the sweep of its layer steered by another vector."""


def layer_report(folder: Path) -> LayerReport:
    """The report of a trait's folder and of those beside it that hold vectors.

    Args:
        folder: of `steer extract` and `steer sweep`.

    Raises:
        InputError: it holds no vectors with held-out scores; or files that were changed.
    """
    points, left = _points(folder), []
    for other in sorted(one.parent for one in folder.parent.glob("*/vectors")):
        if other.resolve() != folder.resolve():
            try:
                points += _points(other)
            except InputError as error:
                left.append(str(error))
    if not points:
        raise InputError(
            f"{folder}: no vector has held-out scores; run `lensaudit steer extract` again with "
            "more questions"
        )
    other = dict.fromkeys((one.trait, one.method) for one in points if one.is_other)
    left += [
        f"{trait}, {method}: what `steer sweep` found, by other vectors than these; run it again"
        for trait, method in other
    ]
    learned = [one for one in points if one.method != "random"]
    steered = [one for one in learned if one.moved is not None]
    kinds = dict.fromkeys((one.trait, one.method) for one in learned)
    joined = {
        id(one): value
        for kind in kinds
        for one, value in _joined([p for p in learned if (p.trait, p.method) == kind])
    }
    moved = [one.moved if one.moved is not None else math.nan for one in steered]
    return LayerReport(
        profiles=[
            _profile(*kind, [p for p in learned if (p.trait, p.method) == kind], joined)
            for kind in kinds
        ],
        proxies=[
            _correlation(a, b, _column(learned, a), _column(learned, b))
            for a, b in combinations(PROXIES, 2)
        ],
        steering=[
            *(_correlation(name, "steering", _column(steered, name), moved) for name in PROXIES),
            *(
                _correlation(name, "steering", [joined[id(one)][name] for one in steered], moved)
                for name in FORMULAS
            ),
        ],
        drops=_drops(points),
        left_out=left,
    )


def _points(folder: Path) -> list[_Point]:
    """The vectors of a trait that have held-out scores, with what a sweep did by them."""
    place, points = folder / SWEPT, []
    swept: LayerSweep | None = Found("steering", place).record if place.exists() else None
    hashes = swept_by(place) if swept else frozenset()
    for path in sorted((folder / VECTORS).glob("*.json")):
        said = signed_object(path)
        scores = {k: v for k, v in (said.get("scores") or {}).items() if v is not None}
        if not scores:
            continue
        layers = swept.layers if swept and swept.method == said["method"] else {}
        at_layer, is_known = layers.get(str(said["layer"])), said.get("hash") in hashes
        moved, coherent = _steered(swept, at_layer if is_known else None)
        points.append(
            _Point(
                trait=said["trait"],
                method=said["method"],
                layer=said["layer"],
                scores=scores,
                moved=moved,
                coherent=coherent,
                is_other=at_layer is not None and not is_known,
            )
        )
    return points


def _steered(swept: LayerSweep | None, one: LayerScore | None) -> tuple[float | None, bool]:
    """How far steering at a layer moved the score, the way it was to go; do its answers hold?"""
    if swept is None or one is None:
        return None, True
    base, held, least = swept.baseline_mean, one.coherence_mean, swept.coherence_threshold
    moved = None
    if one.mean is not None and base is not None:
        moved = (swept.polarity or 1) * (one.mean - base)
    return moved, held is None or least is None or held >= least


def _joined(points: Sequence[_Point]) -> Iterable[tuple[_Point, Mapping[str, float]]]:
    """What each formula gives; effects are measured in the largest of the trait and method.

    The document multiplies all of them by the polarity, which turns the order of layers round for
    traits that are to fall: here higher is better for every trait.
    """
    largest = max((abs(one.scores.get("effect_size", 0.0)) for one in points), default=0.0)
    for one in points:
        accuracy = one.scores.get("accuracy", math.nan)
        effect = abs(one.scores.get("effect_size", math.nan)) / largest if largest else math.nan
        kept = 1 - one.scores.get("drop", math.nan)
        values = ((accuracy + effect) / 2, one.scores.get("auc", math.nan))
        yield one, dict(zip(FORMULAS, (*values, (accuracy + effect + kept) / 3), strict=True))


def _profile(
    trait: str, method: str, points: Sequence[_Point], joined: Mapping[int, Mapping[str, float]]
) -> LayerProfile:
    peak = _above_mean([100 * one.scores["accuracy"] for one in points])
    swept = [one for one in points if one.moved is not None and one.coherent]
    moves = [one.moved or 0.0 for one in swept]
    acts = any(one > 0 for one in moves)
    return LayerProfile(
        trait=trait,
        method=method,
        n_layers=len(points),
        by_proxy=_best((one.layer, one.scores["auc"]) for one in points),
        proxy_peak=peak,
        shape=None if peak is None else _shape(peak),
        by_steering=_best((one.layer, one.moved or 0.0) for one in swept) if acts else None,
        steering_peak=_above_mean(moves) if acts else None,
        best_by={
            name: _best((one.layer, joined[id(one)][name]) for one in points) for name in FORMULAS
        },
    )


def _shape(peak: float) -> Shape:
    """What the document calls a profile.

    >>> [_shape(one) for one in (2.0, 5.0, 13.0)]
    ['flat', 'between', 'peaked']
    """
    return "flat" if peak <= FLAT else "peaked" if peak >= PEAKED else "between"


def _above_mean(values: Sequence[float]) -> float | None:
    mean = mean_known(values)
    return None if mean is None or len(values) < 2 else max(values) - mean


def _best(values: Iterable[tuple[int, float]]) -> int | None:
    """The layer of the highest value, the lowest of equal ones; None where all are equal."""
    known = sorted((-value, layer) for layer, value in values if not math.isnan(value))
    alike = bool(known) and known[0][0] == known[-1][0] and len(known) > 1
    return known[0][1] if known and not alike else None


def _column(points: Sequence[_Point], name: str) -> list[float]:
    return [one.scores.get(name, math.nan) for one in points]


def _correlation(
    first: str, second: str, one: Sequence[float], other: Sequence[float]
) -> Correlation:
    both = [pair for pair in zip(one, other, strict=True) if not any(map(math.isnan, pair))]
    return Correlation(
        first, second, pearson([a for a, _ in both], [b for _, b in both]), len(both)
    )


def _drops(points: Sequence[_Point]) -> list[Drops]:
    by_method = grouped(
        (one.method, 100 * (1 - one.scores["drop"])) for one in points if "drop" in one.scores
    )
    return [
        Drops(
            method,
            mean_known(values),
            mean_known(value > 100 + 1e-9 for value in values),
            len(values),
        )
        for method, values in by_method.items()
    ]
