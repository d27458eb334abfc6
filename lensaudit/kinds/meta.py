"""Which metric can be trusted, and what do metrics of many models sum up to? Tables of `meta`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Len

from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import Number, Whole


@dataclass(frozen=True, kw_only=True)
class MetaRow:
    """One metric of the table; null where there is no number, and then a note says why."""

    metric: str
    label: str | None = None
    category: str | None = None
    high_means: str | None = None
    faithfulness: Number | None = None
    """AUC over the two pools."""
    faithfulness_low: Number | None = None
    faithfulness_high: Number | None = None
    n_knows: Whole | None = None
    n_forgot: Whole | None = None
    quantization: Number | None = None
    """Q."""
    n_quantization: Whole | None = None
    relearning: Number | None = None
    """R."""
    n_relearning: Whole | None = None
    robustness: Number | None = None
    """Harmonic mean of Q and R."""
    overall: Number | None = None
    """Harmonic mean of faithfulness and robustness."""
    common_quantization: Number | None = None
    """Over the models that all metrics have."""
    common_relearning: Number | None = None
    common_robustness: Number | None = None
    n_common_quantization: Whole | None = None
    n_common_relearning: Whole | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class MetaTable:
    """`meta_table.json`: the table of the meta-evaluation."""

    kind: str = "meta_table"
    schema: Whole = 1
    forms: Mapping[str, str] = field(default_factory=dict)
    """Attack -> the formula behind its numbers."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Attack -> which filters picked its models."""
    metrics: Annotated[list[MetaRow], Len(1)]
    """The best Overall first, those without one last."""


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """The aggregates of one model; null where a part is missing, with the reason."""

    model: str
    method: str | None = None
    epoch: str | None = None
    uds: Number | None = None
    mem: Number | None = None
    """How little is memorised: of 1 - ES, 1 - EM, 1 - ParaProb, 1 - Truth Ratio."""
    privacy_mia: Number | None = None
    """Of the four s_MIA."""
    privacy: Number | None = None
    """Of `privacy_mia` and UDS."""
    model_utility: Number | None = None
    """Of the nine utility parts."""
    utility: Number | None = None
    """Of `model_utility` and fluency."""
    utility_rel: Number | None = None
    """`utility` over that of the full model of the same epoch, at most 1."""
    overall: Number | None = None
    """Of `mem`, `privacy` and `utility_rel`."""
    overall_without_uds: Number | None = None
    """Of `mem`, `privacy_mia` and `utility_rel`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Aggregate -> why it is null."""


@dataclass(frozen=True, kw_only=True)
class RankedModel:
    """The best configuration of a method under one of the two Overalls."""

    model: str
    overall_without_uds: Number | None
    overall: Number | None
    uds: Number | None


@dataclass(frozen=True, kw_only=True)
class RankedMethod:
    """A method by its best models, and the UDS of all of its models."""

    method: str
    n_models: Whole
    best_without_uds: RankedModel | None
    best_with_uds: RankedModel | None
    uds_mean: Number | None
    uds_low: Number | None
    uds_high: Number | None


@dataclass(frozen=True, kw_only=True)
class Aggregates:
    """`aggregate.json`: aggregates of many models, and methods ranked."""

    kind: str = "aggregate"
    schema: Whole = 1
    models: Annotated[list[Aggregate], Len(1)]
    ranking: list[RankedMethod] = field(default_factory=list)


KINDS = {
    "meta": ResultKind(record=MetaTable, files=("meta_table.json",), said=("meta_table",)),
    "aggregate": ResultKind(record=Aggregates, files=("aggregate.json",)),
}
