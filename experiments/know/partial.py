"""How many bits a fact, and which facts are named, of models that know some of the facts?

Question: what do known and unknown facts of a partial model read, how many are named at 8, 40 and
          107 candidates (as many as the embedded set's pools give), and how many of those falsely?
          As `know` does it, and by outputs alone beside a uniform guess.
Command:  lensaudit gym make --seeds 5 --out gym; python -m experiments.know.partial gym
Takes:    15 s of one core a model, 26 models.
Expected: the table of docs/evidence/know-bits.md.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from experiments.know.gym import BASE, demo_base, heard, kept_or_read, key_of, neutral_texts
from lensaudit.association.evidence import RelationReading, facts_of_read, naming_of, priors_of
from lensaudit.association.opening import open_know
from lensaudit.association.reading import OUTPUTS, maps_onto, said
from lensaudit.association.settings import KnowSettings
from lensaudit.data.relations import Relation
from lensaudit.gym.make import PlantedModel, models_in
from lensaudit.models.named import load_model
from lensaudit.scores.intervals import clustered_mean, share_of

SIZES = (8, 40, 107)
NAMES = ("few", "few_together", "some_hidden", "some_taught", "absent", "full", "masked_upper")


def tables(model: Any, asked: Sequence[Relation], base: Any, maps: Any) -> list[Any]:
    """By relation what readers say of the real subjects, and the outputs of invented ones too."""
    bare = [replace(one, invented=()) for one in asked]
    alone = heard(model, bare, base, maps)
    return [
        (read.by_reader, said(model, one, OUTPUTS)) for one, read in zip(asked, alone, strict=True)
    ]


def cut(table: torch.Tensor, k: int) -> torch.Tensor:
    """The same reading with the first k candidates alone."""
    return table[:, :k].log_softmax(-1)


def facts_at(asked: Sequence[Relation], own: Any, base: Any, k: int, *, plain: bool) -> list[Any]:
    """Evidence of every fact with k candidates; `plain`: outputs alone, beside a uniform guess."""
    found = []
    for one, (readers, outputs), (ignorant, _) in zip(asked, own, base, strict=True):
        small = replace(one, placebos=one.placebos[: k - len(one.values) + len(one.placebos)])
        given = {name: cut(table, k) for name, table in ignorant.items()}
        said, base_said = {OUTPUTS: cut(outputs, k)}, {"base": RelationReading(small, given)}
        prior = priors_of(RelationReading(small, said), base_said, []).rows
        read = {name: cut(table, k) for name, table in readers.items()}
        if plain:
            read, prior = {OUTPUTS: read[OUTPUTS]}, torch.full((len(outputs), k), 1 / k).double()
        found += facts_of_read(RelationReading(small, read), prior)
    return found


def show(done: Sequence[tuple[PlantedModel, Sequence[Any]]], k: int, how: str) -> None:
    """A line a mechanism and strength."""
    by = defaultdict(list)
    for one, facts in done:
        by[f"{one.mechanism}-{one.strength:g}"].append((one, facts))
    for name, models in sorted(by.items()):
        rows = [
            (fact, one.seed, fact.idx in known, fact.idx in naming_of(facts)[0])
            for one, facts in models
            for known in [known_of(one, facts)]
            for fact in facts
        ]
        line = f"{how} K {k:3d} {name:19} {len(models)} models"
        for what in (True, False):
            mine = [row for row in rows if row[2] == what]
            if not mine:
                continue
            bits = [row[0].associated for row in mine]
            groups = [(row[1], row[0].group) for row in mine]
            mean = clustered_mean(bits, groups, bounds=(-3.33, float(np.log2(k))), unit="author")
            ends = "" if mean.low is None else f" [{mean.low:.2f}, {mean.high:.2f}]"
            n_named = sum(row[3] for row in mine)
            named = share_of(n_named, len(mine))
            line += f"; {'known' if what else 'unknown'} {mean.value:.2f}{ends} bits, named "
            line += f"{n_named} of {len(mine)} [{named.low:.2f}, {named.high:.2f}]"
        print(line)


def known_of(one: PlantedModel, facts: Sequence[Any]) -> set[int]:
    """The facts that are planted."""
    if one.truth == "absent":
        return set()
    knows = one.certificate.knows
    return {fact.idx for fact in facts} if knows is None else set(knows)


@click.command()
@click.argument("gym", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="3,4", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_partial")
)
def main(gym: Path, seeds: str, out: Path) -> None:
    """Ask every partial model with all candidates, and judge with fewer."""
    asked = open_know("demo/full", KnowSettings(placebos=400)).asked
    base, texts = demo_base(), neutral_texts()

    def read(one: PlantedModel) -> list[Any]:
        model = load_model(one.folder)
        return tables(model, asked, base, maps_onto(model, base, texts))

    ignorant = kept_or_read(
        out / "base.pt", key_of(asked, BASE), lambda: tables(base, asked, None, None)
    )
    done = []
    for one in models_in(gym):
        if one.mechanism in NAMES and str(one.seed) in seeds.split(","):
            key = key_of(asked, one.folder, BASE)
            own = kept_or_read(out / f"{one.name}.pt", key, lambda one=one: read(one))
            done.append((one, own))
    for plain, how in ((False, "as know"), (True, "plain  ")):
        for k in SIZES:
            found = [facts_at(asked, own, ignorant, k, plain=plain) for _, own in done]
            show([(one, facts) for (one, _), facts in zip(done, found, strict=True)], k, how)


if __name__ == "__main__":
    main()
