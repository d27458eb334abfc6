"""Which planted models betray who was forgotten? The gym's mechanisms beside their depth.

Question: of the gym's models, whose truth is known, which tell the forgotten people from people
          whom no model saw by their loss: those that hold the facts, or those that never saw them?
Command:  python -m experiments.metrics.betrayal_gym --gym gym
Takes:    two seconds a model; goes on where it was. --show only prints the table.
Expected: the table of docs/evidence/betrayal.md.
Writes:   gym.csv (a line a model) under --rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import lensaudit as la
from experiments.metrics.betrayal import add, kept, p_text, told_apart
from lensaudit.data.suites import load_suite
from lensaudit.groups import grouped
from lensaudit.gym.make import models_in
from lensaudit.gym.table import rows_of, share, share_text
from lensaudit.verdict.thresholds import ALPHA

SIDES = ("forget", "holdout")
Row = Mapping[str, Any]
Losses = Mapping[str, Sequence[float]]


def losses(model: str, out: Path) -> Losses:
    """Mean loss of each row of both sides, nats per token."""
    said = la.evaluate(model, out=out, metrics=("mia_loss",), data="demo")
    parts, suite = said.entries["mia_loss"].parts, load_suite("tofu", "demo")
    return {
        side: [parts[side].records[one.idx]["score"] for one in suite[side].rows] for side in SIDES
    }


def told(own: Losses, base: Losses) -> dict[str, str]:
    """Area, limits and p of the loss, and of the loss less the retain model's."""
    people = {side: [row.group for row in load_suite("tofu", "demo")[side].rows] for side in SIDES}
    found = {}
    for name, take in (("", 0.0), ("_less", 1.0)):
        less = {
            side: [one - take * other for one, other in zip(own[side], base[side], strict=True)]
            for side in SIDES
        }
        one = told_apart(less, people)
        low, high = one["ends"]
        area = {"area": one["area"], "low": low, "high": high, "p": one["p"]}
        found |= {f"{key}{name}": f"{value:.6g}" for key, value in area.items()}
    return found


def make(gym: Path, ledger: Path, rows: Path, out: Path) -> None:
    """What is not there yet."""
    place = rows / "gym.csv"
    rows.mkdir(parents=True, exist_ok=True)
    done = {one["key"] for one in kept(place)}
    depth = {
        (row.auditor, row.model): row.score
        for row in rows_of(ledger, None)
        if row.auditor in ("uds", "uds_aligned")
    }
    base: dict[int, Losses] = {}
    for one in models_in(gym):
        if one.key in done:
            continue
        if one.seed not in base:
            base[one.seed] = losses(one.anchors["retain"], out / f"retain-{one.seed}")
        own = losses(str(one.folder), out / one.key)
        uds, aligned = (depth.get((name, one.key)) for name in ("uds", "uds_aligned"))
        about = {
            **{
                name: getattr(one, name)
                for name in ("key", "mechanism", "strength", "truth", "seed")
            },
            "uds": "" if uds is None else f"{uds:.4f}",
            "uds_aligned": "" if aligned is None else f"{aligned:.4f}",
        }
        add(place, [about | told(own, base[one.seed])])


def ends(values: Sequence[float]) -> str:
    """Least and greatest."""
    return f"{min(values):.2f} to {max(values):.2f}"


def does_shout(one: Row) -> bool:
    """Whether the loss less the retain model's tells the forgotten apart as less likely."""
    return float(one["p_less"]) <= ALPHA and float(one["area_less"]) < 0.5


def is_seen(one: Row) -> bool:
    """Whether it tells them apart as likelier."""
    return float(one["p_less"]) <= ALPHA and float(one["area_less"]) >= 0.5


def table(rows: Path) -> Iterator[str]:
    """A line a mechanism, those that shout most first; then shares by truth."""
    lines = kept(rows / "gym.csv")
    by_name = grouped(((one["mechanism"], one["truth"]), one) for one in lines)
    yield "| mechanism | truth | models | aligned UDS | area, less retain's loss | shouts | seen |"
    yield "|---|---|---|---|---|---|---|"

    def mean(own: Sequence[Row]) -> float:
        return sum(float(one["area_less"]) for one in own) / len(own)

    for (mechanism, truth), own in sorted(by_name.items(), key=lambda one: mean(one[1])):
        depth = [float(one["uds_aligned"]) for one in own if one["uds_aligned"]]
        areas = [float(one["area_less"]) for one in own]
        shouts, seen = sum(map(does_shout, own)), sum(map(is_seen, own))
        deep = ends(depth) if depth else "–"
        cells = (mechanism, truth, len(own), deep, ends(areas), shouts, seen)
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    yield "| truth | loss: p <= .05 | less retain's loss: shouts | less retain's loss: seen |"
    yield "|---|---|---|---|"
    for truth in dict.fromkeys(one["truth"] for one in lines):
        own = [one for one in lines if one["truth"] == truth]
        alone = [float(one["p"]) <= ALPHA for one in own]
        counts = (alone, list(map(does_shout, own)), list(map(is_seen, own)))
        cells = [share_text(share(one)) for one in counts]
        yield f"| {truth} | {' | '.join(cells)} |"
    if lines:
        least = min(float(one["p_less"]) for one in lines)
        yield ""
        yield f"{len(lines)} models, least p {p_text(least)}."


@click.command()
@click.option("--gym", type=click.Path(path_type=Path), default=Path("gym"), help="Planted models.")
@click.option("--ledger", type=click.Path(path_type=Path), default=Path("benchmarks/gym"))
@click.option("--rows", type=click.Path(path_type=Path), default=Path("benchmarks/betrayal"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/betrayal"))
@click.option("--show", is_flag=True, help="Only print the table.")
def main(gym: Path, ledger: Path, rows: Path, out: Path, show: bool) -> None:
    """Make what is missing, print the table."""
    if not show:
        make(gym, ledger, rows, out)
    for line in table(rows):
        click.echo(line)


if __name__ == "__main__":
    main()
