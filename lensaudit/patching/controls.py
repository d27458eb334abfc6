"""What stands beside a score: what was asked to be measured, and what was found of one source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lensaudit.data.neutral import Neutral
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.aligned import ALIGN_TOKENS_PER_DIM
from lensaudit.results.verdict import (
    ALIGN_FROM,
    NOT_NEEDED,
    Evidence,
    Floor,
    Measured,
    Outputs,
    Verdict,
    Weakest,
    verdict_of,
)
from lensaudit.scores.alignment import MapClass
from lensaudit.settings import AlignName


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

    uds: Measured | None = None
    drop: Measured | None = None
    """Aligned UDS minus this, paired by example."""
    weakest: Weakest | None = None
    why: str | None = None

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        drop = self.drop
        return {
            "uds": None if self.uds is None else self.uds.value,
            "ci95": limits_of(self.uds),
            "weakest": weakest_document(self.weakest),
            "drop": drop and {"value": drop.value, "low": drop.low, "high": drop.high},
            "why": self.why or (self.uds.why if self.uds else None),
        }


@dataclass(frozen=True)
class Aligned:
    """UDS of the aligned source, and what shows whether the map means anything."""

    kind: MapClass | None = None
    uds: Measured | None = None
    per_example: Mapping[int, float] = field(default_factory=dict)
    gap: Measured | None = None
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
            "r2": self.r2,
            "shuffled": self.shuffled,
            "d_share": self.d_share,
            "full": self.full,
            "weakest": weakest_document(self.weakest),
            "shared": (self.shared if self.why is None else Shared(why=self.why)).document(),
            "why": self.why or (self.uds.why if self.uds else None),
            **({"experimental": True} if self.experimental else {}),
            **({"unscored": dict(sorted(self.unscored.items()))} if self.unscored else {}),
        }


@dataclass(frozen=True)
class Examined:
    """The controls of one source, and what may be said of it."""

    validity: Validity
    aligned: Aligned
    outputs: Outputs | None
    floor: Floor | None
    verdict: Verdict

    def document(self) -> dict[str, Any]:
        """The part of summary.json."""
        return {
            "validity": self.validity.document(),
            "aligned": self.aligned.document(),
            "floor": None if self.floor is None else dict(vars(self.floor)),
            "outputs": None if self.outputs is None else dict(vars(self.outputs)),
            "verdict": self.verdict.document(),
        }

    def beside(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of results.jsonl with each example's aligned score; None where it has none."""
        return [{**row, "uds_aligned": self.aligned.per_example.get(row["idx"])} for row in rows]


def unexamined(source: str, score: float | None, why: str) -> Examined:
    """A source whose score is not of a kind that these controls are about."""
    verdict = Verdict("undecided", f"{source}: undecided: {why}.", why)
    if score is None:
        verdict = verdict_of(source, Evidence(None))
    return Examined(Validity(why=why), Aligned(why=why), None, None, verdict)


def limits_of(found: Measured | None) -> list[float] | None:
    """`[low, high]`, or None."""
    if found is None or found.low is None or found.high is None:
        return None
    return [found.low, found.high]


def weakest_document(found: Weakest | None) -> dict[str, Any] | None:
    """A layer and its erasure as summary.json holds them."""
    if found is None:
        return None
    erasure = found.erasure
    return {"layer": found.layer, "erasure": erasure.value, "ci95": limits_of(erasure)}
