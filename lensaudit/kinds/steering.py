"""What does a steered model answer? A finished run of `lensaudit steer eval` or `steer sweep`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Len
from pydantic import AliasChoices, Discriminator, Field, Tag, model_serializer

from lensaudit.results.kinds.patch import Ends
from lensaudit.results.kinds.table import ResultKind
from lensaudit.results.reading import AtLayer, JsonObject, Number, Whole

AtCoefficient = Annotated[str, Field(pattern=r"^-?[0-9.]+(e[-+]?[0-9]+)?$")]
"""A coefficient as the name of a field."""

STEERED = "results.json"
"""What `steer eval` writes."""
SWEPT = "layer_sweep.json"
"""What `steer sweep` writes."""
CROSSED = "traits.json"
"""What `steer cross` writes."""


@dataclass(frozen=True, kw_only=True)
class SteeredScore:
    """What a judge says of all answers under one setting, 0 to 100."""

    mean: Annotated[Number | None, Field(validation_alias=AliasChoices("mean", "trait_mean"))] = (
        None
    )
    std: Number | None = None
    """Of a population (ddof 0)."""
    n: Whole | None = None
    """Answers with a score."""
    n_total: Whole | None = None
    n_invalid: Whole | None = None
    ci95: Ends = None
    """By questions."""
    ci95_why: str | None = None
    mean_invalid_as_baseline: Number | None = None
    """The mean if all answers without a score had the baseline's."""
    ratio: Number | None = None
    """Length of what is added, as a share of the stream's."""


@dataclass(frozen=True, kw_only=True)
class LayerScore(SteeredScore):
    """Score of a direction added at one layer."""

    layer: Whole | None = None
    coefficient: Number | None = None
    coherence_mean: Number | None = None

    @model_serializer(mode="wrap")
    def _written(self, write: Any) -> dict[str, Any]:
        own = {"layer": self.layer, "coefficient": self.coefficient}
        told = {"trait_mean": self.mean, "trait_std": self.std}
        return own | told | {"coherence_mean": self.coherence_mean} | write(self)


@dataclass(frozen=True, kw_only=True)
class ChosenSetting:
    """The coherent setting that is strongest on one half of the questions, on the other half."""

    setting: Number | None = None
    """A coefficient."""
    layer: Whole | None = None
    """Or a layer."""
    dev_questions: list[Whole]
    test_questions: list[Whole]
    dev_mean: Number | None
    test_mean: Number | None
    test_baseline: Number | None
    test_delta: Number | None
    """Paired, per question."""
    test_delta_ci95: Ends
    test_delta_ci95_why: str | None
    test_coherence: Number | None

    @model_serializer(mode="wrap")
    def _written(self, write: Any) -> dict[str, Any]:
        left = "setting" if self.setting is None else "layer"
        return {name: one for name, one in write(self).items() if name != left}


@dataclass(frozen=True, kw_only=True)
class SteeringRun:
    """What both commands write."""

    schema: str | None = None
    trait: str
    method: str | None = None
    layer_convention: str | None = None
    positions: str | None = None
    coherence_warnings: list[str | Whole] = field(default_factory=list)
    """Settings whose answers do not hold together."""
    chosen: ChosenSetting | None = None
    polarity: Whole | None = None
    """1: more of the trait was wanted; -1: less."""
    std_ddof: Whole = 0
    judge: Mapping[str, JsonObject] = field(default_factory=dict)
    """Of the trait and of coherence, what their verdicts depend on."""
    generation: JsonObject = field(default_factory=dict)
    """How answers were sampled, and of which model."""
    questions: str | None = None
    """Content hash of these."""
    seed: Whole | None = None

    @model_serializer(mode="wrap")
    def _written(self, write: Any) -> dict[str, Any]:
        own = write(self)
        return {name: own[name] for name in _WRITTEN[type(self).__name__].split()}


@dataclass(frozen=True, kw_only=True)
class CoefficientSweep(SteeringRun):
    """`results.json`: one vector under several coefficients."""

    layer: Whole | None = None
    coefficients: Annotated[Mapping[AtCoefficient, SteeredScore], Len(1)]
    coherence: Mapping[AtCoefficient, Mapping[str, Whole | Number | None]] = field(
        default_factory=dict
    )
    """`mean`: how well the answers hold together, 0 to 100; `n` of them."""
    baseline: Number | None = None
    """Mean score under the coefficient 0."""
    max_delta: Number | None = None
    max_delta_coherent: Number | None = None
    controllability: Number | None = None
    """Pearson's r of score and coefficient."""
    spearman: Number | None = None
    slope: Number | None = None
    """Points per unit of coefficient."""
    vector: JsonObject = field(default_factory=dict)
    """As the JSON beside its tensors."""


@dataclass(frozen=True, kw_only=True)
class LayerSweep(SteeringRun):
    """`layer_sweep.json`: the vectors of a method with one strength, layer by layer."""

    coefficient: Number | None = None
    ratio: Number | None = None
    n_questions: Whole | None = None
    rollouts: Whole | None = None
    baseline_mean: Number | None = None
    baseline_coherence: Number | None = None
    layers: Annotated[Mapping[AtLayer, LayerScore], Len(1)]
    best_layer: Whole | None = None
    best_score: Number | None = None
    delta_from_baseline: Number | None = None
    coherence_threshold: Number | None = None
    best_layer_coherent: Whole | None = None
    timestamp: str | None = None


@dataclass(frozen=True, kw_only=True)
class CrossedScore(SteeredScore):
    """One trait's score on its own questions under the direction of a trait."""

    coherence_mean: Number | None = None
    delta: Number | None = None
    """Paired by question, against the answers without steering."""
    delta_ci95: Ends = None
    beyond_random: Number | None = None
    """The same against random directions as long, at the same layer."""
    beyond_random_ci95: Ends = None
    """Over questions and over a further random direction, too."""


@dataclass(frozen=True, kw_only=True)
class SteeredTrait:
    """What one trait's direction does to the traits that were asked."""

    coefficient: Number
    vector: JsonObject
    """As the JSON beside its tensors."""
    judged: Mapping[str, CrossedScore]
    """Trait that is asked -> its score; its own without the questions its setting was chosen on."""


@dataclass(frozen=True, kw_only=True)
class TraitMatrix:
    """`traits.json`: what steering each trait does to the judged score of every other."""

    schema: str
    baseline: Mapping[str, SteeredScore]
    """Trait that is asked -> its score without steering."""
    steered: Annotated[Mapping[str, SteeredTrait], Len(1)]
    how: JsonObject
    """Judges, sampling, the model; `left_out`: trait by which nothing was steered -> why."""


_WRITTEN = {
    "CoefficientSweep": "schema trait layer layer_convention method positions coefficients "
    "coherence coherence_warnings baseline max_delta max_delta_coherent controllability spearman "
    "slope chosen polarity std_ddof judge generation questions seed vector",
    "LayerSweep": "schema trait method layer_convention positions coefficient ratio n_questions "
    "rollouts baseline_mean baseline_coherence layers best_layer best_score delta_from_baseline "
    "coherence_warnings coherence_threshold best_layer_coherent chosen polarity std_ddof judge "
    "generation questions seed timestamp",
}
"""Fields of each file, in their order."""
SteeringRecord = Annotated[
    Annotated[CoefficientSweep, Tag("[coefficients]")] | Annotated[LayerSweep, Tag("[layers]")],
    Discriminator(lambda content: "[layers]" if "layers" in content else "[coefficients]"),
]
"""Scores by coefficient, or by layer."""


KINDS = {
    "steering": ResultKind(
        record=SteeringRecord,
        files=(STEERED, SWEPT),
        is_named=True,
        said=("steer-results", "steer-sweep"),
    ),
    "traits": ResultKind(
        record=TraitMatrix, files=(CROSSED,), is_named=True, said=("steer-traits",)
    ),
}
