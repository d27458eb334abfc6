"""CLAMP: is one component of the stream what carries the unlearning? Necessity and sufficiency."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from lensaudit.directions.bench import Bench, Role
from lensaudit.directions.finding import Arm, Finding, Label, best_of, findings_of, with_costs
from lensaudit.directions.folds import Fold
from lensaudit.directions.restore import Search, moved_layers, randoms
from lensaudit.patching.interventions import Where
from lensaudit.steer.edits import Edits, clamping

DOSES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""From the unlearned model's mean component to the full model's."""


def mediate(bench: Bench, fold: Fold, search: Search) -> list[Finding]:
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
    bench: Bench, role: Role, layer: int, direction: Float[Tensor, " d_model"], rows: Sequence[int]
) -> float:
    """Mean component of a model's streams along a direction, over some forget examples."""
    unit = direction.double() / direction.double().norm()
    return float((bench.streams[role, "forget"][list(rows), layer].double() @ unit).mean())


def clamping_arm(
    bench: Bench,
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
    bench: Bench,
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
    bench: Bench, layer: int, direction: Float[Tensor, " d_model"], where: Where
) -> Arm:
    """Each example's own component in the full model: one number of the answer's, a bound."""
    unit = direction.double() / direction.double().norm()
    along = bench.streams["full", "forget"][:, layer].double() @ unit
    own = {e.idx: float(along[at]) for at, e in enumerate(bench.encoded["forget"])}
    edits = Edits({("resid", layer): clamping(direction, own)}, where)
    return Arm(Label("per_example", "unlearned", layer, variant="own"), edits, direction)
