"""The registered attacks, each with its name, needs and cost."""

import importlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar

from torch import Tensor

from lensaudit.attacks.arm import AttackedModel, AttackFindings, Hit
from lensaudit.errors import InputError, WorkError
from lensaudit.models.bridge import user_hooks
from lensaudit.own_code import calling_own, enter, is_outside
from lensaudit.plugins import code_of
from lensaudit.text import digest

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
    trains: bool = False
    """It shows the model rows again, as `relearning` of the arm says."""
    asks: Asks | None = None
    """Without it the attack is left out."""
    code: str = ""
    """Content hash of one from outside the package, which runs where it is named; else empty."""

    @property
    def hash(self) -> str:
        """Hash of the attack's definition."""
        return digest([self.name, self.version, *filter(None, [self.code])])

    @property
    def about(self) -> str:
        """What it does, in one line."""
        return next(iter((self.run.__doc__ or "").splitlines()), "")


ATTACKS: dict[str, Attack] = {}


def attack(name: str, **what: Any) -> Callable[[Run], Run]:
    """Register an attack under a name; `what`: fields of `Attack`.

    Raises:
        ValueError: the name is taken, or it is none.
    """

    def register(run: Run) -> Run:
        code = ""
        if is_outside(run):
            importlib.import_module("lensaudit.attacks.elicit")  # whose names are taken
            code = code_of(run)
        return enter(ATTACKS, "attack", Attack(name, run, code=code, **what), attrgetter("run"))

    return register


def run_attack(attack: Attack, arm: AttackedModel) -> AttackFindings:
    """What an attack found; one from outside that raises, or gives something else, scores no fact.

    Every fact then says why, and the other attacks count: none of its hooks stays.

    Raises:
        WorkError: a hook stays that cannot be told from the model's own.
    """
    if not attack.code:
        return attack.run(arm)
    try:
        with calling_own(f"attack {attack.name} raised"):
            return _checked(attack, attack.run(arm), {fact.idx for fact in arm.facts})
    except InputError as error:
        return AttackFindings({}, unscored={fact.idx: str(error) for fact in arm.facts})
    finally:
        _take_hooks(attack, arm)


def _take_hooks(attack: Attack, arm: AttackedModel) -> None:
    for model in (arm.model, arm.full):
        model.reset_hooks()
        if left := user_hooks(model):
            raise WorkError(
                f"attack {attack.name} left a hook at {left[0]}, which would change what every "
                "later attack finds; add it in a block of `model.hooks`"
            )


def _checked(attack: Attack, found: Any, facts: Collection[int]) -> AttackFindings:
    """The findings, if they are some.

    Raises:
        InputError: they are of another kind, or of a fact that was not asked.
    """
    if not isinstance(found, AttackFindings):
        raise InputError(f"attack {attack.name} gave {found!r:.60}, wanted AttackFindings")
    for idx, one in found.hits.items():
        if idx not in facts or not isinstance(one, Hit) or not math.isfinite(one.score):
            raise InputError(
                f"attack {attack.name} gave {one!r:.60} for {idx!r:.20}, wanted a Hit of a fact "
                "that was asked, with a finite score"
            )
    for idx, row in found.exposure.items():
        if idx not in facts or not isinstance(row, Tensor) or row.ndim != 1:
            raise InputError(f"attack {attack.name} gave {row!r:.60} for the candidates of {idx}")
    return found
