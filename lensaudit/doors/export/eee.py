"""Records of every_eval_ever: an aggregate a model, and a line for each fact with a score."""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import inf
from typing import Any
from uuid import UUID

from lensaudit.doors.export.model import Exported, Files, Measure, as_json
from lensaudit.doors.settings import ExportSettings
from lensaudit.verdict.collect import Verdicts
from lensaudit.verdict.thresholds import TAIL_BELOW

EEE = "0.3.0"
"""Version of every_eval_ever whose schemas are written."""


def eee(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """Records of every_eval_ever: an aggregate a model, and a line for each fact with a score."""
    files = {}
    for one in models:
        stamp = str(int(one.finished.timestamp()))
        named = {
            "schema_version": EEE,
            "evaluation_id": f"lensaudit/{one.name}/{stamp}-{one.digits}",
        }
        rows = "".join(f"{as_json({**named, **row})}\n" for row in _instances(one)).encode()
        key = sha256(as_json([named, one.said]).encode() + rows).digest()[:16]
        org, _, name = one.name.partition("/")
        place = f"data/lensaudit/{org}/{name}/{UUID(bytes=key, version=4)}"
        document = {**named, **_aggregate(one, settings, stamp)}
        if rows:
            files[f"{place}_samples.jsonl"] = rows
            lacking = {str(fact.idx): fact.unscored for fact in one.facts if fact.unscored}
            document["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": f"{place}_samples.jsonl",
                "hash_algorithm": "sha256",
                "checksum": sha256(rows).hexdigest(),
                "total_rows": rows.count(b"\n"),
                "additional_details": {"unscored": as_json(lacking)},
            }
        files[f"{place}.json"] = f"{json.dumps(document, indent=2, allow_nan=False)}\n".encode()
    return files


def _aggregate(one: Exported, settings: ExportSettings, stamp: str) -> dict[str, Any]:
    """The aggregate record, without its name and its samples."""
    of = {
        key: {role: v for role, v in one.hashes.items() if role == key}
        for key in ("rows", "weights")
    }
    repo, undirected = settings.repo, [r.name for r in one.scored if r.lower_is_better is None]
    at_hub = {"source_type": "hf_dataset", "hf_repo": repo} if repo else {"source_type": "other"}
    source = {"dataset_name": repo or "forget set", **at_hub, "additional_details": of["rows"]}
    left_out = {f"left out {name}": "which way is better is not known" for name in undirected}
    return {
        "evaluation_timestamp": one.finished.isoformat(),
        "retrieved_timestamp": stamp,
        "source_metadata": {
            "source_name": "lensaudit",
            "source_type": "evaluation_run",
            "source_organization_name": settings.organization,
            "evaluator_relationship": settings.relationship,
            "additional_details": {**one.said, **left_out},
        },
        "eval_library": {
            "name": "lensaudit",
            "version": one.versions.get("lensaudit", "unknown"),
            "additional_details": dict(one.versions),
        },
        "model_info": {
            "name": one.model.source,
            "id": one.name,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                **of["weights"],
            },
        },
        "evaluation_results": [_result(r, source) for r in one.scored if r.name not in undirected],
    }


def _result(one: Measure, source: Mapping[str, Any]) -> dict[str, Any]:
    """A number of the aggregate record; bounds that there are not are words."""
    ends = one.found.ends
    limits = dict(zip(("lower", "upper"), ends, strict=True)) if ends else {}
    unsure = {"confidence_interval": {**limits, "confidence_level": 0.95}} if ends else {}
    counted = {} if one.found.n is None else {"num_samples": one.found.n}
    return {
        "evaluation_result_id": one.name,
        "evaluation_name": f"lensaudit.{one.name}",
        "source_data": dict(source),
        "metric_config": {
            "evaluation_description": one.title,
            "metric_id": f"lensaudit.{one.name}",
            "metric_name": one.title,
            **({"metric_unit": one.unit} if one.unit else {}),
            "lower_is_better": one.lower_is_better,
            "score_type": "continuous",
            "min_score": "-Infinity" if one.least == -inf else one.least,
            "max_score": "Infinity" if one.most == inf else one.most,
        },
        "score_details": {
            "score": one.found.value,
            "details": one.details,
            **({"uncertainty": {**unsure, **counted}} if unsure or counted else {}),
        },
    }


_DEEP = (lambda value: value >= TAIL_BELOW, f"a depth of at least {TAIL_BELOW:g}")
_ERASED: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "uds": _DEEP,
    "lens": _DEEP,
    "held.worst_case": (lambda value: not value, "no attack brings it out"),
}
"""Name -> when a fact counts as forgotten, which `is_correct` says, and in words."""


def _instances(one: Exported) -> list[dict[str, Any]]:
    """A line for each fact and score of which it is known when it counts as forgotten."""
    valued = {r.name for r in one.scored}
    return [
        {
            "model_id": one.name,
            "evaluation_name": f"lensaudit.{name}",
            "evaluation_result_id": name,
            "sample_id": str(fact.idx),
            # an older worst case does not say what it asked
            "sample_hash": sha256((fact.question + fact.entity).encode()).hexdigest()
            if fact.question
            else None,
            "interaction_type": "single_turn",
            "input": {"raw": fact.question, "reference": [fact.entity]},
            "output": {"raw": []},
            "answer_attribution": [],
            "evaluation": {"score": fact.scores[name], "is_correct": forgot(fact.scores[name])},
            "metadata": {
                "is_correct": meant,
                **{key: str(value) for key, value in fact.scores.items() if key != name},
                **{f"unscored {key}": why for key, why in fact.unscored.items()},
            },
        }
        for fact in one.facts
        for name, (forgot, meant) in _ERASED.items()
        if name in fact.scores and name in valued
    ]
