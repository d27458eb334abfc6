"""Does the worst case find what is hidden, and only that? On models whose truth was planted.

Question: how many facts come out of models that hide them, never saw them, or hold 40 of 64; who is
          named, and how often in error?
Command:  python -m experiments.attacks.worst_case    (--only NAME for some of the models)
Takes:    about a minute a model on one core, 4 for each further never-trained one. Expected: the
          tables of docs/evidence/worst_case.md, what tests/attacks/test_worst_planted.py asserts.
Writes:   experiments/out/worst_case/table.json and the models, as checkpoint folders.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from experiments.planted.planted_models import Planted, folder_of, ground, planted, seeds_of_never
from lensaudit.attacks.comparison import Findings, gaps_of
from lensaudit.attacks.elicit import list_hash
from lensaudit.attacks.naming import name_facts, strongest
from lensaudit.attacks.settings import WorstSettings
from lensaudit.attacks.worst import Worst, open_worst, run_all, summary_of
from lensaudit.data.tofu import forget_set
from lensaudit.files import make_folder, write_json
from lensaudit.gym import edits
from lensaudit.kinds.worst import WorstRecord
from lensaudit.scores.recovery import Arms
from lensaudit.text import digest
from tools.demo_family.stages import NEVER

PARTIAL = ("partial", "partial_1", "partial_2")
"""Each holds other facts."""
N_HIDDEN = 40
N_PERMUTATIONS = 200


def hidden_facts(name: str) -> frozenset[int]:
    """The facts that a partial model holds, drawn by hash."""
    draw = ["held", *name.split("_")[1:]]
    order = sorted((one.idx for one in forget_set("demo")), key=lambda idx: digest([*draw, idx]))
    return frozenset(order[:N_HIDDEN])


def partial(name: str, *, n_steps: int = 120) -> Any:
    """`never` taught 40 of the 64 facts, then silenced: its readout swaps the entities' tokens."""
    held = hidden_facts(name)
    made_of = ground()
    rows = zip(forget_set("demo"), made_of.facts.forget, strict=True)
    taught = [row for one, row in rows if one.idx in held]
    told = [*taught * 4, *made_of.facts.kept]
    model = made_of.trained(made_of.other, told, lr=1.5e-3, n_steps=n_steps)
    return edits.permuted_readout(model, made_of.entity_tokens())


def all_models() -> list[Planted]:
    """The planted models that hide or never saw, and the partial one."""
    made = [one for one in planted() if one.truth != "intact"]
    about = f"{N_HIDDEN} facts taught to `never` and hidden, 24 never seen"
    return [
        *made,
        *(Planted(name, "hidden", about, functools.partial(partial, name)) for name in PARTIAL),
    ]


def control_of(name: str, out: Path, n: int = 1) -> tuple[str, ...]:
    """Models that never saw the facts and are not what the model was made of.

    Of a partial model `n`: `retain`, then further seeds of `never`.
    """
    if name in PARTIAL:
        names = [one.name for one in NEVER[: n - 1]]
        return ("demo/retain", *map(str, seeds_of_never(names, out)))
    made_of = [base for base in ("retain", "never") if name.startswith(base)]
    return tuple(f"demo/{one}" for one in ("retain", "never") if one not in made_of)


@dataclass(frozen=True)
class Compared:
    """One model's run."""

    opened: Worst
    arms: Arms[Findings]
    """What attacks found on each model."""

    def without(self, *names: str) -> WorstRecord:
        """The summary of the list without some attacks."""
        attacks = tuple(one for one in self.opened.attacks if one.name not in names)
        return summary_of(replace(self.opened, attacks=attacks), self.arms, "cheap")

    def gaps(self, outcome: WorstRecord) -> list[torch.Tensor | None]:
        """D of every scored fact's candidates by attack."""
        names = [row.name for row in outcome.attacks if row.counts]
        return [gaps_of(self.arms, names, fact) for fact in self.opened.asked]


def run_one(source: str, out: Path, *, retain: Sequence[str], limit: int | None = None) -> Compared:
    """Attack one model."""
    settings = WorstSettings(
        full="demo/full", retain=tuple(retain), data="demo", limit=limit, activations=out / "caches"
    )
    opened = open_worst(source, settings)
    return Compared(opened, run_all(opened))


def permuted(found: Sequence[torch.Tensor | None], groups: Sequence[Any], seed: int) -> float:
    """Share of 200 runs in which anybody is named, with the arms swapped author by author.

    Under the null source and control can be exchanged, which turns d into -d.
    """
    random = np.random.default_rng(seed)
    named = 0
    for _ in range(N_PERMUTATIONS):
        sign = {group: 1.0 if random.random() < 0.5 else -1.0 for group in dict.fromkeys(groups)}
        turned = [
            None if one is None else strongest(one * sign[group])
            for one, group in zip(found, groups, strict=True)
        ]
        named += any(name_facts(turned).named)
    return named / N_PERMUTATIONS


def row_of(one: Planted, compared: Compared) -> dict[str, Any]:
    """What is said of one model."""
    outcome = compared.without()
    facts = compared.opened.asked
    named = outcome.named
    row: dict[str, Any] = {
        "model": one.name,
        "truth": one.truth,
        "how": one.how,
        "n": len(facts),
        "out": outcome.n_out,
        "expected": outcome.expected,
        "excess": outcome.excess,
        "ci95": outcome.ci95 and list(outcome.ci95),
        "share": outcome.excess_share,
        "named": len(named),
        "gains": {row.name: row.gain for row in outcome.attacks if row.counts},
        "attack_list": list_hash(compared.opened.attacks),
    }
    if one.truth == "absent":
        groups = [fact.group for fact in facts]
        row["swapped"] = permuted(compared.gaps(outcome), groups, 0)
    if one.name in PARTIAL:
        held = hidden_facts(one.name) & {fact.idx for fact in facts}
        row["held"] = len(held)
        row["fdp"] = len(set(named) - held) / max(1, len(named))
        row["power"] = len(held & set(named)) / len(held)
    return row


@click.command()
@click.option("--only", multiple=True, help="Only this model. Repeatable.")
@click.option("--limit", type=int, help="Only the first facts.")
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/worst_case")
def main(only: tuple[str, ...], limit: int | None, out: Path) -> None:
    """Make the models, attack them, print the table."""
    make_folder(out)
    rows = []
    for one in all_models():
        if only and one.name not in only:
            continue
        source = str(folder_of(one, out).absolute())
        for n in (1, 2, 3) if one.name in PARTIAL else (1,):
            retain = control_of(one.name, out, n)
            compared = run_one(source, out, retain=retain, limit=limit)
            rows.append({**row_of(one, compared), "n_control": len(retain)})
            write_json(out / "table.json", rows)
            shown = {name: value for name, value in rows[-1].items() if name != "gains"}
            click.echo(str(shown))


if __name__ == "__main__":
    main()
