"""Directions: vectors, steering by coefficient and layer, and what a direction hides."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lensaudit.kinds.directions import DirectionsRecord, Experiment
from lensaudit.kinds.steering import (
    ChosenSetting,
    CoefficientSweep,
    CrossedScore,
    LayerSweep,
    SteeredScore,
    TraitMatrix,
)
from lensaudit.screen.cells import brackets, number
from lensaudit.screen.tables import Part, table

if TYPE_CHECKING:
    from lensaudit.steer.profile import LayerReport

ARMS = {
    "direction": "direction",
    "sufficiency": "into full (sufficiency)",
    "per_example": "each example's own (bound)",
    "random": "random, equal length",
    "random_sufficiency": "random, into full",
    "retain_derived": "from retain questions",
    "never_trained": "never-trained model",
    "reverse": "reversed, on full",
    "collateral": "same edit of full",
}
TITLES = {"add": "ADD: restore", "ablate": "ABLATE: remove", "clamp": "CLAMP: mediate"}


def of_vectors(vectors: Sequence[Mapping[str, Any]], massive: Sequence[str] = ()) -> Iterator[Part]:
    """One row per vector: length, and how well it tells held-out answers apart.

    `massive` names those that are made of a few dimensions.
    """
    keys = ("accuracy", "auc", "effect_size", "overlap")
    yield table(
        "Held-out scores are proxies; steering is the test",
        ("method", "layer", "length", "of stream", "accuracy", "AUC", "effect", "overlap"),
        (
            (
                *(one["method"], str(one["layer"]), number(one["norm"])),
                number(one["norm"] / one["resid_norm"] if one["resid_norm"] else None, 2),
                *(number((one["scores"] or {}).get(key)) for key in keys),
            )
            for one in vectors
        ),
        left=("method",),
    )
    if massive:
        yield (
            f"{len(massive)} vectors have over half of their squared length in 3 dimensions "
            f"(first {massive[0]}): massive activations, not the trait."
        )


def of_coefficients(results: CoefficientSweep) -> Iterator[Part]:
    """Every coefficient, how the score follows it, and what the questions held back say."""
    coherence = {key: one.get("mean") for key, one in results.coherence.items()}
    yield table(
        f"{results.trait}, layer {results.layer}, {results.method}",
        ("coefficient", "ratio", "score", "95 % interval", "coherence", "scored"),
        ((key, *_steered(one, coherence.get(key))) for key, one in results.coefficients.items()),
    )
    yield (
        f"slope {number(results.slope, 1)} points per unit, Spearman "
        f"{number(results.spearman, 2)}, controllability (Pearson) "
        f"{number(results.controllability, 2)}, largest change "
        f"{number(results.max_delta_coherent, 1)} (coherent)"
    )
    yield _chosen("coefficient", results.chosen)


def of_layers(results: LayerSweep) -> Iterator[Part]:
    """Every layer, the baseline, and what the questions held back say."""
    yield table(
        f"{results.trait}, {results.method} at every layer",
        ("layer", "coefficient", "ratio", "score", "95 % interval", "coherence", "scored"),
        (
            (key, number(one.coefficient, 2), *_steered(one, one.coherence_mean))
            for key, one in results.layers.items()
        ),
    )
    yield f"baseline {number(results.baseline_mean, 1)}"
    yield _chosen("layer", results.chosen)


def of_traits(matrix: TraitMatrix) -> Iterator[Part]:
    """A row for each direction, a column for each trait that was asked, and what was moved."""
    asked = list(matrix.baseline)
    yield table(
        "change of the judged score, points of 100; * also beyond random directions",
        ("steered by", "coefficient", *asked),
        (
            (name, number(row.coefficient, 2), *(_crossed(row.judged[one]) for one in asked))
            for name, row in matrix.steered.items()
        ),
        left=("steered by",),
    )
    others = {
        f"{name} on {one}": score
        for name, row in matrix.steered.items()
        for one, score in row.judged.items()
        if one != name
    }
    moved = [name for name, score in others.items() if moves(score)]
    known = sum(score.delta_ci95 is not None for score in others.values())
    if known:
        yield (
            f"{len(moved)} of {known} pairs of two traits move: the 95 % intervals by question, "
            "against no steering and against random directions as long, both leave out 0"
            + (f" ({', '.join(moved)})" if moved else "")
        )
    if unknown := len(others) - known:
        yield f"{unknown} pairs have no interval: too few questions, or all alike"
    yield from _own(matrix)
    broken = [
        f"{name} on {one}"
        for name, row in matrix.steered.items()
        for one, score in row.judged.items()
        if score.n_total != 0 and (score.coherence_mean or 0.0) < matrix.how["coherent_from"]
    ]
    if broken:
        yield f"answers that do not hold together: {', '.join(broken)}"
    yield from (
        f"{name}: nothing is steered by it ({why})" for name, why in matrix.how["left_out"].items()
    )


def _own(matrix: TraitMatrix) -> Iterator[str]:
    """Each trait that a part of its questions is left out of, under its own direction."""
    for name, row in matrix.steered.items():
        n, n_asked = row.judged[name].n_total, matrix.baseline[name].n_total
        if n is not None and n_asked is not None and n < n_asked:
            yield (
                f"{name} on {name}: over {n} of {n_asked} answers, those to questions that its "
                "setting was not chosen on"
            )


def moves(score: CrossedScore) -> bool:
    """Whether both intervals leave out 0 on the same side: more is moved than by random ones."""
    ends = [one or (0.0, 0.0) for one in (score.delta_ci95, score.beyond_random_ci95)]
    return all(low > 0 for low, _ in ends) or all(high < 0 for _, high in ends)


def _crossed(one: CrossedScore) -> str:
    ends = brackets(vars(one), "delta_ci95") if one.delta_ci95 else ""
    return f"{number(one.delta, 1)}{'*' if moves(one) else ''} {ends}".strip()


def _steered(one: SteeredScore, coherence: float | None) -> tuple[str, ...]:
    """Cells of answers under one edit, from the ratio on."""
    return (
        number(one.ratio, 2),
        number(one.mean, 1),
        brackets(vars(one)),
        number(coherence, 1),
        f"{one.n}/{one.n_total}",
    )


def _chosen(what: str, chosen: ChosenSetting | None) -> str:
    if chosen is None:
        return f"No coherent {what} beats the baseline."
    return (
        f"Chosen on half of the questions: {what} "
        f"{chosen.setting if chosen.layer is None else chosen.layer}; "
        f"on the other half {number(chosen.test_mean, 1)} against "
        f"{number(chosen.test_baseline, 1)}, change {number(chosen.test_delta, 1)} "
        f"{brackets(vars(chosen), 'test_delta_ci95')}"
    )


def of_directions(record: DirectionsRecord) -> Iterator[Part]:
    """One table per experiment: recovery of the direction above its controls."""
    for kind, found in record.experiments.items():
        if not found.arms:
            yield f"{TITLES[kind]}: unscored, {found.unscored}."
            continue
        yield _arms(kind, found)
        yield found.reading or ""
        for warning in found.warnings:
            yield f"Warning: {warning}."
        yield ""


def _arms(kind: str, found: Experiment) -> Table:
    score, kl = found.score, number(found.kl_retain)
    read = {arm: found.arms.get(arm, {}).get(score) for arm in ARMS}
    return table(
        f"{TITLES[kind]} ({score}; KL on retain {kl} nats per token)",
        ("", "recovery", "95 % interval", "score", "IDK rate"),
        (
            (
                ARMS[arm],
                number(one.value) + ("" if one.sd is None else f" ± {one.sd:.3f}"),
                brackets(one.limits(), digits=2),
                number(one.mean),
                number(found.speech.get(arm, {}).get("idk_rate"), 2),
            )
            for arm, one in read.items()
            if one is not None
        ),
        left=("",),
    )


def of_report(report: "LayerReport") -> Iterator[Part]:
    """Layers by classification and by steering, and what the scores have in common."""
    yield table(
        "best layer by held-out scores and by steering; peak: highest minus mean over layers",
        ("trait", "method", "by AUC", "peak, %", "profile", "by steering", "peak, points"),
        (
            (
                *(one.trait, one.method, _layer(one.by_proxy), number(one.proxy_peak, 1)),
                *(one.shape or "–", _layer(one.by_steering), number(one.steering_peak, 1)),
            )
            for one in report.profiles
        ),
        left=("trait", "method", "profile"),
    )
    yield table(
        "Pearson's r over vectors",
        ("", "with", "r", "vectors"),
        (
            (one.first, one.second, number(one.r, 2), str(one.n))
            for one in (*report.proxies, *report.steering)
        ),
        left=("", "with"),
    )
    yield table(
        "1-Drop, %: what learns nothing loses nothing on held-out rows",
        ("method", "mean", "share above 100 %", "vectors"),
        (
            (one.method, number(one.mean, 1), number(one.above, 2), str(one.n))
            for one in report.drops
        ),
        left=("method",),
    )
    formulas = list(report.profiles[0].best_by) if report.profiles else []
    yield table(
        "layer that each formula chooses",
        ("trait", "method", *formulas),
        (
            (one.trait, one.method, *(_layer(one.best_by[name]) for name in formulas))
            for one in report.profiles
        ),
        left=("trait", "method"),
    )
    yield from (f"left out: {line}" for line in report.left_out)


def _layer(layer: int | None) -> str:
    return "–" if layer is None else str(layer)
