"""`la.patch`, `la.audit` and `la.evaluate`.

Depths show themselves, as frames, as pictures and in notebooks; pandas and matplotlib are imported
when they are asked for.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lensaudit.ask.door import door, places_for
from lensaudit.association.calls import WHO_HAS_WHAT
from lensaudit.auditing.calls import audited, evaluated, patched
from lensaudit.auditing.result import AuditResult, EvaluationResult, PatchResult
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.doors.outside import entered
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Tell
from lensaudit.screen.cells import number

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
    from matplotlib.axes import Axes

notice = logging.getLogger(__name__).warning
"""Remarks on a result; without a handler Python prints them on stderr."""

_COLUMNS = ("layer", "n_ke", "s1", "s2", "erasure", "s1_em", "s2_em")


class Shown(PatchResult):
    """Depths of one model that show themselves."""

    @property
    def _place(self) -> Path:
        """Folder of the patching run."""
        return self.patch.folder if isinstance(self, AuditResult) else self.folder

    @property
    def examples(self) -> "pd.DataFrame":
        """A row per example: text, score, or why it has none; see `la.frames.examples`."""
        from lensaudit.doors import frames

        return frames.examples(self._place)

    @property
    def layers(self) -> "pd.DataFrame":
        """A row per example and layer: S1, S2, erasure; see `la.frames.layers`."""
        from lensaudit.doors import frames

        return frames.layers(self._place)

    def plot(self, what: str = "layers", *, ax: "Axes | None" = None) -> "Axes":
        """Draw S1 and S2 by `layers`, the erasure of `examples`, or the `depth` with its interval.

        Of exact match S1 and S2 are the shares of the answer that are lost.

        `.figure.savefig(…)` of what is returned keeps the picture.

        Raises:
            InputError: matplotlib is not installed.
            ValueError: there is no such picture.
        """
        from lensaudit.doors import plot

        pictures = {"layers": plot.layer_profile, "examples": plot.heatmap, "depth": plot.depth}
        if what not in pictures:
            raise ValueError(f"{what!r}: wanted one of {', '.join(pictures)}")
        return pictures[what](self._place, ax=ax)

    def _repr_html_(self) -> str:
        """The verdict, and S1, S2 and erasure by layer, for Jupyter."""
        from lensaudit.screen.depth import said

        one = replace(self.record, verdict=self.verdict)
        if self.score == "em":
            words = f"{self.source}: exact-match erasure {_number(one.udr)}"
        else:
            words = said(one)
        layers: Sequence[Mapping[str, Any]] = one.per_layer
        known = [key for key in _COLUMNS if layers and key in layers[0]]
        rows = "".join(
            f"<tr>{''.join(f'<td>{_number(row[key])}</td>' for key in known)}</tr>"
            for row in layers
        )
        head = "".join(f"<th>{key}</th>" for key in known)
        return (
            f"<p>{escape(words)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
            f"</table><p><small>{one.n_scored} of {one.n} examples scored; "
            f"<code>{escape(str(self._place))}</code></small></p>"
        )


class ShownPatch(Shown):
    """What patching found of one model; `examples`, `layers` and `plot()` show it."""


@dataclass(frozen=True)
class ShownAudit(AuditResult, Shown):
    """What an audit found of one model; `examples`, `layers` and `plot()` show its depths."""


def _number(value: float | int | None) -> str:
    """Three decimals; whole numbers as they are, a dash for none.

    >>> _number(0.12345), _number(3), _number(None)
    ('0.123', '3', '–')
    """
    return str(value) if isinstance(value, int) else number(value)


def shown(one: PatchResult) -> ShownPatch:
    """The result in the form that displays itself."""
    return ShownPatch(one.source, one.folder, one.record)


def shown_audit(one: AuditResult) -> ShownAudit:
    """The result in the form that displays itself."""
    given = {field.name: getattr(one, field.name) for field in fields(one)}
    return ShownAudit(**{**given, "patch": shown(one.patch)})


@door(PatchSettings)
def patch(
    source: tuple[str, ...], settings: PatchSettings, out: Path | None, progress: Tell
) -> Sequence[ShownPatch]:
    """Patch models into `full`, layer by layer, and score how deep the knowledge is erased.

    As `lensaudit patch`: `out` is experiments/out/<source>, and anchors and forget set are those of
    the models' family where none is named.

    >>> la.patch("demo/npo", out="npo", limit=8, layers="8-15").uds  # doctest: +SKIP
    0.09
    """
    found = patched(source, settings, out, notice=notice, progress=progress)
    return list(map(shown, found))


@door(AuditSettings)
def audit(
    source: tuple[str, ...], settings: AuditSettings, out: Path | None, progress: Tell
) -> Sequence[ShownAudit]:
    """Everything about some models: how deep the knowledge is erased, and what they still say.

    As `lensaudit audit` without its page: `out` is experiments/out/audit-<source>, and anchors and
    data are those of the models' family where none is named. A step that fails is among the
    `failures` of a result; the rest is there. Called again it goes on where it was.

    >>> result = la.audit("demo/npo", out="npo", limit=8)  # doctest: +SKIP
    >>> result.uds, result.ci95, result.metrics["forget_Q_A_Prob"]  # doctest: +SKIP
    (0.09, (0.01, 0.17), 0.04)
    """
    found = audited(source, settings, out, who=WHO_HAS_WHAT, notice=notice, progress=progress)
    return list(map(shown_audit, found.results))


@door(EvaluateSettings)
def evaluate(
    source: tuple[str, ...], settings: EvaluateSettings, out: Path | None, progress: Tell
) -> Sequence[EvaluationResult]:
    """Compute the metrics of a suite: what models still say, and what their outputs betray.

    As `lensaudit eval`: `out` is experiments/out/<source>-<suite>. UDS is among the metrics where
    `retain` is named.

    >>> la.evaluate("demo/npo", out="said", limit=8).summary["forget_Q_A_Prob"]  # doctest: +SKIP
    0.04
    """
    with entered(settings) as asked:
        return [
            evaluated(one, asked, place, notice=notice, progress=progress)
            for one, place in places_for(source, out).items()
        ]
