"""ABLATE: does taking a direction away take the refusal away, and do answers come back?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.directions.finding import Arm, Finding, Label, findings_of, with_costs
from lensaudit.directions.folds import Fold
from lensaudit.directions.models import Part, Role, ThreeModels, log_odds
from lensaudit.directions.restore import Search, moved_layers, randoms
from lensaudit.judge.items import JudgeRequest
from lensaudit.judge.programmatic import ENTITY, declines
from lensaudit.patching.generation import ends_of
from lensaudit.steer.edits import NO_EDITS, Edits, Place, removing
from lensaudit.steer.generate import continuations

DEEPEST = 0.8
"""Share of the layers in which a direction is looked for; refusal_direction excludes the rest."""
FEWEST_DECLINED = 4
"""Declined questions on each side of the means from which there is an IDK direction."""
VARIANTS = ("layer", "centred", "everywhere")
KL_TRIES = 12
"""Candidates in order of score whose KL on retain examples is measured."""


@dataclass(frozen=True)
class Said:
    """What a model says to the questions of one part, greedily."""

    declines: tuple[bool, ...]
    correct: tuple[bool, ...]
    """The entity stands in the answer."""
    first: tuple[int, ...]
    """First token of each answer; -1 of an empty one."""


def said(
    bench: ThreeModels,
    role: Role,
    part: Part,
    rows: Sequence[int],
    entities: Sequence[str],
    max_new_tokens: int,
    edits: Edits = NO_EDITS,
) -> Said:
    """Greedy answers to some questions; `entities` are those of the rows."""
    model = bench.models[role]
    asked = [bench.questions[part][row] for row in rows]
    ids = continuations(
        model,
        [e.token_ids for e in asked],
        max_new_tokens=max_new_tokens,
        stop=ends_of(model),
        edits=edits,
        idx=[e.idx for e in asked],
    )
    texts = [model.tokenizer.decode(list(one), skip_special_tokens=True) for one in ids]
    requests = [
        JudgeRequest(e.idx, "", text, entity=entity)
        for e, text, entity in zip(asked, texts, entities, strict=True)
    ]
    verdicts = ENTITY.score(requests)
    return Said(
        declines=tuple(declines(text) for text in texts),
        correct=tuple(v.score == 100.0 for v in verdicts),
        first=tuple(one[0] if one else -1 for one in ids),
    )


@dataclass(frozen=True)
class DirectionSource:
    """Where the ablated direction comes from, at every layer."""

    name: str
    """`idk`: declined questions minus answered ones, in the unlearned model; `cross`: unlearned
    minus full, at the prefix."""
    directions: Float[Tensor, "layer d_model"]
    centre: Float[Tensor, "layer d_model"]
    """Mean stream of the unlearned model on retain examples."""
    differences: Float[Tensor, "_ layer d_model"]
    """Per example, for subspaces."""
    openings: tuple[int, ...] = ()
    """First tokens of the answers that decline; of `idk` alone."""


def source_of(
    bench: ThreeModels, estimate: Sequence[int], forget: Said, retain: Said
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


def ablation(
    basis: Float[Tensor, "rank d_model"],
    layer: int,
    variant: str,
    centre: Float[Tensor, " d_model"],
    n_layers: int,
) -> Edits:
    """Edits of one variant, at all positions.

    `layer` removes the components after one block; `centred` sets them to those of the centre;
    `everywhere` removes them from the embedding and from all that blocks write.
    """
    if variant != "everywhere":
        return Edits(
            {("resid", layer): removing(basis, centre=centre if variant == "centred" else None)}
        )
    places: list[Place] = [("resid_pre", 0)]
    for at in range(n_layers):
        places.append(("attn", at))
        places.append(("mlp", at))
    return Edits(dict.fromkeys(places, removing(basis)))


def ablating_arm(
    bench: ThreeModels,
    name: str,
    role: Role,
    layer: int,
    variant: str,
    basis: Float[Tensor, "_ d_model"],
    source: DirectionSource,
    seed: int | None = None,
) -> Arm:
    """Components along the orthonormal rows of `basis` taken out."""
    edits = ablation(basis, layer, variant, source.centre[layer], bench.n_layers)
    return Arm(Label(name, role, layer, variant=variant, seed=seed), edits, basis[0])


def _unit(direction: Float[Tensor, " d_model"]) -> Float[Tensor, "1 d_model"]:
    return (direction / direction.norm()).unsqueeze(0)


def subspace(differences: Float[Tensor, "_ d_model"], rank: int) -> Float[Tensor, "_ d_model"]:
    """Orthonormal axes of the largest differences, uncentred."""
    return torch.linalg.svd(differences.double(), full_matrices=False).Vh[:rank].float()


def candidates(bench: ThreeModels, search: Search, source: DirectionSource) -> list[Arm]:
    """Every layer and variant that is tried on the dev authors."""
    deep = [layer for layer in search.layers if layer < DEEPEST * bench.n_layers]
    arms = []
    for layer in moved_layers(bench, source.directions, deep):
        basis = _unit(source.directions[layer])
        arms += [
            ablating_arm(bench, "direction", "unlearned", layer, variant, basis, source)
            for variant in VARIANTS
        ]
        limit = min(len(source.differences), source.differences.shape[-1] // 2)
        for rank in (one for one in search.ranks if 1 < one <= limit):
            axes = subspace(source.differences[:, layer], rank)
            arms.append(
                ablating_arm(bench, "direction", "unlearned", layer, f"rank {rank}", axes, source)
            )
    return arms


def choose(bench: ThreeModels, arms: Sequence[Arm], grid: Sequence[Finding], search: Search) -> Arm:
    """The best on dev among those that change retain answers by at most the cap.

    Where the first tries all change more, the one that changes least, which its row shows.
    """
    order = sorted(range(len(grid)), key=lambda at: _merit(grid[at], search), reverse=True)
    order = order[:KL_TRIES]
    rows = range(len(bench.encoded["retain"]))
    scores = bench.scored("unlearned", rows, [arms[at].edits for at in order], "retain")
    costs = scores.kl.mean(1).tolist()
    cheap = [at for at, cost in zip(order, costs, strict=True) if cost <= search.kl_cap]
    return arms[cheap[0] if cheap else order[costs.index(min(costs))]]


def _merit(finding: Finding, search: Search) -> tuple[float, float]:
    """What decides on dev: least IDK log-odds for an IDK direction, else the score."""
    odds = finding.speech.get("idk_log_odds")
    if odds is not None:
        return -odds, finding.mean("logprob")
    return finding.mean(search.score), finding.mean("logprob")


def _with_odds(
    bench: ThreeModels,
    grid: Sequence[Finding],
    arms: Sequence[Arm],
    rows: Sequence[int],
    source: DirectionSource,
) -> list[Finding]:
    """The dev findings with how likely a declining answer is, after the question alone."""
    if not source.openings:
        return list(grid)
    odds = log_odds(
        bench.models["unlearned"],
        [bench.questions["forget"][row] for row in rows],
        [arm.edits for arm in arms],
        source.openings,
        memory_bytes=bench.runs.memory_bytes,
    ).mean(1)
    return [
        replace(one, speech={"idk_log_odds": float(value)})
        for one, value in zip(grid, odds, strict=True)
    ]


def ablate(
    bench: ThreeModels, fold: Fold, search: Search, source: DirectionSource, entities: Sequence[str]
) -> list[Finding]:
    """The grid on the dev authors, and the best of it with its controls on authors never read.

    Empty where no layer that is searched holds such a direction.
    """
    arms = candidates(bench, search, source)
    if not arms:
        return []
    dev = fold.rows(bench.encoded["forget"], fold.dev)
    grid = findings_of(bench, "ablate", "dev", fold.number, dev, arms)
    grid = _with_odds(bench, grid, arms, dev, source)
    chosen = choose(bench, arms, grid, search)
    rows = fold.rows(bench.encoded["forget"], fold.score)
    tested = [chosen, *_controls(bench, fold, search, chosen, source)]
    found = findings_of(bench, "ablate", "score", fold.number, rows, tested)
    found = with_costs(bench, found, tested)
    return [
        *grid,
        *(
            _heard(bench, one, arm, rows, entities, search)
            for one, arm in zip(found, tested, strict=True)
        ),
    ]


def _controls(
    bench: ThreeModels, fold: Fold, search: Search, chosen: Arm, source: DirectionSource
) -> list[Arm]:
    """The same edit of full, random axes, and the never-trained model with its own direction."""
    layer, variant = chosen.label.layer, chosen.label.variant
    rank = int(variant.split()[1]) if variant.startswith("rank") else 1
    basis = (
        subspace(source.differences[:, layer], rank)
        if rank > 1
        else _unit(source.directions[layer])
    )
    arms = [ablating_arm(bench, "collateral", "full", layer, variant, basis, source)]
    for seed, direction in randoms(source.directions[layer], search, fold):
        axes = _random_axes(len(direction), rank, seed)
        arms.append(ablating_arm(bench, "random", "unlearned", layer, variant, axes, source, seed))
    estimate = fold.rows(bench.encoded["forget"], fold.estimate)
    other = bench.gap("retain", "full", estimate)[layer]
    if float(other.norm()) > 0:
        own = bench.streams["retain", "forget"][estimate, layer]
        shift = own.double() - bench.streams["full", "forget"][estimate, layer].double()
        axes = subspace(shift.float(), rank) if rank > 1 else _unit(other)
        arms.append(ablating_arm(bench, "never_trained", "retain", layer, variant, axes, source))
    return arms


def _random_axes(d_model: int, rank: int, seed: int) -> Float[Tensor, "_ d_model"]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(d_model, rank, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.T.float().contiguous()


def _heard(
    bench: ThreeModels,
    finding: Finding,
    arm: Arm,
    rows: Sequence[int],
    entities: Sequence[str],
    search: Search,
) -> Finding:
    """With what the model says to the questions; an ablation often leaves inventions."""
    own = [entities[row] for row in rows]
    how = {"max_new_tokens": search.max_new_tokens, "edits": arm.edits}
    after = said(bench, arm.label.role, "forget", rows, own, **how)
    spoke = [right for no, right in zip(after.declines, after.correct, strict=True) if not no]
    shares = {
        "idk_rate": _share(after.declines),
        "correct": _share(after.correct),
        "correct_given_answered": _share(spoke),
    }
    if arm.label.arm == "direction":
        n = len(bench.encoded["retain"])
        kept = said(bench, "unlearned", "retain", range(n), [""] * n, **how)
        shares["idk_rate_retain"] = _share(kept.declines)
    by_idx = dict(zip(finding.em, map(float, after.correct), strict=True))
    return replace(finding, said=by_idx, speech=shares)


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
