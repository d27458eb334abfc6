"""The method table of the activation patching audit: how much did each method erase, and too much?

For each model the erasure rate (UDR), what is still given of the answer at the layers where retain
loses it (retention), and the shares of facts that are over-, exactly and under-erased. Shares leave
general knowledge out of their base: facts that patching `retain` in never loses. Definitions:
docs/uds.md and `scores.depth.tally`; source: CLAUDE.md of gnueaj/unlearning-depth-score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.locate import locate


@dataclass(frozen=True)
class MethodRow:
    """One model of the table; shares are of 1, None where no fact is left to count."""

    model: str
    udr: float | None
    ci95: tuple[float, float] | None
    retention: float | None
    over: float | None
    exact: float | None
    under: float | None
    n: int
    """Facts that were scored."""
    n_general_knowledge: int
    """Of them, those that the shares leave out."""
    form: str
    """Of the exact match: what was generated, or teacher-forced."""
    folder: str


def method_table(results: Sequence[Path]) -> list[MethodRow]:
    """The rows of all `patch --score em` results in folders, the highest UDR first.

    Args:
        results: folders of results, or folders that hold such.

    Raises:
        InputError: none is there; or a result whose files were changed since it was written.
    """
    rows = em_rows(results)
    if not rows:
        named = ", ".join(map(str, results))
        raise InputError(f"{named}: no result of `lensaudit patch --score em`")
    return sorted(rows, key=lambda row: (-(row.udr if row.udr is not None else -1), row.model))


def em_rows(results: Sequence[Path]) -> list[MethodRow]:
    """The same as they are found; empty where none is there."""
    found = [one for one in locate(results)[0] if one.kind == "patch"]
    return [_row(one.path.parent, one.record) for one in found if one.record.score == "em"]


def _row(folder: Path, summary: PatchSummary) -> MethodRow:
    said = summary.category_percent or {}

    def share(name: str) -> float | None:
        percent = said.get(name)
        return None if percent is None else percent / 100

    return MethodRow(
        model=summary.source,
        udr=summary.udr,
        ci95=summary.ci95,
        retention=summary.retention,
        over=share("over"),
        exact=share("exact"),
        under=share("under"),
        n=summary.n_scored,
        n_general_knowledge=summary.categories["general_knowledge"],
        form=summary.em_form,
        folder=str(folder),
    )
