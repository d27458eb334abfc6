"""Scores of a model from inside: patched into `full`, read by it, or compared with it.

Patched and read scores are those of `lensaudit patch`. CKA reads the span caches that an audit
fills.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.metrics.inside.fisher import fisher_layers
from lensaudit.metrics.registry import Measured
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.controls import controls_of
from lensaudit.patching.layout import layout_of
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource
from lensaudit.patching.summary import kept_beside, summaries
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.reading import null
from lensaudit.scores.estimate import UNMEASURED
from lensaudit.scores.representation import LayerErasure, cka, cka_erasure, weighted_erasure
from lensaudit.verdict.thresholds import ALIGN_FROM

_ASKED: Mapping[str, Mapping[str, Any]] = {
    "uds": {},
    "lens": {"score": "lens"},
    "em": {"score": "em", "em_form": "teacher"},
    "collateral": {"also": ("retain",)},
    "controls": {},
}
"""Score -> how it differs from what `lensaudit patch` asks by default."""
_PATCHED = ("last_layer", "scope", "component")
_READ = {
    "uds": ("uds", ("tau", *_PATCHED, "engine", "calibration")),
    "lens": ("lens", ("tau", "calibration")),
    "em": ("udr", ("em_form", "threshold", *_PATCHED, "retention", "calibration")),
}
"""Score -> its name in a row, and what of its summary goes into the log."""


def cka_layers(session: Session, model: str) -> list[LayerErasure]:
    """Erasure and weight of every layer, on the residual streams at the scored positions."""
    layout = layout_of(session.encoded, "span")
    with session:

        def stack(checkpoint: Checkpoint) -> Float[Tensor, "layer token d_model"]:
            cache = session.cache(checkpoint, session.encoded, "span")
            return CachedSource(cache, "resid_post").packed(session.encoded, layout)

        full, retain = stack(session.full), stack(session.retain)
        other = stack(session.sources[model])
    return [cka_erasure(cka(f, r), cka(m, r)) for f, r, m in zip(full, retain, other, strict=True)]


def score_inside(session: Session, model: str, score: str) -> Measured[float]:
    """The rows of a score of one model, and how they were made."""
    match score:
        case "cka":
            return _layered(session, {"cka": cka_layers(session, model)})
        case "fisher":
            shares = fisher_layers(session, model).items()
            found = {f"fisher_masked_{one:.4f}".rstrip("0"): rows for one, rows in shares}
            return _layered(session, found)
        case "leak":
            return _leak(session, model)
    asked = session.under(**_ASKED[score])
    with asked:
        controls = controls_of(asked) if score == "controls" else None
        (found,) = summaries(asked, controls, kept_beside(asked))
    names = {"full_model": session.full.spec.name, "retain_model": session.retain.spec.name}
    if score in _READ:
        key, kept = _READ[score]
        return Measured(
            {row["idx"]: (row[key],) for row in found.rows if row["unscored"] is None},
            {row["idx"]: row["unscored"] for row in found.rows if row["unscored"] is not None},
            details=names | {name: getattr(found.summary, name) for name in kept},
        )
    made = _collateral(found.summary) if score == "collateral" else _controls(found.summary)
    return Measured({}, {}, details=names | made)


def _collateral(summary: PatchSummary) -> dict[str, Any]:
    found = summary.collateral["retain"]
    chosen = found.selectivity
    return {
        **{
            key: getattr(found, key) for key in ("anchor", "relative_to", "n", "n_scored", "strata")
        },
        "values": {
            "collateral": (found.depth, found.ci95),
            "selectivity": (chosen["value"], chosen["ci95"]),
        },
    }


def _controls(summary: PatchSummary) -> dict[str, Any]:
    aligned, validity, uds = summary.aligned, summary.validity, summary.uds
    depth = aligned.uds or UNMEASURED
    values = {
        "uds_aligned": (depth.value, depth.ends),
        "uds_validity": (validity.d_share, validity.ci95),
    }
    if aligned.kind is None and uds is not None and uds < ALIGN_FROM:
        # so low that nothing has to be aligned: the depth itself
        values["uds_aligned"] = uds, None
    why = {"uds_aligned": aligned.why, "uds_validity": validity.why}
    return {"values": values, "why": why}


def _leak(session: Session, model: str) -> Measured[float]:
    """Log-prob of the whole span by the model itself; nothing is patched."""
    with session:
        own, other = (
            session.answers(one, session.encoded)[0]
            for one in (session.sources[model], session.retain)
        )
    n_span = torch.tensor([one.n_span for one in session.encoded])
    idx = [one.idx for one in session.encoded]
    return Measured(
        {one: (total,) for one, total in zip(idx, (own * n_span).tolist(), strict=True)},
        session.unscored,
        details={
            "retain_model": session.retain.spec.name,
            "retain": dict(zip(idx, (other * n_span).tolist(), strict=True)),
        },
    )


def _layered(session: Session, found: Mapping[str, Sequence[LayerErasure]]) -> Measured[float]:
    """Scores without rows: one number per name, and what each layer says."""
    values = {name: weighted_erasure(rows) for name, rows in found.items()}
    return Measured(
        {},
        session.unscored,
        details={
            "full_model": session.full.spec.name,
            "retain_model": session.retain.spec.name,
            "n_examples": len(session.encoded),
            "values": {name: (null(value), None) for name, value in values.items()},
            "layers": {name: [asdict(row) for row in rows] for name, rows in found.items()},
        },
    )
