"""A source that stands elsewhere in the text: fitted and handed over where both match."""

from dataclasses import replace

import pytest
import torch
from support.store_cases import BASE, writer

from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.store import ExampleActivations
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.patching.alignment import fit_alignment, mapped, rows_to_fit
from lensaudit.patching.sources import CachedSource

LAYERS, WIDTH, WIDE = 2, 6, 9
PLACES = {0: 0, 1: 2, 2: 3, 4: 4, 5: 7}
"""Position of `full` -> of the source; at 3 no token of it ends."""


def cached(root, streams):
    """A cache of these streams, idx -> stream."""
    of = {"layers": LAYERS, "d_model": streams[0].shape[-1], "dtype": "float32"}
    fingerprint = replace(BASE, positions="all", **of)
    tokens = torch.arange(streams[0].shape[1])
    with writer(root, fingerprint, len(streams)) as filling:
        for shard in filling.missing():
            some = [(idx, streams[idx]) for idx in shard.idx]
            filling.publish(
                shard, [ExampleActivations(idx, tokens, tokens, one, one[-1]) for idx, one in some]
            )
        filling.seal()
    return ActivationStore(root).open(fingerprint)


@pytest.fixture
def pair(tmp_path):
    """`full`, and a source that holds its stream, turned and widened, where both have read as much.

    Elsewhere, and at position 0, it holds noise.
    """
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(WIDE, WIDE, generator=generator))[0][:WIDTH]
    full = {idx: torch.randn(LAYERS, 6, WIDTH, generator=generator) for idx in range(20)}
    own = {idx: torch.randn(LAYERS, 8, WIDE, generator=generator) for idx in full}
    for idx, stream in own.items():
        for at, there in PLACES.items():
            if at > 0:
                stream[:, there] = full[idx][:, at] @ turn + 3.0
    with cached(tmp_path, own) as source, cached(tmp_path, full) as into:
        yield source, into


ROWS = [Encoded(idx, idx, (5,) * 6, 3, 2, 4) for idx in range(20)]


def fitted(pair, places, root):
    how = {"n_tokens": 1000, "memory_bytes": 1 << 20, "root": root}
    return fit_alignment(*pair, ROWS, "affine", **how, places=places)


def test_a_map_is_fitted_where_both_have_read_as_much(pair, tmp_path):
    own, full = pair
    places = dict.fromkeys(range(20), PLACES)
    made = fitted(pair, places, tmp_path)
    # four of six positions match beyond the first; every fifth row is held out
    assert made.n_tokens == 4 * 16
    assert min(made.r2) > 0.999
    source = mapped(CachedSource(own), made.maps, made.layer_of, places)
    stack = source.padded(ROWS[:1])[0]
    for at in range(1, 6):
        if at in PLACES:
            assert (stack[:, at] - full.example(0).resid[:, at]).abs().max() < 1e-2
        else:
            assert not stack[:, at].any()


def test_a_row_that_the_source_lost_hands_nothing_over(pair, tmp_path):
    kept = dict.fromkeys(range(1, 20), PLACES)
    made = fitted(pair, kept, tmp_path)
    source = mapped(CachedSource(pair[0]), made.maps, made.layer_of, kept)
    first, second = source.padded(ROWS[:2])
    assert not first.any()
    assert second.any()


def test_rows_are_chosen_until_enough_tokens_match():
    few = {e.idx: {0: 0, 1: 1} for e in ROWS}
    # one token of each row matches, so all are needed; without places five of each
    assert len(rows_to_fit(ROWS, 16, 8, few)[0]) == 20
    assert len(rows_to_fit(ROWS, 16, 8)[0]) == 5
    with pytest.raises(InputError, match="16 neutral tokens, wanted 2 per dimension, 18"):
        rows_to_fit(ROWS, 16, 9, few)
    with pytest.raises(InputError, match="every row was left out, or shares an author"):
        rows_to_fit([], 16, 1, {})
    with pytest.raises(InputError, match="on none of 20 neutral rows: they are longer"):
        rows_to_fit(ROWS, 16, 1, {})
