"""Mechanisms by auditors as a picture: where is each auditor right?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lensaudit.errors import InputError
from lensaudit.files import os_error
from lensaudit.gym.table import Judgement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heat_map(found: Sequence[Judgement], path: Path) -> Path:
    """Write the area of every auditor on every mechanism; .5 is white, a coin.

    Raises:
        InputError: matplotlib is absent, or the file's ending is not one that it writes.
    """
    try:
        figure = drawn(found)
        figure.savefig(path, bbox_inches="tight", dpi=150, metadata={"Date": None})
    except ImportError as error:
        raise InputError("--picture: needs matplotlib; pip install 'lensaudit[plot]'") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; name it .svg") from error
    except OSError as error:
        raise os_error(error, path) from error
    return path


def drawn(found: Sequence[Judgement]) -> "Figure":
    """The picture."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for one in found for name in one.by_mechanism))
    figure = Figure(figsize=(1.5 + 0.55 * len(found), 1.2 + 0.28 * len(names)))
    axes = figure.subplots()
    areas = [
        [one.by_mechanism[name].auc if name in one.by_mechanism else float("nan") for one in found]
        for name in names
    ]
    axes.imshow(areas, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    for row, values in enumerate(areas):
        for column, value in enumerate(values):
            dark = value < 0.2 or value > 0.8
            text = "–" if value != value else f"{value:.2f}"
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=7,
            )
    axes.set_xticks(range(len(found)), [one.auditor for one in found], rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title("AUC of telling a mechanism from models that never saw the facts", fontsize=9)
    return figure
