"""What patching found: the results of a run, as its folders hold them.

Examples and layers as frames, a table and a picture are read from the same files; pandas and
matplotlib are imported when they are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lensaudit.errors import InputError
from lensaudit.results.patch_runs import SCORES, read_shown
from lensaudit.results.reading import csv_rows
from lensaudit.results.records import COMPARISON, RunResult
from lensaudit.settings import Score
from lensaudit.verdict.decide import Verdict
from lensaudit.verdict.depth import calibration_problem
from lensaudit.verdict.words import said

SUMMARY = "summary.json"


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
        layers: Sequence[Mapping[str, Any]] = summary["per_layer"]
        known = [key for key in _COLUMNS if layers and key in layers[0]]
        rows = "".join(
            f"<tr>{''.join(f'<td>{_number(one[key])}</td>' for key in known)}</tr>"
            for one in layers
        )
        head = "".join(f"<th>{key}</th>" for key in known)
        where = escape(str(folder))
        return (
            f"<p>{escape(words)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
            f"</table><p><small>{summary['n_scored']} of {summary['n']} examples scored; "
            f"<code>{where}</code></small></p>"
        )


class PatchResult(Shown, RunResult):
    """What patching found of one model, and where it is: results.jsonl and layers.csv, too."""

    @property
    def _run(self) -> tuple[str, Path, Mapping[str, Any]]:
        return self.source, self.folder, self.summary

    @property
    def score(self) -> Score | Literal["counterfactual"]:
        """Kind of score that was computed; `counterfactual` is that of a run without retain."""
        return self.summary["score"]

    @property
    def value(self) -> float | None:
        """The score; None where no example could be scored: `reason` says why."""
        return self.summary[SCORES[self.score]]

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, 0 intact to 1 erased; None where there is none: see `reason`."""
        return self.value if self.score == "uds" else None

    @property
    def aligned(self) -> float | None:
        """UDS after a map to `full`'s basis: all there is of a source of another size; or None."""
        return self.summary.get("aligned", {}).get("uds")

    @property
    def found_nothing(self) -> bool:
        """Is there no depth at all, neither plain nor aligned?"""
        return self.value is None and self.aligned is None

    @property
    def verdict(self) -> Verdict:
        """What may be said of the model, and what decided it."""
        return Verdict(**self.summary["verdict"])

    @property
    def off(self) -> str | None:
        """What is wrong with the scale of this run; None where its depths may be read."""
        if self.uds is None and self.aligned is None:
            return None
        return calibration_problem(self.summary["calibration"])

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `value` by authors; None where there is none: `summary["ci95_why"]`."""
        ends = self.summary["ci95"]
        return None if ends is None else (ends[0], ends[1])

    @property
    def unscored(self) -> Mapping[int, str]:
        """Idx -> why this example has no score."""
        return {int(idx): why for idx, why in self.summary["unscored"].items()}

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        if self.uds is not None:
            return None
        if self.value is not None:
            return f"the score is {self.score}; UDS was not asked for"
        first = next(iter(self.unscored.values()), "")
        return f"no example could be scored ({first})"


@dataclass(frozen=True)
class Patched:
    """The results of one run."""

    results: tuple[PatchResult, ...]
    comparison: tuple[Sequence[Any], ...] = ()
    """Paired differences between the models, the rows of comparison.csv; of several only."""


def read_patched(folders: Mapping[str, Path]) -> Patched:
    """The results of a finished run.

    Args:
        folders: of each source; of several, beside their comparison if the score has one.

    Raises:
        InputError: a file is missing or damaged.
    """
    results = [PatchResult(name, one, read_shown(one / SUMMARY)) for name, one in folders.items()]
    table = next(iter(folders.values())).parent / COMPARISON
    if len(results) == 1 or results[0].score == "em":
        return Patched(tuple(results))
    try:
        rows = zip(combinations(folders, 2), csv_rows(table), strict=True)
        return Patched(tuple(results), tuple(_pair(names, row) for names, row in rows))
    except ValueError as error:
        raise InputError(f"{table}: holds other rows than pairs of these models") from error


def _pair(names: tuple[str, str], row: Mapping[str, str]) -> list[Any]:
    """A row of comparison.csv; names as they were given, which a table may spell otherwise."""
    *numbers, n, n_groups, why = list(row.values())[2:]
    return [*names, *(float(one) if one else "" for one in numbers), int(n), int(n_groups), why]


if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
    from matplotlib.axes import Axes

_COLUMNS = ("layer", "n_ke", "s1", "s2", "erasure", "s1_em", "s2_em")


def _number(value: float | int | None) -> str:
    """Three decimals; whole numbers as they are, a dash for none.

    >>> _number(0.12345), _number(3), _number(None)
    ('0.123', '3', '–')
    """
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
