"""A model whose blocks do not all fit: each is brought to the device when it is its turn.

transformers' and accelerate's hooks on every module would do this for a plain forward pass, but
TransformerLens refuses models that lie on a GPU and elsewhere, and the sweep runs blocks by itself,
on rows of its own. Here a block's parameters stay the same objects on the same device; between its
turns they show a single NaN, so that nothing can be computed with weights that are not there.
"""

import contextlib
import copy
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

from lensaudit.models.blocks import block_name, block_of
from lensaudit.models.checkpoint import Checkpoint, config_of
from lensaudit.models.large.empty import dtypes_of, empty_model
from lensaudit.models.large.placement import (
    DISK,
    Placement,
    Stored,
    weights_of,
)
from lensaudit.models.weight_files import HARMLESS

Found = dict[str, Any]
"""What transformers says of loading: missing, unexpected and mismatched tensors."""
Read = Callable[[Stored], Tensor]
Slices = Callable[[], Sequence[Tensor]]
EXPERTS = [("MergeModulelist", 0), ("Concatenate", 1)]
"""transformers' steps from the tensors of experts to one of all of them; maybe the first alone."""
_Placed = tuple[nn.Parameter, Tensor]


@dataclass(frozen=True)
class Piece:
    """Tensors of files that become parameters of a model together: most often one that becomes one.

    transformers keeps some architectures otherwise than their files do: experts as one tensor,
    other names.
    """

    target: str
    stored: tuple[tuple[str | None, Stored], ...]
    """With the pattern of the converter that each matched."""
    converter: Any = None
    """transformers' `WeightConverter` of several."""

    def made(self, model: Any, read: Read) -> dict[str, Tensor]:
        """The parameters by name, of what `read` gives for the stored tensors."""
        if self.converter is None:
            return {self.target: read(self.stored[0][1])}
        converter = copy.deepcopy(self.converter)
        for pattern, one in self.stored:
            assert pattern is not None
            converter.add_tensor(self.target, one.name, pattern, cast(Any, read(one)))
        made = converter.convert(self.target, model=model, config=model.config)
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}

    def fill(self, model: Any, read: Read, places: Mapping[str, Tensor]) -> None:
        """The parameters into their places; tensor by tensor where none of them is changed."""
        parts = self._parts(places)
        if parts is None:
            for name, tensor in self.made(model, read).items():
                places[name].copy_(tensor)
        for one, place in parts or ():
            straight = read is _from_file and type(one) is Stored and place.is_cpu
            if straight and one.dtype == place.dtype:
                one.read_into(place.view(-1))
            else:
                place.copy_(read(one))

    def _parts(self, places: Mapping[str, Tensor]) -> list[tuple[Stored, Tensor]] | None:
        """Each stored tensor, and which part of a parameter it is; None: it is more than moved."""
        if self.converter is None:
            return [(self.stored[0][1], places[self.target])]
        steps = [(type(one).__name__, vars(one).get("dim")) for one in self.converter.operations]
        if steps not in (EXPERTS[:1], EXPERTS) or len(places) > 1:
            return None
        groups = [
            own
            for wanted in self.converter.source_patterns
            if (own := [one for pattern, one in self.stored if pattern == wanted])
        ]
        joint = places[self.target].split([group[0].shape[0] for group in groups], 1)
        return [
            pair
            for group, part in zip(groups, joint, strict=True)
            for pair in zip(group, part.unbind(0), strict=True)
        ]


def pieces_of(model: Any, tensors: Mapping[str, Stored]) -> list[Piece]:
    """What becomes of the tensors of a checkpoint, by transformers' own rules."""
    # the two take seconds to import
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    rules = get_model_conversion_mapping(model)
    renamings = [one for one in rules if isinstance(one, WeightRenaming)]
    converters = [one for one in rules if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    wanted, prefix = model.state_dict(), model.base_model_prefix
    joined: dict[str, list[tuple[str | None, Stored]]] = {}
    for name in sorted(tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
        if target not in wanted and name in wanted:
            target, pattern = name, None
        joined.setdefault(target, []).append((pattern, tensors[name]))
    return [
        Piece(target, tuple(stored), by_pattern.get(stored[0][0] or ""))
        for target, stored in joined.items()
    ]


Rests = dict[int, list[tuple[Piece, Read, Mapping[str, nn.Parameter]]]]
"""By block that lies elsewhere: its pieces, what reads each, and the parameters they become."""


class Streamed:
    """The blocks of one model, of which one at a time is on loan to the device.

    A block that was brought stays until another one is brought. While it computes, a thread reads
    the next one that lies on disk, where the placement has room for both.
    """

    def __init__(self, model: Any, placement: Placement, rests: Rests):
        self._model = weakref.ref(model)
        self.placement, self._rests = placement, rests
        self._slices: dict[int, list[tuple[Sequence[nn.Parameter], Slices]]] = {}
        self._here: int | None = None
        self._rooms: list[Tensor] = []
        """One block's weights end to end, the same memory for every block: of the one that is here,
        and of the one that is read ahead."""
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._ahead: tuple[int, Future[list[_Placed]]] | None = None
        self.n_brought = 0
        """Blocks brought so far."""

    def follow(self, layer: int, parameters: Sequence[nn.Parameter], slices: Slices) -> None:
        """Further parameters of a block, which are made of it each time it is brought."""
        if layer == self._here:
            self._leave(layer)
        if layer in self._rests:
            self._slices.setdefault(layer, []).append((parameters, slices))
            _take_away(parameters)

    def bring(self, layer: int) -> None:
        """The weights of a block to where it computes, if they are not there."""
        if layer == self._here or layer not in self._rests:
            return
        # a tensor made in inference mode could not be written to later
        with torch.inference_mode(False), torch.no_grad():
            if self._here is not None:
                self._leave(self._here)
            for one, tensor in self._filled(layer):
                one.data = tensor
            self._here = layer
            for parameters, slices in self._slices.get(layer, ()):
                for one, tensor in zip(parameters, slices(), strict=True):
                    one.data = tensor
            following, blocks = layer + 1, self.placement.blocks
            if self.placement.ahead and following < len(blocks) and blocks[following] == DISK:
                self._ahead = following, self._thread.submit(self._fill, following, self._room(1))
        self.n_brought += 1

    def _filled(self, layer: int) -> list[_Placed]:
        """The weights of a block in their room: as they were read ahead, or read now."""
        if self._ahead is not None:
            wait([self._ahead[1]])  # whoever is interrupted here: its room is written to till then
            (at, made), self._ahead = self._ahead, None
            if at == layer:
                self._rooms.reverse()
                return made.result()
        return self._fill(layer, self._room(0))

    def _fill(self, layer: int, room: Tensor) -> list[_Placed]:
        """The weights of a block end to end, and the parameters that they are; these stay."""
        rests = self._rests[layer]
        own = {name: one for *_, parameters in rests for name, one in parameters.items()}
        sizes = [one.numel() for one in own.values()]
        flat = zip(own.items(), room[: sum(sizes)].split(sizes), strict=True)
        places = {name: part.view(one.shape) for (name, one), part in flat}
        with torch.no_grad():
            for piece, read, parameters in rests:
                piece.fill(self._model(), read, {name: places[name] for name in parameters})
        return [(one, places[name]) for name, one in own.items()]

    def _room(self, at: int) -> Tensor:
        """Room for the largest block."""
        while len(self._rooms) <= at:
            blocks = [
                [one for *_, own in rests for one in own.values()] for rests in self._rests.values()
            ]
            first = blocks[0][0]
            largest = max(sum(one.numel() for one in block) for block in blocks)
            self._rooms.append(torch.empty(largest, dtype=first.dtype, device=first.device))
        return self._rooms[at]

    def _leave(self, layer: int) -> None:
        self._here = None
        for _, _, parameters in self._rests[layer]:
            _take_away(parameters.values())
        for parameters, _ in self._slices.get(layer, ()):
            _take_away(parameters)


def _take_away(parameters: Iterable[nn.Parameter]) -> None:
    for one in parameters:
        one.data = _nothing(one.shape, one.dtype, one.device)


def _nothing(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """As large as weights to look at, one NaN in memory."""
    return torch.full((), torch.nan, dtype=dtype, device=device).expand(shape)


_STREAMED: "weakref.WeakKeyDictionary[Any, Streamed]" = weakref.WeakKeyDictionary()


def streamed(model: Any) -> Streamed | None:
    """What brings the blocks of a Hugging Face model; None where all of them are in their place."""
    return _STREAMED.get(model)


@contextlib.contextmanager
def first_block_alone(model: Any) -> Iterator[None]:
    """A model of one block: what holds for every block is tried without bringing them all."""
    first = next(name for name, _ in model.named_parameters() if block_of(name) == 0)
    *path, leaf, _ = block_name(first).split(".")
    owner = model.get_submodule(".".join(path))
    blocks = getattr(owner, leaf)
    setattr(owner, leaf, blocks[:1])
    try:
        yield
    finally:
        setattr(owner, leaf, blocks)


def load_placed(
    checkpoint: Checkpoint,
    placement: Placement,
    *,
    dtype: torch.dtype,
    attn: str,
) -> tuple[Any, Found]:
    """The model with its weights where `placement` says, and what was not as configured.

    Nothing is loaded where something was not.
    """
    config = config_of(checkpoint)
    if checkpoint.packed:
        del config.quantization_config  # what is loaded is not packed
    model = empty_model(config, dtype=dtype, attn_implementation=attn)
    if (checkpoint.folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(checkpoint.folder)
    model.eval()
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(placement.device)
    shapes = {
        name: (piece, tensor.shape)
        for piece in pieces_of(model, weights_of(checkpoint.folder))
        for name, tensor in piece.made(model, _shape_alone).items()
    }
    found = _compared(model, {name: tuple(shape) for name, (_, shape) in shapes.items()})
    if not any(found.values()):
        _settle(model, dict.fromkeys(piece for piece, _ in shapes.values()), placement, dtype)
    return model, found


def _from_file(stored: Stored) -> Tensor:
    return stored.read()


def _shape_alone(stored: Stored) -> Tensor:
    return torch.empty(stored.shape, dtype=stored.dtype, device="meta")


def _compared(model: Any, there: Mapping[str, tuple[int, ...]]) -> Found:
    """What the files have, beside what the configuration wants."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = model.all_tied_weights_keys
    absent = {
        name
        for name in wanted.keys() - there.keys()
        # of two that are tied one is enough
        if not any(name in pair and set(pair) & there.keys() for pair in tied.items())
    }
    return {
        "missing_keys": _but(absent, model._keys_to_ignore_on_load_missing),
        "unexpected_keys": _but(
            {one for one in there.keys() - wanted.keys() if not HARMLESS.search(one)},
            model._keys_to_ignore_on_load_unexpected,
        ),
        "mismatched_keys": {
            (name, there[name], wanted[name])
            for name in wanted.keys() & there.keys()
            if there[name] != wanted[name]
        },
    }


def _but(names: set[str], ignored: Iterable[str] | None) -> set[str]:
    return {one for one in names if not any(re.search(pattern, one) for pattern in ignored or ())}


def _settle(model: Any, pieces: Iterable[Piece], placement: Placement, dtype: torch.dtype) -> None:
    """Every piece to where it rests: on the device, in other memory, in its file.

    The room of a block has one type. What is of another, and what is no parameter, is small, and
    stays on the device.
    """
    rests: Rests = defaultdict(list)
    wanted, settled = dtypes_of(model, dtype), set()
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for piece in pieces:
        names = piece.made(model, _shape_alone)
        if not names.keys() <= wanted.keys():
            continue  # harmless, and read by nothing
        settled |= names.keys()
        first = next(iter(names))
        layer = block_of(first)
        place = placement.device if layer is None else placement.blocks[layer]
        stays = place == placement.device or wanted[first] != dtype or first in buffers
        if layer is None or stays:
            places = {
                name: torch.empty(one.shape, dtype=wanted[first], device=placement.device)
                for name, one in names.items()
            }
            piece.fill(model, _from_file, places)
            for name, here in places.items():
                _put(model, name, here if name in buffers else nn.Parameter(here))
            continue
        parameters = {
            name: nn.Parameter(_nothing(shape.shape, dtype, placement.device), requires_grad=False)
            for name, shape in names.items()
        }
        for name, parameter in parameters.items():
            _put(model, name, parameter)
        rests[layer].append((piece, _reader(piece, place, dtype), parameters))
    model.tie_weights(missing_keys=set(wanted) - settled, recompute_mapping=False)
    brings = Streamed(model, placement, dict(rests))
    if rests:
        _STREAMED[model] = brings
        model.requires_grad_(False)  # a gradient would need the weights of all blocks at once
    for layer in sorted(rests):
        first = next(name for name in wanted if block_of(name) == layer)
        model.get_submodule(block_name(first)).register_forward_pre_hook(
            lambda *_, at=layer: brings.bring(at)
        )


def _put(model: Any, name: str, tensor: Tensor) -> None:
    """A parameter or buffer in its place."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, tensor)


def _reader(piece: Piece, place: str, dtype: torch.dtype) -> Read:
    if place == DISK:
        return _from_file
    at_rest = {one.name: one.read().to(place, dtype) for _, one in piece.stored}
    return lambda stored: at_rest[stored.name]
