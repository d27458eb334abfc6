"""What did `lensaudit patch` find? One run: a source under one set of conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Len
from numpy.typing import NDArray

from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.results.reading import (
    AtLayer,
    JsonObject,
    Number,
    Share,
    Text,
    Whole,
    check_inside,
    checked,
    checked_as,
    json_lines,
    json_object,
    need,
    part,
)
from lensaudit.results.records import MadeBy, check_result
from lensaudit.scores.estimate import Estimate
from lensaudit.settings import COUNTERFACTUAL

Numbers = NDArray[np.float64]
SCORES = {"uds": "uds", "lens": "lens", "em": "udr", COUNTERFACTUAL: COUNTERFACTUAL}
"""What `summary.json` calls its score -> the field that holds the number."""

_SAME = ("tau", "threshold", "em_form", "scope", "component", "last_layer", "layers")
"""Fields of the summary that make runs comparable, beside the models and the forget set."""


@dataclass(frozen=True)
class Texts:
    """One example as it was asked; empty where the run did not keep it."""

    idx: int
    group: str
    question: str
    answer: str
    prefix: str
    entity: str


@dataclass(frozen=True)
class PatchRun:
    """A finished run of one source."""

    folder: Path
    source: str
    weights: str
    """Content hash of the source: what results of one model are joined by."""
    score: str
    """`uds`, `lens` or `em`."""
    estimate: Estimate
    """The score over all examples; `n` of them are scored."""
    summary: JsonObject
    manifest: JsonObject
    examples: tuple[Texts, ...]
    rows: tuple[JsonObject, ...]
    """As in results.jsonl, in the order of `examples`."""
    layers: tuple[int, ...]
    s1: Numbers
    """Deltas by example and layer, nats per token; shares for EM."""
    s2: Numbers
    scores: Numbers
    """By example; NaN where unscored."""
    baseline: Numbers
    condition: str
    """Hash of everything that runs must share to be compared row by row."""


Ends = tuple[Number, Number] | None


@dataclass(frozen=True)
class WeakLayer:
    """The strong layer that is erased least."""

    layer: Whole
    erasure: Number
    ci95: Ends = None
    ci90: Ends = None


@dataclass(frozen=True)
class Gap:
    """A paired difference of two depths."""

    value: Number
    low: Number | None = None
    high: Number | None = None


@dataclass(frozen=True)
class WithoutDirection:
    """The aligned depth without the direction that facts share."""

    uds: Number | None = None
    ci95: Ends = None
    ci90: Ends = None
    weakest: WeakLayer | None = None
    drop: Gap | None = None
    why: str | None = None


@dataclass(frozen=True)
class AlignedDepth:
    """The depth after a map to the basis of `full`."""

    uds: Number | None = None
    ci95: Ends = None
    ci90: Ends = None
    shuffled: Number | None = None
    d_share: Number | None = None
    full: Number | None = None
    weakest: WeakLayer | None = None
    gap: Gap | None = None
    shared: WithoutDirection | None = None
    experimental: bool = False
    why: str | None = None


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

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return {**vars(self), "ci95": None if self.ci95 is None else list(self.ci95)}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Shares of the facts said exactly after the prefix, greedily."""

    source: Share
    full: Share
    retain: Share | None = None
    """None: no retain model was named."""
    n: Whole


@dataclass(frozen=True)
class Floor:
    """Depth of never-trained models on each other's scale."""

    low: Number
    """Of the aligned depth."""
    high: Number
    n_models: Whole
    uds: tuple[Number, ...]
    """Plain depth of those beside the anchor, on its scale."""
    aligned: tuple[Number, ...]
    """Aligned depth of the same, each on the scale of all others."""


@dataclass(frozen=True, kw_only=True)
class DepthSummary:
    """What a verdict reads of `summary.json`; what an older run has not is not measured."""

    source: str
    score: str
    n_scored: Whole
    n_groups: Whole = 0
    scope: str = "span"
    uds: Number | None = None
    ci95: Ends = None
    ci90: Ends = None
    ci95_why: str | None = None
    lens: Number | None = None
    lens_ci95: Ends = None
    weakest: WeakLayer | None = None
    validity: Validity = Validity()
    aligned: AlignedDepth = AlignedDepth()
    outputs: Outputs | None = None
    floor: Floor | None = None


@dataclass(frozen=True, kw_only=True)
class PatchSummary(DepthSummary):
    """What `summary.json` must hold."""

    source: Text
    score: Literal["uds", "lens", "em", "counterfactual"]
    n: Whole
    layers: Annotated[list[Whole], Len(1)]
    calibration: dict[str, Any]
    per_layer: list[dict[str, Any]]
    udr: Number | None = None
    counterfactual: Number | None = None
    retention: Number | None = None
    ci95_assumes: str | None = None
    unscored: dict[str, str] | None = None
    collateral: "dict[str, Lost]" = field(default_factory=dict)
    tau: Number | None = None
    n_reference_cut: Whole | None = None
    n_full_lost: Whole | None = None


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

    def document(self) -> dict[str, Any]:
        """As summary.json holds it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class _ShownDepth:
    """What a screen shows of a run with `--score uds` or `lens`, beside the above."""

    n: Whole
    ci95: Ends
    unscored: dict[AtLayer, str]
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class _ShownMatch:
    """The same of a run with `--score em`."""

    udr: Number | None
    ci95: Ends
    retention: Number | None
    unscored: dict[AtLayer, str]
    categories: dict[str, Whole]
    em_form: str
    threshold: Number
    per_layer: "list[_ShownEmLayer]"
    calibration: "dict[str, _Rates]"
    max_new_tokens: Whole | None = None
    """Of forms that write text."""


@dataclass(frozen=True)
class _Layer:
    """A layer of `per_layer`."""

    layer: Number | None
    n_ke: Number | None
    s1: Number | None
    s2: Number | None
    s1_ke: Number | None
    s2_ke: Number | None
    erasure: Number | None


@dataclass(frozen=True)
class LostPart:
    """A mean depth; None with a reason, or without rows."""

    depth: Number | None
    n_scored: Whole
    ci95: tuple[Number, Number] | None
    ci95_why: str | None = None


@dataclass(frozen=True)
class Selective:
    """UDS of the forgotten facts minus the depth of the kept ones."""

    value: Number | None
    ci95: tuple[Number, Number] | None


@dataclass(frozen=True)
class Lost:
    """A set of facts to keep under `collateral`."""

    anchor: str
    relative_to: str
    depth: Number | None
    ci95: tuple[Number, Number] | None
    n: Whole
    n_scored: Whole
    over_erasure_nats: Number | None
    strata: dict[str, LostPart]
    selectivity: Selective


@dataclass(frozen=True)
class _EmLayer:
    """The same of an exact-match audit."""

    layer: Number | None
    s1_em: Number | None
    s2_em: Number | None


@dataclass(frozen=True)
class _ShownEmLayer(_EmLayer):
    s1_lost: Number | None
    s2_lost: Number | None
    status: str


@dataclass(frozen=True)
class _Rates:
    """An anchor of an exact-match audit."""

    udr: Number | None
    retention: Number | None


def read_patch(summary_file: Path, texts: Mapping[int, Texts]) -> PatchRun:
    """A run from its folder; `texts` fills in what the rows do not hold.

    Raises:
        InputError: a file is missing, damaged or of another tool.
    """
    folder = summary_file.parent
    check_result(summary_file)
    summary = json_object(summary_file)
    found = _checked(summary, summary_file)
    manifest = json_object(folder / "manifest.json")
    checked(MadeBy, manifest, folder / "manifest.json")
    rows = tuple(json_lines(folder / "results.jsonl"))
    if not rows:
        raise InputError(f"{folder / 'results.jsonl'}: holds no example")
    layers = tuple(found.layers)
    own = SCORES[found.score]
    delta = "_em" if found.score == "em" else ""
    run = PatchRun(
        folder=folder,
        source=found.source,
        weights=str(_part(manifest, "source").get("weights") or found.source),
        score=found.score,
        estimate=Estimate.within(
            getattr(found, own), found.ci95, n=found.n_scored, why=found.ci95_why
        ),
        summary=summary,
        manifest=manifest,
        examples=tuple(_texts(row, texts, folder) for row in rows),
        rows=rows,
        layers=layers,
        s1=_numbers(rows, f"s1{delta}", folder, width=len(layers)),
        s2=_numbers(rows, f"s2{delta}", folder, width=len(layers)),
        scores=_numbers(rows, own, folder),
        baseline=_numbers(rows, "baseline", folder),
        condition=_condition(summary, manifest, rows),
    )
    _check_rows(found, run.scores, folder)
    return run


def _checked(summary: JsonObject, where: Path) -> PatchSummary:
    """The parts that decide, each of its kind.

    Raises:
        InputError: names the first that is not.
    """
    found = checked(PatchSummary, summary, where)
    _check_ranges(found, where)
    is_match = found.score == "em"
    checked_as(list[_EmLayer if is_match else _Layer], found.per_layer, f"{where}: per_layer")
    if not is_match:
        checked_as(dict[str, Number | None], found.calibration, f"{where}: calibration")
    return found


def read_shown(where: Path) -> JsonObject:
    """The content of `summary.json`, with all that a screen shows of it.

    Raises:
        InputError: as `read_patch`, and where this version shows more than the file holds.
    """
    summary = json_object(where)
    found = _checked(summary, where)
    checked(_ShownMatch if found.score == "em" else _ShownDepth, summary, where)
    need(summary, where, SCORES[found.score])
    if found.score != "em":
        anchor = COUNTERFACTUAL if found.score == COUNTERFACTUAL else "retain"
        need(found.calibration, f"{where}: calibration", "full", anchor)
    elif found.udr is not None and found.retention is None:
        raise InputError(f"{where}: retention: found None, wanted a number beside a UDR")
    return summary


def _check_ranges(found: PatchSummary, where: Path) -> None:
    """Refuse a score that no run can have.

    Raises:
        InputError: outside 0 to 1, or outside its own interval.
    """
    value = getattr(found, SCORES[found.score])
    if value is not None and not 0 <= value <= 1:
        raise InputError(f"{where}: {found.score} is {value:g}, wanted 0 to 1")
    check_inside(Estimate.within(value, found.ci95), f"{where}: {found.score}")


def _check_rows(found: PatchSummary, scores: Numbers, folder: Path) -> None:
    """Refuse rows that the summary is not of.

    Raises:
        InputError: other numbers of rows or scores, a score outside 0 to 1, or another mean.
    """
    where, scored = folder / "results.jsonl", scores[~np.isnan(scores)]
    if len(scores) != found.n or len(scored) != found.n_scored:
        raise InputError(
            f"{where}: has {len(scores)} rows, {len(scored)} of them scored; summary.json says "
            f"{found.n} and {found.n_scored}"
        )
    if (scored < 0).any() or (scored > 1).any():
        raise InputError(f"{where}: a row's {found.score} is not between 0 and 1")
    value = getattr(found, SCORES[found.score])
    if found.score != "em" and value is not None and not np.isclose(scored.mean(), value, 1e-6):
        raise InputError(
            f"{where}: its rows have a mean {found.score} of {scored.mean():g}; summary.json says "
            f"{value:g}"
        )


def unscored_of(summary: JsonObject) -> dict[str, list[int]]:
    """Examples without a score, by reason."""
    reasons: dict[str, list[int]] = {}
    for idx, reason in part(summary, "unscored").items():
        if str(idx).isdigit():
            reasons.setdefault(str(reason), []).append(int(idx))
    return reasons


def role_of(manifest: JsonObject, role: str) -> str:
    """The name of `full` or `retain`."""
    return str(_part(manifest, role).get("name", "?"))


def _part(manifest: JsonObject, role: str) -> JsonObject:
    return part(manifest, "inputs", role)


def _numbers(rows: Sequence[JsonObject], name: str, folder: Path, *, width: int = 0) -> Numbers:
    """A field of every row, of one number or of `width`; gaps are NaN."""
    gap = [None] * width if width else None
    found = [gap if row.get(name) is None else row[name] for row in rows]
    wanted = f"{width} numbers" if width else "a number"
    try:
        values = np.array(found, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder / 'results.jsonl'}: a row's {name} is not {wanted}") from error
    if values.shape != ((len(rows), width) if width else (len(rows),)) or np.isinf(values).any():
        raise InputError(f"{folder / 'results.jsonl'}: a row's {name} is not {wanted}")
    return values


def _texts(row: JsonObject, given: Mapping[int, Texts], folder: Path) -> Texts:
    idx = row.get("idx")
    if type(idx) is not int:
        raise InputError(f"{folder / 'results.jsonl'}: a row has no idx")
    known = given.get(idx)
    names = ("question", "answer", "prefix", "entity")
    words = {name: str(row.get(name) or (getattr(known, name) if known else "")) for name in names}
    return Texts(idx=idx, group=str(row.get("group", known.group if known else "")), **words)


def _condition(summary: JsonObject, manifest: JsonObject, rows: Sequence[JsonObject]) -> str:
    """Runs with the same hash share S1, baseline and examples."""
    models = [_part(manifest, role).get("weights") for role in ("full", "retain")]
    settings = {name: summary.get(name) for name in _SAME}
    engine = "lens" if summary["score"] == "lens" else summary["score"]
    dtype = manifest["options"].get("dtype")
    idx = [row.get("idx") for row in rows]
    return digest([models, settings, engine, dtype, idx, _part(manifest, "examples").get("hash")])
