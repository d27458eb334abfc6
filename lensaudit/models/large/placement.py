"""Where do a model's weights lie: in its files, and while it runs? Decided from headers alone.

All arithmetic happens on one device. What is used outside the blocks stays there for good, and as
many blocks as fit; every other block lies at rest where there is room (another GPU, the memory of
the CPU, its own file on disk) and is brought when it is its turn (`models.large.streaming`).

Tensors are found in safetensors files by name and read one by one. Plain reads, no mapping of whole
files: what is taken of memory is the tensor that was asked for, also under a limit of the process
(`ulimit -v`). Format: huggingface.co/docs/safetensors.

Matrices that bitsandbytes packed in four bits are read as what they stand for. Beside two codes per
byte stand the sixteen levels (`quant_map`), a scale per block (`absmax`), itself in eight bits
where double quantisation was used, and the rest as JSON. Layout and arithmetic: bitsandbytes 0.50,
`functional.QuantState` and `dequantize_4bit`; arXiv:2305.14314.
"""

import gc
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Integer
from rich.filesize import decimal as size
from torch import Tensor

from lensaudit.errors import InputError, WorkError
from lensaudit.models.blocks import block_of
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.memory import free_bytes
from lensaudit.models.sizes import LEAST_BUDGET, planned_bytes
from lensaudit.models.weight_files import DTYPES, header_of, weight_files


class NoRoomError(InputError):
    """Weights that do not fit into what is free."""


@dataclass(frozen=True)
class Stored:
    """One tensor in a file; nothing of it is in memory."""

    name: str
    file: Path
    start: int
    """Byte of the file where it begins."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Size in the file, bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor:
        """The tensor, in its stored type.

        Raises:
            WorkError: the file has become shorter.
        """
        flat = torch.empty(math.prod(self.shape), dtype=self.dtype)
        self.read_into(flat)
        return flat.view(self.shape)

    def read_into(self, flat: Tensor) -> None:
        """The tensor end to end into memory of its type.

        Raises:
            WorkError: the file has become shorter.
        """
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start)
            into, done = flat.view(torch.uint8).numpy().data, 0
            while done < len(into):
                n_read = file.readinto(into[done:])  # at most 2 GiB a call
                if not n_read:
                    raise WorkError(f"{self.file}: ends inside {self.name}; fetch or save it again")
                done += n_read


def stored_tensors(folder: Path) -> Mapping[str, Stored]:
    """Every tensor of a checkpoint by name; only headers are read."""
    return {
        name: Stored(
            name, file, one["start"], getattr(torch, DTYPES[one["dtype"]]), tuple(one["shape"])
        )
        for file in weight_files(folder)
        for name, one in header_of(file).items()
    }


_STATE = ".quant_state.bitsandbytes__"

_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


@dataclass(frozen=True, eq=False)
class Packed(Stored):
    """A matrix of four bits; type and shape are those of the matrix that it stands for."""

    codes: Stored
    parts: Mapping[str, Stored]
    state: Mapping[str, Any]

    def read(self) -> Tensor:
        """The matrix, with what rounding left of it."""
        scales = self.parts["absmax"].read()
        if "nested_absmax" in self.parts:
            levels, outer = (self.parts[f"nested_{one}"].read() for one in ("quant_map", "absmax"))
            scales = from_codes(scales, levels, outer, int(self.state["nested_blocksize"]))
            scales = scales + self.state["nested_offset"]
        packed = self.codes.read().flatten().view(torch.uint8)
        n, block = math.prod(self.shape), int(self.state["blocksize"])
        # FSDP wants the bytes stored as numbers of another type (bnb_4bit_quant_storage);
        # of two codes the first lies in the upper half of a byte
        codes = torch.stack((packed >> 4, packed & 15), 1).flatten()[:n]
        levels = self.parts["quant_map"].read()
        return from_codes(codes, levels, scales, block).to(self.dtype).view(self.shape)


_AT_ONCE = 1 << 14
"""Blocks that are unpacked together: whole numbers of 8 bytes are made of their codes."""


def from_codes(
    codes: Integer[Tensor, " weight"],
    levels: Float[Tensor, " level"],
    absmax: Float[Tensor, " block"],
    block: int,
) -> Float[Tensor, " weight"]:
    """What codes stand for: their level times the scale of their block.

    >>> from_codes(torch.tensor([0, 1, 1]), torch.tensor([-1.0, 0.5]), torch.tensor([2.0, 4.0]), 2)
    tensor([-2.,  1.,  2.])
    """
    found = torch.empty(len(codes), dtype=torch.float32)
    for start in range(0, len(codes), _AT_ONCE * block):
        some = slice(start, start + _AT_ONCE * block)
        scales = absmax[start // block : start // block + _AT_ONCE].repeat_interleave(block)
        values = levels[codes[some].long()]
        found[some] = values * scales[: len(values)]
    return found


def weights_of(folder: Path) -> Mapping[str, Stored]:
    """The weights of a checkpoint by name; nothing but headers and states is read.

    Raises:
        InputError: a packed matrix is not whole.
    """
    tensors = dict(stored_tensors(folder))
    for key in [name for name in tensors if _STATE in name]:
        name = key[: key.index(_STATE)]
        try:
            state = json.loads(bytes(tensors.pop(key).read().tolist()))
            codes = tensors.pop(name)
            parts = {
                one: tensors.pop(f"{name}.{one}") for one in _PARTS if f"{name}.{one}" in tensors
            }
            dtype, shape = getattr(torch, state["dtype"]), tuple(state["shape"])
            wanted = _PARTS if "nested_offset" in state else _PARTS[:2]
            if not set(wanted) <= parts.keys() or 2 * codes.n_bytes < math.prod(shape):
                raise KeyError("scales")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{folder}: {name} is packed, and not as bitsandbytes saves four bits "
                f"({error}); fetch or save the checkpoint again"
            ) from error
        tensors[name] = Packed(name, codes.file, codes.start, dtype, shape, codes, parts, state)
    return tensors


DISK = "disk"

BESIDE = 2
"""Models of one run that are in memory together, each with one block: `full` and another."""

AHEAD = 2
"""Blocks' worth of memory for one that is read ahead: its weights, and what they are made of."""

Way = Literal["whole", "spread", "streamed"]
"""All on the device; some blocks in other memory; some blocks on disk."""


@dataclass(frozen=True)
class Placement:
    """Where the weights of a model are, and their bytes in the type it runs in."""

    device: str
    """Where it runs."""
    rest: int
    """Bytes of embeddings, final norm, unembedding: what is used outside the blocks."""
    sizes: tuple[int, ...]
    """Bytes by block."""
    blocks: tuple[str, ...]
    """By block: a device, or `disk`."""
    ahead: bool = False
    """There is room for a further block: it is read while another one computes."""

    @property
    def n_all(self) -> int:
        """Bytes of all weights."""
        return self.rest + sum(self.sizes)

    @property
    def least(self) -> int:
        """Bytes that have to be on the device at one time."""
        return self.rest + max(self.sizes, default=0)

    @property
    def way(self) -> Way:
        """Where the weights are: whole (all on the device), spread, or streamed from disk."""
        if DISK in self.blocks:
            return "streamed"
        return "whole" if set(self.blocks) <= {self.device} else "spread"


def all_on(device: str, tensors: Mapping[str, Stored], dtype: torch.dtype) -> Placement:
    """All weights on the device; sizes from the headers of a checkpoint."""
    sizes = Counter[int | None]()
    for name, tensor in tensors.items():
        sizes[block_of(name)] += math.prod(tensor.shape) * dtype.itemsize
    rest, blocks = sizes.pop(None, 0), tuple(n for _, n in sorted(sizes.items()))
    return Placement(device, rest, blocks, (device,) * len(blocks))


def placed(whole: Placement, free: Mapping[str, int | None], *, leave: int) -> Placement | None:
    """The placement that brings least; None where not even one block fits beside the rest.

    Blocks stay on the device, first ones first; then they lie on the other GPUs, in the memory of
    the CPU, and what is left on disk. Room is kept for the block whose turn it is, and for as much
    of another model; where blocks lie on disk also for the next one, if there is as much.

    Args:
        whole: all weights on the device that computes.
        free: bytes by device, in the order in which they are filled; None: not known.
        leave: bytes of each to be left for activations.
    """
    device, least = whole.device, whole.least
    on_device = free[device]
    if on_device is None or whole.n_all + leave <= on_device:
        return whole
    # of what is to be left, libraries and models that ran before may have their part already
    if least + max(0, planned_bytes(leave)) > on_device:
        # without blocks at rest elsewhere nothing has to be brought, and activations may be few
        return whole if whole.n_all <= on_device else None
    room = {device: on_device - leave - BESIDE * least}
    room |= {one: (n or 0) - leave for one, n in free.items() if one != device}
    blocks = _resting(whole.sizes, room)
    further = AHEAD * max(whole.sizes, default=0)
    if DISK not in blocks or room[device] < further:
        return replace(whole, blocks=blocks)
    blocks = _resting(whole.sizes, room | {device: room[device] - further})
    return replace(whole, blocks=blocks, ahead=True)


def _resting(sizes: Sequence[int], room: Mapping[str, int]) -> tuple[str, ...]:
    """The place of each block, the places filled in their order."""
    left, blocks = dict(room), []
    for n_bytes in sizes:
        place = next((one for one, n in left.items() if n_bytes <= n), DISK)
        if place != DISK:
            left[place] -= n_bytes
        blocks.append(place)
    return tuple(blocks)


def whole_placement(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str) -> Placement:
    """All weights on the device.

    Raises:
        NoRoomError: they take more than is free there; says what is taken, what is free, and which
            options there are.
    """
    whole, free = all_on(device, weights_of(checkpoint.folder), dtype), free_bytes(device)
    if free is not None and whole.n_all > free:
        gc.collect()  # a model that was let go holds itself until then
        free = free_bytes(device)
    if free is not None and whole.n_all > free:
        there = ", ".join(f"{size(free_bytes(one) or 0)} on {one}" for one in _places(device))
        in_half = whole.n_all // dtype.itemsize * torch.bfloat16.itemsize
        raise NoRoomError(
            f"{checkpoint.spec.name}: its weights take {size(whole.n_all)} in {_name(dtype)} "
            f"({size(in_half)} in bfloat16), free are {there}; another --device or --dtype may be "
            "enough; cache, patch, eval and audit can also run it block by block, with --device "
            "auto"
        )
    return whole


def fits_whole(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str) -> bool:
    """Whether all of the weights, in this type, fit into what is free on the device."""
    try:
        whole_placement(checkpoint, dtype=dtype, device=device)
    except InputError:
        return False
    return True


def where_spread(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: str, spread: int | None
) -> Placement | None:
    """Placement of a model that may be spread (`--device auto`); None where it may not.

    Args:
        checkpoint: an opened checkpoint.
        dtype: in which it runs.
        device: on which.
        spread: bytes to be left on each device, `--memory`; None: it may not be spread.

    Raises:
        NoRoomError: not even one block fits beside what is used outside the blocks.
    """
    # merging writes into all weights
    if spread is None or checkpoint.adapter:
        return None
    whole = all_on(device, weights_of(checkpoint.folder), dtype)
    free = {one: free_bytes(one) for one in _places(device)}
    found = placed(whole, free, leave=spread)
    if found is None or found.way != "whole":
        gc.collect()  # a model that was let go holds itself until then
        free = {one: free_bytes(one) for one in _places(device)}
        found = placed(whole, free, leave=spread)
    if found is None:
        raise NoRoomError(
            f"{checkpoint.spec.name}: embeddings and one block take {size(whole.least)} in "
            f"{_name(dtype)}, and --memory keeps {spread >> 20}M for activations; "
            f"{size(free[device] or 0)} are free on {device}; a smaller --memory "
            f"({LEAST_BUDGET >> 20}M is the least) or --dtype bfloat16 may be enough"
        )
    return found


def _places(device: str) -> Iterator[str]:
    """The device that was asked for, then the others."""
    yield device
    if torch.cuda.is_available():
        here = "cuda:0" if device == "cuda" else device
        others = (f"cuda:{at}" for at in range(torch.cuda.device_count()))
        yield from (one for one in others if one != here)
    if device != "cpu":
        yield "cpu"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def placement_of(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: str, spread: int | None
) -> Placement:
    """Where weights are put, spread or not; arguments and refusals are those of `where_spread`."""
    return where_spread(checkpoint, dtype=dtype, device=device, spread=spread) or whole_placement(
        checkpoint, dtype=dtype, device=device
    )
