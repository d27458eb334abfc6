"""Where are the scores of a gym, and what is a line of them?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger
from lensaudit.results.reading import json_object, part

LEDGER = "scores.jsonl"
ANCHOR = "anchor"
"""Truth of the models of the control arm, `full` and `retain`."""
GymRow = Mapping[str, Any]


def ledger_of(gym: Path, limit: int | None, *, notice: Notice | None = None) -> Ledger:
    """The scores of a gym, on so many facts."""
    name = LEDGER if limit is None else f"scores-{limit}.jsonl"
    return Ledger(gym / name, "gym scores", {"limit": limit}, notice=notice)


def rows_of(gym: Path, limit: int | None) -> list[GymRow]:
    """The lines of a gym's ledger; of several versions of an auditor the last.

    Lines of models that were made anew since are left out; a ledger without its models is whole.

    Raises:
        InputError: nothing was scored, or a manifest is damaged.
    """
    ledger = ledger_of(gym, limit)
    if not ledger.rows:
        raise InputError(f"{ledger.path}: no scores; make some with `lensaudit gym score`")
    made = [json_object(one) for one in gym.glob("seed-*/*/manifest.json")]
    there = {part(one, "inputs").get("key") for one in made}
    kept = [
        row for row in ledger.rows if not there or row["truth"] == ANCHOR or row["model"] in there
    ]
    return list({(row["auditor"], row["model"]): row for row in kept}.values())
