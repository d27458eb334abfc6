"""How deep is the knowledge erased? A finished run of `lensaudit patch`, of one source."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Len
from numpy.typing import NDArray
from pydantic import Field, PlainSerializer, model_serializer, model_validator

from lensaudit.groups import grouped, unit_of
from lensaudit.results.integrity import check_whole
from lensaudit.results.manifest import MANIFEST, NamedModel, model_in
from lensaudit.results.reading import (
    SUMMARY,
    AtLayer,
    JsonObject,
    Number,
    Share,
    Whole,
    checked,
    json_lines,
    json_object,
    part,
)
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.text import digest

Numbers = NDArray[np.float64]
FILES = ("results.jsonl", "layers.csv", SUMMARY)
SCORES = {"uds": "uds", "lens": "lens", "em": "udr", COUNTERFACTUAL: COUNTERFACTUAL}
"""What `summary.json` calls its score -> the field that holds the number."""
NOT_NEEDED = "not needed"
"""How the reason begins where no alignment ran because UDS is low."""

SAME = ("tau", "threshold", "em_form", "scope", "component", "last_layer", "layers")
"""Fields of the summary that make runs comparable, beside the models and the forget set."""


@dataclass(frozen=True)
class Texts:
    """Question and answer of an example; empty where the run did not keep them."""

    idx: int
    group: str
    question: str
    answer: str
    prefix: str
    entity: str


Ends = tuple[Number, Number] | None


def estimate_in(content: Any, name: str = "value") -> Any:
    """The fields of an Estimate that a file spells as NAME, ci95 and ci90."""
    if not isinstance(content, Mapping):
        return content
    limits = {}
    for spelled, ends in (("ci95", ("low", "high")), ("ci90", ("lower", "upper"))):
        pair = content.get(spelled) or (None, None)
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError(f"{spelled}: found {pair!r:.40}, wanted two numbers")
        limits |= dict(zip(ends, pair, strict=True))
    counted = {"n": content.get("n_scored"), "why": content.get("ci95_why")}
    return {"value": content.get(name), **limits, **counted}


def flat(name: str, *optional: str) -> tuple[Any, Any]:
    """Reading and writing of a record with an Estimate, whose numbers stand beside the rest.

    Args:
        name: of the field that is an Estimate.
        *optional: fields that are left out where there is nothing in them.
    """

    @model_validator(mode="before")
    @classmethod
    def read(cls: type, content: Any) -> Any:
        if not isinstance(content, Mapping) or content.get(name) is None:
            return content
        return {**content, name: estimate_in(content, name)}

    @model_serializer(mode="wrap")
    def write(self: Any, written: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, one in written(self).items():
            if key == name:
                found |= (getattr(self, name) or UNMEASURED).spelled(name)
            elif one or key not in optional:
                found[key] = one
        return found

    return read, write


def bare(found: Estimate | None) -> Estimate | None:
    """Value and limits, which is all that the record holds of a depth."""
    return found and replace(found, n=None, why=None)


Difference = Annotated[
    Estimate, PlainSerializer(lambda one: {"value": one.value, "low": one.low, "high": one.high})
]
"""Of two depths, paired by example."""


@dataclass(frozen=True)
class Weakest:
    """The strong layer that is erased least."""

    layer: Whole
    erasure: Estimate
    """Mean of min(1, max(0, s2 / s1)) over the facts that `full` encodes there."""

    _read, _write = flat("erasure")


@dataclass(frozen=True)
class Shared:
    """The aligned depth without directions that facts share, layer by layer.

    Much lower than the aligned depth: what hides the facts is one vector, or so many.
    """

    uds: Estimate | None = None
    weakest: Weakest | None = None
    drop: Difference | None = None
    """Aligned UDS minus this."""
    n: Whole = 1
    """Directions that are taken out of a layer."""
    why: str | None = None

    _read, _write = flat("uds")


@dataclass(frozen=True)
class Shift:
    """Distance of the aligned stream from `full`'s at forget prompts: was something added?

    By layer, the mean over the spans of |source - full| / |full|, in units of the same of models
    that never saw the facts.
    """

    layer: Whole
    """Where it is largest."""
    times: Number
    per_layer: Sequence[Number] = ()


@dataclass(frozen=True)
class Aligned:
    """UDS of the aligned source, and what shows whether the map means anything."""

    kind: Annotated[str | None, Field(alias="class")] = None
    """Class of the map."""
    uds: Estimate | None = None
    gap: Difference | None = None
    """Plain UDS minus the aligned one."""
    r2: Number | None = None
    shuffled: Number | None = None
    d_share: Number | None = None
    full: Number | None = None
    """Aligned UDS of `full` itself: 0 where the machinery is right."""
    weakest: Weakest | None = None
    """The strong layer that is erased least: a mean over layers hides what one of them holds."""
    shared: Shared = Shared()
    """Without the one direction that other authors' facts share."""
    many: Shared = Shared()
    """Without as many as there are authors, learnt from all facts but the judged one."""
    shift: Shift | None = None
    why: str | None = None
    experimental: bool = False
    """Of a source of another size or tokenizer: no verdict may rest on it."""
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Idx -> why an example has no aligned depth, of a source that has no other."""
    per_example: Annotated[Mapping[int, float], Field(exclude=True)] = field(
        default_factory=dict, compare=False
    )
    """Idx -> its aligned depth; the rows hold it."""

    _read, _write = flat("uds", "experimental", "unscored")


@dataclass(frozen=True)
class Validity:
    """Can `full` read this model at all? Deltas in nats per token."""

    v: Number | None = None
    """d / f; None where f is too small a part of S1 for a ratio."""
    d: Number | None = None
    """Drop on facts that the source still says, over the forget set's KE layers."""
    f: Number | None = None
    """The same on the forgotten facts."""
    d_share: Number | None = None
    """d in units of the drop that `full`'s own stream of another row makes."""
    n: Whole = 0
    ci95: Ends = None
    """Of `d_share`."""
    needed: bool = True
    """False where `full` reads the source so well that no ratio is needed."""
    why: str | None = None
    """Why it was not measured, or has no interval."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Shares of the facts said exactly after the prefix, greedily."""

    source: Share
    full: Share
    retain: Share | None = None
    """None: no retain model was named."""
    n: Whole
    n_groups: Whole = 0
    """Authors of these; 0 where another version wrote it."""
    per_author: Number | None = None
    """Facts of the author that a fact is of, in the mean; None where another version wrote it."""


Way = Literal["question", "chat"]
"""How a fact is asked: as the question of the patched prompt, or in the chat template."""


@dataclass(frozen=True)
class Answer:
    """What a model answers to one question, and whether it gives the fact away."""

    said: bool
    text: str


@dataclass(frozen=True)
class InType:
    """Shares of the facts that a model says when its numbers are of another type."""

    said: Share
    """Exactly after the prefix, greedily."""
    told: Share
    """Given away when asked once, in any way."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """Shares of the facts given away when each is asked once, greedily, in any way."""

    source: Share | None = None
    full: Share | None = None
    retain: Share | None = None
    """Mean over the models that never saw the facts; None: no such model was named."""
    n: Whole = 0
    """Facts asked."""
    n_groups: Whole = 0
    """Authors of these."""
    per_author: Number | None = None
    """Facts of the author that a fact is of, in the mean; None where another version wrote it."""
    ways: Mapping[Way, Outputs] = field(default_factory=dict)
    """The same of each way alone."""
    dtype: str = ""
    """Type of the numbers in which all of these ran."""
    types: Mapping[str, InType] = field(default_factory=dict)
    """Further types -> what the source says in them."""
    unasked: Mapping[AtLayer, str] = field(default_factory=dict)
    """Idx -> why a fact is not asked."""
    why: str | None = None
    """Why no fact was asked."""
    answers: Annotated[Mapping[int, Mapping[Way, Answer]], Field(exclude=True)] = field(
        default_factory=dict, compare=False
    )
    """Idx -> what the source says; the rows hold it."""

    @property
    def outputs(self) -> Outputs | None:
        """The shares in any way; None where no fact was asked."""
        if self.source is None or self.full is None:
            return None
        return Outputs(**{one.name: getattr(self, one.name) for one in fields(Outputs)})

    def beside(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of results.jsonl with the answers to each fact; None where it is not asked."""
        answers = {idx: {w: asdict(a) for w, a in one.items()} for idx, one in self.answers.items()}
        return [{**row, "told": answers.get(row["idx"])} for row in rows]


@dataclass(frozen=True)
class Floor:
    """Depth of never-trained models on each other's scale."""

    low: Number | None
    """Of the aligned depth; None where no map was fitted."""
    high: Number | None
    n_models: Whole
    uds: tuple[Number, ...]
    """Plain depth of those beside the anchor, on its scale."""
    aligned: tuple[Number, ...]
    """Aligned depth of the same, each on the scale of all others; none without a map."""


Code = Literal[
    "answers",
    "hidden",
    "hidden_other_basis",
    "unreadable",
    "partly_erased",
    "erased",
    "undecided",
    "unscored",
]


@dataclass(frozen=True)
class Verdict:
    """A code, the sentence that says it, and the chain that led to it."""

    code: Code
    sentence: str
    because: list[str]
    """From what it says to what attacks bring out, each with its number, interval and control."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The controls of one source, as summary.json holds them beside its score."""

    ci90: Ends = None
    """One-sided 95 % limits of the score."""
    weakest: Weakest | None = None
    """Of the stream as it is."""
    validity: Validity = Validity()
    aligned: Aligned = Aligned()
    floor: Floor | None = None
    outputs: Outputs | None = None
    told: Told | None = None
    """None: nobody was asked."""

    def beside(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of results.jsonl with each example's aligned score; None where it has none.

        And with what the source answers, where it was asked.
        """
        depths = self.aligned.per_example
        found = [{**row, "uds_aligned": depths.get(row["idx"])} for row in rows]
        return found if self.told is None else self.told.beside(found)


@dataclass(frozen=True, kw_only=True)
class KeptDepth:
    """What was lost of facts to keep: 0 nothing, 1 all that the anchor lacks."""

    anchor: str = ""
    """The model that never saw them, or `counterfactual`."""
    relative_to: str = ""
    depth: Number | None
    ci95: Ends = None
    ci95_why: str | None = None
    n_scored: Whole = 0
    n: Whole = 0
    rows_hash: str = ""
    unscored: Mapping[str, Whole] = field(default_factory=dict)
    """Reason -> facts."""
    over_erasure_nats: Number | None = None
    strata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Depth of facts by how near they are to those to forget."""
    selectivity: Mapping[str, Any] = field(default_factory=dict)
    """UDS of the forgotten facts minus the depth."""
    authors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Where collateral is narrow, its mean hides it."""

    @property
    def estimate(self) -> Estimate:
        """The depth."""
        return Estimate.within(self.depth, self.ci95, n=self.n_scored, why=self.ci95_why)


_EVERY = "kind anchor source score"
_COUNTED = "ci95 ci95_why ci95_assumes n n_scored n_groups unscored"
_HOW = (
    "tau last_layer scope component profile engine layers n_unpatched calibration baseline "
    "per_layer"
)
_LENS = "lens lens_ci95 lens_ci95_why lens_n_scored lens_per_layer"
_CONTROLS = "spans collateral ci90 weakest validity aligned floor outputs told verdict"
WRITTEN: Mapping[str, Sequence[str]] = {
    score: fields.split()
    for score, fields in {
        "uds": f"{_EVERY} uds {_COUNTED} {_HOW} {_LENS} {_CONTROLS}",
        "lens": f"{_EVERY} lens {_COUNTED} {_HOW} {_CONTROLS}",
        "em": f"{_EVERY} em_form threshold udr ci95 ci95_why ci95_assumes retention retention_ci95 "
        "retention_ci95_why n n_scored n_groups unscored categories category_percent "
        "over_erased_by udr_histogram calibration last_layer layers per_layer scope component "
        "max_new_tokens reference_tokens truth_em n_full_lost n_reference_cut " + _CONTROLS,
        COUNTERFACTUAL: f"{_EVERY} {COUNTERFACTUAL} {_COUNTED} {_HOW} spans scale outputs told "
        "verdict",
    }.items()
}
"""Score -> fields of its `summary.json`, in their order."""
_IF_ASKED = {
    *("kind", "anchor", "collateral", "max_new_tokens", "reference_tokens"),
    *("n_full_lost", "n_reference_cut", "verdict", "n_unpatched"),
}
"""Fields that are left out where nothing was asked."""


@dataclass(frozen=True, kw_only=True)
class PatchSummary(Examined):
    """`summary.json` of a run of `patch`; what was not asked has its default."""

    kind: str | None = None
    """Of a run without a retain model."""
    anchor: str | None = None
    source: str
    score: Literal["uds", "lens", "em", "counterfactual"]
    uds: Number | None = None
    counterfactual: Number | None = None
    ci95: Ends = None
    """Of the score, by authors."""
    ci95_why: str | None = None
    ci95_assumes: str | None = None
    n: Whole = 0
    """Examples."""
    n_scored: Whole
    n_groups: Whole = 0
    """Authors of those that are scored."""
    unscored: Mapping[AtLayer, str] = field(default_factory=dict)
    tau: Number | None = None
    last_layer: str = ""
    scope: str = "span"
    component: str = "resid"
    profile: str = "full"
    engine: str = "sweep"
    layers: Annotated[list[Whole], Len(1)] = field(default_factory=list)
    n_unpatched: Whole | None = None
    """Layers of `full` that `--layers` left out; None: none, or an older run does not say."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """What `full` and `retain` read as sources: a number, or the rates of exact match."""
    baseline: Number | None = None
    """Mean log-prob of the spans by `full`, nats per token."""
    per_layer: list[dict[str, Any]] = field(default_factory=list)
    """Means at each layer, nats per token or shares."""
    lens: Number | None = None
    lens_ci95: Ends = None
    lens_ci95_why: str | None = None
    lens_n_scored: Whole = 0
    lens_per_layer: list[dict[str, Any]] = field(default_factory=list)
    """Of the Logit Lens beside UDS; empty where it was not asked."""
    spans: Mapping[str, Whole] = field(default_factory=dict)
    """Facts by who chose their span: `rule` or `reviewed`."""
    scale: Mapping[str, Any] | None = None
    """What models of known truth read without a retain model."""
    collateral: Mapping[str, KeptDepth] = field(default_factory=dict)
    em_form: str = ""
    """Of exact match, by generation or by teacher forcing; so is all below."""
    threshold: Number | None = None
    udr: Number | None = None
    retention: Number | None = None
    retention_ci95: Ends = None
    retention_ci95_why: str | None = None
    categories: Mapping[str, Whole] = field(default_factory=dict)
    category_percent: Mapping[str, Number | None] | None = field(default_factory=dict)
    """Of the examples that are no general knowledge; None where all are."""
    over_erased_by: Any = None
    udr_histogram: Mapping[str, Whole] = field(default_factory=dict)
    max_new_tokens: Whole | None = None
    reference_tokens: Whole | None = None
    truth_em: Mapping[str, Number] = field(default_factory=dict)
    n_full_lost: Whole | None = None
    n_reference_cut: Whole | None = None
    verdict: Verdict | None = None
    """What may be said after the run alone."""

    @model_serializer(mode="wrap")
    def _write(self, written: Any) -> dict[str, Any]:
        own = written(self)
        beside = _LENS.split() if self.score == "uds" and not self.lens_per_layer else ()
        left = {*beside, *(name for name in _IF_ASKED if own[name] in (None, {}))}
        return {name: own[name] for name in WRITTEN[self.score] if name not in left}

    @property
    def estimate(self) -> Estimate:
        """The score over all examples, `n` of which are scored."""
        value = getattr(self, SCORES[self.score])
        return Estimate.within(value, self.ci95, self.ci90, n=self.n_scored, why=self.ci95_why)

    @property
    def by_reason(self) -> dict[str, list[int]]:
        """Examples without a score, by reason."""
        return grouped((reason, int(idx)) for idx, reason in self.unscored.items())


@dataclass(frozen=True, kw_only=True)
class PatchRun(PatchSummary):
    """A finished run of one source: its summary, its rows, and what it was made of."""

    folder: Path
    weights: str
    """Content hash of the source: what results of one model are joined by."""
    models: Mapping[str, NamedModel]
    """`full` and `retain`, by role."""
    summary: JsonObject
    """The summary, as read from its file."""
    manifest: JsonObject
    examples: tuple[Texts, ...]
    rows: tuple[JsonObject, ...]
    """As in results.jsonl, in the order of `examples`."""
    s1: Numbers
    """Deltas by example and layer, nats per token; shares for EM."""
    s2: Numbers
    scores: Numbers
    """By example; NaN where unscored."""
    baselines: Numbers
    """By example, nats per token."""
    condition: str
    """Hash of everything that runs must share to be compared row by row."""

    def minus(self, other: "PatchRun") -> tuple[Estimate, int]:
        """Mean of its scores minus those of another run, and the authors that it is of.

        Over the examples that both score; the interval is by authors, or by rows.
        """
        from lensaudit.scores.intervals import clustered_mean  # scipy takes a while to import

        gaps = self.scores - other.scores
        both = np.isfinite(gaps)
        groups = [one.group for one, yes in zip(self.examples, both, strict=True) if yes]
        found = clustered_mean(gaps[both], groups, bounds=(-1.0, 1.0), unit=unit_of(groups))
        return found, len(set(groups))


PAIR_COLUMNS = ("a", "b", "score_a", "score_b", "difference", "low", "high", "n", "n_groups", "why")


def differences(runs: Sequence[PatchRun]) -> Iterator[list[Any]]:
    """Every pair of runs of one condition, as rows of comparison.csv.

    Without an interval its ends are empty, and the last column says why.
    """
    for first, second in combinations(runs, 2):
        found, n_groups = first.minus(second)
        yield [
            *(first.source, second.source, first.estimate.value, second.estimate.value),
            *(found.value, found.low, found.high, found.n, n_groups, found.why),
        ]


def rows_hash(manifest: Mapping[str, Any] | None) -> Any:
    """What tells one set of rows from another, of the manifest of a run that asks some."""
    return part(manifest, "inputs", "examples").get("hash")


def read_patch(summary_file: Path, texts: Mapping[int, Texts] | None = None) -> PatchRun:
    """A run from its folder; `texts` fills in what the rows do not hold.

    Its checksums are compared; what they hold for is believed.

    Raises:
        InputError: a file is missing, or is not as the run wrote it.
    """
    check_whole(summary_file)
    folder = summary_file.parent
    summary, manifest = json_object(summary_file), json_object(folder / MANIFEST)
    found = checked(PatchSummary, summary, summary_file)
    rows = tuple(json_lines(folder / "results.jsonl"))
    models = {role: model_in(manifest, role, folder) for role in ("full", "retain")}
    shared = [
        [one.weights for one in models.values()],
        {name: summary.get(name) for name in SAME},
        summary["score"],
        part(manifest, "options").get("dtype"),
        [row.get("idx") for row in rows],
        rows_hash(manifest),
    ]
    delta = "_em" if found.score == "em" else ""
    return PatchRun(
        **vars(found),
        folder=folder,
        weights=model_in(manifest, "source", folder).weights or found.source,
        models=models,
        summary=summary,
        manifest=manifest,
        examples=tuple(_texts(row, (texts or {}).get(row["idx"])) for row in rows),
        rows=rows,
        s1=_numbers(rows, f"s1{delta}", len(found.layers)),
        s2=_numbers(rows, f"s2{delta}", len(found.layers)),
        scores=_numbers(rows, SCORES[found.score]),
        baselines=_numbers(rows, "baseline"),
        condition=digest(shared),
    )


def _numbers(rows: Sequence[JsonObject], name: str, *width: int) -> Numbers:
    """A field of every row, of one number or of `width`; gaps are NaN."""
    gap = [None] * width[0] if width else None
    return np.array([gap if row.get(name) is None else row[name] for row in rows], np.float64)


def is_filled(row: JsonObject, known: Texts) -> bool:
    """Whether texts that are known say of a row what it does not hold itself."""
    return _texts(row, known) != _texts(row, None)


def _texts(row: JsonObject, known: Texts | None) -> Texts:
    names = ("question", "answer", "prefix", "entity")
    words = {name: str(row.get(name) or (getattr(known, name) if known else "")) for name in names}
    return Texts(row["idx"], str(row.get("group", known.group if known else "")), **words)
