"""From deltas to the rows, the summary and the files that a run leaves behind, manifest last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.files import write_csv, write_json, write_jsonl
from lensaudit.groups import Group, assumption, unit_of
from lensaudit.patching.options import ResolvedSettings
from lensaudit.patching.score_cache import ByToken
from lensaudit.progress import FolderRemark, Notice, unheard
from lensaudit.results.kinds.patch import (
    FILES,
    PAIR_COLUMNS,
    PatchRun,
    PatchSummary,
    differences,
    read_patch,
)
from lensaudit.results.manifest import COMPARISON, MANIFEST, Manifest
from lensaudit.results.owner import comparison_in
from lensaudit.results.reading import SUMMARY, document, null
from lensaudit.scores.depth import TAU, DepthScore, depth_score, mean_if_any
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean

Cells = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Columns and rows of layers.csv."""
NO_KE = "no layer encodes the fact: S1 delta never exceeds tau = {tau}"

RESOLUTION = 32 * 2**-24 / TAU
"""Least difference of a depth that can be told: rounding of a float32 log-prob (logits of up to 32
nats), in units of the least S1 that is a scale; 4e-5."""

BY_TOKEN = "lens_by_token"
"""Field of a row: log-prob of each token of the span that `full` reads after each layer."""


@dataclass(frozen=True)
class Outcome:
    """UDS of one source: per example, overall, and per layer."""

    source: str
    encoded: tuple[Encoded, ...]
    settings: ResolvedSettings
    baseline: Float[Tensor, " batch"]
    s1: Float[Tensor, "batch layer"]
    s2: Float[Tensor, "batch layer"]
    depth: DepthScore
    unscored: Mapping[int, str]
    """idx -> reason."""
    computed_by: Mapping[str, int] = field(default_factory=dict)
    """Versions -> how many scores, S1 and S2, they computed; empty where none are kept."""
    scale: Literal["", "counterfactual"] = ""
    """What S1 is of, where that is not `retain`."""
    by_token: Sequence[ByToken] = ()
    """What was read of each example by layer and token, nats; empty where streams are patched."""

    @property
    def score(self) -> Literal["uds", "lens", "counterfactual"]:
        """`uds`; `lens` where streams were read instead of patched in; or the scale's name."""
        return self.scale or ("lens" if self.settings.score == "lens" else "uds")

    @property
    def scored(self) -> Float[Tensor, " scored"]:
        """UDS of the examples that have one."""
        return self.depth.uds[self.depth.uds.isfinite()]

    @property
    def groups(self) -> list[Group]:
        """Author of each scored example."""
        return scored_groups(self.depth.uds, self.encoded)

    @property
    def estimate(self) -> Estimate:
        """Mean over the scored examples."""
        return mean_of(self.depth.uds, self.encoded)

    @property
    def uds(self) -> float | None:
        """UDS of the outcome; None where no example is scored."""
        return self.estimate.value

    @property
    def lost(self) -> dict[int, str]:
        """Idx -> why, of examples whose span the tokenizer lost."""
        known = {e.idx for e in self.encoded}
        return {idx: why for idx, why in self.unscored.items() if idx not in known}

    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per example, in the order of `idx`; lost spans included."""
        rows: list[dict[str, Any]] = [
            {
                "idx": e.idx,
                "group": e.group,
                "n_span": e.n_span,
                "baseline": float(self.baseline[at]),
                "s1": null(self.s1[at].tolist()),
                "s2": null(self.s2[at].tolist()),
                "ke": [self.settings.at_layers[k] for k in self.depth.ke[at].nonzero().flatten()],
                self.score: null(float(self.depth.uds[at])),
                "unscored": self.unscored.get(e.idx),
                **({BY_TOKEN: self.by_token[at]} if self.by_token else {}),
            }
            for at, e in enumerate(self.encoded)
        ]
        nothing = {**dict.fromkeys(("baseline", "s1", "s2")), "ke": [], self.score: None}
        rows += [{"idx": idx, **nothing, "unscored": why} for idx, why in self.lost.items()]
        return sorted(rows, key=lambda row: row["idx"])

    def layer_rows(self) -> list[dict[str, Any]]:
        """Means per layer: deltas over all examples, erasure over those with a KE layer there."""
        out = []
        for column, layer in enumerate(self.settings.at_layers):
            s1, s2 = self.s1[:, column].double(), self.s2[:, column].double()
            ke = self.depth.ke[:, column]
            both = ke & s2.isfinite()
            out.append(
                {
                    "layer": layer,
                    "n_ke": int(ke.sum()),
                    "s1": mean_if_any(s1),
                    # at KE layers only, where the profile computed nothing else
                    "s2": mean_if_any(s2) if bool(s2.isfinite().all()) else None,
                    "s1_ke": mean_if_any(s1[both]),
                    "s2_ke": mean_if_any(s2[both]),
                    "erasure": mean_if_any(self.depth.erasure[:, column].double()[both]),
                }
            )
        return out


@dataclass(frozen=True)
class Summarised:
    """What the folder of one source says."""

    summary: PatchSummary
    """Of summary.json, but for its verdict."""
    rows: Sequence[Mapping[str, Any]]
    """Of results.jsonl."""
    cells: Cells
    outcome: Outcome | None
    """The depth behind it; None of exact match."""


def scored_groups(values: Float[Tensor, " batch"], encoded: Sequence[Encoded]) -> list[Group]:
    """Author of each example that has a value."""
    return [e.group for e, yes in zip(encoded, values.isfinite().tolist(), strict=True) if yes]


def mean_of(
    values: Float[Tensor, " batch"],
    encoded: Sequence[Encoded],
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Estimate:
    """Mean of the values there are, with its 95 % interval by authors, or why there is none."""
    kept, groups = values[values.isfinite()], scored_groups(values, encoded)
    mean, rows = float(kept.double().mean()) if groups else None, resolved(kept).tolist()
    return clustered_mean(rows, groups, bounds=bounds, unit=unit_of(groups)).around(mean)


def resolved(values: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Depths, or differences of them, with 0 or 1 where no score can be told from it.

    Which kernel added up a row is then no spread: an interval counts rows at the ends of a scale.

    >>> import torch
    >>> resolved(torch.tensor([2e-7, 0.5, 0.99999]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    whole = values.round()
    return whole.where((values - whole).abs() < RESOLUTION, values)


def outcome_of(
    source: str,
    encoded: Sequence[Encoded],
    lost: Mapping[int, str],
    settings: ResolvedSettings,
    baseline: Float[Tensor, " batch"],
    s1: Float[Tensor, "batch layer"],
    s2: Float[Tensor, "batch layer"],
    *,
    misfit: str | None = None,
) -> Outcome:
    """Score the deltas of one source; see `scores.depth.depth_score`.

    `misfit`: why its stream could not be patched in at all.
    """
    depth = depth_score(s1, s2, tau=settings.tau)
    why, lacking = misfit or NO_KE.format(tau=settings.tau), depth.uds.isnan().tolist()
    unscored = {e.idx: why for e, none in zip(encoded, lacking, strict=True) if none}
    return Outcome(source, tuple(encoded), settings, baseline, s1, s2, depth, {**lost, **unscored})


def summary_of(outcome: Outcome, calibration: Mapping[str, float | None]) -> PatchSummary:
    """What a run says of one source, without what was found beside the score."""
    settings, found = outcome.settings, outcome.estimate
    value: dict[str, Any] = {outcome.score: outcome.uds}
    return PatchSummary(
        source=outcome.source,
        score=outcome.score,
        **value,
        ci95=found.ends,
        ci95_why=None if found.ends else found.why,
        ci95_assumes=assumption(outcome.groups),
        n=len(outcome.encoded) + len(outcome.lost),
        n_scored=len(outcome.scored),
        n_groups=len(set(outcome.groups)),
        unscored={str(idx): reason for idx, reason in sorted(outcome.unscored.items())},
        tau=settings.tau,
        last_layer=settings.last_layer,
        scope=settings.scope,
        component=settings.component,
        profile=settings.profile,
        engine=settings.computed_with,
        layers=list(settings.at_layers),
        calibration=dict(calibration),
        baseline=mean_if_any(outcome.baseline.double()),
        per_layer=outcome.layer_rows(),
    )


def beside(summary: PatchSummary, lens: Outcome) -> PatchSummary:
    """The summary of UDS with the Logit Lens depth of the same source beside it."""
    found = lens.estimate
    return replace(
        summary,
        lens=lens.uds,
        lens_ci95=found.ends,
        lens_ci95_why=None if found.ends else found.why,
        lens_n_scored=len(lens.scored),
        lens_per_layer=lens.layer_rows(),
    )


def calibration_of(
    encoded: Sequence[Encoded],
    settings: ResolvedSettings,
    s1: Float[Tensor, "batch layer"],
    self_patch: Float[Tensor, "batch layer"],
) -> dict[str, float | None]:
    """UDS of `full` and of `retain` as sources: 0 and 1 where everything is right.

    With `last_layer="reference"` full is off 0 by the reference's own last-layer error.
    """
    return {
        name: mean_of(depth_score(s1, s2, tau=settings.tau).uds, encoded).value
        for name, s2 in {"full": self_patch, "retain": s1}.items()
    }


LAYER_COLUMNS = ("idx", "group", "layer", "s1", "s2", "ke", "erasure")


def write_result(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    cells: Cells,
    summary: PatchSummary,
    manifest: Manifest,
) -> PatchRun:
    """Write results.jsonl, layers.csv, summary.json and, last, manifest.json; the run as it reads.

    Those of an earlier run go first: what is found here belongs to one finished run.
    """
    for name in (SUMMARY, MANIFEST):
        (folder / name).unlink(missing_ok=True)
    write_jsonl(folder / "results.jsonl", rows)
    write_csv(folder / "layers.csv", *cells)
    write_json(folder / SUMMARY, document(summary))
    replace(manifest, kind=summary.kind or "patch").write(folder, FILES)
    return read_patch(folder / SUMMARY)


def layer_cells(outcome: Outcome) -> Cells:
    """Table of the depth: a row per example and layer."""
    tables = (outcome.s1, outcome.s2, outcome.depth.ke, outcome.depth.erasure)
    rows = []
    for e, *parts in zip(outcome.encoded, *(table.tolist() for table in tables), strict=True):
        for layer, *numbers in zip(outcome.settings.at_layers, *parts, strict=True):
            s1, s2, ke, erasure = ("" if v is None else v for v in null(numbers))
            rows.append([e.idx, e.group, layer, s1, s2, int(ke), erasure])
    return LAYER_COLUMNS, rows


def write_comparison(
    runs: Sequence[PatchRun],
    manifest: Manifest,
    tell: Notice = unheard,
) -> None:
    """Write comparison.csv, one row per pair of sources, and its manifest.

    Args:
        runs: of one condition; the manifest keeps the names of their folders.
        manifest: of the run.
        tell: told where the table goes instead, if results in other folders have the usual one.
    """
    table = comparison_in([one.folder for one in runs])
    if table.name != COMPARISON:
        other = table.with_name(COMPARISON)
        tell(FolderRemark(f"{other}: compares other runs; these are compared in {table}"))
    header = [column.replace("score_", f"{runs[0].score}_") for column in PAIR_COLUMNS]
    write_csv(table, header, differences(runs))
    inputs = {**manifest.inputs, "folders": [one.folder.name for one in runs]}
    replace(manifest, kind="comparison", inputs=inputs).write(
        table.parent, (table.name,), f"{table.stem}_{MANIFEST}"
    )
