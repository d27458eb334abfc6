"""Can unlearned knowledge be brought back? Attacks on an unlearned model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class AttackResult:
    """What an attack on one model came to, and where it is written."""

    source: str
    folder: Path
    """Holds manifest.json, summary.json and tables; of `effort`'s single model its log too."""
    summary: Mapping[str, Any]
    """The content of summary.json."""
