"""What does a depth beside another question's stream say? Every planted model, without retain.

    lensaudit gym make --seeds 5 --out gym
    python -m experiments.aligned.counterfactual_anchor gym

`lensaudit patch --retain none` on every model of a planted gym; goes on where an earlier run
stopped. Prints, by truth and mechanism, what is read and what is said, the halves of the gym apart;
and what models that never saw the facts read on the tune half: `lensaudit/verdict/thresholds.py`.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import click

import lensaudit as la
from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.groups import batched
from lensaudit.scores.intervals import share_of
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.verdict.thresholds import OTHERS_HELD_FROM

Found = Mapping[str, Any]
TOGETHER = 8
"""Models in one sweep."""
TRUTHS = ("absent", "intact", "hidden", "partial", "damaged", "anchor")


@click.command()
@click.argument("gym", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--only", multiple=True, help="Models whose names begin so. Repeatable.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("experiments/out/counterfactual_anchor"),
)
def main(gym: Path, seeds: str, only: tuple[str, ...], out: Path) -> None:
    """Ask every planted model, and print the tables."""
    out.mkdir(parents=True, exist_ok=True)
    place = out / "readings.jsonl"
    done = [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []
    known = {(one["seed"], one["model"]) for one in done}
    with place.open("a") as lines:
        for seed in map(int, seeds.split(",")):
            there = sorted(path for path in (gym / f"seed-{seed}").iterdir() if is_planted(path))
            left = [one for one in there if (seed, one.name) not in known]
            todo = [one for one in left if one.name.startswith(only or "")]
            for some in batched(todo, TOGETHER):
                done += (new := [{"seed": seed, **one} for one in read(some, out)])
                lines.writelines(json.dumps(one) + "\n" for one in new)
                lines.flush()
    show(done)


def is_planted(folder: Path) -> bool:
    """Whether it is a finished model of a recipe, not an anchor that seeds are planted into."""
    made = folder / "manifest.json"
    return made.exists() and "mechanism" in read_json(made)["options"]


def read(folders: Sequence[Path], out: Path) -> Iterator[Found]:
    """Models of one seed: their truth, their reading, and what is said of them."""
    full, place = folders[0].parent / "full", out / "runs" / folders[0].parent.name
    how = {"full": str(full), "data": "demo", "activations": out / "activations"}
    try:
        found = la.patch(list(folders), place, retain="none", **how)
    except InputError as error:  # one of another size: each by itself
        if len(folders) == 1:
            yield {**truth_of(folders[0]), "code": "refused", "why": str(error)}
            return
        for one in folders:
            yield from read([one], out / one.name)
        return
    for folder, one in zip(folders, found, strict=True):
        told = {name: one.summary[name] for name in (COUNTERFACTUAL, "ci95", "n_scored", "outputs")}
        table = one.examples.astype(object).where(one.examples.notna(), None)
        facts = dict(zip(table["idx"], table["value"], strict=True))
        yield {**truth_of(folder), "code": one.verdict.code, **told, "facts": facts}


def truth_of(folder: Path) -> dict[str, Any]:
    """What was planted, and whether its certificate holds."""
    made = read_json(folder / "manifest.json")["options"]
    kept = {name: made[name] for name in ("mechanism", "truth", "held_out", "strength")}
    holds = read_json(folder / "certificate.json")["holds"]
    return {"model": folder.name, **kept, "holds": holds}


def show(done: Sequence[Found]) -> None:
    """Readings by truth and half, then words by mechanism."""
    rows = [one for one in done if one["holds"] and one["code"] != "refused"]
    tune = [one for one in rows if one["truth"] == "absent" and not one["held_out"]]
    values = [one[COUNTERFACTUAL] for one in tune]
    zero = fmean(values)
    print(
        f"never saw the facts, tune half: n {len(values)}, mean {zero:.4f}, standard deviation "
        f"{stdev(values) / zero:.3f} of it, {min(values):.3f} to {max(values):.3f}; hidden below "
        f"{(1 - OTHERS_HELD_FROM) * zero:.4f}"
    )
    for truth in TRUTHS:
        for held_out in (False, True):
            group = [r for r in rows if (r["truth"], r["held_out"]) == (truth, held_out)]
            if group:
                print(f"\n{truth}, {'held out' if held_out else 'tune'}: {_line(group)}")
                by = defaultdict(list)
                for one in group:
                    by[one["mechanism"]].append(one)
                for name, own in sorted(by.items()):
                    print(f"  {name:20} {_line(own)}")
    refused = [one for one in done if one["code"] == "refused"]
    print(f"\nrefused: {sorted({one['mechanism'] for one in refused})}")


def _line(group: Sequence[Found]) -> str:
    depths = sorted(one[COUNTERFACTUAL] for one in group)
    n = len(group)
    words = []
    for code in ("hidden", "answers", "undecided"):
        k = sum(one["code"] == code for one in group)
        share = share_of(k, n)
        words.append(f"{code} {k} of {n} [{share.low:.2f}, {share.high:.2f}]")
    return f"reads {depths[0]:.2f} to {depths[-1]:.2f}; {'; '.join(words)}"


if __name__ == "__main__":
    main()
