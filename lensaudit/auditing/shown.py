"""A result in a notebook: its examples and layers as frames, a table, a picture.

Everything is read from the files of the result, so that a result from disk shows the same. pandas
and matplotlib are imported when they are asked for.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lensaudit.verdict.words import said

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ("layer", "n_ke", "s1", "s2", "erasure", "s1_em", "s2_em")


class Shown:
    """What the result of patching one model shows of itself."""

    @property
    def _run(self) -> tuple[str, Path, Mapping[str, Any]]:
        """Name of the model, folder of the patching run, and its summary."""
        raise NotImplementedError

    @property
    def examples(self) -> "pd.DataFrame":
        """A row per example: text, score, or why it has none; see `la.frames.examples`."""
        from lensaudit.results import frames

        return frames.examples(self._run[1])

    @property
    def layers(self) -> "pd.DataFrame":
        """A row per example and layer: S1, S2, erasure; see `la.frames.layers`."""
        from lensaudit.results import frames

        return frames.layers(self._run[1])

    def plot(self, what: str = "layers", *, ax: "Axes | None" = None) -> "Axes":
        """Draw S1 and S2 by `layers`, the erasure of `examples`, or the `depth` with its interval.

        Of exact match S1 and S2 are the shares of the answer that are lost.

        `.figure.savefig(…)` of what is returned keeps the picture.

        Raises:
            InputError: matplotlib is not installed.
            ValueError: there is no such picture.
        """
        from lensaudit.results import plot

        pictures = {"layers": plot.layer_profile, "examples": plot.heatmap, "depth": plot.depth}
        if what not in pictures:
            raise ValueError(f"{what!r}: wanted one of {', '.join(pictures)}")
        return pictures[what](self._run[1], ax=ax)

    def _repr_html_(self) -> str:
        """The verdict, and S1, S2 and erasure by layer, for Jupyter."""
        source, folder, summary = self._run
        if summary["score"] == "em":
            words = f"{source}: exact-match erasure {_number(summary['udr'])}"
        else:
            words = said(summary)
        known = [key for key in _COLUMNS if key in _first(summary)]
        rows = "".join(
            f"<tr>{''.join(f'<td>{_number(one[key])}</td>' for key in known)}</tr>"
            for one in summary["per_layer"]
        )
        head = "".join(f"<th>{key}</th>" for key in known)
        where = escape(str(folder))
        return (
            f"<p>{escape(words)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
            f"</table><p><small>{summary['n_scored']} of {summary['n']} examples scored; "
            f"<code>{where}</code></small></p>"
        )


def _first(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(summary["per_layer"]), {})


def _number(value: float | int | None) -> str:
    """Three decimals; whole numbers as they are, a dash for none.

    >>> _number(0.12345), _number(3), _number(None)
    ('0.123', '3', '–')
    """
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
