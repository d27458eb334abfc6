"""What transformers reads of a folder is read once; whoever asks gets a copy of its own.

Tests open the same few checkpoints thousands of times. What is read follows from the bytes of the
folder's files, from its path and from what is asked; anything unusual is read as users read it.
"""

import copy
import functools
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KEPT = 60
"""Things of each kind; of models as many."""
MOST_BYTES = 8 << 20
"""Larger folders are read each time: memory is bounded."""
WEIGHTS = ".safetensors"
CLASSES = {
    "AutoConfig": "transformers.models.auto.configuration_auto",
    "AutoTokenizer": "transformers.models.auto.tokenization_auto",
    "GenerationConfig": "transformers.generation.configuration_utils",
    "AutoModelForCausalLM": "transformers.models.auto.modeling_auto",
}
ASKED = {
    *("trust_remote_code", "local_files_only", "return_dict", "use_fast", "use_safetensors"),
    *("dtype", "attn_implementation", "output_loading_info", "ignore_mismatched_sizes", "config"),
    *("_attn_implementation", "transformers_weights"),
}
"""What is usually asked; the configuration counts with all that it says."""


def files_hash(folder: Path, *, weights: bool) -> str | None:
    """Of the files that are read; None where they are many or large."""
    files = sorted(one for one in folder.iterdir() if weights or one.suffix != WEIGHTS)
    if len(files) > 20 or not all(one.is_file() for one in files):
        return None
    if sum(one.stat().st_size for one in files) > MOST_BYTES:
        return None
    found = hashlib.blake2b()
    for one in files:
        content = one.read_bytes()
        found.update(f"{one.name} {len(content)} ".encode() + content)
    return found.hexdigest()


def key_of(place: str | Path, how: Mapping[str, Any], *, weights: bool) -> str | None:
    """What is read depends on it; None where that is not known."""
    folder = Path(place)
    if not how.keys() <= ASKED or not folder.is_dir():
        return None
    content = files_hash(folder, weights=weights)
    return content and "\n".join([str(place), content, *_told(how)])


def _told(how: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted(how.items()):
        if name == "config":
            yield f"{type(value)} {value.to_json_string()} {value._attn_implementation}"
        else:
            yield f"{name}: {value!r}"


def share_loaded() -> None:
    """From now on, in this process: what is imported, imports nothing."""
    for name, module in CLASSES.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and not hasattr(kind.from_pretrained, "shared"):
            kind.from_pretrained = staticmethod(_once(kind.from_pretrained, "Model" in name))


def _once(reads, weights: bool):
    """Of a way to read, which copies what it read before."""
    known: OrderedDict[str, Any] = OrderedDict()

    @functools.wraps(reads)
    def shared(*asked, **how):
        key = key_of(*asked, how, weights=weights) if len(asked) == 1 else None
        if key is None:
            return reads(*asked, **how)
        if key not in known:
            known[key] = reads(*asked, **how)
            if len(known) > KEPT:
                known.popitem(last=False)
        known.move_to_end(key)
        return copy.deepcopy(known[key])

    shared.shared = True
    return shared
