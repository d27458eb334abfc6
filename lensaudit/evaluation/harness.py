"""A model as it is asked for, quantised or steered, run through lm-evaluation-harness."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch

from lensaudit.errors import InputError
from lensaudit.evaluation.lmeval import Arguments, Outcome, check_installed, run_tasks
from lensaudit.evaluation.settings import HarnessSettings
from lensaudit.files import slug
from lensaudit.models.bridge import bridge_from, intervening
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.conditions import conditions_of
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.quantize import quantise_in_place
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.interventions import add, project_out
from lensaudit.results.records import claim, manifest
from lensaudit.settings import plain, results_folder
from lensaudit.steer.vector import SteeringVector, load_vector


@dataclass(frozen=True)
class Edit:
    """What is done to the model before it is asked."""

    quantize: Any = None
    vector: SteeringVector | None = None
    coefficient: float = 1.0
    ablate: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What decides numbers."""
        steered = None
        if self.vector is not None:
            steered = [self.vector.hash(), "ablate" if self.ablate else self.coefficient]
        return {"quantize": self.quantize, "steer": steered}


def run_harness(settings: HarnessSettings, notice: Callable[[str], None]) -> Outcome:
    """Run the tasks; write their results and a manifest.

    Raises:
        InputError: an unknown name or task, or the harness is not installed.
        WorkError: a task has no number.
    """
    check_installed()
    started = time.monotonic()
    checkpoint = open_checkpoint(resolve(settings.model, load_registry(settings.registry)))
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    edit = edit_of(checkpoint, settings)
    given = Arguments(**{one.name: getattr(settings, one.name) for one in fields(Arguments)})
    name = f"{slug(settings.model)}-lm-eval"
    folder = settings.out or results_folder() / name
    claim(folder, "lm-eval", ["LMEval_SUMMARY.json"])
    conditions = conditions_of(checkpoint, dtype=dtype, device=device, attention=settings.attn)
    identity = {
        "weights": checkpoint.weights,
        "tokenizer": checkpoint.tokenizer,
        **conditions.as_run(),
        **edit.identity,
    }
    with edited(checkpoint, edit, dtype=dtype, device=device, attn=settings.attn) as (
        model,
        tokenizer,
    ):
        found = run_tasks(
            model,
            tokenizer,
            [one.strip() for one in settings.tasks.split(",") if one.strip()],
            folder,
            identity=identity,
            arguments=given,
            include=settings.include,
            report=notice,
        )
    asked = {"tasks": settings.tasks, "include": plain(settings)["include"]}
    inputs = {"model": {"name": settings.model, "weights": checkpoint.weights}, **identity}
    manifest(
        "lm-eval", options={**vars(given), **asked}, inputs=inputs, device=device, started=started
    ).write(folder, found.files)
    return found


def edit_of(checkpoint: Checkpoint, settings: HarnessSettings) -> Edit:
    """The edit of the model.

    Raises:
        InputError: settings contradict each other, or the vector is of another model.
    """
    if settings.steer is None:
        if settings.ablate:
            raise InputError("--ablate removes a direction; name its vector with --steer")
        if settings.coefficient != HarnessSettings.coefficient:
            raise InputError("--coefficient scales a vector; name it with --steer")
        return Edit(settings.quantize)
    vector = load_vector(
        settings.steer,
        d_model=checkpoint.d_model,
        n_layers=checkpoint.n_layers,
        name=checkpoint.spec.name,
    )
    return Edit(settings.quantize, vector, settings.coefficient, settings.ablate)


@contextlib.contextmanager
def edited(
    checkpoint: Checkpoint, edit: Edit, *, dtype: str, device: str, attn: str
) -> Iterator[tuple[Any, Any]]:
    """The Hugging Face model in memory with its edit in place, and its own tokenizer."""
    model = load_causal(checkpoint, dtype=getattr(torch, dtype), device=device, attn=attn)
    tokenizer = load_tokenizer(checkpoint)
    if edit.quantize is not None:
        quantise_in_place(model, edit.quantize)
    if edit.vector is None:
        yield model, tokenizer
        return
    vector = edit.vector
    bridge = bridge_from(model, tokenizer)
    change = (
        project_out(vector.vector) if edit.ablate else add(vector.vector, strength=edit.coefficient)
    )
    with intervening(bridge, {vector.layer: change}):
        # its modules are the bridge's: hooks act however it is called
        yield bridge.original_model, tokenizer
