"""Which attacks there are: each under its name, with what it needs and costs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from lensaudit.attacks.arm import AttackedModel, AttackFindings
from lensaudit.files import digest

Run = TypeVar("Run", bound=Callable[..., AttackFindings])
Tier = Literal["cheap", "full"]
Need = Literal["full", "other authors", "neutral rows"]
Asks = Literal["translated_question", "aliases", "two_hop", "a thought"]
"""What not every row or template brings: a column, or a place for a thought."""


@dataclass(frozen=True)
class Attack:
    """One registered attack, and what it computes of one fact."""

    name: str
    run: Callable[[AttackedModel], AttackFindings]
    tier: Tier = "cheap"
    needs: tuple[Need, ...] = ()
    version: int = 1
    """Part of the hash: raised when the same model may give another result."""
    prompts: int = 1
    """Prompts read."""
    new_tokens: int = 0
    """Tokens generated at most."""
    candidates: int = 0
    """Candidates scored."""
    models: int = 1
    """Models that read all of it."""
    asks: Asks | None = None
    """Without it the attack is left out."""

    @property
    def hash(self) -> str:
        """Of the attack as it is defined here."""
        return digest([self.name, self.version])

    @property
    def about(self) -> str:
        """What it does, in one line."""
        return (self.run.__doc__ or "").splitlines()[0]


ATTACKS: dict[str, Attack] = {}


def attack(name: str, **what: Any) -> Callable[[Run], Run]:
    """Register an attack under a name; `what`: fields of `Attack`."""

    def register(run: Run) -> Run:
        ATTACKS[name] = Attack(name, run, **what)
        return run

    return register
