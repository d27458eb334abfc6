"""The auditors and the verdict, judged: as a document, as text, as files beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lensaudit.files import write_json
from lensaudit.gym.errors import SAID, Confusion, Errors, errors_of
from lensaudit.gym.ledger import GymRow
from lensaudit.gym.picture import heat_map
from lensaudit.gym.table import Judgement, Share, markdown, table
from lensaudit.results.records import signed

VERSION = 3
"""Of the gym: raised when mechanisms, splits or scoring change."""


@dataclass(frozen=True)
class Document:
    """All that is said of the auditors."""

    auditors: tuple[Judgement, ...]
    verdict: Errors
    n_seeds: int

    @property
    def content(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": VERSION,
            "seeds": self.n_seeds,
            "auditors": [one.document() for one in self.auditors],
            "verdict": self.verdict.document(),
        }


def document(
    rows: Sequence[GymRow], *, calibration: Path | None = None, picture: Path | None = None
) -> Document:
    """Judge the auditors and the verdict; write what is asked for.

    Raises:
        InputError: a file cannot be written.
    """
    seeds = {row["seed"] for row in rows}
    found = Document(tuple(table(rows)), errors_of(rows), len(seeds))
    if picture is not None:
        heat_map(found.auditors, picture)
    if calibration is not None:
        views = {name: asdict(one) for name, one in found.verdict.nulls.items()}
        content = {"version": VERSION, "seeds": sorted(seeds), "views": views}
        held_out = found.verdict.held_out.document()
        write_json(calibration, signed({**content, "held_out": held_out}))
    return found


def text(found: Document) -> str:
    """For a terminal or a page: Markdown."""
    header = ("verdict", "truth", *SAID, "seeds with an error")
    halves = {
        "tune half": found.verdict.tune,
        "held-out half": found.verdict.held_out,
        "held-out half, patch alone": found.verdict.patch_only,
        "mechanism left out": found.verdict.left_out,
    }
    lines = [line for name, one in halves.items() for line in _lines(name, one)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in (header, ("---",) * len(header), *lines))
    wrong = [f"- {name}: {line}" for name, one in halves.items() for line in one.wrong]
    return "\n\n".join([markdown(found.auditors), rows, *(["\n".join(wrong)] if wrong else [])])


def _lines(name: str, one: Confusion) -> Iterator[tuple[str, ...]]:
    for truth, shares in (("knows", one.knows), ("partial", one.partial), ("absent", one.absent)):
        yield name, truth, *(_share(shares[word]) for word in SAID), _share(one.seeds_wrong)


def _share(one: Share) -> str:
    return f"{one.k}/{one.n} [{one.low:.2f}, {one.high:.2f}]"
