"""Which methods are there, what does each need, and with which constants is it published?

Constants: open-unlearning (github.com/locuslab/open-unlearning, commit d3d7cf9), `configs/trainer`
and `configs/experiment/unlearn/tofu`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from transformers import PreTrainedModel

from lensaudit.errors import InputError
from lensaudit.unlearn import losses
from lensaudit.unlearn.losses import Loss
from lensaudit.unlearn.objective import (
    Hyper,
    Passes,
    RetainTerm,
    Unlearning,
    answer_positions,
    control_vector,
)


@dataclass(frozen=True)
class Method:
    """One row of the table of methods."""

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


def _grad_ascent(passes: Passes) -> Loss:
    return losses.grad_ascent(passes.logits(), passes.labels)


def _npo(passes: Passes) -> Loss:
    return losses.npo(passes.nll(), passes.frozen_nll(), beta=passes.hyper.beta)


def _simnpo(passes: Passes) -> Loss:
    n_tokens = losses.labelled(passes.labels).sum(1)
    hyper = passes.hyper
    return losses.simnpo(passes.nll(), n_tokens, beta=hyper.beta, delta=hyper.delta)


def _idk_nll(passes: Passes) -> Loss:
    win = passes.alternate
    return losses.mean_nll(passes.logits(win), win.labels)


def _dpo(passes: Passes) -> Loss:
    win = passes.alternate
    return losses.dpo(
        passes.nll(win),
        passes.frozen_nll(win),
        passes.nll(),
        passes.frozen_nll(),
        beta=passes.hyper.beta,
    )


def _rmu(passes: Passes) -> Loss:
    forget, hyper = passes.batch.forget, passes.hyper
    resid = passes.resid(forget)
    target = control_vector(resid.shape[-1], strength=hyper.strength, seed=hyper.control_seed)
    return losses.rmu(resid, target.to(resid.device), answer_positions(forget))


def _undial(passes: Passes) -> Loss:
    logits, teacher = passes.logits(), passes.frozen_logits()
    return losses.undial(logits, teacher, passes.labels, beta=passes.hyper.beta)


def _ceu(passes: Passes) -> Loss:
    return losses.ceu(passes.logits(), passes.labels, ignore_first=passes.hyper.ignore_first)


def _wga(passes: Passes) -> Loss:
    return losses.wga(passes.logits(), passes.labels, beta=passes.hyper.beta)


def _satimp(passes: Passes) -> Loss:
    hyper = passes.hyper
    return losses.satimp(passes.logits(), passes.labels, beta1=hyper.beta1, beta2=hyper.beta2)


def _pdu(passes: Passes) -> Loss:
    return losses.pdu(passes.logits(), passes.labels)


_TABLE = (
    Method("GradAscent", _grad_ascent, hyper=Hyper(alpha=0.0)),
    Method("GradDiff", _grad_ascent),
    Method("NPO", _npo, ("beta",), needs_reference=True),
    Method("SimNPO", _simnpo, ("beta", "delta"), Hyper(beta=4.5, gamma=0.125)),
    Method("IdkNLL", _idk_nll, alternate="idk"),
    Method("IdkDPO", _dpo, ("beta",), needs_reference=True, alternate="idk"),
    Method("AltPO", _dpo, ("beta",), n_epochs=2.0, needs_reference=True, alternate="given"),
    Method("RMU", _rmu, ("layer", "strength", "control_seed"), needs_reference=True, steers=True),
    Method(
        "UNDIAL", _undial, ("beta",), Hyper(beta=10.0, alpha=0.0), lr=1e-4, needs_reference=True
    ),
    Method("CEU", _ceu, ("ignore_first",), Hyper(alpha=0.0)),
    Method("WGA", _wga, ("beta",), Hyper(beta=1.0), n_epochs=5.0),
    Method("SatImp", _satimp, ("beta1", "beta2"), Hyper(gamma=0.1)),
    Method("PDU", _pdu, ("epsilon", "dual_step", "dual_warmup")),
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
    for method in METHODS.values():
        if method.name.lower() == name.lower():
            return method
    raise InputError(f"unknown method {name!r}; known are {', '.join(METHODS)}")


def hyper_of(method: Method, given: Mapping[str, Any], *, n_layers: int) -> Hyper:
    """The method's constants with the `given` ones in their place.

    Raises:
        InputError: a constant that the method does not read or that is out of range; RMU without
            a usable layer; PDU without epsilon.
    """
    if unread := sorted(set(given) - {*COMMON, *method.constants}):
        option = unread[0].replace("_", "-")
        known = ", ".join(f"--{name.replace('_', '-')}" for name in (*COMMON, *method.constants))
        raise InputError(f"{method.name} has no --{option}; it reads {known}")
    if method.steers and "retain_loss" in given:
        raise InputError(
            f"{method.name} has no --retain-loss: it holds the retain rows' residuals in place"
        )
    hyper = replace(method.hyper, **given)
    _check_numbers(method, hyper)
    if method.steers and (hyper.layer is None or not 0 <= hyper.layer < n_layers - 1):
        found = "none given" if hyper.layer is None else f"found {hyper.layer}"
        raise InputError(
            f"{method.name} steers the output of a layer: give --layer 0 to {n_layers - 2} "
            f"(below the last of {n_layers}), {found}"
        )
    if method.name == "PDU" and hyper.epsilon is None:
        raise InputError("PDU needs --epsilon, the retain loss it allows (TOFU: 0.3 nats)")
    return hyper


def _check_numbers(method: Method, hyper: Hyper) -> None:
    for name in (*COMMON, *method.constants):
        value = getattr(hyper, name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise InputError(f"--{name.replace('_', '-')} {value:g}: wanted a number from 0")
    if "beta" in method.constants and hyper.beta == 0:
        raise InputError(f"--beta 0: {method.name} divides by it; wanted a number above 0")


def reads_reference(method: Method, hyper: Hyper) -> bool:
    """Whether a frozen copy of the start model is needed."""
    return method.needs_reference or (hyper.retain_loss == "kl" and hyper.keeps)


def objective_of(method: Method, hyper: Hyper, reference: PreTrainedModel | None) -> Unlearning:
    """The method as something to minimise.

    Raises:
        InputError: it reads the start model and there is none.
    """
    if reads_reference(method, hyper) and reference is None:
        raise InputError(f"{method.name} compares with the model it starts from; name it")
    retain: RetainTerm = "resid" if method.steers else hyper.retain_loss
    return Unlearning(method.forget, retain, hyper, reference)
