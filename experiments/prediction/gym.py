"""The rows of `predict.py` where the truth is planted: the embedded family, and partial models.

Question: is what a score says of single facts true where each fact is known to be there or not?
Command:  lensaudit gym make --seeds 5 --out gym
          python -m experiments.prediction.gym --gym gym
          python -m experiments.prediction.predict experiments/out/predict/facts.csv
Takes:    half a minute of one core a model; run again to resume.
          Expected: docs/evidence/foretell.md.
Writes:   experiments/out/predict/: facts.csv, and what the commands write.

Of the gym the models of which some facts are known and some not (`some_taught`, `some_hidden`,
`few`, `few_together`), of each seed. A seed has a `full` and two models that never saw the facts
of its own.
"""

import json
from pathlib import Path

import click
import pandas as pd

from experiments.prediction.fact_records import Family, elicited, retrained, scored
from lensaudit.files import make_folder

EMBEDDED = ("npo", "graddiff", "simnpo", "idknll", "masked_upper", "masked_readout")
PARTIAL = ("some_taught-0.5", "some_hidden-0.5", "few-10", "few_together-10")
STEPS, LR = 16, 3e-4
"""Of retraining; at 1e-3 `full` itself loses half of its facts in as many steps."""


def anchored(place: Path, gym: Path | None, seed: int) -> Family:
    """Anchors of a seed; seed 0 plants into the embedded family as it is."""
    if gym is None or seed == 0:
        full, never = "demo/full", ("demo/retain", "demo/never")
    else:
        folders = [gym / f"seed-{seed}" / f"anchor_{role}" for role in ("full", "retain", "other")]
        full, never = str(folders[0]), (str(folders[1]), str(folders[2]))
    return Family(
        full=full,
        never=never,
        data="demo",
        place=make_folder(place),
        dtype="float32",
        steps=STEPS,
        lr=LR,
    )


def asked(models: dict[str, str], family: Family, name: str, seed: int) -> pd.DataFrame:
    """A row a fact and model, everything asked."""
    rows = pd.concat([scored(label, one, family) for label, one in models.items()])
    for ask in (elicited, retrained):
        rows = rows.merge(ask(models, family), on=["model", "idx"], how="left")
    return rows.assign(family=name, seed=seed)


def planted(folder: Path) -> list[int]:
    """The facts that a partial model knows, as its certificate was checked to say."""
    return json.loads((folder / "certificate.json").read_text(encoding="utf-8"))["knows"]


@click.command()
@click.option("--gym", type=click.Path(exists=True, path_type=Path), help="Of `gym make`.")
@click.option("--seeds", default=5, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/predict"))
def main(gym: Path | None, seeds: int, out: Path) -> None:
    """Ask and attack the models, and write the rows."""
    family = anchored(out / "embedded", None, 0)
    models = {name: f"demo/{name}" for name in EMBEDDED}
    found = [asked(models, family, "embedded family", 0)]
    for seed in range(seeds) if gym is not None else ():
        folders = {name: gym / f"seed-{seed}" / name for name in PARTIAL}
        there = {name: one for name, one in folders.items() if (one / "config.json").exists()}
        for name in folders.keys() - there.keys():
            click.echo(f"missing: seed {seed}, {name}", err=True)
        if not there:
            continue
        family = anchored(out / f"seed-{seed}", gym, seed)
        rows = asked({name: str(one) for name, one in there.items()}, family, "gym", seed)
        knows = {name: set(planted(one)) for name, one in there.items()}
        pairs = zip(rows["model"], rows["idx"], strict=True)
        found.append(rows.assign(planted=[float(idx in knows[model]) for model, idx in pairs]))
        click.echo(f"seed {seed}: done", err=True)
        pd.concat(found, ignore_index=True).to_csv(out / "facts.csv", index=False)
    pd.concat(found, ignore_index=True).to_csv(out / "facts.csv", index=False)


if __name__ == "__main__":
    main()
