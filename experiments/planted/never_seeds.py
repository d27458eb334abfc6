"""Is a model that never saw the facts called erased? Ten seeds of one, against one retain or three.

Question: of ten models trained as `never` was, in other orders of the data, how many does a verdict
          call erased, and how far do their depths scatter?
Command:  python -m experiments.planted.never_seeds
Takes:    3 minutes a model to train, half an hour in all on one core; then 3 to patch them.
          Expected: the table of docs/evidence/never_seen.md.
Writes:   experiments/out/never_seeds/: the models under family/, and their results.
"""

from pathlib import Path

import click

import lensaudit as la
from experiments.planted.planted_models import seeds_of_never
from lensaudit.scores.intervals import share_of
from tools.demo_family.stages import NEVER


def told(results: Path, sources: list[str], retains: tuple[str, ...], activations: Path) -> str:
    """Codes and depths of the models on one scale."""
    found = la.patch(
        sources,
        results,
        full="demo/full",
        retain=retains,
        data="demo",
        activations=activations,
    )
    codes = [one.summary["verdict"]["code"] for one in found]
    aligned = [one.summary["aligned"]["uds"] for one in found]
    weakest = [one.summary["aligned"]["weakest"]["erasure"] for one in found]
    k, n = codes.count("erased"), len(codes)
    counted = share_of(k, n)
    others = {code: codes.count(code) for code in sorted(set(codes)) if code != "erased"}
    return (
        f"{k} of {n} called erased [{counted.low:.2f}, {counted.high:.2f}]"
        f"{f', others: {others}' if others else ''}; UDS {min(o.uds for o in found):.3f} to "
        f"{max(o.uds for o in found):.3f}, aligned {min(aligned):.3f} to {max(aligned):.3f}, least "
        f"layer {min(weakest):.2f}"
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/never_seeds")
def main(out: Path) -> None:
    """Train the seeds, patch them, print who is called erased."""
    every = [str(one) for one in seeds_of_never([one.name for one in NEVER], out)]
    caches = out / "activations"
    click.echo(f"one retain: {told(out / 'one', every, ('demo/retain',), caches)}")
    # two seeds join the scale, the other eight are judged
    scale = ("demo/retain", *every[:2])
    click.echo(f"three never-trained: {told(out / 'three', every[2:], scale, caches)}")


if __name__ == "__main__":
    main()
