"""How one fact's depth comes about: S1, S2 and UDS with the numbers of a run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lensaudit.errors import InputError, shortened
from lensaudit.results.kinds.patch import PatchRun, Texts
from lensaudit.results.locate import locate
from lensaudit.screen.cells import number
from lensaudit.screen.tables import Part, table


@dataclass(frozen=True)
class LayerOfFact:
    """What one layer adds to the score of a fact."""

    layer: int
    s1: float
    """Lost with the stream of `retain`, nats per token."""
    s2: float | None
    """Lost with that of the source; None where it was not computed."""
    encodes: bool
    """S1 is above tau: the layer counts."""
    erasure: float | None
    """S2 / S1, cut to 0 and 1; None where the layer does not count."""


@dataclass(frozen=True)
class Explained:
    """The chain from one fact's log-probabilities to its score."""

    source: str
    fact: Texts
    baseline: float
    """Of the entity in `full` as it is, nats per token."""
    tau: float
    layers: tuple[LayerOfFact, ...]
    erased: float
    """Sum of S1 times erasure, over the layers that count."""
    encoded: float
    """Sum of S1 over them."""
    score: float | None
    """As the run has it."""
    unscored: str | None


def explain(place: Path, idx: int) -> Explained:
    """The chain of one fact of a run of `patch --score uds`.

    Raises:
        InputError: no such run or fact, several runs, or another score.
    """
    found, _ = locate([place])
    runs = [one for one in found if one.kind == "patch"]
    depth = [one for one in runs if one.record.score == "uds"]
    if len(depth) != 1:
        named = ", ".join(str(one.path.parent) for one in depth)
        what = f"{len(depth)} runs ({named})" if depth else "no run"
        raise InputError(
            f"{place}: holds {what} of `lensaudit patch --score uds`, wanted one; name its folder"
        )
    run: PatchRun = depth[0].record
    known = [one.idx for one in run.examples]
    if idx not in known:
        said = shortened(list(map(str, known)), 12, ", ")
        raise InputError(f"{place}: no fact has idx {idx}; there are {said}")
    at = known.index(idx)
    tau = float(run.summary["tau"])
    layers = tuple(_layers(run, at, tau))
    counted = [one for one in layers if one.erasure is not None]
    score = float(run.scores[at])
    return Explained(
        run.source,
        run.examples[at],
        float(run.baselines[at]),
        tau,
        layers,
        math.fsum(one.s1 * one.erasure for one in counted if one.erasure is not None),
        math.fsum(one.s1 for one in counted),
        score if math.isfinite(score) else None,
        run.rows[at].get("unscored"),
    )


def _layers(run: PatchRun, at: int, tau: float) -> Iterator[LayerOfFact]:
    for layer, s1, s2 in zip(run.layers, run.s1[at].tolist(), run.s2[at].tolist(), strict=True):
        counts = s1 > tau and math.isfinite(s2)
        ratio = min(max(s2 / s1, 0.0), 1.0) if counts else None
        yield LayerOfFact(layer, s1, s2 if math.isfinite(s2) else None, s1 > tau, ratio)


def steps(found: Explained) -> Sequence[Part]:
    """The three steps, with a table of the layers between them."""
    fact, shown = found.fact, [one for one in found.layers if one.encodes]
    largest = max(found.layers, key=lambda one: one.s1)
    asked = [
        f"{label}: {text}"
        for label, text in (
            ("question", fact.question),
            ("answer begins", fact.prefix),
            ("scored", fact.entity),
        )
        if text
    ]
    first = (
        f"1. S1, where the fact is. full gives {fact.entity!r} {found.baseline:.3f} nats a token. "
        "One layer after the other, its stream there is replaced by that of retain, which never "
        f"saw the fact. What the entity loses is S1: {largest.s1:.3f} nats at layer "
        f"{largest.layer}, the most. Layers where it is above tau {found.tau:g} encode the fact: "
        f"{len(shown)} of {len(found.layers)}."
    )
    second = (
        f"2. S2, what is gone from {found.source}. The same with its stream. A layer that loses "
        "as much as with retain's holds nothing of the fact (erasure 1); one that loses nothing "
        "holds all of it (0): erasure = S2 / S1, cut to 0 and 1."
    )
    rows = table(
        "nats per token",
        ("layer", "S1", "S2", "erasure", "S1 x erasure"),
        (
            (
                str(one.layer),
                number(one.s1),
                number(one.s2),
                "not encoded" if not one.encodes else number(one.erasure),
                number(None if one.erasure is None else one.s1 * one.erasure),
            )
            for one in found.layers
        ),
    )
    if found.score is None:
        third = f"3. UDS is not scored: {found.unscored or 'no layer encodes the fact'}."
    else:
        third = (
            "3. UDS, how deep it is erased. The mean of erasure, each layer weighted by S1: "
            f"{found.erased:.3f} / {found.encoded:.3f} = {found.score:.3f}. 0: all there; 1: as in "
            "a model that never saw it."
        )
    return [*asked, first, second, rows, third]
