"""One unit from its checkpoint to its published result."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lensaudit.errors import InputError, TryAgainError
from lensaudit.files import make_folder, write_json
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.results.records import git_commit
from lensaudit.sweep.layout import Layout
from lensaudit.sweep.measure import SweepSubject, measure, resolved
from lensaudit.sweep.plan import Plan, Target, Unit
from lensaudit.sweep.results import prepared, publish
from lensaudit.sweep.room import Room
from lensaudit.sweep.variants import made

Obtain = Callable[[Target], Path | None]
"""A target's files as a folder; None where the usual ways find them."""


def run_unit(layout: Layout, plan: Plan, unit: Unit, obtain: Obtain, room: Room) -> None:
    """Do a unit and publish it. What is finished of it is kept if it fails.

    Raises:
        LensAuditError: it has no result.
    """
    started = time.monotonic()
    if prepared(layout, unit) is not None:
        publish(layout, unit, None)
        return
    work = make_folder(layout.work(unit.id))
    subject = stage(layout, plan, unit, work, obtain)
    values = measure(subject, plan.conditions, work, room)
    target = plan.by_name[unit.target]
    publish(
        layout,
        unit,
        {
            "plan": plan.hash,
            "role": target.role,
            "method": target.method,
            "repo": target.repo,
            "revision": target.revision,
            **resolved(work),
            "halvings": room.halvings,
            "values": values,
            "seconds": round(time.monotonic() - started, 3),
            "git_commit": git_commit(),
        },
    )


def stage(layout: Layout, plan: Plan, unit: Unit, work: Path, obtain: Obtain) -> SweepSubject:
    """Everything a unit reads, by name, in a registry file of its own.

    Raises:
        InputError: a checkpoint is missing, or is not the planned one.
        TryAgainError: the retain model is not done yet.
    """
    target = plan.by_name[unit.target]
    names = {role: plan.anchors[role] for role in ("full", "retain")}
    anchors = {role: plan.by_name[name] for role, name in names.items()}
    folders = {one.name: obtain(one) for one in (*anchors.values(), target)}
    entries = {one.name: one.entry(folders[one.name]) for one in (*anchors.values(), target)}
    registry = write_json(work / "registry.json", entries)
    known = load_registry(registry)
    for one in (*anchors.values(), target):
        _check(one, open_checkpoint(resolve(one.name, known)))
    if unit.variant != "base":
        start = open_checkpoint(resolve(target.name, known))
        out = work / "checkpoint"
        folder = made(start, unit.variant, plan.conditions, out)
        for role, name in names.items():
            if name == target.name:  # the attacked anchor is not the anchor any more
                names[role] = f"{name}-unattacked"
                entries[names[role]] = entries[name]
        # an adapter is merged into what was attacked
        entries[target.name] = replace(target, adapter=None).entry(folder)
        registry = write_json(work / "registry.json", entries)
    return SweepSubject(
        name=target.name,
        full=names["full"],
        retain=names["retain"],
        registry=registry,
        retain_log=_retain_log(layout, plan, unit),
    )


def _retain_log(layout: Layout, plan: Plan, unit: Unit) -> Path | None:
    """The log that comparisons with the retain model read; None for the unit that makes it."""
    anchor = plan.anchor_units()[0]
    if unit == anchor:
        return None
    log = layout.unit(anchor.id) / "eval" / f"{plan.conditions.suite.upper()}_EVAL.json"
    if not log.exists():
        raise TryAgainError(
            f"{unit.label}: waits for the retain model {anchor.target}, which is not done; "
            "run the sweep again"
        )
    return log


def _check(target: Target, found: Checkpoint) -> None:
    if target.weights is not None and found.weights != target.weights:
        raise InputError(
            f"{target.name}: {found.folder} holds other weights than when the plan was made; "
            "plan again, in another folder"
        )
