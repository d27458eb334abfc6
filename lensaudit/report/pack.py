"""Tables of numbers as base64: what the page decodes when it is looked at, not when it loads."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GAP = -32768
"""Stands for no number in a stepped table."""
GAP_SHARE = 255
"""Stands for no number among shares."""

Table = Sequence[Sequence[float | None]] | Sequence[float | None] | NDArray[np.float64]


@dataclass(frozen=True)
class Stepped:
    """Rounded numbers: value = step * whole number of 16 bits."""

    step: float
    base64: str


def array(rows: Table) -> NDArray[np.float64]:
    """Numbers with NaN for gaps."""
    return np.array(rows, dtype=np.float64)


def floats(rows: Table) -> str:
    """Little-endian float32, row by row; NaN for gaps."""
    return _text(array(rows).astype("<f4"))


def stepped(rows: Table) -> Stepped:
    """16-bit steps of 1/32767 of the largest magnitude.

    >>> stepped([[1.0, None], [-0.5, 0.0]]).step == 1 / 32767
    True
    """
    values = array(rows)
    largest = np.nanmax(np.abs(values), initial=0.0, where=np.isfinite(values))
    step = float(largest) / 32767 or 1.0
    whole = np.where(np.isfinite(values), np.rint(values / step), GAP)
    return Stepped(step, _text(whole.astype("<i2")))


def shares(rows: Table) -> str:
    """Numbers from 0 to 1 in steps of 1/254, one byte each; 255 for gaps."""
    values = array(rows)
    whole = np.where(np.isfinite(values), np.rint(values.clip(0, 1) * 254), GAP_SHARE)
    return _text(whole.astype("u1"))


def _text(values: NDArray) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")
