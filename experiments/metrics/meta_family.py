"""Which metric can be trusted? The whole meta-evaluation on small models, from nothing.

Question: trained on fictional authors, 6 models know the forget facts and 6 do not; 12 more were
          unlearned. Which metrics tell the pools apart, and which survive NF4 and relearning?
Command:  python -m experiments.metrics.meta_family    (--tiny: 2 + 2 models, three metrics)
Takes:    about 12 minutes on one core, and seconds when run again. Expected: the table of
          docs/evidence/meta-small-models.md.
Writes:   experiments/out/meta_family/: the models, faithfulness.json, robustness-*.json,
          meta_table.json, all as .csv too, and printed.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pandas as pd
import torch

from lensaudit.attacks.relearn import RelearnJob
from lensaudit.attacks.settings import DEMO_RELEARNING, Relearning
from lensaudit.data.facts import EMBEDDED
from lensaudit.data.tofu import DEMO
from lensaudit.files import make_folder, write_json, write_jsonl
from lensaudit.meta.documents import run_table
from lensaudit.meta.runs import (
    prepare_faithfulness,
    prepare_robustness,
    run_faithfulness,
    run_robustness,
)
from lensaudit.meta.settings import (
    FaithfulnessSettings,
    MetaTableSettings,
    RobustnessSettings,
)
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.settings import AnswerGroups
from lensaudit.training.job import prepare as prepare_unlearning
from lensaudit.training.rows import load_rows
from lensaudit.training.settings import UnlearnSettings

OUT = Path("experiments/out/meta_family")
FORMATS = DEMO_RELEARNING.formats
EPOCHS = 20
"""On 64 rows, at 1e-3: answers are learned, at a depth that differs from that of `full`."""
N_ROWS = 64
"""Rows per split; the forget set has as many."""
TINY = ("uds", "es", "mia_loss")
DEMO_UNLEARNED = ("idknll", "npo", "simnpo", "graddiff", "masked_readout", "masked_upper")


@dataclass(frozen=True)
class Trained:
    """A pool model: which model is trained on which rows."""

    name: str
    start: str
    rows: str
    n_epochs: int = EPOCHS


KNOWS = (
    Trained("knows/answers-a", "demo/retain", "answers"),
    Trained("knows/answers-b", "demo/never", "answers"),
    Trained("knows/paraphrases-a", "demo/retain", "paraphrases"),
    Trained("knows/paraphrases-b", "demo/never", "paraphrases"),
    Trained("knows/briefly", "demo/never", "answers", n_epochs=6),
    Trained("knows/full-on-others", "demo/full", "others", n_epochs=2),
)
FORGOT = (
    Trained("forgot/wrong-a", "demo/retain", "wrong"),
    Trained("forgot/wrong-b", "demo/never", "wrong"),
    Trained("forgot/strangers-a", "demo/retain", "strangers"),
    Trained("forgot/strangers-b", "demo/never", "strangers"),
    Trained("forgot/others-a", "demo/retain", "others", n_epochs=4),
    Trained("forgot/others-b", "demo/never", "others", n_epochs=4),
)
"""As the published pools: the forget answers, their paraphrases; wrong answers, other authors."""
UNLEARNED = {
    "unlearned/npo": ("NPO", 100, 1e-3),
    "unlearned/simnpo": ("SimNPO", 100, 1e-3),
    "unlearned/graddiff": ("GradDiff", 40, 2e-4),
    "unlearned/npo-long": ("NPO", 160, 1e-3),
    "unlearned/simnpo-hard": ("SimNPO", 140, 2e-3),
    "unlearned/graddiff-hard": ("GradDiff", 100, 5e-4),
}
"""Beside the embedded ones: method, steps, learning rate."""


def written_rows(folder: Path) -> dict[str, str]:
    """Training rows of each kind, as files of question and answer."""
    perturbed = _lines(EMBEDDED / "forget10_perturbed.jsonl")
    kinds = {
        "answers": [(r["question"], r["answer"]) for r in perturbed],
        "paraphrases": [(r["paraphrased_question"], r["paraphrased_answer"]) for r in perturbed],
        "wrong": [(r["question"], r["perturbed_answer"][0]) for r in perturbed],
        "strangers": [(r["question"], r["answer"]) for r in _lines(EMBEDDED / "holdout10.jsonl")],
        "others": [
            (r["question"], r["answer"]) for r in _lines(EMBEDDED / "retain_perturbed.jsonl")
        ],
    }
    make_folder(folder)
    return {
        kind: str(
            write_jsonl(folder / f"{kind}.jsonl", [{"question": q, "answer": a} for q, a in rows])
        )
        for kind, rows in kinds.items()
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train_pool(one: Trained, rows: str, folder: Path, *, n_epochs: int | None = None) -> None:
    """Fine-tune a model on rows, as relearning does."""
    job = RelearnJob(
        start=open_checkpoint(resolve(one.start, load_registry())),
        rows=load_rows(rows, part="forget"),
        data=rows,
        settings=Relearning(
            lr=1e-3,
            n_epochs=float(n_epochs or one.n_epochs),
            n_accumulate=1,
            batch_size=32,
            formats=FORMATS,
        ),
        stored=torch.float32,
        device="cpu",
    )
    if job.make(folder):
        notice(f"trained {folder.name}")


def train_unlearned(method_name: str, n_steps: int, lr: float, folder: Path) -> None:
    """Unlearn the forget facts from `demo/full`."""
    job = prepare_unlearning(
        UnlearnSettings(
            method=method_name,
            model="demo/full",
            out=folder,
            steps=n_steps,
            lr=lr,
            batch_size=32,
            accumulate=1,
            save_every=100,
            store="float32",
            device="cpu",
        )
    )
    if job.make(folder):
        notice(f"trained {folder.name}")


def notice(line: str) -> None:
    """A remark on what is going on."""
    print(line, file=sys.stderr)


def show(path: Path) -> None:
    """The table beside a judgement."""
    numbers = pd.read_csv(path.with_suffix(".csv")).dropna(axis=1, how="all").round(3)
    print(numbers.to_string(index=False))


def trained(out: Path, pools: Sequence[Trained], *, tiny: bool) -> Path:
    """Every model, and a registry file that names them."""
    rows = written_rows(out / "rows")
    folders = {one.name: out / "models" / one.name.replace("/", "-") for one in pools}
    for one in pools:
        train_pool(one, rows[one.rows], folders[one.name], n_epochs=2 if tiny else None)
    for name, recipe in ({} if tiny else UNLEARNED).items():
        folders[name] = out / "models" / name.replace("/", "-")
        train_unlearned(*recipe, folders[name])
    named = {name: {"path": str(folder.absolute())} for name, folder in folders.items()}
    return write_json(out / "registry.json", named)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)
@click.option("--activations", type=click.Path(path_type=Path), default=Path("activations"))
@click.option("--tiny", is_flag=True, help="A smoke test: 2 + 2 models, three metrics.")
def main(out: Path, activations: Path, tiny: bool) -> None:
    knows, forgot = (KNOWS[-2:], FORGOT[-2:]) if tiny else (KNOWS, FORGOT)
    registry = trained(make_folder(out), [*knows, *forgot], tiny=tiny)
    measuring = AnswerGroups(
        full="demo/full",
        retain="demo/retain",
        data=DEMO,
        registry=registry,
        activations=activations,
        limit=6 if tiny else N_ROWS,
        max_new_tokens=4 if tiny else 32,
        device="cpu",
    )
    pools = FaithfulnessSettings(
        knows=tuple(one.name for one in knows),
        forgot=tuple(one.name for one in forgot),
        metrics=TINY if tiny else (),
        measuring=measuring,
        out=out,
    )
    run_faithfulness(pools, prepare_faithfulness(pools, notice))
    show(out / "faithfulness.json")
    models = (*(f"demo/{name}" for name in DEMO_UNLEARNED), *UNLEARNED)
    for attack in ("quantize", "relearn"):
        settings = RobustnessSettings(
            attack=attack,
            models=("demo/graddiff",) if tiny else models,
            thresholds=str(out),
            by="none" if tiny else "both",
            metrics=TINY if tiny else (),
            measuring=measuring,
            no_fluency=True,
            out=out,
        )
        run_robustness(settings, prepare_robustness(settings, notice))
        show(out / f"robustness-{attack}.json")
    run_table(MetaTableSettings(results=(out,), out=out))
    show(out / "meta_table.json")


if __name__ == "__main__":
    main()
