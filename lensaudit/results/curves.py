"""How do depth, utility and recovery go, step by step? Of a training run, and of an attack."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.attacks import effort_run
from lensaudit.results.schema import Number, Whole, checked_as

SERIES = ("uds", "model_utility")
"""What is drawn of a training run; all of them stand in zero to one."""


@dataclass(frozen=True)
class CurvePoint:
    """A value after so many optimiser steps."""

    source: str
    """The training run's folder, or the model under attack."""
    series: str
    """A metric, or `recovery` with the arm of the attack."""
    step: int
    value: float
    epoch: float | None = None
    """As the trainer counted them; None: it did not say."""


@dataclass(frozen=True)
class _Row:
    """A row of `curve.json`, beside its metrics."""

    step: Whole
    epoch: Number | None = None


def training_curve(path: Path, series: tuple[str, ...] = SERIES) -> list[CurvePoint]:
    """The points of `curve.json`, which `lensaudit watch` writes; gaps are left out.

    Raises:
        InputError: the file holds no such rows.
    """
    content = read_json(path)
    rows = checked_as(list[_Row], content, path)
    return [
        CurvePoint(path.parent.name, name, row.step, value, row.epoch)
        for row, values in zip(rows, content, strict=True)
        for name in series
        if (value := checked_as(Number | None, values.get(name), f"{path}: {name}")) is not None
    ]


def recovery_curve(path: Path) -> list[CurvePoint]:
    """Recovery rho by step of every arm of `lensaudit effort`.

    Raises:
        InputError: as `effort_run`.
    """
    return list(_recovery(path))


def _recovery(path: Path) -> Iterator[CurvePoint]:
    run = effort_run(path)
    for arm, found in run.arms.items():
        for one in found.curve:
            if one.rho is not None:
                yield CurvePoint(run.model, f"recovery {arm}", one.c, one.rho)


def read_curve(path: Path) -> dict[str, Any]:
    """The curve of a training run as the page reads it.

    Raises:
        InputError: as `training_curve`.
    """
    points = [vars(one) for one in training_curve(path)]
    if not points:
        raise InputError(f"{path}: holds neither {' nor '.join(SERIES)}")
    return {"folder": str(path.parent), "points": points}
