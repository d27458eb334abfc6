"""Which planted models does the assignment test convict? Every model of a planted gym, cheaply.

Question: what share of each mechanism has p <= .01 without a retain model, and what escapes?
Command:  lensaudit gym make --seeds 5 --out gym; python -m experiments.know.gym gym
Takes:    6 s of one core a model, half an hour for 380 models; what is read is kept, with what
          was asked and the weights: where these differ it is read anew.
Expected: the tables of docs/evidence/know-planted.md.

Readers: the model's outputs, its stream at three upper layers through its own head, and carried
into the base model's last stream and read by the base's head. No retain model is asked.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import torch
from scipy.stats import spearmanr

from lensaudit.association import reading
from lensaudit.association.evidence import RelationReading, binding_of, facts_of_read
from lensaudit.association.exposure import Head
from lensaudit.association.reading import LENS, OUTPUTS, maps_onto, upper_layers
from lensaudit.data.neutral import neutral_of
from lensaudit.data.relations import Relation, relations_of
from lensaudit.data.tofu import forget_set
from lensaudit.gym.make import models_in
from lensaudit.models.bridge import n_layers
from lensaudit.models.checkpoint import open_model
from lensaudit.models.named import load_model
from lensaudit.scores.intervals import share_of
from lensaudit.text import digest

BASE = "demo/base"
LEVEL = 0.01
FOREIGN = "foreign"
KINDS = ("all", OUTPUTS, LENS, FOREIGN)
LEDGER = Path(__file__).parents[2] / "benchmarks/gym/scores.jsonl"
TRUTHS = ("absent", "intact", "hidden", "partial", "damaged")
KEPT = ("seed", "mechanism", "strength", "truth", "held_out")
Asked = Sequence[Relation]
Kept = TypeVar("Kept")


def asked_of_demo() -> Asked:
    """The relations of the embedded forget set, as they are put to a model."""
    return list(relations_of(forget_set("demo"))[0])


def demo_base() -> Any:
    """The embedded family's model before it was taught anybody's facts."""
    return load_model(BASE)


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


def key_of(asked: Asked, *models: str | Path, dtype: str = "float32") -> str:
    """Content key of the questions and of the weights of all models that read them."""
    return digest([repr([*asked]), dtype, *(open_model(str(one)).weights for one in models)])


def is_kept(place: Path, key: str) -> bool:
    """Whether a file holds what this key stands for."""
    kept = torch.load(place) if place.exists() else None
    return isinstance(kept, dict) and kept["key"] == key


def kept_or_read(place: Path, key: str, read: Callable[[], Kept]) -> Kept:
    """What was read before under this key, else what is read now."""
    if not is_kept(place, key):
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"key": key, "read": read()}, place)
    return torch.load(place)["read"]


def kept_tables(
    place: Path, asked: Asked, key: str, read: Callable[[], list[RelationReading]]
) -> list[RelationReading]:
    """Readings of the relations, as `kept_or_read` gives them."""
    tables = kept_or_read(place, key, lambda: [one.by_reader for one in read()])
    return [RelationReading(*one) for one in zip(asked, tables, strict=True)]


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


def tables(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of the page: mechanisms of one truth that every reader tells alike share one.

    Where a reader finds some of a mechanism's models and misses others, it has a line of its own.
    """
    by: dict[tuple[str, bool, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in lines:
        by[one["truth"], one["held_out"], one["mechanism"]].append(one)
    alike: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for (truth, held_out, name), rows in sorted(by.items()):
        found = tuple(_all_none_or(name, _convicted(rows, kind), len(rows)) for kind in KINDS)
        alike[TRUTHS.index(truth), held_out, *found].append(name)
    made = [
        "| planted | truth | held out | convicted | by outputs · own head · base's head |",
        "|---|---|---|---|---|",
    ]
    for (truth, held_out, *_), names in sorted(alike.items(), key=lambda one: (one[0][:2], one[1])):
        rows = [row for name in names for row in by[TRUTHS[truth], held_out, name]]
        n_all, *others = (_convicted(rows, kind) for kind in KINDS)
        share = share_of(n_all, len(rows))
        made.append(
            f"| {', '.join(f'`{name}`' for name in names)} | {TRUTHS[truth]} | "
            f"{'yes' if held_out else ''} | {n_all} of {len(rows)} "
            f"[{share.low:.2f}, {share.high:.2f}] | {' · '.join(map(str, others))} |"
        )
    return made


def _convicted(rows: Sequence[Mapping[str, Any]], kind: str) -> int:
    return sum(one[f"p_{kind}"] <= LEVEL for one in rows)


def _all_none_or(name: str, n: int, of: int) -> str:
    return {0: "none", of: "all"}.get(n, name)


def turned(
    by_model: Mapping[str, Sequence[RelationReading]], lines: Sequence[Mapping[str, Any]]
) -> None:
    """What a rotation of the stream changes in what is read without another head: nothing."""
    for kind in (OUTPUTS, LENS):
        logprob, p, z, n = 0.0, 0.0, 0.0, 0
        for one in lines:
            plain = one["mechanism"].removesuffix("_turned")
            if one["mechanism"] not in ("full_turned", "absent_turned"):
                continue
            found = [
                only(by_model[f"seed-{one['seed']}/{name}"], kind)
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


def depths(ledger: Path) -> dict[tuple[str, float, int], dict[str, float]]:
    """Mechanism, strength and seed -> UDS beside a retain model, and UDS after alignment."""
    found = {}
    for line in ledger.read_text().splitlines():
        one = json.loads(line)
        patch = (one.get("evidence") or {}).get("patch") or {}
        if one.get("auditor") == "verdict" and patch.get("uds") is not None:
            aligned = (patch.get("aligned") or {}).get("uds")
            found[one["mechanism"], one["strength"], one["seed"]] = {
                "uds": patch["uds"],
                "aligned": patch["uds"] if aligned is None else aligned,
            }
    return found


def with_depth(lines: Sequence[Mapping[str, Any]], ledger: Path) -> list[dict[str, Any]]:
    """What was asked of models whose depth is in the gym's ledger, with that depth."""
    depth = depths(ledger)
    return [
        {**one, **depth[key]}
        for one in lines
        if (key := (one["mechanism"], one["strength"], one["seed"])) in depth
    ]


def correlations(both: Sequence[Mapping[str, Any]]) -> list[str]:
    """Spearman's with what depth says is left, with limits by drawing mechanisms anew."""
    made, random = [], np.random.default_rng(0)
    for own in ("z_all", "bits"):
        asked = [one for one in both if own in one]
        names = sorted({one["mechanism"] for one in asked})
        for other in ("uds", "aligned"):
            pairs = {
                name: [(r[own], -r[other]) for r in asked if r["mechanism"] == name]
                for name in names
            }
            draws = [_ranked(pairs, random.choice(names, len(names))) for _ in range(1000)]
            point = _ranked(pairs, names)
            low, high = np.quantile(draws, [0.025, 0.975])
            limits = f"{point:.2f} [{low:.2f}, {high:.2f}]"
            made.append(f"{own} and -{other}: Spearman {limits}, {len(asked)} models")
    return made


def parting(both: Sequence[Mapping[str, Any]]) -> tuple[float, list[str]]:
    """Below which aligned UDS depth says that facts are there, and lines of the page.

    A line is of a mechanism on which depth and the test part.
    """
    ignorant = min(one["aligned"] for one in both if one["truth"] == "absent")
    by: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for one in both:
        if one["truth"] != "damaged":
            by[one["mechanism"]].append((one["p_all"] <= LEVEL, one["aligned"] < ignorant))
    made = [
        "| mechanism | convicted alone | there by depth alone | neither | of |",
        "|---|---|---|---|---|",
    ]
    for name, rows in sorted(by.items()):
        n = [rows.count(which) for which in ((True, False), (False, True), (False, False))]
        if n[0] or n[1]:
            made.append(f"| `{name}` | {n[0]} | {n[1]} | {n[2]} | {len(rows)} |")
    return ignorant, made


@click.command()
@click.argument("gym", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_gym"))
def main(gym: Path, seeds: str, out: Path) -> None:
    """Ask every planted model who has what; go on where an earlier run stopped."""
    asked, base, texts = asked_of_demo(), demo_base(), neutral_texts()
    lines: list[dict[str, Any]] = []
    by_model: dict[str, list[RelationReading]] = {}
    for one in sorted(models_in(gym), key=lambda one: seeds.find(str(one.seed))):
        if str(one.seed) not in seeds.split(","):
            continue
        by_model[one.name] = read = kept_tables(
            out / f"{one.name}.pt",
            asked,
            key_of(asked, one.folder, BASE),
            lambda one=one: through_both(load_model(one.folder), asked, base, texts),
        )
        kept = {name: getattr(one, name) for name in KEPT}
        lines.append(kept | judged(read))
        (out / "know.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    print("\n".join(tables(lines)))
    turned(by_model, lines)
    both = with_depth(lines, LEDGER)
    print("\n".join(correlations(both)))
    ignorant, apart = parting(both)
    print(f"least aligned UDS of absent models: {ignorant:.2f}", *apart, sep="\n")


if __name__ == "__main__":
    main()
