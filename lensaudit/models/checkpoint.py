"""What lies behind a name: a checkpoint's files, shape and content, before any weight is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.models.adapter import CONFIG, Adapter, open_adapter, trained_on
from lensaudit.models.hashing import merged_hash, tokenizer_hash, weights_hash
from lensaudit.models.hub import fetch
from lensaudit.models.spec import ModelSpec

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_VOCAB = ("vocab_size",)
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Safetensors' names of the dtypes weights come in."""

_UNLOADABLE = (OSError, ValueError, KeyError, StrictDataclassError)
"""What transformers raises for files it cannot use; the last is for a contradictory config."""


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened and checked, not loaded."""

    spec: ModelSpec
    folder: Path
    weights: str
    """Content hash of the weight files and of the configuration; with the adapter's, if any."""
    tokenizer: str
    """Content hash of the tokenizer, its special tokens and its chat template."""
    n_layers: int
    d_model: int
    d_vocab: int
    architecture: str
    """`LlamaForCausalLM`."""
    dtype: str
    """Of the stored weights: `bfloat16`; a mixed file gives its first floating-point one."""
    pickled: bool = False
    """The weights are pickles, allowed by the user; safetensors otherwise."""
    adapter: Adapter | None = None
    """Merged into the weights when they are loaded."""


def open_checkpoint(spec: ModelSpec, *, allow_pickle: bool = False) -> Checkpoint:
    """The checkpoint of `spec`, fetched if it is on the Hub; no weights are loaded.

    Safetensors only: reading a pickle runs whatever code is in it.

    Args:
        spec: from `registry.resolve`.
        allow_pickle: take `pytorch_model*.bin` where there is no safetensors file.

    Raises:
        InputError: it cannot be fetched, or a file is missing or broken.
    """
    folder = fetch(spec, allow_pickle=allow_pickle) if spec.local is None else spec.local
    if (folder / CONFIG).exists():
        raise InputError(
            f"{spec.name}: {folder} holds an adapter{trained_on(folder)}; name its base model too: "
            f"BASE+{spec.name}"
        )
    adapter = open_adapter(spec.adapter) if spec.adapter else None
    config = _config(folder)
    files = _shards(folder, "model", "safetensors")
    pickled = not files
    if pickled:
        files = _pickles(folder, spec, allow_pickle)
    text = config.get("text_config") or config
    weights = weights_hash(files, config)
    return Checkpoint(
        spec=spec,
        folder=folder,
        weights=merged_hash(weights, adapter.weights) if adapter else weights,
        tokenizer=tokenizer_hash(folder),
        n_layers=_size(text, _LAYERS, folder),
        d_model=_size(text, _WIDTH, folder),
        d_vocab=_size(text, _VOCAB, folder),
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        dtype=_stored_dtype(files, config, pickled),
        pickled=pickled,
        adapter=adapter,
    )


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's tokenizer: a fast one, which knows the character offsets of its tokens.

    Raises:
        InputError: it cannot be loaded, gives no offsets, or is larger than the vocabulary.
    """
    from transformers import AutoTokenizer  # takes seconds; opening a checkpoint does not need it

    name = checkpoint.spec.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, use_fast=True, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        # `tokenizers` raises bare Exception for a broken file; other kinds are bugs, to be seen
        if type(error) is not Exception and not isinstance(error, _UNLOADABLE):
            raise
        reason = (str(error).splitlines() or ["no reason given"])[0][:200]
        raise InputError(f"{name}: the tokenizer cannot be loaded ({reason})") from error
    if not tokenizer.is_fast:
        raise InputError(
            f"{name}: its tokenizer gives no character offsets (a slow tokenizer); save it as "
            "tokenizer.json (PreTrainedTokenizerFast)"
        )
    if len(tokenizer) > checkpoint.d_vocab:
        raise InputError(
            f"{name}: the tokenizer has {len(tokenizer)} tokens, the model {checkpoint.d_vocab}; "
            "it belongs to another model"
        )
    return tokenizer


def check_same_shape(*checkpoints: Checkpoint) -> None:
    """Refuse models that cannot be patched into the first one.

    Raises:
        InputError: depth, width, vocabulary or tokenizer differ; names all differences.
    """
    wanted, *others = checkpoints
    differences = [
        f"{found.spec.name}: {label} {_short(getattr(found, field))}, "
        f"but {wanted.spec.name} has {_short(getattr(wanted, field))}"
        for found in others
        for field, label in _SHAPE.items()
        if getattr(found, field) != getattr(wanted, field)
    ]
    if differences:
        raise InputError(
            f"models of different shape: {'; '.join(differences)}\n"
            "wanted checkpoints trained from one base model, with its tokenizer"
        )


_SHAPE = {
    "n_layers": "layers",
    "d_model": "width",
    "d_vocab": "vocabulary",
    "tokenizer": "tokenizer",
}


def _short(value: int | str) -> str:
    return value[:19] if isinstance(value, str) else str(value)


def _config(folder: Path) -> Mapping[str, Any]:
    """The model's config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder}: no config.json; wanted a folder saved by save_pretrained")
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: not a model's configuration (no model_type)")
    return config


def _size(config: Mapping[str, Any], keys: Sequence[str], folder: Path) -> int:
    """A positive whole number of the configuration, under any of its usual names."""
    value = next((config[key] for key in keys if key in config), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"{folder / 'config.json'}: {keys[0]} is {value!r}, wanted a number >= 1; is this a "
            "decoder-only language model?"
        )
    return value


def _shards(folder: Path, stem: str, suffix: str) -> list[Path]:
    """The weight files that transformers would load: one, or those of the index; none if absent."""
    single, index = folder / f"{stem}.{suffix}", folder / f"{stem}.{suffix}.index.json"
    if single.is_file():
        if suffix == "safetensors":
            _tensors(single)
        return [single]
    if not index.is_file():
        return []
    weight_map = _weight_map(index)
    shards = [folder / name for name in sorted(set(weight_map.values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of {len(shards)} shards named in {index.name} are missing: "
            f"{', '.join(missing[:3])}; fetch the checkpoint again"
        )
    if suffix == "safetensors":
        absent = weight_map.keys() - {name for shard in shards for name in _tensors(shard)}
        if absent:
            raise InputError(f"{folder}: {index.name} names {min(absent)}, which is in no shard")
    return shards


def _weight_map(index: Path) -> Mapping[str, str]:
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: no weight_map (tensor name -> file in this folder)")
    # a name with a folder in it could point anywhere on the disk
    if not all(isinstance(name, str) and Path(name).name == name for name in weight_map.values()):
        raise InputError(f"{index}: weight_map names a file outside this folder")
    return weight_map


def _tensors(shard: Path) -> list[str]:
    """Names of the tensors in a shard; its header and length are checked."""
    try:
        with safe_open(shard, framework="numpy") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{shard}: damaged or not safetensors ({error}); fetch or save it again"
        ) from error


def _pickles(folder: Path, spec: ModelSpec, allow_pickle: bool) -> list[Path]:
    """The pickled weights, or why there is nothing to load."""
    has_pickle = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
    if not allow_pickle:
        hint = "; only pickles, which can run code: " if has_pickle else "; "
        raise InputError(
            f"{spec.name}: no model.safetensors in {folder}{hint}convert it with "
            "save_pretrained (safetensors is its default)"
        )
    files = _shards(folder, "pytorch_model", "bin")
    if not files:
        raise InputError(f"{spec.name}: neither model.safetensors nor pytorch_model.bin: {folder}")
    return files


def _stored_dtype(files: Sequence[Path], config: Mapping[str, Any], pickled: bool) -> str:
    if pickled:
        return str(config.get("dtype") or config.get("torch_dtype") or "float32")
    with safe_open(files[0], framework="numpy") as tensors:
        stored = (tensors.get_slice(name).get_dtype() for name in tensors.keys())  # noqa: SIM118
        return next((_DTYPES[dtype] for dtype in stored if dtype in _DTYPES), "unknown")
