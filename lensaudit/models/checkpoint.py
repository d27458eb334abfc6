"""What lies behind a name: a checkpoint's files, shape and content, before any weight is read.

Its files are fetched from the Hub, with one line for each way that fails; a LoRA adapter beside it
is checked likewise.
"""

import json
import logging
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] - of whichever HTTP library it uses
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    StrictDataclassError,
)
from safetensors import SafetensorError, safe_open

from lensaudit.errors import InputError, LensAuditError, need, told_by
from lensaudit.files import digest, once, os_error, read_json
from lensaudit.hub import reachable
from lensaudit.models.hashing import (
    adapter_hash,
    merged_hash,
    tokenizer_hash,
    weights_hash,
)
from lensaudit.models.registry import (
    EMBEDDED,
    ModelSpec,
    load_registry,
    resolve,
)
from lensaudit.models.token_ids import check_token_ids
from lensaudit.results.reading import json_object, part
from lensaudit.results.roles import InRole, ModelRole
from lensaudit.settings import Place

DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "BOOL": "bool"},
}
"""Safetensors' names of torch's types; weights come in those of floating point."""

HARMLESS = re.compile(
    r"(?:\.(?:attn|attention)\.(?:masked_)?bias|inv_freq|position_ids|token_type_ids)$"
)
"""Tensors of masks, positions and frequencies, which older versions saved and none reads."""

_BIDIRECTIONAL = re.compile(r"For(?:MaskedLM|PreTraining|\w+Classification|QuestionAnswering)$")
"""Ends of the names of classes that answer no prompt."""

_INERT_SETTINGS = (
    *("architectures", "transformers_version", "_name_or_path", "dtype", "torch_dtype"),
    *("id2label", "label2id", "problem_type", "initializer_range", "pretraining_tp"),
    *("use_cache", "output_hidden_states", "output_attentions", "return_dict"),
    *(
        "chunk_size_feed_forward",
        "tie_word_embeddings",
        "quantization_config",
        "_attn_implementation",
    ),
)
"""Settings of a configuration that change no activation, beside `…_token_id` and dropouts."""

_UNLOADABLE = (
    *(OSError, ValueError, LookupError, RuntimeError, ImportError, TypeError, AttributeError),
    *(StrictDataclassError, struct.error),
)
"""What libraries raise for files they cannot use; transformers' own for a contradictory config."""


@contextmanager
def loading(told: str) -> Iterator[None]:
    """Let a library work on a model's files; what it raises for broken ones is a line.

    Args:
        told: how the line begins: whose file, and what cannot be done with it.

    Raises:
        InputError: `told`, and what the library says.
    """
    try:
        yield
    except Exception as error:
        # `tokenizers` raises bare Exception for a broken file; other kinds are bugs, to be seen
        unloadable = type(error) is Exception or isinstance(error, _UNLOADABLE)
        if not unloadable or type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        raise InputError(f"{told} ({told_by(error)})") from error


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
    packed: bool = False
    """The matrices are packed in four bits, as bitsandbytes saves them."""
    adapter: Path | None = None
    """Folder of the adapter that is merged into the weights when they are loaded."""

    @property
    def named(self) -> dict[str, str]:
        """What a manifest says of it: its name, and what it is by content."""
        return {"name": self.spec.name, "weights": self.weights}


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
        raise InputError(
            f"{spec.name}: no {SINGLE} in {folder}; pickles can run code: convert them with "
            "save_pretrained (safetensors is its default)"
        )
    dtype = _stored_dtype(files, config, packed)
    text = config.get("text_config") or config
    d_vocab = _size(text, ("vocab_size",), folder)
    check_token_ids(folder, config, d_vocab)
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
    if spec.local is not None and (spec.adapter is None or spec.adapter.local is not None):
        return in_role(role, open_checkpoint(spec, allow_packed=True))[0]
    beside = spec.adapter and [spec.adapter.repo, spec.adapter.revision]
    return InRole(role, spec.name, digest([spec.repo, spec.revision, beside]))


def of_embedded_family(checkpoint: Checkpoint) -> bool:
    """Is it a model of the family that comes along, whatever folder or name it has?

    No other tokenizer cuts words as that family's does.
    """
    return checkpoint.tokenizer == tokenizer_hash(EMBEDDED / "full")


def config_of(checkpoint: Checkpoint) -> Any:
    """The checkpoint's configuration as transformers reads it, defaults filled in.

    Raises:
        InputError: an unknown architecture, or one that needs code of its own.
    """
    from transformers import AutoConfig  # takes seconds; opening a checkpoint does not need it

    with loading(f"{checkpoint.spec.name}: its configuration cannot be read"):
        return AutoConfig.from_pretrained(
            checkpoint.folder, trust_remote_code=False, local_files_only=True
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
    if len(tokenizer) > checkpoint.d_vocab:
        raise InputError(
            f"{name}: the tokenizer has {len(tokenizer)} tokens, the model {checkpoint.d_vocab}; "
            "it belongs to another model"
        )
    return tokenizer


def check_same_shape(*checkpoints: Checkpoint, notice: Callable[[str], None] | None = None) -> None:
    """Refuse models that cannot be patched into the first one; say which settings differ.

    Args:
        checkpoints: models trained from one base.
        notice: receives a line where they fit and some compute with other settings.

    Raises:
        InputError: depth, width, vocabulary or tokenizer differ; names all differences.
    """
    wanted, *others = checkpoints
    differences = [
        f"{found.spec.name}: {label} {getattr(found, field)}, "
        f"but {wanted.spec.name} has {getattr(wanted, field)}"
        for found in others
        for field, label in _SHAPE.items()
        if getattr(found, field) != getattr(wanted, field)
    ]
    differences += [
        f"{found.spec.name}: {told}"
        for found in others
        if found.d_vocab == wanted.d_vocab and (told := other_tokenizer(found, wanted))
    ]
    if differences:
        raise InputError(
            f"models of different shape: {'; '.join(differences)}\n"
            "wanted checkpoints trained from one base model, with its tokenizer"
        )
    if notice is not None:
        tell_stored_twice(*checkpoints, notice=notice)
        if differing := differing_settings(*checkpoints):
            notice(f"models with other settings: {differing}")


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


def misfit(source: Checkpoint, full: Checkpoint) -> str | None:
    """Why a stream of the one cannot stand in the other's as it is; None where it can."""
    why = []
    if (source.n_layers, source.d_model) != (full.n_layers, full.d_model):
        why.append(
            f"its stream ({source.n_layers} layers of {source.d_model}) does not fit that of full "
            f"({full.n_layers} of {full.d_model})"
        )
    if source.tokenizer != full.tokenizer:
        why.append("its tokenizer is not that of full")
    return ", and ".join(why) or None


def other_tokenizer(one: Checkpoint, other: Checkpoint) -> str | None:
    """In how many tokens two tokenizers differ, and what to do; None where they are the same.

    Raises:
        InputError: one of them cannot be loaded.
    """
    if one.tokenizer == other.tokenizer:
        return None
    own, theirs = (load_tokenizer(which).get_vocab() for which in (one, other))
    n = sum(own.get(token) != theirs.get(token) for token in own.keys() | theirs.keys())
    told = f"{n} tokens" if n else "no token, but in how it cuts words, or in its chat template"
    return (
        f"its tokenizer differs from that of {other.spec.name} in {told}; if it was trained from "
        f"that model, copy the tokenizer files of {other.folder} into {one.folder}"
    )


def differing_settings(*checkpoints: Checkpoint) -> str | None:
    """In which settings that change what a model computes the others differ from the first.

    Rotary embeddings, norms' epsilons, activations, caps, windows …: legitimate, and to be known.
    None where there is no difference.
    """
    named = []
    for one in checkpoints:  # as transformers reads them: old and new spellings are one
        settings = config_of(one).get_text_config().to_dict()
        inert = {*_INERT_SETTINGS, *filter(re.compile("_token_id$|dropout").search, settings)}
        named.append((one.spec.name, {key: settings[key] for key in settings.keys() - inert}))
    (full, wanted), *others = named
    said = [
        f"{name} has {key} {found.get(key)!r}, {full} {wanted.get(key)!r}"
        for name, found in others
        for key in sorted(wanted.keys() | found.keys())
        if found.get(key) != wanted.get(key)
    ]
    return "; ".join(dict.fromkeys(said)) or None


_SHAPE = {
    "n_layers": "layers",
    "d_model": "width",
    "d_vocab": "vocabulary",
}


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
    packing = config.get("quantization_config")
    packing = packing or part(config, "text_config", "quantization_config")
    how = packing if isinstance(packing, dict) else {}
    method = how.get("quant_method")
    packed = allow_packed and method == "bitsandbytes" and how.get("load_in_4bit") is True
    if packing and not packed:
        raise InputError(
            f"{name}: its weights are packed ({method or 'quantised'}); name the checkpoint it was "
            "made from (`lensaudit quantize` rounds that), or save it dequantised"
        )
    architecture = str((config.get("architectures") or ["unknown"])[0])
    if _BIDIRECTIONAL.search(architecture) or config.get("is_encoder_decoder"):
        raise InputError(
            f"{name}: {architecture} is no decoder-only language model; wanted a …ForCausalLM"
        )
    if config.get("model_type") == "falcon" and config.get("alibi"):
        raise InputError(
            f"{name}: a Falcon with ALiBi; its eager and its fused attention in transformers give "
            "different logits, so that no number of it would be sure"
        )
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
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of {len(shards)} shards named in {index.name} are missing: "
            f"{', '.join(missing[:3])}; fetch the checkpoint again"
        )
    absent = weight_map.keys() - {name for shard in shards for name in header_of(shard)}
    if absent:
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
    """By tensor of a file its `dtype`, its `shape` and the byte of the file at which it begins.

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


def _stored_dtype(files: Sequence[Path], config: Mapping[str, Any], packed: bool) -> str:
    """Of the first floating-point tensor; whole numbers would be cast: packed, or damaged."""
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


CONFIG = "adapter_config.json"
"""Its presence makes a folder an adapter's."""

WEIGHTS = "adapter_model.safetensors"


def open_adapter(spec: ModelSpec) -> tuple[Path, str]:
    """Folder and content hash of the LoRA adapter of `spec`, fetched if it is on the Hub.

    Raises:
        InputError: it cannot be fetched, is no LoRA, or its weights are absent or damaged.
    """
    folder = fetch(spec) if spec.local is None else spec.local
    config = json_object(folder / CONFIG)
    if (kind := config.get("peft_type")) != "LORA":
        raise InputError(f"{folder / CONFIG}: peft_type is {kind!r}; only LORA can be merged")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise InputError(
            f"{folder}: no {WEIGHTS}; pickles can run code: save the adapter with save_pretrained"
        )
    header_of(weights)
    return folder, adapter_hash(weights, config)


def peft_for(who: str) -> Any:
    """The package that knows adapters; loaded when one is, which takes seconds.

    Raises:
        InputError: it is not installed; names who needs it.
    """
    need("peft", called=f"{who}: peft, which knows adapters,", extra="lora")
    # it loads bitsandbytes, which complains of a kernel that nothing here asks for
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import peft

    return peft


def trained_on(folder: Path) -> str:
    """The base model an adapter's file names; shown to the user, never followed."""
    named = json_object(folder / CONFIG).get("base_model_name_or_path")
    return f" (it names {named[:80]!r})" if isinstance(named, str) and named else ""


WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")

UNWANTED = ("*/*", "consolidated*", "*.index.fp16.json")
"""Subfolders (other formats) and Mistral's second copy of its weights."""

_LINES: tuple[tuple[type[Exception], str], ...] = (
    (
        GatedRepoError,
        "is gated; accept its terms on the Hub and log in (`hf auth login` or HF_TOKEN)",
    ),
    (RevisionNotFoundError, "has no revision {revision!r}; name another branch, tag or commit"),
    (
        RepositoryNotFoundError,
        "no such repository on the Hub, or a private one; check the name, or log in",
    ),
)
"""The first kind that fits counts: a gated repository is also one not found."""


def fetch(spec: ModelSpec) -> Path:
    """The folder with a Hub repository's files; what the cache holds is not fetched again.

    Raises:
        InputError: there is no such repository or revision, no access, or no network.
    """
    from huggingface_hub import snapshot_download  # a third of a second to import

    try:
        return Path(
            snapshot_download(
                spec.repo,
                revision=spec.revision,
                allow_patterns=list(WANTED),
                ignore_patterns=list(UNWANTED),
                local_files_only=not reachable(),
            )
        )
    except (OSError, HTTPError, ValueError) as error:
        raise explained(error, spec) from error


def check_at_hand(spec: ModelSpec) -> None:
    """Refuse a Hub model that can neither be fetched nor is kept, before anything takes time.

    Raises:
        InputError: there is no network, and it is not in the cache.
    """
    for one in (spec, spec.adapter):
        if one is not None and one.local is None and not reachable():
            fetch(one)


def explained(error: Exception, spec: ModelSpec) -> LensAuditError:
    """The user's line for what the Hub's library raised.

    The error's own text is not quoted: it may be long or hold a token.
    """
    name = spec.name if spec.name == spec.repo else f"{spec.name} ({spec.repo})"
    for kind, line in _LINES:
        if isinstance(error, kind):
            return InputError(f"{name}: {line.format(revision=spec.revision)}")
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = f"the Hub answers with HTTP {status}; try again later"
        if status in (401, 403):
            said = "the Hub refuses access; check HF_TOKEN, or log in with `hf auth login`"
    elif isinstance(error, LocalEntryNotFoundError | HTTPError | ConnectionError):
        said = "cannot be fetched: no network, and not in the local cache; name a local folder"
        if constants.HF_HUB_OFFLINE:
            said = "is not in the local cache and HF_HUB_OFFLINE is set; unset it, or name a folder"
    elif isinstance(error, OSError):
        return os_error(error, Path(error.filename or constants.HF_HUB_CACHE))
    else:
        said = "is not a name the Hub accepts; wanted organisation/name"
    return InputError(f"{name}: {said}")


_INERT = (
    *("_from_model_config", "transformers_version", "use_cache", "cache_implementation"),
    *("bos_token_id", "pad_token_id", "decoder_start_token_id", "eos_token_id"),
    # greedy, of a length that is given
    *("do_sample", "temperature", "top_p", "top_k", "max_length", "max_new_tokens"),
)
"""Settings that no greedy continuation of a given length depends on, and where texts end."""


def generation_config_of(checkpoint: Checkpoint) -> Any:
    """What transformers generates under: `generation_config.json`, else the configuration's.

    Raises:
        InputError: the file is broken.
    """
    from transformers import GenerationConfig  # takes seconds

    path = checkpoint.folder / "generation_config.json"
    if not path.is_file():
        return GenerationConfig.from_model_config(config_of(checkpoint))
    with loading(f"{path}: cannot be read"):
        return GenerationConfig.from_pretrained(checkpoint.folder, local_files_only=True)


def obeyed(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What greedy generation depends on beside weights and texts: penalties, beams.

    Empty for an ordinary checkpoint. Where texts end counts where it is not what `config.json`
    says, whose hash is part of the weights' already.
    """
    given = generation_config_of(checkpoint)
    changed = given.to_diff_dict().items()
    found = {
        key: value
        for key, value in changed
        if key not in _INERT and not key.startswith(("output_", "return_"))
    }
    own = getattr(config_of(checkpoint).get_text_config(), "eos_token_id", None)
    if given.eos_token_id not in (None, own):
        found["eos_token_id"] = given.eos_token_id
    return found
