"""Pictures of results for a notebook or a paper (matplotlib, extra `plot`)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lensaudit.doors.frames import Place, curves, efforts, layers, summaries
from lensaudit.errors import InputError, need
from lensaudit.results.owner import short_name
from lensaudit.scores.intervals import clustered_mean
from lensaudit.screen.steer import moves
from lensaudit.settings import COUNTERFACTUAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lensaudit.kinds.steering import TraitMatrix

Results = Place | pd.DataFrame
"""A place of results, or a frame that `lensaudit.doors.frames` made of them."""


def layer_profile(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """Mean S1 and S2 delta by layer, nats per token, with 95 % intervals by authors (from 5 on).

    S1 is drawn dashed: how much `retain` lacks. A source whose S2 follows it is erased; one that
    stays at 0 is hidden. Of exact match it is the share of the answer that is lost. Where S2 was
    computed at KE layers only, both are means over the facts that the layer encodes.
    """
    frame = _layers(results)
    lacks_s2 = frame["s2"].isna()
    patched = set(frame["source"][~lacks_s2])
    at_ke = not patched.isdisjoint(frame["source"][lacks_s2])
    if at_ke:
        frame = pd.DataFrame(frame[frame["erasure"].notna()])
    ax = _axes(ax)
    known = list(frame["source"].unique())
    anchor = "another question" if _is(frame, COUNTERFACTUAL) else "retain"
    _line(ax, _of(frame, known[0]), "s1", f"S1 ({anchor})", linestyle="--", color="black")
    for source in known:
        _line(ax, _of(frame, source), "s2", f"S2 ({_text(source)})")
    ax.set_xlabel("layer, means over the facts encoded there" if at_ke else "layer")
    ax.set_ylabel("exact match lost" if _is(frame, "em") else "delta, nats per token")
    ax.legend(frameon=False)
    return ax


def heatmap(results: Results, *, source: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Erasure of one source by example and layer; grey where no layer encodes the fact.

    Examples are sorted by their mean erasure, the least erased on top.

    Raises:
        InputError: several sources, and none or an unknown one is named.
    """
    frame = _layers(results)
    known = list(frame["source"].unique())
    if (source is None and len(known) > 1) or source not in (None, *known):
        raise InputError(f"source={source!r}; wanted one of {', '.join(map(str, known))}")
    table = _of(frame, source or known[0]).pivot(index="idx", columns="layer", values="erasure")
    table = table.loc[table.mean(axis=1).sort_values().index]
    ax = _axes(ax)
    ax.set_facecolor("0.85")
    image = ax.imshow(table.to_numpy(), aspect="auto", vmin=0, vmax=1, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="erasure: 0 held, 1 erased")
    ax.set_xticks(range(len(table.columns)), [str(layer) for layer in table.columns])
    ax.set_yticks(range(len(table)), [str(idx) for idx in table.index])
    ax.yaxis.set_tick_params(labelsize=max(3, min(8, 240 // max(1, len(table)))))
    ax.set(xlabel="layer", ylabel="idx", title=_text(source or known[0]))
    return ax


def depth(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """One point per run with its 95 % interval, sorted; 0 holds everything, 1 nothing.

    UDS where it was measured, else the first other score.

    Raises:
        InputError: a frame of something else.
    """
    frame = results if isinstance(results, pd.DataFrame) else summaries(results)
    if lacking := {"source", "value", "low", "high"} - set(frame.columns):
        raise InputError(f"wanted the frame of frames.summaries(); it lacks {sorted(lacking)}")
    frame = _of_one_score(frame)
    frame = frame.dropna(subset=["value"]).sort_values("value", ignore_index=True)
    ax = _axes(ax)
    places = range(len(frame))
    ax.hlines(places, frame["low"], frame["high"], color="0.6")
    ax.plot(frame["value"], places, "o")
    ax.set_yticks(list(places), [_text(source) for source in frame["source"]])
    label = next((said for score, said in _DEPTHS.items() if _is(frame, score)), _DEPTH)
    ax.set(xlim=(-0.02, 1.02), xlabel=label)
    return ax


_DEPTH = "unlearning depth: 0 held, 1 erased"
_DEPTHS = {
    "em": "depth by exact match: 0 held, 1 erased",
    "lens": "depth by the Logit Lens: 0 held, 1 erased",
    COUNTERFACTUAL: "depth beside another question's stream: 0 held, high means nothing",
}
"""Scores that are not UDS, as the axis calls them."""


def effort(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """Recovery rho by optimiser steps, a line per source and arm; the band reaches to its limit.

    The limits of a curve hold together over all steps. Dotted: E50 and E80.
    """
    frame = results if isinstance(results, pd.DataFrame) else efforts(results)
    ax = _axes(ax)
    for (source, arm), rows in _by(frame, "arm"):
        rows = rows.dropna(subset=["rho"])
        (line,) = ax.plot(rows["c"], rows["rho"], "o-", label=f"{_text(source)}, {arm}")
        low = rows["low"].fillna(rows["rho"])
        ax.fill_between(rows["c"], low, rows["rho"], color=line.get_color(), alpha=0.15)
    for share in (0.5, 0.8):
        ax.axhline(share, color="0.6", linestyle=":", linewidth=1)
    ax.set_xscale("symlog", base=2, linthresh=1)
    ax.set(xlabel="optimiser steps", ylabel="recovery rho: 0 retain, 1 full")
    ax.legend(frameon=False)
    return ax


def curve(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """UDS, utility and recovery by optimiser step, a line per source and series.

    Of the training runs that `watch` followed, and of the attacks of `effort`; epochs stand below
    the steps where the trainer wrote them.
    """
    frame = results if isinstance(results, pd.DataFrame) else curves(results)
    ax = _axes(ax)
    for (source, series), rows in _by(frame, "series"):
        rows = rows.sort_values("step")
        style = "s--" if str(series).startswith("recovery") else "o-"
        ax.plot(rows["step"], rows["value"], style, label=f"{_text(source)}: {_text(series)}")
    known = frame.dropna(subset=["epoch"]).drop_duplicates("step").sort_values("step")
    if len(known):
        labels = [f"{s}\n({e:g})" for s, e in zip(known["step"], known["epoch"], strict=True)]
        ax.set_xticks(known["step"], labels)
    what = "optimiser steps (epochs)" if len(known) else "optimiser steps"
    ax.set(ylim=(-0.05, 1.05), xlabel=what, ylabel="0 to 1")
    ax.legend(frameon=False)
    return ax


def traits(matrix: "TraitMatrix", *, ax: "Axes | None" = None) -> "Axes":
    """What steering each trait does to the judged score of every other, points of 100.

    A row for each direction, a column for each trait that was asked; bold where the change leaves
    out 0, and where that against random directions as long does too.
    """
    asked, rows = list(matrix.baseline), list(matrix.steered)
    cells = [[matrix.steered[row].judged[one] for one in asked] for row in rows]
    values = np.array(
        [[np.nan if one.delta is None else one.delta for one in row] for row in cells]
    )
    ax = _axes(ax)
    ax.set_facecolor("0.85")
    image = ax.imshow(values, cmap="RdBu_r", vmin=-100, vmax=100, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="change of the score, points")
    for (at, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            how: dict[str, Any] = {"color": "white" if abs(value) > _DARK else "black"}
            how["fontweight"] = "bold" if moves(cells[at][column]) else "normal"
            ax.text(column, at, f"{value:.0f}", ha="center", va="center", **how)
    ax.set_xticks(range(len(asked)), [_text(one) for one in asked], rotation=45, ha="right")
    ax.set_yticks(range(len(rows)), [_text(one) for one in rows])
    ax.set(xlabel="asked and judged", ylabel="steered by")
    return ax


_DARK = 60.0
"""Points from which a cell is so dark that its number is white."""


def _by(frame: pd.DataFrame, column: str) -> Any:
    """Source and value of a column, and the rows of both, in order of appearance."""
    return frame.groupby(["source", column], sort=False)


def _line(ax: "Axes", rows: pd.DataFrame, column: str, label: str, **style: Any) -> None:
    """Mean by layer and the band of its interval; layers that were not computed are left out."""
    rows = rows.dropna(subset=[column])
    known = sorted(rows["layer"].unique())
    by_layer = (rows[rows["layer"] == layer] for layer in known)
    found = [clustered_mean(list(o[column]), list(o["group"]), bounds=None) for o in by_layer]
    (line,) = ax.plot(known, [one.point for one in found], label=label, **style)
    ends = np.array([one.ends or (np.nan, np.nan) for one in found]).reshape(-1, 2)
    ax.fill_between(known, ends[:, 0], ends[:, 1], color=line.get_color(), alpha=0.15, linewidth=0)


def _layers(results: Results) -> pd.DataFrame:
    frame = _of_one_score(results if isinstance(results, pd.DataFrame) else layers(results))
    if _is(frame, "em"):
        lost = {name: 1 - frame[f"{name}_em"] for name in ("s1", "s2")}
        ft = frame["s1_lost"] == 1
        frame = frame.assign(**lost, erasure=np.where(ft, frame["s2_lost"], np.nan))
    lacking = {"source", "idx", "group", "layer", "s1", "s2", "erasure"} - set(frame.columns)
    if lacking or frame.empty:
        raise InputError(
            f"wanted the frame of frames.layers(); it lacks {sorted(lacking) or 'rows'}"
        )
    twice = frame["source"][frame.duplicated(subset=["source", "idx", "layer"])]
    if len(twice):
        raise InputError(f"several runs of {next(iter(twice))}; name the folder of one")
    return frame


def _of_one_score(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of UDS; where there are none, those of the first score."""
    if "score" in frame and len(frame):
        scores = list(frame["score"].unique())
        frame = pd.DataFrame(frame[frame["score"] == ("uds" if "uds" in scores else scores[0])])
    return frame


def _is(frame: pd.DataFrame, score: str) -> bool:
    """Whether it is of this score alone: `em` has no nats, `counterfactual` no retain."""
    return "score" in frame and set(frame["score"]) == {score}


def _of(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    return pd.DataFrame(frame[frame["source"] == source])


def _text(source: Any) -> str:
    """A name without what matplotlib would set as a formula; of a folder its last part."""
    name = str(source)
    return short_name(name).replace("$", r"\$")


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    need("matplotlib", called="matplotlib", extra="plot")
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
