"""One row of a directions audit: what was done to which model, and what it then knew."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.directions.models import Role, ThreeModels
from lensaudit.steer.edits import Edits
from lensaudit.steer.settings import Kind

KINDS: tuple[Kind, ...] = ("add", "ablate", "clamp")
Stage = Literal["dev", "score"]
SCHEMA = "steer-interventions/1"


@dataclass(frozen=True)
class Label:
    """What is done, in words and numbers."""

    arm: str
    """`direction`, or the control: `random`, `retain_derived`, `never_trained`, `reverse` …"""
    role: Role
    """The model it is done to."""
    layer: int
    strength: float | None = None
    variant: str = ""
    seed: int | None = None
    """Of a random direction."""


@dataclass(frozen=True)
class Arm:
    """One thing that is done to one model."""

    label: Label
    edits: Edits
    direction: Float[Tensor, " d_model"]


@dataclass(frozen=True)
class Finding:
    """An arm scored on some authors."""

    kind: Kind
    stage: Stage
    fold: int
    label: Label
    positions: str
    em: Mapping[int, float]
    """Share of each example's entity tokens that are the likeliest, by idx."""
    logprob: Mapping[int, float]
    """Nats per token, by idx."""
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
    said: Mapping[int, float] = field(default_factory=dict)
    """1 where the entity stands in the greedy answer to the question alone, by idx; ABLATE only."""
    speech: Mapping[str, float | None] = field(default_factory=dict)
    """Shares of those answers: declined, correct, before and after; ABLATE only."""

    def values(self, score: str) -> Mapping[int, float]:
        """By name: `em`, `logprob` or `said`."""
        return {"em": self.em, "logprob": self.logprob, "said": self.said}[score]

    def mean(self, score: str) -> float:
        """Mean over the finding's examples."""
        values = self.values(score).values()
        return sum(values) / len(values)

    def document(self) -> dict[str, Any]:
        """As JSON: one line of `interventions.jsonl`."""
        own = {key: value for key, value in vars(self).items() if key not in _NESTED}
        idx = list(self.em)
        return {
            "schema": SCHEMA,
            **own,
            **asdict(self.label),
            "n_items": len(idx),
            "score": {"em": self.mean("em"), "logprob": self.mean("logprob")},
            "idx": idx,
            "em": [self.em[one] for one in idx],
            "logprob": [self.logprob[one] for one in idx],
            "said": [self.said[one] for one in idx if one in self.said],
            "speech": dict(self.speech),
        }


_NESTED = ("label", "em", "logprob", "said", "speech")


def read_finding(row: Mapping[str, Any]) -> Finding:
    """Finding in a line of the ledger."""
    label = Label(**{one.name: row[one.name] for one in fields(Label)})
    scores = {
        name: dict(zip(row["idx"], row[name], strict=True)) if row[name] else {}
        for name in ("em", "logprob", "said")
    }
    own = {one.name: row[one.name] for one in fields(Finding) if one.name not in _NESTED}
    return Finding(label=label, **scores, **own, speech=row["speech"])


def findings_of(
    bench: ThreeModels,
    kind: Kind,
    stage: Stage,
    fold: int,
    rows: Sequence[int],
    arms: Sequence[Arm],
) -> list[Finding]:
    """Every arm scored on the forget examples in `rows`; arms of one model share passes."""
    idx = [bench.encoded["forget"][row].idx for row in rows]
    found: dict[int, Finding] = {}
    roles: list[Role] = list(dict.fromkeys(arm.label.role for arm in arms))
    for role in roles:
        own = [at for at, arm in enumerate(arms) if arm.label.role == role]
        scores = bench.scored(role, rows, [arms[at].edits for at in own])
        for place, at in enumerate(own):
            found[at] = Finding(
                kind=kind,
                stage=stage,
                fold=fold,
                label=arms[at].label,
                positions=arms[at].edits.where,
                em=dict(zip(idx, scores.em[place].tolist(), strict=True)),
                logprob=dict(zip(idx, scores.logprob[place].tolist(), strict=True)),
                norm=float(arms[at].direction.norm()),
            )
    return [found[at] for at in range(len(arms))]


def best_of(findings: Sequence[Finding], score: str) -> int:
    """Place of the highest mean score; of equal ones the higher log-prob, then the first."""
    means = [(one.mean(score), one.mean("logprob")) for one in findings]
    return means.index(max(means))


def with_costs(
    bench: ThreeModels, findings: Sequence[Finding], arms: Sequence[Arm]
) -> list[Finding]:
    """The findings of the chosen direction with what it does to retain answers."""
    return [
        _costed(bench, one, arm) if one.label.arm in ("direction", "sufficiency") else one
        for one, arm in zip(findings, arms, strict=True)
    ]


def _costed(bench: ThreeModels, finding: Finding, arm: Arm) -> Finding:
    rows = range(len(bench.encoded["retain"]))
    scores = bench.scored(arm.label.role, rows, [Edits(), arm.edits], "retain")
    layer, whole = arm.label.layer, range(len(bench.encoded["forget"]))
    shift = bench.gap("full", "unlearned", whole)[layer]
    cosine = torch.nn.functional.cosine_similarity(arm.direction.float(), shift, dim=0)
    return replace(
        finding,
        kl_retain=float(scores.kl[1].mean()),
        utility_delta=float(scores.em[1].mean() - scores.em[0].mean()),
        cosine=float(cosine) if bool(shift.norm() > 0) else None,
        similarity=bench.similarity(layer),
    )
