"""One unlearned model: from names and numbers to a checkpoint folder, resumable."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from lensaudit.data.chat import Encoding, pad_id
from lensaudit.data.facts import Fact, answered
from lensaudit.data.tofu import DEMO, TOFU_PAIRS
from lensaudit.errors import InputError
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_model
from lensaudit.models.registry import default_data
from lensaudit.results.owner import check_free
from lensaudit.text import digest
from lensaudit.training.embedded import of_embedded_family
from lensaudit.training.methods import (
    COMMON,
    METHODS,
    Hyper,
    Method,
    Unlearning,
    hyper_of,
    method_named,
    reads_reference,
)
from lensaudit.training.rows import (
    ENCODERS,
    Format,
    UnlearnBatch,
    check_formats,
    check_lengths,
    idk_lines,
    load_rows,
    rows_hash,
    unlearn_batches,
)
from lensaudit.training.settings import FORMATS, UnlearnSettings
from lensaudit.training.train import Recipe, TrainingRun, n_steps_of
from lensaudit.training.trainee import TrainingJob, made_of, rate_of

DEMO_LR = 5e-4
"""A model of a million weights needs steps that a model of a billion would not survive."""
CONSTANTS = sorted({*COMMON, *(name for method in METHODS.values() for name in method.constants)})


@dataclass(frozen=True, kw_only=True)
class UnlearnJob(TrainingJob):
    """Everything an unlearning run is made of; two equal jobs give equal weights."""

    command: ClassVar[str] = "unlearn"
    settings: UnlearnSettings
    """With the rows named that are read."""
    method: Method
    hyper: Hyper
    forget: tuple[Fact, ...]
    retain: tuple[Fact, ...]
    idk: tuple[str, ...]

    @property
    def formats(self) -> tuple[Format, ...]:
        """Form of the training rows; the embedded family knows both."""
        return FORMATS[self.settings.formats or ("both" if self.is_demo else "chat")]

    @cached_property
    def is_demo(self) -> bool:
        """Whether the start model is of the embedded family, whatever it is called."""
        return of_embedded_family(self.start)

    @property
    def sources(self) -> dict[str, str | None]:
        """What the rows were named by."""
        named = self.settings.retain_data if self.hyper.keeps else None
        return {"forget_source": self.settings.data, "retain_source": named}

    @property
    def copies(self) -> int:
        """Models in memory: the frozen start model is one."""
        return 2 if reads_reference(self.method, self.hyper) else 1

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this job from others, beside its recipe."""
        return {
            "method": self.method.name,
            "hyper": asdict(self.hyper),
            "weights": self.start.weights,
            "tokenizer": self.start.tokenizer,
            "forget": rows_hash(self.forget),
            "retain": rows_hash(self.retain) if self.retain else None,
            "idk": digest(list(self.idk)) if self.method.alternate == "idk" else None,
            "formats": list(self.formats),
            "batch_size": self.settings.batch_size,
            "seed": self.settings.seed,
            "stored": str(self.stored),
            **self.tuned,
            # 2: the retain term is read at a multiplier of 0 too
            **({} if self.hyper.epsilon is None else {"dual": 2}),
        }

    @property
    def key(self) -> str:
        """Content hash of the job."""
        return digest({"recipe": asdict(self.recipe), "identity": self.identity})

    @property
    def pairs(self) -> list[tuple[Fact, tuple[str, ...]]]:
        """Every forget row with the other answers that one access may draw."""
        if self.method.alternate == "given":
            # one row per alternative, as AltPO's data set is expanded upstream
            return [(row, (other,)) for row in self.forget for other in row.wrong]
        return [(row, self.idk) for row in self.forget]

    @property
    def recipe(self) -> Recipe:
        """Epochs become steps; what is left out is the method's published value."""
        how, method = self.settings, self.method
        rows = {
            "n_samples": len(self.pairs) * len(self.formats),
            "batch_size": how.batch_size,
            "n_accumulate": how.accumulate,
        }
        epochs = method.n_epochs if how.epochs is None else how.epochs
        n_steps = how.steps or n_steps_of(n_epochs=epochs, **rows)
        n_warmup = n_steps_of(n_epochs=how.warmup_epochs, **rows)
        default = rate_of(DEMO_LR if self.is_demo else method.lr, self.lora)
        return Recipe(
            n_steps=n_steps,
            lr=default if how.lr is None else how.lr,
            n_warmup=min(n_warmup, n_steps) if how.warmup_epochs > 0 else 0,
            schedule=how.schedule,
            n_accumulate=how.accumulate,
            weight_decay=how.weight_decay,
            max_grad_norm=how.max_grad_norm,
            trainable=how.trainable,
        )

    def check(self) -> None:
        """Find what is missing before anything is loaded.

        Raises:
            InputError: no alternates, no retain rows, rows on both sides, or too little memory.
        """
        name = self.method.name
        if self.method.alternate == "given" and not all(one.wrong for one in self.forget):
            raise InputError(
                f"{name} needs another answer for every forget row: give each a field "
                f"`alternate` (text or list of texts) in {self.settings.data}"
            )
        if self.hyper.keeps and not self.retain:
            raise InputError(
                f"{name} keeps the retain rows (alpha {self.hyper.alpha:g}): name them with "
                "--kept" + (", or give --constant alpha=0" if self.hyper.epsilon is None else "")
            )
        # a side may be annotated and the other not: what is taught is the question and its answer
        kept = {(one.question, one.answer) for one in self.retain}
        if both := [one for one in self.forget if (one.question, one.answer) in kept]:
            raise InputError(
                f"{len(both)} rows are both to be forgotten and to be kept (first "
                f"{both[0].question!r}); name other --kept"
            )
        super().check()

    def run(self, model: Any, tokenizer: Any) -> TrainingRun[UnlearnBatch]:
        """The training run on the loaded model."""
        check_formats(tokenizer, self.formats, self.start.spec.name)
        encoders = [ENCODERS[one] for one in self.formats]
        forget = [encode(tokenizer, row) for row, _ in self.pairs for encode in encoders]
        retain = [encode(tokenizer, row) for row in self.retain for encode in encoders]
        alternates = [
            tuple(encode(tokenizer, answered(row.question, other)) for other in others)
            for row, others in self.pairs
            for encode in encoders
            if others
        ]
        check_lengths(chain(forget, retain, *alternates), model.config, self.start.spec.name)
        self._check_answers(forget)
        batch = unlearn_batches(
            forget,
            retain,
            alternates,
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            pad=pad_id(tokenizer),
        )
        reference = load_causal(self.start, device=self.device) if self.copies > 1 else None
        objective = Unlearning(self.method, self.hyper, reference)
        return TrainingRun(
            objective, lambda number: batch(number).to(self.device), self.recipe, self.identity
        )

    def _check_answers(self, forget: Sequence[Encoding]) -> None:
        """Refuse answers of which the loss reads no token: a batch of them has no mean.

        Raises:
            InputError: names the first.
        """
        if "ignore_first" not in self.method.constants:
            return
        n = self.hyper.ignore_first
        if short := [at for at, row in enumerate(forget) if len(row.ids) - row.start <= n]:
            row = self.forget[short[0] // len(self.formats)]
            raise InputError(
                f"{self.method.name} leaves the first {n} tokens of an answer alone, and of "
                f"{len(short)} forget rows that is all (first {row.answer[:80]!r}); give a smaller "
                "--constant ignore-first, or leave them out of the data"
            )

    def plan(self, out: Path | None) -> list[str]:
        """What would be done, line by line."""
        how, recipe = self.settings, self.recipe
        n_sequences = recipe.n_steps * recipe.n_accumulate * how.batch_size
        constants = {name: getattr(self.hyper, name) for name in (*COMMON, *self.method.constants)}
        kept = f"retain {how.retain_data}: {len(self.retain)} rows" if self.retain else ""
        return [
            f"{self.method.name} from {self.start.spec.name}: "
            + ", ".join(f"{name} {value}" for name, value in constants.items()),
            f"forget {how.data}: {len(self.forget)} rows as {'+'.join(self.formats)}; "
            + (kept or "no retain rows"),
            f"{recipe.n_steps} steps of {recipe.n_accumulate} x {how.batch_size} rows "
            f"({n_sequences} forget sequences), lr {recipe.lr:g} after {recipe.n_warmup} steps",
            f"{self.cost}; writes {out}",
        ]


def prepare(settings: UnlearnSettings) -> UnlearnJob:
    """The job that the settings describe, checked; reads data and the start model's headers.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    check_free(settings.out, UnlearnJob.command)
    method = method_named(settings.method)
    start = open_model(settings.model, settings.registry)
    constants: Mapping[str, Any] = {name: getattr(settings, name) for name in CONSTANTS}
    given = {name: value for name, value in constants.items() if value is not None}
    hyper = hyper_of(method, given, n_layers=start.n_layers)
    data = settings.data or default_data(settings.model, settings.registry)
    kept = settings.retain_data or (DEMO if data == DEMO else TOFU_PAIRS.get(data))
    job = UnlearnJob(
        **made_of(settings, start),
        settings=replace(settings, data=data, retain_data=kept),
        method=method,
        hyper=hyper,
        forget=load_rows(data, part="forget"),
        retain=load_rows(kept, part="retain") if kept and hyper.keeps else (),
        idk=idk_lines(settings.idk) if method.alternate == "idk" else (),
    )
    job.check()
    return job
