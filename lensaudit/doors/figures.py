"""Pictures and tables of results for a paper: PDF and PNG, and LaTeX without packages."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lensaudit.doors.frames import PATCHED, called
from lensaudit.errors import InputError
from lensaudit.files import check_output, make_folder, write_bytes
from lensaudit.groups import grouped
from lensaudit.report.shelf import lacking, told_apart, told_names
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.kinds.patch import PatchRun
from lensaudit.results.locate import Found, locate
from lensaudit.results.reading import SUMMARY
from lensaudit.results.sentences import shown
from lensaudit.screen.cells import name as line_of
from lensaudit.text import digest, slug
from lensaudit.verdict.collect import Called, names_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 200
_MADE_BY = "lensaudit report --figures"
"""In each file: what is written again without asking."""
_METADATA: Mapping[str, dict[str, str | None]] = {
    # without the hour a file is the same whenever it is made
    "pdf": {"Creator": _MADE_BY, "CreationDate": None},
    "png": {"Software": _MADE_BY},
}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "·": r"\textperiodcentered{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def write_figures(places: Iterable[Path], folder: Path, *, force: bool = False) -> list[Path]:
    """Draw the runs found in some places into `folder`; the files written.

    `depth.*` has every score with its interval, `<model>-layers.*` S1 and S2 by layer,
    `<model>-examples.*` the erasure of every example; `traits.*` what steering a
    trait does to every other; `depth.tex` and `metrics.tex` are tables.

    Args:
        places: of the runs.
        folder: of the pictures; made where it is not there.
        force: write over files that were not made by this.

    Raises:
        InputError: there is nothing to draw, matplotlib is not installed, or a file of one of
            these names is somebody else's.
    """
    found, _ = locate(places)
    runs = [one.record for one in found if one.kind in PATCHED]
    evals = [one.record for one in found if one.kind == "eval"]
    matrices = [one for one in found if one.kind == "traits"]
    if not runs and not evals and not matrices:
        raise InputError(
            "no figures: none of these is a result of `lensaudit patch`, `eval` or `steer cross`"
        )
    label = _labelled([*runs, *evals], called(found))
    made = {"metrics.tex": metrics_table(evals, label).encode()} if evals else {}
    if runs:
        made |= {"depth.tex": depth_table(runs, label).encode(), **_pictures(runs, label)}
    for one in matrices:
        made |= _matrix(one, alone=len(matrices) == 1)
    make_folder(folder)
    for name in made:  # before the first is written
        check_output(folder / name, ours=lambda content: _MADE_BY.encode() in content, force=force)
    return [write_bytes(folder / name, content) for name, content in made.items()]


def depth_table(runs: Sequence[PatchRun], label: Mapping[Path, str] | None = None) -> str:
    """A row for each run: its score, the 95 % interval, and how many examples have one.

    Args:
        runs: of `patch`.
        label: folder -> what its model is called beside other results; None: beside these.
    """
    label = label or _labelled(runs)
    rows = [
        [
            label[run.folder],
            run.score.upper(),
            _number(run.estimate.value),
            ("[{:.3f}, {:.3f}]".format(*ends) if (ends := run.estimate.ends) else run.estimate.why)
            or "--",
            f"{run.n_scored}/{run.n}",
        ]
        for run in sorted(runs, key=lambda one: (one.estimate.value is None, one.estimate.value))
    ]
    return latex(["Model", "Score", "Value", r"95\,\% interval", "Scored"], rows, "llrlr")


def metrics_table(
    evals: Sequence[EvaluationResult], label: Mapping[Path, str] | None = None
) -> str:
    """A row for each metric that some model has a value of, a column for each model.

    Numbers have their 95 % intervals; comments below say why one has none, or no value.

    Args:
        evals: evaluations.
        label: as of `depth_table`.
    """
    label = label or _labelled(evals)
    found, told = dict[str, list[str]](), list[str]()
    for at, run in enumerate(evals):
        for name, entry in run.entries.items():
            cell = "--" if entry.value is None else shown(entry, 3)
            found.setdefault(name, ["--"] * len(evals))[at] = cell
            told += [f"{name} of {label[run.folder]}: {why}"] if (why := lacking(entry)) else []
    rows = [[name, *cells] for name, cells in found.items() if {*cells} != {"--"}]
    head = ["Metric", *(escaped(label[run.folder]) for run in evals)]
    notes = "".join(f"% {line_of(one)}\n" for one in told)
    return latex(head, rows, "l" + "r" * len(evals)) + notes


def latex(head: Sequence[str], rows: Sequence[Sequence[str]], columns: str) -> str:
    """A table in plain LaTeX; `head` is LaTeX already, cells are text."""
    # the end of a row takes a bracket or a star that follows for its own
    starts = [re.sub(r"^[\[*]", r"{\g<0>}", " & ".join(map(escaped, row))) for row in rows]
    lines = [row + r" \\" for row in starts]
    return "\n".join(
        [
            f"% {_MADE_BY}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\hline",
            " & ".join(head) + r" \\",
            r"\hline",
            *lines,
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def escaped(text: str) -> str:
    r"""Text as LaTeX sets it.

    >>> print(escaped("npo_lr5e-5 & 10%"))
    npo\_lr5e-5 \& 10\%
    """
    return "".join(_LATEX.get(sign, sign) for sign in line_of(text))


def _pictures(runs: Sequence[PatchRun], label: Mapping[Path, str]) -> dict[str, bytes]:
    from lensaudit.doors import frames, plot

    made: dict[str, bytes] = {}
    for score in dict.fromkeys(run.score for run in runs if run.estimate.value is not None):
        alike = [run for run in runs if run.score == score]
        # the file of a run, not its folder, in which others may lie
        table = frames.summaries(*(run.folder / SUMMARY for run in alike))
        table["source"] = [label[Path(folder)] for folder in table["folder"]]
        made |= dict(_drawn(plot.depth(table), "depth" if score == "uds" else f"depth-{score}"))
    names = [slug(run.source) for run in runs]
    for run, short in zip(runs, names, strict=True):
        if run.score == "em":
            continue  # shares of tokens, not deltas
        name = short if names.count(short) == 1 else f"{short}-{digest(str(run.folder))[:6]}"
        table = frames.layers(run.folder / SUMMARY)
        made |= dict(_drawn(plot.layer_profile(table), f"{name}-layers"))
        made |= dict(_drawn(plot.heatmap(table), f"{name}-examples"))
    return made


def _labelled(
    results: Sequence[PatchRun | EvaluationResult], names: Called | None = None
) -> dict[Path, str]:
    """Folder -> what its model is called, as the page calls it: two of one name by their weights.

    Several results of one model and score have their folders beside it too; what another score
    says of it stands in another column or table.
    """
    shown = told_names(names or names_of((one, one.weights, one.folder) for one in results))
    kinds = ((getattr(one, "score", ""), one.weights) for one in results)
    found: dict[Path, str] = {}
    for alike in grouped(zip(kinds, results, strict=True)).values():
        parts = told_apart([one.folder for one in alike])
        for one, part in zip(alike, parts, strict=True):
            beside = f" · {part}" if len(alike) > 1 else ""
            found[one.folder] = shown[one.weights] + beside
    return found


def _matrix(found: Found, *, alone: bool) -> dict[str, bytes]:
    """The picture of one matrix of traits; of several each has its folder's hash in its name."""
    from lensaudit.doors import plot

    name = "traits" if alone else f"traits-{digest(str(found.path.parent))[:6]}"
    return dict(_drawn(plot.traits(found.record), name))


def _drawn(axes: "Axes", name: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of the file of each format."""
    from io import BytesIO

    from matplotlib import pyplot

    figure: Any = axes.figure
    for form, metadata in _METADATA.items():
        content = BytesIO()
        figure.savefig(content, format=form, dpi=DPI, metadata=metadata)
        yield f"{name}.{form}", content.getvalue()
    pyplot.close(figure)


def _number(value: float | None) -> str:
    return "--" if value is None else f"{value:.3f}"
