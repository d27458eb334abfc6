"""A checkpoint made of another: is it there, does it fit, how is it loaded, trained and saved?

With an adapter the base stays as it is on disk: Hu et al. 2022, arXiv:2106.09685. A checkpoint is
safetensors in a stored precision.
"""

import math
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from rich.filesize import decimal as size
from safetensors.torch import save_file

from lensaudit.errors import InputError, WorkError
from lensaudit.files import read_json, write_csv
from lensaudit.models.adapter import CONFIG, WEIGHTS, peft_for, trained_on
from lensaudit.models.causal import check_names, load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, loading
from lensaudit.models.device import resolve_device
from lensaudit.models.hashing import TOKENIZER_FILES
from lensaudit.models.memory import free_bytes
from lensaudit.models.weight_files import INDEX, SINGLE, header_of, weight_files
from lensaudit.progress import Notice, unheard
from lensaudit.results.manifest import MANIFEST, Manifest, manifest
from lensaudit.results.recorded import planned
from lensaudit.results.run_folder import RunFolder, seal
from lensaudit.text import digest
from lensaudit.training.record import AFTER, LOSSES, STATE_FOLDER
from lensaudit.training.train import (
    Recipe,
    TrainingRun,
    TrainingStep,
    checked_pattern,
    drop_state,
    first_rows_again,
    seeded,
    train,
    writing,
)
from lensaudit.turns import alone

Report = Callable[[TrainingStep], None]

ALPHA = 2
"""The adapter's output is scaled by alpha / rank with alpha = 2 rank: peft's usual choice."""
FASTER = 10
"""An adapter takes about ten times the rate of full weights, whatever its rank (Schulman et al.
2025, "LoRA Without Regret", thinkingmachines.ai)."""


def rate_of(lr: float, lora: object) -> float:
    """The learning rate of an adapter where there is one, `lr` being that of all weights."""
    return lr * FASTER if lora else lr


def adapted(model: Any, *, rank: int, seed: int) -> Any:
    """Peft's view of `model` with a new adapter on every matrix of its blocks, put on in place.

    It changes nothing until it is trained: one of its two matrices is 0, `seed` draws the other.

    Raises:
        InputError: peft is not installed.
    """
    peft = peft_for("--lora")
    config = peft.LoraConfig(
        r=rank, lora_alpha=ALPHA * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with seeded(model.device, seed):
        return peft.get_peft_model(model, config)


def check_rank(start: Checkpoint, rank: int) -> None:
    """Refuse an adapter of a higher rank than any matrix has; it may be larger than the model.

    Raises:
        InputError: the rank is above the width of the stream.
    """
    if rank > start.d_model:
        raise InputError(
            f"--lora {rank}: matrices of {start.spec.name} have rank {start.d_model} at most; "
            "wanted a rank up to that"
        )


def trainee(start: Checkpoint, lora: int | None, *, seed: int, device: str) -> tuple[Any, Any]:
    """The model that is trained, and peft's view of it where an adapter is.

    An adapter is new and of rank `lora`, or the model's own, to be trained on.

    Raises:
        InputError: peft is not installed, the model cannot be loaded, or its adapter is another's.
    """
    if lora is None:
        return load_causal(start, device=device), None
    model = load_causal(replace(start, adapter=None), device=device)
    if start.adapter is None:
        return model, adapted(model, rank=lora, seed=seed)
    name, peft = start.spec.name, peft_for(start.spec.name)
    with loading(f"{name}: cannot be trained on{trained_on(start.adapter)}"):
        wrapped = peft.PeftModel.from_pretrained(model, str(start.adapter), is_trainable=True)
        check_names(wrapped, name, start.adapter, peft)
    return model, wrapped


def save_adapter(wrapped: Any, start: Checkpoint, folder: Path, *, dtype: torch.dtype) -> None:
    """Write the adapter's matrices and settings, and of its base what `start`'s own adapter holds.

    Raises:
        InputError | TryAgainError | WorkError: by the cause of a failed write.
    """
    peft = peft_for("--lora")
    matrices = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    # embeddings can be saved beside an adapter that does not adapt them
    if start.adapter and header_of(start.adapter / WEIGHTS).keys() - matrices.keys():
        matrices = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=True)
    own = f"+{start.spec.adapter.name}" if start.spec.adapter else ""
    made = wrapped.peft_config["default"]
    # peft writes a set in the order of the process; the adapter's hash is one for equal adapters
    named = made.target_modules
    config = replace(
        made,
        target_modules=tuple(sorted(named)) if isinstance(named, set) else named,
        base_model_name_or_path=start.spec.name.removesuffix(own),
        inference_mode=True,
    )
    with writing(folder):
        save_file(
            {name: one.detach().to("cpu", dtype).contiguous() for name, one in matrices.items()},
            folder / WEIGHTS,
            metadata={"format": "pt"},
        )
        config.save_pretrained(folder)
        (folder / WEIGHTS).chmod(0o644)  # safetensors leaves it private


MODEL_CONFIG = "config.json"
COPIED = (
    *TOKENIZER_FILES,
    *("tokenizer_config.json", "chat_template.jinja", "generation_config.json"),
)
"""Files of the start model that its successor has as they are."""


def save_model(model: Any, folder: Path, *, dtype: torch.dtype) -> None:
    """Write weights and configuration; `model` is left in `dtype`.

    Raises:
        InputError | TryAgainError | WorkError: weights that are not finite, or by the cause of a
            failed write.
    """
    transformers.utils.logging.disable_progress_bar()
    check_weights(model.to(dtype))
    with writing(folder):
        model.save_pretrained(folder)
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)  # safetensors leaves them private, also in a wheel


def check_weights(model: Any) -> None:
    """Refuse a model with a weight that is NaN or infinite: whatever it says is no answer.

    Raises:
        WorkError: counts such tensors and names the first.
    """
    bad = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
    if bad:
        raise WorkError(
            f"{len(bad)} weight tensors are not finite (first {bad[0]}), nothing was saved; take "
            "a smaller learning rate"
        )


def copy_tokenizer(start: Path, folder: Path) -> None:
    """The start model's tokenizer, byte for byte: patching wants the same one in both."""
    with writing(folder):
        for name in COPIED:
            if (start / name).exists():
                shutil.copyfile(start / name, folder / name)


def stored_dtype(start: Checkpoint, named: str) -> torch.dtype:
    """The precision of saved weights: a name, or `same` as the start model's.

    Raises:
        InputError: the start model's is none that torch has.
    """
    name = start.dtype if named == "same" else named
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{start.spec.name}: weights of dtype {name}; name one with --store")
    return dtype


def seal_model(
    model: Any,
    start: Checkpoint,
    out: Path,
    *,
    dtype: torch.dtype,
    key: str,
    record: Callable[[], Manifest],
    beside: str,
    wrapped: Any = None,
) -> None:
    """Write weights, tokenizer and, last, the manifest over them: what else is there is not ours.

    `wrapped`: peft's view of the model, whose adapter is written and nothing else.
    """
    if wrapped is None:
        save_model(model, out, dtype=dtype)
        copy_tokenizer(start.folder, out)
    else:
        check_weights(model)
        save_adapter(wrapped, start, out, dtype=dtype)
    files = [one.name for one in _saved_in(out, beside) if one.exists()]
    seal(out, record(), key=key, files=files)
    drop_state(out / STATE_FOLDER)


def _saved_in(folder: Path, beside: str) -> Iterator[Path]:
    """The files that a checkpoint or an adapter is saved as, and what is beside, there or not."""
    names = (CONFIG, WEIGHTS, MODEL_CONFIG, SINGLE, INDEX, *COPIED, beside)
    yield from (folder / name for name in names)
    yield from folder.glob("model-[0-9]*-of-[0-9]*.safetensors")


TRAINING_COPIES = 4
"""float32 weights, gradients and AdamW's two moments."""
BYTES = 4


def n_parameters(folder: Path) -> int:
    """Weights of a checkpoint, from the headers of its safetensors files."""
    headers = (header_of(file).values() for file in weight_files(folder))
    return sum(math.prod(one["shape"]) for header in headers for one in header)


def training_bytes(n_weights: int, *, copies: int, frozen: bool = False) -> int:
    """Bytes of weights, gradients, moments and, with two copies, of the frozen reference.

    Activations come on top and depend on the batch. Frozen weights, below an adapter, have neither
    gradients nor moments, and the adapter's own, a hundredth or so, are not counted.

    >>> training_bytes(1_000_000_000, copies=2) / 1e9
    20.0
    >>> training_bytes(1_000_000_000, copies=2, frozen=True) / 1e9
    8.0
    """
    return BYTES * n_weights * ((1 if frozen else TRAINING_COPIES) + copies - 1)


def check_memory(start: Checkpoint, *, copies: int, device: str, frozen: bool = False) -> None:
    """Refuse a run whose weights alone do not fit.

    Raises:
        InputError: more is needed than is free.
    """
    needed = training_bytes(n_parameters(start.folder), copies=copies, frozen=frozen)
    free = free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{start.spec.name}: training in float32 takes {size(needed)} for weights"
            f"{'' if frozen else ', gradients, moments'}{' and reference' if copies > 1 else ''}, "
            f"activations apart; {size(free)} are free on {device}; take a smaller model"
            f"{'' if frozen else ', --lora'} or another --device"
        )


def check_apart(out: Path, *read: Checkpoint) -> None:
    """Refuse a folder that holds a model which is read: what is replaced goes before it is loaded.

    Raises:
        InputError: names the model.
    """
    place = Path(os.path.realpath(out))  # a link to itself is refused where it is written
    for one in read:
        folders = filter(None, (one.folder, one.adapter))
        # a folder may consist of links
        files = (file.resolve() for folder in folders for file in folder.iterdir())
        if any(file.is_relative_to(place) and file != place for file in files):
            raise InputError(
                f"{out}: holds the model {one.spec.name}, which this run reads; name another --out"
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointJob(ABC):
    """A checkpoint that is made of another; two jobs of one key give equal weights."""

    command: ClassVar[str]
    beside: ClassVar[str]
    """File that `made` writes beside the weights."""
    start: Checkpoint
    stored: torch.dtype
    """What weights are saved in."""
    device: str

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What tells this job from others."""

    @property
    def key(self) -> str:
        """Content hash of the job."""
        return digest(self.identity)

    @property
    def options(self) -> dict[str, Any]:
        """What was chosen and stands in no `identity`, for the manifest."""
        return {}

    @property
    def inputs(self) -> dict[str, Any]:
        """What tells this job from others and the start model's name, for the manifest."""
        return {**self.identity, "start": self.start.spec.name}

    @property
    def sources(self) -> Mapping[str, str | None]:
        """What rows were named by, for the manifest."""
        return {}

    @abstractmethod
    def check(self) -> None:
        """Find what is missing before anything is loaded.

        Raises:
            InputError: what it is; or too little memory.
        """

    @abstractmethod
    def plan(self, out: Path | None) -> list[str]:
        """What would be done, line by line."""

    def folder(self, out: Path, *, force: bool = False, tell: Notice = unheard) -> RunFolder:
        """The folder of the checkpoint; `force` replaces that of another job of the command.

        Raises:
            InputError: the start model lies in it.
        """
        check_apart(out, self.start)
        how = {"force": force, "tell": tell}
        # what only some jobs have is nothing in the others
        inputs = {"lora": None, "autocast": None, **self.inputs}
        asked = {"options": self.options, "inputs": inputs}
        return RunFolder(usual=out, command=self.command, key=self.key, asked=asked, **how)

    def begin(self, run: RunFolder) -> None:
        """Mark the folder as this job's; what a job that is replaced has left there goes first."""
        if run.is_replacing:
            drop_state(run.path / STATE_FOLDER)
            if not (run.path / MANIFEST).exists():  # it was killed before it named its files
                for one in _saved_in(run.path, self.beside):
                    one.unlink(missing_ok=True)
        run.begin()

    def planned(self, out: Path, *, force: bool = False, tell: Notice = unheard) -> str:
        """Plan of a run into a folder, in lines.

        Raises:
            InputError: the folder holds something else.
        """
        run = self.folder(out, force=force, tell=tell)
        return planned(run, lambda: "\n".join(self.plan(out)), what="model")

    @abstractmethod
    def made(self, out: Path, report: Report) -> tuple[Any, Any, dict[str, Any]]:
        """The model, peft's view of it if an adapter moved, and options; tables are in `out`."""

    def make(
        self,
        out: Path,
        report: Report = unheard,
        *,
        force: bool = False,
        tell: Notice = unheard,
    ) -> bool:
        """Have checkpoint, tables and `manifest.json` in `out`; False if they were there before.

        Raises:
            InputError: the model or tokenizer cannot be used, or `out` holds something else.
            TryAgainError: another process makes a model in it.
            WorkError: a weight is not finite, or the loss diverged; the last saved state is kept.
        """
        run, state = self.folder(out, force=force, tell=tell), out / STATE_FOLDER
        if run.is_done and not state.exists():
            return False  # it may lie where nobody writes
        with alone(out):
            if run.is_done:
                # of a run that was killed between its manifest and its last line
                drop_state(state)
                return False
            started = time.monotonic()
            self.begin(run)
            model, wrapped, options = self.made(out, report)
            seal_model(
                model,
                self.start,
                out,
                dtype=self.stored,
                key=self.key,
                beside=self.beside,
                record=lambda: manifest(
                    self.command,
                    kind="checkpoint",
                    options=options,
                    inputs={**self.inputs, "key": self.key, **self.sources},
                    device=self.device,
                    started=started,
                ),
                wrapped=wrapped,
            )
        return True


@dataclass(frozen=True, kw_only=True)
class TrainingJob(CheckpointJob):
    """A checkpoint that is trained from another, resumable."""

    beside: ClassVar[str] = LOSSES
    settings: Any
    """What was chosen; its `seed` draws a new adapter, and what dropout leaves out."""
    save_every: int | None = None
    lora: int | None = None
    """Rank of the adapter that moves; None: all weights do."""
    autocast: bool = False
    """Passes are computed in bfloat16."""

    @property
    @abstractmethod
    def recipe(self) -> Recipe:
        """Steps and learning rate."""

    @abstractmethod
    def run(self, model: Any, tokenizer: Any) -> TrainingRun[Any]:
        """Train the loaded model; `made` says where the state is kept."""

    @property
    def options(self) -> dict[str, Any]:
        """The recipe."""
        return asdict(self.recipe)

    @property
    def copies(self) -> int:
        """Models in memory."""
        return 1

    @property
    def cost(self) -> str:
        """What training holds in memory, in words."""
        n_weights, frozen = n_parameters(self.start.folder), self.lora is not None
        held = "weights" if frozen else "weights, gradients and moments"
        needed = training_bytes(n_weights, copies=self.copies, frozen=frozen)
        return f"{size(needed)} for {held} on {self.device}"

    @property
    def tuned(self) -> dict[str, Any]:
        """What tells a run of an adapter or in bfloat16 from others; nothing of what all were."""
        named = {"lora": self.lora, "autocast": self.autocast}
        return {name: value for name, value in named.items() if value}

    def check(self) -> None:
        """Find what is missing before anything is loaded.

        Raises:
            InputError: epochs that cannot be counted, no regular expression, no state within the
                run's steps, an adapter of another rank, or too little memory.
        """
        n_steps = self.recipe.n_steps
        checked_pattern(self.recipe.trainable)
        if self.save_every is not None and self.save_every > n_steps:
            raise InputError(
                f"--set save_every={self.save_every}: the run has {n_steps} steps, no state "
                f"would be kept; wanted 1 to {n_steps}"
            )
        frozen = self.lora is not None
        check_rank(self.start, self.lora or 0)
        # a model's own adapter is trained on as it is
        if frozen and self.start.adapter is not None:
            rank = read_json(self.start.adapter / CONFIG).get("r")
            if rank != self.lora:
                raise InputError(
                    f"--lora {self.lora}: {self.start.spec.name} has an adapter of rank {rank}, "
                    f"which this run trains further; give --lora {rank}"
                )
        check_memory(self.start, copies=self.copies, device=self.device, frozen=frozen)

    def made(self, out: Path, report: Report) -> tuple[Any, Any, dict[str, Any]]:
        """Train the model, and write `losses.csv`."""
        tokenizer = load_tokenizer(self.start)
        model, wrapped = trainee(self.start, self.lora, seed=self.settings.seed, device=self.device)
        run = replace(
            self.run(model, tokenizer),
            identity=self.identity,
            checkpoints=out / STATE_FOLDER,
            save_every=self.save_every,
            autocast=self.autocast,
            seed=self.settings.seed,
        )
        losses = train(model, run, report=report)
        lines = [*enumerate(losses, 1), (AFTER, first_rows_again(model, run))]
        write_csv(out / self.beside, ("step", "loss"), lines)
        return model, wrapped, {**self.options, "save_every": self.save_every}


def made_of(settings: Any, start: Checkpoint) -> dict[str, Any]:
    """What settings of any training say of a job.

    Raises:
        InputError: no such device, or no such precision.
    """
    return {
        "start": start,
        "stored": stored_dtype(start, settings.store),
        "device": resolve_device(settings.device),
        "save_every": settings.save_every,
        "lora": settings.lora,
        "autocast": settings.autocast,
    }
