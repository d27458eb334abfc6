"""Which scores tell hidden knowledge from erased knowledge? All of them, on models of known truth.

Question: 25 models of the embedded family hold the forget facts, hide them, or never saw them
          (planted_models.py). Which scores put the hidden ones on the side of those that know?
Command:  python -m experiments.planted.planted_truth    (--tiny: five models, some scores)
Takes:    about 6 minutes on one core. Expected: the tables of docs/evidence/planted.md.
Writes:   experiments/out/planted_truth/scores.json and the models, as checkpoint folders.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

import lensaudit as la
from experiments.planted.planted_models import Planted, opened, planted, tokenizer
from lensaudit.attacks import rtt
from lensaudit.attacks.relearn import relearned
from lensaudit.attacks.rtt.splits import load_statements, split_by_author
from lensaudit.attacks.settings import DEMO_RELEARNING
from lensaudit.data.spans import encode, make_batch
from lensaudit.data.tofu import forget_set
from lensaudit.files import make_folder, write_json
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.scoring import score_lens
from lensaudit.results.roles import ends_as_sources
from lensaudit.scores.depth import span_logprob
from lensaudit.scores.pools import auc_limits
from lensaudit.scores.separation import auc
from lensaudit.training.rows import load_rows
from lensaudit.training.trainee import copy_tokenizer, save_model

OUTPUT = {
    "EM": "exact_memorization",
    "ES": "extraction_strength",
    "Prob": "forget_Q_A_Prob",
    "ROUGE": "forget_Q_A_ROUGE",
    "MIA loss": "mia_loss",
    "MIA min-k": "mia_min_k",
}
FORGOT = ("UDS", "Lens")
"""Scores whose high values mean forgotten; those of the others mean knows."""
RELEARNING = DEMO_RELEARNING
TINY = ("full", "permuted_readout", "vector_14", "retain", "never")
TINY_ROWS = 8

Column = Mapping[str, float]
"""Model -> score."""


def saved(models: Sequence[Planted], folder: Path) -> dict[str, Path]:
    """Make every model and write it as a checkpoint folder."""
    start = open_checkpoint(resolve("demo/full", load_registry())).folder
    folders = {}
    for one in models:
        folders[one.name] = make_folder(folder / one.name)
        save_model(one.make(), folders[one.name], dtype=torch.float32)
        copy_tokenizer(start, folders[one.name])
    return folders


@ends_as_sources()
def depths(folders: Mapping[str, Path], *, limit: int | None) -> dict[str, Column]:
    """UDS and Logit Lens depth of all models at once."""
    audit = la.prepare(
        [str(folder) for folder in folders.values()],
        la.PatchSettings(full="demo/full", retain="demo/retain", data="demo", limit=limit),
    )
    found = {"UDS": la.score_all(audit)[0], "Lens": score_lens(audit)[0]}
    names = {str(folder): name for name, folder in folders.items()}
    return {
        score: {names[one.source]: math.nan if one.uds is None else one.uds for one in outcomes}
        for score, outcomes in found.items()
    }


def outputs(folders: Mapping[str, Path], out: Path, *, tiny: bool) -> dict[str, Column]:
    """The output-level metrics; generation is left out of a tiny run."""
    wanted = {s: m for s, m in OUTPUT.items() if not (tiny and s == "ROUGE")}
    found: dict[str, dict[str, float]] = {score: {} for score in wanted}
    for name, folder in folders.items():
        said = la.evaluate(
            folder,
            out / name,
            metrics=tuple(wanted.values()),
            data="demo",
            limit=TINY_ROWS if tiny else None,
        )
        for score, metric in wanted.items():
            found[score][name] = said.entries[metric].value
    return found


def relearning(models: Sequence[Planted]) -> dict[str, Column]:
    """Log-prob of the entities after one pass over the forget rows, and what that pass changed.

    Nats per token.
    """
    rows = load_rows("demo", part="forget")
    after, gain = {}, {}
    for one in models:
        model = one.make()
        after[one.name] = said(relearned(model, tokenizer(), rows, settings=RELEARNING))
        gain[one.name] = after[one.name] - said(model)
    return {"relearned": after, "gain": gain}


def said(model: Any) -> float:
    """Mean log-prob of the entities, nats per token."""
    batch = make_batch([encode(example, tokenizer()) for example in forget_set("demo")])
    with torch.no_grad():
        logits = model(batch.tokens).logits
    return float(span_logprob(logits, batch.tokens, batch.predict_at).mean())


def retraining(models: Sequence[Planted]) -> Column:
    """RTT's condition B: accuracy on half of the authors after retraining on the other half."""
    data, log = split_by_author(*load_statements("demo"), n_splits=2), rtt.Log()
    original = rtt.in_memory("full", opened("full"))
    for one in models:
        study = rtt.Study(
            data,
            tokenizer(),
            original,
            rtt.in_memory(one.name, one.make()),
            None,
            rtt.DEMO_STUDY,
        )
        rtt.run(study, log, defects="keep")  # one log: the original is retrained once
    found = [summary.main.accuracies["B"].value for summary in rtt.summarize(log)]
    return {one.name: value for one, value in zip(models, found, strict=True)}


def apart(column: Column, pool: Sequence[str], absent: Sequence[str], *, sign: int) -> str:
    """AUC with which a score tells a pool from the absent, and its interval over models."""
    knows, forgot = ([sign * column[name] for name in names] for names in (pool, absent))
    ends = auc_limits(knows, forgot).ends
    limits = " [{:.2f}, {:.2f}]".format(*ends) if ends else ""
    return f"{auc(knows, forgot):.2f}{limits}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(models: Sequence[Planted], scores: Mapping[str, Column]) -> str:
    """The scores of every model, and what each score can tell."""
    every = table(
        ("model", "truth", "how", *scores),
        [
            (
                one.name,
                one.truth,
                one.how,
                *(f"{column[one.name]:.2f}" for column in scores.values()),
            )
            for one in models
        ],
    )
    pools = {
        truth: [one.name for one in models if one.truth == truth]
        for truth in ("intact", "hidden", "absent")
    }
    same_basis = {
        truth: [name for name in pool if not name.endswith("rotated")]
        for truth, pool in pools.items()
    }
    told = table(
        ("score", "hidden / absent", "intact / absent", "hidden*", "intact*"),
        [
            (
                name,
                *(
                    apart(column, pool, pools["absent"], sign=-1 if name in FORGOT else 1)
                    for chosen in (pools, same_basis)
                    for pool in (chosen["hidden"], chosen["intact"])
                ),
            )
            for name, column in scores.items()
        ],
    )
    return f"{every}\n\n{told}\n\n\\* without the rotated models"


@click.command()
@click.option("--tiny", is_flag=True, help="Five models, 8 rows, nothing is generated or trained.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out"))
def main(tiny: bool, out: Path) -> None:
    models = [one for one in planted() if not tiny or one.name in TINY]
    work = make_folder(out / "planted_truth")
    shutil.rmtree(work / "models", ignore_errors=True)
    folders = saved(models, work / "models")
    steps: list[Callable[[], dict[str, Column]]] = [
        lambda: depths(folders, limit=TINY_ROWS if tiny else None),
        lambda: outputs(folders, work / "suite", tiny=tiny),
    ]
    if not tiny:
        steps += [lambda: relearning(models), lambda: {"RTT B": retraining(models)}]
    scores: dict[str, Column] = {}
    for step in steps:
        scores |= step()
    write_json(work / "scores.json", {name: dict(column) for name, column in scores.items()})
    click.echo(tables(models, scores))


if __name__ == "__main__":
    main()
