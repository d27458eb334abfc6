"""Content hashes of weights and tokenizers, which no name or path can fool.

What a process hashed it knows until the file changes. What earlier processes hashed lies in memos,
which somebody may have edited: whoever only looks may believe them (`looking`), a run hashes again.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import read_text, reading, write_bytes
from lensaudit.once import holding
from lensaudit.results.reading import json_object
from lensaudit.settings import user_cache
from lensaudit.text import canonical_json, digest

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SETTLED_S = 2.0
"""A file changed later than this ago may change again within one tick of its time stamp."""
OVERRULED = ("_attn_implementation", "transformers_weights")
"""Keys of config.json by which a file would choose attention, code or weights: who loads does."""
_INERT = (
    *("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"),
    *("attn_implementation", *OVERRULED),
)
"""Keys of config.json that no activation depends on; dtype and attention have their own place."""
_INERT_ADAPTER = (
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "task_type",
    "auto_mapping",
    "peft_version",
)
"""Keys of adapter_config.json that no merged weight depends on."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
"""What a tokenizer is made of, beside its settings."""
_TOKENIZER_KEYS = ("add_bos_token", "add_eos_token", "add_prefix_space")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token")
"""Not the padding token: padding is on the right and no scored position sees it."""
_INERT_TOKENIZER = (
    *("is_local", "local_files_only", "name_or_path", "model_max_length", "pad_token"),
    *("padding_side", "truncation_side", "fast_tokenizer_files", "chat_template"),
    *(*_TOKENIZER_KEYS, *_SPECIAL_TOKENS),
)
"""Keys of tokenizer_config.json that cut no text, or that the hash counts by themselves."""
_USUAL_TOKENIZER = {
    **{"backend": "tokenizers", "tokenizer_class": "TokenizersBackend"},
    **{"clean_up_tokenization_spaces": False, "model_type": "llama"},
}
"""Settings that a hash leaves out where they have these values."""

_known: dict[str, str] = {}
"""Key of a file's state -> hash that this process took."""
_looks: ContextVar[bool] = ContextVar("looks", default=False)


def looking() -> AbstractContextManager[None]:
    """Believe memos of earlier processes: nothing that is hashed inside goes into a manifest."""
    return holding(_looks, True)


def weights_hash(files: Sequence[Path], config: Mapping[str, Any]) -> str:
    """Hash of a checkpoint's weight files and of the configuration that gives them meaning."""
    shards = sorted((file.name, file_sha256(file)) for file in files)
    return _sha256([shards, _but(config, _INERT)])


def _but(config: Mapping[str, Any], inert: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in inert}


def adapter_hash(file: Path, config: Mapping[str, Any]) -> str:
    """Hash of an adapter's matrices and of the settings that give them meaning."""
    return _sha256([file_sha256(file), _but(config, _INERT_ADAPTER)])


def merged_hash(base: str, adapter: str) -> str:
    """Hash of a base model's weights with an adapter merged into them."""
    return _sha256(["merged in float32", base, adapter])


def tokenizer_hash(folder: Path) -> str:
    """Hash of all that decides what a tokenizer does: tables, settings and chat template.

    Padding, truncation, the spelling of merges and the place of the chat template do not count.
    Equal hashes do the same; others may (`likeness.same_tokenizer`), as transformers chooses a
    class by several settings, the model's type among them, and rewrites them on saving.

    Raises:
        InputError: there is no tokenizer, or several, or its files are broken.
    """
    main, *others = (folder / name for name in TOKENIZER_FILES)
    tables = [
        (part.name, remembered(part, "tables", _tables_hash) if part == main else file_sha256(part))
        for part in (main, *others)
        if part.is_file()
    ]
    if not tables:
        raise InputError(
            f"{folder}: no tokenizer; save the model's own there (tokenizer.save_pretrained)"
        )
    file = folder / "tokenizer_config.json"
    config = json_object(file) if file.is_file() else {}
    if config.get("fast_tokenizer_files") not in (None, [], [main.name]):
        raise InputError(
            f"{file}: names a tokenizer for each version of transformers (fast_tokenizer_files); "
            "save the one of the model as tokenizer.json and remove the key"
        )
    # saved as text or as an object with `content`
    texts = {
        key: one.get("content") if isinstance(one := config.get(key), dict) else one
        for key in _SPECIAL_TOKENS
    }
    template = folder / "chat_template.jinja"
    said = read_text(template) if template.is_file() else config.get("chat_template")
    # of a class that tokenizer_config.json does not name, config.json decides
    model = json_object(folder / "config.json").items()
    chosen = {key: one for key, one in model if key in ("model_type", "tokenizer_class")} | config
    rest = {
        key: value
        for key, value in _but(chosen, _INERT_TOKENIZER).items()
        if key not in _USUAL_TOKENIZER or value != _USUAL_TOKENIZER[key]
    }
    parts = [tables, texts, {key: config.get(key) for key in _TOKENIZER_KEYS}, said]
    return _sha256([*parts, rest] if rest else parts)


def folder_sha256(folder: Path) -> list[list[str]]:
    """Name and SHA-256 of every file of a folder, in order; none where there is no folder.

    Raises:
        InputError: as `file_sha256`.
    """
    return [[one.name, file_sha256(one)] for one in sorted(folder.glob("*.*")) if one.is_file()]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, 64 hex digits; taken once per state of the file.

    Raises:
        InputError: the file cannot be read, or is a blob of the Hugging Face cache, which names
            large files by their SHA-256, and was damaged since it was fetched.
    """
    found = remembered(path, "sha256", _read_sha256)
    real = Path(os.path.realpath(path))
    is_blob = real.parent.name == "blobs" and _SHA256.fullmatch(real.name)
    if is_blob and found != real.name:
        raise InputError(
            f"{path}: its content is not what the Hub gave (a damaged blob); delete {real} and "
            "fetch the checkpoint again"
        )
    return found


def remembered(path: Path, kind: str, compute: Callable[[Path], str]) -> str:
    """`compute(path)`, once in this process until the file changes; while `looking`, once for all.

    Raises:
        InputError: the file cannot be read.
    """
    with reading(path):
        stat = path.stat()
        # the change time too: a copy may restore size and modification time, not this one
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
        key = digest([kind, str(path.resolve()), *state])
        known = _known.get(key) or (_read_memo(key) if _looks.get() else None)
        if known is None:
            known = _known[key] = compute(path)
            if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED_S:
                _write_memo(key, known)
    return known


def remembered_of(content: Any, compute: Callable[[], str]) -> str:
    """`compute()`, once for all; `content` holds all that decides what it finds."""
    key = digest(content)
    known = _known.get(key) or _read_memo(key)
    if known is None:
        _write_memo(key, known := compute())
    _known[key] = known
    return known


def memo_folder() -> Path:
    """Folder of remembered hashes: `lensaudit/` in the user's cache folder."""
    return user_cache() / "hashes"


def _read_memo(key: str) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        text = (memo_folder() / key).read_text(encoding="ascii")
        value = text.partition(" ")[0]
        return value if text == _memo(key, value) else None
    return None


def _memo(key: str, value: str) -> str:
    """A hash, and a checksum of it and of what it is of: a memo of another file is none."""
    return f"{value} {digest([key, value])}"


def _write_memo(key: str, value: str) -> None:
    """Remember a hash for later processes; where that fails it is taken again."""
    folder = memo_folder()
    with suppress(OSError, LensAuditError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_bytes(folder / key, _memo(key, value).encode()).chmod(0o600)


def _read_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _tables_hash(path: Path) -> str:
    """Hash of tokenizer.json without its padding and truncation, merges in one spelling."""
    tables = json_object(path)
    model = tables.get("model")
    if not isinstance(model, dict):
        raise InputError(f"{path}: no tokenizer in it (key `model` is missing)")
    merges = model.get("merges")
    if isinstance(merges, list):
        # tokenizers < 0.20 wrote "a b", later versions ["a", "b"]
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges]
        model = {**model, "merges": pairs}
    return _hex({**_but(tables, ("padding", "truncation")), "model": model})


def _sha256(value: Any) -> str:
    return f"sha256:{_hex(value)}"


def _hex(value: Any) -> str:
    # configurations of other tools hold infinities
    return hashlib.sha256(canonical_json(value, allow_nan=True).encode()).hexdigest()
