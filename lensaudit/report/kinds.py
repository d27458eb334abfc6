"""What does the page show of a result? Of each kind its record as plain JSON, in a list."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from lensaudit.errors import InputError
from lensaudit.groups import grouped
from lensaudit.kinds.rtt import CONDITIONS, RATIOS, RttRecord
from lensaudit.kinds.steering import LayerSweep
from lensaudit.report.beside import (
    SERIES,
    bits_beside,
    evidence_beside,
    hits_beside,
    matrix_beside,
    points_of,
)
from lensaudit.report.sentences import beyond, not_asked, unsaid
from lensaudit.results.kinds.patch import rows_hash
from lensaudit.results.locate import Found, Kind
from lensaudit.results.reading import brief
from lensaudit.scores.estimate import Estimate
from lensaudit.verdict.collect import weights_in
from lensaudit.verdict.rows import facts_in

MOST_SAID = 3
"""Attacks of one fact whose words the page holds: the first that hit, in the order of the list."""
LONGEST_SAID = 200
"""Characters of them."""


def _fields(one: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _joined(found: Found, source: str) -> dict[str, Any]:
    """What facts are joined by, as for a verdict: the model's weights, and the entity by row."""
    made = found.manifest or {}
    return {
        "source": source,
        "weights": weights_in(made, source),
        "asked": facts_in(made, found.record, found.path),
    }


def _worst(found: Found) -> dict[str, Any]:
    """Facts, attacks and headline of a worst case."""
    one = found.record
    head = ("retain", "attack_list", "headline", "excess", "ci95", "no_interval", "named", "people")
    attack = ("name", "about", "control", "source", "retain", "counts", "only", "gain")
    fact = ("idx", "group", "entity", "attacks", "q", "unscored")
    hits = grouped((idx, (name, said)) for idx, name, said in evidence_beside(found.path))
    return {
        **_fields(one, *head),
        "unsaid": unsaid(one),
        **_joined(found, one.source),
        "attacks": [_fields(row, *attack) for row in one.attacks],
        "facts": [_fields(row, *fact) for row in one.facts],
        "said": {
            idx: [(name, said[:LONGEST_SAID]) for name, said in own[:MOST_SAID]]
            for idx, own in hits.items()
        },
    }


def _sample(found: Found) -> dict[str, Any]:
    """Leak@k of sampled answers, and facts that came out."""
    one, hits = found.record, hits_beside(found.path)
    row = ("temperature", "top_p", "k", "source", "retain", "excess", "low", "high")
    return {
        **_fields(one, "retain", "samples"),
        **_joined(found, one.source),
        "leak": [_fields(at, *row, "false_leak", "reason") for at in one.leak],
        "said": grouped((idx, (n, of, said[:LONGEST_SAID])) for idx, n, of, said in hits),
    }


def _know(found: Found) -> dict[str, Any]:
    """Headline, relations, the matrix of one relation, and bits by fact, or why there are none."""
    one, matrix = found.record, matrix_beside(found.path)
    shown = ("headline", "finds", "p", "z", "n_subjects", "people", "max_bits")
    lists = {name: asdict(one)[name] for name in ("bits", "relations", "controls")}
    return {
        **_fields(one, *shown),
        "not_asked": not_asked(one),
        "beyond": beyond(one),
        **_joined(found, one.source),
        **lists,
        "matrix": _fields(matrix, "relation", "subjects", "values", "truth", "p"),
        "facts": bits_beside(found.path),
    }


def _relearn(found: Found) -> dict[str, Any]:
    """Scores of models before and after training on the forget answers."""
    rows = [
        {"model": shift.model, "score": name, "before": value, "after": shift.after.get(name)}
        for shift in found.record.shifts
        for name, value in shift.before.items()
    ]
    return {
        **_joined(found, found.record.source),
        "examples": rows_hash(found.manifest),
        "rows": rows,
    }


def _study(one: RttRecord) -> dict[str, Any]:
    """A study; what was not measured is not listed."""
    measured, main = {**one.as_they_are, **one.main.accuracies}, one.main
    known = {n: measured[n] for n in CONDITIONS if n in measured and measured[n].value is not None}
    ratios = {name: ratio for name in RATIOS if (ratio := getattr(main, name)) is not None}
    said = one.reading if one.gate.passed else None
    return {
        "accuracies": [
            {"condition": name, "name": CONDITIONS[name][0], **_reasoned(found)}
            for name, found in known.items()
        ],
        "ratios": [
            {"name": name, "formula": RATIOS[name], **_reasoned(ratio)}
            for name, ratio in ratios.items()
        ],
        "model": one.source,
        "data": one.data,
        "gate": "" if one.gate.passed else one.gate.reason,
        "notes": [note for note in (said, *one.notes) if note],
        "chance": one.chance,
        "how": ", ".join(filter(None, (main.selection, main.acc_selection_rule))),
    }


def _reasoned(found: Estimate) -> dict[str, Any]:
    """Value and limits, with why there is no value, or why there are no limits."""
    why, is_known = found.why or "", found.value is not None
    shown = {"value": found.value, "low": found.low, "high": found.high}
    return {**shown, "reason": "" if is_known else why, "why": why if is_known else ""}


_HEADER = (
    "trait",
    "layer",
    "layer_convention",
    "method",
    "positions",
    "baseline",
    "baseline_mean",
    "max_delta",
    "max_delta_coherent",
    "controllability",
    "spearman",
    "slope",
    "best_layer",
    "best_score",
    "best_layer_coherent",
    "delta_from_baseline",
    "coefficient",
    "ratio",
    "seed",
)


def _steering(found: Found) -> dict[str, Any]:
    """A trait steering evaluation, or a sweep over layers: scores and coherence by setting."""
    record, point = found.record, ("mean", "ci95", "ci95_why", "n", "n_invalid")
    kind = "layers" if isinstance(record, LayerSweep) else "coefficients"
    held = {key: one.get("mean") for key, one in getattr(record, "coherence", {}).items()}
    points = [
        {
            "x": float(key),
            **_fields(one, *point),
            "coherence": getattr(one, "coherence_mean", held.get(key)),
        }
        for key, one in getattr(record, kind).items()
    ]
    head = {name: getattr(record, name, None) for name in _HEADER}
    return {
        "kind": kind,
        "head": {name: value for name, value in head.items() if value is not None},
        "points": sorted(points, key=lambda point: point["x"]),
    }


def _directions(found: Found) -> dict[str, Any]:
    """Directions added, ablated or clamped in an unlearned model: recovery beside its controls."""
    record = found.record
    experiments = [
        {
            "kind": kind,
            **_fields(one, "unscored", "reading", "warnings", "kl_retain", "utility_delta"),
            "above_control": one.recovery_above_control,
            "arms": [
                {"arm": name, "recovery": arm.value, "n_items": arm.n, **arm.limits()}
                for name, both in one.arms.items()
                if (arm := both.get(one.score))
            ],
        }
        for kind, one in record.experiments.items()
    ]
    return {
        "source": record.source,
        "head": _fields(record, "n_items", "n_groups", "n_folds", "score"),
        "experiments": experiments,
    }


def _curve(found: Found) -> dict[str, Any]:
    """The curve of a training run."""
    points = points_of(found.record, found.path.parent.name)
    if not points:
        raise InputError(f"{found.path}: holds neither {' nor '.join(SERIES)}")
    return {"points": list(map(vars, points))}


def _effort(found: Found) -> dict[str, Any]:
    """Recovery by the length of an attack."""
    return {
        **_fields(found.record, "model", "data", "readout", "by", "notes"),
        "arms": {
            name: {
                **_fields(one, "e50", "e80", "censored", "lr", "trained_on", "reason"),
                "curve": list(map(asdict, one.curve)),
            }
            for name, one in found.record.arms.items()
        },
    }


PAGE: Mapping[Kind, tuple[str, Callable[[Found], Any]]] = {
    "steering": ("steering", _steering),
    "directions": ("steering", _directions),
    "rtt": ("attacks", lambda found: list(map(_study, found.record))),
    "relearn": ("attacks", _relearn),
    "effort": ("attacks", _effort),
    "curve": ("curves", _curve),
    "worst": ("attacks", _worst),
    "sample": ("attacks", _sample),
    "know": ("attacks", _know),
    "meta": (
        "meta",
        lambda found: {
            "rows": [{**vars(row), "notes": "; ".join(row.notes)} for row in found.record.metrics]
        },
    ),
}
"""Kind -> its list in `Document`, and what is shown; other kinds show only their manifest."""


def on_page(found: Found) -> Iterable[tuple[str, dict[str, Any]]]:
    """List and part of the page, of each model or study that a result tells of."""
    if found.kind in PAGE:
        name, shown = PAGE[found.kind]
        parts = shown(found)
        for one in parts if isinstance(parts, list) else [parts]:
            yield name, brief({"kind": found.kind, "folder": str(found.path.parent), **one})
