"""The auditors and the verdict, judged: as a document, as text, as files beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lensaudit.files import write_json
from lensaudit.gym.ledger import GymRow
from lensaudit.gym.picture import heat_map
from lensaudit.gym.table import Judgement, Share, markdown, table
from lensaudit.gym.verdict import Confusion, Null, held_out_error, left_out_error
from lensaudit.results.records import signed

VERSION = 3
"""Of the gym: raised when mechanisms, splits or scoring change."""


@dataclass(frozen=True)
class Document:
    """All that is said of the auditors."""

    auditors: tuple[Judgement, ...]
    left_out: Confusion
    """The verdict on each mechanism, calibrated on the others."""
    held_out: Confusion
    nulls: Mapping[str, Null]
    n_seeds: int

    @property
    def content(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": VERSION,
            "seeds": self.n_seeds,
            "auditors": [one.document() for one in self.auditors],
            "verdict": {
                "left_out": self.left_out.document(),
                "held_out": self.held_out.document(),
                "calibration": {name: asdict(one) for name, one in self.nulls.items()},
            },
        }


def document(
    rows: Sequence[GymRow], *, calibration: Path | None = None, picture: Path | None = None
) -> Document:
    """Judge the auditors and the verdict; write what is asked for.

    Raises:
        InputError: a file cannot be written.
    """
    held_out, nulls = held_out_error(rows)
    seeds = {row["seed"] for row in rows}
    found = Document(tuple(table(rows)), left_out_error(rows), held_out, nulls, len(seeds))
    if picture is not None:
        heat_map(found.auditors, picture)
    if calibration is not None:
        views = {name: asdict(one) for name, one in nulls.items()}
        content = {"version": VERSION, "seeds": sorted(seeds), "views": views}
        write_json(calibration, signed({**content, "held_out": held_out.document()}))
    return found


def text(found: Document) -> str:
    """For a terminal or a page: Markdown."""
    header = ("verdict", "truth", "holds", "erased", "undecided")
    lines = [
        (name, side, *(_share(shares[code]) for code in ("holds", "erased", "undecided")))
        for name, confusion in (
            ("mechanism left out", found.left_out),
            ("held-out half", found.held_out),
        )
        for side, shares in (("knows", confusion.known), ("absent", confusion.absent))
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in (header, ("---",) * 5, *lines))
    return f"{markdown(found.auditors)}\n\n{rows}"


def _share(one: Share) -> str:
    return f"{one.k}/{one.n} [{one.low:.2f}, {one.high:.2f}]"
