"""Where are the scores of a gym, and what is a line of them?"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lensaudit.errors import InputError
from lensaudit.gym.registry import Truth
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger
from lensaudit.results.reading import json_object, part
from lensaudit.results.records import MANIFEST, check_whole, manifest, misfits
from lensaudit.results.schema import Length, Number, Text, Whole, checked_as

LEDGER = "scores.jsonl"
ANCHOR = "anchor"
"""Truth of the models of the control arm, `full` and `retain`."""
GymRow = Mapping[str, Any]
_AGAIN = "run `lensaudit gym score` again"


@dataclass(frozen=True)
class _Line:
    """What a line of scores must hold."""

    auditor: Text
    reads: str
    high_means: Literal["knows", "forgot"]
    model: Text
    mechanism: Text
    truth: Truth | Literal["anchor"]
    seed: Whole
    held_out: bool
    knows: list[Whole] | None
    score: Number | None
    facts: dict[str, Number] | None
    control: bool | None
    seconds: Length


def ledger_of(gym: Path, limit: int | None, *, notice: Notice | None = None) -> Ledger:
    """The scores of a gym, on so many facts."""
    name = LEDGER if limit is None else f"scores-{limit}.jsonl"
    return Ledger(gym / name, "gym scores", {"limit": limit}, notice=notice)


def seal(ledger: Ledger, started: float) -> None:
    """Say in a manifest beside a ledger how much it holds: a line that is lost is then missed."""
    path = ledger.path
    if path.exists():
        made = manifest(
            "gym score", options=dict(ledger.header.key), inputs={}, device="cpu", started=started
        )
        made.write(path.parent, (path.name,), f"{path.stem}_{MANIFEST}")


def rows_of(gym: Path, limit: int | None) -> list[GymRow]:
    """The lines of a gym's ledger; of several versions of an auditor the last.

    Lines of models that were made anew since are left out; a ledger without its models is whole.

    Raises:
        InputError: nothing was scored; a line or a manifest is not as it was written, or is gone.
    """
    ledger = ledger_of(gym, limit)
    if not ledger.rows:
        raise InputError(f"{ledger.path}: no scores; make some with `lensaudit gym score`")
    ledger.check(_AGAIN)
    check_whole(ledger.path, beside=False)
    checked_as(list[_Line], ledger.rows, ledger.path, remedy=_AGAIN)
    there = {_key_of(one.parent) for one in gym.glob(f"seed-*/*/{MANIFEST}")}
    kept = [
        row for row in ledger.rows if not there or row["truth"] == ANCHOR or row["model"] in there
    ]
    return list({(row["auditor"], row["model"]): row for row in kept}.values())


def _key_of(model: Path) -> Any:
    """Of which recipe and pair a planted model is; of its files none is compared."""
    for line in misfits(model, only=""):
        raise InputError(f"{model}: {line}; `lensaudit gym make` makes it again")
    return part(json_object(model / MANIFEST), "inputs").get("key")
