"""A row a fact and model: what every score says of it, and whether attacks bring it out.

The rows are what `predict.py` asks its question of. Nothing here is a measure of its own: the
scores are those of `lensaudit patch`, `eval` and `know`, the attacks those of `worst` and `effort`,
each run alike on the model, on `full` and on the models that never saw the facts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pandas as pd

import lensaudit as la
from lensaudit.attacks.comparison import Findings
from lensaudit.attacks.effort.runs import PreparedEffort
from lensaudit.attacks.effort.runs import prepare as prepare_effort
from lensaudit.attacks.effort.runs import run as run_effort
from lensaudit.attacks.rtt.log import read_log
from lensaudit.attacks.settings import Arm, EffortSettings, WorstSettings
from lensaudit.attacks.worst import open_worst, run_all
from lensaudit.data.facts import Fact
from lensaudit.models.bridge import TransformerBridge, device_of
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.results.roles import ends_as_sources

ELICIT = ("greedy", "paraphrase", "prefix", "few_shot", "leak64", "nf4")
"""Attacks of `worst` that look through nobody's eyes but the model's own."""
RETRAIN: tuple[Arm, ...] = ("T", "neutral")
"""Arms of `effort`: facts of other authors are taught again; text that tells nothing of them."""
METRICS = {
    "answer_prob": "forget_Q_A_Prob",
    "rouge": "forget_Q_A_ROUGE",
    "extraction": "extraction_strength",
    "truth_ratio": "forget_truth_ratio",
    "mia": "mia_min_k_plus_plus",
}
HIGH_FORGOT = ("uds", "aligned", "weakest", "lens", "truth_ratio", "mia")
"""Scores that are high where a fact is gone; the others are high where it is known."""
SCORES = ("uds", "aligned", "weakest", "lens", "bits", "entity_prob", *METRICS)
ATTACKS = (*ELICIT, *(f"retrained_{arm}" for arm in RETRAIN))


@dataclass(frozen=True)
class Family:
    """Anchors, and how everything of a family is run."""

    full: str
    never: tuple[str, str]
    """Models that never saw the facts; the first is the anchor of UDS."""
    data: str | Path
    place: Path
    dtype: str
    steps: int
    lr: float
    lora: str | None = None
    """Rank of the adapter that is retrained; None: all weights are."""
    arms: tuple[Arm, ...] = RETRAIN
    base: str | None = None
    """Prior of the bits; None: that of the embedded family."""
    registry: Path | None = None

    @property
    def shared(self) -> dict[str, Any]:
        """Settings of every call."""
        return {
            "full": self.full,
            "data": self.data,
            "activations": self.place / "activations",
            "dtype": self.dtype,
        }


@ends_as_sources()
def scored(label: str, model: str, family: Family) -> pd.DataFrame:
    """A row a fact: every score, as its command gives it, which finds again what it computed."""
    found = _depths(label, model, family)
    found["entity_prob"] = entity_probs(model, family)
    for name, values in _outputs(label, model, family).items():
        found[name] = pd.Series(values)
    found["bits"] = _bits(label, model, family)
    found.insert(0, "model", label)
    return found.reset_index()


def _depths(label: str, model: str, family: Family) -> pd.DataFrame:
    retain = tuple(one for one in family.never if one != model)
    done = la.patch(
        model,
        family.place / "depth" / label,
        retain=retain,
        profile="full",
        lens=True,
        **family.shared,
    )
    rows = [json.loads(line) for line in (done.folder / "results.jsonl").open(encoding="utf-8")]
    summary = done.summary
    layers = done.layers
    # of a few rows no layer is called the weakest
    weakest = (summary["weakest"] or {}).get("layer")
    at = layers[(layers["layer"] == weakest) & (layers["ke"] == 1)]
    aligned = summary["aligned"]["uds"] is not None
    found = pd.DataFrame(
        {
            "idx": [row["idx"] for row in rows],
            "author": [row["group"] for row in rows],
            "uds": [row["uds"] for row in rows],
            # where no alignment was needed the basis is full's own
            "aligned": [row["uds_aligned"] if aligned else row["uds"] for row in rows],
            "lens": [row["lens"] for row in rows],
            "verdict": summary["verdict"]["code"],
        }
    ).set_index("idx")
    return found.assign(weakest=at.set_index("idx")["erasure"])


def entity_probs(model: str, family: Family) -> pd.Series:
    """By idx, log-prob of the entity once the answer is begun, nats per token."""
    bridge: TransformerBridge = la.load_model(model, dtype=cast(Any, family.dtype))
    facts: Sequence[Fact] = la.forget_set(str(family.data))
    read = (la.encode(fact, bridge.tokenizer) for fact in facts)
    encoded = [one for one in read if isinstance(one, la.Encoded)]
    found = {}
    for at in range(0, len(encoded), 16):
        batch = la.make_batch(encoded[at : at + 16]).to(device_of(bridge))
        found |= dict(zip(batch.idx, la.baseline(bridge, batch).tolist(), strict=True))
    return pd.Series(found)


KEPT = "retain_Q_A_ROUGE"


def utility(label: str, model: str, family: Family) -> float:
    """Mean ROUGE-L recall of its answers to rows that should be kept."""
    return float(_said(label, model, family)[KEPT]["agg_value"])


def _outputs(label: str, model: str, family: Family) -> dict[str, dict[int, float]]:
    log = _said(label, model, family)
    found = {}
    for name, metric in METRICS.items():
        entry = log.get(metric, {})
        by_idx = entry.get("forget", entry).get("value_by_index", {})
        found[name] = {int(idx): _value(row) for idx, row in by_idx.items()}
    return found


def _said(label: str, model: str, family: Family) -> dict[str, Any]:
    """The log of its outputs."""
    own = {} if family.data == "demo" else {"forget": family.data}
    out = family.place / "said" / label
    la.evaluate(
        model,
        out,
        metrics=(*METRICS.values(), KEPT),
        data="demo",
        dtype=family.dtype,
        device="cpu",
        **own,
    )
    return json.loads((out / "TOFU_EVAL.json").read_text(encoding="utf-8"))


def _value(row: Mapping[str, Any]) -> float:
    for key in ("prob", "rougeL_recall", "score"):
        if isinstance(row.get(key), int | float):
            return float(row[key])
    raise KeyError(f"no value among {sorted(row)}")


def _bits(label: str, model: str, family: Family) -> pd.Series:
    done = la.know(
        model,
        family.place / "know" / label,
        base=family.base,
        data=family.data,
        readers=("outputs", "lens"),
        placebos=0,
        activations=family.place / "activations",
        dtype=family.dtype,
        force=True,  # what was asked of other rows is replaced, as by the other commands
    )
    facts = pd.read_csv(done.folder / "facts.csv").set_index("idx")
    name = "bits_associated" if facts["bits_associated"].notna().any() else "bits_familiar"
    return facts[name]


@ends_as_sources()
def elicited(models: Mapping[str, str], family: Family) -> pd.DataFrame:
    """A row a fact and model: was it hit, of `full` too, and of any model that never knew."""
    parts = [_hits(label, model, family) for label, model in models.items()]
    return pd.concat(parts, ignore_index=True)


def _hits(label: str, model: str, family: Family) -> pd.DataFrame:
    retain = tuple(one for one in family.never if one != model)
    settings = WorstSettings(attack=ELICIT, retain=retain, **family.shared)
    worst = open_worst(model, settings)
    arms = run_all(worst)
    idx = pd.Series([fact.idx for fact in worst.asked])

    def hits(found: Findings, attack: str) -> pd.Series:
        return idx.map({at: float(one.hit) for at, one in found[attack].hits.items()})

    part = pd.DataFrame({"model": label, "idx": idx})
    for attack in ELICIT:
        part[attack] = hits(arms.source, attack)
        part[f"{attack}@full"] = hits(arms.full, attack)
        never = pd.concat([hits(one, attack) for one in arms.never], axis=1)
        part[f"{attack}@never"] = never.max(axis=1)
    return part


@ends_as_sources()
def retrained(models: Mapping[str, str], family: Family, *, workers: int = 1) -> pd.DataFrame:
    """The same while it is retrained: was the fact said after any of the steps that are read?

    The facts that are asked are never among the rows that are taught.
    """
    settings = EffortSettings(
        arms=family.arms,
        steps=family.steps,
        lrs=(family.lr,),
        lora=family.lora,
        full=family.full,
        retain=family.never,
        data=str(family.data),
        device="cpu",
        dtype=cast(Any, family.dtype if family.lora else "float32"),
    )

    ready = prepare_effort([*models.values()], settings, family.place / "effort")
    run_effort(ready, workers=workers)
    ready = replace(ready, log=read_log(ready.log.path))
    facts = la.forget_set(str(family.data))
    parts = [_marks(label, model, ready, facts) for label, model in models.items()]
    return pd.concat(parts, ignore_index=True)


def _marks(label: str, model: str, ready: PreparedEffort, facts: Sequence[Fact]) -> pd.DataFrame:
    arms, (rate,) = ready.models[model], ready.rates
    place = {one.question: one.idx for one in facts}
    part = pd.DataFrame({"idx": [place[one.question] for one in ready.held.data.items]})
    part.insert(0, "model", label)

    def said(checkpoint: Checkpoint, arm: Arm) -> pd.Series:
        # the reading before the attack is what the model says anyway
        return pd.DataFrame(ready.marks(checkpoint, arm, rate)[1:]).max()

    for arm in ready.settings.arms:
        name = f"retrained_{arm}"
        part[name] = said(arms.source, arm)
        part[f"{name}@full"] = said(arms.full, arm)
        part[f"{name}@never"] = pd.DataFrame([said(one, arm) for one in arms.never]).max()
    return part
