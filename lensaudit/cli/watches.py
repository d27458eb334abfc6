"""`watch` behind the options: anchors, conditions, the curve."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lensaudit.data.suites import DEMO_DATA
from lensaudit.files import canonical_json
from lensaudit.metrics.registry import ordered
from lensaudit.models.registry import DEMO, load_registry, resolve
from lensaudit.sweep.plan import Conditions
from lensaudit.sweep.planning import data_digest, planned, with_data
from lensaudit.sweep.watch import CURVE, Watch, output_for, steps_of, watch


def run_watch(
    folder: Path,
    follow: Callable[[], bool],
    every_s: float,
    settled_s: float,
    *,
    as_json: bool,
    notice: Callable[[str], None],
    out: Path | None,
    registry: Path | None,
    metrics: str,
    full: str | None,
    retain: str | None,
    forget: Path | None,
    **conditions: Any,
) -> None:
    """Watch, and print the curve at the end."""
    known = load_registry(registry)
    names = () if metrics == "all" else tuple(m.strip() for m in metrics.split(",") if m.strip())
    asked = Conditions(
        metrics=names, forget=str(forget) if forget is not None else None, **conditions
    )
    demo = DEMO if asked.data == DEMO_DATA else ""
    anchors = {
        "full": planned(resolve(full or f"{demo}full", known)),
        "retain": planned(resolve(retain or f"{demo}retain", known)),
    }
    steps_of(folder)
    ordered(asked.suite, names)
    asked = with_data(asked, [folder.name])
    data = data_digest(asked)
    watched = Watch(folder, output_for(folder, out), asked, anchors, data, settled_s, notice)
    rows = watch(watched, follow=follow, every_s=every_s)
    if as_json:
        click.echo(canonical_json(rows))
        return
    for row in rows:
        shown = [f"{key} {row[key]:.3f}" for key in CURVE if row.get(key) is not None]
        click.echo(f"step {row['step']}: {row['failure'] or ', '.join(shown)}")
    click.echo(f"written: {watched.out}")
