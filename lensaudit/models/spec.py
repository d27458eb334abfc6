"""What names a model: data only, loads nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["full", "retain", "unlearned", "pool_knows", "pool_forgot", "scale", "base"]


@dataclass(frozen=True)
class ModelSpec:
    """A name and the checkpoint it stands for."""

    name: str
    """What the user types; hyper-parameters are in it."""
    repo: str
    """`organisation/name` on the Hugging Face Hub, or the folder."""
    revision: str | None
    """Branch, tag or commit on the Hub; None for a folder."""
    role: Role
    """What it serves as; `unlearned` where nobody said."""
    method: str | None
    """Unlearning method (`IdkNLL`), or the training data of a pool model."""
    alias_of: str | None = None
    """The longer name this one is short for."""
    local: Path | None = None
    """The folder, for a checkpoint on disk."""
    adapter: "ModelSpec | None" = None
    """LoRA weights merged into the checkpoint when it is loaded, themselves a folder or on the
    Hub."""
