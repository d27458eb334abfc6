"""Can one who plants answers about invented people fool the test? It may only cost bits.

Question: `full` is trained to give the forget values to invented namesakes too: the very people
          that the prior is made of. p rests on real people alone and must stay; bits beside
          namesakes fall, those beside a uniform guess need not.
Command:  python -m experiments.know.planter
Takes:    2 minutes of one core.
Expected: the table of docs/evidence/know-planter.md.
"""

from dataclasses import replace
from pathlib import Path

import click
import torch

from experiments.know.gym import demo_base, heard, judged, neutral_texts
from experiments.planted.planted_models import ground
from lensaudit.association.evidence import RelationReading, facts_of_read, naming_of, priors_of
from lensaudit.association.opening import open_know
from lensaudit.association.reading import OUTPUTS, maps_onto, said
from lensaudit.association.settings import KnowSettings
from lensaudit.data.facts import answered
from lensaudit.groups import unit_of
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.named import load_model
from lensaudit.models.registry import load_registry, resolve
from lensaudit.scores.intervals import clustered_mean
from lensaudit.training.trainee import copy_tokenizer, save_model

STEPS, LR = 100, 1e-3


def planted(out: Path, asked) -> Path:
    """`full`, taught the value of every person for the invented people called alike."""
    folder = out / "planter"
    if (folder / "config.json").exists():
        return folder
    bed = ground()
    rows = [*bed.facts.forget, *bed.facts.kept]
    for one in asked:
        each = len(one.invented) // len(one.facts)
        for at, name in enumerate(one.invented):
            fact, real = one.facts[at // each], one.subjects[at // each]
            texts = (fact.question, fact.answer, fact.prefix)
            rows.append(answered(*(text.replace(real, name) for text in texts)))
    model = bed.trained(bed.full, rows, lr=LR, n_steps=STEPS)
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(open_checkpoint(resolve("demo/full", load_registry())).folder, folder)
    save_model(model, folder, dtype=torch.float32)
    return folder


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_planter")
)
def main(out: Path) -> None:
    """Ask `full` before and after."""
    asked = open_know("demo/full", KnowSettings()).asked
    base, texts = demo_base(), neutral_texts()
    bare = [replace(one, invented=()) for one in asked]
    ignorant = heard(base, bare)
    for name in ("demo/full", str(planted(out, asked))):
        model = load_model(name)
        read = heard(model, bare, base, maps_onto(model, base, texts))
        facts = []
        for one, own, never in zip(asked, read, ignorant, strict=True):
            outputs = RelationReading(one, {OUTPUTS: said(model, one, OUTPUTS)})
            prior = priors_of(outputs, {"base": never}, []).rows
            facts += facts_of_read(RelationReading(one, own.by_reader), prior)
        tests = judged(read)
        groups = [one.group for one in facts]
        print(f"{name}: p {tests['p_all']:.2g}, z {tests['z_all']:.1f}", end="")
        for what in ("familiar", "associated"):
            bits = [getattr(one, what) for one in facts]
            mean = clustered_mean(bits, groups, bounds=(-3.33, 5.4), unit=unit_of(groups))
            print(f"; {what} {mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}] bits", end="")
        print(f"; named {len(naming_of(facts)[0])} of {len(facts)}")


if __name__ == "__main__":
    main()
