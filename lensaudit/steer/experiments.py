"""ADD, CLAMP and ABLATE: does one direction, or one component, hide the answers?

Directions are estimated on other authors. ADD brings the shift back; CLAMP asks for necessity and
for sufficiency; ABLATE takes a direction away: does the refusal go, and do answers come back? Each
is a grid on the dev authors, and the best of it with its controls on authors never read; empty
where no layer that is searched holds such a direction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.groups import batched, grouped
from lensaudit.models.bridge import Component
from lensaudit.scores.means import mean_known
from lensaudit.steer.directions import DirectionsAudit, Fold, Role, log_odds
from lensaudit.steer.estimators import controls_of, scaled_to
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


HELD = ("edits", "direction")
"""What a line does not hold of a finding."""
READ = ("idx", "em", "logprob", "said", "speech")
"""What it says of each example."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is done to a model, and what comes of it on some authors' examples.

    A line of `interventions.jsonl`, once it was scored.
    """

    kind: Kind
    stage: Stage = "dev"
    fold: int = -1
    positions: str = ""
    norm: float = 0.0
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
    """`direction`, or the control: `random`, `retain_derived`, `never_trained`, `reverse` …"""
    role: Role
    """The model it is done to."""
    layer: int
    strength: float | None = None
    variant: str = ""
    seed: int | None = None
    """Of a random direction."""
    edits: Edits = NO_EDITS
    direction: Float[Tensor, " d_model"] | None = None
    idx: Sequence[int] = ()
    em: Sequence[float] = ()
    """Share of each example's entity tokens that are the likeliest."""
    logprob: Sequence[float] = ()
    """Nats per token."""
    said: Sequence[float] = ()
    """1 where the entity is in the greedy answer to the question alone; ABLATE only."""
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
        """The finding as JSON."""
        done = {name: one for name, one in vars(self).items() if name not in (*READ, *HELD)}
        means = {score: self.mean(score) for score in ("em", "logprob")}
        read = {name: getattr(self, name) for name in READ}
        return {"schema": SCHEMA, **done, "n_items": len(self.idx), "score": means, **read}


def findings_of(
    bench: DirectionsAudit, stage: Stage, fold: Fold, arms: Sequence[Finding]
) -> list[Finding]:
    """Every arm scored on the fold's authors of a stage; arms of one model share passes."""
    rows = bench.rows(fold.dev if stage == "dev" else fold.score)
    idx = [bench.encoded["forget"][row].idx for row in rows]
    found: dict[int, Finding] = {}
    for role, own in grouped((arm.role, at) for at, arm in enumerate(arms)).items():
        scores = bench.scored(role, rows, [arms[at].edits for at in own])
        for place, at in enumerate(own):
            found[at] = replace(
                arms[at],
                stage=stage,
                fold=fold.number,
                idx=idx,
                em=scores.em[place].tolist(),
                logprob=scores.logprob[place].tolist(),
            )
    return [found[at] for at in range(len(arms))]


def best_of(findings: Sequence[Finding], score: str) -> Finding:
    """The one with the highest mean score; of equal ones the higher log-prob, then the first."""
    return max(findings, key=lambda one: (one.mean(score), one.mean("logprob")))


def tested(bench: DirectionsAudit, fold: Fold, arms: Sequence[Finding]) -> list[Finding]:
    """The arms on authors never read; of the chosen direction what it does to retain answers.

    A direction without a length, of models that think the same, is none. Those of the never-trained
    model are tested last, alone: beside `full` one large model is in memory.
    """
    found = findings_of(bench, "score", fold, [one for one in arms if one.norm > 0])
    costed = ("direction", "sufficiency")
    return [_costed(bench, one) if one.arm in costed else one for one in found]


def _costed(bench: DirectionsAudit, one: Finding) -> Finding:
    assert one.direction is not None
    rows = range(len(bench.encoded["retain"]))
    scores = bench.scored(one.role, rows, [NO_EDITS, one.edits], "retain")
    shift = bench.gap("full", "unlearned")[one.layer]
    cosine = torch.nn.functional.cosine_similarity(one.direction.float(), shift, dim=0)
    return replace(
        one,
        kl_retain=float(scores.kl[1].mean()),
        utility_delta=float(scores.em[1].mean() - scores.em[0].mean()),
        cosine=float(cosine) if bool(shift.norm() > 0) else None,
        similarity=bench.similarity(one.layer),
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
"""Candidates in order of score whose KL on retain examples is measured at once."""

Direction = Float[Tensor, " d_model"]
Basis = Float[Tensor, "_ d_model"]
Gaps = Float[Tensor, "layer d_model"]


def moved_layers(bench: DirectionsAudit, gaps: Gaps, layers: Sequence[int]) -> list[int]:
    """The layers at which two models think differently at all."""
    length = bench.streams["full", "forget"].norm(dim=-1).mean(0)
    return [layer for layer in layers if float(gaps[layer].norm()) > LEAST * float(length[layer])]


def randoms(
    bench: DirectionsAudit, direction: Direction, fold: Fold
) -> Iterator[tuple[int, Direction]]:
    """Directions of equal length, and their seeds."""
    first = bench.settings.seed * 10_000 + fold.number * 100
    return controls_of(direction, range(first, first + bench.settings.n_random))


def arm_of(
    kind: Kind, arm: str, role: Role, layer: int, edits: Edits, direction: Direction, **more: Any
) -> Finding:
    """What is done, before it is scored."""
    return Finding(
        kind=kind,
        arm=arm,
        role=role,
        layer=layer,
        positions=edits.where,
        edits=edits,
        direction=direction,
        norm=float(direction.norm()),
        **more,
    )


def restore(bench: DirectionsAudit, fold: Fold) -> list[Finding]:
    """ADD: does the shift from the unlearned model to `full` bring the answers back?"""
    where, strengths = bench.settings.where, bench.strengths
    estimate = bench.rows(fold.estimate)
    gaps = bench.gap("full", "unlearned", estimate)

    def arm(
        name: str, role: Role, layer: int, direction: Direction, strength: float, seed=None
    ) -> Finding:
        edits = Edits({("resid", layer): adding(direction, strength)}, where)
        return arm_of("add", name, role, layer, edits, direction, strength=strength, seed=seed)

    def searched(name: str, role: Role, shift: Gaps) -> list[Finding]:
        """The grid on the dev authors."""
        layers = moved_layers(bench, shift, bench.layers)
        tried = [arm(name, role, at, shift[at], one) for at in layers for one in strengths]
        return findings_of(bench, "dev", fold, tried)

    grid = searched("direction", "unlearned", gaps)
    if not grid:
        return []
    chosen = best_of(grid, bench.settings.score)
    layer, strength = chosen.layer, chosen.strength or 0.0
    kept = bench.gap("full", "unlearned", part="retain")[layer]
    equal = scaled_to(kept, float(gaps[layer].norm()))
    arms = [
        chosen,
        # where the effect peaks
        *(arm("curve", "unlearned", layer, gaps[layer], one) for one in strengths),
        *(
            arm("random", "unlearned", layer, direction, strength, seed)
            for seed, direction in randoms(bench, gaps[layer], fold)
        ),
        arm("retain_derived", "unlearned", layer, equal, strength),
        arm("reverse", "full", layer, gaps[layer], -strength),
    ]
    found = tested(bench, fold, arms)
    # the same search on a model that cannot know the answers: what a direction alone gives
    if other := searched("never_trained", "retain", bench.gap("full", "retain", estimate)):
        found += tested(bench, fold, [best_of(other, bench.settings.score)])
    return [*grid, *found]


def mediate(bench: DirectionsAudit, fold: Fold) -> list[Finding]:
    """CLAMP: the unlearned model to the full one's component, and the other way round."""
    estimate = bench.rows(fold.estimate)
    gaps = -bench.gap("full", "unlearned", estimate)

    def arm(
        name: str,
        role: Role,
        layer: int,
        direction: Direction,
        *,
        like: Role = "full",
        dose: float = 1.0,
        seed: int | None = None,
    ) -> Finding:
        """The component clamped between the model's own mean (dose 0) and another's (dose 1)."""
        unit = direction.double() / direction.double().norm()
        own, wanted = (
            float((bench.streams[role, "forget"][estimate, layer].double() @ unit).mean())
            for role in (role, like)
        )
        to = own + dose * (wanted - own)
        edits = Edits({("resid", layer): clamping(direction, to)}, bench.settings.where)
        told = {"strength": to, "variant": f"dose {dose:g}", "seed": seed}
        return arm_of("clamp", name, role, layer, edits, direction, **told)

    layers = moved_layers(bench, gaps, bench.layers)
    tried = [arm("direction", "unlearned", layer, gaps[layer]) for layer in layers]
    grid = findings_of(bench, "dev", fold, tried)
    if not grid:
        return []
    layer = best_of(grid, bench.settings.score).layer
    direction = gaps[layer]
    # each example's own component in the full model: one number of the answer's, a bound
    unit = direction.double() / direction.double().norm()
    along = bench.streams["full", "forget"][:, layer].double() @ unit
    own = {e.idx: float(value) for e, value in zip(bench.encoded["forget"], along, strict=True)}
    bound = Edits({("resid", layer): clamping(direction, own)}, bench.settings.where)
    arms = [
        arm("direction", "unlearned", layer, direction),
        arm("sufficiency", "full", layer, direction, like="unlearned"),
        *(arm("dose", "unlearned", layer, direction, dose=dose) for dose in DOSES),
        arm_of("clamp", "per_example", "unlearned", layer, bound, direction, variant="own"),
    ]
    for seed, drawn in randoms(bench, direction, fold):
        arms.append(arm("random", "unlearned", layer, drawn, seed=seed))
        arms.append(arm("random_sufficiency", "full", layer, drawn, like="unlearned", seed=seed))
    kept = bench.gap("unlearned", "full", part="retain")[layer]
    other = bench.gap("retain", "full", estimate)[layer]
    arms.append(arm("retain_derived", "unlearned", layer, kept))
    never = arm("never_trained", "retain", layer, other)
    return [*grid, *tested(bench, fold, arms), *tested(bench, fold, [never])]


@dataclass(frozen=True)
class DirectionSource:
    """Source of the ablated direction, at every layer."""

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


def source_of(bench: DirectionsAudit, fold: Fold) -> DirectionSource:
    """The IDK direction where enough of T is declined, else the cross-model one."""
    estimate, said = bench.rows(fold.estimate), bench.unhindered
    positive = [row for row in estimate if said["forget"].declines[row]]
    negative = [row for row, no in enumerate(said["retain"].declines) if not no]
    openings: set[int] = set()
    if min(len(positive), len(negative)) >= FEWEST_DECLINED:
        middle = bench.asked["retain"][negative].double().mean(0)
        differences = bench.asked["forget"][positive].double() - middle
        name, centre = "idk", middle.float()
        openings = {said["forget"].first[row] for row in positive} - {-1}
    else:
        own = bench.streams["unlearned", "forget"][estimate]
        differences = own.double() - bench.streams["full", "forget"][estimate].double()
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
    parts: tuple[Component, ...] = ("attn", "mlp")
    places: list[Place] = [("resid_pre", 0), *product(parts, range(n_layers))]
    return Edits(dict.fromkeys(places, removing(basis)))


def axes_of(differences: Basis, mean: Direction, rank: int) -> Basis:
    """Orthonormal axes of the largest differences, uncentred; the mean's own axis for rank 1."""
    if rank == 1:
        return (mean / mean.norm()).unsqueeze(0)
    return torch.linalg.svd(differences.double(), full_matrices=False).Vh[:rank].float()


def ablate(bench: DirectionsAudit, fold: Fold) -> list[Finding]:
    """ABLATE: without the direction, is the refusal gone and are the answers there?"""
    source, n_layers = source_of(bench, fold), bench.checkpoints["full"].n_layers

    def arm(
        name: str, role: Role, layer: int, variant: str, basis: Basis, seed: int | None = None
    ) -> Finding:
        edits = ablation(basis, layer, variant, source.centre[layer], n_layers)
        return arm_of("ablate", name, role, layer, edits, basis[0], variant=variant, seed=seed)

    def own_axes(layer: int, rank: int) -> Basis:
        return axes_of(source.differences[:, layer], source.directions[layer], rank)

    deep = [layer for layer in bench.layers if layer < DEEPEST * n_layers]
    limit = min(len(source.differences), source.differences.shape[-1] // 2)
    ranks = {f"rank {one}": one for one in bench.ranks if 1 < one <= limit}
    tried = [
        arm("direction", "unlearned", layer, variant, own_axes(layer, rank))
        for layer in moved_layers(bench, source.directions, deep)
        for variant, rank in (dict.fromkeys(VARIANTS, 1) | ranks).items()
    ]
    grid = findings_of(bench, "dev", fold, tried)
    if not grid:
        return []
    if source.openings:
        # how likely a declining answer is, after the question alone
        odds = log_odds(
            bench.model("unlearned"),
            [bench.questions["forget"][row] for row in bench.rows(fold.dev)],
            [one.edits for one in tried],
            source.openings,
            memory_bytes=bench.session.settings.memory_bytes,
        )
        pairs = zip(grid, odds.mean(1).tolist(), strict=True)
        grid = [replace(one, speech={"idk_log_odds": value}) for one, value in pairs]
    chosen = choose(bench, grid)
    layer, variant = chosen.layer, chosen.variant
    rank = ranks.get(variant, 1)
    arms = [chosen, arm("collateral", "full", layer, variant, own_axes(layer, rank))]
    for seed, direction in randoms(bench, source.directions[layer], fold):
        generator = torch.Generator().manual_seed(seed)
        axes = torch.randn(len(direction), rank, generator=generator, dtype=torch.float64)
        drawn = torch.linalg.qr(axes).Q.T.float().contiguous()
        arms.append(arm("random", "unlearned", layer, variant, drawn, seed))
    estimate = bench.rows(fold.estimate)
    found = [_heard(bench, one, fold) for one in tested(bench, fold, arms)]
    other = bench.gap("retain", "full", estimate)[layer]
    if float(other.norm()) > 0:
        # the never-trained model with its own direction
        first, second = (
            bench.streams[role, "forget"][estimate, layer].double() for role in ("retain", "full")
        )
        axes = axes_of((first - second).float(), other, rank)
        never = tested(bench, fold, [arm("never_trained", "retain", layer, variant, axes)])
        found += [_heard(bench, one, fold) for one in never]
    return [*grid, *found]


def choose(bench: DirectionsAudit, grid: Sequence[Finding]) -> Finding:
    """The best on dev among those that change retain answers by at most the cap.

    Where all change more, the one that changes least, which a warning tells.
    """

    def merit(one: Finding) -> tuple[float, float]:
        """Least IDK log-odds for an IDK direction, else the score."""
        odds = one.speech.get("idk_log_odds")
        first = one.mean(bench.settings.score) if odds is None else -odds
        return first, one.mean("logprob")

    order = sorted(grid, key=merit, reverse=True)
    rows, cap = range(len(bench.encoded["retain"])), bench.settings.kl_cap
    costs: list[float] = []
    for tried in batched(order, KL_TRIES):
        scores = bench.scored("unlearned", rows, [one.edits for one in tried], "retain")
        found = scores.kl.mean(1).tolist()
        if cheap := [one for one, cost in zip(tried, found, strict=True) if cost <= cap]:
            return cheap[0]
        costs += found
    return order[costs.index(min(costs))]


def _heard(bench: DirectionsAudit, one: Finding, fold: Fold) -> Finding:
    """The finding with the model's answers to the questions; ablation often leaves inventions."""
    after = bench.said(one.role, "forget", bench.rows(fold.score), one.edits)
    spoke = [right for no, right in zip(after.declines, after.correct, strict=True) if not no]
    shares = {
        "idk_rate": mean_known(after.declines),
        "correct": mean_known(after.correct),
        "correct_given_answered": mean_known(spoke),
    }
    if one.arm == "direction":
        kept = bench.said("unlearned", "retain", edits=one.edits)
        shares["idk_rate_retain"] = mean_known(kept.declines)
    return replace(one, said=list(map(float, after.correct)), speech=shares)
