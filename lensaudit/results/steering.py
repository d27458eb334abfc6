"""Steering on the page: how a trait follows a coefficient, and what a direction brings back."""

from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.results.reading import JsonObject, brief, checked_as, json_object, need, part

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


def read_steering(path: Path) -> dict[str, Any]:
    """A trait steering evaluation (`results.json`) or a sweep over layers.

    Raises:
        InputError: neither.
    """
    content = json_object(path)
    what = "layers" if "layers" in content else "coefficients"
    need(content, path, "trait", what)
    points = checked_as(dict[str, dict[str, Any]], content[what], f"{path}: {what}")
    coherent = part(content, "coherence")
    listed = [_point(key, one, part(coherent, key), path) for key, one in points.items()]
    return brief(
        {
            "kind": what,
            "folder": str(path.parent),
            "head": {name: content[name] for name in _HEADER if content.get(name) is not None},
            "points": sorted(listed, key=lambda point: point["x"]),
        }
    )


def _point(key: str, one: JsonObject, coherence: JsonObject, path: Path) -> dict[str, Any]:
    """Score and coherence at one coefficient or layer; null where nothing could be judged."""
    try:
        x = float(key)
    except ValueError as error:
        raise InputError(f"{path}: {key[:40]!r} is no coefficient or layer") from error
    return {
        "x": x,
        "mean": one.get("mean", one.get("trait_mean")),
        "ci95": one.get("ci95"),
        "ci95_why": one.get("ci95_why"),
        "n": one.get("n"),
        "n_invalid": one.get("n_invalid"),
        "coherence": coherence.get("mean", one.get("coherence_mean")),
    }


def read_directions(path: Path) -> dict[str, Any]:
    """Directions added, ablated or clamped in an unlearned model: recovery beside its controls.

    Raises:
        InputError: no experiments.
    """
    content = json_object(path)
    need(content, path, "source", "experiments")
    where = f"{path}: experiments"
    experiments = checked_as(dict[str, dict[str, Any]], content["experiments"], where)
    found = [_experiment(kind, one) for kind, one in experiments.items()]
    counts = {name: content.get(name) for name in ("n_items", "n_groups", "n_folds", "score")}
    return brief(
        {"kind": "directions", "folder": str(path.parent), "source": str(content["source"])}
        | {"head": counts, "experiments": found}
    )


def _experiment(kind: str, one: JsonObject) -> dict[str, Any]:
    score = str(one.get("score", "em"))
    return {
        "kind": kind,
        "unscored": one.get("unscored"),
        "reading": one.get("reading"),
        "warnings": one.get("warnings") or [],
        "above_control": one.get("recovery_above_control"),
        "kl_retain": one.get("kl_retain"),
        "utility_delta": one.get("utility_delta"),
        "arms": [
            {
                "arm": name,
                **{key: scored.get(key) for key in ("recovery", "ci95", "ci95_why", "n_items")},
            }
            for name in part(one, "arms")
            if (scored := part(one, "arms", name, score))
        ],
    }
