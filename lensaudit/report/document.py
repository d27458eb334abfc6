"""What the page holds: one record per part, turned into the JSON that its script reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lensaudit.report.pack import Stepped
from lensaudit.results.patch_runs import Texts
from lensaudit.scores.estimate import Estimate
from lensaudit.verdict.decide import Code

if TYPE_CHECKING:
    from lensaudit.report.evidence import Table

ANCHORS = ("full", "retain")
"""Roles that calibrate the scale; who has one is never judged."""


@dataclass(frozen=True)
class Condition:
    """What runs share that can be compared row by row: models, forget set, settings."""

    id: str
    score: str
    """`uds`, `lens` or `em`."""
    full: str
    retain: str
    settings: Mapping[str, Any]
    calibration: Mapping[str, Any]
    layers: tuple[int, ...]
    examples: tuple[Texts, ...]
    unit: str
    """What an interval counts: `author`, or `row` where no row names one."""
    by_rule: tuple[str, ...]
    """How many spans nobody reviewed; nothing where all were."""
    baseline: str
    """Float32 per example, nats per token; empty for EM."""
    s1: str
    """Float32 per example and layer; for EM shares in a byte each."""


@dataclass(frozen=True)
class Depth:
    """One run of one model."""

    model: int
    """Place in `Document.models`."""
    condition: int
    value: float | None
    low: float | None
    high: float | None
    why: str | None
    """Why there is no interval."""
    assumes: str | None
    """What the interval takes for granted."""
    n: int
    n_scored: int
    verdict: Code | None
    """None: the score is none that decides."""
    because: str
    """What decided the verdict, in a sentence with its numbers."""
    unscored: Mapping[str, list[int]]
    profile: Mapping[str, list[Any]]
    """Columns of `per_layer`."""
    bands: Mapping[str, list[list[float | None]]]
    """By layer mean, low, high of `s1`, of what S2 reaches of it (`reached`: min(S2, S1) example by
    example) and of the rest (`held`), nats per token; empty for EM."""
    scores: str
    """Float32 per example."""
    s2: Stepped | str
    """Deltas; for EM shares in a byte each."""
    extra: Mapping[str, Any]
    """Controls beside UDS; or retention, categories and texts of an EM run."""
    manifest: int

    @property
    def estimate(self) -> Estimate:
        """Score with its interval, over the rows that are scored."""
        return Estimate(self.value, self.low, self.high, self.n_scored, self.why)


@dataclass(frozen=True)
class Pair:
    """The score of one run minus that of another, over the examples that both score."""

    a: int
    """Place in `Document.depths`."""
    b: int
    difference: float
    low: float | None
    high: float | None
    why: str | None = None
    """Why there is no interval."""


@dataclass(frozen=True)
class PageModel:
    """One set of weights."""

    name: str
    label: str
    method: str | None
    epoch: str | None
    role: str | None
    metrics: Mapping[str, list[Any]]
    """Name -> value, low, high, scored, unscored, reason."""
    manifest: int | None
    """Of its evaluation."""
    verdict: Code | None
    """After all that is known of it; None: nothing is, or it is an anchor."""


@dataclass(frozen=True)
class Document:
    """All of it."""

    title: str
    version: str
    made: str
    conditions: list[Condition]
    depths: list[Depth]
    models: list[PageModel]
    metric_kinds: list[Mapping[str, Any]]
    pairs: list[Pair]
    meta: list[Mapping[str, Any]]
    steering: list[Mapping[str, Any]]
    attacks: Sequence[Mapping[str, Any]]
    curves: list[Mapping[str, Any]]
    said: list[Mapping[str, Any]]
    """`model`, its place, and `texts`: its answer to each question of the first condition, as text
    or null; `says`: whether it gives the fact away."""
    too_few: Mapping[str, int]
    """Undecided models that more rows would decide, by label, with the rows that were scored."""
    table: "Table | None" = None
    """None: not made yet."""
    manifests: list[Mapping[str, Any]] = field(default_factory=list)
    left_out: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def first(self) -> int | None:
        """The condition that the headline speaks of; None where no run has UDS."""
        return next((at for at, one in enumerate(self.conditions) if one.score == "uds"), None)

    def judged(self) -> dict[str, Code]:
        """Verdict by model, anchors left out, from held to gone by its depth."""
        depth = {one.model: one.value for one in self.depths if one.condition == self.first}
        order = sorted(
            range(len(self.models)), key=lambda at: (depth.get(at) is None, depth.get(at))
        )
        found = [self.models[at] for at in order]
        return {one.label: one.verdict for one in found if one.verdict}
