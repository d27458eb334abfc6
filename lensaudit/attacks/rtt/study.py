"""What is run: models, data, grid and gates, unfolded into content-hashed jobs.

The learning rate is constant after its rise, so the model after epoch e of a long run is the model
of a run of e epochs: one run gives every epoch of the grid.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from random import Random
from typing import Any

import torch
from torch import Tensor

from lensaudit.attacks.in_memory import memory_hash, readout_rows
from lensaudit.attacks.rtt.data import Dataset
from lensaudit.attacks.rtt.log import (
    CONDITIONS,
    Place,
    Reading,
    Role,
)
from lensaudit.attacks.rtt.readout import (
    EncodedItem,
    EncodedSplit,
    Letters,
    encode_split,
    letters_of,
    others_than,
    read,
)
from lensaudit.attacks.settings import (
    Readout,
    StudySettings,
)
from lensaudit.errors import InputError
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.text import digest
from lensaudit.training.train import Recipe

COMMAND = "rtt run"
SCHEMA = 1
"""Of a job's identity: raised when equal settings would give other numbers."""


LRS = (2e-6, 5e-6, 1e-5, 2e-5, 5e-5)
"""For float32 master weights and AdamW; upstream's 1e-7 to 3.2e-6 belong to Lion on half-precision
weights, most of which such steps do not move (`rtt.md` section 5)."""
SCORE_BATCH = 16
"""Sequences per forward pass of a readout; changes rounding only."""


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
    return StudySubject(name, memory_hash(model), model.eval, method)


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
    settings: StudySettings
    """Whose names and places were read before."""

    @property
    def subjects(self) -> dict[Role, StudySubject]:
        """The models that take part, by role."""
        every = zip(CONDITIONS, (self.original, self.unlearned, self.control), strict=True)
        return {role: one for role, one in every if one is not None}

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """The first one selects and is reported; the other is logged, where it can be read."""
        if self.settings.readout == "answer":
            return ("answer", "letter") if self.letters else ("answer",)
        return ("letter", "answer")

    @property
    def sweep(self) -> dict[str, Any]:
        """What is tried in each run on T, as log and summary have it."""
        how = self.settings
        return {
            "lrs": list(how.lrs or LRS),
            "n_epochs": how.epochs,
            "batch_size": how.batch_size,
            "n_warmup": how.warmup,
            "loss_on": how.loss_on or "all",
            "weight_decay": how.weight_decay,
            "max_grad_norm": Recipe.max_grad_norm,
            "trainable": how.trainable,
            "seed": how.cut.seed,
        }

    @property
    def gate(self) -> dict[str, float]:
        """When recovery means nothing, as the log has it; 0 switches a gate off."""
        return {name: getattr(self.settings, name) for name in ("min_baseline", "min_drop")}

    @cached_property
    def encoded(self) -> Mapping[str, EncodedSplit]:
        """Every split as tokens, by name."""
        loss_on = self.sweep["loss_on"]
        return {
            name: encode_split(self.tokenizer, items, loss_on)
            for name, items in self.data.splits.items()
        }

    @cached_property
    def letters(self) -> Letters:
        """The letters' tokens; none where they are not single tokens and answers are reported.

        Raises:
            InputError: they are not single tokens.
        """
        try:
            return letters_of(self.tokenizer, self.data.n_choices)
        except InputError:
            if self.settings.readout == "answer":
                return ()
            raise

    @cached_property
    def held_out(self) -> tuple[str, ...]:
        """The splits that take turns as V, in their order; the same for every condition.

        Raises:
            InputError: no such split, or more than there are.
        """
        names, how = list(self.data.splits), self.settings
        if unknown := [one for one in how.hold_out if one not in names]:
            raise InputError(
                f"{self.data.name}: no split {unknown[0]!r}; wanted {', '.join(names)}"
            )
        if how.hold_out:
            return tuple(name for name in names if name in how.hold_out)
        if how.v_runs > len(names):
            raise InputError(
                f"{how.v_runs} splits to hold out, but {self.data.name} has {len(names)}"
            )
        # upstream fork's draw: a seed that every model of a data set shares
        seed = how.cut.seed if how.eval_seed is None else how.eval_seed
        text = f"{seed}-{self.data.name}".encode()
        digest = hashlib.md5(text, usedforsecurity=False).hexdigest()
        drawn = Random(int(digest, 16)).sample(range(len(names)), how.v_runs)
        return tuple(names[one] for one in sorted(drawn))

    def puts_back(self, role: Role) -> bool:
        """Whether exchanged rows of this model's readout are put back before retraining."""
        return self.settings.match_readout and role != "original"

    def sample_of_t(self, held_out: str) -> list[EncodedItem]:
        """A sample of T with as many items as V has, the same in every run."""
        items = [*chain(*(one.items for one in others_than(held_out, self.encoded)))]
        n = min(len(items), len(self.encoded[held_out].items))
        return Random(self.settings.cut.seed).sample(items, n)

    def read(self, model: Any, items: Sequence[EncodedItem]) -> tuple[Reading, ...]:
        """The readings of a model in eval mode, the one that is reported first."""
        return read(
            model, items, readouts=self.readouts, letters=self.letters, batch_size=SCORE_BATCH
        )

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
                "sweep": self.sweep,
                "readouts": list(self.readouts),
                **({"match_readout": True} if self.settings.match_readout else {}),
            }
        )[:16]

    @cached_property
    def study_id(self) -> str:
        """Content hash of procedure, models and gates."""
        models = {role: one.weights for role, one in self.subjects.items()}
        return digest([self.signature, models, self.gate])[:16]


Jobs = Mapping[Place, Mapping[str, Any]]
"""Units of work, each with what it is known by: content hashes and settings as plain JSON."""


def job_id_of(identity: Mapping[str, Any]) -> str:
    """Content hash of a job."""
    return digest(identity)[:16]


def measuring(study: Study, role: Role) -> Jobs:
    """The model as it is, on every split."""
    identities = {name: job_identity(study, role, name) for name in study.encoded}
    return {
        Place(CONDITIONS[role][0], name, None, job_id_of(one)): one
        for name, one in identities.items()
    }


def retraining(study: Study, role: Role) -> Jobs:
    """The model retrained on T, for every held-out split and learning rate."""
    # the original's own rows are where they were: C is the same run with and without
    matched = {"readout_of": study.original.weights} if study.puts_back(role) else {}
    training = {key: value for key, value in study.sweep.items() if key != "lrs"}
    others = {name: others_than(name, study.encoded) for name in study.held_out}
    identities = {
        (name, lr): {
            **job_identity(study, role, name),
            "t": [one.trained_digest for one in others[name]],
            "t_read": [one.scored_digest for one in others[name]],
            "lr": lr,
            "training": training,
            **matched,
        }
        for name, lr in product(study.held_out, study.settings.lrs or LRS)
    }
    return {Place(CONDITIONS[role][1], *at, job_id_of(one)): one for at, one in identities.items()}


def job_identity(study: Study, role: Role, split: str) -> dict[str, Any]:
    """What tells a measurement of a model on a split from others."""
    return {
        "schema": SCHEMA,
        "weights": study.subjects[role].weights,
        "v": study.encoded[split].scored_digest,
        "readouts": list(study.readouts),
        "letters": [list(ids) for ids in study.letters],
        "master_dtype": "float32",
        "optimizer": "adamw",
    }


def no_letters(tokenizer: Any, n_choices: int) -> str | None:
    """Why a model of this tokenizer cannot be read by letter; None where it can."""
    try:
        letters_of(tokenizer, n_choices)
    except InputError as error:
        return str(error).partition(";")[0]
    return None


def plan_of(study: Study) -> Jobs:
    """Every job of a study in the order they are done, checked before any model is loaded.

    Raises:
        InputError: the data, the letters, the splits or the grid cannot be used.
    """
    lrs = study.settings.lrs or LRS
    if not all(math.isfinite(lr) and lr > 0 for lr in lrs) or len(set(lrs)) != len(lrs):
        raise InputError(f"learning rates {lrs}: wanted one or more, above 0, each once")
    if study.tokenizer.eos_token_id is None:
        raise InputError(
            "the tokenizer has no end-of-text token; set eos_token in its configuration"
        )
    _ = study.letters  # says what is wrong with it
    if small := [name for name in study.held_out if len(study.encoded[name].items) < 2]:
        raise InputError(f"split {small[0]} holds 1 item, wanted 2 or more to select by halves")
    return {
        place: identity
        for what in (measuring, retraining)
        for role in study.subjects
        for place, identity in what(study, role).items()
    }
