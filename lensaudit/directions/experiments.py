"""ADD, CLAMP and ABLATE: does one direction, or one component, hide the answers?

Directions are estimated on other authors. ADD brings the shift back; CLAMP asks for necessity and
for sufficiency; ABLATE takes a direction away: does the refusal go, and do answers come back? Each
is a grid on the dev authors, and the best of it with its controls on authors never read; empty
where no layer that is searched holds such a direction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.directions.models import DirectionsAudit, Fold, Role, Said, log_odds
from lensaudit.steer.estimators import random_direction, scaled_to
from lensaudit.steer.generate import (
    NO_EDITS,
    Edits,
    Place,
    adding,
    clamping,
    removing,
)
from lensaudit.steer.settings import Kind

Stage = Literal["dev", "score"]
SCHEMA = "steer-interventions/1"


@dataclass(frozen=True)
class Arm:
    """What is done to a model, in words and numbers."""

    arm: str
    """`direction`, or the control: `random`, `retain_derived`, `never_trained`, `reverse` …"""
    role: Role
    """The model it is done to."""
    layer: int
    edits: Edits
    direction: Float[Tensor, " d_model"]
    strength: float | None = None
    variant: str = ""
    seed: int | None = None
    """Of a random direction."""


DONE = ("arm", "role", "layer", "strength", "variant", "seed")
"""What a finding says of its arm."""
READ = ("idx", "em", "logprob", "said", "speech")
"""What it says of each example."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An arm scored on some authors: one line of `interventions.jsonl`."""

    kind: Kind
    stage: Stage
    fold: int
    positions: str
    norm: float
    """Length of the direction."""
    cosine: float | None = None
    """With the whole shift from unlearned to full at the layer; None where there is none."""
    similarity: float | None = None
    """Mean cosine of the two models' streams at the layer, on retain examples."""
    kl_retain: float | None = None
    """KL(plain || intervened) on retain examples, nats per token."""
    utility_delta: float | None = None
    """Change of exact match on retain examples."""
    arm: str
    role: Role
    layer: int
    strength: float | None = None
    variant: str = ""
    seed: int | None = None
    idx: Sequence[int]
    em: Sequence[float]
    """Share of each example's entity tokens that are the likeliest."""
    logprob: Sequence[float]
    """Nats per token."""
    said: Sequence[float] = ()
    """1 where the entity stands in the greedy answer to the question alone; ABLATE only."""
    speech: Mapping[str, float | None] = field(default_factory=dict)
    """Shares of those answers: declined, correct, before and after; ABLATE only."""

    def values(self, score: str) -> Mapping[int, float]:
        """Idx -> `em`, `logprob` or `said`."""
        return dict(zip(self.idx, getattr(self, score), strict=False))

    def mean(self, score: str) -> float:
        """Mean over the finding's examples."""
        values = getattr(self, score)
        return sum(values) / len(values)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        done = {name: one for name, one in vars(self).items() if name not in READ}
        means = {score: self.mean(score) for score in ("em", "logprob")}
        read = {name: getattr(self, name) for name in READ}
        return {"schema": SCHEMA, **done, "n_items": len(self.idx), "score": means, **read}


def findings_of(
    bench: DirectionsAudit, kind: Kind, stage: Stage, fold: Fold, arms: Sequence[Arm]
) -> list[Finding]:
    """Every arm scored on the fold's authors of a stage; arms of one model share passes."""
    rows = bench.rows(fold.dev if stage == "dev" else fold.score)
    idx = [bench.encoded["forget"][row].idx for row in rows]
    found: dict[int, Finding] = {}
    roles: dict[Role, None] = dict.fromkeys(arm.role for arm in arms)
    for role in roles:
        own = [(at, arm) for at, arm in enumerate(arms) if arm.role == role]
        scores = bench.scored(role, rows, [arm.edits for _, arm in own])
        for place, (at, arm) in enumerate(own):
            found[at] = Finding(
                kind=kind,
                stage=stage,
                fold=fold.number,
                positions=arm.edits.where,
                norm=float(arm.direction.norm()),
                **{name: getattr(arm, name) for name in DONE},
                idx=idx,
                em=scores.em[place].tolist(),
                logprob=scores.logprob[place].tolist(),
            )
    return [found[at] for at in range(len(arms))]


def best_of(findings: Sequence[Finding], score: str) -> int:
    """Place of the highest mean score; of equal ones the higher log-prob, then the first."""
    means = [(one.mean(score), one.mean("logprob")) for one in findings]
    return means.index(max(means))


def tested(bench: DirectionsAudit, kind: Kind, fold: Fold, arms: Sequence[Arm]) -> list[Finding]:
    """The arms on authors never read; of the chosen direction what it does to retain answers."""
    return [
        _costed(bench, one, arm) if arm.arm in ("direction", "sufficiency") else one
        for one, arm in zip(findings_of(bench, kind, "score", fold, arms), arms, strict=True)
    ]


def _costed(bench: DirectionsAudit, finding: Finding, arm: Arm) -> Finding:
    rows = range(len(bench.encoded["retain"]))
    scores = bench.scored(arm.role, rows, [NO_EDITS, arm.edits], "retain")
    shift = bench.whole_gap("full", "unlearned", "forget")[arm.layer]
    cosine = torch.nn.functional.cosine_similarity(arm.direction.float(), shift, dim=0)
    return replace(
        finding,
        kl_retain=float(scores.kl[1].mean()),
        utility_delta=float(scores.em[1].mean() - scores.em[0].mean()),
        cosine=float(cosine) if bool(shift.norm() > 0) else None,
        similarity=bench.similarity(arm.layer),
    )


LEAST = 1e-4
"""Length of a gap over that of the stream below which two models think the same at a layer."""
DOSES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""From the unlearned model's mean component to the full model's."""
DEEPEST = 0.8
"""Share of the layers in which a direction is looked for; refusal_direction excludes the rest."""
FEWEST_DECLINED = 4
"""Declined questions on each side of the means from which there is an IDK direction."""
VARIANTS = ("layer", "centred", "everywhere")
KL_TRIES = 12
"""Candidates in order of score whose KL on retain examples is measured."""

Direction = Float[Tensor, " d_model"]
Basis = Float[Tensor, "_ d_model"]
Gaps = Float[Tensor, "layer d_model"]


def moved_layers(bench: DirectionsAudit, gaps: Gaps, layers: Sequence[int]) -> list[int]:
    """The layers at which two models think differently at all."""
    length = bench.streams["full", "forget"].norm(dim=-1).mean(0)
    return [layer for layer in layers if float(gaps[layer].norm()) > LEAST * float(length[layer])]


def randoms(
    bench: DirectionsAudit, direction: Direction, fold: Fold
) -> list[tuple[int, Direction]]:
    """Directions of equal length, and their seeds."""
    found = []
    for number in range(bench.settings.n_random):
        seed = bench.settings.seed * 10_000 + fold.number * 100 + number
        generator = torch.Generator().manual_seed(seed)
        drawn = random_direction(len(direction), generator=generator)
        found.append((seed, scaled_to(drawn, float(direction.norm()))))
    return found


def restore(bench: DirectionsAudit, fold: Fold) -> list[Finding]:
    """ADD: does the shift from the unlearned model to `full` bring the answers back?"""
    where, strengths = bench.settings.where, bench.strengths
    estimate = bench.rows(fold.estimate)
    gaps = bench.gap("full", "unlearned", estimate)

    def arm(
        name: str, role: Role, layer: int, direction: Direction, strength: float, seed=None
    ) -> Arm:
        edits = Edits({("resid", layer): adding(direction, strength)}, where)
        return Arm(name, role, layer, edits, direction, strength, seed=seed)

    def best(name: str, role: Role, shift: Gaps) -> tuple[list[Finding], list[Arm]]:
        """The grid on the dev authors, and the best of it."""
        tried = [
            arm(name, role, layer, shift[layer], strength)
            for layer in moved_layers(bench, shift, bench.layers)
            for strength in strengths
        ]
        grid = findings_of(bench, "add", "dev", fold, tried)
        return grid, [tried[best_of(grid, bench.settings.score)]] if tried else []

    grid, chosen = best("direction", "unlearned", gaps)
    if not chosen:
        return []
    layer, strength = chosen[0].layer, chosen[0].strength or 0.0
    arms = [
        *chosen,
        # where the effect peaks
        *(arm("curve", "unlearned", layer, gaps[layer], one) for one in strengths),
        *(
            arm("random", "unlearned", layer, direction, strength, seed)
            for seed, direction in randoms(bench, gaps[layer], fold)
        ),
    ]
    kept = bench.whole_gap("full", "unlearned", "retain")[layer]
    if float(kept.norm()) > 0:
        equal = scaled_to(kept, float(gaps[layer].norm()))
        arms.append(arm("retain_derived", "unlearned", layer, equal, strength))
    arms.append(arm("reverse", "full", layer, gaps[layer], -strength))
    # the same search on a model that cannot know the answers: what a direction alone gives
    arms += best("never_trained", "retain", bench.gap("full", "retain", estimate))[1]
    return [*grid, *tested(bench, "add", fold, arms)]


def mediate(bench: DirectionsAudit, fold: Fold) -> list[Finding]:
    """CLAMP: the unlearned model to the full one's component, and the other way round."""
    where = bench.settings.where
    estimate = bench.rows(fold.estimate)
    gaps = -bench.gap("full", "unlearned", estimate)

    arm = partial(clamping_arm, bench, estimate)
    tried = [
        arm("direction", "unlearned", layer, gaps[layer])
        for layer in moved_layers(bench, gaps, bench.layers)
    ]
    if not tried:
        return []
    grid = findings_of(bench, "clamp", "dev", fold, tried)
    layer = tried[best_of(grid, bench.settings.score)].layer
    direction = gaps[layer]
    # each example's own component in the full model: one number of the answer's, a bound
    unit = direction.double() / direction.double().norm()
    along = bench.streams["full", "forget"][:, layer].double() @ unit
    own = {e.idx: float(value) for e, value in zip(bench.encoded["forget"], along, strict=True)}
    bound = Edits({("resid", layer): clamping(direction, own)}, where)
    arms = [
        arm("direction", "unlearned", layer, direction),
        arm("sufficiency", "full", layer, direction, like="unlearned"),
        *(arm("dose", "unlearned", layer, direction, dose=dose) for dose in DOSES),
        Arm("per_example", "unlearned", layer, bound, direction, variant="own"),
    ]
    for seed, drawn in randoms(bench, direction, fold):
        arms.append(arm("random", "unlearned", layer, drawn, seed=seed))
        arms.append(arm("random_sufficiency", "full", layer, drawn, like="unlearned", seed=seed))
    kept = bench.whole_gap("unlearned", "full", "retain")[layer]
    if float(kept.norm()) > 0:
        arms.append(arm("retain_derived", "unlearned", layer, kept))
    other = bench.gap("retain", "full", estimate)[layer]
    if float(other.norm()) > 0:
        arms.append(arm("never_trained", "retain", layer, other))
    return [*grid, *tested(bench, "clamp", fold, arms)]


def clamping_arm(
    bench: DirectionsAudit,
    rows: Sequence[int],
    name: str,
    role: Role,
    layer: int,
    direction: Direction,
    *,
    like: Role = "full",
    dose: float = 1.0,
    seed: int | None = None,
) -> Arm:
    """The component clamped between the model's own mean (dose 0) and another's (dose 1)."""
    unit = direction.double() / direction.double().norm()
    own, wanted = (
        float((bench.streams[role, "forget"][list(rows), layer].double() @ unit).mean())
        for role in (role, like)
    )
    to = own + dose * (wanted - own)
    edits = Edits({("resid", layer): clamping(direction, to)}, bench.settings.where)
    return Arm(name, role, layer, edits, direction, to, f"dose {dose:g}", seed)


@dataclass(frozen=True)
class DirectionSource:
    """Where the ablated direction comes from, at every layer."""

    name: str
    """`idk`: declined questions minus answered ones, in the unlearned model; `cross`: unlearned
    minus full, at the prefix."""
    directions: Gaps
    centre: Gaps
    """Mean stream of the unlearned model on retain examples."""
    differences: Float[Tensor, "_ layer d_model"]
    """Per example, for subspaces."""
    openings: tuple[int, ...] = ()
    """First tokens of the answers that decline; of `idk` alone."""


def source_of(
    bench: DirectionsAudit, estimate: Sequence[int], forget: Said, retain: Said
) -> DirectionSource:
    """The IDK direction where enough of T is declined, else the cross-model one.

    Args:
        bench: models and streams.
        estimate: rows of T.
        forget: what the unlearned model says to the forget questions.
        retain: what it says to the retain questions.
    """
    positive = [row for row in estimate if forget.declines[row]]
    negative = [row for row, no in enumerate(retain.declines) if not no]
    openings: set[int] = set()
    if min(len(positive), len(negative)) >= FEWEST_DECLINED:
        middle = bench.asked["retain"][negative].double().mean(0)
        differences = bench.asked["forget"][positive].double() - middle
        name, centre = "idk", middle.float()
        openings = {forget.first[row] for row in positive} - {-1}
    else:
        own = bench.streams["unlearned", "forget"][list(estimate)]
        differences = own.double() - bench.streams["full", "forget"][list(estimate)].double()
        name, centre = "cross", bench.streams["unlearned", "retain"].mean(0)
    means = differences.mean(0).float()
    return DirectionSource(name, means, centre, differences.float(), tuple(sorted(openings)))


def ablation(basis: Basis, layer: int, variant: str, centre: Direction, n_layers: int) -> Edits:
    """Edits of one variant, at all positions.

    `layer` removes the components after one block; `centred` sets them to those of the centre;
    `everywhere` removes them from the embedding and from all that blocks write.
    """
    if variant != "everywhere":
        only = removing(basis, centre=centre if variant == "centred" else None)
        return Edits({("resid", layer): only})
    places: list[Place] = [("resid_pre", 0)]
    for at in range(n_layers):
        places.append(("attn", at))
        places.append(("mlp", at))
    return Edits(dict.fromkeys(places, removing(basis)))


def axes_of(differences: Basis, mean: Direction, rank: int) -> Basis:
    """Orthonormal axes of the largest differences, uncentred; the mean's own axis for rank 1."""
    if rank == 1:
        return (mean / mean.norm()).unsqueeze(0)
    return torch.linalg.svd(differences.double(), full_matrices=False).Vh[:rank].float()


def ablate(bench: DirectionsAudit, fold: Fold, source: DirectionSource) -> list[Finding]:
    """ABLATE: without the direction, is the refusal gone and are the answers there?"""

    def arm(
        name: str, role: Role, layer: int, variant: str, basis: Basis, seed: int | None = None
    ) -> Arm:
        edits = ablation(basis, layer, variant, source.centre[layer], bench.n_layers)
        return Arm(name, role, layer, edits, basis[0], variant=variant, seed=seed)

    def own_axes(layer: int, rank: int) -> Basis:
        return axes_of(source.differences[:, layer], source.directions[layer], rank)

    deep = [layer for layer in bench.layers if layer < DEEPEST * bench.n_layers]
    limit = min(len(source.differences), source.differences.shape[-1] // 2)
    ranks = {f"rank {one}": one for one in bench.ranks if 1 < one <= limit}
    tried = [
        arm("direction", "unlearned", layer, variant, own_axes(layer, rank))
        for layer in moved_layers(bench, source.directions, deep)
        for variant, rank in (dict.fromkeys(VARIANTS, 1) | ranks).items()
    ]
    if not tried:
        return []
    grid = _with_odds(bench, findings_of(bench, "ablate", "dev", fold, tried), tried, fold, source)
    chosen = choose(bench, tried, grid)
    layer, variant = chosen.layer, chosen.variant
    rank = ranks.get(variant, 1)
    arms = [chosen, arm("collateral", "full", layer, variant, own_axes(layer, rank))]
    for seed, direction in randoms(bench, source.directions[layer], fold):
        generator = torch.Generator().manual_seed(seed)
        axes = torch.randn(len(direction), rank, generator=generator, dtype=torch.float64)
        drawn = torch.linalg.qr(axes).Q.T.float().contiguous()
        arms.append(arm("random", "unlearned", layer, variant, drawn, seed))
    estimate = bench.rows(fold.estimate)
    other = bench.gap("retain", "full", estimate)[layer]
    if float(other.norm()) > 0:
        # the never-trained model with its own direction
        first, second = (
            bench.streams[role, "forget"][estimate, layer].double() for role in ("retain", "full")
        )
        axes = axes_of((first - second).float(), other, rank)
        arms.append(arm("never_trained", "retain", layer, variant, axes))
    found = tested(bench, "ablate", fold, arms)
    return [*grid, *(_heard(bench, *one, fold) for one in zip(found, arms, strict=True))]


def choose(bench: DirectionsAudit, arms: Sequence[Arm], grid: Sequence[Finding]) -> Arm:
    """The best on dev among those that change retain answers by at most the cap.

    Where the first tries all change more, the one that changes least, which its row shows.
    """

    def merit(at: int) -> tuple[float, float]:
        """Least IDK log-odds for an IDK direction, else the score."""
        odds = grid[at].speech.get("idk_log_odds")
        first = grid[at].mean(bench.settings.score) if odds is None else -odds
        return first, grid[at].mean("logprob")

    order = sorted(range(len(grid)), key=merit, reverse=True)[:KL_TRIES]
    rows = range(len(bench.encoded["retain"]))
    scores = bench.scored("unlearned", rows, [arms[at].edits for at in order], "retain")
    costs = scores.kl.mean(1).tolist()
    cap = bench.settings.kl_cap
    cheap = [at for at, cost in zip(order, costs, strict=True) if cost <= cap]
    return arms[cheap[0] if cheap else order[costs.index(min(costs))]]


def _with_odds(
    bench: DirectionsAudit,
    grid: Sequence[Finding],
    arms: Sequence[Arm],
    fold: Fold,
    source: DirectionSource,
) -> list[Finding]:
    """The dev findings with how likely a declining answer is, after the question alone."""
    if not source.openings:
        return list(grid)
    odds = log_odds(
        bench.models["unlearned"],
        [bench.questions["forget"][row] for row in bench.rows(fold.dev)],
        [arm.edits for arm in arms],
        source.openings,
        memory_bytes=bench.memory_bytes,
    ).mean(1)
    return [
        replace(one, speech={"idk_log_odds": float(value)})
        for one, value in zip(grid, odds, strict=True)
    ]


def _heard(bench: DirectionsAudit, finding: Finding, arm: Arm, fold: Fold) -> Finding:
    """With what the model says to the questions; an ablation often leaves inventions."""
    after = bench.said(arm.role, "forget", bench.rows(fold.score), arm.edits)
    spoke = [right for no, right in zip(after.declines, after.correct, strict=True) if not no]
    shares = {
        "idk_rate": _share(after.declines),
        "correct": _share(after.correct),
        "correct_given_answered": _share(spoke),
    }
    if arm.arm == "direction":
        kept = bench.said("unlearned", "retain", edits=arm.edits)
        shares["idk_rate_retain"] = _share(kept.declines)
    return replace(finding, said=list(map(float, after.correct)), speech=shares)


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
