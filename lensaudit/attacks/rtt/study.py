"""What is run: models, data, grid and gates, unfolded into content-hashed jobs."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from random import Random
from typing import Any

import torch
from torch import Tensor

from lensaudit.attacks.rtt.data import Dataset
from lensaudit.attacks.rtt.log import CONDITIONS, Condition, Role
from lensaudit.attacks.rtt.readout import (
    EncodedItem,
    EncodedSplit,
    Letters,
    encode_split,
    letters_of,
)
from lensaudit.attacks.settings import Gate, LossOn, Readout, StudySettings
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.models.causal import load_causal, readout_rows
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.unlearn.rows import Sample
from lensaudit.unlearn.train import Recipe

SCHEMA = 1
"""Of a job's identity: raised when equal settings would give other numbers."""


@dataclass(frozen=True)
class TrainingGrid:
    """What is tried in each run on T.

    The learning rates are for float32 master weights and AdamW; upstream's 1e-7 to 3.2e-6 belong
    to Lion on half-precision weights, most of which such steps do not move (`rtt.md` section 5).
    """

    lrs: tuple[float, ...] = (2e-6, 5e-6, 1e-5, 2e-5, 5e-5)
    n_epochs: int = StudySettings.epochs
    batch_size: int = StudySettings.batch_size
    n_warmup: int = StudySettings.warmup
    """Steps of linear rise."""
    loss_on: LossOn = "all"
    weight_decay: float = StudySettings.weight_decay
    max_grad_norm: float = 1.0
    trainable: str = ""
    """Regular expression on parameter names; empty: all."""
    seed: int = 0
    """Of the data order."""

    def n_steps(self, n_samples: int) -> int:
        """Optimiser steps of one epoch."""
        return math.ceil(n_samples / self.batch_size)

    def recipe(self, lr: float, n_samples: int) -> Recipe:
        """The training run of one learning rate."""
        return Recipe(
            n_steps=self.n_epochs * self.n_steps(n_samples),
            lr=lr,
            n_warmup=self.n_warmup,
            schedule="constant",
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            trainable=self.trainable,
        )


@dataclass(frozen=True)
class StudySubject:
    """A model that takes part."""

    name: str
    weights: str
    """Content hash."""
    load: Callable[[], Any]
    """The model in float32 and eval mode; it is trained in place and restored."""
    method: str | None = None
    """How it was unlearned, where that is known."""


def from_checkpoint(checkpoint: Checkpoint, *, device: str = "cpu") -> StudySubject:
    """A checkpoint on disk; loaded when its turn comes, and let go after it."""
    return StudySubject(
        name=checkpoint.spec.name,
        weights=checkpoint.weights,
        load=lambda: load_causal(checkpoint, device=device),
        method=checkpoint.spec.method,
    )


def in_memory(name: str, model: Any, *, method: str | None = None) -> StudySubject:
    """A model that is there already; after the run it has its weights back, bit for bit.

    Raises:
        InputError: its weights are not float32: a small learning rate would not move them.
    """
    half = {str(one.dtype) for one in model.parameters() if one.dtype != torch.float32}
    if half:
        raise InputError(f"{name}: weights are {', '.join(sorted(half))}, wanted torch.float32")
    sha = hashlib.sha256()
    for tensor_name, tensor in sorted(model.state_dict().items()):
        sha.update(tensor_name.encode())
        sha.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return StudySubject(name, f"sha256:{sha.hexdigest()}", model.eval, method)


@dataclass(frozen=True)
class Study:
    """One unlearned model under attack, with its ceiling and its floor."""

    data: Dataset
    tokenizer: Any
    original: StudySubject
    """Before unlearning: conditions 0 and C."""
    unlearned: StudySubject
    """Conditions A and B."""
    control: StudySubject | None
    """Never saw the facts: conditions N0 and N, the floor that recovery is measured from."""
    sweep: TrainingGrid = TrainingGrid()  # frozen
    readouts: tuple[Readout, ...] = ("letter", "answer")
    """The first one selects and is reported."""
    eval_splits: tuple[str, ...] = ()
    """Held out in turn; empty: `n_eval_splits` of them, drawn by `eval_seed`."""
    n_eval_splits: int = StudySettings.v_runs
    eval_seed: int = 0
    score_batch: int = 16
    """Sequences per forward pass of a readout; changes rounding only."""
    gate: Gate = Gate()  # noqa: RUF009  # it is frozen
    match_readout: bool = False
    """Exchanged rows of a readout are put back before retraining, known by the original's."""

    @property
    def subjects(self) -> dict[Role, StudySubject]:
        """The models that take part, by role."""
        named: dict[Role, StudySubject | None] = {
            "original": self.original,
            "unlearned": self.unlearned,
            "control": self.control,
        }
        return {role: one for role, one in named.items() if one is not None}

    @cached_property
    def encoded(self) -> Mapping[str, EncodedSplit]:
        """Every split as tokens, by name."""
        loss_on = self.sweep.loss_on
        return {one.name: encode_split(self.tokenizer, one, loss_on) for one in self.data.splits}

    @cached_property
    def letters(self) -> Letters | None:
        """The letters' tokens, where a letter is read.

        Raises:
            InputError: they are not single tokens.
        """
        if "letter" not in self.readouts:
            return None
        return letters_of(self.tokenizer, self.data.n_choices)

    @cached_property
    def held_out(self) -> tuple[str, ...]:
        """The splits that take turns as V, in their order; the same for every condition.

        Raises:
            InputError: no such split, or more than there are.
        """
        names = [split.name for split in self.data.splits]
        if unknown := [one for one in self.eval_splits if one not in names]:
            raise InputError(
                f"{self.data.name}: no split {unknown[0]!r}; wanted {', '.join(names)}"
            )
        if self.eval_splits:
            return tuple(name for name in names if name in self.eval_splits)
        if not 1 <= self.n_eval_splits <= len(names):
            raise InputError(
                f"{self.n_eval_splits} splits to hold out, but {self.data.name} has {len(names)}"
            )
        return tuple(names[one] for one in self._drawn(len(names)))

    def _drawn(self, n_splits: int) -> list[int]:
        """Upstream fork's draw: a seed that every model of a data set shares."""
        text = f"{self.eval_seed}-{self.data.name}".encode()
        seed = int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16)
        return sorted(Random(seed).sample(range(n_splits), self.n_eval_splits))

    def puts_back(self, role: Role) -> bool:
        """Are rows of this model's readout put back before it is retrained?"""
        return self.match_readout and role != "original"

    def trained_on(self, held_out: str) -> list[Sample]:
        """T: the samples of all other splits."""
        return [
            sample
            for name, split in self.encoded.items()
            if name != held_out
            for sample in split.samples
        ]

    def sample_of_t(self, held_out: str) -> list[EncodedItem]:
        """As many items of T as V has, the same in every run."""
        others = [split for name, split in self.encoded.items() if name != held_out]
        items = [item for split in others for item in split.items]
        n = min(len(items), len(self.encoded[held_out].items))
        return Random(self.sweep.seed).sample(items, n)

    @cached_property
    def original_readout(self) -> Tensor:
        """Readout of the original model, on the processor."""
        return readout_rows(self.original.load()).cpu().clone()

    @cached_property
    def signature(self) -> str:
        """Content hash of the procedure, without the models: B, C and N share it."""
        return digest(
            {
                "schema": SCHEMA,
                "data": {
                    name: [one.scored_digest, one.trained_digest]
                    for name, one in self.encoded.items()
                },
                "held_out": list(self.held_out),
                "sweep": asdict(self.sweep),
                "readouts": list(self.readouts),
                **({"match_readout": True} if self.match_readout else {}),
            }
        )[:16]

    @cached_property
    def study_id(self) -> str:
        """Content hash of procedure, models and gates."""
        models = {role: one.weights for role, one in self.subjects.items()}
        return digest([self.signature, models, asdict(self.gate)])[:16]


@dataclass(frozen=True)
class RttJob:
    """One unit of work and where its numbers go, known by what it computes alone."""

    condition: Condition
    split: str
    """Held out, or measured."""
    identity: Mapping[str, Any]
    """Plain JSON: content hashes and settings."""
    lr: float | None = None
    """None: the model is measured as it is."""

    @cached_property
    def job_id(self) -> str:
        """Content hash of the job."""
        return digest(dict(self.identity))[:16]


def measuring(study: Study, role: Role) -> list[RttJob]:
    """The model as it is, on every split."""
    weights = study.subjects[role].weights
    return [
        RttJob(CONDITIONS[role][0], name, job_identity(study, weights, name))
        for name in study.encoded
    ]


def retraining(study: Study, role: Role) -> list[RttJob]:
    """The model retrained on T, for every held-out split and learning rate."""
    weights = study.subjects[role].weights
    # the original's own rows are where they were: C is the same run with and without
    matched = {"readout_of": study.original.weights} if study.puts_back(role) else {}
    settings = {key: value for key, value in asdict(study.sweep).items() if key != "lrs"}
    jobs = []
    for name in study.held_out:
        others = [split for other, split in study.encoded.items() if other != name]
        identity = {
            **job_identity(study, weights, name),
            "t": [split.trained_digest for split in others],
            "t_read": [split.scored_digest for split in others],
        }
        jobs += [
            RttJob(
                CONDITIONS[role][1],
                name,
                {**identity, "lr": lr, "training": settings, **matched},
                lr,
            )
            for lr in study.sweep.lrs
        ]
    return jobs


def job_identity(study: Study, weights: str, split: str) -> dict[str, Any]:
    """What tells a measurement of a model on a split from others."""
    return {
        "schema": SCHEMA,
        "weights": weights,
        "v": study.encoded[split].scored_digest,
        "readouts": list(study.readouts),
        "letters": [list(ids) for ids in study.letters] if study.letters else None,
        "master_dtype": "float32",
        "optimizer": "adamw",
    }
