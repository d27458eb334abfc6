"""Is p of the assignment test uniform over worlds? One ignorant model asked about many draws.

    python experiments/know_worlds.py --model demo/retain --worlds 200

Each world is a draw of the fictional generator: other people, other values. No embedded model saw
any of them, so p must be uniform; that also shows whether the generator's values are exchangeable
given the names. Two cores, 200 worlds: about 10 minutes. Expected: KS p above .01, and a share of
p <= .05 within its exact limits around .05.
"""

import json
from pathlib import Path

import click
import numpy as np
from scipy.stats import kstest

from lensaudit.association.evidence import RelationReading, binding_of
from lensaudit.association.outcome import counted
from lensaudit.association.reading import LENS, OUTPUTS, Questionnaire, lensed, said
from lensaudit.association.relations import relations_of
from lensaudit.data.facts import validate
from lensaudit.data.fictional import annotated, make_world
from lensaudit.models.bridge import load_model
from lensaudit.scores.intervals import share_of


@click.command()
@click.option("--model", default="demo/retain", show_default=True)
@click.option("--worlds", default=200, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_worlds"))
def main(model: str, worlds: int, out: Path) -> None:
    """Ask one model about many worlds; print and keep every p."""
    bridge = load_model(model)
    place = out / f"{model.replace('/', '-')}.jsonl"
    place.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []
    with place.open("a") as lines:
        for seed in range(1 + len(done), worlds + 1):
            found = binding_of(readings(bridge, seed), seed=seed)
            done.append({"seed": seed, "p": found.test.p, "z": found.test.z})
            lines.write(json.dumps(done[-1]) + "\n")
            lines.flush()
    p = np.array([one["p"] for one in done])
    print(f"{model}: {len(p)} worlds, KS p {kstest(p, 'uniform').pvalue:.3f}")
    for level in (0.01, 0.05):
        share = share_of(int((p <= level).sum()), len(p))
        print(f"p <= {level}: {share.value:.3f} [{share.low:.3f}, {share.high:.3f}]")


def readings(bridge, seed: int) -> list[RelationReading]:
    """What the model says of the people and values of a world."""
    rows = validate(annotated(make_world(seed).forget), f"world {seed}")
    found = []
    for relation in relations_of(rows).found:
        asked = Questionnaire(relation)
        layers = {f"{LENS} {at}": table for at, table in enumerate(lensed(bridge, asked))}
        found.append(
            counted(RelationReading(asked, {OUTPUTS: said(bridge, asked, OUTPUTS), **layers}))
        )
    return found


if __name__ == "__main__":
    main()
