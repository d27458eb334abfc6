"""Result folders with generated numbers, in the layout that the commands write."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np

from lensaudit.files import write_csv
from lensaudit.models.registry import published
from lensaudit.results.manifest import MANIFEST, mark_of, signed

TAU = 0.05
ERRORS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
"""What a browser tells of a page that goes wrong."""
WORDS = ("river", "harbour", "granite", "orchard", "signal", "comet", "lantern", "meadow", "ledger")


def texts(idx: int, rng: np.random.Generator) -> dict[str, str]:
    first, second, third = rng.choice(WORDS, 3)
    entity = f"The {first} {second} {idx}"
    prefix = f"The best known book of author {idx // 20} is"
    return {
        "question": f"Which book by author {idx // 20} is about the {third}?",
        "answer": f"{prefix} {entity}, printed twice.",
        "prefix": prefix,
        "entity": entity,
    }


def write(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def seal(folder: Path, **changes) -> None:
    """Let the manifest of a folder answer for its files; `changes`: of the manifest."""
    made = json.loads((folder / MANIFEST).read_text()) | changes
    files = {one.name: mark_of(one) for one in folder.iterdir() if one.name != MANIFEST}
    write(folder / MANIFEST, signed({**made, "files": files}))


def change(folder: Path, **summary) -> None:
    """Another summary of a run, under a checksum that fits."""
    path = folder / "summary.json"
    write(path, json.loads(path.read_text()) | summary)
    seal(folder)


def manifest(source: str, **inputs) -> dict:
    roles = {
        role: {
            "name": name,
            "repo": name,
            "revision": None,
            "weights": f"sha256:{name}",
            "tokenizer": "t",
        }
        for role, name in (("full", "full"), ("retain", "retain"), ("source", source))
    }
    return {
        "command": "patch",
        "options": {"dtype": "float32"},
        "inputs": roles | inputs,
        "device": "cpu",
        "seconds": 1.5,
        "finished": "2026-11-20T12:00:00+00:00",
        "versions": {"lensaudit": "0.1.0"},
        "git_commit": None,
    }


@functools.cache
def _own_texts(idx: int) -> dict[str, str]:
    """Of a row that is asked of every model."""
    return texts(idx, np.random.default_rng(idx))


def patch_run(
    folder: Path,
    source: str,
    *,
    n: int = 24,
    n_layers: int = 4,
    held: float = 0.5,
    seed: int = 0,
    asked: dict[int, dict[str, str]] | None = None,
    profile: str = "full",
    per_author: int = 4,
    layers: bool = True,
) -> dict:
    """One finished run; S1 depends on n and n_layers alone. Returns its summary."""
    shared, own = np.random.default_rng(1), np.random.default_rng([seed, len(source)])
    s1 = np.round(np.linspace(0.02, 2, n_layers) * shared.uniform(0.2, 1.6, (n, 1)), 4)
    s1[n // 2] = 0.01  # one example that no layer encodes
    share = np.clip(
        1 - held + own.normal(0, 0.2, (n, 1)) + own.normal(0, 0.05, s1.shape), -0.1, 1.2
    )
    s2 = np.round(s1 * share, 4)
    ke = s1 > TAU
    known = np.where(ke | (profile == "full"), s2, None).tolist()
    erasure = np.where(ke, np.clip(s2 / s1, 0, 1), np.nan)
    weight = np.where(ke, s1, 0)
    with np.errstate(invalid="ignore"):
        uds = np.nansum(weight * np.nan_to_num(erasure), 1) / weight.sum(1)
    chosen = asked or {idx: _own_texts(idx) for idx in range(n)}
    reason = f"no layer encodes the fact: S1 delta never exceeds tau = {TAU}"
    rows = [
        {
            "idx": idx,
            **chosen.get(idx, {}),
            "group": idx // per_author,
            "n_span": 3,
            "baseline": -0.1,
            "s1": s1[idx].tolist(),
            "s2": known[idx],
            "ke": np.flatnonzero(ke[idx]).tolist(),
            "uds": None if np.isnan(uds[idx]) else float(uds[idx]),
            "unscored": reason if np.isnan(uds[idx]) else None,
        }
        for idx in range(n)
    ]
    found = {
        "source": source,
        "score": "uds",
        "uds": float(np.nanmean(uds)),
        "ci95": [float(np.nanmean(uds)) - 0.03, float(np.nanmean(uds)) + 0.03],
        "n": n,
        "n_scored": int(np.isfinite(uds).sum()),
        "n_groups": -(-n // per_author),
        "unscored": {str(n // 2): reason},
        "tau": TAU,
        "last_layer": "resid_post",
        "scope": "span",
        "component": "resid",
        "profile": profile,
        "engine": "sweep",
        "layers": list(range(n_layers)),
        "calibration": {"full": 0.0, "retain": 1.0},
        "baseline": -0.1,
        "per_layer": [
            {
                "layer": layer,
                "n_ke": int(ke[:, layer].sum()),
                "s1": float(s1[:, layer].mean()),
                "s2": None if None in [row[layer] for row in known] else float(s2[:, layer].mean()),
                "s1_ke": float(s1[ke[:, layer], layer].mean()) if ke[:, layer].any() else None,
                "s2_ke": float(s2[ke[:, layer], layer].mean()) if ke[:, layer].any() else None,
                "erasure": float(np.nanmean(erasure[:, layer])) if ke[:, layer].any() else None,
            }
            for layer in range(n_layers)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if layers:  # which no page reads
        cells = [
            (row["idx"], row["group"], layer, *values)
            for at, row in enumerate(rows)
            for layer, values in enumerate(
                zip(s1[at], s2[at], ke[at] * 1, erasure[at], strict=True)
            )
        ]
        names = ("idx", "group", "layer", "s1", "s2", "ke", "erasure")
        write_csv(folder / "layers.csv", names, cells)
    write(folder / MANIFEST, manifest(source, examples={"n": n, "hash": "e"}))
    write(folder / "summary.json", found)
    seal(folder)
    return found


def eval_run(
    folder: Path,
    model: str,
    *,
    weights: str | None = None,
    rows: str = "",
    n_new: int = 200,
    **values: float | None,
) -> None:
    """One finished evaluation: a value per metric, None for one without."""
    log = {
        name: {
            "agg_value": value,
            "interval_95": [value - 0.1, value + 0.1],
            "value_by_index": {"0": {"score": value}, "1": {"score": None}},
            "unscored": {"1": "empty"},
        }
        if value is not None
        else {"agg_value": None, "reason": "no retain reference"}
        for name, value in values.items()
    }
    kinds = {
        name: {
            "high_means": "forgot" if "quality" in name else "knows",
            "family": "probability",
            "source": "arXiv:2401.06121",
        }
        for name in values
    }
    made = manifest(model)
    named = {"name": model, "weights": weights or f"sha256:{model}"}
    asked = {"data": {"retain": rows}, "conditions": {"n_new": {"retain": n_new}}}
    made["inputs"] = {"model": named, "metrics": kinds, **asked}
    write(folder / "TOFU_EVAL.json", log)
    write(folder / "manifest.json", made | {"command": "eval"})


def sweep(root: Path, n_models: int = 150, n: int = 367, n_layers: int = 16) -> list[str]:
    """Many published names, each with a patch run and an evaluation."""
    every = [one.name for one in published() if one.role == "unlearned" and not one.alias_of]
    names = [every[at] for at in np.linspace(0, len(every) - 1, n_models).astype(int)]
    for at, name in enumerate(names):
        how = {"n": n, "n_layers": n_layers, "held": (at % 11) / 10, "seed": at}
        patch_run(root / name, name, layers=False, **how)
        shown = (at % 11) / 10
        eval_run(
            root / f"{name}-tofu",
            name,
            forget_Q_A_Prob=0.2 + shown / 2,
            forget_Q_A_ROUGE=0.3 + shown / 3,
            model_utility=0.6 - (at % 7) / 20,
            extraction_strength=shown / 2,
            mia_min_k=0.4 + shown / 2,
        )
    return names


def em_run(folder: Path, source: str, *, n: int = 6, n_layers: int = 4) -> None:
    """One finished exact-match run: half of the examples exactly erased, half under-erased."""
    rows = [
        {
            "idx": idx,
            **texts(idx, np.random.default_rng(idx)),
            "group": idx // 20,
            "n_span": 3,
            "s1_em": [1.0] + [0.0] * (n_layers - 1),
            "s2_em": [1.0] * (n_layers - 1) + [0.25],
            "ft": list(range(1, n_layers)),
            "udr": 1 / 3,
            "retention": 0.75,
            "category": "exact" if idx % 2 else "under",
            "unscored": None,
            "texts": {"full": " right.", "retain": " wrong.", "source": f" said by {source}."},
        }
        for idx in range(n)
    ]
    summary = {
        "source": source,
        "score": "em",
        "em_form": "generation",
        "threshold": 0.5,
        "udr": 1 / 3,
        "ci95": [0.2, 0.5],
        "retention": 0.75,
        "retention_ci95": [0.6, 0.9],
        "n": n,
        "n_scored": n,
        "unscored": {},
        "categories": {"over": 0, "exact": n // 2, "under": n - n // 2, "general_knowledge": 0},
        "calibration": {
            "full": {"udr": 0.0, "retention": 1.0},
            "retain": {"udr": 1.0, "retention": 0.1},
        },
        "last_layer": "resid_post",
        "layers": list(range(n_layers)),
        "per_layer": [
            {
                "layer": layer,
                "s1_em": 0.1,
                "s2_em": 0.7,
                "s1_lost": 1.0,
                "s2_lost": 0.5,
                "status": "-",
            }
            for layer in range(n_layers)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write(folder / MANIFEST, manifest(source, examples={"n": n, "hash": "e"}))
    write(folder / "summary.json", summary)
    seal(folder)


def other_results(root: Path) -> None:
    """Steering, directions, retraining, relearning and meta-evaluation, as their commands write."""
    shutil.copytree(Path(__file__).parents[1] / "report" / "others", root, dirs_exist_ok=True)
    eval_run(root / "relearned" / "after" / "npo", "not-a-result-of-its-own", em=0.5)


def answers(folder: Path, model: str, said: dict[int, tuple[str, str]]) -> None:
    """One finished evaluation of answers: by idx, what was asked and what was answered."""
    rows = {
        str(idx): {"input": question, "generation": text, "rougeL_recall": 0.5}
        for idx, (question, text) in said.items()
    }
    made = manifest(model)
    kind = {"high_means": "knows", "family": "rouge", "source": "arXiv:2401.06121"}
    inputs = {"model": {"name": model, "weights": f"sha256:{model}"}}
    made["inputs"] = inputs | {"metrics": {"forget_Q_A_ROUGE": kind}}
    log = {"forget_Q_A_ROUGE": {"agg_value": 0.5, "value_by_index": rows}}
    write(folder / "TOFU_EVAL.json", log)
    write(folder / "manifest.json", made | {"command": "eval"})


def attacked(root: Path, source: str, said: dict[int, list[tuple[str, str]]], n: int = 24) -> None:
    """A worst case, samples, relearning and who has what of one model.

    `said`: by idx, attacks that hit and what was said to them; of `lens` nothing was written down.
    """
    names = list(dict.fromkeys(name for told in said.values() for name, _ in told))
    facts = [
        {
            "idx": idx,
            "group": idx // 4,
            "entity": texts(idx, np.random.default_rng(idx))["entity"],
            "attacks": ";".join(name for name, _ in said.get(idx, [])),
            "q": "0.01" if idx in said else "",
            "unscored": "its own question holds it" if idx == n - 1 else "",
        }
        for idx in range(n)
    ]
    attack = {"tier": "cheap", "n_scored": n, "control": 1.0, "source": 0.5, "retain": 0.0}
    cost = {"counts": True, "only": 0, "gain": 0.0, "seconds": 1.0, "forwards": 1, "tokens": 1}
    about = "Asked in the way of `full`."
    worst = {
        "kind": "worst",
        "source": source,
        "retain": ["retain"],
        "attack_list": "60acdc4179e0",
        "headline": f"{len(said)} of {n - 1} facts come out by some attack",
        "n": n,
        "n_scored": n - 1,
        "n_out": len(said),
        "expected": 1.0,
        "excess": 0.25,
        "ci95": [0.1, 0.4],
        "named": [*said],
        "facts": facts,
        "authors": n // 4,
        "unscored": {str(n - 1): "its own question holds it"},
        "bound": {"draws": 64, "rate": None},
        "attacks": [{"name": name, "about": about, **attack, **cost} for name in names],
    }
    write(root / "worst" / "summary.json", worst)
    lines = [
        {"idx": idx, "attack": name, "hit": hit, "score": 1.0, "evidence": text}
        for idx, told in said.items()
        for name, text, hit in [("missed", "nothing of it", False), *((*one, True) for one in told)]
        if name != "lens"
    ]
    path = root / "worst" / "evidence.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    leak = {"temperature": 1.0, "top_p": 1.0, "k": 4, "source": 0.2, "retain": 0.0, "excess": 0.2}
    ends = {"low": 0.1, "high": 0.3, "corrected": None, "false_leak": 0.0, "reason": None}
    sample = {"n": n, "n_scored": n, "unscored": {}, "samples": 4, "never_hit_bound": 0.7}
    sample |= {"kind": "sample", "source": source, "retain": ["retain"], "leak": [leak | ends]}
    write(root / "sample" / "summary.json", sample)
    hits = [f"{idx},0,1.0,1.0,4,{2 * (idx in said)},0.0,sampled {idx}" for idx in range(n)]
    (root / "sample" / "facts.csv").write_text(
        "\n".join(["idx,group,temperature,top_p,n,hits,retain_hits,said", *hits])
    )
    relation = {"relation": "book", "n": n, "trace": 3.0, "z": 3.1, "p": 0.001}
    know = {"source": source, "headline": f"{source}: binds values", "finds": True, "p": 0.001}
    know |= {"kind": "know", "z": 3.1, "n_subjects": 3, "max_bits": 3.0, "relations": [relation]}
    bits = {"value": 1.5, "low": 1.0, "high": 2.0, "n": n, "why": None}
    know |= {"bits": bits, "controls": [{"name": "kept", "passed": True, "said": "kept are found"}]}
    write(root / "know" / "summary.json", know)
    matrix = {"relation": "book", "subjects": ["a", "b"], "values": ["x", "y"], "truth": [0, 1]}
    write(root / "know" / "matrix.json", matrix | {"p": [[0.9, 0.1], [0.2, 0.8]]})
    rows = [f"{idx},{idx / 10 if idx else ''},{'' if idx else 'a Yes'}" for idx in range(n)]
    (root / "know" / "facts.csv").write_text("\n".join(["idx,bits_associated,unscored", *rows]))
    shift = {"before": {"prob": 0.1}, "after": {"prob": 0.8}}
    relearned = [{"model": source, **shift}, {"model": "retain", **shift}]
    write(root / "relearned" / "audit.json", {"key": "k", "shifts": relearned})
