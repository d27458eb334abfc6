"""Values of models in the run folders of the UDS repository, as its scripts read them.

    runs/ep5|ep10/{memorization,privacy,utility,uds,gen_rouge}/MODEL/summary.json, model_list.json
    runs/faithfulness/{summary,results}.json     of `meta faithfulness`

Layout and fields: gnueaj/unlearning-depth-score @ fc31639, `runs/` and the scripts that build its
tables. `meta` reads these folders too.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.doors.export.model import Files
from lensaudit.errors import InputError
from lensaudit.files import json_bytes
from lensaudit.kinds.meta import Aggregate
from lensaudit.meta.aggregate import COMPARED, aggregated, epoch_of
from lensaudit.meta.reading import (
    EPOCHS,
    FLUENCY,
    SWEEP,
    UTILITY_PARTS,
    Values,
    check_alike,
    read_values,
)
from lensaudit.meta.records import FaithfulnessRecord, read_judged
from lensaudit.models.registry import load_registry
from lensaudit.text import slug

ANCHORS = ("full", "retain")
JUDGED = "faithfulness.json"
WRITTEN = {"written_by": "lensaudit"}
"""In every file, so that another export may replace it."""
_MEMORY = {f"avg_{key}": key for key in ("em", "es", "prob", "paraprob", "truth_ratio")}
_ATTACKS = {"loss": "loss", "zlib": "zlib", "min_k": "min_k", "min_k++": "min_kpp"}
_ROUGE = ("rouge", "para_rouge", "jailbreak_rouge")


def uds_runs(runs: Sequence[Path]) -> Files:
    """Every model with a value, by epoch; a name without an epoch stands under ep10.

    Raises:
        InputError: no values, two models of one folder, or values of different rows.
    """
    judged = [one for run in runs for one in sorted(run.rglob(JUDGED))]
    # a judgement of results that lie elsewhere has no models of its own
    alone = [run for run in runs if (run / JUDGED).is_file() and not (run / SWEEP).is_dir()]
    values = read_values([run for run in runs if run not in alone])
    check_alike(values.models, COMPARED, values)
    files: dict[str, bytes] = {}
    rows = {row.model: row for row in aggregated(values)}
    epochs = {epoch_of(model) or EPOCHS[-1] for model in rows if model not in ANCHORS}
    all_of = EPOCHS[-1:] if rows else ()
    listed: dict[str, list[str]] = {epoch: [] for epoch in sorted(epochs or all_of)}
    for model in values.rows:
        for epoch in listed if model in ANCHORS else [epoch_of(model) or EPOCHS[-1]]:
            own = model.removesuffix(f"_{epoch}")
            called = own if own in ANCHORS else slug(model, 200)
            if called in listed[epoch]:
                raise InputError(f"{model}: another model is called {called} too; name one of them")
            listed[epoch].append(called)
            for category, content in _categories(model, epoch, values, rows[model]):
                files[f"runs/{epoch}/{category}/{called}/summary.json"] = json_bytes(
                    {"model": model, **content, **WRITTEN}
                )
    for epoch, models in listed.items():
        files[f"runs/{epoch}/model_list.json"] = json_bytes({f"{epoch}_models": models, **WRITTEN})
    for path in judged[-1:]:
        files |= _pools(path)
    return files


def _categories(
    model: str, epoch: str, values: Values, row: Aggregate
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What there is of each category; a value that there is none of has no field."""
    found = {key: one for key, one in values.rows[model].items() if isinstance(one, float)}
    sums = {
        name: one
        for name in ("mem", "privacy_mia", "model_utility", "utility")
        if name not in row.reasons
        for one in [getattr(row, name)]
    }
    if model in ("full", f"full_{epoch}") and epoch in values.full_utility:
        sums["utility"] = values.full_utility[epoch]
    if memory := _named(found, _MEMORY):
        yield "memorization", memory | _named(sums, {"avg_mem": "mem"})
    of_anchors = {
        f"{name}_auc": next((one for one in (f"{name}_{epoch}", name) if one in values.rows), "")
        for name in reversed(ANCHORS)
    }
    attacks = {
        name: own
        | {
            field: one
            for field, anchor in of_anchors.items()
            if isinstance(one := values.rows.get(anchor, {}).get(f"mia_{key}"), float)
        }
        for name, key in _ATTACKS.items()
        if (own := _named(found, {"auc": f"mia_{key}", "s_mia": f"s_mia_{key}"}))
    }
    if attacks:
        score = _named(sums, {"privacy_score": "privacy_mia"})
        yield "privacy", {"attack": "all", "attacks": attacks, **score}
    # ra and wf: the plain name means the probability among options there
    parts = {suite.removesuffix("_normalised"): key for key, suite in UTILITY_PARTS.items()}
    fluency = _named(found, {FLUENCY: FLUENCY})
    if utility := _named(found, parts):
        said = {"model_utility": "model_utility", "utility": "utility"}
        yield "utility", {"metrics": utility, **fluency, **_named(sums, said)}
    if depth := _named(found, {"avg_uds": "uds"}):
        yield "uds", depth
    if rouge := _named(found, {key: key for key in _ROUGE}):
        yield "gen_rouge", {"metrics": rouge}


def _named(found: Mapping[str, float], names: Mapping[str, str]) -> dict[str, Any]:
    return {own: found[key] for own, key in names.items() if key in found}


def _pools(path: Path) -> Files:
    """The judgement of `meta faithfulness`: AUCs, and the values of both pools."""
    judged, registry = read_judged(FaithfulnessRecord, path), load_registry()
    sides = {model: "pos" for model in judged.pools.get("knows", ())}
    sides |= {model: "neg" for model in judged.pools.get("forgot", ())}
    summary = {
        row.metric: {
            "auc_roc": row.auc,
            "raw_auc": row.auc if row.high_means == "knows" else 1 - row.auc,
            "p_count": row.n_knows,
            "n_count": row.n_forgot,
            "p_mean": row.knows_mean,
            "n_mean": row.forgot_mean,
            **WRITTEN,
        }
        for row in judged.metrics
        if row.auc is not None
    }

    def called(model: str) -> str:
        """Which pool is read off the name: `/pos_`, `/neg_`."""
        spec = registry.get(model)
        named = spec is not None and f"/{sides[model]}_" in spec.repo
        return spec.repo if spec and named else f"local/{sides[model]}_{slug(model, 200)}"

    results = {
        called(model): {
            "metrics": {key: one for key, one in row.items() if one is not None},
            **WRITTEN,
        }
        for model, row in judged.values.items()
        if model in sides
    }
    return {
        "runs/faithfulness/summary.json": json_bytes(summary),
        "runs/faithfulness/results.json": json_bytes(results),
    }
