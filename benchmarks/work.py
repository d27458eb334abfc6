"""Was the work done that is timed? A time of rows that a cache or a shortcut took away is no time.

Counted at the modules themselves, whoever calls them: how many tokens each block's MLP multiplies,
and how many the unembedding reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lensaudit.models.bridge import TransformerBridge
from lensaudit.models.decoder import decoder_of


class NotMeasured(Exception):
    """A figure that would be printed is of less work than it says."""


@contextmanager
def tokens_read(model: TransformerBridge) -> Iterator[list[int]]:
    """Tokens that each block reads inside, and as the last number those that are unembedded."""
    decoder = decoder_of(model)
    modules: list[Any] = [*(block.down for block in decoder.blocks), decoder.unembed]
    counts = [0] * len(modules)

    def count(at: int, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        counts[at] += given[0].shape[:-1].numel()

    handles = [
        module.register_forward_pre_hook(lambda module, given, at=at: count(at, module, given))
        for at, module in enumerate(modules)
    ]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def all_read(model: TransformerBridge, wanted: Sequence[int], what: str) -> Iterator[None]:
    """At least so many tokens are read inside by each block, and by the unembedding.

    Raises:
        NotMeasured: fewer were.
    """
    with tokens_read(model) as counts:
        yield
    places = [*(f"block {at}" for at in range(len(wanted) - 1)), "the unembedding"]
    for place, n, least in zip(places, counts, wanted, strict=True):
        if n < least:
            raise NotMeasured(
                f"{what}: {place} read {n} tokens of {least}; a cache or a shortcut took the rest"
            )


def share_of_peak(flop: float, seconds: float, peak: float) -> float:
    """Of what the machine's matrix products reach.

    Raises:
        NotMeasured: more than all of it.
    """
    share = flop / seconds / peak
    if share > 1:
        raise NotMeasured(
            f"{share:.0%} of the peak of matrix products: work was left out, or the peak was "
            "measured beside other work; measure again on a quiet machine"
        )
    return share
