"""The evidence matrix: what every view says of every model, beside models whose state is known.

Views read different things (what a model says, its stream, what training brings back), so they may
disagree, and where they do the page shows it instead of a mean. A view that was not measured is an
empty cell; one that was measured on too few rows says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lensaudit.report.document import ANCHORS, Depth, Document, PageModel
from lensaudit.scores.estimate import Estimate

VIEWS: Mapping[str, tuple[str, str]] = {
    "says": ("says it", "share of the facts said exactly once the answer is begun"),
    "unread": (
        "unread",
        "what of the stream of facts to keep full cannot read, as a share of what it loses to "
        "another row's stream: above .10 UDS means nothing",
    ),
    "uds": ("UDS", "0: full reads every fact out of the stream; 1: no more than out of retain's"),
    "aligned": ("UDS aligned", "UDS after a linear map to full's basis, fitted on other rows"),
    "lens": ("Lens", "UDS with full's upper layers replaced by its head alone"),
    "rtt": ("RTT", "share of the facts that retraining on other facts brings back, above retain"),
    "gain": ("relearned", "gain in answer probability by one pass, above retain's"),
    "worst": ("worst case", "facts that some attack brings out, above never-trained models"),
    "bits": ("bits", "bits a fact that are bound to its subject, beside invented namesakes"),
    "utility": ("utility", "model utility: what it can still do"),
}
"""View -> title of its column, and what it says."""
_FEWEST_VIEWS = 2


@dataclass(frozen=True)
class Line:
    """All views of one model, or of an anchor as the control of a view."""

    label: str
    model: int | None
    """Place in `Document.models`; None: an anchor that no result but the calibration speaks of."""
    role: str | None
    cells: Mapping[str, Estimate]
    """View -> what it says; `why`: why there is no interval, or why it is not to be read."""


def evidence_of(document: Document) -> dict[str, Any] | None:
    """Columns and lines for the page; None where fewer than two views were measured."""
    lines = [line for line in _lines(document) if line.cells]
    judged = [line for line in lines if line.role not in ANCHORS]
    measured = [name for name in VIEWS if any(name in line.cells for line in judged)]
    if len(measured) < _FEWEST_VIEWS:
        return None
    return {
        "views": [
            {"id": name, "title": VIEWS[name][0], "help": VIEWS[name][1]} for name in measured
        ],
        "lines": [
            vars(line) | {"cells": {name: _cell(one) for name, one in line.cells.items()}}
            for line in lines
        ],
    }


def _cell(one: Estimate) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("value", "low", "high", "n", "why")}


def _lines(document: Document) -> Iterator[Line]:
    attacked = _attacked(document.attacks)
    first = document.first
    depths = {one.model: one for one in document.depths if one.condition == first}
    lenses = {
        one.model: one
        for one in document.depths
        if document.conditions[one.condition].score == "lens"
    }
    calibrated = _anchors(document, depths)
    for at, model in enumerate(document.models):
        cells = calibrated.pop((model.role, model.name), {})
        if at in depths:
            cells |= _of_depth(depths[at])
        elif "uds" in model.metrics:
            cells |= _of_metric(model, "uds", "uds")
        if at in lenses and "lens" not in cells:
            cells |= _score(lenses[at], "lens")
        cells |= attacked.get(model.name, {}) | _of_metric(model, "model_utility", "utility")
        yield Line(model.label, at, model.role, cells)
    for (role, name), cells in calibrated.items():
        yield Line(name, None, role, cells)


def _score(one: Depth, view: str) -> dict[str, Estimate]:
    if one.value is None:
        return {}
    return {view: Estimate(one.value, one.low, one.high, one.n_scored, one.why)}


def _of_depth(one: Depth) -> dict[str, Estimate]:
    """What a run of `patch` says, its controls included."""
    extra, found = one.extra, _score(one, "uds")
    for name in ("aligned", "lens"):
        if extra.get(name) is not None:
            ends = extra.get(f"{name}_ci95")
            why = None if ends else one.why
            found[name] = Estimate.within(extra[name], ends, n=one.n_scored, why=why)
    if extra.get("says") is not None:
        found["says"] = Estimate(extra["says"], n=one.n)
    if extra.get("d_share") is not None:
        found["unread"] = Estimate(extra["d_share"])
    return found


def _of_metric(model: PageModel, metric: str, view: str) -> dict[str, Estimate]:
    value, low, high, n, _, why = model.metrics.get(metric) or (None,) * 6
    return {} if value is None else {view: Estimate(value, low, high, n or None, why)}


def _anchors(
    document: Document, depths: Mapping[int, Depth]
) -> dict[tuple[str | None, str], dict[str, Estimate]]:
    """What the calibration and the outputs say of `full` and `retain`, by role and name."""
    if document.first is None:
        return {}
    condition = document.conditions[document.first]
    said = next((one.extra["outputs"] for one in depths.values() if "outputs" in one.extra), {})
    found = {}
    for role, name in (("full", condition.full), ("retain", condition.retain)):
        values = {"uds": condition.calibration.get(role), "says": said.get(role)}
        found[role, name] = {
            view: Estimate(value, why="calibration" if view == "uds" else None)
            for view, value in values.items()
            if isinstance(value, float)
        }
    return found


def _attacked(attacks: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Estimate]]:
    """Model -> what attacks say of it."""
    found: dict[str, dict[str, Estimate]] = {}
    for one in attacks:
        if one["kind"] == "rtt":
            ratios = {ratio["name"]: ratio for ratio in one.get("ratios", ())}
            ratio = ratios.get("recovery_adjusted") or ratios.get("recovery_rate")
            if ratio and ratio.get("value") is not None:
                why = one.get("gate") or ratio.get("why") or None
                cell = Estimate(ratio["value"], ratio.get("low"), ratio.get("high"), None, why)
                found.setdefault(one["model"], {})["rtt"] = cell
        elif one["kind"] == "worst":
            n = sum(not fact.get("unscored") for fact in one["facts"])
            excess = Estimate.within(one["excess"], one.get("ci95"), n=n)
            found.setdefault(one["source"], {})["worst"] = excess
        elif one["kind"] == "know" and one["bits"] is not None:
            found.setdefault(one["source"], {})["bits"] = Estimate(**one["bits"])
        elif one["kind"] == "relearn":
            for name, gain in _gains(one["rows"]).items():
                found.setdefault(name, {})["gain"] = Estimate(gain, why="one run")
    return found


def _gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Model -> what one pass over the answers adds to their probability, beyond `retain`.

    `retain` is the last model of the file, as `lensaudit relearn` writes it: no page need hold it.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    added = {
        row["model"]: row["after"] - row["before"]
        for row in rows
        if row["score"] == "prob" and None not in (row.get("before"), row.get("after"))
    }
    if not models or models[-1] not in added:
        return {}
    floor = added[models.pop()]
    return {name: added[name] - floor for name in models if name in added}
