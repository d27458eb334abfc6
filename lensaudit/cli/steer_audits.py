"""`steer audit` behind the options: prepare, run, write, print."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lensaudit.cli.show import number
from lensaudit.errors import InputError, WorkError
from lensaudit.files import canonical_json, slug
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import load_registry, resolve
from lensaudit.models.spec import ModelSpec
from lensaudit.patching.options import parse_layers, parse_memory
from lensaudit.patching.prepare import default_anchor, default_data, examples_for
from lensaudit.results import manifest
from lensaudit.steer.audit import Audit, prepare, retain_examples, run
from lensaudit.steer.bench import ROLES, Role, Runs
from lensaudit.steer.contrast import format_of
from lensaudit.steer.finding import KINDS
from lensaudit.steer.restore import Search
from lensaudit.unlearn.rows import TOFU_PAIRS

WIDTH = 110
ARMS = {
    "direction": "direction",
    "sufficiency": "into full (sufficiency)",
    "per_example": "each example's own (bound)",
    "random": "random, equal length",
    "random_sufficiency": "random, into full",
    "retain_derived": "from retain questions",
    "never_trained": "never-trained model",
    "reverse": "reversed, on full",
    "collateral": "same edit of full",
}
TITLES = {"add": "ADD: restore", "ablate": "ABLATE: remove", "clamp": "CLAMP: mediate"}


def run_audit(
    name: str,
    *,
    full: str | None,
    retain: str | None,
    out: Path | None,
    dry_run: bool,
    as_json: bool,
    progress: Callable[[str, int, int], None],
    **options: Any,
) -> None:
    """The three experiments on one unlearned model.

    Raises:
        WorkError: no experiment could be scored; the files say why.
    """
    started = time.monotonic()
    names: dict[Role, str] = {
        "full": full or default_anchor("full", [name]),
        "unlearned": name,
        "retain": retain or default_anchor("retain", [name]),
    }
    audit = audit_of(names, options, progress)
    if dry_run:
        click.echo(plan_of(audit))
        return
    folder = out or Path("experiments/out/steering") / slug(name) / "audit"
    summary = run(audit, folder, progress)
    plain = {key: str(v) if isinstance(v, Path) else v for key, v in options.items()}
    inputs = {role: {"name": one.spec.name, "weights": one.weights}
              for role, one in audit.checkpoints.items()}  # fmt: skip
    manifest(
        "steer audit", options=plain, inputs={**inputs, "examples": len(audit.encoded["forget"])},
        device=audit.runs.device, started=started,
    ).write(folder)  # fmt: skip
    if as_json:
        click.echo(canonical_json(summary))
    else:
        print_summary(summary)
        click.echo(f"written: {folder}")
    if all(one["unscored"] for one in summary["experiments"].values()):
        reasons = {one["unscored"] for one in summary["experiments"].values()}
        raise WorkError(f"{name}: nothing could be scored ({'; '.join(sorted(reasons))})")


def audit_of(
    names: Mapping[Role, str],
    options: Mapping[str, Any],
    progress: Callable[[str, int, int], None] | None = None,
) -> Audit:
    """The audit that names and options describe; nothing is loaded.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    registry = load_registry(options["registry"])
    specs: dict[Role, ModelSpec] = {role: resolve(names[role], registry) for role in ROLES}
    data = options["data"] or default_data(names["unlearned"])
    forget = examples_for(data, exclude=options["exclude"], limit=options["limit"])
    kept = retain_examples(retain_name(options["retain_data"], data), options["n_retain"])
    checkpoints: dict[Role, Checkpoint] = {role: open_checkpoint(specs[role]) for role in ROLES}
    device = resolve_device(options["device"])
    search = Search(
        layers=parse_layers(options["layers"], checkpoints["full"].n_layers),
        strengths=strengths_of(options["strengths"]),
        score=options["score"],
        n_random=options["n_random"],
        seed=options["seed"],
        kl_cap=options["kl_cap"],
        where=options["where"],
        max_new_tokens=options["max_new_tokens"],
    )
    return prepare(
        checkpoints,
        forget,
        kept,
        search=search,
        kinds=tuple(kind for kind in KINDS if kind in options["kinds"]) or KINDS,
        n_folds=options["n_folds"],
        at=options["at"],
        form=format_of(load_tokenizer(checkpoints["full"]), options["form"]),
        runs=Runs(
            resolve_dtype(options["dtype"], device), device, options["attn"],
            parse_memory(options["memory"]), options["activations"], progress,
        ),
    )  # fmt: skip


def retain_name(named: str | None, data: str) -> str:
    """What --retain-data stands for; the complement of a named forget set by default.

    Raises:
        InputError: the forget set is a file, so its complement must be named.
    """
    known = {**TOFU_PAIRS, "demo": "demo"}
    if named is None and data not in known:
        raise InputError(
            f"--data {data}: name --retain-data too: rows with question and answer that should be "
            "kept; what a direction costs is measured on them"
        )
    return named or known[data]


def strengths_of(text: str) -> tuple[float, ...]:
    """Distinct factors, ascending.

    Raises:
        InputError: not numbers, or 0, which adds nothing.
    """
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError as error:
        raise InputError(f"--strengths {text}: wanted numbers, like 0.5,1,2") from error
    if not found or any(one == 0 or not math.isfinite(one) for one in found):
        raise InputError(f"--strengths {text}: wanted finite numbers other than 0")
    return tuple(found)


def plan_of(audit: Audit) -> str:
    """What a run would do."""
    names = ", ".join(f"{role} {audit.checkpoints[role].spec.name}" for role in ROLES)
    groups = {e.group for e in audit.encoded["forget"]}
    grid = len(audit.search.layers) * len(audit.search.strengths)
    return (
        f"{names}\n{len(audit.encoded['forget'])} forget examples of {len(groups)} authors in "
        f"{len(audit.folds())} folds, {len(audit.encoded['retain'])} retain examples\n"
        f"{', '.join(audit.kinds)}; ADD tries {grid} settings on the dev authors of each fold; "
        "three models in memory"
    )


def print_summary(summary: Mapping[str, Any]) -> None:
    """One table per experiment: recovery of the direction above its controls."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=WIDTH)
    for kind, found in summary["experiments"].items():
        if "arms" not in found:
            console.print(f"{TITLES[kind]}: unscored, {found['unscored']}.", markup=False)
            continue
        console.print(_table(kind, found))
        console.print(found["reading"], markup=False)
        for warning in found["warnings"]:
            console.print(f"Warning: {warning}.", markup=False)
        console.print()


def _table(kind: str, found: Mapping[str, Any]) -> Table:
    score = found["score"]
    table = Table(
        title=f"{TITLES[kind]} ({score}; KL on retain {number(found['kl_retain'])} nats per token)"
    )
    table.add_column("")
    for name in ("recovery", "95 % interval", "score", "IDK rate"):
        table.add_column(name, justify="right")
    for arm, title in ARMS.items():
        if score not in found["arms"].get(arm, {}):
            continue
        row = found["arms"][arm][score]
        spread = "" if row["sd"] is None else f" ± {row['sd']:.3f}"
        interval = "" if row["ci95"] is None else f"[{row['ci95'][0]:.2f}, {row['ci95'][1]:.2f}]"
        idk = found["speech"].get(arm, {}).get("idk_rate")
        table.add_row(
            title, number(row["recovery"]) + spread, interval, number(row["score"]), number(idk, 2)
        )
    return table
