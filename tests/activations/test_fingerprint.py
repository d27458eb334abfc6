"""Caches agree exactly when their fingerprints do."""

import dataclasses

import pytest
from store_cases import BASE

from lensaudit.activations.spec import Fingerprint, fingerprint_of
from lensaudit.errors import InputError


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Fingerprint)])
def test_every_field_of_the_fingerprint_changes_the_key(field):
    others = {"positions": "all", "dtype": "float32", "layers": 4, "d_model": 16, "schema": 2}
    changed = dataclasses.replace(BASE, **{field: others.get(field, "another")})
    assert changed.key() != BASE.key()
    assert [text.split(":")[0] for text in BASE.differences(changed)] == [field]


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
