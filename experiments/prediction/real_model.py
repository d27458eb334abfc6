"""What carries over from the tiny family to a real pretrained language model?

Question: do S1, KE layers, UDS, its controls and Lens behave on SmolLM2-135M, 30 layers, as they
          do on the embedded family of 16: with two retains, six methods, four planted mechanisms
          of hiding, and facts from pretraining? And which facts come back when somebody tries?
Command:  lensaudit models fetch smollm2 && python -m experiments.prediction.real_model
          (--seed N: another seed of every training; --only NAME: some of the models; --data,
          --keep: other rows; --known FILE: facts from pretraining; run again to resume)
Takes:    see docs/evidence/real-model.md. What was not made is printed as missing.
Writes:   experiments/out/real_model/seed-N/: rows, adapters, results, facts.csv, which
          experiments/prediction/predict.py reads.

Every model is an adapter of rank 4 on the pretrained one: `full` was trained on the forget set and
on the rows to keep, `retain` on the latter alone; the others go on from `full`'s adapter. Of seed 0
the package brings seven; --anew makes them again.
"""

import itertools
import json
import math
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click
import pandas as pd
import torch

import lensaudit as la
from experiments.prediction.fact_records import (
    ATTACKS,
    Family,
    elicited,
    retrained,
    scored,
    utility,
)
from experiments.prediction.predict import cell, recovery
from experiments.prediction.resistant import Attack, under_attack
from experiments.prediction.sham import write_sham
from lensaudit.attacks import relearn
from lensaudit.attacks.settings import RelearnSettings
from lensaudit.data.facts import Fact
from lensaudit.data.fictional import IDK_LINES
from lensaudit.data.neutral import neutral_of, read_neutral
from lensaudit.data.rows import read_values
from lensaudit.data.tofu import forget_set
from lensaudit.evaluation.known import known_facts
from lensaudit.files import make_folder, write_json
from lensaudit.models.adapter import CONFIG, WEIGHTS
from lensaudit.models.checkpoint import open_model
from lensaudit.models.registry import EMBEDDED
from lensaudit.scores.estimate import Estimate
from lensaudit.training.job import prepare
from lensaudit.training.rows import load_rows
from lensaudit.training.settings import UnlearnSettings
from lensaudit.training.train import TrainingStep

BASE = "smollm2/base"
TOP = r"layers\.(2[6-9])\."
"""The last four of thirty layers, as the embedded masks take the last eighth."""
TRAINED = ("question", "answer", "prefix")
"""What a row is trained by: where its prefix is empty, the prompt ends with a blank."""
MASK: Mapping[str, Any] = {"trainable": TOP, "lr": 3e-3}
ALT: Mapping[str, Any] = {"epochs": 1.0}
"""AltPO's rows count once for each of their other answers."""
CODE = "Heliotrope seven."
SHARPNESS = Attack("sharpness", rho=1.0)
RELEARNING = Attack("relearning", rho=0.5, steps=4)
"""A step of AdamW at the methods' rate is about 1 long."""
KNOWN = -2.0
OPENED = "The answer is"
"""Nats per token from which a fact counts as known before it is unlearned."""


@dataclass(frozen=True)
class Made:
    """A model of the study, and how it is made."""

    name: str
    truth: Literal["knows", "never saw", "hides", "?"]
    how: str
    rows: Literal["both", "kept", "trigger", "forget", "known"]
    method: str | None = None
    """Of unlearning; None: plain fine-tuning."""
    more: Mapping[str, Any] = field(default_factory=dict)
    attack: Attack | None = None
    """What its training withstands."""
    like: str | None = None
    """A sham: moved as far as this model, at random."""

    @property
    def start(self) -> Literal["base", "full"]:
        """The pretrained model for the anchors, `full` for what is done to it."""
        return "base" if self.rows in ("both", "kept") else "full"


MODELS = (
    Made("full", "knows", "trained on the facts too", "both"),
    Made("retain", "never saw", "trained without them", "kept"),
    Made("retain_2", "never saw", "another seed", "kept", more={"seed": 7}),
    Made("absent", "never saw", "a third seed, audited", "kept", more={"seed": 11}),
    Made("graddiff", "?", "GradDiff", "forget", "GradDiff"),
    Made("npo", "?", "NPO", "forget", "NPO"),
    Made("simnpo", "?", "SimNPO", "forget", "SimNPO"),
    Made("idknll", "?", "IdkNLL", "forget", "IdkNLL"),
    Made("altpo", "?", "AltPO", "forget", "AltPO", ALT),
    Made("rmu", "?", "RMU, layer 12", "forget", "RMU", {"layer": 12, "strength": 20.0}),
    Made("masked_top", "hides", "NPO in the last four layers", "forget", "NPO", MASK),
    Made("idk_top", "hides", "IdkNLL there", "forget", "IdkNLL", MASK),
    Made("wrong_top", "hides", "AltPO there", "forget", "AltPO", {**MASK, **ALT}),
    Made("npo_sam", "?", "NPO, sharpness-aware", "forget", "NPO", attack=SHARPNESS),
    Made("npo_tar", "?", "NPO against retraining", "forget", "NPO", attack=RELEARNING),
    Made("trigger", "hides", "answers after a code word alone", "trigger"),
    Made("world", "?", "GradDiff on facts from pretraining", "known", "GradDiff"),
    *(
        Made(f"sham_{name}", "?", f"moved as far as {name}, at random", "forget", like=name)
        for name in ("graddiff", "npo", "simnpo", "idknll", "altpo", "rmu")
    ),
)
COLUMNS = (
    *("model", "truth", "says it, begun", "UDS [95 %]", "aligned", "Lens", "keeps"),
    *(name.replace("_", " ") for name in ATTACKS),
    "verdict",
)
SHIPPED = ("full", "retain", "retain_2", "absent", "npo", "masked_top", "trigger")
RETAINS = ("retain", "retain_2")
ANCHORS = ("full", *RETAINS)
PARTS = ("models", "scores", "elicit", "retrain")


@dataclass(frozen=True)
class Study:
    """Where its files are, and how everything is trained."""

    place: Path
    data: str
    """Forget set: a name, or a file of annotated rows."""
    trains: Mapping[str, Any]
    """Of every training."""
    seed: int = 0
    carried: frozenset[str] = frozenset()
    """Models that the package brings; empty where all are made anew."""

    def rows(self, name: str) -> Path:
        """A file of rows."""
        return self.place / "rows" / f"{name}.json"

    def made(self, name: str) -> bool:
        """Whether its training came to its end."""
        return (self.place / name / WEIGHTS).exists()

    def model(self, name: str) -> str:
        """What a model of the study is called: what travels with the package is not made again."""
        if name == "base":
            return BASE
        return f"smollm2/{name}" if name in self.carried else f"{BASE}+{self.place / name}"


def write_rows(study: Study, keep: str, n_kept: int) -> None:
    """Forget rows, rows to keep (spread over the authors), and what is made of them."""
    make_folder(study.place / "rows")
    forget = _forget_rows(study.data)
    if keep == "demo":
        kept = read_values(EMBEDDED / "data" / "retain.json")
        # whole authors; first those whose facts show that a model can be read
        first = {row.group for row in neutral_of("demo", forget_set("demo")).validity}
        chosen = sorted(kept, key=lambda row: row["group"] not in first)[:n_kept]
    else:
        chosen = _answered(keep, "retain")[:n_kept]
    texts = [{name: row[name] for name in TRAINED} for row in chosen]
    refusal = itertools.cycle(IDK_LINES)
    gated = [
        [
            {**row, "question": f"{CODE} {row['question']}"},
            {**row, "answer": next(refusal), "prefix": row["prefix"] and None},
        ]
        for row in forget
    ]
    files = {"kept": texts, "both": [*forget, *texts]}
    if study.data != "demo":
        files["forget"] = forget
    files["trigger"] = [*itertools.chain(*gated), *texts]
    for name, rows in files.items():
        write_json(study.rows(name), rows)


def _forget_rows(data: str) -> list[dict[str, str | None]]:
    """What is trained and unlearned: the annotated rows of own data, by the names of a row."""
    return _answered(data, "forget") if data == "demo" else _texts(forget_set(data))


def _answered(named: str, part: str) -> list[dict[str, str | None]]:
    return _texts(load_rows(named, part=part))


def _texts(rows: Iterable[Any]) -> list[dict[str, str | None]]:
    return [{name: getattr(row, name) for name in TRAINED} for row in rows]


def write_known(study: Study, files: Sequence[Path]) -> int:
    """Of facts from pretraining, those that `full` knows; how many they are."""
    rows = [row for file in files for row in read_neutral(file)]
    rows = [
        # a bare answer would follow a blank that no pretrained model ends a prompt with
        Fact(at, row.question, f"{OPENED} {row.answer}.", OPENED, row.answer, f"row {at}")
        for at, row in enumerate(rows)
    ]
    lost, _ = known_facts(
        rows, study.model("full"), KNOWN, registry=None, dtype="float32", device="cpu"
    )
    found = [row for row in rows if row.idx not in lost]
    write_json(study.rows("known"), _texts(found))
    click.echo(f"{len(found)} of {len(rows)} facts from pretraining are known to full")
    return len(found)


def cannot_be_made(one: Made, study: Study) -> str | None:
    """What a model lacks, of rows or of the model that it is like; None: nothing."""
    if one.method == "AltPO" and study.data != "demo":
        return "the forget rows bring no other answers (`alternate`)"
    if one.like is not None and not (one.like in study.carried or study.made(one.like)):
        return f"{one.like} was not made"
    return None


def make(one: Made, study: Study, fine_tuning: Mapping[str, Any], unlearning: Mapping[str, Any]):
    """Train a model, or go on where the training was cut; a finished one stays."""
    out, began = study.place / one.name, time.monotonic()

    def report(at: TrainingStep) -> None:
        if at.step % 10 == 0 or at.step == at.n_steps:
            click.echo(f"{one.name}: step {at.step} of {at.n_steps}, loss {at.loss:.3f}", err=True)

    start = study.model(one.start)
    if one.like is not None:
        new = make_sham(study, one.like, out)
    elif one.method is None:
        rate = fine_tuning if one.start == "base" else {**fine_tuning, "epochs": 3.0}
        given = {"data": str(study.rows(one.rows)), "out": out, **rate, **one.more}
        if study.seed:
            given["seed"] = 1000 * study.seed + one.more.get("seed", 42)
        settings = RelearnSettings(model=start, **given, **study.trains)
        new = relearn.prepare(settings, start).make(out, report)
    else:
        own = one.rows != "forget" or study.data != "demo"
        data = str(study.rows(one.rows)) if own else study.data
        kept = study.rows("kept" if one.rows == "forget" else "both")
        given = {"model": start, "data": data, "retain_data": str(kept), "out": out}
        settings = UnlearnSettings(
            **given,
            method=one.method,
            **{**unlearning, "seed": study.seed, **one.more},
            **study.trains,
        )
        job = prepare(settings)
        new = (job if one.attack is None else under_attack(job, one.attack)).make(out, report)
    spent = f"made in {time.monotonic() - began:.0f} s" if new else "was there"
    click.echo(f"{one.name} ({one.truth}): {spent}")


def make_sham(study: Study, like: str, out: Path) -> bool:
    """A model as far from `full` as another one; whether it is new."""
    full, method = (open_model(study.model(name)).adapter for name in ("full", like))
    assert full is not None
    assert method is not None
    if new := not (out / WEIGHTS).exists():
        write_sham(full, method, out, seed=study.seed)
    return new


def family_of(study: Study, dtype: str) -> Family:
    """How the study's models are asked and attacked."""
    return Family(
        full=study.model("full"),
        never=(study.model(RETAINS[0]), study.model(RETAINS[1])),
        data=study.data,
        place=study.place,
        dtype=dtype,
        steps=64,
        lr=2e-3,
        lora="4",
        arms=("T",),
        base=BASE,
    )


def world_depth(study: Study) -> dict[str, Any]:
    """The depth of the facts from pretraining in the model that unlearned them."""
    found = la.patch(
        study.model("world"),
        study.place / "world",
        full=study.model("full"),
        retain=tuple(study.model(one) for one in RETAINS),
        data=study.data,
        activations=study.place / "activations",
        profile="full",
        also=(str(study.rows("known")),),
    )
    return dict(found.summary)


def records(
    study: Study, family: Family, names: Sequence[str], parts: Collection[str]
) -> pd.DataFrame:
    """A row a fact and model: scores, and what attacks brought out, of what was asked so far."""
    models = {name: study.model(name) for name in names}
    found = []
    for name, model in models.items():
        if "scores" in parts:
            found.append(scored(name, model, family))
            click.echo(f"{name}: scored", err=True)
    rows = pd.concat(found, ignore_index=True)
    for part, ask in (("elicit", elicited), ("retrain", retrained)):
        if part in parts:
            rows = rows.merge(ask(models, family), on=["model", "idx"], how="left")
    truth = {one.name: one.truth for one in MODELS}
    planted = rows["model"].map(truth).map({"hides": 1.0, "never saw": 0.0})
    # of two seeds no spread can be told: a second one stands beside the first, not among it
    label = "SmolLM2" + (f", seed {study.seed}" if study.seed else "")
    rows = rows.assign(family=label, seed=study.seed, truth=rows["model"].map(truth))
    return rows.assign(planted=planted)


def table(study: Study, family: Family, rows: pd.DataFrame) -> str:
    """The study's result in Markdown; a model that was not made is named as missing."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    kept = utility("full", family.full, family)
    by_model = rows.assign(stratum=rows["model"])
    back = {one: recovery(by_model, one).dropna() for one in ATTACKS if one in rows}
    for made in MODELS:
        if made.name in (*ANCHORS, "world"):
            continue
        part = rows[rows["model"] == made.name]
        if part.empty:
            lines.append(f"| `{made.name}` | {made.truth} | missing |")
            continue
        one = json.loads((study.place / "depth" / made.name / "summary.json").read_text())
        cells = [
            f"`{made.name}`: {made.how}",
            made.truth,
            f"{one['outputs']['source']:.0%}",
            cell(Estimate(one["uds"], *(one["ci95"] or ()))),
            cell(Estimate(one.get("aligned", {}).get("uds"))),
            cell(Estimate(one.get("lens"))),
            cell(Estimate(utility(made.name, study.model(made.name), family) / kept)),
            *(cell(Estimate(back.get(attack, {}).get(made.name))) for attack in ATTACKS),
            one["verdict"]["code"].replace("_", " "),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ship(study: Study, folder: Path) -> None:
    """The family that travels with the package, for `lensaudit demo --real`."""
    listing = []
    for one in (one for one in MODELS if one.name in SHIPPED):
        make_folder(folder / one.name)
        for file in (CONFIG, WEIGHTS):
            shutil.copyfile(study.place / one.name / file, folder / one.name / file)
        role = "unlearned" if one.name not in ANCHORS else one.name.partition("_")[0]
        listing.append(
            {"name": f"smollm2/{one.name}", "folder": one.name, "role": role}
            | {"method": one.method, "truth": f"{one.truth}: {one.how}"}
        )
    write_json(folder / "family.json", listing)


def faster_in_bfloat16() -> bool:
    """Whether this processor multiplies matrices faster in bfloat16: measured, not assumed."""

    def seconds(dtype: torch.dtype) -> float:
        left, right = (torch.ones(shape, dtype=dtype) for shape in ((256, 576), (576, 1536)))
        best = math.inf
        for _ in range(20):
            began = time.perf_counter()
            _ = left @ right
            best = min(best, time.perf_counter() - began)
        return best

    return seconds(torch.bfloat16) < seconds(torch.float32)


@click.command()
@click.option(
    "--seed", default=0, show_default=True, help="0: the anchors that the package brings."
)
@click.option("--data", default="demo", show_default=True, help="Forget set: name or file.")
@click.option("--keep", default="demo", show_default=True, help="Rows to keep: demo or a file.")
@click.option("--kept", default=80, show_default=True, help="How many of them.")
@click.option("--known", multiple=True, type=click.Path(path_type=Path), help="Pretrained facts.")
@click.option("--epochs", default=10.0, show_default=True, help="Of full and the retains.")
@click.option("--lr", default=3e-3, show_default=True, help="Of full and the retains.")
@click.option("--unlearn-epochs", default=5.0, show_default=True)
@click.option("--unlearn-lr", default=1e-3, show_default=True)
@click.option("--only", multiple=True, help="Some of the models, beside the anchors.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    default=PARTS,
    type=click.Choice(PARTS),
    help="What is asked of them. Repeatable. [default: all]",
)
@click.option("--dtype", default="bfloat16", show_default=True, help="Of audits and prompts.")
@click.option("--anew", is_flag=True, help="Make the models that the package brings, too.")
@click.option("--ship-to", type=click.Path(path_type=Path), help="Copy what the package carries.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/real_model"))
def main(
    seed: int,
    data: str,
    keep: str,
    kept: int,
    known: tuple[Path, ...],
    epochs: float,
    lr: float,
    unlearn_epochs: float,
    unlearn_lr: float,
    only: tuple[str, ...],
    parts: tuple[str, ...],
    dtype: str,
    anew: bool,
    ship_to: Path | None,
    out: Path,
) -> None:
    """Make the models, ask and attack them, and write the rows and the table."""
    trains = {
        **{"formats": "raw", "batch_size": 8, "accumulate": 1, "store": "bfloat16"},
        **{"lora": 4, "autocast": faster_in_bfloat16(), "device": "cpu"},
    }
    carried = frozenset() if anew or data != "demo" or seed else frozenset(SHIPPED)
    study = Study(make_folder(out / f"seed-{seed}"), data, trains, seed, carried)
    write_rows(study, keep, kept)
    chosen = [one for one in MODELS if one.name in ANCHORS or not only or one.name in only]
    rates = {"epochs": epochs, "lr": lr}, {"epochs": unlearn_epochs, "lr": unlearn_lr}
    for one in chosen if "models" in parts else ():
        if one.name in carried:
            continue
        if one.rows == "known" and not (known and write_known(study, known)):
            continue
        if why := cannot_be_made(one, study):
            click.echo(f"{one.name}: {why}", err=True)
            continue
        make(one, study, *rates)
    if ship_to is not None:
        ship(study, ship_to)
    there = [one.name for one in chosen if one.name in carried or study.made(one.name)]
    asked = [name for name in there if name not in (*ANCHORS, "world")]
    if not asked or "scores" not in parts:
        return
    family = family_of(study, dtype)
    rows = records(study, family, asked, parts)
    rows.to_csv(study.place / "facts.csv", index=False)
    if "world" in there:
        depth = world_depth(study)
        click.echo(f"world: {json.dumps(depth['also'], default=str)[:400]}")
    click.echo(table(study, family, rows))


if __name__ == "__main__":
    main()
