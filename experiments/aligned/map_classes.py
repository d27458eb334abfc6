"""How much does aligned depth depend on its map? Every class, and data from half to 50 d.

Question: are models that hold the facts and models that never saw them apart by every class of map,
          and from how many neutral tokens on?
Command:  python -m experiments.aligned.map_classes
Takes:    4 minutes on one core. Expected: the table of docs/evidence/controls.md.
Writes:   experiments/out/map_classes/: the models, as checkpoint folders, and their results.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click

import lensaudit as la
from experiments.planted.planted_models import Planted, folder_of, planted
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_json

SHOWN = (
    *("full_rotated", "masked_readout", "masked_upper", "idk_all", "vector_8", "masked_rotated"),
    *("never", "retain_further", "retain_rotated", "retain_idk", "never_wrong"),
)
D_MODEL = 64
CLASSES: tuple[Literal["shift", "procrustes", "affine"], ...] = ("shift", "procrustes", "affine")
SIZES = (0.5, 2, 4, 8, 16, 50)
"""Neutral tokens in units of the width."""


def aligned(
    sources: Sequence[str], out: Path, *, kind: Any, size: float | None = None
) -> list[Any]:
    """Aligned UDS of the sources by one map; None where it is refused, with the reason."""
    name = kind if size is None else f"{kind}-{size:g}d"
    found = la.patch(
        list(sources),
        out / "results" / name,
        full="demo/full",
        retain=("demo/retain",),
        data="demo",
        activations=out / "activations",
        align=kind,
        align_tokens=None if size is None else round(size * D_MODEL),
    )
    return [one.summary["aligned"] | {"plain": one.uds} for one in found]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/map_classes")
def main(out: Path) -> None:
    """Make the models, align them by every map, print a table."""
    make_folder(out)
    models: list[Planted] = [one for one in planted() if one.name in SHOWN]
    sources = [str(folder_of(one, out).absolute()) for one in models]
    columns: dict[str, list[Any]] = {}
    for kind in CLASSES:
        columns[kind] = aligned(sources, out, kind=kind)
    for size in SIZES:
        try:
            columns[f"{size:g} d"] = aligned(sources, out, kind="procrustes", size=size)
        except InputError as error:
            click.echo(f"{size:g} d: {error}")
    write_json(out / "table.json", {name: list(rows) for name, rows in columns.items()})
    click.echo(f"| model | truth | UDS | {' | '.join(columns)} | shuffled | r2 |")
    for at, one in enumerate(models):
        cells = [f"{rows[at]['uds']:.2f}" for rows in columns.values()]
        base = columns["procrustes"][at]
        click.echo(
            f"| {one.name} | {one.truth} | {base['plain']:.2f} | {' | '.join(cells)} | "
            f"{base['shuffled']:.2f} | {base['r2']:.2f} |"
        )


if __name__ == "__main__":
    main()
