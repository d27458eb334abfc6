"""How does an attacked model become a checkpoint folder? As an unlearned one does."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_json
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.results import Manifest
from lensaudit.unlearn.job import STATE_FOLDER, Keyed
from lensaudit.unlearn.memory import free_bytes, n_parameters
from lensaudit.unlearn.save import copy_tokenizer, save_model


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


def begin(job: Keyed, out: Path) -> Path:
    """Mark `out` as this job's; the folder for what it keeps until it is finished."""
    folder = make_folder(make_folder(out) / STATE_FOLDER)
    write_json(folder / "job.json", {"inputs": {"key": job.key}})
    return folder


def seal(
    model: Any, start: Checkpoint, out: Path, *, dtype: torch.dtype, record: Callable[[], Manifest]
) -> None:
    """Write weights, tokenizer and, last, the manifest: a folder that has one is complete."""
    save_model(model, out, dtype=dtype)
    copy_tokenizer(start.folder, out)
    record().write(out)
    shutil.rmtree(out / STATE_FOLDER, ignore_errors=True)


def check_fits(start: Checkpoint, *, bytes_per_weight: int, device: str) -> None:
    """Refuse a model that does not fit, before it is loaded.

    Raises:
        InputError: more is needed than is free.
    """
    needed, free = bytes_per_weight * n_parameters(start.folder), free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{start.spec.name}: its weights take {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
            f"free on {device}; take a smaller model or another --device"
        )
