"""The settings of a run as its models decide them, and the words in which they are given."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from lensaudit.activations.fill import CACHE_BATCH
from lensaudit.errors import InputError
from lensaudit.models.bridge import Component
from lensaudit.models.sizes import LEAST_BUDGET
from lensaudit.patching.settings import PatchSettings
from lensaudit.scores.depth import EM_THRESHOLD
from lensaudit.settings import Device, Dtype, EmForm, Positions, Profile

Engine = Literal["sweep", "oracle", "lens"]
"""What computes: the sweep, one hooked pass per layer, or (`--score lens`) no patch at all."""
Measure = Literal["logprob", "hit"]
"""What is averaged over the span: log-prob, or whether the label is the most likely token."""
PATCHED_TOKENS = 20
"""Tokens a patched run generates; core.py:502-607, default of `max_new_tokens`."""
ANSWER_TOKENS = 48
"""Longest answer of a model that is asked; those of the embedded family take 22."""
REFERENCE_TOKENS = 30
"""Tokens that each unpatched model generates; `exp_em_eval.py`. The reference is made of `full`'s,
so one longer than `max_new_tokens` cannot be matched in full."""


@dataclass(frozen=True, kw_only=True)
class ResolvedSettings(PatchSettings):
    """Settings of a run with what `auto` means, and with what its models decide."""

    dtype: Dtype = "float32"
    device: Device = "cpu"
    profile: Profile = "full"
    em_form: EmForm = "generation"
    em_threshold: float = EM_THRESHOLD
    max_new_tokens: int = PATCHED_TOKENS
    at_layers: tuple[int, ...] = ()
    """Layers that are patched, one at a time."""
    measure: Measure = "logprob"
    memory_bytes: int = 2 << 30
    """Budget above the weights."""
    cache_batch: int = CACHE_BATCH
    spread: bool = False
    """Models that do not fit the device are brought block by block: `--device auto`."""

    @property
    def computed_with(self) -> Engine:
        """What computes."""
        return "lens" if self.score == "lens" else self.engine

    @property
    def part(self) -> Component:
        """What of a layer is replaced."""
        return parse_component(self.component)[0]

    @property
    def head(self) -> int | None:
        """The head that `--component head:N` replaces."""
        return parse_component(self.component)[1]

    @property
    def positions_replaced(self) -> Positions:
        """Positions of a source's cache that are patched in."""
        return "all" if self.scope == "prefix" else "span"

    def positions_needed(self, *, of_full: bool) -> Positions | None:
        """Positions of a stream that a run reads from its cache; None: nothing of it.

        The sweep continues the clean run of `full`, so of `full` it reads every token; scope
        `prefix` replaces every token up to the span's end. All else happens at the span. Of
        components see `positions_replaced`.
        """
        if self.part != "resid":
            return "all" if of_full and self.computed_with == "sweep" else None
        # patched into, unless the lens reads it
        return "all" if of_full and self.computed_with != "lens" else self.positions_replaced

    def document(self) -> dict[str, Any]:
        """What moves a number, and how it is computed: as a manifest holds it."""
        found = {
            "layers": self.at_layers,
            "tau": self.tau,
            "last_layer": self.last_layer,
            "scope": self.scope,
            "component": self.part,
            "head": self.head,
            "engine": self.computed_with,
            "profile": self.profile,
            "measure": self.measure,
            "dtype": self.dtype,
            "device": self.device,
            "batch_size": self.batch_size,
            "memory_bytes": self.memory_bytes,
            "cache_batch": self.cache_batch,
        }
        if self.score == "em":
            matched = {
                "form": self.em_form,
                "threshold": self.em_threshold,
                "max_new_tokens": self.max_new_tokens,
                "reference_tokens": REFERENCE_TOKENS,
            }
            return {**found, "em": matched}
        return {**found, "ask": self.ask} if self.score == "uds" else found


def parse_layers(spec: str, n_layers: int) -> tuple[int, ...]:
    """Layers from a specification: `all`, `3`, `0-7`, `0-15:3`, `-1`, or a comma list of these.

    A layer that is named twice counts once.

    >>> parse_layers("0-6:3,15", 16), parse_layers("-2", 16)
    ((0, 3, 6, 15), (14,))

    Raises:
        InputError: not a specification, or a layer the model lacks.
    """
    if spec.strip() in ("all", "auto"):
        return tuple(range(n_layers))
    chosen: set[int] = set()
    for part in map(str.strip, spec.split(",")):
        if (found := _LAYERS.fullmatch(part)) is None:
            raise InputError(
                f"--layers {spec}: not a layer specification; wanted all, 3, 0-7, 0-15:3, -1, "
                "or several with commas"
            )
        low, high, step = int(found[1] or found[2]), found[3], int(found[4] or 1)
        if not (named := range(low, int(high or low) + 1, step)):
            raise InputError(f"--layers {spec}: {part} names no layer; wanted the lower first")
        ends = (named[0], named[-1])
        # a range of a billion layers is never listed
        chosen |= set(ends if any(abs(end) > n_layers for end in ends) else named)
    resolved = {layer + n_layers if layer < 0 else layer for layer in chosen}
    outside = sorted(layer for layer in resolved if not 0 <= layer < n_layers)
    if outside:
        raise InputError(
            f"--layers {spec}: the model has layers 0 to {n_layers - 1}, not {outside[0]}"
        )
    return tuple(sorted(resolved))


_LAYERS = re.compile(r"(-\d{1,9})|(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", re.ASCII)
"""A layer, from the end where it is negative; or the first, the last and the step of several."""


def parse_component(text: str) -> tuple[Component, int | None]:
    """`resid`, `attn`, `mlp`, `resid_mid` or `head:3`.

    >>> parse_component("head:3")
    ('head', 3)

    Raises:
        InputError: none of these.
    """
    name, _, number = text.partition(":")
    if name == "head" and number.isdecimal():
        return "head", int(number)
    if text in ("resid", "attn", "mlp", "resid_mid"):
        return text, None
    raise InputError(
        f"--component {text}: wanted resid, attn, mlp, resid_mid or head:N with N from 0"
    )


def parse_memory(text: str) -> int:
    """Bytes from `800M`, `2G`, `2GB` or a plain number.

    >>> parse_memory("2G")
    2147483648

    Raises:
        InputError: not a size, or under 256 MiB.
    """
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    body = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = body[-1:] if body[-1:] in units else ""
    try:
        n_bytes = int(float(body.removesuffix(unit)) * units[unit])
    except (ValueError, OverflowError) as error:
        raise InputError(f"--memory {text}: not a size; wanted like 800M or 2G") from error
    if n_bytes < LEAST_BUDGET:
        raise InputError(f"--memory {text}: too small to work in; wanted at least 256M")
    return n_bytes
