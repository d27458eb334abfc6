"""From exact matches to the rows, the summary and the files that an EM run leaves behind."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.files import write_csv, write_json, write_jsonl
from lensaudit.groups import Group, assumption, unit_of
from lensaudit.patching.audit import Audit
from lensaudit.patching.deposit import FILES, with_texts
from lensaudit.patching.em_audit import EmFound, EmOptions
from lensaudit.patching.outcome import finite
from lensaudit.results.records import Manifest
from lensaudit.scores.erasure import Erasure, ExactMatch, erasure_score, layer_status, tally
from lensaudit.scores.intervals import NO_ROWS, Limits, clustered_mean, limits_document

NO_FT = (
    "no FT layer: with retain patched in, full still gives the answer at every layer "
    "(general knowledge)"
)
LAYER_COLUMNS = ("idx", "group", "layer", "s1_em", "s2_em", "s1_lost", "s2_lost", "label")


@dataclass(frozen=True)
class EmOutcome:
    """Erasure rate of one source: per example, overall, and per layer."""

    source: str
    weights: str
    """The source's content hash: its key in `found`."""
    audit: Audit
    em: EmOptions
    found: EmFound
    encoded: tuple[Encoded, ...]
    """The examples with a reference; rows of the tables below."""
    s1: ExactMatch
    s2: ExactMatch
    erasure: Erasure
    unscored: Mapping[int, str]
    """idx -> reason; examples without FT layers among them."""

    def rate(self, values: Float[Tensor, " batch"]) -> float | None:
        """Mean of `erasure.udr` or `.retention` over the scored examples; None without any."""
        return _mean(values[self.erasure.udr.isfinite()])

    def interval(self, values: Float[Tensor, " batch"]) -> Limits:
        """95 % interval of that mean by authors, or why there is none."""
        chosen, groups = self.erasure.udr.isfinite(), self.groups()
        if not groups:
            return NO_ROWS
        return clustered_mean(values[chosen].tolist(), groups, unit=unit_of(groups))

    def groups(self) -> list[Group]:
        """Author of each scored example."""
        chosen = self.erasure.udr.isfinite().tolist()
        return [e.group for e, yes in zip(self.encoded, chosen, strict=True) if yes]

    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per example, in the order of `idx`; unscored ones included."""
        place = {e.idx: row for row, e in enumerate(self.encoded)}
        rows = [
            {"idx": e.idx, "group": e.group, "n_span": e.n_span}
            | (self._numbers(place[e.idx]) if e.idx in place else dict(_NO_NUMBERS))
            | {"unscored": self.unscored.get(e.idx)}
            | self._unpatched(at)
            for at, e in enumerate(self.audit.encoded)
        ]
        rows += [
            {"idx": lost.idx, **_NO_NUMBERS, "unscored": lost.reason} for lost in self.audit.lost
        ]
        return sorted(rows, key=lambda row: row["idx"])

    def _numbers(self, row: int) -> dict[str, Any]:
        erasure, layers = self.erasure, self.audit.options.layers
        udr, retention = finite([float(erasure.udr[row]), float(erasure.retention[row])])
        return {
            "s1_em": self.s1[row].tolist(),
            "s2_em": self.s2[row].tolist(),
            "ft": [
                at for at, yes in zip(layers, erasure.s1_lost[row].tolist(), strict=True) if yes
            ],
            "udr": udr,
            "retention": retention,
            "category": erasure.category[row],
        }

    def _unpatched(self, at: int) -> dict[str, Any]:
        """What the models do by themselves with one example."""
        audit, found = self.audit, self.found
        if self.em.form == "teacher":
            return {"baseline": found.unpatched[audit.full.weights].em[at]}
        roles = {"full": audit.full.weights, "retain": audit.retain.weights, "source": self.weights}
        texts = {role: found.unpatched[key].texts or () for role, key in roles.items()}
        said = {stage: found.patched[roles[role]].texts or () for stage, role in _STAGES.items()}
        return {
            "texts": {role: texts[role][at] for role in roles},
            "truth_em": {role: found.unpatched[key].em[at] for role, key in roles.items()},
        } | {f"{stage}_texts": list(lines[at]) for stage, lines in said.items()}

    def layer_rows(self) -> list[dict[str, Any]]:
        """Means per layer over all examples with a reference."""
        rows = []
        for column, layer in enumerate(self.audit.options.layers):
            lost = self.erasure.s1_lost[:, column], self.erasure.s2_lost[:, column]
            rows.append(
                {
                    "layer": layer,
                    "s1_em": _mean(self.s1[:, column]),
                    "s2_em": _mean(self.s2[:, column]),
                    "s1_lost": _mean(lost[0].double()),
                    "s2_lost": _mean(lost[1].double()),
                    "status": layer_status(*lost),
                }
            )
        return rows

    def cells(self) -> list[list[Any]]:
        """One row per example and layer, for `layers.csv`."""
        rows = []
        tables = (self.s1, self.s2, self.erasure.s1_lost.int(), self.erasure.s2_lost.int())
        for row, e in enumerate(self.encoded):
            parts = [table[row].tolist() for table in tables]
            labels = [label.strip("-") for label in self.erasure.labels(row)]
            columns = zip(self.audit.options.layers, *parts, labels, strict=True)
            rows += [[e.idx, e.group, *cells] for cells in columns]
        return rows


_STAGES = {"s1": "retain", "s2": "source"}
_NO_NUMBERS: Mapping[str, Any] = {
    "s1_em": None,
    "s2_em": None,
    "ft": [],
    "udr": None,
    "retention": None,
    "category": None,
}


def em_outcome_of(
    source: str, weights: str, audit: Audit, em: EmOptions, found: EmFound
) -> EmOutcome:
    """Score one source against `retain`; see `scores.erasure.erasure_score`."""
    there = [at for at, e in enumerate(audit.encoded) if e.idx not in found.unscored]
    encoded = tuple(audit.encoded[at] for at in there)
    s1, s2 = (found.patched[key].em[there] for key in (audit.retain.weights, weights))
    erasure = erasure_score(s1, s2, layers=audit.options.layers, threshold=em.threshold)
    unscored = {item.idx: item.reason for item in audit.lost} | dict(found.unscored)
    for e, rate in zip(encoded, erasure.udr.tolist(), strict=True):
        if math.isnan(rate):
            unscored[e.idx] = NO_FT
    return EmOutcome(source, weights, audit, em, found, encoded, s1, s2, erasure, unscored)


def em_summary_of(outcome: EmOutcome) -> dict[str, Any]:
    """The content of `summary.json`."""
    audit, em, erasure = outcome.audit, outcome.em, outcome.erasure
    counted = tally(erasure)
    udr = erasure.udr[erasure.udr.isfinite()]
    anchors = {
        name: em_outcome_of(name, checkpoint.weights, audit, em, outcome.found)
        for name, checkpoint in (("full", audit.full), ("retain", audit.retain))
    }
    return {
        "source": outcome.source,
        "score": "em",
        "em_form": em.form,
        "threshold": em.threshold,
        "udr": outcome.rate(erasure.udr),
        **limits_document(outcome.interval(erasure.udr)),
        "ci95_assumes": assumption(outcome.groups()),
        "retention": outcome.rate(erasure.retention),
        **limits_document(outcome.interval(erasure.retention), "retention_ci95"),
        "n": len(audit.encoded) + len(audit.lost),
        "n_scored": len(udr),
        "n_groups": len(set(outcome.groups())),
        "unscored": {str(idx): reason for idx, reason in sorted(outcome.unscored.items())},
        "categories": dict(counted.count),
        "category_percent": counted.percent and dict(counted.percent),
        "over_erased_by": {"layers": counted.extra, "first_layer": counted.lead},
        "udr_histogram": {
            "erased": int((udr == 1).sum()),
            "partly": int(((udr > 0) & (udr < 1)).sum()),
            "intact": int((udr == 0).sum()),
        },
        "calibration": {
            name: {"udr": one.rate(one.erasure.udr), "retention": one.rate(one.erasure.retention)}
            for name, one in anchors.items()
        },
        "last_layer": audit.options.last_layer,
        "layers": list(audit.options.layers),
        "per_layer": outcome.layer_rows(),
    } | _form_part(outcome)


def _form_part(outcome: EmOutcome) -> dict[str, Any]:
    """What only one of the two forms has."""
    audit, em, found = outcome.audit, outcome.em, outcome.found
    if em.form == "teacher":
        own = found.unpatched[audit.full.weights].em
        return {
            "scope": audit.options.scope,
            "component": audit.options.component_name,
            "truth_em": {"full": sum(own) / len(own)},
            "n_full_lost": sum(value < em.threshold for value in own),
        }
    keys = {"full": audit.full.weights, "retain": audit.retain.weights, "source": outcome.weights}
    means = {role: found.unpatched[key].em for role, key in keys.items()}
    return {
        "scope": "last prompt token",
        "component": "resid",
        "max_new_tokens": em.max_new_tokens,
        "reference_tokens": em.reference_tokens,
        "truth_em": {role: sum(values) / len(values) for role, values in means.items()},
        "n_reference_cut": found.n_cut,
    }


def deposit_em(
    folder: Path, outcome: EmOutcome, summary: Mapping[str, Any], manifest: Manifest
) -> None:
    """Write results.jsonl, layers.csv, summary.json and, last, manifest.json."""
    rows = with_texts(outcome.rows(), outcome.audit.examples)
    write_jsonl(folder / "results.jsonl", rows)
    write_csv(folder / "layers.csv", LAYER_COLUMNS, outcome.cells())
    write_json(folder / "summary.json", dict(summary))
    manifest.write(folder, FILES)


def _mean(values: Float[Tensor, " value"]) -> float | None:
    return float(values.double().mean()) if len(values) else None
