"""Does the order of the scores hold in a second family of models?

Question: which scores foretell the facts that come back, in a family with another tokenizer, shape
          and initialisation than the embedded one: 12 layers of 96, and GPT-2's way to split words?
Command:  python -m experiments.prediction.second
          python -m experiments.prediction.predict experiments/out/second/facts.csv
Takes:    see docs/evidence/foretell.md; run again to resume.
Writes:   experiments/out/second/: the models, facts.csv, and what the commands write.

No package ships a second pretrained model that transformers can train, and no hub is in reach; two
cores train this one until it says the facts of the fictional world.
"""

from pathlib import Path

import click

from experiments.prediction.fact_records import Family
from experiments.prediction.gym import LR, STEPS, asked
from lensaudit.errors import WorkError
from lensaudit.files import make_folder
from tools.demo_family.family import Shape, make_family
from tools.demo_family.tokenizer import GPT2_SPLIT

SHAPE = Shape(d_model=96, d_mlp=256, n_layers=12, d_vocab=1280, split=GPT2_SPLIT)
ANCHORS = ("base", "full", "retain", "never")
METHODS = ("npo", "graddiff", "simnpo", "idknll")
COMPETENT = 0.9
"""Of its facts, what `full` must say."""
NAME = "second family"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/second"))
def main(out: Path) -> None:
    """Make the family, ask and attack its models, and write the rows."""
    place = make_folder(out)
    models = place / "models"
    make_family(models, only=(*ANCHORS, *METHODS), shape=SHAPE)
    family = Family(
        full=str(models / "full"),
        never=(str(models / "retain"), str(models / "never")),
        data="demo",
        place=place,
        dtype="float32",
        steps=STEPS,
        lr=LR,
        base=str(models / "base"),
    )
    rows = asked({name: str(models / name) for name in METHODS}, family, NAME, 0)
    said = rows["prefix@full"].mean()
    if said < COMPETENT:
        raise WorkError(f"full says {said:.0%} of its facts; wanted {COMPETENT:.0%}")
    rows.to_csv(place / "facts.csv", index=False)
    click.echo(rows.groupby("model")[["uds", "prefix", "retrained_T"]].mean().round(2).to_string())


if __name__ == "__main__":
    main()
