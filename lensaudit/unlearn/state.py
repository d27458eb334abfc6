"""Where was a training run when it stopped? Weights, optimiser moments and step, in one place."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lensaudit.errors import InputError, WorkError
from lensaudit.files import make_folder, os_error, read_json, sync_folder, write_json
from lensaudit.results.records import mark_of, signed

STATE = "training.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running averages."""
_OS_ERROR = re.compile(r"os error (\d+)")
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


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Failed writes of `path` as the errors a user sees, those of safetensors too.

    Raises:
        InputError | TryAgainError | WorkError: by cause; a full disk is to be tried again.
    """
    try:
        yield
    except OSError as error:
        raise os_error(error, path) from error
    except SafetensorError as error:
        # safetensors names the system's error in words: `… (os error 28)`
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise WorkError(f"{path}: {error}") from error
        code = int(number[1])
        raise os_error(OSError(code, os.strerror(code)), path) from error


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
    mark = vars(mark_of(folder / file))
    write_json(folder / STATE, signed({"key": key, "file": file, "mark": mark, **asdict(state)}))
    for old in folder.glob("training-*.safetensors"):
        if old.name != file:
            old.unlink()


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Straight to disk, where `write_bytes` would hold a second copy of a large model."""
    partial = path.with_suffix(".partial")
    try:
        with writing(path):
            save_file(dict(tensors), partial)
            os.replace(partial, path)
            sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _is_whole(content: Mapping[str, Any]) -> bool:
    """Whether a state says what it said when it was written; 0.1.0 wrote no checksum."""
    try:
        return "check" not in content or signed(content)["check"] == content["check"]
    except ValueError:  # NaN
        return False


def _read_tensors(path: Path, mark: Any) -> dict[str, Tensor]:
    advice = f"delete {path.parent} and start again"
    if not path.exists():
        raise InputError(f"{path}: is gone; {advice}")
    if mark is not None and vars(mark_of(path)) != mark:
        raise InputError(f"{path}: is damaged; {advice}")
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
    if not isinstance(content, dict) or not content.keys() >= WRITTEN or not _is_whole(content):
        raise InputError(f"{folder / STATE}: is damaged; delete {folder} and start again")
    if content["key"] != key:
        raise InputError(
            f"{folder}: holds the state of a run with other settings (key {content['key'][:8]}…, "
            f"this run has {key[:8]}…); name another --out, or repeat the first run's options"
        )
    tensors = _read_tensors(folder / Path(content["file"]).name, content.get("mark"))
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
