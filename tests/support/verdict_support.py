"""Results as `patch` writes them, with only what a verdict reads."""

import json
import re
from dataclasses import asdict
from pathlib import Path

from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.manifest import manifest
from lensaudit.results.reading import checked
from lensaudit.text import digest
from lensaudit.verdict.decide import Evidence
from lensaudit.verdict.depth import of_patch
from lensaudit.verdict.views import read_calibration


def page_data(path: Path):
    """What the script of a page is given."""
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)[1])


def depth(value, half=0.03):
    """A depth with its two intervals."""
    low, high = max(0.0, value - half), min(1.0, value + half)
    return {
        "ci95": [low, high],
        "ci90": [max(0.0, value - 0.8 * half), min(1.0, value + 0.8 * half)],
    }


def layer(erasure, at=3, half=0.05):
    return {"layer": at, "erasure": erasure, **depth(erasure, half)}


def aligned(
    uds=0.95,
    *,
    half=0.03,
    weakest=0.9,
    shared=0.93,
    shared_weakest=0.88,
    many=0.9,
    many_weakest=0.88,
    **changes,
):
    return {
        "uds": uds,
        **depth(uds, half),
        "shuffled": 1.0,
        "d_share": 0.01,
        "full": 0.0,
        "gap": {"value": 0.0, "low": -0.02, "high": 0.02},
        "weakest": layer(weakest),
        "shift": {"layer": 3, "times": 1.1, "per_layer": [1.0, 1.1]},
        "shared": {
            "uds": shared,
            **depth(shared, half),
            "weakest": layer(shared_weakest),
            "drop": {"value": uds - shared},
        },
        "many": {
            "uds": many,
            **depth(many, half),
            "weakest": layer(many_weakest),
            "drop": {"value": uds - many},
            "n": 8,
        },
    } | changes


def lost(ends):
    """Facts to keep as `collateral` holds them."""
    part = {"depth": 0.1, "n_scored": 8, "ci95": ends}
    return {
        "anchor": "base",
        "relative_to": "the base model",
        "over_erasure_nats": 0.0,
        "n": 8,
        "strata": {},
        "selectivity": {"value": 0.5, "ci95": None},
        **part,
    }


def said(source=0.05, full=1.0, retain=0.05, n=64, n_groups=8):
    return {"source": source, "full": full, "retain": retain, "n": n, "n_groups": n_groups}


def told(source=0.0, full=1.0, retain=0.0, n=56, n_groups=8, **changes):
    """What it gives away when it is asked."""
    return said(source, full, retain, n, n_groups) | changes


def summary(uds=0.97, *, half=0.03, n=64, **changes):
    """Of a model that never knew, unless told otherwise."""
    return {
        "source": "x",
        "score": "uds",
        "uds": uds,
        **depth(uds, half),
        "n": n,
        "n_scored": n,
        "n_groups": 8,
        "calibration": {"full": 0.0, "retain": 1.0},
        "validity": {"d_share": 0.01, "needed": True, "why": None},
        "weakest": layer(min(uds, 0.9)),
        "aligned": aligned(),
        "outputs": said(),
        "told": told(),
        "floor": None,
    } | changes


def rows_of(content, low=()):
    """As many facts as are scored; those of `low` are still read."""
    return [
        {"idx": idx, "uds_aligned": 0.1 if idx in low else 0.9, "uds": 0.1 if idx in low else 0.9}
        for idx in range(content["n_scored"])
    ]


def evidence_of(content, low=(), more=()):
    views, stream = parts(content, rows_of(content, low))
    return Evidence("x", [*views, *more], stream)


def verdict(content, low=(), more=()):
    return evidence_of(content, low, more).verdict


def save_run(folder: Path, content=None, *, rows=None, weights="w", examples="e", **made):
    """A finished run of `patch` on disk, with its manifest."""
    content = content or summary()
    n = content["n_scored"]
    rows = rows or [
        {
            "idx": idx,
            "group": idx % content["n_groups"],
            "baseline": -0.1,
            "s1": [2.0, 2.0],
            "s2": [1.0, 1.0],
            "ke": [0, 1],
            "uds": content["uds"],
            "uds_aligned": 0.9,
            "unscored": None,
        }
        for idx in range(n)
    ]
    per_layer = [
        {"layer": at, "n_ke": n, "s1": 2.0, "s2": 1.0, "s1_ke": 2.0, "s2_ke": 1.0, "erasure": 0.5}
        for at in (0, 1)
    ]
    content = {**content, "layers": [0, 1], "per_layer": per_layer, "tau": 0.05, "unscored": {}}
    content["verdict"] = asdict(Evidence(content["source"], *parts(content, rows)).verdict)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(content))
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = inputs(content, weights, examples)
    made = manifest("patch", options=made, inputs=told, device="cpu", started=0.0)
    made.write(folder, ["summary.json", "results.jsonl"])
    return folder


def inputs(content, weights="w", examples="e"):
    """What a manifest of `patch` says of its models and rows."""
    named = {role: {"name": role, "weights": digest(role)[:32]} for role in ("full", "retain")}
    source = {"name": content["source"], "weights": weights}
    return {**named, "source": source, "examples": {"n": content["n"], "hash": examples}}


def parts(content, rows):
    """Views and stream of a run."""
    return of_patch(checked(PatchSummary, content, "summary.json"), rows, read_calibration())


def seal(folder: Path, command: str, files, **inputs):
    """The manifest of another kind of result."""
    made = manifest(command, options={}, inputs=inputs, device="cpu", started=0.0)
    made.write(folder, list(files))
    return folder
