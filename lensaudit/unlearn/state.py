"""Where was a training run when it stopped? Weights, optimiser moments and step, in one place."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lensaudit.errors import InputError
from lensaudit.files import make_folder, os_error, read_json, sync_folder, write_json

STATE = "training.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running averages."""
WRITTEN = {"key", "file", "step", "multiplier", "losses"}
"""What the JSON of a state holds."""


@dataclass(frozen=True)
class TrainState:
    """The numbers beside the tensors."""

    step: int
    """Finished optimiser steps."""
    multiplier: float
    losses: tuple[float, ...] = ()
    """One per finished step."""


def save_state(
    folder: Path,
    key: str,
    state: TrainState,
    parameters: Mapping[str, Parameter],
    optimizer: Optimizer,
) -> None:
    """Write the tensors, then the JSON that names them, then drop older tensors."""
    make_folder(folder)
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"weight/{name}"] = parameter.detach().cpu().contiguous()
        # a parameter that the loss never reached (RMU: above its layer) has no moments
        for moment in MOMENTS if optimizer.state.get(parameter) else ():
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment].cpu().contiguous()
    file = f"training-{state.step:08d}.safetensors"
    _write_tensors(tensors, folder / file)
    write_json(folder / STATE, {"key": key, "file": file, **asdict(state)})
    for old in folder.glob("training-*.safetensors"):
        if old.name != file:
            old.unlink()


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Straight to disk, where `write_bytes` would hold a second copy of a large model."""
    partial = path.with_suffix(".partial")
    try:
        save_file(dict(tensors), partial)
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise os_error(error, path) from error
    finally:
        partial.unlink(missing_ok=True)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    advice = f"delete {path.parent} and start again"
    if not path.exists():
        raise InputError(f"{path}: is gone; {advice}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path}: is damaged ({error}); {advice}") from error


def load_state(
    folder: Path, key: str, parameters: Mapping[str, Parameter], optimizer: Optimizer
) -> TrainState | None:
    """Put weights and moments back where they were; None when the folder holds no state.

    Raises:
        InputError: the state was made with other settings, or it is damaged or not all there.
    """
    if not (folder / STATE).exists():
        return None
    content = read_json(folder / STATE)
    if not isinstance(content, dict) or not content.keys() >= WRITTEN:
        raise InputError(f"{folder / STATE}: is damaged; delete {folder} and start again")
    if content["key"] != key:
        raise InputError(
            f"{folder}: holds the state of a run with other settings (key {content['key'][:8]}…, "
            f"this run has {key[:8]}…); name another --out, or repeat the first run's options"
        )
    tensors = _read_tensors(folder / Path(content["file"]).name)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight/{name}"])
            if f"{MOMENTS[0]}/{name}" not in tensors:
                continue
            moments = {
                moment: tensors[f"{moment}/{name}"].to(parameter.device) for moment in MOMENTS
            }
            step = torch.tensor(float(content["step"]))
            optimizer.state[parameter] = {"step": step, **moments}
    return TrainState(content["step"], content["multiplier"], tuple(content["losses"]))
