"""What does `full` say when its last prompt token is replaced? Greedy, batched, with a cache.

The patch acts in one step only, at the last prompt token (gnueaj/unlearning-depth-score,
patchscope/core.py:502-607); the keys and values it leaves behind carry it to the later steps. All
tokens before that one are those of the clean run, so a prompt is read once however many rows
continue it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.models.bridge import (
    TransformerBridge,
    cached_logits,
    device_of,
    intervening,
)
from lensaudit.models.generation import (
    Logits,
    Running,
    check_finite,
    continued,
    likeliest,
    started,
)
from lensaudit.models.sizes import sizes_of
from lensaudit.patching.interventions import replace_at
from lensaudit.types import Intervention


def generate(
    model: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: frozenset[int],
    row_prompt: Sequence[int] | None = None,
    interventions: Mapping[int, Intervention] | None = None,
) -> list[tuple[int, ...]]:
    """Greedy continuations of `prompts`, up to and without the first token of `stop`.

    Prompts are padded on the left and masked, so a row does not depend on its neighbours.

    Args:
        model: in eval mode.
        prompts: token ids, at least one each.
        max_new_tokens: longest continuation.
        stop: ids that end a row.
        row_prompt: which prompt each row continues; one row per prompt if not given.
        interventions: edits of `[row, 1, d_model]` at the last prompt token; not before, not after.

    Raises:
        WorkError: logits are not finite.
    """
    own = range(len(prompts)) if row_prompt is None else row_prompt

    def read(now: Running, step: int) -> tuple[Logits, Any]:
        edits = interventions if interventions and not step else {}
        with intervening(model, edits):
            logits, past = read_on(model, now)
        return logits[:, -1], past

    rows = torch.tensor([*own], device=device_of(model))
    running = shared_out(prompts, rows, lambda before: read(before, -1)[1])
    return continued(running, read, likeliest, max_new_tokens=max_new_tokens, stop=stop)


def read_on(
    model: TransformerBridge, now: Running, *, n_logits: int = 1
) -> tuple[Float[Tensor, "running kept d_vocab"], Any]:
    """Logits after the last `n_logits` tokens that are read next, and the grown keys and values.

    Hooks fire.
    """
    return cached_logits(
        model,
        now.tokens,
        mask=now.mask,
        positions=now.positions.clamp(min=0),  # negative at padding
        past=now.past,
        n_logits=n_logits,
    )


def as_guessed(
    model: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    guesses: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: frozenset[int],
) -> list[tuple[int, ...]]:
    """What `generate` says, sooner where it was guessed: one pass reads all of the guesses.

    A row is generated from the first token on that is not the likeliest one, as in greedy
    speculative decoding (Leviathan et al. 2023, arXiv:2211.17192); tokens within rounding of each
    other may come out in the other order.

    Args:
        model: in eval mode.
        prompts: token ids, at least one each.
        guesses: of each prompt, what it may say; without tokens of `stop`, and may be empty.
        max_new_tokens: longest continuation.
        stop: ids that end a row.

    Raises:
        WorkError: logits are not finite.
    """
    n, said = 1 + max(map(len, guesses)), []
    read = started([(*a, *b) for a, b in zip(prompts, guesses, strict=True)], device_of(model))
    logits, _ = read_on(model, read, n_logits=n)
    check_finite(logits[read.mask[:, -n:].bool()])
    for guess, best in zip(guesses, logits.argmax(-1).tolist(), strict=True):
        own = best[n - 1 - len(guess) :]
        n_alike = 0
        while n_alike < len(guess) and guess[n_alike] == own[n_alike]:
            n_alike += 1
        said.append((*guess[:n_alike], own[n_alike]))
    more = [at for at, ids in enumerate(said) if ids[-1] not in stop]
    begun = [(*prompts[at], *said[at]) for at in more]
    left = max_new_tokens - min((len(said[at]) for at in more), default=max_new_tokens)
    rest = generate(model, begun, max_new_tokens=left, stop=stop) if left > 0 else [()] * len(more)
    for at, ids in zip(more, rest, strict=True):
        said[at] = (*said[at], *ids)
    return [ids[:-1] if ids[-1] in stop else ids[:max_new_tokens] for ids in said]


def shared_out(
    prompts: Sequence[Sequence[int]],
    rows: Int[Tensor, " row"],
    read: Callable[[Running], Any],
) -> Running:
    """Rows that continue prompts, each of which is read once, but for its last token.

    Args:
        prompts: token ids, at least one each.
        rows: which prompt each row continues, on the model's device.
        read: keys and values of what stands before.
    """
    whole, past = started(prompts, rows.device), None
    if whole.tokens.shape[1] > 1:
        past = read(Running(whole.row, whole.tokens[:, :-1], whole.mask[:, :-1]))
        past.batch_select_indices(rows)
    everyone = torch.arange(len(rows), device=rows.device)
    return Running(everyone, whole.tokens[rows, -1:], whole.mask[rows], past)


def patched_rows(
    full: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    *,
    row_prompt: Sequence[int],
    layer: Sequence[int],
    value: Float[Tensor, "row d_model"],
    max_new_tokens: int,
    stop: frozenset[int],
) -> list[tuple[int, ...]]:
    """Greedy continuations of rows with one layer patched at the last prompt token.

    Args:
        full: in eval mode.
        prompts: token ids, at least one each.
        row_prompt: which prompt each row continues; there may be no row.
        layer: after which each row's stream is replaced.
        value: what it is replaced by.
        max_new_tokens: longest continuation.
        stop: ids that end a row.
    """
    device = device_of(full)
    at, given = torch.tensor(layer, device=device), value.to(device).unsqueeze(1)
    edits = {one: replace_at(given, (at == one).unsqueeze(1)) for one in sorted(set(layer))}
    more: Any = {"max_new_tokens": max_new_tokens, "stop": stop, "row_prompt": row_prompt}
    # transformers cannot run a batch without rows
    return generate(full, prompts, **more, interventions=edits) if row_prompt else []


def rows_that_fit(
    model: TransformerBridge, n_pos: int, memory_bytes: int, n_logits: int = 1
) -> int:
    """Rows of `n_pos` tokens whose keys, values and logits stay within half of the budget."""
    hf: Any = model.original_model
    s = sizes_of(hf.config, str(next(hf.parameters()).dtype).removeprefix("torch."))
    # a layer's cache is copied as it grows, and spread to all heads to attend
    working = 4 * s.n_heads * s.d_head * n_pos * s.n_bytes
    logits = n_logits * s.d_vocab * (s.n_bytes + 8)
    return max(1, memory_bytes // 2 // (s.kept_bytes(n_pos) + working + logits))
