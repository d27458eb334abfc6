"""Does collateral depth find what else was lost? On models that lost two authors, or nothing.

Question: what do the facts of two kept authors read where a model never saw them, where NPO or
          false answers were trained over them, and where a mask hides only the forget set?
Command:  python experiments/collateral_planted.py
Takes:    7 minutes on one core. Expected: the table of docs/collateral.md.
Writes:   experiments/out/collateral/: the models, as checkpoint folders, and their results.
"""

from pathlib import Path
from typing import Any

import click
from planted_models import Planted, folder_of, ground

import lensaudit as la
from lensaudit.gym.planting import unlearned
from lensaudit.models.causal import load_causal
from lensaudit.patching.collateral import family_base
from lensaudit.unlearn.encode import Answered

N_LOST = 16
"""Rows of the first two kept authors."""


def never_saw() -> Any:
    """The family's base, fine-tuned as `full` was, on all rows but those of the two authors."""
    made_of, base = ground(), family_base(["demo/full"])
    assert base is not None
    rows = [*made_of.kept_rows()[N_LOST:], *made_of.facts.forget.answered]
    return made_of.trained(load_causal(base), rows, lr=1.5e-3, n_steps=520)


def npo() -> Any:
    """`full`, with NPO on the rows of the two authors; all other rows are kept."""
    made_of = ground()
    rows = made_of.kept_rows()
    kept = [*rows[N_LOST:], *made_of.facts.forget.answered]
    return unlearned(made_of, trainable="", lr=1e-3, forget=rows[:N_LOST], kept=kept)


def false_answers() -> Any:
    """`full`, taught other authors' answers about the two, and all other rows as they are."""
    made_of = ground()
    rows = made_of.kept_rows()
    wrong = []
    for at, row in enumerate(rows[:N_LOST]):
        other = rows[N_LOST + at % 8 + 8 * ((3 * at + 1) % 18)]
        tail = other.answer[len(other.prefix or "") :]
        wrong.append(Answered(row.question, (row.prefix or "") + tail, row.prefix))
    told = [*wrong * 2, *rows[N_LOST:], *made_of.facts.forget.answered]
    return made_of.trained(made_of.full, told, lr=1e-3, n_steps=120)


LOST = (never_saw, npo, false_answers)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/collateral")
def main(out: Path) -> None:
    """Make the models, patch them, print depth by author."""
    made = [Planted(one.__name__, "intact", one.__doc__ or "", one) for one in LOST]
    sources = ["demo/masked_readout", *(str(folder_of(one, out)) for one in made)]
    found = la.patch(
        sources,
        out=out / "patch",
        full="demo/full",
        retain="demo/retain",
        data="demo",
        also=("retain",),
        activations=out / "activations",
    )
    for one in found:
        authors = one.summary["collateral"]["retain"]["authors"]
        depths = [author["depth"] for author in authors.values()]
        lost, rest = depths[:2], depths[2:]
        click.echo(
            f"{Path(one.source).name}: lost authors {lost[0]:.2f}, {lost[1]:.2f}; "
            f"others {min(rest):.2f} to {max(rest):.2f}, mean {sum(rest) / len(rest):.2f}"
        )


if __name__ == "__main__":
    main()
