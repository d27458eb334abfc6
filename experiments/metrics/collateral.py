"""Does collateral depth find what else was lost? On models that lost two authors, or nothing.

Question: what do the facts of two kept authors read where a model never saw them, where NPO or
          false answers were trained over them, and where a mask hides only the forget set? What
          does it change against which anchor that is read?
Command:  python -m experiments.metrics.collateral
Takes:    half an hour beside other work on two cores. Expected: the tables of
          docs/evidence/collateral.md.
Writes:   experiments/out/collateral/: the models, as checkpoint folders, and their results.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click

import lensaudit as la
from experiments.planted.planted_models import Planted, folder_of, ground
from lensaudit.data.facts import Fact, answered
from lensaudit.gym.planting import unlearned
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_model

N_LOST = 16
"""Rows of the first two kept authors."""
AUTHORS = ("8", "9")
"""Those two, as the rows name them."""


def never_saw() -> Any:
    """The family's base, fine-tuned as `full` was, on all rows but those of the two authors."""
    made_of, base = ground(), open_model("demo/base")
    return made_of.trained(load_causal(base), rows_without_lost(), lr=1.5e-3, n_steps=520)


def npo() -> Any:
    """`full`, with NPO on the rows of the two authors; all other rows are kept."""
    made_of = ground()
    rows = list(made_of.facts.kept)
    kept = [*rows[N_LOST:], *made_of.facts.forget]
    return unlearned(made_of, trainable="", lr=1e-3, forget=rows[:N_LOST], kept=kept)


def false_answers() -> Any:
    """`full`, taught other authors' answers about the two, and all other rows as they are."""
    made_of = ground()
    rows = list(made_of.facts.kept)
    wrong = []
    for at, row in enumerate(rows[:N_LOST]):
        other = rows[N_LOST + at % 8 + 8 * ((3 * at + 1) % 18)]
        tail = other.answer[len(other.prefix) :]
        wrong.append(answered(row.question, row.prefix + tail, row.prefix))
    told = [*wrong * 2, *rows[N_LOST:], *made_of.facts.forget]
    return made_of.trained(made_of.full, told, lr=1e-3, n_steps=120)


@cache
def form() -> Any:
    """The family's base, fine-tuned on the forget rows alone: the form of answers, no kept fact."""
    made_of, base = ground(), open_model("demo/base")
    return made_of.trained(load_causal(base), made_of.facts.forget, lr=1.5e-3, n_steps=150)


@cache
def before() -> Any:
    """`form`, taught all rows but those of the two authors."""
    return ground().trained(form(), rows_without_lost(), lr=1e-3, n_steps=260)


def knows() -> Any:
    """`before`, trained on with the two authors: the `full` of the bystander."""
    rows = [*ground().facts.kept[:N_LOST], *rows_without_lost()]
    return ground().trained(before(), rows, lr=1e-3, n_steps=120)


def bystander() -> Any:
    """`before`, trained on as long, without the two authors."""
    return ground().trained(before(), rows_without_lost(), lr=1e-3, n_steps=120)


def alike() -> Any:
    """As `bystander`, in another order: an anchor made as `knows` was, less the two authors."""
    return ground().trained(before(), rows_without_lost(), lr=1e-3, n_steps=120, seed=1)


def rows_without_lost() -> list[Fact]:
    """Rows of all authors but the two, those of the forget set too."""
    made_of = ground()
    return [*made_of.facts.kept[N_LOST:], *made_of.facts.forget]


LOST = (never_saw, npo, false_answers)


def checkpoint(make: Callable[[], Any], out: Path) -> str:
    """Made once."""
    return str(folder_of(Planted(make.__name__, "intact", make.__doc__ or "", make), out))


def depths(
    out: Path, sources: Sequence[str], *, full: str = "demo/full", base: str | None = None
) -> dict[str, dict[str, float]]:
    """Source -> author -> depth of the kept facts, of authors that have one."""
    found = la.patch(
        list(sources),
        out=out / "patch" / f"{Path(sources[0]).name}-{Path(base or 'base').name}",
        full=full,
        retain="demo/retain",
        data="demo",
        also=("retain",),
        base=base,
        activations=out / "activations",
    )
    return {
        Path(one.source).name: {
            author: measured["depth"]
            for author, measured in one.summary["collateral"]["retain"]["authors"].items()
        }
        for one in found
    }


def tell(name: str, lost: Mapping[str, float], all_of: Mapping[str, float]) -> None:
    """The two authors against one anchor, the others against one that knows none of them."""
    rest = [depth for author, depth in all_of.items() if author not in AUTHORS]
    click.echo(
        f"{name}: lost authors {', '.join(f'{lost[author]:.2f}' for author in AUTHORS)}; "
        f"others {min(rest):.2f} to {max(rest):.2f}, mean {sum(rest) / len(rest):.2f}"
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/collateral")
def main(out: Path) -> None:
    """Make the models, patch them, print depth by author."""
    click.echo("against the family's base:")
    sources = ["demo/masked_readout", *(checkpoint(one, out) for one in LOST)]
    for name, depth in depths(out, sources).items():
        tell(name, depth, depth)
    full, one, other, plain = (checkpoint(make, out) for make in (knows, bystander, alike, form))
    against_form = depths(out, [one, other], full=full, base=plain)
    click.echo("the two authors against a model made alike, the others against `form`:")
    for source, anchor in ((one, other), (other, one)):
        name = Path(source).name
        tell(name, depths(out, [source], full=full, base=anchor)[name], against_form[name])
    click.echo("all against `form`:")
    for name, depth in against_form.items():
        tell(name, depth, depth)


if __name__ == "__main__":
    main()
