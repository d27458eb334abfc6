"""The files that hold a checkpoint's weights, and what their headers say."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.results.reading import part

DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "BOOL": "bool"},
}
"""Safetensors' names of torch's types; weights come in those of floating point."""

HARMLESS = re.compile(
    r"(?:\.(?:attn|attention)\.(?:masked_)?bias|inv_freq|position_ids|token_type_ids)$"
)
"""Tensors of masks, positions and frequencies, which older versions saved and none reads."""


SINGLE = "model.safetensors"

INDEX = f"{SINGLE}.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers would load: one, or those of the index; maybe none.

    Raises:
        InputError: one is missing or damaged.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        header_of(single)
        return [single]
    if not index.is_file():
        return []
    weight_map = _weight_map(index)
    shards = [folder / name for name in sorted(set(weight_map.values()))]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise InputError(
            f"{folder}: {len(missing)} of {len(shards)} shards named in {index.name} are missing: "
            f"{', '.join(missing[:3])}; fetch the checkpoint again"
        )
    if absent := weight_map.keys() - {name for shard in shards for name in header_of(shard)}:
        raise InputError(f"{folder}: {index.name} names {min(absent)}, which is in no shard")
    return shards


def _weight_map(index: Path) -> Mapping[str, str]:
    weight_map = part(read_json(index), "weight_map")
    if not weight_map:
        raise InputError(f"{index}: no weight_map (tensor name -> file in this folder)")
    # a name with a folder in it could point anywhere on the disk
    if not all(isinstance(name, str) and Path(name).name == name for name in weight_map.values()):
        raise InputError(f"{index}: weight_map names a file outside this folder")
    return weight_map


def header_of(file: Path) -> dict[str, dict[str, Any]]:
    """Tensors of a file, each with its `dtype`, its `shape` and the byte at which it begins.

    Raises:
        InputError: header or length is damaged, or it is no safetensors.
    """
    try:
        with safe_open(file, framework="numpy"), file.open("rb") as stream:
            n_header = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(n_header))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{file}: damaged or not safetensors ({error}); fetch or save it again"
        ) from error
    header.pop("__metadata__", None)
    return {
        name: {**entry, "start": 8 + n_header + entry["data_offsets"][0]}
        for name, entry in header.items()
    }


def stored_dtype(files: Sequence[Path], config: Mapping[str, Any], packed: bool) -> str:
    """Type of the first floating-point tensor; whole numbers mean packed or damaged weights."""
    if packed:
        return str(config.get("dtype") or config.get("torch_dtype") or "float32")
    stored = [(name, one["dtype"]) for file in files for name, one in header_of(file).items()]
    for name, dtype in stored:
        if "float" not in DTYPES.get(dtype, "") and not HARMLESS.search(name):
            raise InputError(
                f"{files[0].parent}: {name} is stored as {dtype}, wanted F32, F16 or BF16; name "
                "the checkpoint it was made from, or save it dequantised"
            )
    floats = (found for _, dtype in stored if "float" in (found := DTYPES.get(dtype, "")))
    return next(floats, "unknown")
