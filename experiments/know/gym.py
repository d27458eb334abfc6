"""Which planted models does the assignment test convict? Every model of a planted gym, cheaply.

Question: what share of each mechanism has p <= .01 without a retain model, and what escapes?
Command:  lensaudit gym make --seeds 5 --out gym; python -m experiments.know.gym gym
Takes:    6 s of one core a model, half an hour for 310 models; what is read is kept.
Expected: the tables of docs/evidence/know-planted.md.

Readers: the model's outputs, its stream at three upper layers through its own head, and carried
into the base model's last stream and read by the base's head. No retain model is asked.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from scipy.stats import spearmanr

from lensaudit.association import reading
from lensaudit.association.evidence import RelationReading, binding_of, facts_of_read
from lensaudit.association.reading import LENS, OUTPUTS, maps_onto, upper_layers
from lensaudit.data.neutral import neutral_of
from lensaudit.data.relations import Relation, relations_of
from lensaudit.data.tofu import forget_set
from lensaudit.gym.make import models_in
from lensaudit.models.bridge import load_model, n_layers
from lensaudit.patching.exposure import Head
from lensaudit.scores.intervals import share_of

LEVEL = 0.01
FOREIGN = "foreign"
KINDS = ("all", OUTPUTS, LENS, FOREIGN)
KEPT = ("seed", "mechanism", "strength", "truth", "held_out")
Asked = Sequence[Relation]


def asked_of_demo() -> Asked:
    """The relations of the embedded forget set, as they are put to a model."""
    return list(relations_of(forget_set("demo"))[0])


def demo_base() -> Any:
    """The embedded family's model before it was taught anybody's facts."""
    return load_model("demo/base")


def neutral_texts() -> list[str]:
    """Rows to keep of the embedded set, on which maps are fitted."""
    fit = neutral_of("demo", forget_set("demo")).fit
    return [f"Question: {one.question}\nAnswer: {one.answer}" for one in fit]


def heard(
    model: Any, asked: Asked, base: Any = None, maps: Mapping[int, Any] | None = None
) -> list[RelationReading]:
    """What the counted readers say: outputs, and the stream at upper layers through the own head.

    With a base and maps onto it also through the base's head.
    """
    heads = {LENS: Head(model, {})} | ({FOREIGN: Head(base, maps)} if base and maps else {})
    layers = upper_layers(n_layers(model))
    return [RelationReading(one, reading.heard(model, one, heads, layers)) for one in asked]


def through_both(
    model: Any, asked: Asked, base: Any, texts: Sequence[str]
) -> list[RelationReading]:
    """Through the model's own head and the base's."""
    return heard(model, asked, base, maps_onto(model, base, texts))


def only(read: Sequence[RelationReading], kind: str) -> list[RelationReading]:
    """The readers of one kind; "all": all of them."""

    def wanted(name: str) -> bool:
        return kind == "all" or name.split()[0] == kind

    return [
        RelationReading(one.asked, {k: v for k, v in one.by_reader.items() if wanted(k)})
        for one in read
    ]


def kept_tables(
    place: Path, asked: Asked, read: Callable[[], list[RelationReading]] | None
) -> list[RelationReading]:
    """What was read before, else what is read now."""
    if read and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save([one.by_reader for one in read()], place)
    return [RelationReading(*one) for one in zip(asked, torch.load(place), strict=True)]


def judged(read: Sequence[RelationReading]) -> dict[str, float]:
    """P and z by all readers and by each kind of them; mean bits beside a uniform guess."""
    found: dict[str, float] = {}
    for kind in KINDS:
        if not only(read, kind)[0].by_reader:
            continue  # nobody else's head was given
        test = binding_of(only(read, kind), seed=0)
        found |= {f"p_{kind}": test.p, f"z_{kind}": round(test.z, 3)}
    bits = [fact.familiar for one in read for fact in facts_of_read(one, None)]
    return found | {"bits": round(sum(bits) / len(bits), 4)}


def show(done: Sequence[Mapping[str, Any]]) -> None:
    """A line a mechanism, held-out ones and truths apart."""
    by: dict[tuple[str, bool, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in done:
        by[one["truth"], one["held_out"], one["mechanism"]].append(one)
        by[one["truth"], one["held_out"], "ALL"].append(one)
    for (truth, held_out, name), rows in sorted(by.items()):
        hits = {kind: sum(one[f"p_{kind}"] <= LEVEL for one in rows) for kind in KINDS}
        share = share_of(hits["all"], len(rows))
        print(
            f"{truth:9}{'held' if held_out else 'tune':5}{name:20}{hits['all']:3d} of "
            f"{len(rows):3d} [{share.low:.2f}, {share.high:.2f}] "
            f"{hits[OUTPUTS]:3d} · {hits[LENS]:3d} · {hits[FOREIGN]:3d}  "
            f"largest p {max(one['p_all'] for one in rows):.2g}"
        )


def turned(out: Path, asked: Asked, lines: Sequence[Mapping[str, Any]]) -> None:
    """What a rotation of the stream changes in what is read without another head: nothing."""
    for kind in (OUTPUTS, LENS):
        logprob, p, z, n = 0.0, 0.0, 0.0, 0
        for one in lines:
            plain = one["mechanism"].removesuffix("_turned")
            if one["mechanism"] not in ("full_turned", "absent_turned"):
                continue
            found = [
                only(kept_tables(out / f"seed-{one['seed']}" / f"{name}.pt", asked, None), kind)
                for name in (plain, one["mechanism"])
            ]
            tests = [binding_of(read, seed=0) for read in found]
            gaps = [
                float((x[name] - y[name]).abs().max())
                for x, y in zip(*[[r.by_reader for r in read] for read in found], strict=True)
                for name in x
            ]
            logprob, n = max(logprob, *gaps), n + 1
            p = max(p, abs(tests[0].p - tests[1].p))
            z = max(z, abs(tests[0].z - tests[1].z))
        print(
            f"turned, {kind}: {n} pairs, largest gap of log-probs {logprob:.2g} nats, "
            f"of p {p:.2g}, of z {z:.2g}"
        )


def _ranked(pairs: Mapping[str, Sequence[Any]], names: Iterable[str]) -> float:
    both = np.array([one for name in names for one in pairs[name]])
    found: Any = spearmanr(both[:, 0], both[:, 1])
    return float(found.statistic)


def beside_depth(lines: Sequence[Mapping[str, Any]], ledger: Path) -> None:
    """Rank correlation with depth measured beside a retain model, and where the two part."""
    depth = {}
    for line in ledger.read_text().splitlines():
        one = json.loads(line)
        found = (one.get("evidence") or {}).get("patch") or {}
        if one.get("auditor") == "verdict" and found.get("uds") is not None:
            aligned = (found.get("aligned") or {}).get("uds")
            depth[one["mechanism"], one["strength"], one["seed"]] = {
                "uds": found["uds"],
                "aligned": found["uds"] if aligned is None else aligned,
            }
    both = [
        {**one, **depth[key]}
        for one in lines
        if (key := (one["mechanism"], one["strength"], one["seed"])) in depth
    ]
    names = sorted({one["mechanism"] for one in both})
    random = np.random.default_rng(0)
    for own in ("z_all", "bits"):
        for other in ("uds", "aligned"):
            pairs = {
                name: [(r[own], -r[other]) for r in both if r["mechanism"] == name]
                for name in names
            }
            draws = [_ranked(pairs, random.choice(names, len(names))) for _ in range(1000)]
            point = _ranked(pairs, names)
            low, high = np.quantile(draws, [0.025, 0.975])
            print(f"{own} and -{other}: Spearman {point:.2f} [{low:.2f}, {high:.2f}], {len(both)}")
    ignorant = min(one["aligned"] for one in both if one["truth"] == "absent")
    print(f"least aligned UDS of absent models: {ignorant:.2f}")
    parts = defaultdict(list)
    for one in both:
        convicted, deep = one["p_all"] <= LEVEL, one["aligned"] < ignorant
        if convicted != deep and one["truth"] != "damaged":
            parts["convicted alone" if convicted else "depth alone", one["mechanism"]].append(one)
    for (what, name), rows in sorted(parts.items()):
        total = sum(one["mechanism"] == name for one in both)
        print(f"{what}: {name} ({rows[0]['truth']}) {len(rows)} of {total}")


@click.command()
@click.argument("gym", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_gym"))
def main(gym: Path, seeds: str, out: Path) -> None:
    """Ask every planted model who has what; go on where an earlier run stopped."""
    asked, base, texts = asked_of_demo(), demo_base(), neutral_texts()
    lines: list[dict[str, Any]] = []
    for one in sorted(models_in(gym), key=lambda one: seeds.find(str(one.seed))):
        if str(one.seed) not in seeds.split(","):
            continue
        read = kept_tables(
            out / f"{one.name}.pt",
            asked,
            lambda one=one: through_both(load_model(one.folder), asked, base, texts),
        )
        kept = {name: getattr(one, name) for name in KEPT}
        lines.append(kept | judged(read))
        (out / "know.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    show(lines)
    turned(out, asked, lines)
    beside_depth(lines, Path(__file__).parents[2] / "benchmarks/gym/scores.jsonl")


if __name__ == "__main__":
    main()
