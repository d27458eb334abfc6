"""What lies behind a name: a checkpoint's files, shape and content, before any weight is read."""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, told_by
from lensaudit.hub import reachable
from lensaudit.models.adapter import CONFIG, open_adapter, trained_on
from lensaudit.models.hashing import OVERRULED, merged_hash, tokenizer_hash, weights_hash
from lensaudit.models.hub_files import fetch
from lensaudit.models.registry import (
    ModelSpec,
    load_registry,
    resolve,
)
from lensaudit.models.token_ids import check_token_ids
from lensaudit.models.weight_files import INDEX, SINGLE, stored_dtype, weight_files
from lensaudit.once import once
from lensaudit.results.reading import json_object, part
from lensaudit.results.roles import InRole, ModelRole
from lensaudit.settings import Place
from lensaudit.text import digest

_BIDIRECTIONAL = re.compile(r"For(?:MaskedLM|PreTraining|\w+Classification|QuestionAnswering)$")
"""Ends of the names of classes that answer no prompt."""

_UNLOADABLE = (
    *(OSError, ValueError, LookupError, RuntimeError, ImportError, TypeError, AttributeError),
    *(ArithmeticError, AssertionError, struct.error),
)
"""What libraries raise for files they cannot use."""


@contextmanager
def loading(told: str) -> Iterator[None]:
    """Let a library work on a model's files; what it raises for broken ones is a line.

    Args:
        told: how the line begins: whose file, and what cannot be done with it.

    Raises:
        InputError: `told`, and what the library says.
        KeyboardInterrupt: a person interrupted, and the library broke over it.
    """
    try:
        yield
    except Exception as error:
        from huggingface_hub.errors import StrictDataclassError  # a tenth of a second

        if isinstance(error.__context__, KeyboardInterrupt):  # it broke while being interrupted
            raise KeyboardInterrupt from error
        # `tokenizers` raises bare Exception for a broken file, transformers its own for a
        # contradictory configuration; other kinds are bugs, to be seen
        unloadable = type(error) is Exception or isinstance(
            error, (*_UNLOADABLE, StrictDataclassError)
        )
        if not unloadable or type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        code = "transformers would need code from the Hub or the repository, which is not run"
        why = code if "trust_remote_code" in str(error) else told_by(error)
        raise InputError(f"{told} ({why})") from error


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened and checked, not loaded."""

    spec: ModelSpec
    folder: Path
    weights: str
    """Content hash of the weight files and of the configuration; with the adapter's, if any."""
    tokenizer: str
    """Content hash of the tokenizer's files; other files may do the same (`same_tokenizer`)."""
    n_layers: int
    d_model: int
    d_vocab: int
    architecture: str
    """`LlamaForCausalLM`."""
    dtype: str
    """Of the stored weights: `bfloat16`; a mixed file gives its first floating-point one."""
    packed: bool = False
    """The matrices are packed in four bits, as bitsandbytes saves them."""
    adapter: Path | None = None
    """Folder of the adapter that is merged into the weights when they are loaded."""

    @property
    def named(self) -> dict[str, str]:
        """The model in a manifest: its name, and the hashes of its content."""
        return {"name": self.spec.name, **self.spec.alias, "weights": self.weights}


@once
def open_checkpoint(spec: ModelSpec, *, allow_packed: bool = False) -> Checkpoint:
    """The checkpoint of `spec`, fetched if it is on the Hub; no weights are loaded.

    Safetensors only: reading a pickle runs whatever code is in it.

    Args:
        spec: from `registry.resolve`.
        allow_packed: take weights that bitsandbytes packed in four bits, which are read as what
            they stand for; for what trains or rounds weights they are refused.

    Raises:
        InputError: it cannot be fetched, or a file is missing or broken.
    """
    folder = fetch(spec) if spec.local is None else spec.local
    if (folder / CONFIG).exists():
        raise InputError(
            f"{spec.name}: {folder} holds an adapter{trained_on(folder)}; name its base model too: "
            f"BASE+{spec.name}"
        )
    adapter, matrices = open_adapter(spec.adapter) if spec.adapter else (None, "")
    config = _config(folder)
    packed = _check_kind(spec.name, config, allow_packed=allow_packed and adapter is None)
    files = weight_files(folder)
    if not files:
        asked = spec.local is not None or reachable()  # else they may be on the Hub
        raise InputError(
            f"{spec.name}: no {SINGLE} in {folder}; pickles can run code: convert them with "
            "save_pretrained (safetensors is its default)"
            if asked or any(folder.glob("*.bin"))
            else f"{spec.name}: its weights are not in the local cache; fetch it with a network"
        )
    dtype = stored_dtype(files, config, packed)
    text = config.get("text_config") or config
    d_vocab = _size(text, ("vocab_size",), folder)
    check_token_ids(folder, config, d_vocab)
    for heads in ("num_attention_heads", "num_key_value_heads"):
        if isinstance(text.get(heads), int):  # what has no attention says none
            _size(text, (heads,), folder)
    weights = weights_hash(files, config)
    return Checkpoint(
        spec=spec,
        folder=folder,
        weights=merged_hash(weights, matrices) if adapter else weights,
        tokenizer=tokenizer_hash(folder),
        n_layers=_size(text, ("num_hidden_layers", "n_layer", "num_layers"), folder),
        d_model=_size(text, ("hidden_size", "n_embd", "d_model"), folder),
        d_vocab=d_vocab,
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        dtype=dtype,
        packed=packed,
        adapter=adapter,
    )


def open_model(
    name: str, registry: Place | None = None, *, allow_packed: bool = False
) -> Checkpoint:
    """The checkpoint that a name means, see `registry.resolve` and `open_checkpoint`.

    Raises:
        InputError: no such name, or its files are missing or broken.
    """
    return open_checkpoint(resolve(name, load_registry(registry)), allow_packed=allow_packed)


def in_role(role: ModelRole, *models: Checkpoint) -> list[InRole]:
    """Opened models in a role, for `check_roles`."""
    return [InRole(role, one.spec.name, one.weights) for one in models]


def place_of(role: ModelRole, spec: ModelSpec) -> InRole:
    """A model in a role, by weights if it lies in a folder; the Hub is not asked for any."""
    if spec.is_here:
        return in_role(role, open_checkpoint(spec, allow_packed=True))[0]
    beside = spec.adapter and [spec.adapter.repo, spec.adapter.revision]
    return InRole(role, spec.name, digest([spec.repo, spec.revision, beside]))


def config_of(checkpoint: Checkpoint) -> Any:
    """The checkpoint's configuration as transformers reads it, defaults filled in.

    Who loads says which attention and which files: a configuration may name others, and even a
    repository of code.

    Raises:
        InputError: an unknown architecture, or one that needs code of its own.
    """
    from transformers import AutoConfig  # takes seconds; opening a checkpoint does not need it

    with loading(f"{checkpoint.spec.name}: its configuration cannot be read"):
        return AutoConfig.from_pretrained(
            checkpoint.folder,
            trust_remote_code=False,
            local_files_only=True,
            return_dict=True,
            **dict.fromkeys(OVERRULED),
        )


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's tokenizer: a fast one, which knows the character offsets of its tokens.

    Raises:
        InputError: it cannot be loaded, gives no offsets, or is larger than the vocabulary.
    """
    from transformers import AutoTokenizer  # takes seconds; opening a checkpoint does not need it

    name = checkpoint.spec.name
    with loading(f"{name}: the tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, use_fast=True, trust_remote_code=False, local_files_only=True
        )
    if not tokenizer.is_fast:
        raise InputError(
            f"{name}: its tokenizer gives no character offsets (a slow tokenizer); save it as "
            "tokenizer.json (PreTrainedTokenizerFast)"
        )
    last = max(tokenizer.get_vocab().values(), default=-1)
    if last >= checkpoint.d_vocab:
        raise InputError(
            f"{name}: the tokenizer has token ids up to {last}, the model {checkpoint.d_vocab} "
            "tokens; it belongs to another model"
        )
    return tokenizer


_OTHER_KINDS = ("pytorch_model*.bin", "tf_model.h5", "flax_model.msgpack", "consolidated*.pth")
"""Files of weights of other kinds, as tools name them."""


def tell_stored_twice(*checkpoints: Checkpoint, notice: Callable[[str], None]) -> None:
    """Say which weights are read of a folder that holds them twice: in shards, or as another kind.

    Of another kind those that are newer are told to be: the folder may be read as it was.
    """
    for one in checkpoints:
        name, read = one.spec.name, one.folder / SINGLE
        if read.is_file() and (one.folder / INDEX).is_file():
            notice(f"{name}: {SINGLE} is read; {INDEX} beside it and its shards are not")
        made = (read if read.is_file() else one.folder / INDEX).stat().st_mtime
        for other in sorted(path for kind in _OTHER_KINDS for path in one.folder.glob(kind)):
            newer = ", and is newer" if other.stat().st_mtime > made else ""
            notice(f"{name}: safetensors are read; {other.name} beside them is not{newer}")


def _config(folder: Path) -> Mapping[str, Any]:
    """The model's config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder}: no config.json; wanted a folder saved by save_pretrained")
    config = json_object(path)
    if not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: not a model's configuration (no model_type)")
    return config


def _check_kind(name: str, config: Mapping[str, Any], *, allow_packed: bool) -> bool:
    """Refuse models that answer no prompt, or that are packed: True in four bits, if allowed."""
    packing = config.get("quantization_config") or part(
        config, "text_config", "quantization_config"
    )
    how = packing if isinstance(packing, dict) else {}
    method = how.get("quant_method")
    packed = allow_packed and method == "bitsandbytes" and how.get("load_in_4bit") is True
    if packing and not packed:
        raise InputError(
            f"{name}: its weights are packed ({method or 'quantised'}); name the checkpoint it was "
            "made from (`lensaudit quantize` rounds that), or save it dequantised"
        )
    architecture = str((config.get("architectures") or ["unknown"])[0])
    capped = part(config, "text_config") or config
    odd = {
        f"{architecture} is no decoder-only language model; wanted a …ForCausalLM": (
            _BIDIRECTIONAL.search(architecture) or config.get("is_encoder_decoder")
        ),
        "a Falcon with ALiBi; its eager and its fused attention in transformers give different "
        "logits, so no number of it could be trusted": (
            config.get("model_type") == "falcon" and config.get("alibi")
        ),
        "its attention is not scaled (scale_attn_weights), and TransformerLens would scale it, so "
        "no number of it could be trusted": (
            # others read no such key
            config.get("model_type") in ("gpt2", "gpt_bigcode")
            and config.get("scale_attn_weights") is False
        ),
        "a Gemma 3 with attn_logit_softcapping, which transformers leaves out and TransformerLens "
        "applies, so no number of it could be trusted": (
            str(config.get("model_type")).startswith("gemma3")
            and capped.get("attn_logit_softcapping")
        ),
        f"{architecture} is code of its own (auto_map), which is not run; wanted a class of "
        "transformers": (
            # old repositories bring code beside what is in transformers, which takes a second
            part(config, "auto_map").get("AutoModelForCausalLM")
            and architecture not in dir(import_module("transformers"))
        ),
    }
    if why := next((why for why, holds in odd.items() if holds), None):
        raise InputError(f"{name}: {why}")
    return packed


def _size(config: Mapping[str, Any], keys: Sequence[str], folder: Path) -> int:
    """A positive whole number of the configuration, under any of its usual names."""
    value = next((config[key] for key in keys if key in config), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"{folder / 'config.json'}: {keys[0]} is {value!r}, wanted a number >= 1; is this a "
            "decoder-only language model?"
        )
    return value
