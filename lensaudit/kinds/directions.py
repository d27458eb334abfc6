"""Does one direction hide the answers? A finished run of `lensaudit steer audit`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import model_serializer, model_validator

from lensaudit.results.kinds.patch import Ends, estimate_in
from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.manifest import NamedModel
from lensaudit.results.reading import AtLayer, Number, Whole
from lensaudit.scores.estimate import Estimate
from lensaudit.verdict.views import Calibration, View, over_arm


@dataclass(frozen=True)
class Recovery(Estimate):
    """How much of a gap an arm closes: 0 none, 1 all of it.

    Without a value where full is not ahead by more than two standard errors.
    """

    mean: float = math.nan
    """Mean score under the intervention."""
    sd: float | None = None
    """Over random directions; None for a single direction."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, found: Any) -> Any:
        if not isinstance(found, Mapping):
            return found
        own = {"n": found.get("n_items"), "mean": found.get("score", math.nan)}
        return estimate_in(found, "recovery") | own | {"sd": found.get("sd")}

    @model_serializer
    def _written(self) -> dict[str, Any]:
        own = {"recovery": self.value, "score": self.mean, "n_items": self.n, "sd": self.sd}
        return own | self.limits()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A direction added, ablated or clamped: recovery beside its controls."""

    kind: str = ""
    unscored: str | None = None
    """Why nothing was found."""
    score: str = "em"
    """What is recovered: `em`, `logprob` or `said`."""
    recovery: Number | None = None
    ci95: Ends = None
    ci95_why: str | None = None
    recovery_above_control: Number | None = None
    arms: Mapping[str, Mapping[str, Recovery]] = field(default_factory=dict)
    """Arm -> score -> what it recovers."""
    chosen: list[Mapping[str, Any]] = field(default_factory=list)
    """By fold, where the direction was taken and how strong it was."""
    kl_retain: Number | None = None
    utility_delta: Number | None = None
    similarity: Number | None = None
    speech: Mapping[str, Mapping[str, Number | None]] = field(default_factory=dict)
    gap: Number | None = None
    dose_spearman: Number | None = None
    warnings: list[str] = field(default_factory=list)
    reading: str | None = None
    direction_source: list[str] | None = None
    """Of ABLATE, what its direction is made of."""

    @property
    def estimate(self) -> Estimate:
        """What it brings back."""
        return Estimate.within(self.recovery, self.ci95, why=self.ci95_why)

    @model_serializer(mode="wrap")
    def _written(self, write: Any) -> dict[str, Any]:
        own = write(self)
        if not self.arms:
            own = {name: own[name] for name in ("kind", "unscored", "direction_source")}
        return {n: v for n, v in own.items() if n != "direction_source" or v is not None}


@dataclass(frozen=True, kw_only=True)
class DirectionsRecord:
    """`summary.json` of an audit of directions."""

    schema: str = "steer-audit/1"
    models: Mapping[str, NamedModel] = field(default_factory=dict)
    """By role: `full`, `unlearned`, `retain`."""
    source: str
    score: str = "em"
    plain: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    """Score -> role -> its mean without an intervention."""
    idk_rate: Mapping[str, Number] = field(default_factory=dict)
    n_items: Whole = 0
    n_groups: Whole = 0
    n_retain: Whole = 0
    n_folds: Whole = 0
    unscored: Mapping[AtLayer, str] = field(default_factory=dict)
    experiments: Mapping[str, Experiment]


def _directions(one: DirectionsRecord, nulls: Calibration) -> list[View]:
    ablate = one.experiments.get("ablate", Experiment())
    held = ablate.estimate
    if held.value is None:
        return [View("ablate", None, why=ablate.unscored or "ABLATE was not scored")]
    shown, blind = f"recovery {held.value:.2f}", "no one direction is no proof"
    return [over_arm("ablate", held, shown, nulls, one.n_groups, blind=blind)]


VIEWS = {"directions": _directions}
KINDS = {"directions": ResultKind(record=DirectionsRecord, said=("steer-audit",))}
