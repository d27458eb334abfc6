"""What does reading a subject's values after one prompt save? Against every pair by itself.

    python -m benchmarks.know

Question: how much longer does it take to read each value of a relation after each prompt as a
sequence of its own, in batches of like length, unembedded at the value alone? Both sides give the
same log-probs; how far they differ is printed. Prompts and values are those of the embedded
family's relations, with 32 further values; weights are random. Processor seconds of one thread:
other work on the machine does not count. Tokens that each side read are printed: by themselves
every one of every pair, or there is an error. About three minutes. Wanted: a ratio of 4 or more.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.machine import describe
from benchmarks.shapes import random_model, shape_named
from benchmarks.work import NotMeasured, tokens_read
from lensaudit.association.exposure import exposures
from lensaudit.association.opening import Know, open_know
from lensaudit.association.reading import OUTPUTS, prompts_of
from lensaudit.association.settings import KnowSettings
from lensaudit.groups import batched
from lensaudit.models.bridge import TransformerBridge
from lensaudit.models.generation import started
from lensaudit.models.named import load_model
from lensaudit.patching.reader import Reader

BATCH = 32


Asked = tuple[list[tuple[int, ...]], list[tuple[int, ...]]]
"""Tokens of prompts, and of the values that continue each."""


def alone(model: TransformerBridge, asked: Asked) -> torch.Tensor:
    """Log-probs of every value after every prompt, each pair a sequence of its own."""
    prompts, values = asked
    pairs = [(ids, value) for ids in prompts for value in values]
    order = sorted(range(len(pairs)), key=lambda at: len(pairs[at][0]) + len(pairs[at][1]))
    reader, found = Reader(model), torch.zeros(len(pairs))
    for places in batched(order, BATCH):
        # the last token of a value is only told, not read
        rows = [(*pairs[at][0], *pairs[at][1][:-1]) for at in places]
        now = started(rows, torch.device("cpu"))
        longest = max(len(pairs[at][1]) for at in places)
        logits, _ = reader.read(
            now.tokens,
            mask=now.mask,
            positions=now.positions.clamp(min=0),
            past=None,
            n_logits=longest,
            rows=torch.tensor(places),
        )
        logprobs = logits.log_softmax(-1)
        for row, at in enumerate(places):
            value = torch.tensor(pairs[at][1])
            found[at] = logprobs[row, -len(value) :].gather(1, value.unsqueeze(1)).sum()
    return found.view(len(prompts), len(values))


def shared(model: TransformerBridge, asked: Asked) -> torch.Tensor:
    """The same on the keys and values of each prompt, values side by side."""
    prompts, values = asked
    return torch.stack(exposures(Reader(model), prompts, [values] * len(prompts)))


def seconds(run: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Processor seconds, and what came out."""
    started_at = time.process_time()
    found = run()
    return time.process_time() - started_at, found


@dataclass
class Compared:
    """Seconds and tokens of each side over all relations, and the largest difference in nats."""

    alone_s: float = 0.0
    shared_s: float = 0.0
    n_alone: int = 0
    n_shared: int = 0
    apart: float = 0.0


def compared(model: TransformerBridge, asked: Sequence[Asked]) -> Compared:
    """Both sides.

    Raises:
        NotMeasured: they differ, or fewer tokens were read than there are.
    """
    found = Compared()
    shared(model, asked[0])  # pays what the first call pays
    for prompts, values in asked:
        with tokens_read(model) as read:
            took, one = seconds(lambda both=(prompts, values): alone(model, both))
            found.alone_s, found.n_alone = found.alone_s + took, found.n_alone + read[0]
        pairs = [len(ids) + len(value) - 1 for ids in prompts for value in values]
        if read[0] < sum(pairs):
            raise NotMeasured(f"each by itself: {read[0]} tokens read of {sum(pairs)}")
        with tokens_read(model) as read:
            took, other = seconds(lambda both=(prompts, values): shared(model, both))
            found.shared_s, found.n_shared = found.shared_s + took, found.n_shared + read[0]
        # all prompts together, as whatever two have in common may be read once
        least = len({(at, ids[at]) for ids in prompts for at in range(len(ids))})
        if read[0] < least or read[-1] == 0:
            raise NotMeasured(f"shared: {read[0]} tokens read, at least {least} are different")
        found.apart = max(found.apart, float((one - other).abs().max()))
    if not found.apart < 1e-3:
        raise NotMeasured(f"log-probs of the two sides are {found.apart:.1g} nats apart")
    return found


def prompts_by_relation(know: Know, n_prompts: int) -> list[Asked]:
    """Up to so many prompts of every relation."""
    model = load_model("demo/base")
    asked = [prompts_of(model, one, OUTPUTS) for one in know.asked]
    return [(ids[:n_prompts], values) for ids, values in asked]


@torch.no_grad()
def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{describe()}\n")
    know = open_know("demo/graddiff", KnowSettings())
    print(
        "| model | pairs | each by itself, s | shared, s | ratio | tokens by themselves | shared "
        "| differ by, nats |\n|---|---|---|---|---|---|---|---|"
    )
    for name, shape, n_prompts in [
        ("embedded", "embedded", 48),
        ("SmolLM2-135M's shape", "smollm2", 2),
    ]:
        asked = prompts_by_relation(know, n_prompts)
        one = compared(random_model(shape_named(shape).config), asked)
        n_pairs = sum(len(ids) * len(values) for ids, values in asked)
        print(
            f"| {name} | {n_pairs} | {one.alone_s:.1f} | {one.shared_s:.1f} "
            f"| {one.alone_s / one.shared_s:.1f} | {one.n_alone} | {one.n_shared} "
            f"| {one.apart:.1g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
