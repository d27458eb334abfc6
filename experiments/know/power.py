"""How much must a model know before the test finds it, by the number of subjects and relations?

Question: the least mean bits a fact (beside a uniform guess) found with a power of .8 at p <= .01,
          where 4, 8, 20, 40 or 100 people are asked 1, 3 or 7 relations.
Command:  python -m experiments.know.power
Takes:    5 minutes of one core.
Expected: the table of docs/evidence/know-subjects.md.

A model that saw none of them is asked about people of a drawn world; knowledge is planted into
what it says, as `lensaudit know` does for its sentence about power.
"""

from pathlib import Path
from random import Random

import click

from experiments.know.gym import heard, kept_tables, key_of
from lensaudit.association.evidence import power_of
from lensaudit.data.facts import validate
from lensaudit.data.fictional import annotated, author_rows, draw_name, draw_values
from lensaudit.data.relations import Relation, relations_of
from lensaudit.models.named import load_model

SUBJECTS = (4, 5, 8, 20, 40, 100)


def people(n: int) -> list[Relation]:
    """A forget set about so many people that nobody saw."""
    random = Random(f"know-power-{n}")
    names: dict[str, None] = {}
    while len(names) < n:
        names[draw_name(random)] = None
    rows = [
        row
        for group, name in enumerate(names)
        for row in author_rows(name, draw_values(name, random), random, group=group)
    ]
    found, _ = relations_of(validate(annotated(rows), f"{n} people"))
    return list(found)


@click.command()
@click.option("--model", default="demo/retain", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_power"))
def main(model: str, out: Path) -> None:
    """Ask about ever more people; print what would be found."""
    bridge = load_model(model)
    for n in SUBJECTS:
        asked = people(n)
        read = kept_tables(
            out / f"{n}.pt",
            asked,
            key_of(asked, model),
            lambda asked=asked: heard(bridge, asked),
        )
        for n_relations in (1, 3, 7):
            found = [power_of(read[:n_relations], seed=seed).bits for seed in range(3)]
            said = ", ".join("none" if one is None else f"{one:.2f}" for one in found)
            print(f"{n:3d} subjects, {n_relations} relations: {said} bits a fact", flush=True)


if __name__ == "__main__":
    main()
