"""Residual caches of any bridge model, for code that asks questions of its own.

A cache is found again by what decides its numbers: the model in memory (`prompt_key`), the tokens,
the data type, the device. `la.open_activations` reads it like one of `lensaudit cache`.
"""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import safetensors.torch

from lensaudit.activations.fill import CACHE_BATCH, encoded_hash, fill
from lensaudit.activations.layers import LayeredActivations
from lensaudit.activations.spec import HOOKS, Fingerprint
from lensaudit.activations.store import Activations, CacheStore
from lensaudit.data.spans import Encoded
from lensaudit.doors.prompt_key import check_hashable, computing_hash
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_bytes
from lensaudit.models.bridge import DTYPES, TransformerBridge, n_layers
from lensaudit.models.checkpoint import open_model
from lensaudit.models.conditions import EAGER, batch_policy
from lensaudit.models.device import device_class
from lensaudit.models.named import bridged
from lensaudit.models.registry import lasting_name
from lensaudit.models.sizes import context_of
from lensaudit.settings import Place, activations_folder, named
from lensaudit.steer.generate import texts_of
from lensaudit.text import digest


def cache_prompts(
    model: TransformerBridge | Place,
    prompts: str | Sequence[str],
    *,
    name: str = "",
    root: Place | None = None,
    batch_size: int = CACHE_BATCH,
) -> LayeredActivations:
    """The stream after each block at every position of some texts; kept, and found again.

    Prompts are batched with padding on the right, which no position before it sees. What is there
    already is read; a text's number is its place in `prompts`.

    Args:
        model: any bridge, in eval mode; or a model's name, which is loaded in float32.
        prompts: texts, or one; special tokens are those that the tokenizer sets.
        name: for people, and for `la.open_activations(name)`; that of the model, if it has one.
        root: folder of the caches; None: the usual one.
        batch_size: prompts a forward pass.

    >>> with la.cache_prompts(bridge, ["The river ends"], name="mine") as cache:  # doctest: +SKIP
    ...     cache.example(0).resid.shape
    torch.Size([16, 4, 64])

    Raises:
        InputError: no text, or one without a token or longer than the context; or the model
            trains, carries hooks, or is of another type; or the streams are there under another
            name than the one given.
        WorkError: an activation is not finite.
    """
    given, provenance = name, dict[str, Any](made="cache_prompts")
    if isinstance(model, str | Path):
        name = name or named(model)
        checkpoint = open_model(named(model))
        files = [checkpoint.weights, checkpoint.tokenizer]
        provenance |= {"model": lasting_name(checkpoint.spec), "files": files}
    model = bridged(model, "cache_prompts")
    if not name:
        raise InputError("cache_prompts: name=… is missing; wanted what the cache is called")
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise InputError(f"cache_prompts(batch_size={batch_size!r:.40}): wanted at least 1")
    texts = texts_of("cache_prompts", prompts)
    hf: Any = model.original_model
    some = next(hf.parameters())
    dtype = next((key for key, one in DTYPES.items() if one == some.dtype), None)
    if dtype is None:
        raise InputError(f"{name}: has weights of {some.dtype}; wanted {', '.join(DTYPES)}")
    check_hashable(model, name)
    ids = [tuple(model.tokenizer(text)["input_ids"]) for text in texts]
    if not ids or not all(ids):
        wanting = f"prompt {ids.index(())} holds no token" if ids else "found no prompt"
        raise InputError(f"{name}: {wanting}; wanted a text or several")
    longest = max(range(len(ids)), key=lambda at: len(ids[at]))
    if problem := context_of(hf.config).too_long(len(ids[longest])):
        raise InputError(f"{name}: prompt {longest} has {problem}")
    encoded = [
        Encoded(idx, idx, tokens, len(tokens), 0, len(tokens)) for idx, tokens in enumerate(ids)
    ]
    fingerprint = Fingerprint(
        weights=computing_hash(hf),
        tokenizer=digest(model.tokenizer.backend_tokenizer.to_str()),
        dtype=dtype,  # pyright: ignore[reportArgumentType]  # a key of DTYPES
        device_class=device_class(str(some.device)),
        attention=EAGER,
        batch_policy=batch_policy("right-padded", dtype, batch_size),
        examples=encoded_hash(encoded),
        template="as they are",
        hook=HOOKS["resid"],
        layers=n_layers(model),
        d_model=hf.config.hidden_size,
        positions="all",
    )
    found = fill(
        CacheStore(root or activations_folder()),
        fingerprint,
        encoded,
        name=name,
        load=lambda: model,
        batch_size=batch_size,
        provenance=provenance | {"texts": list(texts)},
    )
    if found.spec.name != (given or found.spec.name):
        found.close()
        raise InputError(
            f"cache_prompts(name={given!r}): these streams are there, called {found.spec.name!r}; "
            "give that name, or another root"
        )
    return LayeredActivations.of(found)


def export_safetensors(activations: Activations, folder: Place) -> list[Path]:
    """A cache as safetensors, a file of at most 32 examples each, for tools that read no HDF5.

    Tensors are named `<idx>.resid` (layer, pos, d_model), `<idx>.token_ids` and `<idx>.positions`;
    the metadata `spec` is the JSON that says of what they are.

    Raises:
        InputError: the folder cannot be written.
        VerificationError: the bytes on disk are not those that were written.
    """
    place, spec = make_folder(Path(folder)), activations.spec.content().decode()
    return [
        write_bytes(
            place / f"{Path(shard.file_name).stem}.safetensors",
            safetensors.torch.save(
                {
                    f"{one.idx}.{field}": getattr(one, field).contiguous()
                    for one in map(activations.example, shard.idx)
                    for field in ("resid", "token_ids", "positions")
                },
                metadata={"spec": spec},
            ),
        )
        for shard in activations.spec.shards()
    ]
