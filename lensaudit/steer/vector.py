"""A direction on disk: safetensors for the numbers, JSON beside them for where they come from."""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lensaudit.errors import InputError
from lensaudit.files import digest, make_folder, read_json, write_bytes, write_json
from lensaudit.results.reading import Length, Number, Whole, checked

LAYER_CONVENTION = "block_output_0based"
"""Layer 16 is the output of block 16. Persona vectors count `hidden_states`: their 17."""
SCHEMA = "steer-vector/1"


@dataclass(frozen=True, kw_only=True)
class VectorRecord:
    """How a direction was found: what its `.json` says beside the numbers."""

    layer: Whole
    method: str
    position: str
    """Which positions were averaged: `response`, `prompt_last` or `span`."""
    trait: str = ""
    n_pos: Whole = 0
    n_neg: Whole = 0
    resid_norm: Length | None = None
    """Mean length of the stream at those positions: what a ratio is measured in."""
    scores: Mapping[str, Number | None] | None = None
    """Classification scores on rows the direction was not estimated from."""
    model: str = ""
    weights: str = ""
    """Content hash of the model the activations are of."""
    data: str = ""
    """Content hash of the contrast rows."""
    dtype: str = ""
    asked: tuple[str, ...] = ()
    """Hashes of the questions it was estimated from: none of them may be asked to test it."""


@dataclass(frozen=True, kw_only=True)
class SteeringVector(VectorRecord):
    """A direction in the residual stream after one block, and how it was found."""

    vector: Float[Tensor, " d_model"]

    @property
    def norm(self) -> float:
        """Length of the vector."""
        return float(self.vector.double().norm())

    @property
    def file_name(self) -> str:
        """Without suffix: `probe_layer16`."""
        return f"{self.method}_layer{self.layer}"

    def hash(self) -> str:
        """Content hash of the numbers and of where they are added."""
        return digest([self.layer, self.vector.double().tolist()])

    def ratio(self, coefficient: float) -> float | None:
        """Length of what is added, in lengths of the stream; None where that is not known."""
        return abs(coefficient) * self.norm / self.resid_norm if self.resid_norm else None

    def document(self) -> dict[str, Any]:
        """Provenance as JSON; the vector itself is in the safetensors file."""
        fields = {key: value for key, value in vars(self).items() if key != "vector"}
        fields["asked"] = list(self.asked)
        return {
            "schema": SCHEMA,
            "layer_convention": LAYER_CONVENTION,
            "hook": "resid_post",
            "norm": self.norm,
            "d_model": len(self.vector),
            "hash": self.hash(),
            **fields,
        }


def save_vector(vector: SteeringVector, folder: Path) -> Path:
    """Write `<method>_layer<L>.safetensors`, and last the `.json` that makes it complete."""
    make_folder(folder)
    path = folder / f"{vector.file_name}.safetensors"
    write_bytes(path, save({"vector": vector.vector.float().contiguous()}))
    write_json(path.with_suffix(".json"), vector.document())
    return path


def load_vector(path: Path, *, d_model: int, n_layers: int, name: str) -> SteeringVector:
    """A vector for a model of this shape; `.pt` files hold one tensor and name their layer.

    Raises:
        InputError: missing, damaged, not finite, zero, of another width, layer or convention.
    """
    if path.suffix == ".pt":
        vector = _load_legacy(path)
    else:
        vector = _load_own(path.with_suffix(".safetensors"))
    if len(vector.vector) != d_model:
        raise InputError(
            f"{path}: the vector has {len(vector.vector)} numbers, {name} has width {d_model}; "
            "extract it from a model of this family"
        )
    if not 0 <= vector.layer < n_layers:
        raise InputError(f"{path}: is for layer {vector.layer}, {name} has 0 to {n_layers - 1}")
    return vector


def _load_own(path: Path) -> SteeringVector:
    beside = path.with_suffix(".json")
    document = read_json(beside)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{beside}: wanted an object of schema {SCHEMA}")
    convention = document.get("layer_convention")
    if convention != LAYER_CONVENTION:
        raise InputError(
            f"{beside}: layer_convention is {convention!r}, wanted "
            f"{LAYER_CONVENTION!r} (layer 16 = output of block 16 = hidden_states[17])"
        )
    said = checked(VectorRecord, document, beside, remedy="extract the vector again")
    found = SteeringVector(vector=_checked(_tensor(path), path), **vars(said))
    if document.get("hash") != found.hash():
        raise InputError(f"{path}: its .json describes another vector; extract it again")
    return found


def _tensor(path: Path) -> Tensor:
    if not path.exists():
        raise InputError(f"{path}: no such file; its .json is there")
    try:
        with safe_open(path, framework="pt") as file:
            if list(file.keys()) != ["vector"]:
                raise InputError(f"{path}: holds {list(file.keys())}, wanted one tensor 'vector'")
            return file.get_tensor("vector")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error})") from error


def _load_legacy(path: Path) -> SteeringVector:
    """A bare tensor of `torch.save`, read without running what a pickle may hold."""
    named = re.search(r"_layer(\d+)$", path.stem)
    if named is None:
        raise InputError(f"{path}: names no layer; wanted <method>_layer<L>.pt")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: holds no plain tensor; a pickle is not run") from error
    if not isinstance(found, Tensor) or found.ndim != 1:
        raise InputError(
            f"{path}: wanted one vector; in a stack of persona vectors, row L + 1 is layer L here"
        )
    method = path.stem[: named.start()]
    return SteeringVector(
        vector=_checked(found, path), layer=int(named[1]), method=method, position="unknown"
    )


def _checked(vector: Tensor, path: Path) -> Float[Tensor, " d_model"]:
    if vector.ndim != 1 or not vector.is_floating_point():
        raise InputError(f"{path}: wanted one axis of numbers, found {list(vector.shape)}")
    if not bool(vector.isfinite().all()):
        raise InputError(f"{path}: the vector holds NaN or infinity; extract it again")
    if not bool(vector.norm() > 0):
        raise InputError(f"{path}: the vector is zero; it cannot steer")
    return vector.float()
