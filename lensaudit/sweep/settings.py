"""What may be chosen of a sweep: its plan, how it runs, and of a training run that is watched."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.choices import in_commas
from lensaudit.settings import (
    Anchors,
    Asked,
    Machine,
    Needs,
    NeutralRows,
    Option,
    Questions,
    Seed,
    needing,
)

RELEARNED = "relearn-1ep"
"""Variant of a checkpoint that learned rows again for an epoch."""
ROLE = "role:"
"""`role:pool_knows` selects all of a role."""
_WILD = frozenset("*?[")
_INSIDE = Needs("metrics", reads=("patched",))

Metrics = Annotated[str, Option("Metric names with commas, or all.", flag="--metric", commas=True)]
Association = Annotated[
    Asked | None,
    Option(
        "Who has what, as `lensaudit know` with outputs and lens alone. "
        "[default: quick where no --metric is named]"
    ),
]


def is_pattern(name: str) -> bool:
    """Does a name stand for as many models as there are? That of a folder stands for itself.

    >>> is_pattern("runs/*"), is_pattern("role:unlearned"), is_pattern(".")
    (True, True, False)
    """
    if os.path.isdir(os.path.expanduser(name)):
        return False
    return name.startswith(ROLE) or bool(_WILD & set(name))


@dataclass(frozen=True, kw_only=True)
class PlanSettings(Machine, NeutralRows, Questions, Anchors):
    """Checkpoints, variants and measurements that a sweep consists of."""

    needs: ClassVar = needing(NeutralRows, _INSIDE) | {"exclude": (_INSIDE,)}

    def idle(self) -> Mapping[str, str]:
        """Rows to relearn where no variant is relearned -> why; see `ask.acting`."""
        if self.relearn_on is None or RELEARNED in in_commas(self.variants):
            return {}
        why = f"--set relearn-on: needs --variants {RELEARNED} (here {self.variants}); leave it out"
        return {"relearn_on": why}

    models: tuple[str, ...] = ()
    """Names, folders, patterns or `role:NAME`."""
    files: Annotated[
        tuple[Path, ...],
        Option("List of names, one per line. Repeatable.", flag="--models", is_a="file"),
    ] = ()
    variants: Annotated[str, Option("base, nf4, int8, relearn-1ep; with commas.", commas=True)] = (
        "base"
    )
    metrics: Metrics = "all"
    association: Association = None
    lens: Annotated[bool, Option("Logit Lens depth beside UDS.")] = False
    also: Annotated[
        tuple[Literal["retain", "world", "authors"], ...],
        Option("Depth on facts to keep beside UDS, as in `lensaudit patch`. Repeatable."),
    ] = ()
    relearn_on: Annotated[
        str | None,
        Option(
            "Rows that are relearned. [default: the forget set]", metavar="NAME|FILE", rare="set"
        ),
    ] = None
    out: Annotated[Path, Option("Sweep folder.", flag="--out -o")]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a sweep runs; nothing here decides a number."""

    needs: ClassVar = {
        "workers": (Needs("engine", one_of=("pool", "ray", "slurm")),),
        "gpus": (Needs("engine", one_of=("pool",)),),
        "per_gpu": (Needs("engine", one_of=("pool", "ray")),),
        "address": (Needs("engine", one_of=("ray",)),),
        **dict.fromkeys(("slurm", "cluster"), (Needs("engine", one_of=("slurm",)),)),
    }

    engine: Annotated[
        Literal["serial", "pool", "ray", "slurm"],
        Option(
            "Where units run: here one by one, in local processes, on Ray, or on Slurm through "
            "submitit.",
            typed=True,
        ),
    ] = "serial"
    workers: Annotated[
        int | None, Option("Workers at once. [default: one per GPU or 4 cores]", least=1)
    ] = None
    gpus: Annotated[str | None, Option("pool: GPU indices with commas, e.g. 0,1.", commas=True)] = (
        None
    )
    per_gpu: Annotated[
        int,
        Option("Workers that share a GPU, each with its part of the memory.", least=1, expert=True),
    ] = 1
    address: Annotated[
        str | None,
        Option(
            "ray: the cluster's address. [default: a new one on this machine]",
            typed=True,
            expert=True,
        ),
    ] = None
    slurm: Annotated[
        tuple[str, ...],
        Option(
            "slurm: parameters for submitit, e.g. slurm_partition=a100. Repeatable.",
            metavar="KEY=VALUE",
            typed=True,
            expert=True,
        ),
    ] = ()
    cluster: Annotated[
        Literal["slurm", "local", "debug"],
        Option("slurm: where submitit runs jobs; local needs no Slurm.", expert=True),
    ] = "slurm"
    max_hours: Annotated[
        float | None, Option("Stop after so many hours, once the running pass ends.", above=0)
    ] = None
    quota: Annotated[
        int | None,
        Option("Most bytes of fetched weights on disk. [default: 4 checkpoints]", is_a="bytes"),
    ] = None
    offline: Annotated[bool, Option("Fetch nothing; `sweep fetch` was run before.")] = False


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """Sample of finished units that is computed again."""

    sample: Annotated[int, Option("Units that are computed again.", least=1)] = 5
    seed: Seed = 0
    tolerance: Annotated[
        float | None, Option("Largest difference that is allowed. [default: by dtype]", least=0)
    ] = None


@dataclass(frozen=True, kw_only=True)
class WatchSettings(Machine, NeutralRows, Questions, Anchors):
    """A run of `watch`: the training run, and how each checkpoint is measured."""

    needs: ClassVar = needing(NeutralRows, _INSIDE) | {"exclude": (_INSIDE,)}

    folder: Path
    metrics: Metrics = "all"
    association: Association = None
    every_s: Annotated[float, Option("Seconds between looks.", flag="--every", least=0.1)] = 30.0
    settled_s: Annotated[
        float,
        Option("Seconds a checkpoint must be unchanged.", flag="--settled", least=0, rare="set"),
    ] = 5.0
    once: Annotated[bool, Option("Audit what is there and end.")] = False
    max_hours: Annotated[float | None, Option("End after so many hours.", least=0)] = None
    out: Annotated[
        Path | None, Option("Result folder. [default: experiments/out/watch-<folder>]")
    ] = None
