"""ADD and CLAMP: does one direction, or one component, bring the forgotten answers back?

Directions are estimated on other authors; CLAMP asks for necessity and for sufficiency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.directions.finding import Arm, Finding, Label, best_of, findings_of, with_costs
from lensaudit.directions.folds import Fold
from lensaudit.directions.models import Role, ThreeModels
from lensaudit.patching.interventions import Where
from lensaudit.steer.edits import Edits, adding, clamping
from lensaudit.steer.estimators import random_direction, scaled_to
from lensaudit.steer.settings import DirectionSettings

STRENGTHS = tuple(map(float, DirectionSettings.strengths.split(",")))
"""1 is the exact mean shift; the effect can be a sharp peak there (`steering.md` section 6)."""
LEAST = 1e-4
"""Length of a gap over that of the stream below which two models think the same at a layer."""


@dataclass(frozen=True)
class Search:
    """What is tried, and what decides."""

    layers: tuple[int, ...]
    strengths: tuple[float, ...] = STRENGTHS
    score: str = "em"
    n_random: int = DirectionSettings.n_random
    seed: int = 0
    kl_cap: float = DirectionSettings.kl_cap
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16)
    where: Where = "response"
    """Positions of ADD and CLAMP: from the last prefix token on, or `all`."""
    max_new_tokens: int = DirectionSettings.max_new_tokens
    """Of a free answer; ABLATE alone."""


def moved_layers(
    bench: ThreeModels, gaps: Float[Tensor, "layer d_model"], layers: Sequence[int]
) -> list[int]:
    """The layers at which two models think differently at all."""
    length = bench.streams["full", "forget"].norm(dim=-1).mean(0)
    return [layer for layer in layers if float(gaps[layer].norm()) > LEAST * float(length[layer])]


def randoms(
    direction: Float[Tensor, " d_model"], search: Search, fold: Fold
) -> list[tuple[int, Float[Tensor, " d_model"]]]:
    """Directions of equal length, and their seeds."""
    found = []
    for number in range(search.n_random):
        seed = search.seed * 10_000 + fold.number * 100 + number
        generator = torch.Generator().manual_seed(seed)
        drawn = random_direction(len(direction), generator=generator)
        found.append((seed, scaled_to(drawn, float(direction.norm()))))
    return found


def adding_arm(
    name: str,
    role: Role,
    layer: int,
    direction: Float[Tensor, " d_model"],
    strength: float,
    where: Where,
    seed: int | None = None,
) -> Arm:
    """A direction added after one block."""
    edits = Edits({("resid", layer): adding(direction, strength)}, where)
    return Arm(Label(name, role, layer, strength, seed=seed), edits, direction)


def restore(bench: ThreeModels, fold: Fold, search: Search) -> list[Finding]:
    """The grid on the dev authors, and the best of it with its controls on authors never read.

    Empty where the two models' streams are equal at every layer.
    """
    estimate = fold.rows(bench.encoded["forget"], fold.estimate)
    gaps = bench.gap("full", "unlearned", estimate)
    tried = _grid(bench, search, gaps, "unlearned")
    if not tried:
        return []
    dev = fold.rows(bench.encoded["forget"], fold.dev)
    grid = findings_of(bench, "add", "dev", fold.number, dev, tried)
    chosen = tried[best_of(grid, search.score)]
    arms = [
        chosen,
        *_curve(chosen, gaps, search),
        *_controls(bench, fold, search, chosen, gaps),
        *_never_trained(bench, fold, search, estimate, dev),
    ]
    rows = fold.rows(bench.encoded["forget"], fold.score)
    found = findings_of(bench, "add", "score", fold.number, rows, arms)
    return [*grid, *with_costs(bench, found, arms)]


def _grid(
    bench: ThreeModels, search: Search, gaps: Float[Tensor, "layer d_model"], role: Role
) -> list[Arm]:
    name = "direction" if role == "unlearned" else "never_trained"
    return [
        adding_arm(name, role, layer, gaps[layer], strength, search.where)
        for layer in moved_layers(bench, gaps, search.layers)
        for strength in search.strengths
    ]


def _curve(chosen: Arm, gaps: Float[Tensor, "layer d_model"], search: Search) -> list[Arm]:
    """The chosen layer at every strength: where the effect peaks."""
    layer = chosen.label.layer
    return [
        adding_arm("curve", "unlearned", layer, gaps[layer], strength, search.where)
        for strength in search.strengths
    ]


def _controls(
    bench: ThreeModels,
    fold: Fold,
    search: Search,
    chosen: Arm,
    gaps: Float[Tensor, "layer d_model"],
) -> list[Arm]:
    """Random and retain-derived directions of equal length, and the opposite on full."""
    layer, strength, where = chosen.label.layer, chosen.label.strength or 0.0, search.where
    arms = [
        adding_arm("random", "unlearned", layer, direction, strength, where, seed)
        for seed, direction in randoms(gaps[layer], search, fold)
    ]
    kept = bench.gap("full", "unlearned", range(len(bench.encoded["retain"])), "retain")[layer]
    if float(kept.norm()) > 0:
        equal = scaled_to(kept, float(gaps[layer].norm()))
        arms.append(adding_arm("retain_derived", "unlearned", layer, equal, strength, where))
    arms.append(adding_arm("reverse", "full", layer, gaps[layer], -strength, where))
    return arms


def _never_trained(
    bench: ThreeModels, fold: Fold, search: Search, estimate: Sequence[int], dev: Sequence[int]
) -> list[Arm]:
    """The same search on a model that cannot know the answers: what a direction alone gives."""
    tried = _grid(bench, search, bench.gap("full", "retain", estimate), "retain")
    if not tried:
        return []
    grid = findings_of(bench, "add", "dev", fold.number, dev, tried)
    return [tried[best_of(grid, search.score)]]


DOSES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""From the unlearned model's mean component to the full model's."""


def mediate(bench: ThreeModels, fold: Fold, search: Search) -> list[Finding]:
    """Clamp the unlearned model to the full one's component, and the other way round.

    Empty where the two models' streams are equal at every layer.
    """
    estimate = fold.rows(bench.encoded["forget"], fold.estimate)
    gaps = -bench.gap("full", "unlearned", estimate)
    layers = moved_layers(bench, gaps, search.layers)
    if not layers:
        return []
    dev = fold.rows(bench.encoded["forget"], fold.dev)
    tried = [
        clamping_arm(
            bench, "direction", "unlearned", layer, gaps[layer], estimate, where=search.where
        )
        for layer in layers
    ]
    grid = findings_of(bench, "clamp", "dev", fold.number, dev, tried)
    layer = tried[best_of(grid, search.score)].label.layer
    rows = fold.rows(bench.encoded["forget"], fold.score)
    arms = _arms(bench, fold, search, layer, gaps[layer], estimate)
    found = findings_of(bench, "clamp", "score", fold.number, rows, arms)
    return [*grid, *with_costs(bench, found, arms)]


def component(
    bench: ThreeModels,
    role: Role,
    layer: int,
    direction: Float[Tensor, " d_model"],
    rows: Sequence[int],
) -> float:
    """Mean component of a model's streams along a direction, over some forget examples."""
    unit = direction.double() / direction.double().norm()
    return float((bench.streams[role, "forget"][list(rows), layer].double() @ unit).mean())


def clamping_arm(
    bench: ThreeModels,
    name: str,
    role: Role,
    layer: int,
    direction: Float[Tensor, " d_model"],
    rows: Sequence[int],
    *,
    where: Where,
    like: Role = "full",
    dose: float = 1.0,
    seed: int | None = None,
) -> Arm:
    """The component clamped between the model's own mean (dose 0) and another's (dose 1)."""
    own = component(bench, role, layer, direction, rows)
    wanted = component(bench, like, layer, direction, rows)
    to = own + dose * (wanted - own)
    edits = Edits({("resid", layer): clamping(direction, to)}, where)
    return Arm(Label(name, role, layer, to, f"dose {dose:g}", seed), edits, direction)


def _arms(
    bench: ThreeModels,
    fold: Fold,
    search: Search,
    layer: int,
    direction: Float[Tensor, " d_model"],
    estimate: Sequence[int],
) -> list[Arm]:
    def arm(name: str, role: Role, along: Float[Tensor, " d_model"] = direction, **how) -> Arm:
        return clamping_arm(bench, name, role, layer, along, estimate, where=search.where, **how)

    arms = [arm("direction", "unlearned"), arm("sufficiency", "full", like="unlearned")]
    arms += [arm("dose", "unlearned", dose=dose) for dose in DOSES]
    arms.append(_per_example(bench, layer, direction, search.where))
    for seed, along in randoms(direction, search, fold):
        arms.append(arm("random", "unlearned", along, seed=seed))
        arms.append(arm("random_sufficiency", "full", along, like="unlearned", seed=seed))
    kept = bench.gap("unlearned", "full", range(len(bench.encoded["retain"])), "retain")[layer]
    if float(kept.norm()) > 0:
        arms.append(arm("retain_derived", "unlearned", kept))
    other = bench.gap("retain", "full", estimate)[layer]
    if float(other.norm()) > 0:
        arms.append(arm("never_trained", "retain", other))
    return arms


def _per_example(
    bench: ThreeModels, layer: int, direction: Float[Tensor, " d_model"], where: Where
) -> Arm:
    """Each example's own component in the full model: one number of the answer's, a bound."""
    unit = direction.double() / direction.double().norm()
    along = bench.streams["full", "forget"][:, layer].double() @ unit
    own = {e.idx: float(along[at]) for at, e in enumerate(bench.encoded["forget"])}
    edits = Edits({("resid", layer): clamping(direction, own)}, where)
    return Arm(Label("per_example", "unlearned", layer, variant="own"), edits, direction)
