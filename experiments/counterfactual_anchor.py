"""What does a depth beside another question's stream say? Every planted model, without retain.

    lensaudit gym make --seeds 5 --out gym
    python experiments/counterfactual_anchor.py gym --out experiments/out/counterfactual_anchor

`lensaudit patch --retain none` on every model of a planted gym; goes on where an earlier run
stopped. Prints, by truth and mechanism, what is read and what is said, the halves of the gym apart;
and what models that never saw the facts read on the tune half: `lensaudit/verdict/thresholds.py`.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import click

import lensaudit as la
from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.scores.intervals import share_of
from lensaudit.verdict.thresholds import OTHERS_HELD_FROM

Found = Mapping[str, Any]
TRUTHS = ("absent", "intact", "hidden", "partial", "damaged", "anchor")


@click.command()
@click.argument("gym", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("experiments/out/counterfactual_anchor"),
)
def main(gym: Path, seeds: str, out: Path) -> None:
    """Ask every planted model, and print the tables."""
    out.mkdir(parents=True, exist_ok=True)
    place = out / "readings.jsonl"
    done = [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []
    known = {(one["seed"], one["model"]) for one in done}
    with place.open("a") as lines:
        for seed in map(int, seeds.split(",")):
            for folder in sorted((gym / f"seed-{seed}").iterdir()):
                if (seed, folder.name) in known or not is_planted(folder):
                    continue
                done.append({"seed": seed, "model": folder.name, **read(folder, out)})
                lines.write(json.dumps(done[-1]) + "\n")
                lines.flush()
    show(done)


def is_planted(folder: Path) -> bool:
    """Whether it is a finished model of a recipe, not an anchor that seeds are planted into."""
    made = folder / "manifest.json"
    return made.exists() and "mechanism" in read_json(made)["options"]


def read(folder: Path, out: Path) -> dict[str, Any]:
    """One model: its truth, its reading, and what is said of it."""
    truth = read_json(folder / "manifest.json")["options"]
    kept = {name: truth[name] for name in ("mechanism", "truth", "held_out", "strength")}
    kept["holds"] = read_json(folder / "certificate.json")["holds"]
    full = folder.parent / "full"
    how = {"full": str(full), "data": "demo", "activations": out / "activations"}
    try:
        run = out / "runs" / folder.parent.name / folder.name
        found = la.patch(folder, run, retain="none", **how)
    except InputError as error:
        return {**kept, "code": "refused", "why": str(error)}
    read = {name: found.summary[name] for name in ("counterfactual", "ci95", "n_scored", "outputs")}
    depths = dict(zip(found.examples["idx"], found.examples["value"], strict=True))
    return {**kept, "code": found.verdict.code, **read, "facts": depths}


def show(done: Sequence[Found]) -> None:
    """Readings by truth and half, then words by mechanism."""
    rows = [one for one in done if one["holds"] and one["code"] != "refused"]
    tune = [one for one in rows if one["truth"] == "absent" and not one["held_out"]]
    values = [one["counterfactual"] for one in tune]
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
    depths = sorted(one["counterfactual"] for one in group)
    n = len(group)
    words = []
    for code in ("hidden", "answers", "undecided"):
        k = sum(one["code"] == code for one in group)
        share = share_of(k, n)
        words.append(f"{code} {k} of {n} [{share.low:.2f}, {share.high:.2f}]")
    return f"reads {depths[0]:.2f} to {depths[-1]:.2f}; {'; '.join(words)}"


if __name__ == "__main__":
    main()
