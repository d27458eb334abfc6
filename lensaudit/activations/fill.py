"""Run a model over encoded examples and keep its activations at the positions that are read.

A model that does not fit (`models.large`) runs block by block over all examples, so that each
weight is brought once; see `scratch.py` for what is kept meanwhile.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lensaudit.activations.scratch import Scratch, blocks_done, forget_blocks
from lensaudit.activations.spec import (
    COMPONENTS,
    HOOKS,
    SHARD_EXAMPLES,
    Fingerprint,
    Shard,
    check_width,
)
from lensaudit.activations.store import (
    Activations,
    CacheStore,
    CacheWriter,
    ExampleActivations,
)
from lensaudit.data.spans import PROMPT_TEMPLATE, Encoded, buckets, by_length, make_batch
from lensaudit.data.tofu import DEMO, FORGET10
from lensaudit.errors import InputError, WorkError
from lensaudit.models.bridge import (
    TransformerBridge,
    check_finite,
    device_of,
    residuals,
    residuals_by_block,
)
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.conditions import conditions_of
from lensaudit.models.decoder import FAMILIES
from lensaudit.models.large.streaming import streamed
from lensaudit.models.registry import ModelSpec, lasting_name
from lensaudit.models.sizes import Sizes, budget_for, planned_bytes, sizes_on_disk
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.manifest import code_digest, computed_by
from lensaudit.settings import Kept, Positions
from lensaudit.text import digest
from lensaudit.types import Tokens

CACHE_BATCH = 16
"""Most examples per forward pass while caching; part of the fingerprint for half-precision."""


def encoded_hash(encoded: Sequence[Encoded]) -> str:
    """Content hash of tokens and spans: what a forward pass and a score depend on."""
    return digest([[e.idx, e.token_ids, e.n_prompt, e.start, e.end] for e in encoded])


def fingerprint_of_run(
    checkpoint: Checkpoint,
    encoded: Sequence[Encoded],
    *,
    positions: Positions,
    dtype: str,
    device: str,
    batch_size: int = CACHE_BATCH,
    part: Kept = "resid",
) -> Fingerprint:
    """What determines the numbers that `fill` would write."""
    conditions = conditions_of(checkpoint, dtype=dtype, device=device, batch_size=batch_size)
    return Fingerprint(
        **vars(conditions),
        examples=encoded_hash(encoded),
        template=digest(PROMPT_TEMPLATE),
        hook=HOOKS[part],
        layers=checkpoint.n_layers,
        d_model=sizes_on_disk(checkpoint, dtype).d_heads if part == "heads" else checkpoint.d_model,
        positions=positions,
    )


def provenance_of(
    spec: ModelSpec,
    data: str,
    *,
    exclude: Sequence[str] = (),
    limit: int | None = None,
    batch_size: int = CACHE_BATCH,
    memory_bytes: int | None = None,
) -> dict[str, Any]:
    """What `lensaudit cache` has to be told to make a cache again, from any folder."""
    path = Path(data).expanduser()
    return {
        "model": lasting_name(spec),
        "repo": spec.repo,
        "revision": spec.revision,
        "data": data if data in (DEMO, FORGET10) or not path.exists() else str(path.resolve()),
        "exclude": list(exclude),
        "limit": limit,
        "batch_size": batch_size,
        "memory": None if memory_bytes is None else f"{memory_bytes >> 20}M",
    }


def cache_batch_that_fits(sizes: Sizes, encoded: Sequence[Encoded], memory_bytes: int) -> int:
    """Examples per forward pass that fit a budget, with two shards of results in memory.

    Raises:
        InputError: not even one fits; says how much it takes.
    """
    lengths = sorted((len(e.token_ids) for e in encoded), reverse=True)
    shards = 2 * sizes.residual_bytes(sum(lengths[:SHARD_EXAMPLES]))

    def n_bytes(batch: int) -> int:
        # as they are hooked, stacked, and tested for being finite
        streams = 9 * sizes.residual_bytes(batch * lengths[0]) // 4
        return shards + streams + sizes.run_bytes(batch, lengths[0], n_logits=batch)

    fitting = [n for n in range(1, CACHE_BATCH + 1) if n_bytes(n) <= planned_bytes(memory_bytes)]
    if not fitting:
        raise InputError(
            f"--memory {memory_bytes >> 20}M: caching takes {n_bytes(1) >> 20}M above the weights; "
            f"use --memory {budget_for(n_bytes(1)) >> 20}M"
        )
    return fitting[-1]


def fill(
    store: CacheStore,
    fingerprint: Fingerprint,
    encoded: Sequence[Encoded],
    *,
    name: str,
    load: Callable[[], TransformerBridge],
    batch_size: int = CACHE_BATCH,
    provenance: Mapping[str, Any] | None = None,
    progress: Tell = unheard,
    notice: Notice = unheard,
) -> Activations:
    """The complete cache of these numbers; `load` is called only if something is missing.

    Shards hold examples alike in length. They are written by a second thread while the next one
    is computed, and shared with other processes that fill the same cache. Of a model whose blocks
    are brought one by one all missing shards are computed together, and published at the end; what
    its blocks left is kept till then, and `notice` is told where an interrupted run goes on.

    Raises:
        WorkError: an activation is not finite.
        TryAgainError: the disk is full; published shards are kept.
    """
    by_idx = {e.idx: e for e in by_length(encoded)}
    what = name if fingerprint.part == "resid" else f"{fingerprint.part} of {name}"
    if (complete := store.open(fingerprint)) is not None:
        return complete
    with store.writer(
        fingerprint, name=name, idx=list(by_idx), provenance=provenance or {}
    ) as writer:
        n_before = len(by_idx) - sum(len(shard.idx) for shard in writer.missing())

        def told(n: int, how: str = "") -> None:
            progress(Progress(f"caching {what}{how}", n_before + n, len(by_idx)))

        pending = Future[None]()
        pending.set_result(None)
        computing = _computed(writer, by_idx, load, name, batch_size, told, notice)
        with ThreadPoolExecutor(max_workers=1) as background, closing(computing) as computed:
            for shard, done in computed:
                pending.result()
                pending = background.submit(writer.publish, shard, done)
            pending.result()
        forget_blocks(writer.folder)
        writer.seal()
        complete = store.open(fingerprint)  # while the writer's mark keeps it from being removed
    if complete is None:
        raise WorkError(f"{store.root}: the cache of {name} vanished while it was written")
    return complete


def _computed(
    writer: CacheWriter,
    by_idx: Mapping[int, Encoded],
    load: Callable[[], TransformerBridge],
    name: str,
    batch_size: int,
    told: Callable[..., None],
    notice: Notice,
) -> Generator[tuple[Shard, list[ExampleActivations]]]:
    """The missing shards with their examples, one after the other or all at the end."""
    model: TransformerBridge | None = None
    n_done, claims = 0, writer.claims()
    length = partial(_n_run, fingerprint=writer.spec.fingerprint)
    for shard in claims:
        model = model or load()
        hf = model.original_model
        # its blocks are brought one by one, and each is called alike whatever runs through it
        by_block = streamed(hf) is not None and type(hf).__name__ in FAMILIES
        # what other processes hold is not waited for: they would wait for this one
        shards = [shard, *islice(claims, writer.n_free() if by_block else 0)]
        together = _together(shards, writer) if by_block else shards
        batches = [
            batch
            for one in together
            for batch in buckets([by_idx[idx] for idx in one.idx], batch_size, length=length)
        ]
        if by_block:
            examples = _run_by_block(model, batches, writer, name, told, notice)
        else:
            examples = _run(model, batches, writer, name)
        for one in together:
            done = list(islice(examples, len(one.idx)))
            if one not in shards:
                continue
            done.sort(key=lambda example, order=one.idx: order.index(example.idx))
            n_done += len(done)
            if not by_block:
                told(n_done)
            yield one, done


def _together(shards: Sequence[Shard], writer: CacheWriter) -> Sequence[Shard]:
    """The shards, with those that an interrupted run computed beside them and published since."""
    said = blocks_done(writer.folder)
    there = [one for one in writer.spec.shards() if one.number in said.get("shards", ())]
    if there and not set(there) & {*writer.missing()}:
        forget_blocks(writer.folder)
    return there if all(one in there for one in shards) else shards


Bucket = Sequence[Encoded]


def _n_run(e: Encoded, fingerprint: Fingerprint) -> int:
    """Tokens that run: no later position is kept, and none that is kept can see one."""
    return len(e.token_ids) if fingerprint.positions == "all" else e.end


def _kept(e: Encoded, fingerprint: Fingerprint) -> Int[Tensor, " kept"]:
    """The positions that are kept."""
    return torch.tensor(
        [*(range(len(e.token_ids)) if fingerprint.positions == "all" else e.read_positions)]
    )


def _tokens(bucket: Bucket, fingerprint: Fingerprint) -> Tokens:
    return make_batch(bucket).tokens[:, : max(_n_run(e, fingerprint) for e in bucket)]


def _run(
    model: TransformerBridge, batches: Sequence[Bucket], writer: CacheWriter, name: str
) -> Iterator[ExampleActivations]:
    """Every example of every batch; heads lie end to end, and only the stream has a final norm.

    Raises:
        InputError: the architecture has no such component, or not of this width.
        WorkError: an activation is not finite.
    """
    device, fingerprint = device_of(model), writer.spec.fingerprint
    for bucket in batches:
        tokens = _tokens(bucket, fingerprint).to(device)
        stack, final_norm = residuals(model, tokens, component=COMPONENTS[fingerprint.part])
        if fingerprint.part != "resid":
            stack, final_norm = stack.flatten(3), final_norm[:, :0]
            check_width(fingerprint, stack.shape[-1])
        check_finite(stack, tuple(e.idx for e in bucket), name)
        for row, e in enumerate(bucket):
            at = _kept(e, fingerprint)
            yield ExampleActivations(
                idx=e.idx,
                token_ids=torch.tensor(e.token_ids),
                positions=at,
                resid=stack[row][:, at.to(device)].cpu(),
                final_norm=final_norm[row][at[: final_norm.shape[1]].to(device)].cpu(),
            )


def _run_by_block(
    model: TransformerBridge,
    batches: Sequence[Bucket],
    writer: CacheWriter,
    name: str,
    told: Callable[..., None],
    notice: Notice,
) -> Iterator[ExampleActivations]:
    """Every example of every batch, in their order, each weight brought once.

    Raises:
        InputError: the architecture has no such component, or not of this width.
        WorkError: an activation is not finite.
        TryAgainError: the disk has no room for the scratch file.
    """
    fingerprint, device = writer.spec.fingerprint, device_of(model)
    kept = [[_kept(e, fingerprint) for e in bucket] for bucket in batches]
    edges = [0, *accumulate(sum(map(len, one)) for one in kept)]
    tokens = [_tokens(bucket, fingerprint).to(device) for bucket in batches]
    with _scratch_for(model, batches, tokens, edges[-1], writer, notice) as scratch:
        running = residuals_by_block(
            model,
            tokens,
            scratch.streams,
            component=COMPONENTS[fingerprint.part],
            n_done=scratch.n_done,
        )
        for layer, at, read in running:
            value = read.flatten(2)
            check_finite(value.unsqueeze(1), tuple(e.idx for e in batches[at]), name)
            # after the last block comes the final norm, which is kept beside the stream alone
            at_end = layer == fingerprint.layers
            into = scratch.final_norm if at_end else scratch.resid[layer]
            if len(into):
                check_width(fingerprint, value.shape[-1])
                rows = [one[where.to(device)] for one, where in zip(value, kept[at], strict=True)]
                into[edges[at] : edges[at + 1]] = torch.cat(rows).to(into.device)
            if at == len(batches) - 1 and not at_end:
                scratch.keep()
            share = (layer * len(batches) + at + 1) / (len(batches) * (fingerprint.layers + 1))
            told(int(share * sum(map(len, batches))), " block by block")
        row = 0
        for e, positions in zip(chain(*batches), chain(*kept), strict=True):
            rows = slice(row, row + len(positions))
            row += len(positions)
            yield ExampleActivations(
                idx=e.idx,
                token_ids=torch.tensor(e.token_ids),
                positions=positions,
                resid=scratch.resid[:, rows],
                final_norm=scratch.final_norm[rows],
            )


def _scratch_for(
    model: TransformerBridge,
    batches: Sequence[Bucket],
    tokens: Sequence[Int[Tensor, "_ _"]],
    n_rows: int,
    writer: CacheWriter,
    notice: Notice,
) -> Scratch:
    """Room for all that is kept, rows of examples end to end, and for every batch's stream."""
    hf: Any = model.original_model
    fingerprint, d_stream = writer.spec.fingerprint, hf.config.get_text_config().hidden_size
    here = {e.idx for bucket in batches for e in bucket}
    # where each number lies, and what moves its last bits
    shapes = [[*one.shape] for one in tokens]
    layout = [[[e.idx for e in b], shape] for b, shape in zip(batches, shapes, strict=True)]
    return Scratch(
        writer.folder,
        digest([fingerprint.key(), layout, computed_by(), code_digest()]),
        [one.number for one in writer.spec.shards() if here.issuperset(one.idx)],
        [
            (fingerprint.layers, n_rows, fingerprint.d_model),
            fingerprint.norm_shape(n_rows),
            *((*shape, d_stream) for shape in shapes),
        ],
        getattr(torch, fingerprint.dtype),
        reserve_bytes=writer.reserve_bytes,
        notice=notice,
    )
