"""Caches agree exactly when their fingerprints do."""

import pytest
from store_cases import BASE

from lensaudit.activations.spec import fingerprint_of
from lensaudit.errors import InputError


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "int8"},
        {"layers": "16"},
        {"layers": True},
        {"layers": 10**9},
        {"d_model": 0},
        {"schema": 99},
        {"format": "other"},
        {"extra": 1},
    ],
)
def test_an_odd_identity_document_is_refused(change):
    with pytest.raises(InputError, match=r"x: "):
        fingerprint_of({**BASE.document(), **change}, source="x")
