"""Does unlearning betray who was forgotten? Depth beside membership attacks, and their size.

Question: of the embedded family and of SmolLM2, which models tell the forgotten people from people
          whom no model saw, by which attack, and is it those that erase most? Do other seeds of the
          methods say the same? And how often does the test find something where nothing is: 200
          worlds of other people, asked of `demo/retain`?
Command:  python -m experiments.metrics.betrayal
          (--study SEED FOLDER: a seed of experiments.prediction.real_model)
Takes:    half an hour of one core, after `lensaudit models fetch smollm2`; ten minutes more for a
          seed of SmolLM2. Goes on where it was; --show only prints the tables.
Expected: the tables of docs/evidence/betrayal.md.
Writes:   rows.csv (a score a row, model and attack), depth.csv and worlds.csv under --rows.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import lensaudit as la
from experiments.prediction.real_model import BASE
from lensaudit.data.suites import load_suite
from lensaudit.metrics.betrayal import betrayal, exchange_p
from lensaudit.models.adapter import WEIGHTS
from lensaudit.scores.areas import clustered_auc_limits
from lensaudit.scores.intervals import share_of
from lensaudit.scores.ranks import spearman
from lensaudit.training.job import prepare
from lensaudit.training.methods import COMMON, METHODS
from lensaudit.training.settings import UnlearnSettings
from lensaudit.verdict.thresholds import ALPHA
from tools.demo_family.stages import BATCH, STAGES
from tools.demo_family.world import make_world

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "demo/": (
        *("full", "masked_upper", "masked_readout", "idknll", "simnpo", "npo", "graddiff"),
        *("retain", "never"),
    ),
    "smollm2/": ("full", "masked_top", "trigger", "npo", "retain", "retain_2", "absent"),
}
"""Models by family; the rows name those of the embedded family without it."""
SEEDS: Mapping[str, tuple[str, ...]] = {
    **{f"demo-{seed}/": ("idknll", "simnpo", "npo", "graddiff") for seed in (1, 2, 3)},
    "smollm2-1/": (
        *("full", "masked_top", "idknll", "simnpo", "npo", "npo_sam", "altpo", "graddiff", "rmu"),
        *("retain", "retain_2", "absent"),
    ),
}
"""Methods again, with other seeds: of the embedded family from its own `full`, of SmolLM2 from
anchors that were trained again too."""
ANCHORS = ("full", "retain", "retain_2")
NEVER_SAW = ("never", "absent")
ATTACKS = ("loss", "zlib", "min_k", "min_k_plus_plus", "entropy")
BESIDE = ("retain", "full")
"""Models whose loss on the same row is taken off: `mia_reference` with `--reference`."""
N_WORLDS, CHUNK = 200, 25
N_ROWS = 64
"""Of a side of one world: eight people with eight each."""
FEWEST_RANKED = 3
"""Unlearned models up to which no rank correlation is told."""
Row = Mapping[str, Any]
Studies = Mapping[int, Path]
"""Seed -> folder of a study of SmolLM2."""


def family(model: str) -> str:
    """How the names of its family begin, as the package knows them."""
    return next((one for one in (*FAMILIES, *SEEDS) if model.startswith(one)), "demo/")


def bare(model: str) -> str:
    """Its name in its family."""
    return model.removeprefix(family(model))


def named(one: str, model: str) -> str:
    """A model of a family, as the rows call it."""
    return one.removeprefix("demo/") + model


def seed_of(kin: str) -> int:
    """0 of the models that the package brings.

    >>> seed_of("demo-2/"), seed_of("smollm2/")
    (2, 0)
    """
    return int(kin.rstrip("/").partition("-")[2] or 0)


def anchored(kin: str) -> str:
    """Whose `full` and `retain` belong to a family: other seeds of the embedded one keep its own.

    >>> anchored("demo-2/"), anchored("smollm2-1/")
    ('demo/', 'smollm2-1/')
    """
    return "demo/" if kin.startswith("demo") else kin


def opened(model: str, out: Path, studies: Studies) -> str | None:
    """The name of a model for lensaudit, trained first where that takes seconds; None: not made."""
    kin, name = family(model), bare(model)
    if kin in FAMILIES:
        return kin + name
    if kin.startswith("smollm2"):
        place = studies.get(seed_of(kin), Path()) / name
        return f"{BASE}+{place}" if (place / WEIGHTS).exists() else None
    stage = next(one for one in STAGES if one.name == name)
    read = (*COMMON, *METHODS[str(stage.method)].constants)
    constants = {one: getattr(stage.hyper, one) for one in read if one != "retain_loss"}
    settings = UnlearnSettings(
        method=str(stage.method),
        model="demo/full",
        out=out / "again" / kin / name,
        steps=stage.recipe.n_steps,
        lr=stage.recipe.lr,
        batch_size=BATCH,
        accumulate=1,
        seed=stage.seed + 100 * seed_of(kin),
        **constants,
    )
    prepare(settings).make(settings.out)
    return str(settings.out)


def measured(model: str, out: Path, data: Any = "demo", holdout: Any = None) -> Any:
    """All attacks on a model's answers."""
    metrics = tuple(f"mia_{one}" for one in ATTACKS)
    said = la.evaluate(
        model,
        out=out,
        metrics=metrics,
        data=str(data),
        holdout=None if holdout is None else str(holdout),
    )
    return {name: said.entries[f"mia_{name}"].parts for name in ATTACKS}


def rows_of(model: str, name: str, out: Path) -> Iterator[Row]:
    """A row a text of both sides."""
    found = measured(name, out / "eval" / model)
    suite = load_suite("tofu", "demo")
    for side in ("forget", "holdout"):
        for row in suite[side].rows:
            scores = {name: found[name][side].records[row.idx]["score"] for name in ATTACKS}
            told = {name: f"{one:.6g}" for name, one in scores.items()}
            yield {"model": model, "side": side, "author": row.group, "idx": row.idx, **told}


def depths(models: Mapping[str, str], ends: Sequence[str], out: Path) -> Iterator[Row]:
    """UDS of models with its limits, between `ends`: full, and one that never saw the facts."""
    found = la.patch(
        [*models.values()],
        out=out,
        full=ends[0],
        retain=ends[1],
        data="demo",
        ask="none",
        align="none",
    )
    for model, one in zip(models, found, strict=True):
        low, high = one.ci95 or (None, None)
        limits = {"low": f"{low:.4f}", "high": f"{high:.4f}"}
        yield {"model": model, "uds": f"{one.uds:.4f}", **limits}


def worlds(seeds: Sequence[int], out: Path) -> Iterator[Row]:
    """P of every attack on `demo/retain`, of the first and last eight people of each world.

    And `beside`, of the loss of `demo/never` less that of `demo/retain`.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for side in ("forget", "holdout"):
        people = [(seed, row) for seed in seeds for row in getattr(make_world(seed), side)]
        files[side] = out / f"{side}-{seeds[0]}.jsonl"
        with files[side].open("w") as lines:
            for seed, row in people:
                told = {"question": row.question, "answer": row.answer}
                lines.write(json.dumps({**told, "group": 100 * seed + int(row.group)}) + "\n")
    found, other = (
        measured(f"demo/{model}", out / f"{model}-{seeds[0]}", files["forget"], files["holdout"])
        for model in ("retain", "never")
    )
    for at, seed in enumerate(seeds):
        places = range(at * N_ROWS, at * N_ROWS + N_ROWS)
        people = [row // 8 for row in range(N_ROWS)]

        def p_of(scores: Mapping[str, Sequence[float]], people: Sequence[int] = people) -> str:
            strangers = [100 + one for one in people]
            return f"{exchange_p(scores['holdout'], scores['forget'], strangers, people)[0]:.6g}"

        own = {
            (name, side): [found[name][side].records[idx]["score"] for idx in places]
            for name in ATTACKS
            for side in files
        }
        less = {
            side: [other["loss"][side].records[idx]["score"] for idx in places]
            - np.array(own["loss", side])
            for side in files
        }
        told = {name: p_of({side: own[name, side] for side in files}) for name in ATTACKS}
        yield {"seed": seed, **told, "beside": p_of(less)}


def kept(place: Path) -> list[dict[str, str]]:
    """Rows that were written."""
    if not place.exists():
        return []
    with place.open() as lines:
        return list(csv.DictReader(lines))


def add(place: Path, rows: Sequence[Row]) -> None:
    """Append rows, below a heading."""
    new = not place.exists()
    with place.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def order_of_all() -> list[str]:
    """All models, as the rows name them."""
    every = (*FAMILIES.items(), *SEEDS.items())
    return [named(kin, one) for kin, models in every for one in models]


def make(rows: Path, out: Path, studies: Studies) -> None:
    """What is not there yet."""
    rows.mkdir(parents=True, exist_ok=True)
    done = {one["model"] for one in kept(rows / "rows.csv")}
    deep = {one["model"] for one in kept(rows / "depth.csv")}
    left: dict[str, dict[str, str]] = {}
    for model in order_of_all():
        deeper = bare(model) not in ANCHORS and model not in deep
        if model in done and not deeper:
            continue
        name = opened(model, out, studies)
        if name is None:
            continue
        if model not in done:
            add(rows / "rows.csv", list(rows_of(model, name, out)))
        if deeper:
            left.setdefault(family(model), {})[model] = name
    for kin, models in left.items():
        ends = [opened(named(anchored(kin), one), out, studies) for one in ("full", "retain")]
        place = out / "patch" / kin
        add(rows / "depth.csv", list(depths(models, [str(one) for one in ends], place)))
    make_worlds(rows / "worlds.csv", out / "worlds")


def make_worlds(place: Path, out: Path) -> None:
    """Worlds that are not there yet."""
    seen = {int(one["seed"]) for one in kept(place)}
    for first in range(1, N_WORLDS + 1, CHUNK):
        if first not in seen:
            add(place, list(worlds(range(first, first + CHUNK), out)))


def by_attack(rows: Sequence[Row], model: str, attack: str) -> dict[str, Any] | None:
    """Area, limits, p and words of one attack; of a model in `BESIDE`, of the loss less its own.

    None where that model has no row beside each of these.
    """
    other = named(anchored(family(model)), attack)
    base = {(one["side"], one["idx"]): float(one["loss"]) for one in rows if one["model"] == other}
    scores, people = {}, {}
    for side in ("holdout", "forget"):
        own = [one for one in rows if one["model"] == model and one["side"] == side]
        if attack not in BESIDE:
            scores[side] = [float(one[attack]) for one in own]
        elif all((side, one["idx"]) in base for one in own):
            scores[side] = [float(one["loss"]) - base[side, one["idx"]] for one in own]
        else:
            return None
        people[side] = [int(one["author"]) for one in own]
    return told_apart(scores, people)


def told_apart(
    scores: Mapping[str, Sequence[float]], people: Mapping[str, Sequence[int | str]]
) -> dict[str, Any]:
    """Area of both sides with its limits, p and words."""
    taken = (scores["holdout"], scores["forget"], people["holdout"], people["forget"])
    limits = clustered_auc_limits(*taken)
    return {"area": limits.value, "ends": limits.ends, **betrayal(*taken, limits)}


def area_text(one: Mapping[str, Any]) -> str:
    """An area with its limits."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(one["area"], *one["ends"])


def p_text(p: float) -> str:
    """Two digits, as in the tables."""
    return f"{p:.2g}".lstrip("0") if p >= 0.001 else f"{p:.0e}".replace("e-0", "e-")


def beside_text(one: Mapping[str, Any] | None) -> str:
    """Cells of an area and its p; dashes where there is nothing to compare with."""
    return f"{area_text(one)} | {p_text(one['p'])}" if one else "– | –"


def says_text(one: Mapping[str, Any] | None) -> str:
    """What an attack says, without its p."""
    return one["says"].partition(" (p")[0] if one else "–"


def leak_text(own: Mapping[str, Any], never: Mapping[str, Any] | None) -> str:
    """Privleak in percent: area of Min-K below the retain model's, over 1 less the latter."""
    return f"{100 * (never['area'] - own['area']) / (1 - never['area']):.0f}" if never else "–"


def family_tables(rows: Path, kin: str) -> Iterator[str]:
    """Lines of both tables of a family, and its rank correlations."""
    texts, depth = kept(rows / "rows.csv"), {one["model"]: one for one in kept(rows / "depth.csv")}
    order = [named(kin, one) for one in FAMILIES[kin]]
    order = [one for one in order if any(row["model"] == one for row in texts)]
    if not order:
        return
    anchored = {named(kin, "full"): {"uds": 0.0}}
    order.sort(key=lambda one: float((depth | anchored).get(one, {"uds": 1.0})["uds"]))
    yield "| model | UDS | area, loss | p | what it says | area, less retain's loss | p |"
    yield "|---|---|---|---|---|---|---|"
    found = {
        one: {
            name: by_attack(texts, one, name) for name in (*ATTACKS, *BESIDE) if name != bare(one)
        }
        for one in order
    }
    for one in order:
        uds, own, less = depth.get(one), found[one]["loss"], found[one].get("retain")
        deep = f"{float(uds['uds']):.2f}" if uds else "anchor"
        told = f"{deep} | {beside_text(own)} | {says_text(own)} | {beside_text(less)}"
        yield f"| {bare(one)} | {told} |"
    yield ""
    yield f"| model | {' | '.join(ATTACKS[1:])} | loss less full's | privleak |"
    yield f"|{'---|' * (len(ATTACKS) + 2)}"
    never = found.get(named(kin, "retain"), {}).get("min_k")
    for one in order:
        cells = [found[one].get(name) for name in (*ATTACKS[1:], "full")]
        told = [f"{cell['area']:.2f}, {p_text(cell['p'])}" if cell else "–" for cell in cells]
        yield f"| {bare(one)} | {' | '.join(told)} | {leak_text(found[one]['min_k'], never)} |"
    yield ""
    unlearned = [one for one in order if one in depth and bare(one) not in NEVER_SAW]
    for name, what in (("loss", "the loss"), ("retain", "the loss less retain's")):
        loud = [0.5 - cell["area"] for one in unlearned if (cell := found[one][name])]
        deep = [float(depth[one]["uds"]) for one in unlearned]
        known = spearman(deep, loud) if len(loud) == len(deep) else None
        if known is not None and len(unlearned) > FEWEST_RANKED:
            yield f"Rank correlation of UDS and .5 less the area, {what}: {known:.2f}."
    yield ""


def seeds_table(rows: Path, kin: str) -> Iterator[str]:
    """Lines of the table of a family's models that were trained with other seeds."""
    texts, depth = kept(rows / "rows.csv"), {one["model"]: one for one in kept(rows / "depth.csv")}
    stem = kin.rstrip("/")
    others = {one: models for one, models in SEEDS.items() if one.startswith(f"{stem}-")}
    there = {row["model"] for row in texts}
    yield "| model | seed | UDS | area, loss | p | area, less retain's loss | p | what that says |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(one for models in others.values() for one in models):
        for one in (kin, *others):
            if (model := named(one, name)) not in there:
                continue
            uds, own = depth.get(model), by_attack(texts, model, "loss")
            deep = f"{float(uds['uds']):.2f}" if uds else "anchor"
            less = by_attack(texts, model, "retain") if name != "retain" else None
            says = says_text(own if name == "retain" else less)
            told = f"{seed_of(one)} | {deep} | {beside_text(own)} | {beside_text(less)}"
            yield f"| {name} | {told} | {says} |"
    yield ""


def tables(rows: Path) -> Iterator[str]:
    """Lines of the page's tables."""
    for kin in FAMILIES:
        yield from family_tables(rows, kin)
        yield from seeds_table(rows, kin)
    drawn = kept(rows / "worlds.csv")
    yield f"| {len(drawn)} worlds | p <= .01 | p <= .05 | p <= .10 |"
    yield "|---|---|---|---|"
    for name in (*ATTACKS, "beside") if drawn else ():
        cells = []
        for level in (0.01, 0.05, 0.1):
            n = sum(float(one[name]) <= level for one in drawn)
            share = share_of(n, len(drawn))
            cells.append(f"{n}: {share.value:.3f} [{share.low:.3f}, {share.high:.3f}]")
        told = "never's loss less retain's" if name == "beside" else f"retain, {name}"
        yield f"| {told} | {' | '.join(cells)} |"
    yield ""
    done = {row["model"] for row in kept(rows / "rows.csv")}
    for one in order_of_all():
        if one not in done:
            yield f"Not made: {one}."


def draw(rows: Path, picture: Path) -> None:
    """Depth against the area of the loss, with limits."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "betrayal"
    import matplotlib.pyplot as plt

    texts = kept(rows / "rows.csv")
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for one in kept(rows / "depth.csv"):
        if family(one["model"]) not in FAMILIES:
            continue
        own, uds = by_attack(texts, one["model"], "loss"), float(one["uds"])
        color = f"C{list(FAMILIES).index(family(one['model']))}"
        axes.plot([uds, uds], own["ends"], color=color, lw=1)
        axes.plot([float(one["low"]), float(one["high"])], [own["area"]] * 2, color=color, lw=1)
        axes.plot(uds, own["area"], "o" if own["p"] <= ALPHA else "s", color=color)
        axes.annotate(one["model"], (uds, own["area"]), xytext=(5, 5), textcoords="offset points")
    axes.axhline(0.5, color="0.6", lw=1)
    axes.set(xlim=(-0.05, 1.2), ylim=(0, 1), xlabel="UDS: 0 held as by full, 1 erased")
    axes.set_ylabel("area, loss: 1 treated as seen, 0 shouts")
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})


@click.command()
@click.option("--rows", type=click.Path(path_type=Path), default=Path("benchmarks/betrayal"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/betrayal"))
@click.option("--picture", type=click.Path(path_type=Path), help="Draw depth against area too.")
@click.option(
    "--study",
    "studies",
    multiple=True,
    type=(int, click.Path(exists=True, path_type=Path)),
    help="A seed of experiments.prediction.real_model, and its folder. Repeatable.",
)
@click.option("--show", is_flag=True, help="Only print the tables.")
def main(
    rows: Path,
    out: Path,
    picture: Path | None,
    studies: tuple[tuple[int, Path], ...],
    show: bool,
) -> None:
    """Make what is missing, print the tables."""
    if not show:
        make(rows, out, dict(studies))
    for line in tables(rows):
        click.echo(line)
    if picture is not None:
        draw(rows, picture)


if __name__ == "__main__":
    main()
