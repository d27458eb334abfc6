"""How is a model unlearned so that relearning finds less? One method, trained under attack.

The forget term's gradient is taken where an attacker has moved the trained weights, and is applied
where they are; the retain term stays as it is. Two attackers:

- `sharpness`: one step of length rho along the gradient of the forget term, as in sharpness-aware
  minimisation (Foret et al. 2021, arXiv:2010.01412), which Fan et al. 2025 (arXiv:2502.05374) take
  against relearning.
- `relearning`: several steps of descent on the loss of the facts themselves, rho long in all. It is
  the inner loop of tampering-resistant training (Tamirisa et al. 2025, arXiv:2408.00761) to first
  order, without its second set of rows and its loss of representations.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lensaudit.training.job import UnlearnJob
from lensaudit.training.losses import Loss, mean_nll
from lensaudit.training.methods import Passes, Unlearning, retain_term
from lensaudit.training.rows import UnlearnBatch
from lensaudit.training.train import Objective, Terms, TrainingRun, logits


@dataclass(frozen=True)
class Attack:
    """How the weights are moved before the forget term's gradient is taken."""

    kind: Literal["sharpness", "relearning"]
    rho: float
    """Length of the way, all trained weights being one vector."""
    steps: int = 1

    @contextmanager
    def on(
        self, objective: Unlearning, model: PreTrainedModel, batch: UnlearnBatch
    ) -> Iterator[Sequence[Tensor]]:
        """The trained weights, where the attacker leaves them; afterwards where they were."""
        moved = [one for one in model.parameters() if one.requires_grad]
        before = [one.detach().clone() for one in moved]
        try:
            for _ in range(self.steps):
                if self.kind == "sharpness":
                    loss, way = objective(model, batch, 0.0).total, 1.0
                else:
                    loss, way = mean_nll(logits(model, batch.forget), batch.forget.labels), -1.0
                slopes = _slopes(loss, moved)
                length = torch.stack([one.norm() for one in slopes]).norm()
                for weight, slope in zip(moved, slopes, strict=True):
                    _put(weight, weight + slope * (way * self.rho / self.steps / (length + 1e-12)))
            yield moved
        finally:
            for weight, value in zip(moved, before, strict=True):
                _put(weight, value)


@dataclass(frozen=True)
class UnderAttack(Objective[UnlearnBatch]):
    """An unlearning objective whose forget term is read at the attacker's weights."""

    inner: Unlearning
    attack: Attack

    @property
    def first_multiplier(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner objective's."""
        return self.inner.first_multiplier

    def __call__(self, model: PreTrainedModel, batch: UnlearnBatch, multiplier: float) -> Terms:
        """The forget term at the attacker's weights and the retain term at the model's."""
        facts = replace(batch, retain=None)
        with self.attack.on(self.inner, model, facts) as moved:
            forget = self.inner(model, facts, 0.0).total
            slopes = _slopes(forget, moved)
        # linear in the weights: it has the slopes as its gradient, and no value of its own
        carried = torch.stack(
            [(weight * slope).sum() for weight, slope in zip(moved, slopes, strict=True)]
        ).sum()
        total = carried - carried.detach() + forget.detach()
        if batch.retain is None:
            return Terms(total)
        hyper = self.inner.hyper
        passes = Passes(model, self.inner.reference, batch, hyper)
        kept = retain_term(passes, batch.retain, hyper.retain_loss)
        return Terms(total + multiplier * kept, kept.item())


def _slopes(loss: Loss, moved: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(loss, moved, allow_unused=True)
    return [
        torch.zeros_like(one) if slope is None else slope
        for one, slope in zip(moved, found, strict=True)
    ]


def _put(weight: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(value)
    # autocast keeps its bfloat16 copy of a weight until the forward passes of the step are over
    torch.clear_autocast_cache()


@dataclass(frozen=True, kw_only=True)
class AttackedJob(UnlearnJob):
    """An unlearning run under attack."""

    attack: Attack

    @property
    def identity(self) -> dict[str, Any]:
        """The attack too."""
        return {**super().identity, "attack": asdict(self.attack)}

    def run(self, model: Any, tokenizer: Any) -> TrainingRun[UnlearnBatch]:
        """The same rows and steps, with the forget term under attack."""
        plain = super().run(model, tokenizer)
        assert isinstance(plain.objective, Unlearning)
        return replace(plain, objective=UnderAttack(plain.objective, self.attack))


def under_attack(job: UnlearnJob, attack: Attack) -> AttackedJob:
    """The job with its forget term under attack.

    Raises:
        ValueError: the retain term of a method that steers, or whose multiplier moves, is another.
    """
    if job.method.steers or job.hyper.epsilon is not None:
        raise ValueError(f"{job.method.name} has a retain term of its own")
    same = {one.name: getattr(job, one.name) for one in fields(job)}
    return AttackedJob(**same, attack=attack)
