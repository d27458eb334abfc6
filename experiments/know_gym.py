"""Which planted models does the assignment test convict? Every model of a planted gym, cheaply.

    lensaudit gym make --out gym
    python experiments/know_gym.py gym --out experiments/out/know_gym

Readers: the model's outputs, its stream at three upper layers through its own head, and carried
into the base model's last stream and read by the base's head. No retain model is asked. About 10 s
of one core a model. Prints, by mechanism, the share with p <= .01 and the worst p.
"""

import json
from collections import defaultdict
from pathlib import Path

import click

from lensaudit.association.evidence import RelationReading, binding_of
from lensaudit.association.outcome import counted
from lensaudit.association.reading import LENS, OUTPUTS, Questionnaire, lensed, maps_onto, said
from lensaudit.association.relations import relations_of
from lensaudit.data.neutral import neutral_of
from lensaudit.data.tofu import forget_set
from lensaudit.models.bridge import load_model
from lensaudit.models.registry import base_spec
from lensaudit.scores.intervals import share_of

LEVEL = 0.01


@click.command()
@click.argument("gym", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_gym"))
def main(gym: Path, seeds: str, out: Path) -> None:
    """Ask every planted model who has what; go on where an earlier run stopped."""
    out.mkdir(parents=True, exist_ok=True)
    place = out / "know.jsonl"
    done = [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []
    known = {(one["seed"], one["model"]) for one in done}
    rows = forget_set("demo")
    asked = [Questionnaire(one) for one in relations_of(rows).found]
    fit = neutral_of("demo", rows).fit
    texts = [f"Question: {one.question}\nAnswer: {one.answer}" for one in fit]
    spec = base_spec(["demo/full"])
    assert spec is not None
    base = load_model(Path(spec.repo))
    with place.open("a") as lines:
        for seed in map(int, seeds.split(",")):
            for folder in sorted((gym / f"seed-{seed}").iterdir()):
                if (seed, folder.name) in known or not (folder / "certificate.json").exists():
                    continue
                found = asked_of(folder, asked, base, texts)
                done.append({"seed": seed, "model": folder.name, **found})
                lines.write(json.dumps(done[-1]) + "\n")
                lines.flush()
    show(done)


def asked_of(folder: Path, asked, base, texts) -> dict:
    """P by all readers together and by each kind of them."""
    model = load_model(folder)
    truth = json.loads((folder / "certificate.json").read_text())
    maps = maps_onto(model, base, texts)
    read = []
    for one in asked:
        tables = {OUTPUTS: said(model, one, OUTPUTS)}
        tables |= {f"{LENS} {at}": table for at, table in enumerate(lensed(model, one))}
        foreign = lensed(model, one, head=base, maps=maps)
        tables |= {f"foreign {at}": table for at, table in enumerate(foreign)}
        read.append(counted(RelationReading(one, tables)))
    found = {"kind": truth["kind"], "holds": truth["holds"]}
    for name in ("all", OUTPUTS, LENS, "foreign"):
        kept = [_only(one, name) for one in read]
        test = binding_of(kept, seed=0).test
        found |= {f"p_{name}": test.p, f"z_{name}": round(test.z, 3)}
    return found


def _only(read: RelationReading, name: str) -> RelationReading:
    if name == "all":
        return read
    return RelationReading(
        read.asked, {k: v for k, v in read.by_reader.items() if k.split()[0] == name}
    )


def show(done) -> None:
    """A line a mechanism."""
    by = defaultdict(list)
    for one in done:
        by[one["model"].split("-")[0]].append(one)
    for name, rows in sorted(by.items()):
        hits = sum(one["p_all"] <= LEVEL for one in rows)
        share = share_of(hits, len(rows))
        worst = max(one["p_all"] for one in rows)
        ends = f"[{share.low:.2f}, {share.high:.2f}]"
        print(f"{name:16} {hits:3d} of {len(rows):3d} {ends} largest p {worst:.3g}")


if __name__ == "__main__":
    main()
