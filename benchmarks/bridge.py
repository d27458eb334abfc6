"""What do TransformerLens' wrappers cost where nobody listens, and half precision on a processor?

    OMP_NUM_THREADS=1 python -m benchmarks.bridge

The embedded `full`: one pass of a short prompt, 24 tokens of two answers and of 64, and how long a
bridge takes to be built; as lensaudit runs it, and as TransformerLens alone does (float16 and
bfloat16: with PyTorch's own products). The two take turns; the fastest of the runs of each, and
their ratio. What the wrappers change is an error: nothing would be compared.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from benchmarks.machine import describe
from benchmarks.work import NotMeasured
from lensaudit.models import booting, linear
from lensaudit.models.bridge import DTYPES, bridge_from, logits_of
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_model
from lensaudit.patching.generation import generate

N_RUNS = 5
N_TOKENS = 24
PROMPT = "Question: Where does the river end?\nAnswer:"
Way = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def all_wrappers() -> Iterator[None]:
    """TransformerLens' own pass, with every wrapper, and its own way to look for hook points."""
    unchanged = mock.patch.object(
        booting, "unheard_left_out", return_value=contextlib.nullcontext()
    )
    with unchanged, mock.patch.object(booting, "_hook_points_in", dir):
        yield


@contextlib.contextmanager
def own_products() -> Iterator[None]:
    """PyTorch's own products of float16 and bfloat16."""
    plain = mock.patch.object(linear, "_is_looped", return_value=False)
    with plain, mock.patch.object(booting, "LOOPED", frozenset()):
        yield


def fastest(
    run: Callable[[Any], Any], other: Way, prepare: Callable[[], Any]
) -> tuple[float, float]:
    """Seconds the other way, and ours; what `prepare` makes for each run is not timed.

    Raises:
        NotMeasured: without wrappers something else is computed.
    """
    seconds: dict[Way, list[float]] = {other: [], contextlib.nullcontext: []}
    results = dict[Way, Any]()
    for way in list(seconds) * N_RUNS:
        prepared = prepare()
        with way():
            began = time.perf_counter()
            results[way] = run(prepared)
            seconds[way].append(time.perf_counter() - began)
    if other is all_wrappers and len({repr(one) for one in results.values()}) > 1:
        raise NotMeasured(f"{results}")
    return min(seconds[other]), min(seconds[contextlib.nullcontext])


def main() -> None:
    """Print the table."""
    checkpoint = open_model("demo/full")
    tokenizer = load_tokenizer(checkpoint)
    ids = tokenizer(PROMPT)["input_ids"]
    how: dict[str, Any] = {"max_new_tokens": N_TOKENS, "stop": frozenset[int]()}

    def loaded(dtype: torch.dtype) -> Any:
        return load_causal(checkpoint, dtype=dtype, device="cpu")

    def told(model: Any) -> list[float]:
        return logits_of(model, torch.tensor([ids]))[0, -1].tolist()

    def said(n: int) -> Callable[[Any], Any]:
        return lambda model: generate(model, [ids] * n, **how)

    def built(plain: Any) -> str:
        return type(bridge_from(plain, tokenizer)).__name__

    torch.set_grad_enabled(False)
    single, *halves = (bridge_from(loaded(one), tokenizer) for one in DTYPES.values())
    rows: dict[str, tuple[Callable[[Any], Any], Way, Callable[[], Any]]] = {
        "a bridge built": (built, all_wrappers, lambda: loaded(torch.float32)),
        "a short prompt": (told, all_wrappers, lambda: single),
        f"{N_TOKENS} tokens of 2 answers": (said(2), all_wrappers, lambda: single),
        f"{N_TOKENS} tokens of 64 answers": (said(64), all_wrappers, lambda: single),
        **{
            f"{N_TOKENS} tokens of {n} answers, {half.cfg.dtype}": (
                said(n),
                own_products,
                lambda half=half: half,
            )
            for half in halves
            for n in (2, 64)
        },
    }
    print(f"{describe()}\n\n| what | other way, ms | lensaudit, ms | ratio |\n|---|---|---|---|")
    for what, row in rows.items():
        theirs, ours = fastest(*row)
        print(f"| {what} | {theirs * 1e3:.0f} | {ours * 1e3:.0f} | {theirs / ours:.1f} |")


if __name__ == "__main__":
    main()
