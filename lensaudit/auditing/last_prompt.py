"""What does a model think at the end of the prompt, before it says a word of the answer?"""

from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.auditing.streams import Asked, asked, streams
from lensaudit.progress import Tell, unheard
from lensaudit.settings import Kept, Place, named


@dataclass(frozen=True)
class LastPrompt:
    """The last prompt token of some examples, in the order of the data."""

    source: str
    idx: tuple[int, ...]
    resid: Float[Tensor, "example layer d_model"]
    """In the type of the cache; of `heads` all of them end to end."""
    unscored: dict[int, str]
    """idx -> why the tokenizer lost its span."""


def last_prompt(
    source: Place,
    *,
    component: Kept = "resid",
    progress: Tell = unheard,
    **settings: Unpack[Asked],
) -> LastPrompt:
    """The residual stream, or a component, of every layer at the last prompt token, from a cache.

    The prompt ends where the scored answer begins: behind `prefix`, if the rows have one. The
    model runs only where nothing is cached.

    Args:
        source: whose.
        component: of every layer; `resid` is the stream after it.
        progress: told what is cached.
        settings: `data`, `exclude`, `limit`, `registry`, `dtype`, `device`, `batch_size`, `memory`
            and `activations`, as of `lensaudit cache`.

    >>> la.last_prompt("demo/npo", limit=8).resid.shape  # doctest: +SKIP
    torch.Size([8, 16, 64])

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    name = named(source)
    how = asked("last_prompt", settings, positions="span", component=component)
    with streams(name, how, progress=progress) as found:
        rows = [
            found.activations.example(e.idx).at(torch.tensor([e.n_prompt - 1])).resid.squeeze(1)
            for e in found.encoded
        ]
        idx = tuple(e.idx for e in found.encoded)
    return LastPrompt(name, idx, torch.stack(rows), found.unscored)
