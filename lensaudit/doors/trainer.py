"""A training run that audits its own checkpoints: a callback of `transformers.Trainer`.

Each save is asked who has what, patched into `full` beside cached anchors, and read on rows to
keep, by `auditing.measuring` as in an audit: what was finished before a kill is found by content.
A callback is handed no trainer, so it keeps the one it was made with: `log` of that is the only way
to its history and to every integration (transformers 5.23, `Trainer.log`).
"""

import logging
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from lensaudit.ask.acting import acting
from lensaudit.ask.keywords import given_to
from lensaudit.association.calls import WHO_HAS_WHAT
from lensaudit.association.result import KnowResult
from lensaudit.auditing.measuring import Steps, measure, who_has_what
from lensaudit.auditing.question import asked_of_patch, controls_of, own_data, splits_of
from lensaudit.auditing.result import EvaluationResult, PatchResult
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError, PartialError
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.family import open_family
from lensaudit.models.likeness import check_same_shape
from lensaudit.models.registry import load_registry, resolve
from lensaudit.results.manifest import MANIFEST, models_in
from lensaudit.results.reading import json_object
from lensaudit.results.roles import ends_as_sources
from lensaudit.settings import (
    NO_RETAIN_MODEL,
    Asked,
    DepthGroups,
    PatchGroups,
    Place,
    RetainSet,
    results_folder,
    several,
    shared,
)
from lensaudit.sweep.attempts import AttemptFailure, failure_of
from lensaudit.sweep.watch import epoch_of, source_of
from lensaudit.text import digest
from lensaudit.verdict.collect import Keeps, kept, verdicts
from lensaudit.verdict.decide import Code, Verdict

notice = logging.getLogger(__name__).warning
"""Remarks on a result; without a handler Python prints them on stderr."""

FEWEST = 8
"""Rows that are patched first, and at least, where time is limited."""
_PATCHED = "patch-"
"""Begins the folder of a patching run; the number of its rows follows."""
_LOGGED = "lensaudit/"
_STEP = f"{_LOGGED}step"
"""Audited step: a row's own `step` is that of the training when it was logged."""
BADNESS: tuple[Code, ...] = (
    "answers",
    "hidden",
    "hidden_other_basis",
    "partly_erased",
    "unreadable",
    "undecided",
    "unscored",
    "erased",
)
"""Codes from held to erased."""


@dataclass(frozen=True, kw_only=True)
class CallbackSettings(DepthGroups):
    """Settings of the callback: saves that are audited, anchors, time limit, what follows."""

    every: int = 1
    """Of the saves; the last is always audited."""
    budget_s: float | None = None
    """Seconds an audit may take; None: all rows are patched, however long that takes."""
    keep_best: bool = False
    """Mark the best checkpoint in the trainer's state, where rotation and resuming read it."""
    stop_when: Code | None = None
    """End training at this verdict, if utility holds."""
    utility_at_least: float = 0.9
    """Share of what `full` has of rows to keep from which utility holds."""
    retain_set: RetainSet = None
    association: Asked = "quick"
    out: Place | None = None
    """Folder of all results; None: one in experiments/out for each output folder of a trainer."""
    strict: bool = False
    """Raise at the end of training if an audit failed."""


@dataclass(frozen=True)
class CheckpointAudit:
    """What was found of the checkpoint of one step."""

    step: int
    folder: Path
    """Of the checkpoint."""
    patch: PatchResult
    verdict: Verdict
    """After all that was measured of it."""
    known: KnowResult | None
    keeps: tuple[Keeps, ...]
    left_out: tuple[str, ...]
    """What was not measured, and why."""

    @property
    def utility(self) -> float | None:
        """Share of what `full` has of rows to keep; None where that was not measured."""
        return min((one.share for one in self.keeps), default=None)

    @property
    def logs(self) -> dict[str, Any]:
        """What the trainer logs; what has no value is left out, never 0."""
        found = {
            "step": self.step,
            "uds": self.patch.uds,
            "rows": self.patch.record.n_scored,
            "p": self.known and self.known.p,
            "bits": self.known and self.known.record.bits and self.known.record.bits.value,
            "keeps": self.utility,
            "verdict": self.verdict.code,
            # for integrations that plot numbers alone: 0 answers … 7 erased
            "verdict_rank": BADNESS.index(self.verdict.code),
        }
        return {f"{_LOGGED}{key}": value for key, value in found.items() if value is not None}

    def rank(self, utility_at_least: float) -> tuple[bool, int, float]:
        """Order of checkpoints: utility holds, then the verdict, then the depth."""
        holds = self.utility is not None and self.utility >= utility_at_least
        depth = self.patch.uds if self.patch.uds is not None else -1.0
        return holds, BADNESS.index(self.verdict.code), depth


class AuditCallback(TrainerCallback):
    """Audit of each checkpoint that a `transformers.Trainer` saves.

        trainer.add_callback(la.AuditCallback(trainer, full="full", retain="retain", data="f.json"))

    Logs `lensaudit/uds`, `p`, `bits`, `keeps`, `verdict` … through `trainer.log`; what a resumed
    run finds of earlier checkpoints goes to its history alone, each at its step. With `budget_s`
    who has what is asked first, then 8 rows are patched, rows to keep are read if that took no
    longer on `full`, and the rows are doubled while twice the last time is left; from then on each
    save is patched on as many, or half where time ran over. An audit that fails is a line and an
    entry of `failures`; training goes on.

    Args:
        trainer: that it is added to; one process, with a `processing_class`.
        settings: the fields of `CallbackSettings`.

    Raises:
        InputError: a name, rows or an argument of the trainer is wrong; here, before training.
    """

    def __init__(self, trainer: Trainer, **settings: Any) -> None:
        self.settings = acting(
            CallbackSettings(**given_to("AuditCallback", CallbackSettings, settings))
        )
        self.trainer = trainer
        self.audits: dict[int, CheckpointAudit] = {}
        """By step, in the order of training."""
        self.failures: dict[int, AttemptFailure] = {}
        """By step: why there is no audit of it."""
        self._n_rows = _checked(trainer, self.settings)
        self._rows: int | None = None
        """That a save is patched on, once a first audit has measured it."""
        self._last: tuple[int, Path] | None = None
        """Step and folder of the last save."""
        self._logged: set[int] = set()
        """Steps whose audit is in the trainer's history."""
        self._full: EvaluationResult | None = None
        self._kept_s = 0.0
        """That rows to keep took of `full`."""

    @property
    def out(self) -> Path:
        """Folder of all results."""
        place = Path(self.trainer.args.output_dir or ".").resolve()
        name = f"trainer-{place.name}-{digest(str(place))[:8]}"  # every grid has its `run`
        return Path(self.settings.out or results_folder() / name)

    @property
    def best(self) -> CheckpointAudit | None:
        """The audited checkpoint of the highest rank that is still there; of equals the first."""
        there = [
            one
            for one in self.audits.values()
            if one.folder.is_dir() and one.verdict.code != "unscored"
        ]
        least = self.settings.utility_at_least
        return max(there, key=lambda one: one.rank(least), default=None)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Read what `full` has of rows to keep; take up checkpoints from before a kill."""
        began = time.monotonic()
        if _why_not_kept(self.settings) is None:
            self._full = self._kept(str(self.settings.full), self.out, "full")
        self._kept_s = time.monotonic() - began
        self._logged = {int(row[_STEP]) for row in state.log_history if _STEP in row}
        self._last = None
        if state.global_step:
            for step, folder in _saved(Path(args.output_dir or ".")).items():
                if step <= state.global_step:
                    self._saw(step, folder, state, control)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Audit the checkpoint that was written just now."""
        step = state.global_step
        folder = Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        self._saw(step, folder, state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Audit the last save of a run that ended early; raise what failed, if that was asked."""
        if self._last is not None and self._last[0] not in {*self.audits, *self.failures}:
            self._take(*self._last, state, control)
        if self.settings.strict and self.failures:
            told = "; ".join(f"step {step}: {one.reason}" for step, one in self.failures.items())
            raise PartialError(f"{len(self.failures)} audits failed: {told}")

    def _saw(self, step: int, folder: Path, state: TrainerState, control: TrainerControl) -> None:
        """Audit a save, if it is its turn."""
        self._last = step, folder
        if self._is_due(step, folder, state):
            self._take(step, folder, state, control)

    def _is_due(self, step: int, folder: Path, state: TrainerState) -> bool:
        by_steps = self.trainer.args.save_strategy == SaveStrategy.STEPS
        nth = step // int(state.save_steps) if by_steps else round(epoch_of(folder) or 0)
        return nth % self.settings.every == 0 or step >= state.max_steps

    def _take(self, step: int, folder: Path, state: TrainerState, control: TrainerControl) -> None:
        """Audit a checkpoint, log what was found, and do what follows from it."""
        self.failures.pop(step, None)
        with ExitStack() as spared:
            spared.push(partial(self._failed, step))
            self.audits[step] = self._audited(step, folder)
        found = self.audits.get(step)
        if found is None:
            return
        if found.left_out:
            notice(f"step {step}: left out: {'; '.join(found.left_out)}")
        if step not in self._logged:
            self._log(found, state)
        if self.settings.keep_best and (best := self.best) is not None:
            # what rotation protects, and what the next trainer_state.json holds
            state.best_global_step, state.best_model_checkpoint = best.step, str(best.folder)
        holds = found.rank(self.settings.utility_at_least)[0]
        if found.verdict.code == self.settings.stop_when and holds:
            control.should_training_stop = True

    def _log(self, found: CheckpointAudit, state: TrainerState) -> None:
        """Log an audit; one of an earlier step goes to the history alone."""
        self._logged.add(found.step)
        if found.step == state.global_step:
            self.trainer.log(found.logs)
        else:  # `log` would stamp it with the step of now
            state.log_history.append({**found.logs, "step": found.step})

    def _failed(self, step: int, kind: Any, error: BaseException | None, trace: Any) -> bool:
        """Tell and count what went wrong: no audit is worth a training run."""
        if isinstance(error, Exception):
            self.failures[step] = failure_of(error)
            notice(f"step {step}: not audited: {self.failures[step].reason}")
        return isinstance(error, Exception)

    @ends_as_sources()  # the first checkpoint may be `full` as it was
    def _audited(self, step: int, folder: Path) -> CheckpointAudit:
        began, asked, left_out = time.monotonic(), self.settings, []
        place, known = self.out / f"step-{step}", load_registry(asked.registry)
        source = source_of(folder, str(asked.full), known)
        left_s = float("inf") if asked.budget_s is None else began + asked.budget_s
        answered = None
        if asked.association != "none":
            try:
                answered = self._known(source, place)
            except InputError as error:
                left_out.append(str(error))
        earlier = self._n_rows if asked.budget_s is None else self._rows_before(source, place)
        rows = min(earlier or FEWEST, self._n_rows)
        took, found = self._patched(source, place, rows)
        keeps, why = (), _why_not_kept(asked)
        if why is None and time.monotonic() + self._kept_s > left_s:
            why = f"would take {self._kept_s:.0f} s, as for full, and budget_s has less left"
        if why is None and self._full is not None:
            keeps = kept(self._kept(source, place).summary, self._full.summary)
        else:
            left_out.append(f"rows to keep: {why}")
        while earlier is None and rows < self._n_rows and time.monotonic() + 2 * took <= left_s:
            rows = min(2 * rows, self._n_rows)
            took, found = self._patched(source, place, rows)
        if rows < self._n_rows:
            left_out.append(f"{self._n_rows - rows} of {self._n_rows} rows are not patched")
        self._rows = max(FEWEST, rows // 2) if time.monotonic() > left_s and rows > FEWEST else rows
        _, judged = verdicts([place]).of(found.folder)
        verdict = judged.verdict if judged else found.verdict
        return CheckpointAudit(step, folder, found, verdict, answered, keeps, tuple(left_out))

    def _rows_before(self, source: str, place: Path) -> int | None:
        """Rows that these weights were patched on before a kill, else those of the last save.

        The folder may hold a step of an earlier training; fewer rows than the first are of `limit`.
        """
        weights = open_checkpoint(resolve(source, load_registry(self.settings.registry))).weights
        least, there = min(FEWEST, self._n_rows), list[int]()
        for made in place.glob(f"{_PATCHED}[0-9]*/{MANIFEST}"):
            with suppress(InputError):  # a damaged one is replaced
                found = models_in(json_object(made)).get("source", {})
                rows = int(made.parent.name.removeprefix(_PATCHED))
                if found.get("weights") == weights and rows >= least:
                    there.append(rows)
        return max(there, default=self._rows)

    def _known(self, source: str, place: Path) -> KnowResult:
        asked = self.settings
        patch = asked_of_patch(asked, asked.retain_set)
        know = who_has_what(WHO_HAS_WHAT, source, patch, controls_of([source], asked))
        if isinstance(know, str):
            raise InputError(know)
        steps = Steps(know={source: know})
        found: Any = measure([source], steps, place, notice=notice).known[source]
        return found

    def _patched(self, source: str, place: Path, rows: int) -> tuple[float, PatchResult]:
        """Seconds that it took, and what was found."""
        began = time.monotonic()
        asked = asked_of_patch(self.settings, self.settings.retain_set, limit=rows)
        at = place / f"{_PATCHED}{rows}"
        (found,) = measure([source], Steps(patch=asked), place, depths_in=at, notice=notice).depths
        return time.monotonic() - began, found

    def _kept(self, model: str, place: Path, name: str = "eval") -> EvaluationResult:
        """The probability of answers to rows to keep."""
        steps = Steps(evaluations=[(model, _asked_to_keep(self.settings), place / name)])
        return measure([model], steps, place, notice=notice).said[model]


def _checked(trainer: Trainer, settings: CallbackSettings) -> int:
    """Rows of the forget set; refuses what no audit could be made of.

    Raises:
        InputError: names what is wrong.
    """
    args, best = trainer.args, trainer.args.metric_for_best_model
    problems = (
        (
            settings.full is None or settings.data is None,
            "name full (the model before unlearning) and data (the forget rows)",
        ),
        (settings.every < 1, f"every={settings.every}; wanted 1 or more"),
        (
            settings.budget_s is not None and not settings.budget_s > 0,
            f"budget_s={settings.budget_s}; wanted seconds above 0, or None",
        ),
        (
            args.save_strategy == SaveStrategy.NO,
            "save_strategy is 'no', so nothing is saved that could be audited; set save_steps",
        ),
        (
            args.world_size > 1,
            "training has several processes; audit its folder from outside: `lensaudit watch`",
        ),
        (
            trainer.processing_class is None,
            "the trainer saves no tokenizer; give it processing_class=tokenizer",
        ),
        (
            settings.keep_best and best is not None,
            f"keep_best beside metric_for_best_model={best!r}: both mark the best checkpoint; "
            "leave one of them out",
        ),
    )
    if told := [what for wrong, what in problems if wrong]:
        raise InputError(f"AuditCallback: {told[0]}")
    retain, name = several(settings.retain), str(settings.full)
    never = () if retain == (NO_RETAIN_MODEL,) else retain
    full, _, controls = open_family((), name, never, settings.registry)
    check_same_shape(full, *controls.values())
    if not never:  # beside a retain model a map may carry streams of another size
        check_same_shape(full, _in_training(trainer, full))
    if _why_not_kept(settings) is None:
        splits_of(name, _asked_to_keep(settings))
    return len(forget_set(str(settings.data), exclude=settings.exclude, limit=settings.limit))


def _in_training(trainer: Trainer, full: Checkpoint) -> Checkpoint:
    """The model that is trained as a checkpoint of it would be, with the tokenizer of `full`."""
    model: Any = trainer.model
    sizes, spec = model.config.get_text_config(), replace(full.spec, name="the trainer's model")
    depth, width = sizes.num_hidden_layers, sizes.hidden_size
    return replace(full, spec=spec, n_layers=depth, d_model=width, d_vocab=sizes.vocab_size)


def _asked_to_keep(settings: CallbackSettings) -> EvaluateSettings:
    """What a model is asked about rows to keep."""
    data, forget = own_data(settings.data)
    return EvaluateSettings(
        **shared(settings, PatchGroups, retain=None, data=data),
        forget=forget,
        retain_set=settings.retain_set,
        metrics=("retain_Q_A_Prob",),
    )


def _why_not_kept(settings: CallbackSettings) -> str | None:
    """Why utility cannot be measured; None where it can."""
    own = own_data(settings.data)[1] is not None and settings.retain_set is None
    return "data has none; name some with retain_set" if own else None


def _saved(folder: Path) -> dict[int, Path]:
    """The trainer's own checkpoints by step, in order: whatever else is there is not its."""
    begin = f"{PREFIX_CHECKPOINT_DIR}-"
    ends = (one.name.removeprefix(begin) for one in folder.glob(f"{begin}[0-9]*") if one.is_dir())
    steps = sorted(int(end) for end in ends if end.isdecimal() and end == str(int(end)))
    return {step: folder / f"{begin}{step}" for step in steps}
