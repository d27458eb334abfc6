"""Which checkpoints are published: the TOFU models of the `open-unlearning` Hub organisation.

The unlearned models are products of hyper-parameter grids, so the grids are written here and the
398 names are generated. The Hub cannot be listed offline: a name says "published", not "exists".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from lensaudit.models.spec import ModelSpec, Role

ORGANISATION = "open-unlearning"
TOFU_1B = "Llama-3.2-1B-Instruct"
SCALES = {"3b": "Llama-3.2-3B-Instruct", "8b": "Llama-3.1-8B-Instruct"}
"""Models of the scale check (`uds.md` section 5)."""

_LR = ("1e-05", "2e-05", "5e-05")
_LR_ALL = ("1e-05", "2e-05", "3e-05", "4e-05", "5e-05")
_ALPHA = ("1", "2", "5")
_EPOCH = ("5", "10")


@dataclass(frozen=True)
class Axis:
    """One hyper-parameter: its key in the repository's name, in the short name, its values."""

    key: str
    short: str
    values: tuple[str, ...]
    """As spelled in the repository's name."""


@dataclass(frozen=True)
class Grid:
    """All published checkpoints of some methods: the product of the axes."""

    methods: tuple[str, ...]
    axes: tuple[Axis, ...]


GRIDS = (
    Grid(
        ("GradDiff", "IdkNLL"),
        (
            Axis("lr", "lr", _LR_ALL),
            Axis("alpha", "a", ("1", "2", "5", "10")),
            Axis("epoch", "ep", _EPOCH),
        ),
    ),
    Grid(
        ("NPO", "IdkDPO", "AltPO"),
        (
            Axis("lr", "lr", _LR),
            Axis("beta", "b", ("0.05", "0.1", "0.5")),
            Axis("alpha", "a", _ALPHA),
            Axis("epoch", "ep", _EPOCH),
        ),
    ),
    Grid(
        ("SimNPO",),
        (
            Axis("lr", "lr", _LR),
            Axis("b", "b", ("3.5", "4.5")),
            Axis("a", "a", ("1",)),
            Axis("d", "d", ("0", "1")),
            Axis("g", "g", ("0.125", "0.25")),
            Axis("ep", "ep", _EPOCH),
        ),
    ),
    Grid(
        ("RMU",),
        (
            Axis("lr", "lr", _LR),
            Axis("layer", "l", ("5", "10", "15")),
            Axis("scoeff", "s", ("1", "10", "100")),
            Axis("epoch", "ep", _EPOCH),
        ),
    ),
    Grid(
        ("UNDIAL",),
        (
            Axis("lr", "lr", ("1e-05", "0.0001", "0.0003")),
            Axis("beta", "b", ("3", "10", "30")),
            Axis("alpha", "a", _ALPHA),
            Axis("epoch", "ep", _EPOCH),
        ),
    ),
)

ALIASES = {
    "retain90": "retain",
    "simnpo": "simnpo_lr2e5_b35_a1_d1_g0125_ep10",
    "npo": "npo_lr5e5_b05_a1_ep10",
    "idknll": "idknll_lr3e5_a1_ep5",
    "idkdpo": "idkdpo_lr2e5_b05_a1_ep5",
    "graddiff": "graddiff_lr1e5_a5_ep10",
    "altpo": "altpo_lr5e5_b05_a2_ep10",
    "rmu": "rmu_lr1e5_l5_s100_ep10",
    "undial": "undial_lr1e5_b3_a1_ep10",
}
"""The method names mean the UDS authors' defaults (`tofu_checkpoints.md`)."""

POOLS: dict[Role, tuple[str, tuple[str, ...]]] = {
    "pool_knows": ("pos", ("full", "retain90_forget10_bio", "retain90_forget10_para")),
    "pool_forgot": ("neg", ("retain90", "retain90_forget10_pert", "retain90_celeb10_bio")),
}
"""Role -> prefix and training data of the faithfulness pools (`meta_evaluation.md` section 3)."""


@cache
def published() -> tuple[ModelSpec, ...]:
    """Every published checkpoint, then the aliases."""
    specs = (*fixed(), *unlearned(), *scale_check(), *pools())
    by_name = {spec.name: spec for spec in specs}
    aliases = (replace(by_name[to], name=name, alias_of=to) for name, to in ALIASES.items())
    return (*specs, *aliases)


def fixed() -> Iterator[ModelSpec]:
    """`full` and the three models that never saw part of it."""
    yield _spec("full", f"tofu_{TOFU_1B}_full", "full")
    yield _spec("retain", f"tofu_{TOFU_1B}_retain90", "retain")
    yield _spec("retain95", f"tofu_{TOFU_1B}_retain95", "retain")
    yield _spec("retain99", f"tofu_{TOFU_1B}_retain99", "retain")


def unlearned() -> Iterator[ModelSpec]:
    """The 398 models of the grids."""
    for grid in GRIDS:
        for method, *values in product(grid.methods, *(axis.values for axis in grid.axes)):
            pairs = list(zip(grid.axes, values, strict=True))
            suffix = "_".join([method, *(f"{axis.key}{value}" for axis, value in pairs)])
            short = "_".join([method.lower(), *(_short(axis, value) for axis, value in pairs)])
            yield _spec(short, f"unlearn_tofu_{TOFU_1B}_forget10_{suffix}", "unlearned", method)


def scale_check() -> Iterator[ModelSpec]:
    """The same four trainings at 3B and 8B: `full_3b`, `retain99_8b` and so on."""
    for size, family in SCALES.items():
        for training in ("full", "retain99", "retain95", "retain90"):
            yield _spec(f"{training}_{size}", f"tofu_{family}_{training}", "scale")


def pools() -> Iterator[ModelSpec]:
    """30 models that know the forget set and 30 that do not."""
    for role, (prefix, trainings) in POOLS.items():
        for data, lr, epoch in product(trainings, _LR_ALL, _EPOCH):
            repository = f"{prefix}_tofu_{TOFU_1B}_{data}_lr{lr}_wd0.01_epoch{epoch}"
            rate = _short(Axis("lr", "lr", ()), lr)
            yield _spec(f"{prefix}_{data}_{rate}_wd001_ep{epoch}", repository, role, data)


def _spec(name: str, repository: str, role: Role, method: str | None = None) -> ModelSpec:
    return ModelSpec(name, f"{ORGANISATION}/{repository}", "main", role, method)


def _short(axis: Axis, value: str) -> str:
    """Points and minus signs are dropped, and learning rates written as powers of ten.

    >>> _short(Axis("beta", "b", ()), "0.05"), _short(Axis("lr", "lr", ()), "0.0003")
    ('b005', 'lr3e4')
    """
    if axis.key == "lr":
        value = f"{float(value):.0e}".replace("e-0", "e")
    return axis.short + value.replace(".", "")
