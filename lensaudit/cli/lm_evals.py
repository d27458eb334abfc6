"""`lm-eval` behind the options: the model as it is asked for, the harness, the table."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from lensaudit.attacks.quantize import quantise_in_place
from lensaudit.errors import InputError
from lensaudit.files import canonical_json, make_folder, slug
from lensaudit.metrics.measure.lmeval import Arguments, Outcome, check_installed, run_tasks
from lensaudit.models.bridge import bridge_from, intervening
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_checkpoint
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.interventions import add, project_out
from lensaudit.results import manifest
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


def run_lm_eval(
    name: str,
    *,
    tasks: str,
    include: Path | None,
    quantize: str | None,
    steer: Path | None,
    coefficient: float,
    ablate: bool,
    registry: Path | None,
    dtype: str,
    device: str,
    attn: str,
    out: Path | None,
    as_json: bool,
    notice: Callable[[str], None],
    **arguments: Any,
) -> None:
    """Run the tasks, write results and manifest, print the values."""
    check_installed()
    started = time.monotonic()
    checkpoint = open_checkpoint(resolve(name, load_registry(registry)))
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    edit = edit_of(checkpoint, quantize, steer, coefficient, ablate)
    given = Arguments(**arguments)
    folder = make_folder(out or Path("experiments/out") / f"{slug(name)}-lm-eval")
    conditions = {"dtype": dtype, "device": device, "attn": attn}
    identity = {"weights": checkpoint.weights, "tokenizer": checkpoint.tokenizer, **conditions,
                **edit.identity}  # fmt: skip
    with edited(checkpoint, edit, dtype=dtype, device=device, attn=attn) as (model, tokenizer):
        found = run_tasks(
            model, tokenizer, [one.strip() for one in tasks.split(",") if one.strip()], folder,
            identity=identity, arguments=given, include=include, report=notice,
        )  # fmt: skip
    inputs = {"model": {"name": name, "weights": checkpoint.weights}, **identity}
    options = {**vars(given), "tasks": tasks, "include": str(include) if include else None}
    manifest("lm-eval", options=options, inputs=inputs, device=device, started=started).write(
        folder
    )
    show(found, as_json=as_json)


def edit_of(
    checkpoint: Checkpoint,
    quantize: str | None,
    steer: Path | None,
    coefficient: float,
    ablate: bool,
) -> Edit:
    """The edit of the options.

    Raises:
        InputError: they contradict each other, or the vector is of another model.
    """
    if steer is None:
        if ablate:
            raise InputError("--ablate removes a direction; name its vector with --steer")
        if coefficient != 1.0:
            raise InputError("--coefficient scales a vector; name it with --steer")
        return Edit(quantize)
    vector = load_vector(
        steer, d_model=checkpoint.d_model, n_layers=checkpoint.n_layers, name=checkpoint.spec.name
    )
    return Edit(quantize, vector, coefficient, ablate)


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


def show(found: Outcome, *, as_json: bool) -> None:
    """Print every value."""
    if as_json:
        click.echo(canonical_json(dict(found.values)))
        return
    for name, value in sorted(found.values.items()):
        click.echo(f"{name}: {'–' if value is None else f'{value:.4f}'}")
    if found.reused:
        click.echo(f"kept from before: {', '.join(found.reused)}")
    click.echo(f"written: {found.folder}")
