"""A cache as a user reads it: layer by layer, example by example, with the author of each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.naming import cache_folders
from lensaudit.activations.spec import Fingerprint
from lensaudit.activations.store import Activations, CacheStore, ExampleActivations, from_bits
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError


@dataclass(frozen=True)
class LayerRows:
    """One layer's rows of several examples, laid end to end: ragged, nothing padded."""

    layer: int
    idx: tuple[int, ...]
    """The examples that have rows here."""
    offsets: Int[Tensor, " edge"]
    """Rows `offsets[n]:offsets[n + 1]` are those of example `idx[n]`."""
    positions: Int[Tensor, " row"]
    """Token position of each row."""
    resid: Float[Tensor, "row d_model"]
    absent: tuple[int, ...] = ()
    """The examples whose cached rows are too few for the place that was asked for."""

    def example(self, idx: int) -> Float[Tensor, "pos d_model"]:
        """The rows of one example."""
        slot = self.idx.index(idx)
        return self.resid[self.offsets[slot] : self.offsets[slot + 1]]


class LayerView:
    """One layer of a cache, ragged: each example has as many rows as positions were cached."""

    def __init__(self, activations: Activations, layer: int):
        self._activations, self.layer = activations, layer
        self.idx = activations.idx

    def __len__(self) -> int:
        return len(self.idx)

    def __iter__(self) -> Iterator[tuple[int, Float[Tensor, "pos d_model"]]]:
        """Each example's idx and rows, one after the other."""
        for idx in self.idx:
            yield idx, self.example(idx)

    def example(self, idx: int) -> Float[Tensor, "pos d_model"]:
        """The rows of one example."""
        return self.rows([idx]).resid

    def rows(self, idx: Iterable[int] | None = None) -> LayerRows:
        """All rows of some or all examples, laid end to end; in memory at once."""
        return self._laid(self.idx if idx is None else tuple(idx), slice(None))

    def at_span(self, place: int) -> LayerRows:
        """The `place`-th cached row of each example; -1 is the last. Too short ones are absent."""
        found = self._laid(self.idx, slice(place, place + 1 or None))
        there = found.offsets.diff().bool()
        idx = [one for one, yes in zip(found.idx, there.tolist(), strict=True) if yes]
        return replace(
            found,
            idx=tuple(idx),
            offsets=torch.arange(len(idx) + 1),
            absent=tuple(one for one in self.idx if one not in idx),
        )

    def _laid(self, idx: tuple[int, ...], places: slice) -> LayerRows:
        """The rows at some places of each example, end to end."""
        cache = self._activations
        found = [cache.slabs(number, [self.layer], final_norm=False) for number in idx]
        positions = [torch.from_numpy(slabs.positions)[places] for slabs in found]
        rows = [from_bits(one.resid[0], cache.fingerprint.dtype)[places] for one in found]
        edges = np.cumsum([0, *map(len, positions)], dtype=np.int64)
        return LayerRows(
            layer=self.layer,
            idx=idx,
            offsets=torch.from_numpy(edges),
            positions=torch.cat([torch.empty(0, dtype=torch.int64), *positions]),
            resid=torch.cat([torch.empty(0, cache.d_model, dtype=cache.dtype), *rows]),
        )


class LayeredActivations(Activations):
    """A cache on disk, read when asked by layer or by example; it keeps no activations."""

    @classmethod
    def of(cls, cache: Activations) -> "LayeredActivations":
        """The same cache, whose place it takes: `cache` is closed."""
        with cache:
            return cls(cache.folder, cache.spec, cache.seal)

    def __repr__(self) -> str:
        identity = self.fingerprint
        state = "" if self.complete else ", incomplete"
        part = "" if self.part == "resid" else f" {self.part}"
        return (
            f"<Activations {self.spec.name}{part}: {len(self)} examples x {identity.layers} layers "
            f"x {identity.d_model}, {identity.positions} positions, {identity.dtype}{state}>"
        )

    @property
    def authors(self) -> dict[int, int | str]:
        """Author of each example, idx -> `group`, of the rows that the cache was made of.

        Raises:
            InputError: those rows are not there any more, or are others by now.
        """
        recipe = self.spec.provenance
        if "data" not in recipe:
            raise InputError(f"{self.folder}: does not say which rows it was made from")
        how = {"exclude": recipe.get("exclude") or (), "limit": recipe.get("limit")}
        found = {one.idx: one.group for one in forget_set(recipe["data"], **how)}
        if missing := [idx for idx in self.idx if idx not in found]:
            raise InputError(
                f"{recipe['data']}: has no idx {missing[0]}; the cache was made from other rows"
            )
        return {idx: found[idx] for idx in self.idx}

    def example(self, idx: int, *, layers: Sequence[int] | None = None) -> ExampleActivations:
        """One example at all layers, or at `layers` in the order given.

        Raises:
            InputError: the cache does not hold the example or a layer, or `layers` is no list.
            VerificationError: the bytes on disk are not those that were written.
        """
        if isinstance(layers, int):
            raise InputError(f"layers={layers}: wanted several, in a list: [{layers}]")
        if layers is None:
            return super().example(idx)
        chosen = np.asarray(layers)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise InputError(f"layers: found {chosen.dtype} values, wanted numbers of layers")
        return super().example(idx, layers=chosen.tolist())

    def examples(self, idx: Iterable[int] | None = None) -> Iterator[ExampleActivations]:
        """Examples one after the other."""
        for wanted in self.idx if idx is None else idx:
            yield self.example(wanted)

    def layer(self, layer: int) -> LayerView:
        """One layer over all examples."""
        self._check_layers([layer])
        return LayerView(self, layer)


class ActivationStore(CacheStore):
    """The caches under one folder, each opened to be read by layer or by example."""

    def folders(self) -> list[Path]:
        """The cache folders, by name."""
        return cache_folders(self.root)

    def open(
        self, fingerprint: Fingerprint, *, allow_partial: bool = False
    ) -> LayeredActivations | None:
        """The cache of these numbers; None when absent, or incomplete unless `allow_partial`.

        Raises:
            VerificationError: the folder of this key says it holds something else.
        """
        found = super().open(fingerprint, allow_partial=allow_partial)
        return None if found is None else LayeredActivations.of(found)
