"""What is minimised, batch by batch: a method's forget term, its retain term, and their weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from lensaudit.types import Logits, Resid
from lensaudit.unlearn import losses
from lensaudit.unlearn.encode import TrainBatch
from lensaudit.unlearn.losses import Labels, Loss, PerSequence
from lensaudit.unlearn.train import Terms


@dataclass(frozen=True)
class Hyper:
    """The constants of a method; each method names those that it reads."""

    gamma: float = 1.0
    """Weight of the forget term."""
    alpha: float = 1.0
    """Weight of the retain term; PDU: where its multiplier starts."""
    beta: float = 0.1
    delta: float = 0.0
    """SimNPO's margin, nats per token."""
    beta1: float = 5.0
    beta2: float = 1.0
    """SatImp's exponents of p and of 1 - p."""
    ignore_first: int = 1
    """CEU: answer tokens left alone."""
    layer: int | None = None
    """RMU: whose output is steered."""
    strength: float = 2.0
    """RMU: length of the control vector."""
    epsilon: float | None = None
    """PDU: the retain loss that is allowed, nats per token."""
    dual_step: float = 1.0
    """PDU: how fast its multiplier moves."""
    dual_warmup: int = 0
    """PDU: optimiser steps before its multiplier moves."""
    retain_loss: Literal["nll", "kl"] = "nll"
    """The retain term; RMU has its own."""
    control_seed: int = 0
    """RMU: draws the control vector."""

    @property
    def keeps(self) -> bool:
        """Whether the retain rows are read: a multiplier of PDU may rise from 0."""
        return self.alpha > 0 or self.epsilon is not None


@dataclass(frozen=True)
class UnlearnBatch:
    """What one step of unlearning reads; the parts are padded apart."""

    forget: TrainBatch
    retain: TrainBatch | None = None
    alternate: TrainBatch | None = None
    """The forget questions with another answer: ignorance, or something plausible."""

    def to(self, device: torch.device | str) -> "UnlearnBatch":
        """The same batch on another device."""
        return UnlearnBatch(
            self.forget.to(device),
            self.retain and self.retain.to(device),
            self.alternate and self.alternate.to(device),
        )


@dataclass(frozen=True)
class Passes:
    """The forward passes a loss may ask for."""

    model: PreTrainedModel
    reference: PreTrainedModel | None
    """The frozen start model."""
    batch: UnlearnBatch
    hyper: Hyper

    @property
    def labels(self) -> Labels:
        """Of the forget rows."""
        return self.batch.forget.labels

    @property
    def alternate(self) -> TrainBatch:
        """The other answers.

        Raises:
            ValueError: the batch has none; the data of the run lack what the method needs.
        """
        if self.batch.alternate is None:
            raise ValueError("the method needs alternate answers and the batch has none")
        return self.batch.alternate

    def logits(self, part: TrainBatch | None = None) -> Logits:
        """Of the model; `part` is the forget rows unless named."""
        return logits(self.model, part or self.batch.forget)

    def frozen_logits(self, part: TrainBatch | None = None) -> Logits:
        """Of the reference, without gradient."""
        with torch.no_grad():
            return logits(self._reference, part or self.batch.forget)

    def nll(self, part: TrainBatch | None = None) -> PerSequence:
        """Summed per row, of the model."""
        part = part or self.batch.forget
        return losses.sequence_nll(self.logits(part), part.labels)

    def frozen_nll(self, part: TrainBatch | None = None) -> PerSequence:
        """Summed per row, of the reference."""
        part = part or self.batch.forget
        return losses.sequence_nll(self.frozen_logits(part), part.labels)

    def resid(self, part: TrainBatch) -> Resid:
        """The model's residual stream after `hyper.layer`."""
        return _resid(self.model, part, self.hyper.layer)

    def frozen_resid(self, part: TrainBatch) -> Resid:
        """The reference's residual stream after `hyper.layer`."""
        with torch.no_grad():
            return _resid(self._reference, part, self.hyper.layer)

    @property
    def _reference(self) -> PreTrainedModel:
        if self.reference is None:
            raise ValueError("the method needs the reference model and there is none")
        return self.reference


def logits(model: PreTrainedModel, part: TrainBatch) -> Logits:
    """One forward pass; padding is masked."""
    return model(input_ids=part.tokens, attention_mask=part.mask.long()).logits


def _resid(model: PreTrainedModel, part: TrainBatch, layer: int | None) -> Resid:
    # transformers applies the final norm to the last hidden state: RMU's door refuses that layer
    if layer is None or not 0 <= layer < model.config.num_hidden_layers - 1:
        raise ValueError(f"layer {layer} has no residual stream before the final norm")
    answer = model(
        input_ids=part.tokens, attention_mask=part.mask.long(), output_hidden_states=True
    )
    return answer.hidden_states[layer + 1]


def answer_positions(part: TrainBatch) -> Bool[Tensor, "batch pos"]:
    """Where the answer stands, its end token included."""
    return part.labels != losses.IGNORED


def control_vector(d_model: int, *, strength: float, seed: int) -> Float[Tensor, " d_model"]:
    """RMU's target: an all-positive direction of length `strength`, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.rand(d_model, generator=generator)
    return strength * direction / direction.norm()


RetainTerm = Literal["nll", "kl", "resid"]


@dataclass(frozen=True)
class Unlearning:
    """gamma * forget + alpha * retain; PDU: gamma * forget + multiplier * (retain - epsilon)."""

    forget: Callable[[Passes], Loss]
    retain: RetainTerm
    hyper: Hyper
    reference: PreTrainedModel | None = None

    @property
    def first_multiplier(self) -> float:
        """What the retain term is weighted with at the start."""
        return self.hyper.alpha

    def __call__(self, model: PreTrainedModel, batch: UnlearnBatch, multiplier: float) -> Terms:
        """The loss of one batch."""
        passes = Passes(model, self.reference, batch, self.hyper)
        total = self.hyper.gamma * self.forget(passes)
        if batch.retain is None or (multiplier == 0.0 and self.hyper.epsilon is None):
            return Terms(total)
        # PDU's multiplier rises again from 0: its next value needs the term, its gradient is 0
        with torch.set_grad_enabled(torch.is_grad_enabled() and multiplier != 0.0):
            retain = retain_term(passes, batch.retain, self.retain)
        total = total + multiplier * (retain - (self.hyper.epsilon or 0.0))
        return Terms(total, retain.item())

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """PDU's dual ascent; a constant for every other method."""
        epsilon = self.hyper.epsilon
        if epsilon is None or step < self.hyper.dual_warmup or math.isnan(retain):
            return multiplier
        return max(0.0, multiplier + self.hyper.dual_step * (retain - epsilon))


def retain_term(passes: Passes, part: TrainBatch, kind: RetainTerm) -> Loss:
    """What keeps the retain rows as they are."""
    if kind == "resid":
        kept = passes.frozen_resid(part)
        return losses.rmu(passes.resid(part), kept, answer_positions(part))
    if kind == "kl":
        return losses.kl_to_reference(passes.logits(part), passes.frozen_logits(part))
    return losses.mean_nll(passes.logits(part), part.labels)


@dataclass(frozen=True)
class FineTuning:
    """Mean negative log-likelihood of the answers: how `full` and `retain` are made."""

    first_multiplier: float = 0.0

    def __call__(self, model: PreTrainedModel, batch: TrainBatch, multiplier: float) -> Terms:
        """The loss of one batch."""
        return Terms(losses.mean_nll(logits(model, batch), batch.labels))

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """Nothing is carried along."""
        return multiplier
