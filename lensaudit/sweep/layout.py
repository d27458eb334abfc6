"""Where a sweep keeps what: one folder, shared by every process that works on it."""

import re
from dataclasses import dataclass
from pathlib import Path

from lensaudit.errors import InputError

_ID = re.compile(r"[0-9a-f]{32}")


def checked_id(text: str) -> str:
    """A unit's id, which names folders: a hash and nothing else.

    Raises:
        InputError: it is something else, as a path that leads elsewhere.
    """
    if not is_id(text):
        raise InputError(f"unit id {text[:60]!r}: wanted 32 hex digits; make the plan again")
    return text


def is_id(text: str) -> bool:
    """Is it what a unit's folders are called?"""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True)
class Layout:
    """The paths inside a sweep's folder."""

    root: Path

    @property
    def plan(self) -> Path:
        """What is planned; never changed."""
        return self.root / "plan.json"

    @property
    def units(self) -> Path:
        """One folder per finished unit; a folder that is here is complete."""
        return self.root / "units"

    @property
    def activations(self) -> Path:
        """Caches and scorebooks that the units share."""
        return self.root / "activations"

    @property
    def weights(self) -> Path:
        """Checkpoints fetched for this sweep."""
        return self.root / "weights"

    @property
    def results(self) -> Path:
        """What `collect` writes."""
        return self.root / "results"

    def unit(self, unit_id: str) -> Path:
        """Where a finished unit is."""
        return self.units / checked_id(unit_id)

    def work(self, unit_id: str) -> Path:
        """Where a unit is worked on; what is finished in it is kept for the next attempt."""
        return self.root / "work" / checked_id(unit_id)

    def attempts(self, unit_id: str) -> Path:
        """Log of who tried a unit, and how that ended."""
        return self.root / "attempts" / f"{checked_id(unit_id)}.jsonl"

    def claim(self, unit_id: str) -> Path:
        """Who works on a unit now."""
        return self.root / "claims" / f"{checked_id(unit_id)}.json"
