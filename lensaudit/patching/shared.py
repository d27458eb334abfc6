"""The aligned stream without the one direction that it shares with other authors' facts.

The control of an aligned depth against a model that adds the same vector wherever it is asked for
what it is to hide. Directions are found when a stream is first asked for, as many layers at a time
as memory holds: a run whose book is whole reads nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.files import digest
from lensaudit.patching.aligned import MappedSource
from lensaudit.patching.scorebook import example_hash
from lensaudit.patching.sources import CachedSource
from lensaudit.scores.shared import SharedDirection, shared_directions

FOLDS = 50
"""Groups that are left out one at a time; where there are more, several at a time."""
_SCHEMA = 1


def folds_of(rows: Sequence[Encoded]) -> dict[int, int]:
    """Idx -> fold: all rows of a group in one, in whatever order the rows come."""
    groups = sorted({e.group for e in rows}, key=lambda group: (str(group), str(type(group))))
    place = {group: at % FOLDS for at, group in enumerate(groups)}
    return {e.idx: place[e.group] for e in rows}


def shared_key(map_key: str, rows: Sequence[Encoded]) -> str:
    """Content hash of what directions depend on, beside the source's weights and the conditions."""
    folds = folds_of(rows)
    return digest([_SCHEMA, map_key, sorted((example_hash(e), folds[e.idx]) for e in rows)])


def too_few_groups(rows: Sequence[Encoded]) -> str | None:
    """Why nothing can be taken from the facts of others; None where there are others."""
    n = len({e.group for e in rows})
    return None if n > 1 else f"{n} author: no other's facts to take a shared direction from"


@dataclass(frozen=True)
class Directions:
    """By fold and layer; nothing of the fold's own rows is in them."""

    source: MappedSource
    full: CachedSource
    rows: tuple[Encoded, ...]
    """The facts that the source can be read on."""
    layers: tuple[int, ...]
    """Those that are patched; the others stay as they are."""
    memory_bytes: int

    @cached_property
    def folds(self) -> dict[int, int]:
        """Idx -> fold."""
        return folds_of(self.rows)

    @cached_property
    def found(self) -> dict[int, list[SharedDirection]]:
        """Layer -> one for each fold."""
        d_model = self.source.shape[1]
        n_tokens = sum(e.n_span for e in self.rows)
        # float32 streams and differences of every position; half is left for what a layer needs
        at_once = max(1, self.memory_bytes // (2 * 2 * 4 * n_tokens * d_model))
        found = {}
        for start in range(0, len(self.layers), at_once):
            layers = self.layers[start : start + at_once]
            apart, full = self._streams(layers)
            for at, layer in enumerate(layers):
                found[layer] = shared_directions([x[at] for x in apart], [y[at] for y in full])
        return found

    def _streams(
        self, layers: Sequence[int]
    ) -> tuple[list[Float[Tensor, "layer _ d"]], list[Float[Tensor, "layer _ d"]]]:
        """Source minus `full`, and `full`, at the positions that predict, by fold."""
        n_folds = max(self.folds.values()) + 1
        apart: list[list[Tensor]] = [[] for _ in range(n_folds)]
        full: list[list[Tensor]] = [[] for _ in range(n_folds)]
        for e in self.rows:
            at, x = self.source.at_layers(e.idx, layers)
            here = (at >= e.start) & (at < e.end)
            y = self.full.activations.example(e.idx, layers=layers).at(at[here]).resid.float()
            apart[self.folds[e.idx]].append(x[:, here].float() - y)
            full[self.folds[e.idx]].append(y)
        return [torch.cat(one, dim=1) for one in apart], [torch.cat(one, dim=1) for one in full]


@dataclass(frozen=True)
class WithoutShared(MappedSource):
    """An aligned source whose stream has `full`'s mean along each layer's shared direction."""

    directions: Directions | None = None

    def _example(self, idx: int) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
        positions, resid = super()._example(idx)
        assert self.directions is not None
        if idx not in self.directions.folds:  # read with its bucket, and not scored
            return positions, resid
        fold, found = self.directions.folds[idx], self.directions.found
        moved = [
            found[layer][fold].taken_out(one) if layer in found else one
            for layer, one in enumerate(resid)
        ]
        return positions, torch.stack(moved)
