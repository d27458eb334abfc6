"""How often is a model that never saw the facts said to be brought back? Eleven seeds of one.

Question: of models trained as `never` was, in other orders of the data, how many have an E50 within
          256 steps, on facts of the forget set and on neutral text?
Command:  python -m experiments.attacks.effort_seeds
Takes:    half an hour of one core to train the seeds (once, with never_seeds.py), then an
          hour of a core shared with other work. Expected: the table of docs/evidence/effort.md.
Writes:   experiments/out/never_seeds/: the models under family/, and effort/.
"""

from pathlib import Path

import click

import lensaudit as la
from experiments.planted.planted_models import seeds_of_never
from lensaudit.scores.intervals import share_of
from tools.demo_family.stages import NEVER


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/never_seeds")
def main(out: Path) -> None:
    """Train the seeds, retrain them on both arms, print who is censored."""
    seeds = [str(one) for one in seeds_of_never([one.name for one in NEVER], out)]
    found = la.effort(
        [*seeds, "demo/never"],
        out / "effort",
        full="demo/full",
        retain=("demo/retain",),
        data="demo",
        arms=("T", "neutral"),
    )
    for arm in ("T", "neutral"):
        arms = [one.arms[arm] for one in found]
        for level in ("e50", "e80"):
            k, n = sum(one["censored"][level] for one in arms), len(arms)
            counted = share_of(k, n)
            click.echo(
                f"{arm} {level}: {k} of {n} censored [{counted.low:.2f}, {counted.high:.2f}]"
            )
        rhos = [at["rho"] for one in arms for at in one["curve"] if at["rho"] is not None]
        click.echo(f"{arm}: largest rho {max(rhos):.2f}")


if __name__ == "__main__":
    main()
