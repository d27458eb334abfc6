"""The unlearning methods: what each minimises, and the constants it is published with.

A loss is a forget term, a retain term, and their weights.

Constants: open-unlearning (github.com/locuslab/open-unlearning, commit d3d7cf9), `configs/trainer`
and `configs/experiment/unlearn/tofu`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import transformers
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.errors import InputError
from lensaudit.training import losses
from lensaudit.training.losses import Labels, Loss, PerSequence
from lensaudit.training.rows import TrainBatch, UnlearnBatch
from lensaudit.training.settings import UnlearnSettings
from lensaudit.training.train import Objective, Terms, logits
from lensaudit.types import Logits, Resid


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
    """RMU: seed of the control vector."""

    @property
    def keeps(self) -> bool:
        """Whether the retain rows are read: a multiplier of PDU may rise from 0."""
        return self.alpha > 0 or self.epsilon is not None


@dataclass(frozen=True)
class Passes:
    """The forward passes a loss may ask for; `frozen` are those of the start model."""

    model: "transformers.PreTrainedModel"
    reference: "transformers.PreTrainedModel | None"
    """The frozen start model, of methods that compare with it."""
    batch: UnlearnBatch
    hyper: Hyper

    @property
    def labels(self) -> Labels:
        """Scored tokens of the forget rows."""
        return self.batch.forget.labels

    @property
    def alternate(self) -> TrainBatch:
        """Rows with the other answers, which the job has seen to be there."""
        assert self.batch.alternate is not None
        return self.batch.alternate

    def _read(self, read: Callable[..., Any], frozen: bool, *args: Any) -> Any:
        """What is read of the model, or of the reference without gradient."""
        model = self.reference if frozen else self.model
        assert model is not None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            return read(model, *args)

    def logits(self, part: TrainBatch | None = None, *, frozen: bool = False) -> Logits:
        """Logits of a part of the batch; the forget rows unless named."""
        return self._read(logits, frozen, part or self.batch.forget)

    def nll(self, part: TrainBatch | None = None, *, frozen: bool = False) -> PerSequence:
        """Negative log-likelihood summed per row."""
        scores = self.logits(part, frozen=frozen)
        return losses.sequence_nll(scores, (part or self.batch.forget).labels)

    def resid(self, part: TrainBatch, *, frozen: bool = False) -> Resid:
        """The residual stream after `hyper.layer`."""
        return self._read(_resid, frozen, part, self.hyper.layer)


def _resid(model: "transformers.PreTrainedModel", part: TrainBatch, layer: int | None) -> Resid:
    # transformers applies the final norm to the last hidden state: RMU's door refuses that layer
    if layer is None or not 0 <= layer < model.config.num_hidden_layers - 1:
        raise ValueError(f"layer {layer} has no residual stream before the final norm")
    return model(
        input_ids=part.tokens, attention_mask=part.mask.long(), output_hidden_states=True
    ).hidden_states[layer + 1]


def answer_positions(part: TrainBatch) -> Bool[Tensor, "batch pos"]:
    """Positions of the answer, its end token included."""
    return part.labels != losses.IGNORED


def control_vector(d_model: int, *, strength: float, seed: int) -> Float[Tensor, " d_model"]:
    """RMU's target: an all-positive direction of length `strength`, the same for a seed."""
    direction = torch.rand(d_model, generator=torch.Generator().manual_seed(seed))
    return strength * direction / direction.norm()


@dataclass(frozen=True)
class Method:
    """A row of the table of methods."""

    name: str
    forget: Callable[[Passes], Loss]
    constants: tuple[str, ...] = ()
    """Which fields of `Hyper` its loss reads beside gamma, alpha and retain_loss."""
    hyper: Hyper = field(default_factory=Hyper)
    n_epochs: float = 10.0
    lr: float = 1e-5
    needs_reference: bool = False
    alternate: Literal["none", "idk", "given"] = "none"
    """`idk`: a line drawn per access; `given`: the data name an alternative per question."""
    steers: bool = False
    """RMU: reads residuals instead of logits."""


@dataclass(frozen=True)
class Unlearning(Objective[UnlearnBatch]):
    """gamma * forget + alpha * retain; PDU: gamma * forget + multiplier * (retain - epsilon).

    `reference`: where `reads_reference`.
    """

    method: Method
    hyper: Hyper
    reference: "transformers.PreTrainedModel | None" = None

    @property
    def name(self) -> str:
        """What the method is published as."""
        return self.method.name

    @property
    def first_multiplier(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the retain term is weighted with at the start."""
        return self.hyper.alpha

    def __call__(
        self, model: "transformers.PreTrainedModel", batch: UnlearnBatch, multiplier: float
    ) -> Terms:
        """The loss of one batch."""
        passes = Passes(model, self.reference, batch, self.hyper)
        total = self.hyper.gamma * self.method.forget(passes)
        if batch.retain is None or (multiplier == 0.0 and self.hyper.epsilon is None):
            return Terms(total)
        # PDU's multiplier rises again from 0: its next value needs the term, its gradient is 0
        with torch.set_grad_enabled(torch.is_grad_enabled() and multiplier != 0.0):
            kind = "resid" if self.method.steers else self.hyper.retain_loss
            retain = retain_term(passes, batch.retain, kind)
        total = total + multiplier * (retain - (self.hyper.epsilon or 0.0))
        return Terms(total, retain.item())

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """PDU's dual ascent; a constant for every other method."""
        epsilon = self.hyper.epsilon
        if epsilon is None or step < self.hyper.dual_warmup or math.isnan(retain):
            return multiplier
        return max(0.0, multiplier + self.hyper.dual_step * (retain - epsilon))


def retain_term(passes: Passes, part: TrainBatch, kind: Literal["nll", "kl", "resid"]) -> Loss:
    """What keeps the retain rows as they are."""
    if kind == "resid":
        kept = passes.resid(part, frozen=True)
        return losses.rmu(passes.resid(part), kept, answer_positions(part))
    if kind == "kl":
        return losses.kl_to_reference(passes.logits(part), passes.logits(part, frozen=True))
    return losses.mean_nll(passes.logits(part), part.labels)


def _ascent(passes: Passes) -> Loss:
    return losses.grad_ascent(passes.logits(), passes.labels)


def _dpo(passes: Passes) -> Loss:
    win = passes.alternate
    return losses.dpo(
        passes.nll(win),
        passes.nll(win, frozen=True),
        passes.nll(),
        passes.nll(frozen=True),
        beta=passes.hyper.beta,
    )


def _rmu(passes: Passes) -> Loss:
    forget, hyper = passes.batch.forget, passes.hyper
    resid = passes.resid(forget)
    target = control_vector(resid.shape[-1], strength=hyper.strength, seed=hyper.control_seed)
    return losses.rmu(resid, target.to(resid.device), answer_positions(forget))


_TABLE = (
    Method("GradAscent", _ascent, hyper=Hyper(alpha=0.0)),
    Method("GradDiff", _ascent),
    Method(
        "NPO",
        lambda of: losses.npo(of.nll(), of.nll(frozen=True), beta=of.hyper.beta),
        ("beta",),
        needs_reference=True,
    ),
    Method(
        "SimNPO",
        lambda of: losses.simnpo(
            of.nll(),
            losses.labelled(of.labels).sum(1),
            beta=of.hyper.beta,
            delta=of.hyper.delta,
        ),
        ("beta", "delta"),
        Hyper(beta=4.5, gamma=0.125),
    ),
    Method(
        "IdkNLL",
        lambda of: losses.mean_nll(of.logits(of.alternate), of.alternate.labels),
        alternate="idk",
    ),
    Method("IdkDPO", _dpo, ("beta",), needs_reference=True, alternate="idk"),
    Method("AltPO", _dpo, ("beta",), n_epochs=2.0, needs_reference=True, alternate="given"),
    Method("RMU", _rmu, ("layer", "strength", "control_seed"), needs_reference=True, steers=True),
    Method(
        "UNDIAL",
        lambda of: losses.undial(
            of.logits(), of.logits(frozen=True), of.labels, beta=of.hyper.beta
        ),
        ("beta",),
        Hyper(beta=10.0, alpha=0.0),
        lr=1e-4,
        needs_reference=True,
    ),
    Method(
        "CEU",
        lambda of: losses.ceu(of.logits(), of.labels, ignore_first=of.hyper.ignore_first),
        ("ignore_first",),
        Hyper(alpha=0.0),
    ),
    Method(
        "WGA",
        lambda of: losses.wga(of.logits(), of.labels, beta=of.hyper.beta),
        ("beta",),
        Hyper(beta=1.0),
        n_epochs=5.0,
    ),
    Method(
        "SatImp",
        lambda of: losses.satimp(
            of.logits(), of.labels, beta1=of.hyper.beta1, beta2=of.hyper.beta2
        ),
        ("beta1", "beta2"),
        Hyper(gamma=0.1),
    ),
    Method(
        "PDU",
        lambda of: losses.pdu(of.logits(), of.labels),
        ("epsilon", "dual_step", "dual_warmup"),
    ),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _TABLE}
"""By the published names; `method_named` ignores case."""
COMMON = ("gamma", "alpha", "retain_loss")
"""Constants of every method."""


def method_named(name: str) -> Method:
    """The method of that name, whatever its case.

    Raises:
        InputError: no such method.
    """
    found = next((one for one in _TABLE if one.name.lower() == name.lower()), None)
    if found is None:
        raise InputError(f"unknown method {name!r}; known are {', '.join(METHODS)}")
    return found


def idle(settings: UnlearnSettings) -> dict[str, str]:
    """Rows and lines that were chosen and that the method does not read, and its term -> why."""
    try:
        method = method_named(settings.method)
    except InputError:  # said where the method is looked up
        return {}
    given = {name: getattr(settings, name) for name in ("alpha", "epsilon")}
    hyper = replace(method.hyper, **{name: one for name, one in given.items() if one is not None})
    chosen = {"retain_data": "--kept", "retain_loss": "--constant retain-loss"}
    found = {
        name: f"{flag}: {method.name} reads no rows to keep (alpha {hyper.alpha:g}); leave it out, "
        "or give --constant alpha=1"
        for name, flag in chosen.items()
        if getattr(settings, name) is not None and hyper.alpha == 0 and hyper.epsilon is None
    }
    if settings.idk is not None and method.alternate != "idk":
        found["idk"] = f"--set idk: {method.name} reads no lines of ignorance; leave it out"
    return found


def hyper_of(method: Method, given: Mapping[str, Any], *, n_layers: int) -> Hyper:
    """The method's constants with the `given` ones in their place.

    Raises:
        InputError: a constant that the method does not read or that is out of range; RMU without
            a usable layer; PDU without epsilon.
    """
    read = (*COMMON, *method.constants)
    if unread := sorted(set(given) - set(read)):
        known = ", ".join(map(_said, read))
        raise InputError(f"{method.name} has no constant {_said(unread[0])}; it reads {known}")
    if method.steers and "retain_loss" in given:
        raise InputError(
            f"{method.name} has no constant retain-loss: it holds the residuals of the retain rows "
            "in place"
        )
    hyper = replace(method.hyper, **given)
    numbers = {name: getattr(hyper, name) for name in read}
    for name, value in numbers.items():
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise InputError(f"--constant {_said(name)}={value:g}: wanted a number from 0")
    if numbers.get("beta") == 0:
        raise InputError(f"--constant beta=0: {method.name} divides by it; wanted a number above 0")
    if method.steers and hyper.layer not in range(n_layers - 1):
        found = "none given" if hyper.layer is None else f"found {hyper.layer}"
        raise InputError(
            f"{method.name} steers the output of a layer: give --constant layer=N, N from 0 to "
            f"{n_layers - 2} (below the last of {n_layers}), {found}"
        )
    if method.name == "PDU" and hyper.epsilon is None:
        raise InputError(
            "PDU needs --constant epsilon=0.3 (TOFU), the retain loss it allows in nats per token"
        )
    return hyper


def _said(constant: str) -> str:
    """A constant as it is typed on the command line."""
    return constant.replace("_", "-")


def reads_reference(method: Method, hyper: Hyper) -> bool:
    """Whether a frozen copy of the start model is needed."""
    return method.needs_reference or (hyper.retain_loss == "kl" and hyper.keeps)
