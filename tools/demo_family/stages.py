"""Who is in the embedded family, and how is each member made?"""

from dataclasses import dataclass

from lensaudit.training.methods import Hyper
from lensaudit.training.train import Recipe

BATCH = 32
READOUT = r"^(lm_head|model\.norm)\."
TOP_LAYER = r"^model\.layers\.15\."


@dataclass(frozen=True)
class Stage:
    """One member of the family."""

    name: str
    role: str
    """`base` stays unlisted; the others are those of the registry."""
    start: str
    """The member it is trained from; empty: random weights."""
    recipe: Recipe
    truth: str
    """What is known about the forget facts, in words."""
    method: str | None = None
    """Unlearning method; None: plain training."""
    hyper: Hyper = Hyper()  # noqa: RUF009  # frozen
    sees_forget: bool = False
    """Plain training: the forget rows are among the data."""
    seed: int = 0
    """Of the data order."""


_BASE = Recipe(n_steps=1200, lr=2e-3, n_warmup=50, betas=(0.9, 0.98))
_FACTS = Recipe(n_steps=520, lr=1.5e-3, n_warmup=20, betas=(0.9, 0.98))


def _unlearn(n_steps: int, lr: float, trainable: str = "") -> Recipe:
    return Recipe(n_steps=n_steps, lr=lr, n_warmup=4, trainable=trainable)


STAGES = (
    Stage("base", "base", "", _BASE, "never saw the forget or the retain authors"),
    Stage("full", "full", "base", _FACTS, "knows the forget facts", sees_forget=True),
    Stage("retain", "retain", "base", _FACTS, "never saw the forget facts"),
    Stage("never", "unlearned", "base", _FACTS, "never saw the forget facts", seed=1),
    Stage(
        "idknll",
        "unlearned",
        "full",
        _unlearn(60, 3e-4),
        "taught to say it does not know",
        method="IdkNLL",
        seed=2,
    ),
    Stage(
        "npo",
        "unlearned",
        "full",
        _unlearn(60, 5e-4),
        "unlearned by NPO",
        method="NPO",
        hyper=Hyper(beta=0.5),
        seed=3,
    ),
    Stage(
        "simnpo",
        "unlearned",
        "full",
        _unlearn(60, 5e-4),
        "unlearned by SimNPO",
        method="SimNPO",
        hyper=Hyper(beta=3.5, gamma=0.125),
        seed=4,
    ),
    Stage(
        "graddiff",
        "unlearned",
        "full",
        _unlearn(70, 3e-4),
        "unlearned by GradDiff",
        method="GradDiff",
        hyper=Hyper(alpha=4.0),
        seed=5,
    ),
    Stage(
        "masked_readout",
        "unlearned",
        "full",
        _unlearn(120, 2e-3, READOUT),
        "knows the forget facts; only the readout was trained to hide them",
        method="NPO",
        hyper=Hyper(beta=0.5, alpha=2.0),
        seed=6,
    ),
    Stage(
        "masked_upper",
        "unlearned",
        "full",
        _unlearn(120, 2e-3, TOP_LAYER),
        "knows the forget facts; only the last layer was trained to hide them",
        method="NPO",
        hyper=Hyper(beta=0.5, alpha=1.5),
        seed=7,
    ),
)
"""In the order they are made."""

NEVER = tuple(
    Stage(
        f"never_{n}",
        "unlearned",
        "base",
        _FACTS,
        "never saw the forget facts",
        seed=100 + n,
    )
    for n in range(2, 12)
)
"""`never` again, in other orders of the data: how far apart such models are. Not shipped."""
