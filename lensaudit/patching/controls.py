"""What stands beside a score: what was asked to be measured, and what was found of one source."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lensaudit.data.neutral import Neutral
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.aligned import ALIGN_TOKENS_PER_DIM
from lensaudit.scores.alignment import MapClass
from lensaudit.scores.estimate import Estimate
from lensaudit.settings import AlignName
from lensaudit.verdict.thresholds import ALIGN_FROM, NOT_NEEDED


@dataclass(frozen=True)
class Outputs:
    """Share of facts said exactly after the prefix, greedily."""

    source: float
    full: float
    retain: float
    n: int


@dataclass(frozen=True)
class Floor:
    """Depth of never-trained models on each other's scale."""

    low: float
    """Of the aligned depth."""
    high: float
    n_models: int
    uds: tuple[float, ...]
    """Plain depth of those beside the anchor, on its scale."""
    aligned: tuple[float, ...]
    """Aligned depth of the same, each on the scale of all others."""


@dataclass(frozen=True)
class Weakest:
    """The strong layer that is erased least."""

    layer: int
    erasure: Estimate
    """Mean of min(1, max(0, s2 / s1)) over the facts that `full` encodes there."""

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return {
            "layer": self.layer,
            "erasure": self.erasure.value,
            "ci95": limits_of(self.erasure),
            "ci90": one_sided_of(self.erasure),
        }


@dataclass(frozen=True)
class Controls:
    """How the controls are measured, and on what."""

    neutral: Neutral | None
    """None: no rows are known, and `why` says so."""
    why: str = ""
    align: AlignName = "auto"
    align_tokens: int | None = None
    """Neutral tokens for a map; None: `ALIGN_TOKENS_PER_DIM` per dimension."""
    retains: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Further models that never saw the facts."""

    def planned(self, d_model: int) -> str:
        """What would be measured, in a line of a plan."""
        if self.neutral is None:
            return f"controls: none ({self.why})"
        validity = f"controls: validity on up to {len(self.neutral.validity)} rows"
        if self.align == "none":
            return f"{validity}; no maps"
        auto = f"maps where UDS is {ALIGN_FROM:g} or more"
        maps = auto if self.align == "auto" else f"{self.align} maps"
        n_tokens = self.align_tokens or ALIGN_TOKENS_PER_DIM * d_model
        fitted = f"fitted on up to {n_tokens} of {len(self.neutral.fit)} rows' tokens"
        return f"{validity}; {maps}, {fitted}"


@dataclass(frozen=True)
class Validity:
    """Can `full` read this model at all? Deltas in nats per token."""

    v: float | None = None
    """d / f; None where f is too small a part of S1 for a ratio."""
    d: float | None = None
    """Drop on facts that the source still says, over the forget set's KE layers."""
    f: float | None = None
    """The same on the forgotten facts."""
    d_share: float | None = None
    """d in units of the drop that `full`'s own stream of another row makes."""
    n: int = 0
    ci95: tuple[float, float] | None = None
    """Of `d_share`."""
    needed: bool = True
    """False where `full` reads the source so well that no ratio is needed."""
    why: str | None = None
    """Why it was not measured, or has no interval."""

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return {**vars(self), "ci95": None if self.ci95 is None else list(self.ci95)}


@dataclass(frozen=True)
class Shared:
    """The aligned depth without the one direction that other authors' facts share, layer by layer.

    Much lower than the aligned depth: what hides the facts is one vector for all of them.
    """

    uds: Estimate | None = None
    drop: Estimate | None = None
    """Aligned UDS minus this, paired by example."""
    weakest: Weakest | None = None
    why: str | None = None

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return {
            "uds": None if self.uds is None else self.uds.value,
            "ci95": limits_of(self.uds),
            "ci90": one_sided_of(self.uds),
            "weakest": None if self.weakest is None else self.weakest.document(),
            "drop": _difference(self.drop),
            "why": self.why or (self.uds.why if self.uds else None),
        }


@dataclass(frozen=True)
class Aligned:
    """UDS of the aligned source, and what shows whether the map means anything."""

    kind: MapClass | None = None
    uds: Estimate | None = None
    per_example: Mapping[int, float] = field(default_factory=dict)
    gap: Estimate | None = None
    r2: float | None = None
    shuffled: float | None = None
    d_share: float | None = None
    full: float | None = None
    """Aligned UDS of `full` itself: 0 where the machinery is right."""
    weakest: Weakest | None = None
    """The strong layer that is erased least: a mean over layers hides what one of them holds."""
    shared: Shared = field(default_factory=Shared)
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Idx -> why an example has no aligned depth, of a source that has no other."""
    experimental: bool = False
    """Of a source of another size or tokenizer: no verdict may rest on it."""
    why: str | None = None

    @property
    def not_needed(self) -> bool:
        """No alignment ran, because UDS itself is low."""
        return (self.why or "").startswith(NOT_NEEDED)

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return {
            "class": self.kind,
            "uds": None if self.uds is None else self.uds.value,
            "ci95": limits_of(self.uds),
            "ci90": one_sided_of(self.uds),
            "gap": _difference(self.gap),
            "r2": self.r2,
            "shuffled": self.shuffled,
            "d_share": self.d_share,
            "full": self.full,
            "weakest": None if self.weakest is None else self.weakest.document(),
            "shared": (self.shared if self.why is None else Shared(why=self.why)).document(),
            "why": self.why or (self.uds.why if self.uds else None),
            **({"experimental": True} if self.experimental else {}),
            **({"unscored": dict(sorted(self.unscored.items()))} if self.unscored else {}),
        }


@dataclass(frozen=True)
class Examined:
    """The controls of one source."""

    validity: Validity
    aligned: Aligned
    outputs: Outputs | None
    floor: Floor | None
    ci90: tuple[float, float] | None = None
    """One-sided 95 % limits of UDS."""
    weakest: Weakest | None = None
    """Of the stream as it is."""

    def document(self) -> dict[str, Any]:
        """The part of summary.json."""
        return {
            "ci90": None if self.ci90 is None else list(self.ci90),
            "weakest": None if self.weakest is None else self.weakest.document(),
            "validity": self.validity.document(),
            "aligned": self.aligned.document(),
            "floor": None if self.floor is None else asdict(self.floor),
            "outputs": None if self.outputs is None else asdict(self.outputs),
        }

    def beside(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of results.jsonl with each example's aligned score; None where it has none."""
        return [{**row, "uds_aligned": self.aligned.per_example.get(row["idx"])} for row in rows]


def unexamined(why: str) -> Examined:
    """A source whose score is not of a kind that these controls are about."""
    return Examined(Validity(why=why), Aligned(why=why), None, None)


def _difference(found: Estimate | None) -> dict[str, Any] | None:
    return found and {"value": found.value, "low": found.low, "high": found.high}


def limits_of(found: Estimate | None) -> list[float] | None:
    """`[low, high]`, or None."""
    return None if found is None or found.ends is None else list(found.ends)


def one_sided_of(found: Estimate | None) -> list[float] | None:
    """`[lower, upper]`, or None."""
    return None if found is None or found.one_sided is None else list(found.one_sided)
