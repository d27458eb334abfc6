"""Small sweeps of the embedded family, and units that cost nothing."""

import json
from pathlib import Path

from lensaudit.cli.main import run
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.plan import Conditions, Target, make_plan, write_plan
from lensaudit.sweep.results import publish

METRICS = "exact_memorization,forget_Q_A_Prob,privleak,uds"
SMALL = ("--metrics", METRICS, "--limit", "2", "--max-new-tokens", "4")


def command(*arguments) -> int:
    return run([str(one) for one in arguments])


def planned(out, *models, variants="base", more=SMALL) -> int:
    return command("sweep", "plan", *models, "--variants", variants, *more, "--out", out)


def toy_plan(root: Path, n: int = 3, variants=("base",)):
    """A plan whose checkpoints exist by name only."""
    names = ["retain", "full", *(f"m{i}" for i in range(n))]
    targets = [Target(name, f"org/{name}", "main", "unlearned", None, False) for name in names]
    plan = make_plan(
        targets[2:],
        anchors={"retain": targets[0], "full": targets[1]},
        variants=variants,
        conditions=Conditions(),
        data="d",
        attacks={one: {"of": one} for one in variants if one != "base"},
    )
    write_plan(root, plan)
    return plan


VALUE = {
    "value": 0.5, "low": None, "high": None, "n_scored": 1, "n_unscored": 0, "reason": None,
    "high_means": "knows", "family": "toy",
}  # fmt: skip


def toy_run_unit(layout, plan, unit, obtain, room):
    """In place of measuring: says who was asked, and publishes one value."""
    work = layout.work(unit.id)
    (work / "eval").mkdir(parents=True, exist_ok=True)
    with (layout.root / "calls.txt").open("a") as stream:
        stream.write(f"{unit.label}\n")
    (work / "eval" / "TOFU_EVAL.json").write_text(json.dumps({"toy": {"agg_value": 0.5}}))
    record = {
        "plan": plan.hash, "role": "unlearned", "method": None, "weights": "w", "dtype": "float32",
        "device": "cpu", "halvings": room.halvings, "values": {"toy": VALUE}, "seconds": 1.0,
    }  # fmt: skip
    publish(layout, unit, record)


def calls(root: Path) -> list[str]:
    path = root / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def rows_of(layout: Layout, unit) -> list[dict]:
    return [json.loads(line) for line in layout.attempts(unit.id).read_text().splitlines()]
